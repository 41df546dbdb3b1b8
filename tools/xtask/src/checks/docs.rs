//! The documentation builds without a warning, also where docs.rs builds it.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nvfp4_gemv_targets::nvcc;
use serde_json::Value;

use crate::cargo::Cargo;
use crate::checks::{Context, library};

const FLAGS: &str = "RUSTDOCFLAGS";

pub(super) fn check(context: &Context<'_>) -> Result<()> {
    let cargo = context.cargo_without_kernels().env(FLAGS, "-D warnings");
    // Links to what only a feature brings lead somewhere without it, too. The pages that stay are of the second run.
    let without = ["--package", "nvfp4-gemv", "--no-default-features"];
    cargo.run([&["doc", "--no-deps", "--lib"], &without[..]].concat())?;
    let page = context.workspace.folder("doc");
    let page = page.join("nvfp4_gemv/index.html");
    let text = fs::read_to_string(&page).with_context(|| format!("{}", page.display()))?;
    // rustdoc takes it away where it resolves a link, and only there.
    ensure!(
        !text.contains("mod@"),
        "{} shows a link as it is written: mod@...",
        page.display()
    );
    let jit = ["--features", "jit"];
    cargo.run([&["doc", "--no-deps", "--lib"], &without[..], &jit].concat())?;
    cargo.run(["doc", "--no-deps", "--lib"])
}

/// docs.rs has no nvcc. Here, none can be found either: no variable names one, PATH leads to none. It documents the
/// features that Cargo.toml lists for it, and marks what a feature brings: of that, one page is looked at.
pub(super) fn check_as_docs_rs(context: &Context<'_>) -> Result<()> {
    let target = context.workspace.check_dir("docs-rs");
    let mut cargo = Cargo::new(context.workspace)
        .env(FLAGS, "-D warnings --cfg docsrs")
        // The marks need a feature of nightly, which docs.rs uses. This allows it to the library alone.
        .env("RUSTC_BOOTSTRAP", "nvfp4_gemv")
        .env("DOCS_RS", "1")
        .env("PATH", path_without_nvcc()?)
        // A target directory of its own, so that nothing built with nvcc at hand is reused.
        .target_dir(&target);
    for name in cuda_variables() {
        cargo = cargo.without_env(name);
    }
    if Path::new("/usr/local/cuda/bin/nvcc").exists() {
        eprintln!(
            "note: /usr/local/cuda/bin/nvcc cannot be hidden; on this machine the check shows less"
        );
    }
    let library = library(&cargo)?;
    let listed = library["metadata"]["docs"]["rs"]["features"].as_array();
    let features: Vec<&str> = listed
        .context("Cargo.toml: [package.metadata.docs.rs] lists no features")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let doc = "doc --no-deps --lib --package nvfp4-gemv --features".split(' ');
    cargo.run(doc.chain([&*features.join(",")]))?;
    cargo.run("doc --no-deps --lib --package nvfp4-gemv-parallel".split(' '))?;
    let page = target.join("doc/nvfp4_gemv/fn.gemv_on_device.html");
    let (shown, text) = (page.display(), fs::read_to_string(&page));
    let text = text.with_context(|| format!("{shown}: is feature device documented there?"))?;
    let is_marked = text.contains("crate feature <code>device</code>");
    ensure!(
        is_marked,
        "{shown} does not say that it needs feature device"
    );
    Ok(())
}

/// Further variables that cudarc or nvcc reads.
const MORE_VARIABLES: &str = "NVCC_CCBIN CUDA_ROOT CUDA_TOOLKIT_ROOT_DIR CUDARC_CUDA_VERSION";

/// Every variable by which CUDA could be found, PATH apart.
pub(super) fn cuda_variables() -> impl Iterator<Item = &'static str> {
    let all = nvcc::VARIABLES.into_iter().chain(MORE_VARIABLES.split(' '));
    all.filter(|name| *name != "PATH")
}

fn path_without_nvcc() -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).filter(|entry| !entry.join("nvcc").exists());
    env::join_paths(directories).context("PATH cannot be rebuilt")
}
