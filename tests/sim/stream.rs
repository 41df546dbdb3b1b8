//! `gemv_stream`: launched as `csrc/launch/gemv_stream.cu` does, compared with the f64 reference.

mod faults;
mod launch;

use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};

use super::kernels::Kernels;
use super::loaded::Extras;
use super::operands::Operands;
use super::schedules::{few, schedules};
use super::tiled::launch::Comparison;
use launch::{Cut, Run};

/// A shape without N, and a cut of it.
struct Cutting {
    m: usize,
    k: usize,
    l: usize,
    layout: ScaleLayout,
    cut: Cut,
    every_schedule: bool,
}

fn cutting(
    (m, k, l): (usize, usize, usize),
    layout: ScaleLayout,
    (warps, stages, ctas): (usize, usize, usize),
) -> Cutting {
    Cutting {
        m,
        k,
        l,
        layout,
        cut: Cut {
            warps,
            stages,
            ctas,
            dependent: stages == 6,
            far_ahead: warps % 2 == 0,
        },
        every_schedule: false,
    }
}

/// Small launches that between them do everything that a cut can ask for.
fn cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        // Several tiles, the last one with three rows; queues used several times; warps that begin and
        // end within tiles.
        Cutting {
            every_schedule: true,
            ..cutting((70, 768, 1), Linear, (2, 3, 2))
        },
        // Warps with nothing to do.
        cutting((5, 256, 1), Linear, (3, 3, 1)),
        // Many warps that share a tile, some of them with one step only.
        cutting((3, 2816, 1), Linear, (10, 4, 1)),
        // CTAs that begin and end within tiles, and straddle batches; rows past M.
        cutting((21, 512, 3), Linear, (2, 4, 5)),
        // One CTA with more batches than two.
        cutting((5, 256, 4), Linear, (1, 6, 1)),
        cutting((5, 768, 6), Linear, (2, 3, 1)),
        // Atoms of 128 rows, most of which are past M.
        cutting((130, 256, 1), Tiled128x4, (1, 3, 3)),
        // Vectors with many more blocks than threads.
        cutting((5, 3840, 2), Linear, (1, 6, 3)),
        cutting((3, 2304, 1), Linear, (1, 3, 1)),
        cutting((33, 512, 2), Tiled128x4, (1, 4, 5)),
        // Three warps a tile.
        cutting((5, 768, 1), Tiled128x4, (3, 6, 16)),
        // CTAs that have padding only.
        cutting((21, 256, 3), Linear, (1, 3, 12)),
        cutting((5, 256, 1), Tiled128x4, (2, 3, 8)),
        // CTAs with one or two rows.
        cutting((5, 512, 1), Linear, (3, 3, 3)),
    ]
}

const ACTIVATIONS: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

/// Exact and full-range data; the attributes that make no kernel are dealt out in turn.
fn check(
    kernels: &mut Kernels,
    cutting: &Cutting,
    (activation, n): (Activation, usize),
    turn: &mut usize,
) {
    let shape = Shape::new(cutting.m, n, cutting.k, cutting.l).unwrap();
    for data in [Comparison::Exact, Comparison::Bound] {
        *turn += 1;
        let (turn, seed) = (*turn, *turn as u64);
        let mut operands = match data {
            Comparison::Exact => Operands::integers(shape, activation, seed),
            Comparison::Bound => Operands::full_range(shape, activation, seed),
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
        let those = if cutting.every_schedule && data == Comparison::Exact && n < 8 {
            schedules(seed)
        } else {
            few(seed)[turn / 3 % 3..][..1].to_vec()
        };
        for options in &those {
            let call = Run::new(&kernels.module, &operands, cutting.cut, extras);
            kernels.run(&call, data, options);
        }
    }
}

/// Every cut, number of vectors and activation.
fn sweep(kernels: &mut Kernels, vectors: &[usize]) {
    let mut turn = 0;
    for activation in ACTIVATIONS {
        for &n in vectors {
            // `max_warps` in the kernel.
            let most = if n <= 2 { 16 } else { 12 };
            for cutting in cuttings() {
                if cutting.cut.warps <= most {
                    check(kernels, &cutting, (activation, n), &mut turn);
                }
            }
        }
    }
}

/// Whether a line of [`Executed::unexecuted`] is the branch past a loop that always has work: a CTA
/// has batches, a tile parts. nvcc does not know.
fn is_empty_loop(line: &str) -> bool {
    const LOOPS: [&str; 2] = ["batch < batches;", "w <= part.last;"];
    let number = line
        .split_once("gemv_stream.cuh:")
        .and_then(|(_, rest)| rest.split(')').next()?.parse::<usize>().ok());
    let source = include_str!("../../csrc/kernels/gemv_stream.cuh");
    let at = number.and_then(|number| source.lines().nth(number.checked_sub(1)?));
    line.contains("never taken") && at.is_some_and(|at| LOOPS.iter().any(|l| at.contains(l)))
}

#[test]
fn every_cut_on_hopper() {
    if let Some(mut kernels) = Kernels::new("gemv_stream", "compute_90a") {
        sweep(&mut kernels, &[1, 2, 3, 8]);
        let unexecuted = kernels.executed.unexecuted();
        let left: Vec<&str> = unexecuted.lines().filter(|l| !is_empty_loop(l)).collect();
        assert!(left.is_empty(), "{}", left.join("\n"));
    }
}

/// bf16 over its whole range, also where a single vector is cut in two.
#[test]
fn bf16_of_every_magnitude() {
    let Some(mut kernels) = Kernels::new("gemv_stream", "compute_90a") else {
        return;
    };
    let cutting = cutting((33, 512, 3), ScaleLayout::Linear, (2, 3, 2));
    let extras = Extras {
        weight_layout: cutting.layout,
        vector_layout: ScaleLayout::Linear,
        element: FloatType::F32,
        vector_alpha: false,
    };
    for n in [1, 2, 3] {
        let shape = Shape::new(cutting.m, n, cutting.k, cutting.l).unwrap();
        for seed in 0..4 {
            let operands = Operands::sparse_bf16(shape, seed);
            let options = &few(seed)[0];
            let call = Run::new(&kernels.module, &operands, cutting.cut, extras);
            kernels.run(&call, Comparison::Bound, options);
        }
    }
}

/// Eleven vectors: a pass of eight, one of three.
#[test]
fn two_passes() {
    let Some(mut kernels) = Kernels::new("gemv_stream", "compute_90a") else {
        return;
    };
    for activation in ACTIVATIONS {
        for cutting in cuttings().iter().filter(|c| c.cut.ctas == 5) {
            check(&mut kernels, cutting, (activation, 11), &mut 0);
        }
    }
}

/// Cuts that nobody thought of: for changes of the kernel.
#[test]
#[ignore = "takes minutes"]
fn random_cuts() {
    for arch in ["compute_90a", "compute_100a"] {
        let Some(mut kernels) = Kernels::new("gemv_stream", arch) else {
            return;
        };
        for seed in 0..100 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let n = rng.usize(1..=16);
            let (m, l) = (rng.usize(1..90), rng.usize(1..=3));
            let layout = ScaleLayout::ALL[rng.usize(..2)];
            let ctas = rng.usize(1..=m.div_ceil(4));
            // Small enough for shared memory.
            let (warps, stages) = (rng.usize(1..=6), [3, 4, 6][rng.usize(..3)]);
            let k = 256 * rng.usize(1..=7);
            let cutting = cutting((m, k, l), layout, (warps, stages, ctas));
            let activation = ACTIVATIONS[rng.usize(..3)];
            check(
                &mut kernels,
                &cutting,
                (activation, n),
                &mut rng.usize(..99),
            );
        }
    }
}

/// The same source, but f16 pairs in another order: E2M1 is converted in hardware.
#[test]
fn every_cut_on_blackwell() {
    if let Some(mut kernels) = Kernels::new("gemv_stream", "compute_100a") {
        sweep(&mut kernels, &[2, 3]);
    }
}
