//! Advice where there is no nvcc: for somebody who builds this crate as a dependency, and for somebody who builds its
//! repository.

use std::path::Path;

use super::nvcc::{MINIMUM, NotFound};

/// Names the checkout of this crate's repository that cargo was started in: `.cargo/config.toml` there sets it.
pub(crate) const CHECKOUT: &str = "NVFP4_GEMV_CHECKOUT";

/// The PyPI packages that make a CUDA compiler, all of one version. `cargo xtask toolchain` installs the same.
pub(crate) const PYPI: [&str; 5] = [
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
];

/// Their release, and where they put the compiler below the folder they are installed in.
pub(crate) const PYPI_RELEASE: &str = "13.0";
pub(crate) const PYPI_HOME: &str = "nvidia/cu13";

/// The reader of the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The reader has this crate's repository, `cargo xtask` with it.
    Repository,
    /// Has a `Cargo.toml` that names this crate, by a path, a git repository or a version.
    Dependent,
}

impl Reader {
    /// `package` is the folder of this crate, `checkout` what [`CHECKOUT`] says. A dependent may have the very same
    /// folder, but starts cargo elsewhere.
    pub(crate) fn of(package: &Path, checkout: Option<&Path>) -> Self {
        let is_same = |checkout: &Path| match (package.canonicalize(), checkout.canonicalize()) {
            (Ok(package), Ok(checkout)) => package == checkout,
            _ => false,
        };
        match checkout.is_some_and(is_same) {
            true => Self::Repository,
            false => Self::Dependent,
        }
    }
}

/// The whole message: what to do for the CPU alone, what to do for a compiler, what for a GPU without one, and only
/// then the rest.
pub(crate) fn no_nvcc(missing: &NotFound, reader: Reader, no_kernels: &str) -> String {
    let packages: Vec<String> = PYPI
        .iter()
        .map(|name| format!("'{name}=={PYPI_RELEASE}.*'"))
        .collect();
    let packages = packages.join(" ");
    let (cpu, compiler, jit) = match reader {
        Reader::Repository => (
            "cargo build --no-default-features",
            "cargo xtask toolchain   # installs one under target/, without root, and prints what to export"
                .to_owned(),
            "cargo build --no-default-features --features jit",
        ),
        Reader::Dependent => (
            "in every Cargo.toml that names nvfp4-gemv, add to its entry: \
             default-features = false, features = [\"checkpoint\", \"tune\"]",
            format!(
                "python3 -m pip install --target \"$HOME/cuda\" {packages} && \
                 export CUDA_HOME=\"$HOME/cuda/{PYPI_HOME}\""
            ),
            "the same with features = [\"jit\", \"checkpoint\", \"tune\"]",
        ),
    };
    format!(
        "nvfp4-gemv: the `cuda` feature compiles CUDA C++, and there is no compiler for it. Do one of these:\n  \
         CPU only: {cpu}\n  \
         compiler: {compiler}\n  \
         no compiler, but a GPU: {jit}   # kernels are compiled at run time, by NVRTC\n\n\
         A CUDA Toolkit {MINIMUM} or newer does as well, without a GPU: from NVIDIA (CUDA Toolkit Downloads on \
         developer.nvidia.com), or with a package manager: cuda-nvcc and cuda-cudart-dev of NVIDIA's repositories \
         for apt and dnf, cuda-nvcc and cuda-cudart-static of conda-forge. Where it is not in PATH or \
         /usr/local/cuda: export CUDA_HOME=/where/it/is, or NVCC=/where/it/is/bin/nvcc\n\
         To check or edit code without a compiler (rust-analyzer, `cargo check`): export {no_kernels}=1\n\n\
         Found {missing}"
    )
}
