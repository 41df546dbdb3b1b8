//! Downloads wheels with the user's own pip, so that pip's config (an index of their own, a
//! mirror, a proxy, certificates) holds here too.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

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
            "the CUDA compiler is downloaded with pip, and none was found; tried {}\n\
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
            "--quiet",
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
    fn fetch(&self, pin: &Pin, scratch: &Path, received: &dyn Fn(u64)) -> Result<PathBuf> {
        let requirements = scratch.join("requirements.txt");
        let Pin {
            name,
            version,
            sha256,
            ..
        } = pin;
        fs::write(
            &requirements,
            format!("{name}=={version} --hash=sha256:{sha256}\n"),
        )
        .with_context(|| format!("cannot write {}", requirements.display()))?;
        let log = scratch.join("pip.log");
        let arriving = scratch.join("arriving");
        let wheel = scratch.join("wheel");
        fs::create_dir_all(&arriving).context("cannot create a directory for pip")?;

        let mut command = self.download(pin, &requirements, &wheel);
        // pip writes what it receives to its temporary directory: the size of that is the progress.
        command
            .env("TMPDIR", &arriving)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).context("cannot write pip's log")?);
        let line = process::line(&command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        let status = loop {
            if let Some(status) = child.try_wait().with_context(|| format!("`{line}`"))? {
                break status;
            }
            received(bytes_below(&arriving));
            std::thread::sleep(Duration::from_millis(50));
        };
        if !status.success() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!(
                "{status} from `{line}`:\n{}\n\
                 pip's own configuration is used (pip.conf, PIP_INDEX_URL, HTTPS_PROXY, ...). What was \
                 downloaded and verified before is kept: run the command again to continue.\n\
                 Without a network, set NVCC to the nvcc of a CUDA 12.9 or newer installation.",
                process::tail(said.trim(), 20)
            );
        }
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

fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
