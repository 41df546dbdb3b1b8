//! What to do where there is no nvcc: for who builds this crate as a dependency, and for who builds its
//! repository.

use super::nvcc::{MINIMUM, NotFound};

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

/// Who reads the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Has this crate's repository, `cargo xtask` with it.
    Repository,
    /// Has a `Cargo.toml` that names this crate.
    Dependent,
}

/// The whole message. `version` is what a dependent's `Cargo.toml` asks for, such as `0.1`.
pub(crate) fn no_nvcc(
    missing: &NotFound,
    reader: Reader,
    version: &str,
    no_kernels: &str,
) -> String {
    let first = match reader {
        Reader::Repository => {
            "  - `cargo xtask toolchain` installs a compiler under target/, without root, and prints what to \
             export. `cargo xtask run`, `test` and `check` do that by themselves.\n  \
             - For the CPU path only: `cargo build --no-default-features`, with `--features cli` for the \
             program.\n"
                .to_owned()
        }
        Reader::Dependent => format!(
            "  - For the CPU path only, write in Cargo.toml:\n      \
             nvfp4-gemv = {{ version = \"{version}\", default-features = false }}\n    \
             Every package of the build that names nvfp4-gemv must do so.\n"
        ),
    };
    let packages: Vec<String> = PYPI
        .iter()
        .map(|name| format!("'{name}=={PYPI_RELEASE}.*'"))
        .collect();
    format!(
        "nvfp4-gemv: the `cuda` feature compiles CUDA C++ and found {missing}What to do, one of:\n{first}  \
         - Install the CUDA Toolkit {MINIMUM} or newer: from NVIDIA (CUDA Toolkit Downloads on \
         developer.nvidia.com), or with a package manager: cuda-nvcc and cuda-cudart-dev of NVIDIA's \
         repositories for apt and dnf, cuda-nvcc and cuda-cudart-static of conda-forge. It needs no GPU. \
         Where it is not in PATH or /usr/local/cuda:\n      \
         export CUDA_HOME=/where/it/is\n  \
         - Or install the compiler alone from PyPI, without root:\n      \
         python3 -m pip install --target \"$HOME/cuda\" {}\n      \
         export CUDA_HOME=\"$HOME/cuda/{PYPI_HOME}\"\n  \
         - To check or edit code without a compiler (rust-analyzer, `cargo check`), build without kernels:\n      \
         export {no_kernels}=1\n",
        packages.join(" "),
    )
}
