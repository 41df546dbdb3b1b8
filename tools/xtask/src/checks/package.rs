//! The packages that would be published work where they are unpacked: outside the repository, without the simulator,
//! and without nvcc. Checked are the library with its tests and benches, each feature alone, and the program with that
//! library. The simulator, and the packages that the library is made of, are checked by themselves.

use std::collections::BTreeMap;
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
/// Its features have candle's kernels compiled, which takes nvcc minutes: check `compat-cuda`.
const CANDLE: &str = "nvfp4-gemv-candle";

pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let target = workspace.check_dir("package");
    let cargo = Cargo::new(workspace).target_dir(&target);
    // Packages of another version may be left from before.
    let packages = target.join("package");
    if packages.is_dir() {
        fs::remove_dir_all(&packages)
            .with_context(|| format!("cannot remove {}", packages.display()))?;
    }
    let all = super::packages(&cargo)?.into_iter();
    let published = all.filter(|package| package["publish"].is_null());
    let published: Vec<String> = published
        .filter_map(|package| package["name"].as_str().map(str::to_owned))
        .collect();
    // Cargo does not verify the packages: that would build the kernels, which the rest of CI does.
    let named = published.iter().flat_map(|name| ["--package", name]);
    let as_they_are = ["--no-verify", "--allow-dirty"];
    cargo.run(["package"].into_iter().chain(named).chain(as_they_are))?;
    // Outside the repository, where neither its workspace nor its files can help.
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut folders = BTreeMap::new();
    for name in &published {
        folders.insert(&**name, unpacked(&packages, name, directory.path())?);
    }
    // None of them is published yet.
    let mut patches = String::from("[patch.crates-io]\n");
    for (name, folder) in &folders {
        patches += &format!("{name}.path = {:?}\n", folder.display().to_string());
    }
    let patched = directory.path().join("patches.toml");
    fs::write(&patched, patches).with_context(|| format!("cannot write {}", patched.display()))?;
    let patched = patched.to_str().context("a name that is no text")?;

    let at = |cargo: Cargo, name: &str| -> Result<Cargo> {
        let folder = folders.get(name).with_context(|| format!("no {name}"))?;
        let cargo = cargo.env("NVFP4_GEMV_NO_KERNELS", "1");
        Ok(cargo.at(folder.join("Cargo.toml")))
    };
    let check = |name: &str, arguments: &[&str]| {
        // Where the check of that name has compiled most dependencies. Of clippy, only its way to refuse the compiler's
        // warnings: flags for all crates would compile them again.
        let cargo = Cargo::new(workspace).target_dir(workspace.target());
        let refuse = ["--", "--allow", "clippy::all", "--deny", "warnings"];
        let clippy = ["clippy", "--config", patched];
        at(cargo, name)?.run([&clippy, arguments, &refuse].concat())
    };
    for features in ["", "cuda", "jit", "checkpoint", "tune"] {
        let only = ["--tests", "--no-default-features", "--features", features];
        check(LIBRARY, &only)?;
    }
    // The default features, with the tests for GPUs among the targets.
    check(LIBRARY, &["--all-targets"])?;
    check(LIBRARY, &["--all-targets", "--features", "unstable"])?;
    check(PROGRAM, &[])?;
    for name in folders
        .keys()
        .filter(|name| ![LIBRARY, PROGRAM].contains(name))
    {
        let features: &[&str] = match *name {
            CANDLE => &[],
            _ => &["--all-features"],
        };
        check(name, &[&["--all-targets"], features].concat())?;
    }
    // Elsewhere, it would take the place of the program with kernels.
    says_that_it_has_no_kernels(&at(cargo, PROGRAM)?, patched)
}

/// A program of a build without kernels links, starts, and says what it lacks.
fn says_that_it_has_no_kernels(cargo: &Cargo, patched: &str) -> Result<()> {
    let program = cargo.executable(&["--config", patched])?;
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
