//! Names one type of each, so that the check fails if they stop being the same crates.

/// Both crates' CUDA types come from one cudarc: a stream of candle's is a stream of ours.
pub type Stream = cudarc::driver::CudaStream;

/// A tensor of candle's.
pub type Tensor = candle_core::Tensor;

/// The crate of the weights.
pub type Shape = nvfp4_gemv::Shape;
