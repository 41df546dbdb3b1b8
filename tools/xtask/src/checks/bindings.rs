//! `src/ffi.rs` and `src/kernel/params.rs` are bindgen's output, committed so that a user needs no libclang.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::Cargo;
use crate::process;
use crate::toolchain;
use crate::workspace::Workspace;

/// The build script writes what bindgen makes into the folder that this variable names.
const OUT: &str = "NVFP4_GEMV_BINDINGS_OUT";

/// Makes the build script do so: with this feature it is a build of its own.
const GENERATE: [&str; 6] = [
    "check",
    "--package",
    "nvfp4-gemv",
    "--lib",
    "--features",
    "regenerate-bindings",
];

/// Files that the build script writes into the folder of [`OUT`], and where they are committed.
const FILES: [(&str, &str); 2] = [
    ("ffi.rs", "src/ffi.rs"),
    ("params.rs", "src/kernel/params.rs"),
];

/// `cargo xtask bindings`.
pub(crate) fn regenerate(workspace: &Workspace) -> Result<()> {
    let generated = generate(workspace)?;
    for (name, committed) in FILES {
        let new = read(&generated.path().join(name))?;
        let file = workspace.root().join(committed);
        if fs::read_to_string(&file).is_ok_and(|old| old == new) {
            eprintln!("{committed} is up to date");
            continue;
        }
        fs::write(&file, new).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("wrote {committed}");
    }
    Ok(())
}

/// Fails, with the difference, when a committed file is not what the C headers give.
pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let generated = generate(workspace)?;
    let mut differ = Vec::new();
    for (name, committed) in FILES {
        let (new, file) = (
            generated.path().join(name),
            workspace.root().join(committed),
        );
        if read(&file)? != read(&new)? {
            show_difference(&file, &new);
            differ.push(committed);
        }
    }
    if !differ.is_empty() {
        bail!(
            "{} is not what csrc gives: run `cargo xtask bindings`, and commit",
            differ.join(", ")
        );
    }
    Ok(())
}

/// A folder with the files.
fn generate(workspace: &Workspace) -> Result<tempfile::TempDir> {
    let libclang = toolchain::libclang(workspace)?;
    let headers = toolchain::builtin_headers()?;
    // A new path each time, so that cargo runs the build script again.
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let out = directory.path();
    let built = Cargo::new(workspace)
        .env("LIBCLANG_PATH", libclang)
        .env(
            "BINDGEN_EXTRA_CLANG_ARGS",
            format!("-isystem{}", headers.display()),
        )
        .env(OUT, out)
        // The build script would compile the kernels too.
        .env("NVFP4_GEMV_NO_KERNELS", "1")
        .run(GENERATE);
    let files: Vec<PathBuf> = FILES.iter().map(|(name, _)| out.join(name)).collect();
    match built {
        // The library may not compile before it has the new bindings.
        Err(_) if files.iter().all(|file| file.is_file()) => Ok(directory),
        other => other.map(|()| directory),
    }
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Shows the difference with git where there is one; the check has failed in any case.
fn show_difference(committed: &Path, generated: &Path) {
    let mut diff = Command::new("git");
    diff.args(["--no-pager", "diff", "--no-index", "--"])
        .arg(committed)
        .arg(generated);
    if process::run(&mut diff).is_err() {
        eprintln!("(- is {}, + is what csrc gives)", committed.display());
    }
}
