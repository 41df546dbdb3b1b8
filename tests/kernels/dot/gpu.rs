//! The dot kernel on a GPU.

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, DotConfig, Job, Kernel};

use crate::direct::gpu::{EVERY, TALL, divisions, odd};
use crate::support::battery::{self, Subject};

fn configs(_: &Job<'_>, ctas: &[u32]) -> Vec<Config> {
    let few = ctas.iter().filter(|&&ctas| ctas < u32::MAX);
    few.flat_map(|&ctas| {
        divisions().map(move |(blocks_per_load, warps, k_split)| {
            DotConfig {
                blocks_per_load,
                warps,
                k_split,
                ctas,
                ..DotConfig::DEFAULT
            }
            .into()
        })
    })
    .collect()
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Dot,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["blocks_per_load", "warps", "k_split", "ctas"],
    kinds: &[&[1, 1, 1, 1], &[2, 16, 4, 3], &[2, 8, 8, 7], &[1, 7, 7, 1]],
};

pub(crate) fn trials() -> Vec<Trial> {
    battery::trials(&SUBJECT)
}
