//! The kernels for many vectors on a GPU.

use nvfp4_gemv::Activation;
use nvfp4_gemv::kernel::Config;
use nvfp4_gemv_trials::Trial;

use super::Kernel;
use crate::support::battery::{self, Magnitudes, Sizes, Subject, vectors_of_magnitudes};
use crate::support::gpu::kernel_trial;

/// Numbers of vectors at the edges of what the kernels are compiled for, rows that end inside a tile, and the last step
/// of a row half as long.
pub(crate) fn odd() -> Vec<Sizes> {
    of_rows(&[1, 17, 130, 1000], [64, 1024, 3648, 4352])
}

/// The shapes of [`odd`], and ragged rows.
pub(crate) fn odd_and_ragged() -> Vec<Sizes> {
    [odd(), of_rows(&[17, 300], [16, 1040, 1776, 2144])].concat()
}

fn of_rows(rows: &[usize], lengths: [usize; 4]) -> Vec<Sizes> {
    let vectors = [
        1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128,
    ];
    let rows = rows.iter().enumerate();
    rows.flat_map(|(i, &m)| {
        let sizes = vectors.into_iter().enumerate();
        sizes.map(move |(j, n)| (m, n, lengths[(i + j) % 4], 1 + j % 3))
    })
    .collect()
}

pub(crate) const EVERY: &[Sizes] = &[
    (300, 16, 14336, 1),
    (130, 12, 3584, 5),
    (77, 30, 4160, 3),
    (1000, 64, 2048, 2),
    (170, 128, 1792, 4),
    (40, 1, 4352, 2),
];

pub(crate) const TALL: &[Sizes] = &[(20_001, 16, 256, 1), (5003, 40, 1024, 3), (4999, 4, 512, 2)];

/// The fields that make the kind of a config.
pub(crate) const KIND: &[&str] = &["tiles", "parts", "cluster"];

impl Kernel {
    /// Configs with these tiles and parts.
    pub(crate) fn configs(&self, tiles_and_parts: &[(u32, u32)]) -> Vec<Config> {
        let mut configs = Vec::new();
        for &(tiles, parts) in tiles_and_parts {
            for (times, cluster) in [(1, 1), (2, 2), (1, 4), (3, 1), (1, 8)] {
                for vectors in [8, self.most_vectors] {
                    configs.push((self.config)([
                        tiles,
                        parts,
                        times * parts,
                        cluster,
                        vectors,
                    ]));
                }
            }
        }
        configs
    }
}

/// f16 and bf16 vectors over their types' whole ranges.
const MAGNITUDES: [Magnitudes; 9] = [
    (Activation::F16, (1, 31, 1)),
    (Activation::F16, (0, 3, 1)),
    (Activation::F16, (0, 31, 1)),
    (Activation::F16, (12, 18, 1)),
    (Activation::Bf16, (1, 230, 1)),
    (Activation::Bf16, (0, 3, 1)),
    (Activation::Bf16, (0, 230, 1)),
    (Activation::Bf16, (0, 230, 700)),
    (Activation::Bf16, (0, 3, 700)),
];

pub(crate) fn trials(subject: &'static Subject) -> Vec<Trial> {
    let mut trials = battery::trials(subject);
    trials.push(kernel_trial(
        subject.kernel,
        "vectors_of_every_magnitude",
        |gpu| vectors_of_magnitudes(gpu, subject.kernel, &MAGNITUDES, &[9, 33]),
    ));
    trials
}
