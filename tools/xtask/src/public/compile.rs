//! Compiles a kernel with the program around it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cases::{Kernel, Repository};
use crate::process;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

/// Flags that the recorder asks for, and flags that all kernels need.
const FLAGS: &str = "-std=c++20 -O2 -lineinfo --expt-relaxed-constexpr -w -cudart shared";

pub(super) struct Compiler {
    nvcc: OsString,
    environment: Vec<(OsString, OsString)>,
    /// The programs and their headers.
    folder: PathBuf,
    from: PathBuf,
    out: PathBuf,
    keep: bool,
}

impl Compiler {
    pub(super) fn new(
        workspace: &Workspace,
        toolchain: &Toolchain,
        folder: &Path,
        from: &Path,
        keep: bool,
    ) -> Result<Self> {
        let out = workspace.folder("public-kernels");
        let libraries = out.join("lib");
        fs::create_dir_all(&libraries)
            .with_context(|| format!("cannot create {}", libraries.display()))?;
        // The recorder stands in for both at link time too.
        let recorder = workspace.release_dir().join("libptx_recorder.so");
        for name in ["libcuda.so", "libcudart.so"] {
            let link = libraries.join(name);
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link)?;
            }
            symlink(&recorder, &link)?;
        }
        Ok(Self {
            nvcc: toolchain.nvcc.clone().into(),
            environment: toolchain
                .environment()
                .into_iter()
                .map(|(name, value)| (name.into(), value))
                .collect(),
            folder: folder.to_path_buf(),
            from: from.to_path_buf(),
            out,
            keep,
        })
    }

    /// The program, or what nvcc says.
    pub(super) fn compile(
        &self,
        kernel: &Kernel,
        repository: &Repository,
    ) -> Result<Result<PathBuf, String>> {
        let place = self.out.join(kernel.file());
        let program = place.join("program");
        if self.keep && program.is_file() {
            return Ok(Ok(program));
        }
        fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
        let home = self.from.join(&repository.name);
        let source = home.join(&kernel.source);
        let text = match fs::read_to_string(&source) {
            Ok(text) => text,
            Err(e) => return Ok(Err(format!("{}: {e}", source.display()))),
        };
        let edited = place.join("source.cu");
        let text = repository
            .edits
            .iter()
            .fold(text, |text, edit| text.replace(&edit.find, &edit.with));
        fs::write(&edited, text)?;
        let unit = place.join("unit.cu");
        fs::write(&unit, self.unit(kernel, &edited))?;
        let mut nvcc = Command::new(&self.nvcc);
        nvcc.envs(self.environment.iter().map(|(n, v)| (n, v)));
        nvcc.args(FLAGS.split(' ')).args(&repository.flags);
        let arch = kernel.arch.as_deref().unwrap_or("100a");
        nvcc.arg(format!("-gencode=arch=compute_{arch},code=compute_{arch}"));
        for folder in [&self.folder, &self.folder.join("include")] {
            nvcc.arg("-I").arg(folder);
        }
        nvcc.arg("-I").arg(source.parent().unwrap_or(&home));
        for folder in &repository.include {
            nvcc.arg("-I").arg(self.from.join(folder));
        }
        nvcc.arg("-L").arg(self.out.join("lib")).arg("-lcuda");
        nvcc.arg("-o").arg(&program).arg(&unit);
        let output = process::output(&mut nvcc)?;
        if output.status.success() {
            return Ok(Ok(program));
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let error = said.lines().find(|l| l.contains("error"));
        Ok(Err(error.unwrap_or("nvcc failed").to_string()))
    }

    /// The source that nvcc is given.
    fn unit(&self, kernel: &Kernel, source: &Path) -> String {
        let mut unit = String::new();
        for (name, value) in &kernel.define {
            unit += &format!("#define {name} {value}\n");
        }
        let file = |path: &Path| format!("\"{}\"", path.display());
        match &kernel.program {
            None => unit += &format!("#include {}\n", file(source)),
            Some(program) => {
                unit += &format!("#define SOURCE {}\n", file(source));
                unit += &format!("#include {}\n", file(&self.folder.join(program)));
            }
        }
        unit
    }
}
