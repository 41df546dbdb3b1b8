//! `gemv_ring`: launched as `csrc/launch/gemv_ring.cu` does, compared with the f64 reference.

mod faults;
mod launch;

use nvfp4_gemv::{Activation, FloatType, RingConfig, RingTarget, ScaleLayout, Shape};
use ptx_sim::{Options, Policy, Timing, Uninitialised};

use super::kernels::Kernels;
use super::loaded::Extras;
use super::operands::Operands;
use super::schedules::{few, schedules};
use super::tiled::launch::Comparison;
use launch::Run;

/// A problem, and a cut of it.
#[derive(Clone, Copy)]
struct Cutting {
    shape: Shape,
    layout: ScaleLayout,
    cut: RingConfig,
    every_schedule: bool,
}

fn cutting(
    (m, k, l): (usize, usize, usize),
    layout: ScaleLayout,
    (groups, depth, granule, ctas): (u32, u32, u32, u32),
) -> Cutting {
    Cutting {
        shape: Shape::gemv(m, k, l).unwrap(),
        layout,
        cut: RingConfig {
            chunks: 1,
            groups,
            rows: 4,
            depth,
            granule,
            cached: false,
            ctas,
            dependent: depth == 2,
        },
        every_schedule: false,
    }
}

impl Cutting {
    /// For another kernel. Nothing where too many warps share a row.
    fn on(self, (chunks, rows, cached): (u32, u32, bool)) -> Option<Self> {
        let cut = RingConfig {
            chunks,
            rows,
            cached,
            ..self.cut
        };
        let device = RingTarget {
            tiled: self.layout == ScaleLayout::Tiled128x4,
            multiprocessors: 132,
            shared_bytes: 227 << 10,
        };
        let legal = cut.is_legal(&self.shape, &device);
        legal.then_some(Self { cut, ..self })
    }

    /// Units with rows of another CTA, or past M, leave gaps in the ring, which are read and multiplied.
    /// Where there are none, nothing may be read that was not written.
    fn uninitialised(&self, seed: u64) -> Uninitialised {
        let unit = if self.layout == ScaleLayout::Tiled128x4 {
            128
        } else {
            4
        };
        let rows = self.shape.m() * self.shape.l();
        let whole = self.cut.granule == 4 || (rows / 4).is_multiple_of(self.cut.ctas as usize);
        if whole && rows.is_multiple_of(unit) {
            Uninitialised::Error
        } else {
            Uninitialised::Stale(seed)
        }
    }
}

/// Small launches that between them do everything that a cut can ask for.
fn cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        // Rings that go round several times; lanes past K; M not a multiple of four.
        Cutting {
            every_schedule: true,
            ..cutting((54, 768, 1), Linear, (2, 2, 1, 2))
        },
        // Groups with nothing to do.
        cutting((5, 256, 1), Linear, (3, 1, 1, 1)),
        // Several warps a row, and warps past K; fewer rows than a unit.
        cutting((3, 3072, 1), Linear, (2, 1, 1, 1)),
        Cutting {
            every_schedule: true,
            ..cutting((9, 1280, 1), Linear, (2, 3, 4, 1))
        },
        // CTAs that begin and end within units, and straddle batches.
        cutting((20, 768, 3), Linear, (2, 1, 1, 7)),
        // One CTA with more batches than two, a unit each, in the order of one group and of two.
        cutting((4, 256, 6), Linear, (1, 3, 1, 1)),
        cutting((8, 1280, 4), Linear, (2, 2, 4, 1)),
        // Groups with nothing to do, behind the last batch.
        cutting((8, 256, 2), Linear, (7, 1, 4, 1)),
        cutting((8, 256, 2), Linear, (6, 2, 1, 3)),
        // More rows than consumer threads.
        cutting((75, 256, 1), Linear, (1, 3, 1, 1)),
        cutting((140, 256, 1), Tiled128x4, (1, 2, 4, 1)),
        cutting((70, 1280, 1), Linear, (1, 1, 1, 1)),
        cutting((70, 2304, 1), Linear, (1, 2, 1, 1)),
        // As many warps a row as there can be.
        cutting((4, 16384, 1), Linear, (1, 1, 4, 1)),
        cutting((4, 32768, 1), Linear, (1, 1, 4, 1)),
        // More groups than producers.
        cutting((58, 256, 1), Linear, (7, 1, 4, 1)),
        // Blocks of 128 rows, most of which are past M; partial units at both ends.
        Cutting {
            every_schedule: true,
            ..cutting((130, 256, 1), Tiled128x4, (2, 2, 1, 3))
        },
        cutting((33, 2048, 1), Tiled128x4, (1, 1, 1, 5)),
        // CTAs without rows.
        cutting((5, 1280, 1), Tiled128x4, (2, 1, 4, 8)),
        // Straddling batches.
        cutting((128, 256, 3), Tiled128x4, (3, 1, 4, 2)),
        cutting((128, 768, 2), Tiled128x4, (1, 3, 1, 5)),
        // A row a CTA, and a place a CTA.
        cutting((6, 1024, 1), Linear, (1, 2, 1, 6)),
        cutting((2, 256, 1), Tiled128x4, (1, 1, 1, 128)),
    ]
}

/// Chunks, rows of a stage, whether L1 keeps block scales.
const KERNELS: [(u32, u32, bool); 12] = [
    (1, 4, true),
    (1, 2, true),
    (1, 1, true),
    (2, 4, true),
    (2, 2, true),
    (2, 1, true),
    (1, 4, false),
    (1, 2, false),
    (1, 1, false),
    (2, 4, false),
    (2, 2, false),
    (2, 1, false),
];

/// Exact and full-range data; the attributes that make no kernel are dealt out in turn.
fn check(kernels: &mut Kernels, cutting: &Cutting, turn: &mut usize) {
    for data in [Comparison::Exact, Comparison::Bound] {
        *turn += 1;
        let (turn, seed) = (*turn, *turn as u64);
        let mut operands = match data {
            Comparison::Exact => Operands::integers(cutting.shape, Activation::Nvfp4, seed),
            Comparison::Bound => Operands::full_range(cutting.shape, Activation::Nvfp4, seed),
        };
        if turn % 7 < 2 {
            operands = operands.with_row_alpha();
        }
        let extras = Extras {
            weight_layout: cutting.layout,
            vector_layout: ScaleLayout::ALL[turn / 2 % 2],
            element: FloatType::ALL[turn % 3],
            vector_alpha: turn % 5 == 1,
        };
        let those = if cutting.every_schedule && data == Comparison::Exact {
            schedules(seed)
        } else {
            few(seed)[turn / 3 % 3..][..1].to_vec()
        };
        for options in those {
            let options = Options {
                uninitialised: cutting.uninitialised(seed),
                ..options
            };
            let call = Run::new(&kernels.module, &operands, cutting.cut, extras);
            kernels.run(&call, data, &options);
        }
    }
}

/// Every cut on every kernel.
fn sweep(kernels: &mut Kernels) {
    let mut turn = 0;
    for kernel in KERNELS {
        for cutting in cuttings() {
            if let Some(cutting) = cutting.on(kernel) {
                check(kernels, &cutting, &mut turn);
            }
        }
    }
}

/// Waits for barriers give up now and then where the producer is slow, and are tried again: all of them,
/// after so many tries.
fn slow_producer(kernels: &mut Kernels) {
    let few_rows = cutting((24, 256, 1), ScaleLayout::Linear, (1, 1, 4, 1));
    let operands = Operands::integers(few_rows.shape, Activation::Nvfp4, 1);
    let extras = Extras {
        weight_layout: few_rows.layout,
        vector_layout: ScaleLayout::Linear,
        element: FloatType::F32,
        vector_alpha: false,
    };
    for kernel in KERNELS {
        let cut = few_rows.on(kernel).unwrap().cut;
        for seed in 0..30 {
            let options = Options {
                policy: Policy::Starve(8 * seed), // warp 0 of 8, the producer
                timing: Timing::Random,
                ..Options::default()
            };
            let call = Run::new(&kernels.module, &operands, cut, extras);
            kernels.run(&call, Comparison::Exact, &options);
        }
    }
}

/// Lines of [`Executed::unexecuted`] that no small launch can have otherwise, by their source:
/// - The branch past a loop that always has work, which nvcc does not know: a stage has rows and bytes, a
///   group stages.
/// - In the loop over rows that a CTA has more of than consumer threads: that a row lies before the CTA's first
///   one, which is among the first four; and sums of more warps a row than three, because that takes rows for
///   as many warps' threads. Cuts of sixteen warps a row run nvcc's other copy of
///   that code, for the first rows.
fn cannot_be(line: &str) -> bool {
    const LOOPS: [&str; 3] = [
        "for (uint32_t r = s; r < s + kRows; ++r) bytes",
        "end = to + stage_bytes; to != end;",
        "i < p.depth * kStages<kRows>;",
    ];
    const MORE_ROWS: &str = "part[w] = w < p.row_warps ? all[w * p.sums_pitch + i]";
    let number = line
        .split_once("gemv_ring.cuh:")
        .and_then(|(_, rest)| rest.split(')').next()?.parse::<usize>().ok());
    let source = include_str!("../../csrc/kernels/gemv_ring.cuh");
    let Some(at) = number.and_then(|number| source.lines().nth(number.checked_sub(1)?)) else {
        return false;
    };
    let past = LOOPS.iter().any(|l| at.contains(l)) || at.contains("return place + r >= begin");
    at.contains(MORE_ROWS) || past && line.contains("never taken")
}

#[test]
fn every_cut_on_hopper() {
    if let Some(mut kernels) = Kernels::new("gemv_ring", "compute_90a") {
        sweep(&mut kernels);
        slow_producer(&mut kernels);
        let unexecuted = kernels.executed.unexecuted();
        let left: Vec<&str> = unexecuted.lines().filter(|l| !cannot_be(l)).collect();
        assert!(left.is_empty(), "{}", left.join("\n"));
    }
}

/// Cuts that nobody thought of: for changes of the kernel.
#[test]
#[ignore = "takes minutes"]
fn random_cuts() {
    for arch in ["compute_90a", "compute_100a"] {
        let Some(mut kernels) = Kernels::new("gemv_ring", arch) else {
            return;
        };
        let mut left = 300;
        for seed in 0.. {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let layout = ScaleLayout::ALL[rng.usize(..2)];
            let l = if rng.bool() { 1 } else { rng.usize(2..=4) };
            let m = match (l, layout) {
                (1, _) => rng.usize(1..200),
                (_, ScaleLayout::Linear) => 4 * rng.usize(1..=20),
                (_, ScaleLayout::Tiled128x4) => 128,
            };
            let longest = [2, 14][rng.usize(..2)];
            let k = 256 * rng.usize(1..=longest);
            let (groups, depth) = (rng.u32(1..=16), rng.u32(1..=4));
            let (granule, ctas) = ([1, 4][rng.usize(..2)], rng.u32(1..=20));
            let cutting = cutting((m, k, l), layout, (groups, depth, granule, ctas));
            let kernel = KERNELS[rng.usize(..KERNELS.len())];
            let Some(cutting) = cutting.on(kernel) else {
                continue;
            };
            check(&mut kernels, &cutting, &mut rng.usize(..99));
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
}

#[test]
fn every_cut_on_blackwell() {
    if let Some(mut kernels) = Kernels::new("gemv_ring", "compute_100a") {
        sweep(&mut kernels);
    }
}
