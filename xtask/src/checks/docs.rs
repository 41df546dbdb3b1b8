//! The documentation builds without a warning, also where docs.rs builds it.

use std::env;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cargo::Cargo;
use crate::checks::Context;
use crate::toolchain::nvcc;

const DENY: (&str, &str) = ("RUSTDOCFLAGS", "-D warnings");

pub(super) fn check(context: &Context<'_>) -> Result<()> {
    let cargo = context.cargo.clone().env(DENY.0, DENY.1);
    cargo.run(["doc", "--no-deps", "--lib"])
}

/// docs.rs has no nvcc. Here, none can be found either: no variable names one, PATH leads to none.
pub(super) fn check_as_docs_rs(context: &Context<'_>) -> Result<()> {
    let mut cargo = Cargo::new(context.workspace)
        .env(DENY.0, DENY.1)
        .env("DOCS_RS", "1")
        .env("PATH", path_without_nvcc()?)
        // Of its own, so that nothing built with nvcc at hand is reused.
        .target_dir(&context.workspace.check_dir("docs-rs"));
    for name in cuda_variables() {
        cargo = cargo.without_env(name);
    }
    if Path::new("/usr/local/cuda/bin/nvcc").exists() {
        eprintln!(
            "note: /usr/local/cuda/bin/nvcc cannot be hidden; on this machine the check shows less"
        );
    }
    cargo.run(["doc", "--no-deps", "--lib"])
}

/// What else cudarc or nvcc reads.
const MORE_VARIABLES: [&str; 4] = [
    "NVCC_CCBIN",
    "CUDA_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
    "CUDARC_CUDA_VERSION",
];

/// Every variable by which CUDA could be found, PATH apart.
pub(super) fn cuda_variables() -> impl Iterator<Item = &'static str> {
    let all = nvcc::VARIABLES.into_iter().chain(MORE_VARIABLES);
    all.filter(|name| *name != "PATH")
}

fn path_without_nvcc() -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).filter(|entry| !entry.join("nvcc").exists());
    env::join_paths(directories).context("PATH cannot be rebuilt")
}
