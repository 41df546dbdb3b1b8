//! The packed kernel on a GPU.

use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv_trials::Trial;

use super::sim::KERNEL;
use crate::many_vectors::gpu::{self, EVERY, TALL, odd};
use crate::support::battery::Subject;
use crate::support::tensor_maps;

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    let mut configs = Vec::new();
    for warps in [1, 4, 7, 8, 12, 14, 16] {
        for (chunk, ctas) in [(1, 1), (2, 3), (1, 132), (3, 50), (1, 8)] {
            for vectors in [8, 128] {
                configs.push((KERNEL.config)([warps, 1, chunk, ctas, vectors]));
            }
            configs.push((KERNEL.config)([warps, 2, chunk, ctas.div_ceil(2) * 2, 64]));
            configs.push((KERNEL.config)([
                warps,
                2,
                chunk,
                ctas.div_ceil(2) * 2,
                128,
            ]));
        }
    }
    configs
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Packed,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["warps", "chunk"],
    kinds: &[&[4, 1], &[8, 2], &[12, 3], &[16, 1], &[7, 2]],
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = gpu::trials(&SUBJECT);
    trials.push(tensor_maps::trial(&SUBJECT));
    trials
}
