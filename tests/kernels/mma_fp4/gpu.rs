//! The mma-fp4 kernel on a GPU that has its instruction.

use nvfp4_gemv::kernel::{Config, Job, Kernel, MmaFp4Config};
use nvfp4_gemv_trials::Trial;

use crate::many_vectors::gpu::{EVERY, TALL, odd};
use crate::support::battery::{self, Subject};
use crate::support::tensor_maps;

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    let mut configs = Vec::new();
    for warps in [1, 2, 3, 4, 6, 8] {
        for (stages, cluster) in [(2, 1), (3, 2), (2, 3), (4, 1), (2, 8), (8, 5)] {
            for vectors in [8, 32, 128] {
                let config = MmaFp4Config {
                    warps,
                    stages,
                    cluster,
                    vectors,
                    ..MmaFp4Config::DEFAULT
                };
                configs.push(config.into());
            }
        }
    }
    configs
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::MmaFp4,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["warps", "cluster"],
    kinds: &[&[1, 1], &[2, 3], &[3, 2], &[8, 1], &[4, 8]],
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = battery::trials(&SUBJECT);
    trials.push(tensor_maps::trial(&SUBJECT));
    trials
}
