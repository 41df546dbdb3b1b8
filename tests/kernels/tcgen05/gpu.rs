//! The tcgen05 kernel on a GPU that has its tensor cores.

use nvfp4_gemv::kernel::{Config, Job, Kernel, Tcgen05Config};
use nvfp4_gemv_trials::Trial;

use crate::support::battery::{self, MANY_VECTORS, Sizes, Subject};
use crate::support::tensor_maps;

/// Rows and K that end inside a tile, every kernel's number of vectors, and numbers of vectors that take many passes.
fn odd() -> Vec<Sizes> {
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

const EVERY: &[Sizes] = &[
    (300, 1, 4128, 1),
    (127, 4, 1056, 3),
    (129, 7, 2304, 2),
    (1, 2, 4096, 1),
    (384, 16, 7168, 2),
];

const TALL: &[Sizes] = &[(20_001, 8, 256, 1), (4999, 1, 1056, 2)];

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    let mut configs = Vec::new();
    for [step, stages] in [[256, 2], [256, 3], [256, 5], [512, 2]] {
        for ctas in [1, 3, 40, 148] {
            for divided in [false, true] {
                let config = Tcgen05Config {
                    step,
                    stages,
                    ctas,
                    divided,
                    ..Tcgen05Config::DEFAULT
                };
                configs.push(config.into());
            }
        }
    }
    configs
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Tcgen05,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["step", "ctas"],
    kinds: &[&[256, 1], &[256, 3], &[256, 40], &[512, 1], &[512, 148]],
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = battery::trials(&SUBJECT);
    trials.push(tensor_maps::trial(&SUBJECT));
    trials
}
