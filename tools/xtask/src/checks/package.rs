//! The packages that would be published work where they are unpacked: outside the repository, without the simulator,
//! and without nvcc. Checked are the library with its tests and benches, each feature alone, and the program with that
//! library. The simulator is checked by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cargo::Cargo;
use crate::process;
use crate::workspace::Workspace;

/// The most bytes of a .crate file: crates.io sends it to every build that does not have it. A little above what is
/// there in 2026-11, all of it source and pages for users: to notice a large file, not to argue about each page.
const MOST_BYTES: u64 = 640_000;

const LIBRARY: &str = "nvfp4-gemv";
const PROGRAM: &str = "nvfp4-gemv-cli";
const SIMULATOR: &str = "ptx-sim";

pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let target = workspace.check_dir("package");
    let cargo = Cargo::new(workspace).target_dir(&target);
    // Packages of another version may be left from before.
    let packages = target.join("package");
    if packages.is_dir() {
        fs::remove_dir_all(&packages)
            .with_context(|| format!("cannot remove {}", packages.display()))?;
    }
    // Cargo does not verify the packages: that would build the kernels, which the rest of CI does.
    let all = [LIBRARY, PROGRAM, SIMULATOR].map(|name| ["--package", name]);
    cargo.run(
        [
            &["package", "--no-verify", "--allow-dirty"],
            all.as_flattened(),
        ]
        .concat(),
    )?;
    // Outside the repository, where neither its workspace nor its files can help.
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let unpack = |package| unpacked(&packages, package, directory.path());
    let (library, program) = (unpack(LIBRARY)?, unpack(PROGRAM)?);
    let simulator = unpack(SIMULATOR)?;

    let no_kernels = cargo
        .env("NVFP4_GEMV_NO_KERNELS", "1")
        .env("RUSTFLAGS", "-D warnings");
    let of_library = no_kernels.clone().at(library.join("Cargo.toml"));
    for features in ["", "cuda", "jit", "nccl", "checkpoint", "tune"] {
        let only = ["check", "--tests", "--no-default-features", "--features"];
        of_library.run([&only[..], &[features]].concat())?;
    }
    // The default features, with the tests for GPUs among the targets.
    of_library.run(["check", "--all-targets"])?;
    of_library.run(["check", "--all-targets", "--features", "unstable"])?;
    let of_simulator = no_kernels.clone().at(simulator.join("Cargo.toml"));
    of_simulator.run(["check", "--all-targets"])?;
    says_that_it_has_no_kernels(&no_kernels.at(program.join("Cargo.toml")), &library)
}

/// A program of a build without kernels links, starts, and says what it lacks.
fn says_that_it_has_no_kernels(cargo: &Cargo, library: &Path) -> Result<()> {
    // The library that is not published yet.
    let patch = format!(
        "patch.crates-io.{LIBRARY}.path={:?}",
        library.display().to_string()
    );
    let program = cargo.executable(&["--config", &patch])?;
    let info = process::stdout(Command::new(program).args(["info", "--json"]))?;
    let info: Value = serde_json::from_str(&info).context("`nvfp4-gemv info --json`")?;
    let why = info["cuda"]["why_none"].as_str().unwrap_or_default();
    if !why.contains("carries no kernels") {
        bail!("a build without kernels does not say so, but {why:?}: {info}");
    }
    Ok(())
}

/// Unpacks a package, and returns its folder.
fn unpacked(packages: &Path, package: &str, to: &Path) -> Result<PathBuf> {
    let file = the_crate(packages, package)?;
    let bytes = fs::metadata(&file)
        .with_context(|| format!("cannot read {}", file.display()))?
        .len();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&file).arg("-C").arg(to);
    process::run(&mut tar)?;
    let name = file.file_stem().unwrap_or_default();
    let unpacked = to.join(name);
    eprintln!(
        "{}: {} kB, {} kB unpacked",
        name.to_string_lossy(),
        bytes / 1000,
        size(&unpacked)? / 1000
    );
    if bytes > MOST_BYTES {
        bail!(
            "the package has {bytes} bytes, {MOST_BYTES} at most: what is new and large? \
             `cargo package --package {package} --list` lists it; Cargo.toml's `exclude` leaves files out"
        );
    }
    Ok(unpacked)
}

/// The file of a package: its name has the version.
fn the_crate(directory: &Path, package: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let version = name
            .strip_prefix(package)
            .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".crate"));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut files = entries.into_iter().map(|entry| entry.path());
    files
        .find(is_its)
        .with_context(|| format!("cargo left no {package} in {}", directory.display()))
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
