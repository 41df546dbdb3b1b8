//! `gemv_mma_fp4`: every kind of config, compared with the f64 reference.

use std::sync::Arc;

use nvfp4_gemv::ScaleLayout::{Linear, Tiled128x4};
use nvfp4_gemv::kernel::params::nvfp4_mma_fp4_params as Params;
use nvfp4_gemv::kernel::{Config, Kernel, MmaFp4Config};
use nvfp4_gemv::{FloatType, ScaleLayout};
use nvfp4_gemv_cli::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS};
use nvfp4_gemv_simulate::picture;
use ptx_sim::{Policy, Timing, Trace, Uninitialised, mutate};

use crate::support::faults::{
    ANY_OPERAND, MAPPED, NO_BIAS, Run, SAMPLE, SAMPLE_OF_PLANS, demand, demand_right_plans,
    no_arithmetic, subject,
};
use crate::support::operands::{Case, Data, Operands};
use crate::support::passes::check_passes;
use crate::support::ptx;
use crate::support::rank_order;
use crate::support::schedules::{few, options};
use crate::support::sim::{
    Loaded, Simulator, copies_before_the_wait, dealt, demand_picture, source_line,
};
use crate::support::sized;

crate::trials! {
    simulator:
        short_sweep = || sweep(&Simulator::new(ARCH), &[1, 3, 8, 16, 17], 1),
        vectors_of_every_entry_point, several_passes, vectors_of_digits, contest_shapes = || contest(1 << 20),
        sums_in_rank_order, loads_before_the_wait, picture,
        faults = || faults_of(16, SAMPLE),
        wrong_plans = || wrong_plans(SAMPLE_OF_PLANS);
    long:
        every_config, random_configs,
        all_contest_shapes = || contest(usize::MAX), benchmark_shapes,
        all_faults = || faults_of(16, 1),
        all_wrong_plans = || wrong_plans(1),
        faults_of_many_vectors = || faults_of(64, 1);
}

const ARCH: &str = ptx::CONSUMER;

/// A shape without N, and a config for it.
#[derive(Clone, Copy)]
struct Cutting {
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    warps: u32,
    stages: u32,
    cluster: u32,
    every_schedule: bool,
}

const fn cutting(
    shape: (usize, usize, usize),
    layout: ScaleLayout,
    [warps, stages, cluster]: [u32; 3],
) -> Cutting {
    Cutting {
        shape,
        layout,
        warps,
        stages,
        cluster,
        every_schedule: false,
    }
}

/// Small launches that between them do everything that a config can ask for.
const CUTTINGS: &[Cutting] = &[
    // A ring that goes round more than once; the last step half as long; rows past M.
    cutting((40, 1152, 1), Linear, [2, 2, 1]).under_every_schedule(),
    // One step, of one slice; fewer rows than a warp has.
    cutting((5, 64, 1), Linear, [1, 2, 1]),
    // CTAs of a cluster with different numbers of steps; groups that begin within an atom.
    cutting((100, 1856, 1), Tiled128x4, [3, 2, 2]).under_every_schedule(),
    cutting((170, 320, 2), Tiled128x4, [5, 2, 2]),
    // Batches; warps without rows.
    cutting((21, 768, 3), Linear, [3, 4, 3]),
    cutting((130, 512, 2), Linear, [8, 2, 1]),
    // Clusters of every size, with a step each or more.
    cutting((20, 2112, 1), Tiled128x4, [1, 2, 8]).under_every_schedule(),
    cutting((33, 1280, 1), Linear, [2, 2, 5]),
    cutting((18, 1600, 1), Linear, [1, 2, 7]),
    cutting((17, 1472, 1), Linear, [2, 3, 6]),
    cutting((17, 1088, 1), Tiled128x4, [1, 2, 4]),
    // More stages than steps.
    cutting((16, 448, 1), Tiled128x4, [1, 8, 1]),
];

impl Cutting {
    const fn under_every_schedule(self) -> Self {
        Self {
            every_schedule: true,
            ..self
        }
    }

    fn case(&self, n: usize, data: Data) -> Case {
        let (m, k, l) = self.shape;
        Case::new(sized(m, n, k, l), data, self.layout, 7)
    }

    fn config(&self, vectors: u32) -> Config {
        let Self {
            warps,
            stages,
            cluster,
            ..
        } = *self;
        Config::from(MmaFp4Config {
            warps,
            stages,
            cluster,
            vectors,
            ..MmaFp4Config::DEFAULT
        })
    }

    /// Runs the cutting on exact and full-range data. The attributes that select no kernel are dealt out in turn.
    fn check(&self, simulator: &Simulator, n: usize, turn: &mut usize) {
        self.check_digits(simulator, (n, 1), turn);
    }

    /// The same with vectors of so many digits.
    fn check_digits(&self, simulator: &Simulator, (n, digits): (usize, usize), turn: &mut usize) {
        for data in Data::BOTH {
            *turn += 1;
            let case = Case {
                digits,
                padded: turn.is_multiple_of(3),
                ..self.case(n, data).dealt(*turn)
            };
            let operands = Arc::new(Operands::new(&case));
            let all = self.every_schedule && data == Data::Integers && n < 10;
            for options in dealt(*turn, all) {
                let chained = (*turn / 4).is_multiple_of(2);
                simulator.run(&operands, self.config(128), chained, &options);
            }
        }
    }
}

/// Runs every cutting with `each` of these numbers of vectors, in turn, if shared memory has room for them.
fn sweep(simulator: &Simulator, vectors: &[usize], each: usize) {
    let mut turn = vectors[0]; // other combinations with other numbers
    for (i, cutting) in CUTTINGS.iter().enumerate() {
        for n in vectors.iter().cycle().skip(i * each).take(each) {
            if simulator.takes(&cutting.case(*n, Data::Integers), cutting.config(128)) {
                cutting.check(simulator, *n, &mut turn);
            }
        }
    }
}

fn vectors_of_every_entry_point() {
    let simulator = Simulator::new(ARCH);
    let mut turn = 0;
    for (n, layout) in [
        (17, Linear),
        (64, Tiled128x4),
        (100, Linear),
        (128, Tiled128x4),
    ] {
        cutting((35, 640, 1), layout, [2, 2, 2]).check(&simulator, n, &mut turn);
    }
}

/// Digits of vectors, in clusters of one CTA and of two, and more vectors than a pass takes.
fn vectors_of_digits() {
    let simulator = Simulator::new(ARCH);
    let mut turn = 0;
    for (i, (n, digits)) in [(1, 3), (4, 4), (3, 5), (7, 3), (13, 5), (30, 4)]
        .into_iter()
        .enumerate()
    {
        for cluster in [1, 2] {
            let layout = ScaleLayout::ALL[i % 2];
            let cutting = cutting((35, 640, 1), layout, [2, 2, cluster]);
            cutting.check_digits(&simulator, (n, digits), &mut turn);
        }
    }
    for (n, digits, vectors) in [(33, 4, 128), (9, 2, 8), (9, 4, 16)] {
        let case = Case {
            vector_alpha: true,
            digits,
            ..cutting((19, 320, 2), Tiled128x4, [1, 2, 2]).case(n, Data::FullRange)
        };
        let config = cutting((0, 0, 0), Linear, [1, 2, 2]).config(vectors);
        simulator.check(&case, config, n == 9, &few(n as u64)[n % 3]);
    }
}

/// Passes of fewer vectors than there are: their scales lie in all words of lines, and in a second row of atoms.
fn several_passes() {
    let simulator = Simulator::new(ARCH);
    for (i, (n, vectors, layout)) in [
        (35, 16, Linear),
        (70, 32, Tiled128x4),
        (140, 128, Tiled128x4),
    ]
    .into_iter()
    .enumerate()
    {
        let cutting = cutting((19, 320, 1), layout, [1, 2, 2]);
        let case = Case {
            vector_alpha: true,
            ..cutting.case(n, [Data::Integers, Data::FullRange][i % 2])
        };
        let options = &few(i as u64)[i % 3];
        check_passes(&simulator, &case, cutting.config(vectors), i == 1, options);
    }
}

/// The contest's shapes, and its benchmarks with their full K and fewer rows and batches. Shapes have at most so many
/// weights, and run with the default config.
fn contest(most: usize) {
    let simulator = Simulator::new(ARCH);
    let full_k = [(128, 16384, 1), (96, 7168, 2), (128, 2048, 4)];
    let vectors = [1, 3, 8, 16, 17, 64, 128];
    let shapes = CONTEST_TESTS.iter().copied().chain(full_k);
    let of = |&(m, k, l): &(usize, usize, usize)| m * k * l <= most;
    for (i, (m, k, l)) in shapes.filter(of).enumerate() {
        // Many vectors take long, so they have fewer rows.
        let n = vectors[i % vectors.len()];
        let m = if n > 8 { m.min(48) } else { m };
        let shape = sized(m, n, k, l);
        let layout = ScaleLayout::ALL[(i + 1) % 2];
        for data in [Data::Integers, Data::FullRange] {
            let case = Case {
                vector_layout: ScaleLayout::ALL[i / 2 % 2],
                ..Case::new(shape, data, layout, i as u64)
            };
            let default = simulator.job(&case, false, |job| Kernel::MmaFp4.default_config(job));
            let config = default.expect("a default");
            simulator.check(&case, config, i % 2 == 1, &few(i as u64)[i % 3]);
        }
    }
}

/// The contest's benchmarks with all of K and with the configs for an RTX 5090. Few vectors have one group of rows and
/// a part of another, and two batches at most. Many vectors have only a part of a group. CTAs of other groups and
/// batches do the same, and know nothing of each other.
fn benchmark_shapes() {
    let simulator = Simulator::new(ARCH);
    for (of, (m, k, l)) in CONTEST_BENCHMARKS.into_iter().enumerate() {
        for (i, n) in [1, 3, 8, 16, 17, 64, 128].into_iter().enumerate() {
            let layout = ScaleLayout::ALL[i % 2];
            let case = |m, l, data| Case::new(sized(m, n, k, l), data, layout, i as u64);
            let all = case(m, l, Data::Integers);
            let config = simulator.job(&all, false, |job| Kernel::MmaFp4.default_config(job));
            let Ok(Config::MmaFp4(config)) = config else {
                panic!("{config:?}");
            };
            let (rows, batches) = match n {
                ..=8 => (16 * config.warps as usize + 7, l.min(2)),
                _ => (23, 1),
            };
            // Both kinds of data if they take least, else in turn.
            for (j, data) in [Data::Integers, Data::FullRange].into_iter().enumerate() {
                if k < 4096 || (i + j + of).is_multiple_of(2) {
                    let some = case(rows, batches, data);
                    simulator.check(&some, config, i % 2 == 1, &few(i as u64)[i % 3]);
                }
            }
        }
    }
}

/// Every cutting with every entry point, which between them execute every instruction and take every branch both ways.
fn every_config() {
    let simulator = Simulator::new(ARCH);
    for n in [1, 3, 8, 9, 16, 17, 32, 61, 64, 65, 128] {
        sweep(&simulator, &[n], 1);
    }
    // Types of output with and without factors, of every entry point.
    for (i, n) in [7, 16, 30, 64, 128].into_iter().enumerate() {
        for (j, output) in FloatType::ALL.into_iter().enumerate() {
            for alphas in [false, true] {
                let cutting = cutting((20, 192, 1), Linear, [2, 2, 1]);
                let case = Case {
                    output,
                    row_alpha: alphas,
                    vector_alpha: alphas,
                    ..cutting.case(n, Data::Integers)
                };
                let options = &few((i + j) as u64)[(i + j) % 3];
                simulator.check(&case, cutting.config(128), alphas, options);
            }
        }
    }
    let mut turn = 0;
    for (n, digits) in [(2, 3), (4, 4), (10, 3), (15, 4), (25, 5)] {
        for cluster in [1, 2] {
            let cutting = cutting((35, 640, 1), Linear, [2, 2, cluster]);
            cutting.check_digits(&simulator, (n, digits), &mut turn);
        }
    }
    simulator.demand_coverage(cannot_be);
}

/// Whether no launch needs to do better for a line of the coverage report. No thread is without an output if there are
/// more vectors than the largest cluster has threads for.
fn cannot_be(line: &str) -> bool {
    let own = include_str!("../../../csrc/kernels/gemv_mma_fp4.cuh");
    let many = ["gemv_mma_fp4_n64:", "gemv_mma_fp4_n128:"];
    source_line(line, "gemv_mma_fp4.cuh", own).is_some_and(|at| {
        let of_many = many.iter().any(|of| line.starts_with(of));
        of_many && line.contains("never taken") && at.contains("i * p.digits < p.n * work.rows")
    })
}

/// Configs that nobody thought of: for changes of the kernel.
fn random_configs() {
    let simulator = Simulator::new(ARCH);
    for seed in 0..100 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let (m, n, k) = (rng.usize(1..200), rng.usize(1..=70), 64 * rng.usize(1..=20));
        let sizes = [rng.u32(1..=8), rng.u32(2..=8), rng.u32(1..=8)];
        let layout = ScaleLayout::ALL[rng.usize(..2)];
        let cutting = cutting((m, k, rng.usize(1..=2)), layout, sizes);
        if simulator.takes(&cutting.case(n, Data::Integers), cutting.config(128)) {
            cutting.check(&simulator, n, &mut rng.usize(..99));
        }
    }
}

/// Runs [`rank_order::check`] with one step for each CTA.
fn sums_in_rank_order() {
    let simulator = Simulator::new(ARCH);
    rank_order::check(20, |problem, cluster| {
        let case = Case::new(problem.shape, Data::FullRange, Tiled128x4, 9);
        let operands = Arc::new(Operands::of(&case, problem));
        let config = cutting((0, 0, 0), Tiled128x4, [2, 2, cluster as u32]).config(8);
        simulator.run(&operands, config, false, &few(1)[1])
    });
}

/// While the grid before runs, only the weights of the first stages are on their way, and nothing else is.
fn loads_before_the_wait() {
    let cutting = cutting((16, 6 * 256, 1), Linear, [1, 3, 1]);
    let trace = traced(&cutting, true, Timing::Lazy);
    // Each stage has a box of codes, and two copies by all lanes: four scales a lane, of 16 rows and four slices.
    assert_eq!(copies_before_the_wait(&trace), 3 * (1 + 2));
}

/// The trace of an exact launch with two vectors, in an order that the ISA allows.
fn traced(cutting: &Cutting, chained: bool, timing: Timing) -> Trace {
    let case = cutting.case(2, Data::Integers);
    let (mut loaded, launch) = Loaded::with_launch(&case, ARCH, cutting.config(8), chained);
    loaded.traced(ARCH, &launch, &options(Policy::Fair, timing))
}

/// The picture of the pipeline in docs/.
fn picture() {
    let cutting = cutting((16, 5 * 256, 1), Linear, [1, 3, 1]);
    let trace = traced(&cutting, false, Timing::Random);
    let title = "gemv_mma_fp4: a CTA with one warp that multiplies, five steps, three stages";
    let svg = picture::mma_fp4(&trace, 3, title).expect("a picture");
    let texts = ["load", "multiply", "full[0]", "empty[1]"];
    demand_picture(&svg, &texts, "mma-fp4-pipeline.svg");
}

/// Runs for faults, with `n` vectors: rings that are used several times, rows past M, both layouts, clusters, batches,
/// launches in chains and alone.
fn runs(n: usize) -> Vec<Run> {
    let cuttings = [
        cutting((20, 1344, 1), Linear, [2, 2, 1]),
        cutting((70, 832, 2), Tiled128x4, [3, 3, 2]),
        cutting((40, 1600, 1), Tiled128x4, [1, 2, 3]),
    ];
    let run = |(i, cutting): (usize, Cutting)| {
        let digits = if i == 1 { 3 } else { 1 };
        let n = n / digits;
        let case = Case {
            digits,
            vector_layout: ScaleLayout::ALL[(i + 1) % 2],
            output: FloatType::ALL[i % 3],
            row_alpha: i != 0,
            vector_alpha: i == 1,
            padded: i == 2,
            ..cutting.case(n, Data::Integers)
        };
        let config = cutting.config(128);
        Run::new(ARCH, &case, config, i == 1, Uninitialised::Error)
    };
    cuttings.into_iter().enumerate().map(run).collect()
}

/// Plants one in `of` of the faults.
fn faults_of(n: usize, of: u64) {
    let subject = subject(
        "gemv_mma_fp4",
        ARCH,
        runs(n),
        mutate::schedules(3),
        move |mutant| no_arithmetic(mutant) && mutant.is_in_share(of),
    );
    let least = 60 / of as usize;
    demand(&subject, include_str!("equivalent_faults.txt"), least);
}

fn wrong_plans(of: u64) {
    let harmless = crate::words![Params:
        dependent = "a run has one grid",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        vectors.batch_bytes = MAPPED,
        vectors.batch_bytes + 4 = MAPPED,
        ; unread in weights, vectors
    ];
    let runs = [runs(11), runs(16)].concat();
    demand_right_plans(ARCH, &runs, &harmless, of);
}
