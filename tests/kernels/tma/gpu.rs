//! The tma kernel on a GPU, and the tensor maps of both kernels that stream tiles.

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel, TmaConfig};

use crate::support::battery::{self, Sizes, Subject};

/// Rows and K that end inside a tile, and every kernel's number of vectors.
pub(crate) fn odd() -> Vec<Sizes> {
    let mut odd = Vec::new();
    for m in [1, 127, 129, 300] {
        for k in [32, 64, 96, 256, 1056, 4128] {
            let vectors = [(1, 1), (2, 2), (1, 4), (3, 7), (1, 8), (2, 16)];
            odd.extend(vectors.map(|(l, n)| (m, n, k, l)));
        }
    }
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
    SIZES.map(|(stages, cluster)| TmaConfig { stages, cluster }.into()).into()
}

fn kind(config: &Config) -> Vec<u32> {
    match config {
        Config::Tma(c) => vec![c.stages, c.cluster],
        other => panic!("{other:?}"),
    }
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Tma,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind,
    kinds: &[&[2, 1], &[4, 2], &[2, 3], &[4, 5], &[2, 8]],
};

pub(crate) fn trials() -> Vec<Trial> {
    battery::trials(&SUBJECT)
}
