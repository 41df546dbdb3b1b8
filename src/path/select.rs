//! The choice.

use std::fmt;

use super::measured::Measurements;
use super::{Evidence, Operands, PATH_VARIABLE, Path, Target, Unavailable, available, model, rank};
use crate::error::{Error, Result};
use crate::shape::Shape;

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
    /// It is the fastest, as far as is known.
    Best {
        /// Why, as part of a sentence.
        why: &'static str,
        /// What that rests on.
        evidence: Evidence,
    },
    /// A better path cannot run this.
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
            Self::Best { why, evidence } => write!(f, "{why} ({evidence})"),
            Self::Instead { of, because } => write!(f, "not {of}: {because}"),
        }
    }
}

/// Picks the path for a problem, or checks that the forced one can run.
///
/// # Errors
/// [`Error::PathUnavailable`] where the forced path, or every path, cannot run the problem.
///
/// ```
/// use nvfp4_gemv::path::Operands;
/// use nvfp4_gemv::{select, Activation, Path, ScaleLayout, Shape, Target};
/// let shape = Shape::gemv(4096, 4096, 1)?;
/// let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
/// let h200 = Target::Cuda { compute_capability: (9, 0), archs: "80;90a", model: None };
/// let choice = select(&shape, &operands, &h200, None)?;
/// println!("{}: {}", choice.path, choice.reason);
///
/// let error = select(&shape, &operands, &h200, Some(Path::TensorCore)).unwrap_err();
/// assert!(error.to_string().contains("compute capability 9.0"));
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn select(
    shape: &Shape,
    operands: &Operands,
    target: &Target,
    forced: Option<Path>,
) -> Result<Choice> {
    select_tuned(shape, operands, target, forced, None)
}

/// [`select`] with measurements on the very device that `target` stands for, which go before everything
/// this crate knows of itself.
///
/// # Errors
/// As [`select`].
pub fn select_tuned(
    shape: &Shape,
    operands: &Operands,
    target: &Target,
    forced: Option<Path>,
    tuned: Option<&Measurements>,
) -> Result<Choice> {
    let can = |path| available(path, shape, operands, target);
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
    let ranked = rank(shape, operands, target, tuned);
    let mut instead = None;
    for one in &ranked {
        let Some(estimate) = &one.estimate else {
            continue;
        };
        let path = one.path;
        match one.available {
            Ok(()) => {
                let evidence = estimate.evidence;
                let why = match evidence {
                    Evidence::Modelled => model::why(path),
                    _ => "the fastest that can run this",
                };
                let best = Reason::Best { why, evidence };
                return Ok(Choice {
                    path,
                    reason: instead.unwrap_or(best),
                });
            }
            // The best path's reason says most.
            Err(because) => {
                instead.get_or_insert(Reason::Instead { of: path, because });
            }
        }
    }
    let reason = can(Path::CudaCore).expect_err("every path was tried");
    Err(Error::PathUnavailable {
        path: Path::CudaCore,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Activation;
    use crate::types::ScaleLayout;

    const ARCHS: &str = "80;90a;100a;103a;120a";

    fn cuda(major: i32, minor: i32) -> Target {
        Target::Cuda {
            compute_capability: (major, minor),
            archs: ARCHS,
            model: None,
        }
    }

    fn pick(n: usize, layout: ScaleLayout, target: Target, forced: Option<Path>) -> Result<Choice> {
        select(
            &Shape::new(128, n, 256, 1).unwrap(),
            &Operands::new(Activation::Nvfp4, layout),
            &target,
            forced,
        )
    }

    #[test]
    fn automatic_choice_follows_the_operands() {
        let linear = ScaleLayout::Linear;
        assert_eq!(pick(1, linear, Target::Host, None).unwrap().path, Path::Cpu);
        for cc in [(8, 0), (8, 9), (10, 0), (10, 3), (12, 0)] {
            for n in [1, 16] {
                let choice = pick(n, linear, cuda(cc.0, cc.1), None).unwrap();
                assert_eq!(choice.path, Path::CudaCore);
            }
        }
        // There, measurements decide.
        let choice = pick(1, linear, cuda(9, 0), None).unwrap();
        assert_ne!(choice.path, Path::Cpu);
    }

    #[test]
    fn tensor_cores_take_several_vectors() {
        let tiled = ScaleLayout::Tiled128x4;
        for (n, path) in [
            (1, Path::CudaCore),
            (2, Path::CudaCore),
            (3, Path::TensorCore),
            (16, Path::TensorCore),
        ] {
            let choice = pick(n, tiled, cuda(10, 0), None).unwrap();
            assert_eq!(choice.path, path);
            assert!(choice.reason.to_string().contains("modelled"));
        }
        // What the best path cannot do is the reason for the next.
        let choice = pick(8, ScaleLayout::Linear, cuda(10, 0), None).unwrap();
        let reason = choice.reason.to_string();
        assert!(
            reason.starts_with("not tensor-core: the weights' scales"),
            "{reason}"
        );
    }

    #[test]
    fn what_cannot_run_says_why() {
        let linear = ScaleLayout::Linear;
        for (target, forced, says) in [
            (cuda(7, 5), None, "8.0 or newer"),
            (cuda(12, 1), None, "rebuild with NVFP4_GEMV_ARCHS"),
            (cuda(9, 0), Some(Path::TensorCore), "needs 10.x"),
            (cuda(8, 6), Some(Path::CudaCoreTma), "9.0 or newer"),
            (cuda(10, 0), Some(Path::TensorCore), "128x4"),
            (cuda(9, 0), Some(Path::Cpu), "in device memory"),
        ] {
            let error = pick(1, linear, target, forced).unwrap_err();
            assert!(matches!(error, Error::PathUnavailable { .. }));
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = pick(1, linear, Target::Host, Some(Path::CudaCore)).unwrap_err();
        let says = if cfg!(feature = "cuda") {
            "in host memory"
        } else {
            "built without"
        };
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(
            pick(1, linear, Target::Host, Some(Path::Cpu))
                .unwrap()
                .reason,
            Reason::Forced
        );
    }
}
