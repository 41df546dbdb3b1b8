//! Paths of the repository and of its build output.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nvfp4_gemv_targets::places;

#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        // At run time cargo says where xtask is; the compiled-in path serves a copied binary.
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest
            .ancestors()
            .nth(2)
            .with_context(|| format!("{} is in no folder of a repository", manifest.display()))?
            .to_path_buf();
        let target = match env::var_os("CARGO_TARGET_DIR")
            .or_else(|| env::var_os("CARGO_BUILD_TARGET_DIR"))
            .filter(|directory| !directory.is_empty())
        {
            Some(directory) => env::current_dir()
                .context("the current directory cannot be read")?
                .join(directory),
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target directory.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Downloaded compilers, and what is known about them.
    pub(crate) fn toolchain_dir(&self) -> PathBuf {
        self.target.join(places::TOOLCHAIN)
    }

    /// The folder of this name in cargo's target directory: a command's, or one of cargo's own.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.target.join(name)
    }

    /// The folder into which `cargo build --release` puts programs and libraries.
    pub(crate) fn release_dir(&self) -> PathBuf {
        self.target.join("release")
    }

    /// Build output of a check whose environment must not touch the ordinary build.
    pub(crate) fn check_dir(&self, check: &str) -> PathBuf {
        self.target.join("check").join(check)
    }
}
