//! `src/ffi.rs` is bindgen's output, committed so that a user needs no libclang.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::Cargo;
use crate::process;
use crate::toolchain::{self, Toolchain};
use crate::workspace::Workspace;

/// The build script copies what bindgen made to the path in this variable.
const OUT: &str = "NVFP4_GEMV_BINDINGS_OUT";

/// `cargo xtask bindings`.
pub(crate) fn regenerate(workspace: &Workspace) -> Result<()> {
    let toolchain = toolchain::ensure(workspace)?;
    let committed = workspace.root().join("src").join("ffi.rs");
    let new = generate(workspace, &toolchain)?;
    if fs::read_to_string(&committed).is_ok_and(|old| old == new) {
        eprintln!("{} is up to date", committed.display());
        return Ok(());
    }
    fs::write(&committed, new).with_context(|| format!("cannot write {}", committed.display()))?;
    eprintln!("wrote {}", committed.display());
    Ok(())
}

/// Fails, with the difference, when the committed file is not what the header gives.
pub(super) fn check(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    let committed = workspace.root().join("src").join("ffi.rs");
    let old = fs::read_to_string(&committed)
        .with_context(|| format!("cannot read {}", committed.display()))?;
    let new = generate(workspace, toolchain)?;
    if old == new {
        return Ok(());
    }
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let generated = directory.path().join("ffi.rs");
    fs::write(&generated, new).context("cannot write the generated bindings")?;
    show_difference(&committed, &generated);
    bail!("src/ffi.rs is not what csrc/nvfp4_gemv.h gives: run `cargo xtask bindings`, and commit");
}

fn generate(workspace: &Workspace, toolchain: &Toolchain) -> Result<String> {
    let libclang = toolchain::libclang(workspace)?;
    let headers = toolchain::builtin_headers()?;
    // A new path each time, so that cargo runs the build script again.
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let out = directory.path().join("ffi.rs");
    Cargo::new(workspace)
        .with_toolchain(toolchain)
        .env("LIBCLANG_PATH", libclang)
        .env(
            "BINDGEN_EXTRA_CLANG_ARGS",
            format!("-isystem{}", headers.display()),
        )
        .env(OUT, &out)
        // The build script compiles the kernels too: one architecture is enough here.
        .env("NVFP4_GEMV_ARCHS", "80")
        .target_dir(&workspace.check_dir("bindings"))
        .run(["check", "--lib", "--features", "regenerate-bindings"])?;
    fs::read_to_string(&out).with_context(|| {
        format!(
            "the build script did not write the bindings to {OUT} ({})",
            out.display()
        )
    })
}

/// With git where there is one; the check has failed in any case.
fn show_difference(committed: &Path, generated: &Path) {
    let mut diff = Command::new("git");
    diff.args(["--no-pager", "diff", "--no-index", "--"])
        .arg(committed)
        .arg(generated);
    if process::run(&mut diff).is_err() {
        eprintln!("(- is {}, + is what the header gives)", committed.display());
    }
}
