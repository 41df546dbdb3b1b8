//! The unsafe pointer API: device addresses and a stream, no cudarc type. For engines that keep
//! their own buffers.
//!
//! A [`Call`] is a problem by address; making one checks everything that can be checked without reading device
//! memory. Nothing is allocated, synchronised or copied by what enqueues kernels: it can be [captured into a CUDA
//! graph](crate#cuda-graphs). [`PreparedRawGemv`] does once what every [`gemv()`] would do again, and leaves the
//! launches.

mod device;
mod gemv;
mod launch;
mod quantize;
mod read_only;
mod relayout;

pub use crate::kernel::Call;
pub use crate::operands::{RawOutput, RawVectors, RawWeights};
pub use device::{COMPILED_ARCHS, KERNELS, Versions, device_count, gpu, versions};
pub use gemv::{PreparedRawGemv, gemv};
pub use quantize::quantize;
pub use read_only::read_only;
pub use relayout::relayout;
