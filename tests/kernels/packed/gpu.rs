//! The packed kernel on a GPU.

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel};

use super::sim::KERNEL;
use crate::many_vectors::gpu::{self, EVERY, TALL, odd};
use crate::support::battery::Subject;

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    let mut configs = Vec::new();
    for tiles in [1, 2, 3, 4] {
        for (chunk, ctas) in [(1, 1), (2, 3), (1, 132), (3, 50), (1, 8)] {
            for vectors in [8, 128] {
                configs.push((KERNEL.config)([tiles, 1, chunk, ctas, vectors]));
            }
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
    kind: &["tiles", "chunk"],
    kinds: &[&[1, 1], &[2, 2], &[3, 3], &[4, 1]],
};

pub(crate) fn trials() -> Vec<Trial> {
    gpu::trials(&SUBJECT)
}
