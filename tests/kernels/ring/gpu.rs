//! The ring kernel on a GPU.

use nvfp4_gemv::kernel::{Config, Job, Kernel, RingConfig};
use nvfp4_gemv_trials::Trial;

use crate::support::battery::{self, MANY_VECTORS, Sizes, Subject};

/// Rows that end inside a unit, an atom or a warp's part, and several batches of whole units or atoms. Also many
/// vectors, each of which is a pass.
fn odd() -> Vec<Sizes> {
    let (one, several) = ([1, 5, 127, 130, 300], [4, 128, 132, 384]);
    let mut odd = Vec::new();
    for k in [256, 512, 768, 2304, 7168, 16384] {
        odd.extend(one.map(|m| (m, 1, k, 1)));
        odd.extend(several.map(|m| (m, 1, k, 3)));
    }
    odd.extend(MANY_VECTORS.map(|n| (128, n, 512, 2)));
    odd
}

/// All entry points, groups, depths and granules.
fn configs(job: &Job<'_>, ctas: &[u32]) -> Vec<Config> {
    let rows_in_all = (job.shape.m() * job.shape.l()) as u32;
    let mut configs = Vec::new();
    let mut turn = 0;
    for chunks in [1, 2] {
        for groups in [1, 2, 3, 4, 7, 8, 16] {
            for rows in [1, 2, 4] {
                for depth in [1, 2, 3, 5, 8] {
                    turn += 1;
                    let granule = if turn % 2 == 0 { 4 } else { 1 };
                    let config = RingConfig {
                        chunks,
                        groups,
                        rows,
                        depth,
                        granule,
                        cached: turn % 3 == 0,
                        ctas: ctas[turn % ctas.len()].min(rows_in_all / granule),
                        ..RingConfig::DEFAULT
                    };
                    configs.push(config.into());
                    let counted = 1 + turn as u32 % 7;
                    configs.push(RingConfig { counted, ..config }.into());
                }
            }
        }
    }
    configs
}

const SUBJECT: Subject = Subject {
    kernel: Kernel::Ring,
    odd,
    every: &[
        (301, 1, 28672, 1), // 14 warps a row with two chunks
        (384, 1, 3584, 3),  // 3.5 and 1.75 warps
        (77, 1, 4096, 1),
        (1024, 1, 2048, 2),
        (130, 1, 256, 1), // a quarter of a warp
        (128, 1, 1280, 4),
        (1000, 1, 7168, 1),
    ],
    tall: &[(20_001, 1, 256, 1), (4992, 1, 1024, 3), (4999, 1, 512, 1)],
    configs,
    kind: &["chunks", "rows", "groups", "counted"],
    kinds: &[
        &[1, 2, 1, 0],
        &[1, 4, 16, 0],
        &[2, 2, 8, 0],
        &[2, 1, 2, 0],
        &[1, 2, 3, 0],
        &[2, 1, 2, 4],
        &[2, 2, 4, 7],
    ],
};

pub(crate) fn trials() -> Vec<Trial> {
    battery::trials(&SUBJECT)
}
