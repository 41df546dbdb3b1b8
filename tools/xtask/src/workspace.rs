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

    /// Downloaded compilers, and what is known about them.
    pub(crate) fn toolchain_dir(&self) -> PathBuf {
        self.target.join(places::TOOLCHAIN)
    }

    /// The folder of `cargo xtask run --simulate`.
    pub(crate) fn simulate_dir(&self) -> PathBuf {
        self.target.join("simulate")
    }

    /// The folder of `cargo xtask bench`.
    pub(crate) fn bench_dir(&self) -> PathBuf {
        self.target.join("bench")
    }

    /// The folder of `cargo xtask nightly`.
    pub(crate) fn nightly_dir(&self) -> PathBuf {
        self.target.join("nightly")
    }

    /// The folder of what `cargo xtask sass` compiles beside the library.
    pub(crate) fn sass_dir(&self) -> PathBuf {
        self.target.join("sass")
    }

    /// The folder of `cargo xtask first-light`.
    pub(crate) fn first_light_dir(&self) -> PathBuf {
        self.target.join("first-light")
    }

    /// The folder of inputs that `cargo xtask fuzz` finds.
    pub(crate) fn fuzz_dir(&self) -> PathBuf {
        self.target.join("fuzz")
    }

    /// The folder into which `cargo build --release` puts programs and libraries.
    pub(crate) fn release_dir(&self) -> PathBuf {
        self.target.join("release")
    }

    /// The folder into which `cargo doc` puts its pages.
    pub(crate) fn doc_dir(&self) -> PathBuf {
        self.target.join("doc")
    }

    /// The folder of what `cargo xtask public-kernels` compiles.
    pub(crate) fn public_dir(&self) -> PathBuf {
        self.target.join("public-kernels")
    }

    /// Build output of a check whose environment must not touch the ordinary build.
    pub(crate) fn check_dir(&self, check: &str) -> PathBuf {
        self.target.join("check").join(check)
    }
}
