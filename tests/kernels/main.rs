//! The GPU kernels, a folder each: in the simulator, on a GPU where there is one, and what they refuse.
//!
//! Simulations execute the kernels' PTX with ptx-sim, as the launch plans of `src/kernel` say: they need nvcc. What
//! cannot run is reported as ignored, with the reason. Simulations of minutes are ignored, too:
//! `cargo xtask check simulator`, or `cargo test --test kernels -- --ignored long`, runs them.

mod calls;
mod direct;
mod dot;
mod entries;
mod primitives;
mod quantize;
mod read_only;
mod recorded;
mod relayout;
mod ring;
mod stream;
mod support;
mod tcgen05;
mod tile;
mod tma;

use std::process::ExitCode;

#[cfg(feature = "cuda")]
use recorded::gpu as recorded_on_a_gpu;

crate::gather![
    calls,
    direct,
    dot,
    entries,
    primitives,
    quantize,
    read_only,
    recorded,
    #[cfg(feature = "cuda")]
    recorded_on_a_gpu,
    relayout,
    ring,
    stream,
    tcgen05,
    tma
];

fn main() -> ExitCode {
    support::trial::run(trials())
}
