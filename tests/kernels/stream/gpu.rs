//! The stream kernel on a GPU.

use nvfp4_gemv::kernel::{Config, Job, Kernel, StreamConfig};
use nvfp4_gemv::{Activation, ScaleLayout};
use nvfp4_gemv_trials::Trial;

use crate::support::battery::{
    self, MANY_VECTORS, Magnitudes, Sizes, Subject, vectors_of_magnitudes,
};
use crate::support::gpu::{Gpu, kernel_trial};

/// Every number of vectors of two passes of eight, and of one pass of sixteen, with rows and batches that end inside a
/// tile. Also numbers of vectors that take many passes.
fn odd() -> Vec<Sizes> {
    let rows = [1, 17, 130, 1000].into_iter().enumerate();
    let few = rows.flat_map(|(i, m)| {
        (1..=16).flat_map(move |n| {
            let whole = [256, 1024, 3584, 4352][(i + n) % 4];
            // The second shape has a last step of every length.
            [(m, n, whole, 1 + n % 5), (m, n, whole + 16 * n, 1 + n % 3)]
        })
    });
    let many = MANY_VECTORS.map(|n| (130, n, 512, 2));
    few.chain(many).collect()
}

fn configs(job: &Job<'_>, ctas: &[u32]) -> Vec<Config> {
    let tiled = job.operands.weight_layout == ScaleLayout::Tiled128x4;
    let most = (job.shape.m() * job.shape.l() / if tiled { 4 } else { 1 }) as u32;
    // Each config has another number of CTAs; not all numbers are tried with all configs.
    let ctas = |turn: u32| ctas[turn as usize % ctas.len()].min(most);
    let mut configs = Vec::new();
    for warps in 1..=16 {
        for stages in [3, 4, 6] {
            configs.push((warps, stages, 8, 128, 1, ctas(warps + stages)));
        }
    }
    // Warps side by side, in one group and in several.
    for (warps, beside) in [(2, 2), (8, 8), (12, 4), (12, 2), (16, 8)] {
        configs.push((warps, 3, 8, 128, beside, ctas(warps)));
    }
    // Passes of fewer vectors and of more, with the other prefetch.
    for (warps, vectors) in [(16, 1), (13, 2), (5, 4), (9, 16)] {
        configs.push((warps, 3, vectors, 256, 1, ctas(3)));
    }
    let config = |(warps, stages, vectors, fetch, beside, ctas)| StreamConfig {
        warps,
        stages,
        vectors,
        fetch,
        behind: warps % stages,
        spread: warps.is_multiple_of(3),
        beside,
        ctas,
        ..StreamConfig::DEFAULT
    };
    configs.into_iter().map(|c| config(c).into()).collect()
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Stream,
    odd,
    every: &[
        (300, 1, 28672, 1), // 112 steps
        (130, 2, 3584, 5),  // 14
        (77, 3, 4096, 3),   // 16
        (1000, 8, 2048, 2), // 8
        (17, 11, 1792, 4),  // 7, two passes or one
        (300, 16, 2304, 1), // 9
        (40, 1, 4352, 2),   // 17
        (130, 2, 3600, 3),  // 14, and one of one block
        (77, 4, 4144, 2),
    ],
    tall: &[
        (20_001, 8, 256, 1),
        (5003, 1, 1024, 3),
        (4999, 4, 512, 2),
        (5003, 1, 1040, 3),
    ],
    configs,
    kind: &["warps", "stages", "vectors", "beside"],
    kinds: &[
        &[1, 3, 8, 1],
        &[7, 4, 8, 1],
        &[12, 3, 8, 1],
        &[12, 6, 8, 1],
        &[16, 3, 8, 1],
        &[16, 4, 8, 1],
        &[16, 3, 1, 1],
        &[13, 3, 2, 1],
        &[5, 3, 4, 1],
        &[9, 3, 16, 1],
        &[12, 3, 8, 2],
        &[16, 3, 8, 8],
    ],
};

/// Dense vectors over their types' whole ranges, also as weights with the code 0.5 see them. 127 is the exponent of 1,
/// where a single vector is cut in two.
const MAGNITUDES: [Magnitudes; 15] = [
    (Activation::F16, (1, 31, 1)),
    (Activation::F16, (0, 3, 1)),
    (Activation::F16, (0, 31, 1)),
    (Activation::F16, (12, 18, 1)),
    (Activation::Bf16, (1, 230, 1)),
    (Activation::Bf16, (0, 3, 1)),
    (Activation::Bf16, (0, 230, 1)),
    (Activation::Bf16, (124, 130, 1)),
    (Activation::Bf16, (0, 230, 700)),
    (Activation::Bf16, (125, 129, 700)),
    (Activation::Bf16, (0, 3, 700)),
    (Activation::F32, (1, 230, 1)),
    (Activation::F32, (0, 24, 1)),
    (Activation::F32, (0, 230, 700)),
    (Activation::F32, (0, 24, 700)),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = battery::trials(&SUBJECT);
    let run = |gpu: &Gpu| vectors_of_magnitudes(gpu, Kernel::Stream, &MAGNITUDES, &[1, 2, 3]);
    trials.push(kernel_trial(
        Kernel::Stream,
        "vectors_of_every_magnitude",
        run,
    ));
    trials
}
