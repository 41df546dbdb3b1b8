//! The mma kernel on a GPU.

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel};

use super::sim::KERNEL;
use crate::many_vectors::gpu::{self, EVERY, KIND, TALL, odd};
use crate::support::battery::Subject;

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

const SUBJECT: Subject = Subject {
    kernel: Kernel::Mma,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: KIND,
    kinds: &[&[1, 1, 1], &[7, 2, 2], &[16, 1, 1], &[2, 4, 4], &[3, 4, 8]],
};

pub(crate) fn trials() -> Vec<Trial> {
    gpu::trials(&SUBJECT)
}
