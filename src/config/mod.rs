//! How a path's kernels cut a problem: chosen here, obeyed by the launchers.

mod cuda_core;
mod tile;

pub use cuda_core::{CudaCoreConfig, CudaCoreKernel, CudaCoreTarget};
pub use tile::{TileConfig, TileKernel, TileTarget};

/// Roundings of the product of the global scales to f32, and of the multiplications by it, the row
/// alpha and the vector alpha.
const ALPHAS: u32 = 4;
