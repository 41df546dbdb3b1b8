//! Errors of making modules. A module's `forward` has candle's errors.

use candle_core::{DType, Shape};
use nvfp4_gemv::checkpoint::CheckpointError;
use nvfp4_gemv::quantize::QuantizeError;

/// Why a module is not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A checkpoint, or a layer of one.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A layer's parts, or its way to the device.
    #[error(transparent)]
    Layer(#[from] nvfp4_gemv::Error),
    /// A dense matrix that cannot be NVFP4.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// An error of candle's.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A device that has no kernels here: Metal, or CUDA in a build without feature `cuda` or `jit`.
    #[error(
        "NVFP4 layers cannot be on {device}; there are CPUs and, with feature `cuda` or `jit`, CUDA devices"
    )]
    Device {
        /// The device.
        device: String,
    },
    /// Experts on a device with something that is not computed there, and would change the result.
    #[error("the experts have {what}: it is not computed on a device")]
    ExpertsHave {
        /// The part that is not computed.
        what: String,
    },
    /// Experts, a router and a number of experts for each token that do not fit each other.
    #[error(
        "{top_k} of {experts} experts, of vectors of {k} elements: the router's weight is {router:?}"
    )]
    Router {
        /// The shape of the router's weight; it must be `[experts, K]`.
        router: Shape,
        /// Experts that there are.
        experts: usize,
        /// Elements of a vector.
        k: usize,
        /// Experts for each token: at least one, and no more than there are.
        top_k: usize,
    },
    /// A weight that is to be quantised and is no matrix, or no matrix of floating-point numbers.
    #[error("a weight {shape:?} of {dtype:?}; a matrix of f32, f16 or bf16 can be quantised")]
    Weight {
        /// Its shape.
        shape: Shape,
        /// Its type.
        dtype: DType,
    },
}

/// A module, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => Self::Wrapped(Box::new(other)),
        }
    }
}
