//! The tcgen05 kernel on a GPU that has its tensor cores.

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel, Tcgen05Config};

use crate::support::battery::{self, Subject};
use crate::tma::gpu::{EVERY, TALL, odd};

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
    battery::trials(&SUBJECT)
}
