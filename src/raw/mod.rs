//! The unsafe pointer API: device addresses and a stream, no cudarc type. For engines that keep
//! their own buffers.
//!
//! Everything that can be checked without reading device memory is checked before anything is
//! enqueued. Nothing is allocated, synchronised or copied: a call can be [captured into a CUDA
//! graph](crate#cuda-graphs). [`prepare`] does once what every call would do again, and leaves the launches.

mod call;
mod configs;
mod device;
mod gemv;
mod operand;
mod prepared;
mod quantize;
mod relayout;
mod ring;
mod stream;
mod tiled;

pub use configs::{candidates, chained_candidates, chained_config, default_config};
pub use device::{
    COMPILED_ARCHS, DeviceInfo, KERNELS, Versions, current_device, device_count, device_info,
    versions,
};
pub use gemv::{
    Output, Vectors, Weights, cuda_core, cuda_core_target, gemv, most_blocks_per_load, read_only,
};
pub use prepared::{Prepared, prepare};
pub use quantize::{Global, Quantize, quantize};
pub use relayout::relayout;
pub use ring::{ring, ring_target};
pub use stream::{stream, stream_target};
pub use tiled::{operands, tile_target, tiled};
