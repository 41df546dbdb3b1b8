//! The kernel that only reads, `csrc/kernels/read_only.cuh`: the ceiling for kernels that must read as much.

use super::params::{
    NVFP4_READ_ONLY_CTAS, NVFP4_READ_ONLY_LOADS, NVFP4_READ_ONLY_THREADS, nvfp4_read_only_params,
};
use super::plan::{KernelParameters, Launch, Parameters};

/// Bytes that a CTA has asked for at once, for estimates.
pub const BYTES_IN_FLIGHT: u64 = (NVFP4_READ_ONLY_THREADS * NVFP4_READ_ONLY_LOADS * 16) as u64;

/// The launch that reads `bytes`, rounded down to a multiple of 16, at `data`, on so many multiprocessors. `sink` is 4
/// bytes that are practically never written.
pub fn launch(data: u64, bytes: usize, sink: u64, multiprocessors: u32) -> Launch {
    let parameters = nvfp4_read_only_params {
        data,
        pieces: (bytes / 16) as i64,
        sink,
    };
    // More multiprocessors than any GPU has would overflow the grid.
    let ctas = multiprocessors.min(1 << 20) * NVFP4_READ_ONLY_CTAS;
    Launch {
        entry: "read_only",
        grid: [ctas, 1, 1],
        threads: NVFP4_READ_ONLY_THREADS,
        parameters: Parameters::of(&parameters),
        ..Launch::default()
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_read_only_params {}
