//! The direct kernel on a GPU.

use nvfp4_gemv::kernel::{Config, DirectConfig, Job, Kernel};
use nvfp4_gemv_trials::Trial;

use crate::support::battery::{self, MANY_VECTORS, Sizes, Subject};

/// Shapes at the edges of tiles, blocks and loads.
const EDGES: [(usize, usize, usize); 12] = [
    (1, 16, 1),
    (3, 48, 3),
    (4, 32, 1),
    (5, 80, 1),
    (127, 64, 2),
    (128, 80, 3),
    (129, 48, 1),
    (130, 4112, 1),
    (257, 528, 1),
    (33, 1040, 3),
    (300, 96, 1),
    (64, 2080, 2),
];

/// All of [`EDGES`] with every number of vectors of two passes, and one shape with [`MANY_VECTORS`].
fn odd() -> Vec<Sizes> {
    let few = EDGES
        .into_iter()
        .flat_map(|(m, k, l)| (1..=16).map(move |n| (m, n, k, l)));
    let many = MANY_VECTORS.map(|n| (129, n, 96, 2));
    few.chain(many).collect()
}

const EVERY: &[Sizes] = &[
    (130, 1, 4128, 2),
    (131, 1, 4160, 2),
    (77, 4, 2080, 1),
    (79, 2, 1984, 3),
    (65, 8, 1088, 1),
    (37, 11, 4112, 1),
];

const TALL: &[Sizes] = &[(20_001, 8, 256, 1), (5003, 1, 1040, 3), (4999, 4, 512, 2)];

/// All blocks a load, warps and parts of K, legal or not.
fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    let divisions = [1, 2, 4].into_iter().flat_map(|blocks| {
        (1..=16).flat_map(move |warps| (1..=warps).map(move |k_split| (blocks, warps, k_split)))
    });
    divisions
        .map(|(blocks_per_load, warps, k_split)| {
            DirectConfig {
                blocks_per_load,
                warps,
                k_split,
                ..DirectConfig::DEFAULT
            }
            .into()
        })
        .collect()
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Direct,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["blocks_per_load", "warps", "k_split"],
    kinds: &[&[1, 1, 1], &[2, 8, 8], &[2, 6, 3], &[1, 7, 7]],
};

pub(crate) fn trials() -> Vec<Trial> {
    battery::trials(&SUBJECT)
}
