//! `gemv_stream`: every kind of config, compared with the f64 reference.

use std::mem::offset_of;
use std::sync::Arc;

use nvfp4_gemv::kernel::StreamConfig;
use nvfp4_gemv::kernel::params::nvfp4_stream_params as Params;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::Uninitialised;
use ptx_sim::mutate;

use crate::direct::sim::many;
use crate::support::faults::{
    ANY_OPERAND, At, NO_BIAS, Run, SAMPLE_OF_PLANS, demand, demand_right_plans, no_arithmetic,
    subject,
};
use crate::support::operands::{Case, Data, Operands};
use crate::support::passes::check_passes;
use crate::support::schedules::few;
use crate::support::sim::{Loaded, Simulator, dealt, is_of_factors, source_line};
use crate::support::sized;

crate::trials! {
    simulator:
        hopper = || short_sweep(&Simulator::new("90a"), &WHOLE),
        hopper_ragged = || short_sweep(&Simulator::new("90a"), &RAGGED),
        ampere_ragged = || short_sweep(&Simulator::new("80"), &RAGGED),
        hopper_ordered = || short_sweep(&Simulator::new("90a"), &ORDERED),
        blackwell, vectors_of_every_magnitude, two_passes, many_vectors, select, vectors_of_batches,
        faults_of_lanes_that_keep_to_their_blocks = || faults(&WHOLE, 1),
        wrong_plans = || wrong_plans(&WHOLE, SAMPLE_OF_PLANS),
        wrong_ragged_plans = || wrong_plans(&RAGGED, SAMPLE_OF_PLANS),
        wrong_ordered_plans = || wrong_plans(&ORDERED, SAMPLE_OF_PLANS);
    long:
        every_config = || every_config(&WHOLE),
        every_ragged_config = || every_config(&RAGGED),
        every_ordered_config = || every_config(&ORDERED),
        random_configs,
        all_wrong_plans = || wrong_plans(&WHOLE, 1),
        all_wrong_ragged_plans = || wrong_plans(&RAGGED, 1),
        all_wrong_ordered_plans = || wrong_plans(&ORDERED, 1),
        faults_of_warps_side_by_side, faults_select,
        faults_of_weights_that_carry_their_scales = || faults(&WHOLE, 3),
        faults_of_sixteen_vectors,
        faults_of_ragged_steps = || faults(&RAGGED, 1),
        faults_of_sums_in_parts = || faults(&ORDERED, 1);
}

/// One of the kernel's units.
struct Unit {
    name: &'static str,
    cuttings: fn() -> Vec<Cutting>,
    /// Types of vectors, and numbers of vectors of each type.
    kernels: &'static [(Activation, &'static [usize])],
    /// Launches of the planted faults.
    cases: fn() -> Vec<Cutting>,
}

/// The unit for K that is a multiple of 256.
const WHOLE: Unit = Unit {
    name: "gemv_stream",
    cuttings,
    kernels: &[
        (Activation::Nvfp4, &[1, 2, 3, 8, 11]),
        (Activation::F16, &[1, 2, 3, 8, 16]),
        (Activation::Bf16, &[1, 2, 3, 8, 13]),
    ],
    cases,
};

/// The unit for any K, and for f32 vectors.
const RAGGED: Unit = Unit {
    name: "gemv_stream_ragged",
    cuttings: ragged_cuttings,
    kernels: &[
        (Activation::Nvfp4, &[1, 2, 3, 8]),
        (Activation::F16, &[1, 2, 3, 8]),
        (Activation::Bf16, &[1, 2, 3, 8]),
        (Activation::F32, &[1, 2, 3, 4]),
    ],
    cases: ragged_cases,
};

/// The unit for sums in parts.
const ORDERED: Unit = Unit {
    name: "gemv_stream_ordered",
    cuttings: ordered_cuttings,
    kernels: &[
        (Activation::Nvfp4, &[1, 2, 3, 8, 11]),
        (Activation::F16, &[1, 2, 3, 8]),
        (Activation::Bf16, &[1, 2, 3, 8]),
    ],
    cases: ordered_cases,
};

/// A shape without N, and a config for it.
#[derive(Clone)]
struct Cutting {
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    config: StreamConfig,
    chained: bool,
    every_schedule: bool,
}

fn cutting(
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    (warps, stages, ctas): (u32, u32, u32),
) -> Cutting {
    Cutting {
        shape,
        layout,
        config: StreamConfig {
            warps,
            stages,
            vectors: 8,
            fetch: if warps.is_multiple_of(2) { 256 } else { 128 },
            behind: (warps * ctas - 1) % stages,
            spread: warps.is_multiple_of(2),
            ctas,
            ..StreamConfig::DEFAULT
        },
        chained: stages > 3,
        every_schedule: false,
    }
}

impl Cutting {
    /// The cutting with so many warps side by side.
    fn beside(mut self, warps: u32) -> Self {
        self.config.beside = warps;
        // Passes have two vectors at most.
        self.config.vectors = 2;
        self
    }

    /// The cutting with parts of so many steps.
    fn in_parts(mut self, steps: u32) -> Self {
        self.config.part = steps;
        self
    }

    /// The cutting for groups of two warps. Each group has the steps that each warp has in this cutting.
    fn in_pairs(mut self) -> Self {
        self.shape.1 *= 2;
        self.config.warps *= 2;
        self.beside(2)
    }

    fn case(&self, n: usize, activation: Activation, data: Data) -> Case {
        let (m, k, l) = self.shape;
        Case {
            activation,
            ..Case::new(sized(m, n, k, l), data, self.layout, 7)
        }
    }
}

/// Small launches that between them do everything that a config can ask for.
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
        // Warps side by side: one group with all of them, groups that begin and end within tiles, groups with nothing
        // to do, one step a row. The cuttings have several batches and both layouts.
        Cutting {
            every_schedule: true,
            ..cutting((70, 1024, 1), Linear, (4, 3, 2)).beside(2)
        },
        cutting((21, 512, 3), Linear, (4, 4, 5)).beside(2),
        cutting((5, 1024, 1), Linear, (8, 6, 1)).beside(4),
        cutting((33, 2048, 1), Tiled128x4, (8, 3, 5)).beside(8),
    ]
}

/// Cuttings like [`cuttings`] with steps that have fewer blocks, or with rows that start anywhere. Every rest occurs:
/// of a step in blocks, of a word in linear scales, and of four blocks.
fn ragged_cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        // Several tiles, the last one with three rows; queues used several times.
        Cutting {
            every_schedule: true,
            ..cutting((70, 784, 1), Linear, (2, 3, 2))
        },
        // One block, and warps with nothing to do.
        cutting((21, 16, 1), Linear, (3, 3, 1)),
        cutting((21, 16, 3), Tiled128x4, (2, 3, 2)),
        // Rows whose scales start at any byte of a word, over several batches.
        cutting((21, 528, 3), Linear, (2, 4, 5)),
        cutting((5, 304, 4), Linear, (1, 6, 1)),
        cutting((5, 816, 6), Linear, (2, 3, 1)),
        cutting((17, 1072, 2), Linear, (2, 4, 3)),
        // The last step with 15 blocks, eight, and all, which is for f32 vectors.
        cutting((19, 496, 2), Linear, (1, 3, 2)),
        cutting((19, 384, 1), Linear, (2, 4, 3)),
        cutting((40, 512, 1), Linear, (1, 3, 2)),
        // Groups of four blocks that are whole, or not.
        cutting((130, 272, 1), Tiled128x4, (1, 3, 3)),
        cutting((33, 576, 2), Tiled128x4, (1, 4, 5)),
        cutting((5, 800, 1), Tiled128x4, (3, 6, 16)),
        // Many warps that share a tile, and vectors with many more blocks than threads.
        cutting((3, 2832, 1), Linear, (10, 4, 1)),
        cutting((5, 3856, 2), Linear, (1, 6, 3)),
        cutting((3, 2320, 1), Linear, (1, 3, 1)),
        // CTAs that have padding only, and with one or two rows.
        cutting((21, 48, 3), Linear, (1, 3, 12)),
        cutting((5, 48, 1), Tiled128x4, (2, 3, 8)),
        cutting((5, 336, 1), Linear, (3, 3, 3)),
    ]
}

/// Cuttings like [`cuttings`] with sums in parts.
fn ordered_cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        // Several tiles, the last one with three rows; queues used several times; warps that begin and end within
        // tiles.
        Cutting {
            every_schedule: true,
            ..cutting((70, 768, 1), Linear, (2, 3, 2)).in_parts(1)
        },
        // Warps with nothing to do.
        cutting((5, 256, 1), Linear, (3, 3, 1)).in_parts(1),
        // A last part of two steps, and of one; as many warps as can be.
        cutting((3, 2816, 1), Linear, (10, 4, 1)).in_parts(3),
        cutting((37, 1792, 1), Tiled128x4, (4, 3, 2)).in_parts(3),
        cutting((9, 4096, 1), Linear, (16, 3, 1)).in_parts(1),
        // Whole rows, also where a part could be longer; CTAs that begin and end within tiles, and straddle batches.
        cutting((21, 512, 3), Linear, (2, 4, 5)).in_parts(2),
        cutting((130, 256, 1), Tiled128x4, (1, 3, 3)).in_parts(u32::MAX),
        // One CTA with several batches.
        cutting((5, 768, 6), Linear, (2, 3, 1)).in_parts(2),
        cutting((5, 256, 4), Linear, (1, 6, 1)).in_parts(1),
        // Vectors with many more blocks than threads.
        cutting((5, 3840, 2), Linear, (1, 6, 3)).in_parts(4),
        cutting((3, 2304, 1), Linear, (1, 3, 1)).in_parts(9),
        cutting((33, 512, 2), Tiled128x4, (1, 4, 5)).in_parts(1),
        // CTAs that have padding only.
        cutting((21, 256, 3), Linear, (1, 3, 12)).in_parts(1),
    ]
}

const ACTIVATIONS: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

/// Runs a cutting on exact and full-range data. The attributes that select no kernel are dealt out in turn.
fn check(
    simulator: &Simulator,
    cutting: &Cutting,
    (activation, n): (Activation, usize),
    turn: &mut usize,
) {
    for data in Data::BOTH {
        *turn += 1;
        let case = cutting.case(n, activation, data).dealt(*turn);
        let operands = Arc::new(Operands::new(&case));
        let all = cutting.every_schedule && data == Data::Integers && n < 8;
        for options in dealt(*turn, all) {
            simulator.run(&operands, cutting.config, cutting.chained, &options);
        }
    }
}

/// Whether a kernel with so many warps exists.
fn exists(cutting: &Cutting, n: usize) -> bool {
    cutting.config.warps
        <= if n <= 2 || cutting.config.part != 0 {
            16
        } else {
            12
        }
}

/// Runs a cutting if there is a kernel for it.
fn check_existing(
    simulator: &Simulator,
    unit: &Unit,
    cutting: &Cutting,
    kernel: (Activation, usize),
    turn: &mut usize,
) {
    let mut cutting = cutting.clone();
    let whole = cutting.shape.1.is_multiple_of(256);
    match kernel.0 {
        Activation::F32 => cutting.config.vectors = 4,
        // Another unit has the kernels for this K.
        _ if whole == (unit.name == RAGGED.name) => return,
        // Sixteen vectors in one pass, if they fit shared memory.
        _ if unit.name == WHOLE.name
            && kernel.1 > 8
            && cutting.shape.1 <= 2816
            && cutting.config.beside == 1 =>
        {
            cutting.config.vectors = 16;
        }
        _ => (),
    }
    if exists(&cutting, kernel.1) {
        check(simulator, &cutting, kernel, turn);
    }
}

impl Unit {
    fn kernels(&self) -> Vec<(Activation, usize)> {
        let of = |&(activation, vectors): &(Activation, &'static [usize])| {
            vectors.iter().map(move |&n| (activation, n))
        };
        self.kernels.iter().flat_map(of).collect()
    }
}

/// Every config, number of vectors and activation; with few vectors every config in pairs, too.
fn sweep(simulator: &Simulator, unit: &Unit) {
    let mut turn = 0;
    for kernel in unit.kernels() {
        for cutting in (unit.cuttings)() {
            check_existing(simulator, unit, &cutting, kernel, &mut turn);
            if kernel.1 <= 2 && unit.name == WHOLE.name && cutting.config.beside == 1 {
                check_existing(simulator, unit, &cutting.in_pairs(), kernel, &mut turn);
            }
        }
    }
}

/// Every config on one kernel or another, and every kernel.
fn short_sweep(simulator: &Simulator, unit: &Unit) {
    let kernels = unit.kernels();
    let mut turn = 0;
    for (i, cutting) in (unit.cuttings)().iter().enumerate() {
        let kernel = kernels[5 * i % kernels.len()];
        check_existing(simulator, unit, cutting, kernel, &mut turn);
    }
}

/// Whether no launch can do better for a line of the coverage report. One kind is the branch past a loop that always
/// has work, although nvcc does not know. A tile has parts, and a queue that is filled ahead of the vectors has stages to
/// fill. The other kind is factors of vectors that are not NVFP4, which have none.
fn cannot_be(line: &str) -> bool {
    const LOOPS: [&str; 2] = ["i < behind; ++i)", "to != until;"];
    let source = include_str!("../../../csrc/kernels/gemv_stream.cuh");
    let at = source_line(line, "gemv_stream.cuh", source);
    let past = at.is_some_and(|at| LOOPS.iter().any(|l| at.contains(l)));
    // Warps side by side share the parts of a tile: of the last four parts, two or none exist.
    let of_pairs = at.is_some_and(|at| at.contains("y[j] += sums[") || at.contains(LOOPS[0]));
    if of_pairs && line.contains("_beside") {
        return true;
    }
    // Copies of registers on the way of such a branch belong to no line of the source. The branch itself is judged.
    let on_the_way =
        line.contains("never executed: ") && line.contains("`mov.") && line.contains(":0)");
    past && line.contains("never taken")
        || on_the_way
        || !line.contains("_nvfp4_") && is_of_factors(line)
}

/// Blackwell runs the same source, but with f16 pairs in another order: the hardware converts E2M1.
fn blackwell() {
    for unit in [WHOLE, RAGGED] {
        short_sweep(&Simulator::new("100a"), &unit);
    }
}

fn every_config(unit: &Unit) {
    let hopper = Simulator::new("90a");
    sweep(&hopper, unit);
    hopper.demand_coverage(cannot_be);
    if unit.name == ORDERED.name {
        return; // Hopper's alone
    }
    let blackwell = Unit {
        kernels: &[
            (Activation::Nvfp4, &[2, 3]),
            (Activation::F16, &[2, 3]),
            (Activation::Bf16, &[2, 3]),
        ],
        ..*unit
    };
    sweep(&Simulator::new("100a"), &blackwell);
}

/// bf16 and f32 over their whole ranges, also where a single bf16 vector is cut in two.
fn vectors_of_every_magnitude() {
    let simulator = Simulator::new("90a");
    let cutting = cutting((33, 512, 3), ScaleLayout::Linear, (2, 3, 2));
    for activation in [Activation::Bf16, Activation::F32] {
        for n in [1, 2, 3] {
            // One element in 200, of any exponent that f32 sums have room for: no large element hides what becomes of
            // a small one. And small ones alone.
            let sparse = [(0, 230, 200), (0, 24, 1), (0, 24, 200)];
            for (seed, (least, end, one_of)) in (0..).zip(sparse) {
                let case = Case {
                    seed,
                    ..cutting.case(n, activation, Data::Exponents(least, end, one_of))
                };
                let config = StreamConfig {
                    vectors: 4,
                    ..cutting.config
                };
                simulator.check(&case, config, false, &few(seed)[0]);
            }
        }
    }
}

/// Vectors of each batch, and vectors that all batches share: CTAs of which each has one batch, of which some have two,
/// and of which each has several. A CTA with one batch keeps the vectors of one, and it writes no others.
fn vectors_of_batches() {
    use ScaleLayout::{Linear, Tiled128x4};
    let simulator = Simulator::new("90a");
    let mut turn = 0;
    for &(layout, m, l, ctas, batches) in &[
        (Linear, 16, 3, 3, 1), // a tile a batch
        (Linear, 30, 2, 4, 1), // half a batch
        (Linear, 32, 3, 5, 2), // the second and the fourth of them cross
        (Linear, 16, 4, 5, 2),
        (Linear, 5, 6, 2, 3),
        (Tiled128x4, 40, 2, 4, 1),
        (Tiled128x4, 5, 3, 5, 2),
    ] {
        for (i, &k) in [512, 528].iter().enumerate() {
            let cutting = cutting((m, k, l), layout, (2, [3, 4][turn % 2], ctas));
            for (activation, n) in [
                (Activation::Nvfp4, 1),
                (Activation::Nvfp4, 3),
                (Activation::F16, 2),
                (Activation::Bf16, 1),
            ] {
                for shared in [false, true] {
                    turn += 1;
                    let case = Case {
                        shared,
                        ..cutting.case(n, activation, Data::BOTH[(turn / 2 + i) % 2])
                    };
                    let (_, launch) =
                        Loaded::with_launch(&case, "90a", cutting.config, cutting.chained);
                    let at = offset_of!(Params, x_batches);
                    let kept = &launch.params[0][at..at + 4];
                    let batches: u32 = if shared { 1 } else { batches };
                    assert_eq!(kept, batches.to_le_bytes(), "{case:?}");
                    simulator.check(
                        &case,
                        cutting.config,
                        cutting.chained,
                        &few(turn as u64)[turn % 3],
                    );
                }
            }
        }
    }
}

/// Eleven vectors: a pass of eight, one of three.
fn two_passes() {
    let simulator = Simulator::new("90a");
    for activation in ACTIVATIONS {
        for cutting in cuttings().iter().filter(|c| c.config.ctas == 5) {
            check(&simulator, cutting, (activation, 11), &mut 0);
        }
    }
}

/// Passes of eight vectors, and of fewer.
fn many_vectors() {
    let simulator = Simulator::new("90a");
    for activation in [Activation::Nvfp4, Activation::F16] {
        let cases = [(5, 256), (5, 272)].map(|shape| many(activation, shape));
        for (i, case) in cases.into_iter().flatten().enumerate() {
            let config = StreamConfig {
                warps: 2,
                stages: 3,
                vectors: if case.shape.n() < 64 {
                    [8, 4, 2][i % 3]
                } else {
                    8
                },
                fetch: 128,
                behind: i as u32 / 3 % 3,
                ctas: 1 + i as u32 % 3,
                ..StreamConfig::DEFAULT
            };
            check_passes(&simulator, &case, config, i % 3 == 0, &few(i as u64)[i % 3]);
        }
    }
}

/// Configs that nobody thought of: for changes of the kernel.
fn random_configs() {
    for simulator in ["90a", "100a"].map(Simulator::new) {
        for seed in 0..60 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let n = rng.usize(1..=20);
            let (m, l) = (rng.usize(1..90), rng.usize(1..=3));
            let layout = ScaleLayout::ALL[rng.usize(..2)];
            let ctas = rng.u32(1..=m.div_ceil(4) as u32);
            // Small enough for shared memory.
            let (warps, stages) = (rng.u32(1..=6), [3, 4, 6][rng.usize(..3)]);
            let unit = [&WHOLE, &RAGGED][rng.usize(..2)];
            let k = match unit.name {
                "gemv_stream" => 256 * rng.usize(1..=7),
                _ => 16 * rng.usize(1..=112),
            };
            let cutting = cutting((m, k, l), layout, (warps, stages, ctas));
            let fits = |beside: &u32| {
                unit.name == WHOLE.name
                    && warps.is_multiple_of(*beside)
                    && (k / 256).is_multiple_of(*beside as usize)
            };
            let beside = [1, 2, 4][rng.usize(..3)];
            let cutting = match fits(&beside) {
                true => cutting.beside(beside),
                false => cutting,
            };
            let kernel = (unit.kernels[rng.usize(..unit.kernels.len())].0, n);
            check_existing(&simulator, unit, &cutting, kernel, &mut rng.usize(..99));
        }
    }
}

/// Cuttings for faults: queues that are used several times, warps that share tiles, warps that have several tiles, and
/// one without work. CTAs lie within tiles and batches, and one has three batches. Both layouts; loops that go round
/// more than once.
fn cases() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        cutting((37, 1792, 1), Linear, (2, 3, 1)),
        cutting((21, 256, 3), Linear, (3, 4, 2)),
        cutting((9, 1024, 2), Tiled128x4, (1, 6, 5)),
        cutting((5, 2560, 1), Linear, (12, 3, 1)),
    ]
}

/// Cuttings like [`cases`] with groups, which share tiles and have several, in one and in two.
fn beside_cases() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        cutting((37, 1536, 2), Linear, (4, 3, 1)).beside(2),
        cutting((21, 512, 3), Linear, (6, 4, 2)).beside(2),
        cutting((9, 2048, 2), Tiled128x4, (4, 6, 5)).beside(4),
    ]
}

/// Cuttings like [`cases`] with sums in parts: warps with several parts of a tile, with several tiles, and with none;
/// last parts that are shorter.
fn ordered_cases() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        cutting((37, 1792, 1), Linear, (2, 3, 1)).in_parts(3),
        cutting((21, 256, 3), Linear, (3, 4, 2)).in_parts(1),
        cutting((9, 1024, 2), Tiled128x4, (1, 6, 5)).in_parts(3),
        cutting((5, 2560, 1), Linear, (16, 3, 1)).in_parts(1),
    ]
}

fn ragged_cases() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        cutting((37, 1552, 1), Linear, (2, 3, 1)),
        cutting((21, 240, 3), Linear, (3, 4, 2)),
        cutting((9, 1056, 2), Tiled128x4, (1, 6, 5)),
        cutting((5, 2576, 1), Linear, (12, 3, 1)),
        // The last row's last word is not whole.
        cutting((19, 240, 1), Linear, (2, 3, 3)),
    ]
}

/// Runs of a unit's kernel for `n` NVFP4 vectors, for faults.
fn runs(unit: &Unit, n: usize) -> Vec<Run> {
    cases_on(n, (unit.cases)().into_iter())
}

fn cases_on(n: usize, cases: impl Iterator<Item = Cutting>) -> Vec<Run> {
    let run = |(i, cutting): (usize, Cutting)| {
        let case = cutting.case(n, Activation::Nvfp4, Data::Integers);
        let case = case.for_faults(i);
        let (config, chained) = (cutting.config, cutting.chained);
        Run::new("90a", &case, config, chained, Uninitialised::Error)
    };
    cases.enumerate().map(run).collect()
}

fn faults(unit: &Unit, n: usize) {
    faults_of(unit.name, runs(unit, n));
}

/// Plants faults in the kernel for sixteen vectors, which is two matrix instructions wide.
fn faults_of_sixteen_vectors() {
    let cases = cases().into_iter().filter(|case| case.shape.1 <= 1792);
    let sixteen = cases.map(|mut case| {
        case.config.vectors = 16;
        case
    });
    faults_of(WHOLE.name, cases_on(11, sixteen));
}

fn faults_of_warps_side_by_side() {
    faults_of(WHOLE.name, cases_on(1, beside_cases().into_iter()));
}

fn faults_of(name: &str, runs: Vec<Run>) {
    let subject = subject(name, "90a", runs, mutate::schedules(3), no_arithmetic);
    demand(&subject, include_str!("equivalent_faults.txt"), 60);
}

/// Batches that select their matrix, and one without a matrix: CTAs within tiles and batches, several batches of a CTA,
/// warps that would be side by side.
fn select_cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        cutting((21, 256, 5), Linear, (3, 4, 2)),
        cutting((9, 1024, 4), Tiled128x4, (1, 6, 5)),
        cutting((37, 1536, 3), Linear, (4, 3, 1)).beside(2),
    ]
}

fn selecting(cutting: &Cutting, n: usize, activation: Activation, i: usize) -> Case {
    let case = Case {
        select: true,
        late: i.is_multiple_of(2),
        row_alpha: true,
        vector_layout: ScaleLayout::ALL[i % 2],
        output: FloatType::ALL[i % 3],
        ..cutting
            .case(n, activation, Data::BOTH[i % 2])
            .with_additions(i)
    };
    [[case; 4], case.with_unknown_ids()][i % 3 % 2][i % 4]
}

fn select() {
    let simulator = Simulator::new("90a");
    let mut i = 0;
    for &(activation, numbers) in WHOLE.kernels {
        for &n in numbers {
            for mut cutting in select_cuttings() {
                if cutting.config.beside == 1 {
                    cutting.config.vectors = (n as u32).next_power_of_two();
                }
                let case = selecting(&cutting, n, activation, i);
                if simulator.takes(&case, cutting.config) {
                    simulator.check(&case, cutting.config, i % 2 == 0, &few(i as u64)[i % 3]);
                }
                i += 1;
            }
        }
    }
}

fn faults_select() {
    let runs = select_cuttings()
        .into_iter()
        .enumerate()
        .map(|(i, cutting)| {
            let case = Case {
                data: Data::Integers,
                unknown: Some([-1, i32::MAX, -1][i]),
                ..selecting(&cutting, 1, Activation::Nvfp4, i)
            };
            Run::new(
                "90a",
                &case,
                cutting.config,
                i % 2 == 0,
                Uninitialised::Error,
            )
        });
    let subject = subject(
        "gemv_stream_select",
        "90a",
        runs.collect(),
        mutate::schedules(3),
        no_arithmetic,
    );
    demand(&subject, include_str!("equivalent_faults.txt"), 60);
}

/// Faults of launch plans that no launch notices.
fn harmless() -> Vec<(At, &'static str)> {
    crate::words![Params:
        groups_magic = "few numbers are divided",
        ahead = "a run has one grid",
        far_ahead = "a hint",
        x_batches = "a CTA keeps no more batches than it has places of",
        x_at = "a column of the vectors has room for one block more",
        sums_at = "sums have room for more tiles than a CTA has here",
        parts_at = "the same",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        ; unread in select
    ]
    .to_vec()
}

/// Plants one in `of` of the faults of a unit's launch plans.
fn wrong_plans(unit: &Unit, of: u64) {
    // CTAs that keep the vectors of some of the batches.
    let (_, k, _) = (unit.cases)()[1].shape;
    let some = cutting((20, k, 6), ScaleLayout::Linear, (1, 3, 6));
    let some = some.in_parts(u32::from(unit.name == ORDERED.name));
    let some = cases_on(1, [some].into_iter());
    let mut runs = [runs(unit, 1), runs(unit, 3), some].concat();
    let mut harmless = harmless();
    if unit.name == WHOLE.name {
        runs.extend(cases_on(1, beside_cases().into_iter()));
    } else {
        harmless.extend(crate::words![Params: beside_log2 = "a group is a warp"]);
    }
    if unit.name != RAGGED.name {
        harmless.extend(crate::words![Params: l = "that there are several is all that counts"]);
    }
    if unit.name == ORDERED.name {
        harmless.extend(crate::words![Params:
            zero_at = "no lane keeps to its own blocks",
            x_scale_at = "vectors carry their scales",
        ]);
    } else {
        harmless.extend(crate::words![Params: ; unread in part_steps, parts]);
    }
    demand_right_plans("90a", &runs, &harmless, of);
}
