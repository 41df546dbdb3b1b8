//! `gemv_mma`: every kind of config, compared with the f64 reference.

use std::sync::Arc;

use nvfp4_gemv::kernel::MmaConfig;
use nvfp4_gemv::kernel::params::nvfp4_many_params as Params;
use nvfp4_gemv::{Activation, Dims, FloatType, ScaleLayout, Shape};
use ptx_sim::Uninitialised;
use ptx_sim::mutate;

use crate::support::faults::{PADDING, Run, demand, demand_right_plans, no_arithmetic, subject};
use crate::support::operands::{Case, Data, Operands};
use crate::support::schedules::{few, schedules};
use crate::support::sim::Simulator;

crate::trials! {
    simulator:
        hopper = || short_sweep(&Simulator::new("90a"), &[3, 8, 9, 16, 30, 61]),
        ampere = || short_sweep(&Simulator::new("80"), &[12, 40]),
        blackwell = || short_sweep(&Simulator::new("100a"), &[16, 20]),
        many_vectors,
        vectors_of_every_magnitude,
        faults_of_few_vectors = || faults(16),
        wrong_plans;
    long:
        every_config, random_configs;
}

/// A shape without N, and a config for it.
struct Cutting {
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    config: MmaConfig,
    chained: bool,
    every_schedule: bool,
}

fn cutting(
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    [tiles, parts, chunk, cluster]: [u32; 4],
) -> Cutting {
    Cutting {
        shape,
        layout,
        config: MmaConfig {
            tiles,
            parts,
            chunk,
            cluster,
            vectors: 64,
        },
        chained: cluster % 4 == 0 || chunk == 4,
        every_schedule: false,
    }
}

impl Cutting {
    fn case(&self, n: usize, activation: Activation, data: Data) -> Case {
        let (m, k, l) = self.shape;
        let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
        Case {
            activation,
            ..Case::new(shape, data, self.layout, 7)
        }
    }
}

/// Small launches that between them do everything that a config can ask for.
fn cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        // Several groups, the last one with fewer rows than a tile; queues and buffers used several times.
        Cutting {
            every_schedule: true,
            ..cutting((70, 1152, 1), Linear, [4, 1, 2, 1])
        },
        // Warps that share tiles, the last step of a row half as long.
        cutting((33, 832, 1), Linear, [3, 2, 2, 1]),
        // One step only, for warps that have none.
        cutting((5, 64, 1), Linear, [1, 4, 4, 1]),
        cutting((5, 64, 1), Linear, [2, 4, 4, 1]),
        // A chunk that ends within a warp's steps, batches.
        cutting((21, 832, 3), Linear, [2, 2, 2, 1]),
        cutting((40, 320, 1), Linear, [4, 2, 2, 1]),
        // Tiles without rows.
        cutting((40, 256, 2), Linear, [4, 1, 1, 1]),
        // Atoms of 128 rows, most of which are past M.
        cutting((130, 256, 1), Tiled128x4, [3, 2, 2, 1]),
        cutting((140, 320, 2), Tiled128x4, [8, 1, 1, 1]),
        // Clusters, of which some CTAs have more chunks than others, or none.
        Cutting {
            every_schedule: true,
            ..cutting((40, 896, 1), Linear, [2, 1, 1, 2])
        },
        cutting((17, 640, 2), Linear, [2, 2, 2, 4]),
        cutting((9, 256, 1), Tiled128x4, [2, 1, 1, 8]),
    ]
}

const ACTIVATIONS: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

/// Exact and full-range data; the attributes that make no kernel are dealt out in turn.
fn check(
    simulator: &Simulator,
    cutting: &Cutting,
    (activation, n): (Activation, usize),
    turn: &mut usize,
) {
    for data in [Data::Integers, Data::FullRange] {
        *turn += 1;
        let (turn, seed) = (*turn, *turn as u64);
        let case = cutting.case(n, activation, data).dealt(turn);
        let operands = Arc::new(Operands::new(&case));
        let those = if cutting.every_schedule && data == Data::Integers && n < 10 {
            schedules(seed)
        } else {
            few(seed)[turn / 3 % 3..][..1].to_vec()
        };
        for options in &those {
            simulator.run(&operands, cutting.config, cutting.chained, options);
        }
    }
}

/// Every config on one kernel or another, and every kernel.
fn short_sweep(simulator: &Simulator, vectors: &[usize]) {
    let kernels: Vec<(Activation, usize)> = ACTIVATIONS
        .into_iter()
        .flat_map(|activation| vectors.iter().map(move |&n| (activation, n)))
        .collect();
    let mut turn = 0;
    let cuttings = cuttings();
    for (i, cutting) in cuttings.iter().enumerate() {
        let (activation, n) = kernels[5 * i % kernels.len()];
        let case = cutting.case(n, activation, Data::Integers);
        if simulator.takes(&case, cutting.config) {
            check(simulator, cutting, (activation, n), &mut turn);
        }
    }
}

/// The kernels that are compiled for most vectors, and two passes.
fn many_vectors() {
    let simulator = Simulator::new("90a");
    let mut turn = 0;
    let cuttings = [
        cutting((40, 320, 1), ScaleLayout::Linear, [8, 1, 1, 1]),
        cutting((20, 256, 1), ScaleLayout::Tiled128x4, [8, 1, 1, 2]),
    ];
    for activation in ACTIVATIONS {
        for (cutting, n) in cuttings.iter().zip([60, 64]) {
            check(&simulator, cutting, (activation, n), &mut turn);
        }
    }
    let mut passes = cutting((20, 256, 1), ScaleLayout::Linear, [2, 2, 2, 1]);
    passes.config.vectors = 16;
    check(&simulator, &passes, (Activation::Nvfp4, 35), &mut turn);
}

fn every_config() {
    let hopper = Simulator::new("90a");
    let mut turn = 0;
    for activation in ACTIVATIONS {
        for n in [3, 8, 9, 16, 30, 33, 61, 64] {
            for cutting in &cuttings() {
                let case = cutting.case(n, activation, Data::Integers);
                if hopper.takes(&case, cutting.config) {
                    check(&hopper, cutting, (activation, n), &mut turn);
                }
            }
        }
    }
}

/// f16 and bf16 over their whole ranges.
fn vectors_of_every_magnitude() {
    let simulator = Simulator::new("90a");
    let cutting = cutting((33, 512, 1), ScaleLayout::Linear, [3, 2, 2, 1]);
    for (activation, end) in [(Activation::Bf16, 230), (Activation::F16, 31)] {
        // One element in 200, of any exponent that f32 sums have room for: no large element hides what becomes of a
        // small one.
        for one_of in [1, 200] {
            let case = Case {
                seed: one_of.into(),
                ..cutting.case(10, activation, Data::Exponents(0, end, one_of))
            };
            simulator.check(&case, cutting.config, false, &few(one_of.into())[0]);
        }
    }
}

/// Configs that nobody thought of: for changes of the kernel.
fn random_configs() {
    for simulator in ["90a", "100a"].map(Simulator::new) {
        for seed in 0..100 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let n = rng.usize(1..=70);
            let (m, l) = (rng.usize(1..90), rng.usize(1..=3));
            let layout = ScaleLayout::ALL[rng.usize(..2)];
            let (tiles, parts) = (rng.u32(1..=3), [1, 2, 4][rng.usize(..3)]);
            let chunk = parts * rng.u32(1..=2);
            let cluster = [1, 2, 4][rng.usize(..3)];
            let k = 64 * rng.usize(1..=20);
            let cutting = cutting((m, k, l), layout, [tiles, parts, chunk, cluster]);
            let kernel = (ACTIVATIONS[rng.usize(..3)], n);
            let case = cutting.case(kernel.1, kernel.0, Data::Integers);
            if simulator.takes(&case, cutting.config) {
                check(&simulator, &cutting, kernel, &mut rng.usize(..99));
            }
        }
    }
}

/// Queues and buffers that are used several times, warps that share tiles, rows past M, both layouts, a cluster; loops
/// that go round more than once.
fn cases() -> [Cutting; 4] {
    use ScaleLayout::{Linear, Tiled128x4};
    [
        cutting((37, 1088, 1), Linear, [4, 1, 2, 1]),
        cutting((21, 832, 2), Tiled128x4, [2, 2, 2, 2]),
        cutting((9, 640, 3), Linear, [4, 2, 4, 1]),
        cutting((21, 256, 1), Linear, [2, 2, 2, 1]),
    ]
}

/// Of the kernel for `n` NVFP4 vectors.
fn runs(n: usize) -> Vec<Run> {
    let run = |(i, cutting): (usize, Cutting)| {
        let case = Case {
            vector_layout: ScaleLayout::ALL[i % 2],
            output: FloatType::ALL[i % 3],
            row_alpha: true,
            vector_alpha: i == 1,
            ..cutting.case(n, Activation::Nvfp4, Data::Integers)
        };
        let (config, chained) = (cutting.config, cutting.chained);
        Run::new("90a", &case, config, chained, Uninitialised::Error)
    };
    cases().into_iter().enumerate().map(run).collect()
}

fn faults(n: usize) {
    let schedules = mutate::schedules(3);
    let subject = subject("gemv_mma", "90a", runs(n), schedules, no_arithmetic);
    demand(&subject, include_str!("equivalent_faults.txt"), 60);
}

fn wrong_plans() {
    let harmless = crate::words![Params:
        l = "one batch, or several",
        chunks_each = "a row ends the steps, too",
        chunks_left = "the same",
        stored_at = "this kernel has no mbarrier",
        epilogue.alpha + 4 = PADDING,
        epilogue.output_type + 4 = PADDING,
    ];
    demand_right_plans("90a", &[runs(9), runs(16)].concat(), &harmless);
}
