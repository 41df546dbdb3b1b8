//! THE dispatch table: which path computes a shape, and why. Pure: no CUDA, no clock, no
//! environment but one variable, read by [`forced_by_environment`].
//!
//! [`select`] asks the paths from the fastest to the slowest whether they can run the problem where
//! its operands lie, and takes the first that can. What a path cannot do is in [`available`], one
//! match arm a path, with a reason that [`Unavailable`] prints. A forced path is never replaced by
//! another.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Activation;

/// One of the ways to compute a GEMV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The CPU, with the widest vector instructions it has.
    Cpu,
    /// A GPU's CUDA cores, sm_80 and up.
    CudaCore,
    /// Blackwell's block-scaled tensor cores (tcgen05).
    TensorCore,
}

impl Path {
    /// All paths.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::CudaCore, Self::TensorCore];

    /// The name in messages, flags, JSON and `NVFP4_GEMV_PATH`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CudaCore => "cuda-core",
            Self::TensorCore => "tensor-core",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Path {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| Error::UnknownPath { name: name.into() })
    }
}

/// The variable that forces a path: `cpu`, `cuda-core`, `tensor-core`, or `auto`.
pub const PATH_VARIABLE: &str = "NVFP4_GEMV_PATH";

/// What [`PATH_VARIABLE`] asks for. Read on every call of this function; the safe calls read it
/// once a process.
///
/// # Errors
/// [`Error::UnknownPath`] where it names none.
pub fn forced_by_environment() -> Result<Option<Path>> {
    match std::env::var_os(PATH_VARIABLE) {
        None => Ok(None),
        Some(name) if name.is_empty() || name == "auto" => Ok(None),
        Some(name) => name.to_string_lossy().parse().map(Some),
    }
}

/// Where the operands lie, and what the machine there can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Host memory.
    Host,
    /// A CUDA device's memory.
    Cuda {
        /// Its compute capability, major and minor.
        compute_capability: (i32, i32),
        /// The architectures this build carries, as in `NVFP4_GEMV_ARCHS`: `"80;90a;100a"`.
        archs: &'static str,
    },
}

/// A path, and why it was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The path.
    pub path: Path,
    /// Why; prints as a sentence.
    pub reason: Reason,
}

/// Why a path was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The caller or `NVFP4_GEMV_PATH` said so.
    Forced,
    /// Host operands are computed where they lie.
    OperandsOnHost,
    /// The next better path cannot run this.
    Instead {
        /// The better path.
        of: Path,
        /// Why it cannot.
        because: Unavailable,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forced => write!(f, "forced by the caller or by {PATH_VARIABLE}"),
            Self::OperandsOnHost => f.write_str("the operands are in host memory"),
            Self::Instead { of, because } => write!(f, "not {of}: {because}"),
        }
    }
}

/// Why a path cannot run a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// A GPU path, and operands in host memory.
    OperandsOnHost,
    /// The CPU path, and operands in device memory.
    OperandsOnDevice,
    /// Built without the `cuda` feature.
    BuiltWithoutCuda,
    /// The device is older than every kernel.
    ComputeCapability {
        /// The device's.
        found: (i32, i32),
        /// What the path needs.
        needed: &'static str,
    },
    /// No machine code for this device in this build.
    NoKernelImage {
        /// The device's compute capability.
        compute_capability: (i32, i32),
        /// What this build carries.
        archs: &'static str,
    },
    /// This version of the crate has no such kernels yet.
    NotInThisVersion,
    /// Documentation build: the API without the kernels.
    DocumentationBuild,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OperandsOnHost => {
                f.write_str("the operands are in host memory; copy them to a device first")
            }
            Self::OperandsOnDevice => {
                f.write_str("the operands are in device memory; copy them to the host first")
            }
            Self::BuiltWithoutCuda => f.write_str("built without the `cuda` feature"),
            Self::ComputeCapability {
                found: (major, minor),
                needed,
            } => write!(
                f,
                "the device has compute capability {major}.{minor}, the path needs {needed}"
            ),
            Self::NoKernelImage {
                compute_capability: (major, minor),
                archs,
            } => write!(
                f,
                "this build carries machine code for {archs}, none of which runs on compute \
                 capability {major}.{minor}; rebuild with NVFP4_GEMV_ARCHS naming it"
            ),
            Self::NotInThisVersion => {
                f.write_str("this version of nvfp4-gemv has no tensor-core kernels yet")
            }
            Self::DocumentationBuild => {
                f.write_str("this is a documentation build (DOCS_RS), which carries no kernels")
            }
        }
    }
}

/// Whether `path` can compute the problem on `target`.
pub fn available(
    path: Path,
    _shape: &Shape,
    _activation: Activation,
    target: &Target,
) -> Result<(), Unavailable> {
    let &Target::Cuda {
        compute_capability,
        archs,
    } = target
    else {
        return match path {
            Path::Cpu => Ok(()),
            Path::CudaCore | Path::TensorCore if cfg!(not(feature = "cuda")) => {
                Err(Unavailable::BuiltWithoutCuda)
            }
            Path::CudaCore | Path::TensorCore => Err(Unavailable::OperandsOnHost),
        };
    };
    match path {
        Path::Cpu => Err(Unavailable::OperandsOnDevice),
        Path::CudaCore if compute_capability < (8, 0) => Err(Unavailable::ComputeCapability {
            found: compute_capability,
            needed: "8.0 or newer",
        }),
        Path::CudaCore if archs.is_empty() => Err(Unavailable::DocumentationBuild),
        Path::CudaCore
            if !archs
                .split(';')
                .any(|a| arch_runs_on(a, compute_capability)) =>
        {
            Err(Unavailable::NoKernelImage {
                compute_capability,
                archs,
            })
        }
        Path::CudaCore => Ok(()),
        Path::TensorCore if compute_capability.0 != 10 => Err(Unavailable::ComputeCapability {
            found: compute_capability,
            needed: "10.x",
        }),
        Path::TensorCore => Err(Unavailable::NotInThisVersion),
    }
}

/// Picks the path for a problem, or checks that the forced one can run.
///
/// # Errors
/// [`Error::PathUnavailable`] where the forced path, or every path, cannot run the problem.
///
/// ```
/// use nvfp4_gemv::{select, Activation, Path, Shape, Target};
/// let shape = Shape::gemv(4096, 4096, 1)?;
/// let h200 = Target::Cuda { compute_capability: (9, 0), archs: "80;90a" };
/// let choice = select(&shape, Activation::Nvfp4, &h200, None)?;
/// assert_eq!(choice.path, Path::CudaCore);
/// println!("{}: {}", choice.path, choice.reason);
///
/// let error = select(&shape, Activation::Nvfp4, &h200, Some(Path::TensorCore)).unwrap_err();
/// assert!(error.to_string().contains("compute capability 9.0"));
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn select(
    shape: &Shape,
    activation: Activation,
    target: &Target,
    forced: Option<Path>,
) -> Result<Choice> {
    let can = |path| available(path, shape, activation, target);
    if let Some(path) = forced {
        return match can(path) {
            Ok(()) => Ok(Choice {
                path,
                reason: Reason::Forced,
            }),
            Err(reason) => Err(Error::PathUnavailable { path, reason }),
        };
    }
    if *target == Target::Host {
        return Ok(Choice {
            path: Path::Cpu,
            reason: Reason::OperandsOnHost,
        });
    }
    let because = match can(Path::TensorCore) {
        Ok(()) => unreachable!("no tensor-core kernels in this version"),
        Err(because) => because,
    };
    match can(Path::CudaCore) {
        Ok(()) => Ok(Choice {
            path: Path::CudaCore,
            reason: Reason::Instead {
                of: Path::TensorCore,
                because,
            },
        }),
        Err(reason) => Err(Error::PathUnavailable {
            path: Path::CudaCore,
            reason,
        }),
    }
}

/// Whether machine code for `arch` runs on a device: plain numbers on the same major and an equal
/// or higher minor, `f` on the same family, `a` on exactly that device.
///
/// Source: CUDA C++ Programming Guide, "Compute capability" and "Family- and architecture-specific
/// features".
pub(crate) fn arch_runs_on(arch: &str, (major, minor): (i32, i32)) -> bool {
    let digits = arch.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let Ok(number) = digits.parse::<i32>() else {
        return false;
    };
    let (arch_major, arch_minor) = (number / 10, number % 10);
    match &arch[digits.len()..] {
        "a" => (arch_major, arch_minor) == (major, minor),
        "" | "f" => arch_major == major && arch_minor <= minor,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHS: &str = "80;90a;100a;103a;120a";

    fn cuda(major: i32, minor: i32) -> Target {
        Target::Cuda {
            compute_capability: (major, minor),
            archs: ARCHS,
        }
    }

    fn pick(target: Target, forced: Option<Path>) -> Result<Choice> {
        select(
            &Shape::gemv(128, 256, 1).unwrap(),
            Activation::Nvfp4,
            &target,
            forced,
        )
    }

    #[test]
    fn automatic_choice_follows_the_operands() {
        assert_eq!(pick(Target::Host, None).unwrap().path, Path::Cpu);
        for cc in [(8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)] {
            assert_eq!(pick(cuda(cc.0, cc.1), None).unwrap().path, Path::CudaCore);
        }
    }

    #[test]
    fn what_cannot_run_says_why() {
        for (target, forced, says) in [
            (cuda(7, 5), None, "8.0 or newer"),
            (cuda(12, 1), None, "rebuild with NVFP4_GEMV_ARCHS"),
            (cuda(9, 0), Some(Path::TensorCore), "needs 10.x"),
            (
                cuda(10, 0),
                Some(Path::TensorCore),
                "no tensor-core kernels",
            ),
            (cuda(9, 0), Some(Path::Cpu), "in device memory"),
        ] {
            let error = pick(target, forced).unwrap_err();
            assert!(matches!(error, Error::PathUnavailable { .. }));
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = pick(Target::Host, Some(Path::CudaCore)).unwrap_err();
        let says = if cfg!(feature = "cuda") {
            "in host memory"
        } else {
            "built without"
        };
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(
            pick(Target::Host, Some(Path::Cpu)).unwrap().reason,
            Reason::Forced
        );
    }

    #[test]
    fn which_architecture_runs_where() {
        for (arch, cc, runs) in [
            ("80", (8, 0), true),
            ("80", (8, 9), true),
            ("89", (8, 6), false),
            ("80", (9, 0), false),
            ("90a", (9, 0), true),
            ("100a", (10, 0), true),
            ("100a", (10, 3), false),
            ("100f", (10, 3), true),
            ("120a", (12, 1), false),
            ("121a", (12, 1), true),
            ("", (8, 0), false),
            ("80x", (8, 0), false),
        ] {
            assert_eq!(arch_runs_on(arch, cc), runs, "{arch} on {cc:?}");
        }
    }

    #[test]
    fn names_round_trip() {
        for path in Path::ALL {
            assert_eq!(path.name().parse::<Path>().unwrap(), path);
        }
        assert!("gpu".parse::<Path>().is_err());
    }
}
