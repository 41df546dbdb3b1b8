//! What would be published works where it is unpacked: outside the repository, without the simulator, and
//! without nvcc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cargo::Cargo;
use crate::process;
use crate::workspace::Workspace;

/// The most bytes of the .crate file: crates.io sends it to every build that does not have it.
const MOST_BYTES: u64 = 1_000_000;

pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let target = workspace.check_dir("package");
    let cargo = Cargo::new(workspace).target_dir(&target);
    // Not verified by cargo: that would build the kernels, which the rest of CI does.
    cargo.run([
        "package",
        "--package",
        "nvfp4-gemv",
        "--no-verify",
        "--allow-dirty",
    ])?;
    let file = newest_crate(&target.join("package"))?;
    let bytes = fs::metadata(&file)
        .with_context(|| format!("cannot read {}", file.display()))?
        .len();

    // Outside the repository, where neither its workspace nor its files can help.
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&file).arg("-C").arg(directory.path());
    process::run(&mut tar)?;
    let name = file.file_stem().unwrap_or_default();
    let unpacked = directory.path().join(name);
    let whole = size(&unpacked)?;
    eprintln!(
        "{}: {} kB, {} kB unpacked",
        name.to_string_lossy(),
        bytes / 1000,
        whole / 1000
    );

    let cargo = cargo.at(unpacked.join("Cargo.toml"));
    cargo.run(["check", "--all-targets", "--no-default-features"])?;
    // With the features that a user gets who asks for none, the tests for GPUs among them.
    let no_kernels = cargo.env("NVFP4_GEMV_NO_KERNELS", "1");
    no_kernels.run(["check", "--all-targets"])?;
    says_that_it_has_no_kernels(&no_kernels)?;
    if bytes > MOST_BYTES {
        bail!(
            "the package has {bytes} bytes, {MOST_BYTES} at most: what is new and large? \
             `cargo package --list` lists it; Cargo.toml's `exclude` leaves files out"
        );
    }
    Ok(())
}

/// A program of a build without kernels links, starts, and says what it lacks.
fn says_that_it_has_no_kernels(cargo: &Cargo) -> Result<()> {
    let program = cargo.executable(&["--bin", "nvfp4-gemv"])?;
    let info = process::stdout(Command::new(program).args(["info", "--json"]))?;
    let info: Value = serde_json::from_str(&info).context("`nvfp4-gemv info --json`")?;
    let why = info["cuda"]["why_none"].as_str().unwrap_or_default();
    if !why.contains("carries no kernels") {
        bail!("a build without kernels does not say so, but {why:?}: {info}");
    }
    Ok(())
}

/// The package file that was made last: its name has the version.
fn newest_crate(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let crates = entries
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "crate"));
    crates
        .max_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok())
        .with_context(|| format!("cargo left no package in {}", directory.display()))
}

/// Bytes of all files below a directory.
fn size(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
