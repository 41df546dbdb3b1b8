//! Advice where there is no nvcc: for somebody who builds the library as a dependency, and for somebody who builds its
//! repository.

use std::path::Path;

use crate::no_kernels;
use crate::nvcc::{MINIMUM, NotFound};
use crate::places::HOME;

/// Names the checkout of the repository that cargo was started in: `.cargo/config.toml` there sets it.
pub const CHECKOUT: &str = "NVFP4_GEMV_CHECKOUT";

/// The PyPI packages that make a CUDA compiler, all of one version. `cargo xtask toolchain` installs the same.
pub const PYPI: [&str; 5] = [
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
];

/// Their release. They put the compiler into [`HOME`] below the folder they are installed in.
pub const PYPI_RELEASE: &str = "13.0";

/// The reader of the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The reader has the repository, `cargo xtask` with it.
    Repository,
    /// Has a `Cargo.toml` that names the library, by a path, a git repository or a version.
    Dependent,
}

impl Reader {
    /// `package` is the folder of the library, `checkout` what [`CHECKOUT`] says. A dependent may have the very same
    /// folder, but starts cargo elsewhere.
    pub fn of(package: &Path, checkout: Option<&Path>) -> Self {
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
pub fn no_nvcc(missing: &NotFound, reader: Reader) -> String {
    let variable = no_kernels::VARIABLE;
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
                 export CUDA_HOME=\"$HOME/cuda/{HOME}\""
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
         To check or edit code without a compiler (rust-analyzer, `cargo check`): export {variable}=1\n\n\
         Found {missing}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_its_reader_has() {
        let missing = NotFound::default();
        let to = |reader| no_nvcc(&missing, reader);
        let dependent = to(Reader::Dependent);
        assert!(!dependent.contains("xtask") && !dependent.contains("--no-default-features"));
        let repository = to(Reader::Repository);
        for (advice, cpu, compiler) in [
            (
                dependent,
                "default-features = false, features = [\"checkpoint\", \"tune\"]",
                "pip install",
            ),
            (
                repository,
                "cargo build --no-default-features",
                "cargo xtask toolchain",
            ),
        ] {
            // A line each, the first two after what is wrong.
            let lines: Vec<&str> = advice.lines().collect();
            assert!(lines[1].starts_with("  CPU only: "), "{advice}");
            assert!(lines[1].contains(cpu), "{advice}");
            assert!(lines[2].starts_with("  compiler: "), "{advice}");
            assert!(lines[2].contains(compiler), "{advice}");
            assert!(lines[3].contains("jit"), "{advice}");
            let rest = lines[4..].join("\n");
            for part in ["12.9 or newer", "CUDA_HOME", "NVFP4_GEMV_NO_KERNELS=1"] {
                assert!(rest.contains(part), "{part}: {rest}");
            }
        }
    }

    /// A folder with everything in it that the repository has may be a dependent's path or git dependency.
    #[test]
    fn a_checkout_is_ones_own_where_cargo_was_started_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let [package, other] = ["nvfp4-gemv", "app"].map(|name| folder.path().join(name));
        std::fs::create_dir_all(package.join("xtask")).unwrap();
        std::fs::create_dir(&other).unwrap();
        let of = |checkout: Option<&Path>| Reader::of(&package, checkout);
        assert_eq!(of(Some(&package.join("."))), Reader::Repository);
        assert_eq!(of(Some(&other)), Reader::Dependent);
        assert_eq!(of(Some(&folder.path().join("gone"))), Reader::Dependent);
        assert_eq!(of(None), Reader::Dependent);
    }
}
