//! The tma kernel on a GPU.

use std::sync::Arc;

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel, TmaConfig};
use nvfp4_gemv::raw::PreparedRawGemv;
use nvfp4_gemv::{Dims, Options, ScaleLayout, Shape};
use nvfp4_gemv_simulate::launch;
use ptx_sim::models::tensor_map::TensorMap;

use crate::support::battery::{self, MANY_VECTORS, Sizes, Subject};
use crate::support::gpu::{Gpu, OnDevice, kernel_trial};
use crate::support::operands::{Case, Data, Operands};

/// Rows and K that end inside a tile, and every kernel's number of vectors; and those of many passes.
pub(crate) fn odd() -> Vec<Sizes> {
    let mut odd = Vec::new();
    for m in [1, 127, 129, 300] {
        for k in [32, 64, 96, 256, 1056, 4128] {
            let vectors = [(1, 1), (2, 2), (1, 4), (3, 7), (1, 8), (2, 16)];
            odd.extend(vectors.map(|(l, n)| (m, n, k, l)));
        }
    }
    odd.extend(MANY_VECTORS.map(|n| (129, n, 1056, 2)));
    odd
}

/// Stages and CTAs of a cluster: rings of all kinds of sizes, clusters of all sizes.
pub(crate) const SIZES: [(u32, u32); 7] = [(2, 1), (4, 2), (2, 3), (4, 5), (2, 8), (12, 1), (8, 4)];

pub(crate) const EVERY: &[Sizes] = &[
    (300, 1, 4128, 1),
    (127, 4, 1056, 3),
    (129, 7, 2304, 2),
    (1, 2, 4096, 1),
    (384, 16, 7168, 2),
];

pub(crate) const TALL: &[Sizes] = &[(20_001, 8, 256, 1), (4999, 1, 1056, 2)];

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    SIZES
        .map(|(stages, cluster)| TmaConfig { stages, cluster }.into())
        .into()
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Tma,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["stages", "cluster"],
    kinds: &[&[2, 1], &[4, 2], &[2, 3], &[4, 5], &[2, 8]],
};

/// The driver's encoder and the simulator's give the same bytes of every tensor map: what is tested in simulation is
/// what is launched. For the other kernel that streams tiles, too, on a GPU that it runs on.
fn tensor_maps_are_those_of_the_simulator(gpu: &Gpu) {
    let mut compared = 0;
    for kernel in [Kernel::Tma, Kernel::Tcgen05] {
        for (i, (m, n, k, l)) in odd().into_iter().chain(EVERY.iter().copied()).enumerate() {
            let shape = Shape::new(Dims { m, n, k, l }).unwrap();
            let case = Case {
                padded: i % 3 > 0,
                ..Case::new(shape, Data::Integers, ScaleLayout::Tiled128x4, i as u64)
            };
            let operands = Operands::new(&case);
            let on = OnDevice::behind(gpu, Arc::new(operands), [0, 32, 96][i / 3 % 3]);
            if on.job(false, |job| kernel.available(job)).is_err() {
                continue;
            }
            let options = Options::new().kernel(kernel);
            let prepared = PreparedRawGemv::new(&on.call, &gpu.info, &options).unwrap();
            for (map, driver) in prepared.encoded_maps() {
                compared += 1;
                let simulator = TensorMap::encode(launch::arguments(map)).unwrap();
                assert_eq!(&simulator.to_bytes(), driver, "{map:?}");
            }
        }
    }
    assert!(compared > 100, "only {compared}");
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = battery::trials(&SUBJECT);
    let name = "tensor_maps_are_those_of_the_simulator";
    let run = tensor_maps_are_those_of_the_simulator;
    trials.push(kernel_trial(Kernel::Tma, name, run));
    trials
}
