//! Where the repository is, and where its build output goes.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::toolchain::places;

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

    /// Downloaded compilers, and what is known about them.
    pub(crate) fn toolchain_dir(&self) -> PathBuf {
        self.target.join(places::TOOLCHAIN)
    }

    /// What `cargo xtask run --simulate` writes.
    pub(crate) fn simulate_dir(&self) -> PathBuf {
        self.target.join("simulate")
    }

    /// What `cargo xtask bench` writes.
    pub(crate) fn bench_dir(&self) -> PathBuf {
        self.target.join("bench")
    }

    /// What `cargo xtask nightly` writes.
    pub(crate) fn nightly_dir(&self) -> PathBuf {
        self.target.join("nightly")
    }

    /// What `cargo xtask sass` compiles beside the library.
    pub(crate) fn sass_dir(&self) -> PathBuf {
        self.target.join("sass")
    }

    /// What `cargo xtask first-light` writes.
    pub(crate) fn first_light_dir(&self) -> PathBuf {
        self.target.join("first-light")
    }

    /// What `cargo xtask fuzz` finds.
    pub(crate) fn fuzz_dir(&self) -> PathBuf {
        self.target.join("fuzz")
    }

    /// Where `cargo build --release` puts programs and libraries.
    pub(crate) fn release_dir(&self) -> PathBuf {
        self.target.join("release")
    }

    /// Where `cargo doc` puts its pages.
    pub(crate) fn doc_dir(&self) -> PathBuf {
        self.target.join("doc")
    }

    /// What `cargo xtask public-kernels` compiles.
    pub(crate) fn public_dir(&self) -> PathBuf {
        self.target.join("public-kernels")
    }

    /// Build output of a check whose environment must not touch the ordinary build.
    pub(crate) fn check_dir(&self, check: &str) -> PathBuf {
        self.target.join("check").join(check)
    }
}
