//! The mma kernel on a GPU.

use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv_trials::Trial;

use super::sim::KERNEL;
use crate::many_vectors::gpu::{self, EVERY, KIND, TALL, odd_and_ragged};
use crate::support::battery::{Sizes, Subject};

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    KERNEL.configs(&[
        (1, 1),
        (1, 8),
        (2, 4),
        (3, 4),
        (5, 2),
        (7, 2),
        (12, 1),
        (16, 1),
    ])
}

/// The shapes of [`EVERY`], and ragged rows behind them.
const EVERY_AND_RAGGED: [Sizes; EVERY.len() + 4] = {
    let mut all = [(130, 12, 3600, 5); EVERY.len() + 4];
    let mut i = 0;
    while i < EVERY.len() {
        all[i] = EVERY[i];
        i += 1;
    }
    all[i] = (300, 24, 14352, 1);
    all[i + 1] = (170, 128, 1808, 4);
    all[i + 2] = (1000, 64, 2032, 2);
    all
};

const SUBJECT: Subject = Subject {
    kernel: Kernel::Mma,
    odd: odd_and_ragged,
    every: &EVERY_AND_RAGGED,
    tall: TALL,
    configs,
    kind: KIND,
    kinds: &[&[1, 1, 1], &[7, 2, 2], &[16, 1, 1], &[2, 4, 4], &[3, 4, 8]],
};

pub(crate) fn trials() -> Vec<Trial> {
    gpu::trials(&SUBJECT)
}
