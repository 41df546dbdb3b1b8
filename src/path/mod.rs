//! THE dispatch table: which path computes a shape, and why. Pure: no CUDA, no clock, no
//! environment but one variable, read by [`forced_by_environment`].
//!
//! [`rank`] orders the paths for a problem by the best [`Evidence`] there is of each: times of this
//! problem on this device (a file of [`crate::tune`], if the caller gives one), times of this problem on
//! this model of GPU ([`measured`]: tables that come with the crate), times of the nearest problem on a
//! GPU of this kind, or a model. [`select`] takes the first that can run the problem where its operands
//! lie. What a path cannot do is in [`available`], one function a path, with a reason that
//! [`Unavailable`] prints. A forced path is never replaced by another.

mod available;
pub mod measured;
mod model;
mod rank;
mod select;

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

pub use available::{Operands, Target, Unavailable, available};
#[cfg(feature = "cuda")]
pub(crate) use available::{has_wide_loads, ring_available, stream_available};
pub use rank::{Estimate, Evidence, Ranked, rank};
pub use select::{Choice, Reason, select, select_tuned};

/// One of the ways to compute a GEMV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The CPU, with the widest vector instructions it has.
    Cpu,
    /// A GPU's CUDA cores, sm_80 and up.
    CudaCore,
    /// CUDA cores fed by bulk copies through shared memory, sm_90 and up.
    CudaCoreTma,
    /// Blackwell's block-scaled tensor cores (tcgen05), sm_100 and sm_103. Verified in simulation, not
    /// yet on hardware.
    TensorCore,
}

impl Path {
    /// All paths.
    pub const ALL: [Self; 4] = [
        Self::Cpu,
        Self::CudaCore,
        Self::CudaCoreTma,
        Self::TensorCore,
    ];

    /// The name in messages, flags, JSON and `NVFP4_GEMV_PATH`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CudaCore => "cuda-core",
            Self::CudaCoreTma => "cuda-core-tma",
            Self::TensorCore => "tensor-core",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded like a string where a table asks for it.
        f.pad(self.name())
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

/// The variable that forces a path by its [name](Path::name), or `auto`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for path in Path::ALL {
            assert_eq!(path.name().parse::<Path>().unwrap(), path);
        }
        let error = "gpu".parse::<Path>().unwrap_err().to_string();
        for path in Path::ALL {
            assert!(error.contains(path.name()), "{error}");
        }
    }
}
