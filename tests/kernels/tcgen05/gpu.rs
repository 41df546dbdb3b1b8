//! The tcgen05 kernel on a GPU that has its tensor cores.

use libtest_mimic::Trial;
use nvfp4_gemv::kernel::{Config, Job, Kernel, Tcgen05Config};

use crate::support::battery::{self, Subject};
use crate::tma::gpu::{EVERY, SIZES, TALL, odd};

fn configs(_: &Job<'_>, _: &[u32]) -> Vec<Config> {
    let odd_stages = SIZES.map(|(stages, cluster)| (stages + 1, cluster));
    let all = SIZES.into_iter().chain(odd_stages);
    all.map(|(stages, cluster)| Tcgen05Config { stages, cluster }.into())
        .collect()
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Tcgen05,
    odd,
    every: EVERY,
    tall: TALL,
    configs,
    kind: &["stages", "cluster"],
    kinds: &[&[2, 1], &[3, 1], &[4, 2], &[2, 3], &[4, 5], &[2, 8]],
};

pub(crate) fn trials() -> Vec<Trial> {
    battery::trials(&SUBJECT)
}
