//! The GPU kernels, a folder each: in the simulator, on a GPU if there is one, and their refusals.
//!
//! Simulations execute the kernels' PTX with ptx-sim, as the launch plans of `src/kernel` say: they need nvcc. Trials
//! that cannot run are reported as ignored, with the reason. Simulations of minutes are ignored, too.
//! `cargo xtask check simulator`, or `cargo test --test kernels -- --ignored long`, runs them. Where the
//! others plant a share of some faults, long ones plant all of them.

mod batch_invariant;
mod calls;
mod entries;
#[cfg(feature = "jit")]
mod jit;
mod made_digits;
mod many_vectors;
mod matrix;
mod overlap;
mod predicted;
mod previous_grid;
mod primitives;
mod read_only;
mod recorded;
mod support;

mod direct {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod mma {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod mma_fp4 {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod ring {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod on_read;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod stream {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod tcgen05 {
    pub(crate) mod contest;
    pub(crate) mod faults;
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod packed {
    pub(super) mod bundles;
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod wgmma {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod combine {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    #[cfg(feature = "device")]
    pub(crate) mod refuse;
    pub(crate) mod sim;
    pub(crate) mod sums;
}

mod quantize {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    #[cfg(feature = "device")]
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

mod relayout {
    #[cfg(feature = "device")]
    pub(crate) mod gpu;
    #[cfg(feature = "device")]
    pub(crate) mod refuse;
    pub(crate) mod sim;
}

use std::process::ExitCode;

use nvfp4_gemv_trials::Trial;

/// Trials of a module.
type Trials = fn() -> Vec<Trial>;

const WITH_OR_WITHOUT_CUDA: &[Trials] = &[
    batch_invariant::trials,
    calls::operands::trials,
    calls::options::trials,
    calls::refuse::trials,
    combine::sim::trials,
    direct::refuse::trials,
    direct::sim::trials,
    entries::trials,
    made_digits::trials,
    matrix::trials,
    mma::refuse::trials,
    mma::sim::trials,
    mma_fp4::refuse::trials,
    mma_fp4::sim::trials,
    overlap::trials,
    packed::refuse::trials,
    packed::bundles::trials,
    packed::sim::trials,
    predicted::trials,
    previous_grid::trials,
    primitives::barriers::trials,
    primitives::cluster::trials,
    primitives::convert::trials,
    primitives::copies::trials,
    primitives::descriptors::trials,
    primitives::encode::trials,
    primitives::loads::trials,
    primitives::shared::trials,
    primitives::tensor::trials,
    primitives::tensor_memory::trials,
    primitives::wgmma::trials,
    quantize::sim::trials,
    read_only::sim::trials,
    recorded::trials,
    relayout::sim::trials,
    ring::on_read::trials,
    ring::refuse::trials,
    ring::sim::trials,
    stream::refuse::trials,
    stream::sim::trials,
    tcgen05::contest::trials,
    tcgen05::faults::trials,
    tcgen05::refuse::trials,
    tcgen05::sim::trials,
    wgmma::refuse::trials,
    wgmma::sim::trials,
];

#[cfg(not(feature = "device"))]
const WITH_CUDA: &[Trials] = &[];

#[cfg(feature = "device")]
const WITH_CUDA: &[Trials] = &[
    batch_invariant::gpu::trials,
    calls::device::trials,
    calls::experts::trials,
    calls::linear::trials,
    calls::measure::trials,
    calls::options::on_a_gpu::trials,
    calls::refuse::without_a_gpu::trials,
    calls::tune::trials,
    direct::gpu::trials,
    mma::gpu::trials,
    mma_fp4::gpu::trials,
    packed::gpu::trials,
    combine::gpu::trials,
    combine::refuse::trials,
    predicted::gpu::trials,
    quantize::gpu::trials,
    quantize::refuse::trials,
    read_only::gpu::trials,
    recorded::gpu::trials,
    relayout::gpu::trials,
    relayout::refuse::trials,
    ring::gpu::trials,
    stream::gpu::trials,
    tcgen05::gpu::trials,
    wgmma::gpu::trials,
];

#[cfg(not(feature = "jit"))]
const WITH_JIT: &[Trials] = &[];

#[cfg(feature = "jit")]
const WITH_JIT: &[Trials] = &[jit::trials];

fn main() -> ExitCode {
    let modules = WITH_OR_WITHOUT_CUDA.iter().chain(WITH_CUDA).chain(WITH_JIT);
    support::trial::PROGRAM.run(modules.flat_map(|trials| trials()).collect())
}
