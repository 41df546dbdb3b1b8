//! The wgmma kernel on a GPU.

use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv_trials::Trial;

use super::sim::KERNEL;
use crate::many_vectors::gpu::{self, EVERY, KIND, TALL, odd};
use crate::support::battery::Subject;

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    KERNEL.configs(&[(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)])
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Wgmma,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: KIND,
    kinds: &[&[1, 1, 1], &[2, 2, 2], &[4, 1, 1], &[1, 4, 4], &[2, 1, 8]],
};

pub(crate) fn trials() -> Vec<Trial> {
    gpu::trials(&SUBJECT)
}
