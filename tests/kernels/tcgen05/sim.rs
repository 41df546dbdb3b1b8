//! `gemv_tcgen05`: every kind of config, compared with the f64 reference.

use std::sync::Arc;

use nvfp4_gemv::kernel::params::nvfp4_tcgen05_params as Params;
use nvfp4_gemv::kernel::{Config, Kernel, Tcgen05Config};
use nvfp4_gemv::{Dims, FloatType, ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::CONTEST_TESTS;
use nvfp4_gemv_simulate::picture;
use ptx_sim::mutate::{self, Mutant};
use ptx_sim::trace::Kind;
use ptx_sim::{Options, Policy, Program, SimError, Timing, Trace, Uninitialised};

use crate::support::faults::{
    At, PADDING, Run, demand, demand_right_plans, no_arithmetic, share, subject,
};
use crate::support::operands::{Case, Data, Operands};
use crate::support::passes::check_passes;
use crate::support::ptx::{self, Entry};
use crate::support::rank_order;
use crate::support::schedules::{few, options, schedules};
use crate::support::sim::{Loaded, Simulator, launches, source_line};

crate::trials! {
    simulator:
        short_sweep = || sweep(&Simulator::new(ARCH), &[1, 3, 8, 16, 17], 1),
        vectors_of_every_entry_point, several_passes, contest_shapes = || contest(1 << 20),
        sums_in_the_order_of_k, launches_on_one_workspace, loads_before_the_wait,
        order_around_the_allocation, picture,
        faults = || faults_of("gemv_tcgen05", 5, |mutant| no_arithmetic(mutant) && share(mutant, 6)),
        wrong_plans;
    long:
        every_config, random_configs,
        all_contest_shapes = || contest(usize::MAX),
        all_faults = || faults_of("gemv_tcgen05", 5, no_arithmetic),
        faults_of_many_vectors = || faults_of("gemv_tcgen05_many", 40, no_arithmetic);
}

const ARCH: &str = ptx::BLACKWELL;

/// A shape without N, and a config for it.
#[derive(Clone, Copy)]
struct Cutting {
    shape: (usize, usize, usize),
    config: Tcgen05Config,
    every_schedule: bool,
}

const fn cutting(
    shape: (usize, usize, usize),
    [step, stages, ctas]: [u32; 3],
    divided: bool,
) -> Cutting {
    Cutting {
        shape,
        config: Tcgen05Config {
            step,
            stages,
            ctas,
            divided,
        },
        every_schedule: false,
    }
}

/// Small launches that between them do everything that a config can ask for.
const CUTTINGS: &[Cutting] = &[
    // A ring that goes round more than once; rows past M; a last step that is shorter; a scale that half exists.
    cutting((40, 1056, 1), [256, 2, 1], false).under_every_schedule(),
    // One step of half an atom.
    cutting((3, 32, 1), [256, 2, 1], true),
    // A tile that three share.
    cutting((127, 1312, 1), [256, 2, 3], true).under_every_schedule(),
    // CTAs that begin and end within tiles, of several batches.
    cutting((130, 544, 2), [256, 2, 5], true).under_every_schedule(),
    // A CTA with the end of a tile, a whole one, and the begin of another; sums of both places in use again.
    cutting((500, 288, 1), [256, 2, 3], true),
    cutting((600, 96, 2), [256, 3, 2], false),
    // Steps of 512: a last one with one piece, and with both.
    cutting((129, 1248, 1), [512, 2, 2], true),
    cutting((16, 1984, 1), [512, 2, 1], false),
    // A CTA for each step, and CTAs for which there is none; more stages than steps.
    cutting((64, 1280, 1), [256, 4, 9], true),
    // Parts that are added in two goes.
    cutting((20, 1792, 1), [256, 2, 7], true),
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
        let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
        Case::new(shape, data, ScaleLayout::Tiled128x4, 7)
    }

    /// Exact and full-range data; the attributes that make no kernel are dealt out in turn.
    fn check(&self, simulator: &Simulator, n: usize, turn: &mut usize) {
        for data in [Data::Integers, Data::FullRange] {
            *turn += 1;
            let (turn, seed) = (*turn, *turn as u64);
            let case = Case {
                padded: turn % 3 == 0,
                vector_layout: ScaleLayout::Tiled128x4,
                ..self.case(n, data).dealt(turn)
            };
            let operands = Arc::new(Operands::new(&case));
            let those = match self.every_schedule && data == Data::Integers && n < 10 {
                true => schedules(seed),
                false => few(seed)[turn / 3 % 3..][..1].to_vec(),
            };
            let bits = those
                .iter()
                .map(|options| simulator.run(&operands, self.config, turn / 4 % 2 == 0, options));
            let bits: Vec<_> = bits.collect();
            assert!(bits.iter().all(|of| *of == bits[0]), "other bits");
        }
    }
}

/// Each of the cuttings with `each` of these numbers of vectors, in turn.
fn sweep(simulator: &Simulator, vectors: &[usize], each: usize) {
    let mut turn = vectors[0]; // other combinations with other numbers
    for (i, cutting) in CUTTINGS.iter().enumerate() {
        for n in vectors.iter().cycle().skip(i * each).take(each) {
            cutting.check(simulator, *n, &mut turn);
        }
    }
}

fn vectors_of_every_entry_point() {
    let simulator = Simulator::new(ARCH);
    let mut turn = 0;
    for n in [17, 40, 64, 100, 128] {
        cutting((35, 608, 1), [256, 2, 2], true).check(&simulator, n, &mut turn);
    }
}

/// More vectors than a pass takes: their scales lie in a second row of atoms.
fn several_passes() {
    let simulator = Simulator::new(ARCH);
    for (turn, n) in [129, 150].into_iter().enumerate() {
        let cutting = cutting((19, 352, 2), [256, 2, 3], true);
        let case = Case {
            padded: turn == 0,
            vector_alpha: true,
            ..cutting.case(n, [Data::Integers, Data::FullRange][turn])
        };
        let options = &few(turn as u64)[turn];
        check_passes(&simulator, &case, cutting.config, turn == 0, options);
    }
}

/// The contest's shapes, and its benchmarks' with their full K and fewer rows and batches, up to so many weights, with the
/// default config.
fn contest(most: usize) {
    let simulator = Simulator::new(ARCH);
    let full_k = [(256, 16384, 1), (256, 7168, 2), (256, 2048, 2)];
    let vectors = [1, 3, 8, 16, 17, 64, 128];
    let shapes = CONTEST_TESTS.iter().copied().chain(full_k);
    let of = |&(m, k, l): &(usize, usize, usize)| m * k * l <= most;
    for (i, (m, k, l)) in shapes.filter(of).enumerate() {
        // Many vectors take long: with fewer rows.
        let n = vectors[i % vectors.len()];
        let m = if n > 8 { m.min(130) } else { m };
        let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
        for data in [Data::Integers, Data::FullRange] {
            let case = Case {
                padded: i % 2 == 0,
                ..Case::new(shape, data, ScaleLayout::Tiled128x4, i as u64)
            };
            let default = simulator.job(&case, false, |job| Kernel::Tcgen05.default_config(job));
            let config = default.expect("a default");
            simulator.check(&case, config, i % 2 == 1, &few(i as u64)[i % 3]);
        }
    }
}

/// Every cutting with every entry point, which between them execute every instruction and take every branch both ways.
fn every_config() {
    let simulator = Simulator::new(ARCH);
    for n in [1, 3, 8, 16, 17, 32, 33, 61, 64, 65, 100, 128] {
        sweep(&simulator, &[n], 1);
    }
    // Types of output with and without factors, of every entry point.
    for (i, n) in [16, 32, 64, 128].into_iter().enumerate() {
        for (j, output) in FloatType::ALL.into_iter().enumerate() {
            for of in 0..8 {
                let [row_alpha, vector_alpha, divided] = [1, 2, 4].map(|bit| of & bit != 0);
                let cutting = cutting((130, 288, 1), [256, 2, 3], divided);
                let case = Case {
                    output,
                    row_alpha,
                    vector_alpha,
                    ..cutting.case(n, Data::Integers)
                };
                let options = &few((i + j) as u64)[(i + j) % 3];
                simulator.check(&case, cutting.config, of % 3 == 0, options);
            }
        }
    }
    simulator.demand_coverage(cannot_be);
}

/// Lines of what was not executed that no launch needs to have otherwise.
fn cannot_be(line: &str) -> bool {
    let own = include_str!("../../../csrc/kernels/gemv_tcgen05.cuh");
    if let Some(at) = source_line(line, "gemv_tcgen05.cuh", own) {
        // Whether a loop has anything to do: there is a stage, a piece, an atom, a step, a vector and a CTA at least. Of
        // pieces nvcc asks where it first reads how many there are.
        let of_pieces = ["(p.pieces *", "const Stage<kN> stage(p)", "rows = p.n;"];
        let asks =
            at.trim_start().starts_with("for (") || of_pieces.iter().any(|of| at.contains(of));
        return line.contains("never taken") && asks;
    }
    let mbarrier = include_str!("../../../csrc/arch/mbarrier.cuh");
    // Whether a wait has to try again is the schedule's choice, and of some entry point it may never have.
    source_line(line, "mbarrier.cuh", mbarrier)
        .is_some_and(|at| line.contains("never taken") && at.contains("while (!mbarrier_try_wait"))
}

/// Configs that nobody thought of: for changes of the kernel.
fn random_configs() {
    let simulator = Simulator::new(ARCH);
    for seed in 0..60 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let (m, n, k) = (rng.usize(1..400), rng.usize(1..=70), 32 * rng.usize(1..=40));
        let sizes = [256 * rng.u32(1..=2), rng.u32(2..=5), rng.u32(1..=8)];
        let cutting = cutting((m, k, rng.usize(1..=2)), sizes, rng.bool());
        if simulator.takes(&cutting.case(n, Data::Integers), cutting.config) {
            cutting.check(&simulator, n, &mut rng.usize(..99));
        }
    }
}

/// [`rank_order::check`], a step a CTA.
fn sums_in_the_order_of_k() {
    let simulator = Simulator::new(ARCH);
    rank_order::check(100, |problem, ctas| {
        let case = Case::new(problem.shape, Data::FullRange, ScaleLayout::Tiled128x4, 9);
        let operands = Arc::new(Operands::of(&case, problem));
        let config = cutting((0, 0, 0), [256, 2, ctas as u32], true).config;
        simulator.run(&operands, config, false, &few(1)[1])
    });
}

/// Calls that follow each other on one workspace, of which nobody writes zeros to it in between; and where its front is not
/// zeros, a tile is never whole.
fn launches_on_one_workspace() {
    let cutting = cutting((130, 800, 1), [256, 2, 3], true);
    let operands = Arc::new(Operands::new(&cutting.case(5, Data::FullRange)));
    let mut loaded = Loaded::new(&operands, ARCH);
    let config = Config::from(cutting.config);
    let gpu = Simulator::new(ARCH).gpu;
    let plan = loaded.plan(config, &gpu, true);
    let launch = launches(&plan.launches()[0]).expect("a launch").remove(0);
    let program = &ptx::entry(&launch.kernel, ARCH).program;
    let case = &operands.case;
    let mut bits: Option<Vec<u8>> = None;
    for options in schedules(3) {
        let ran = loaded.memory.launch(program, &launch, &options);
        ran.expect("it runs");
        let roundings = config.roundings(&case.shape, case.activation);
        assert_eq!(loaded.difference(roundings), None);
        let of_run = loaded.memory.output().to_vec();
        assert!(*bits.get_or_insert_with(|| of_run.clone()) == of_run);
    }
}

/// A launch in a chain, of six K steps of one tile, by so many CTAs.
fn six_steps(stages: u32, ctas: u32, chained: bool) -> (Loaded, ptx_sim::Launch) {
    let cutting = cutting((128, 6 * 256, 1), [256, stages, ctas], true);
    let operands = Operands::new(&cutting.case(2, Data::Integers));
    let mut loaded = Loaded::new(&Arc::new(operands), ARCH);
    let gpu = Simulator::new(ARCH).gpu;
    let plan = loaded.plan(cutting.config.into(), &gpu, chained);
    let launch = launches(&plan.launches()[0]).expect("a launch").remove(0);
    (loaded, launch)
}

fn traced(loaded: &mut Loaded, launch: &ptx_sim::Launch, options: &Options) -> Trace {
    let program = &ptx::entry(&launch.kernel, ARCH).program;
    let trace = loaded.memory.traced(program, launch, options);
    let trace = trace.expect("it runs");
    assert_eq!(loaded.difference(0), None);
    trace
}

/// The grid before ends as late as it can.
fn late() -> Options {
    options(Policy::Fair, Timing::Lazy)
}

/// Before the grid before has ended, the weights of the first stages are loaded, and nothing else is.
fn loads_before_the_wait() {
    for stages in [2, 4] {
        let (mut loaded, launch) = six_steps(stages, 1, true);
        let trace = traced(&mut loaded, &launch, &late());
        let waits = trace.slices.iter();
        let ended = waits
            .filter(|s| s.kind == Kind::Wait && s.name == "griddepcontrol.wait")
            .map(|s| s.end)
            .min()
            .expect("it waits for the grid before");
        let copies = trace.slices.iter().filter(|s| s.kind == Kind::Copy);
        let before = copies.filter(|s| s.start < ended).count();
        // Codes and scales.
        assert_eq!(before, 2 * stages as usize, "{stages} stages");
    }
}

/// Behind a kernel that lets it start early and allocates tensor memory late, and in front of one that
/// allocates before it waits, the order of three instructions decides whether all of them hang.
fn order_around_the_allocation() {
    const WAIT: &str = "griddepcontrol.wait;";
    const START: &str = "griddepcontrol.launch_dependents;";
    const ALLOC: &str = "tcgen05.alloc";
    let ptx = ptx::unit("gemv_tcgen05", ARCH);
    let run = |ptx: &str| {
        let (mut loaded, launch) = six_steps(2, 1, true);
        let program: &Program = &Entry::new(ptx, &launch.kernel).program;
        loaded.memory.launch(program, &launch, &late()).map(|_| ())
    };
    run(&ptx).expect("the kernel runs");
    // Without the wait in front of each allocation: other warps wait for the grid before as well.
    let mut parts = ptx.split(ALLOC).map(str::to_string).collect::<Vec<_>>();
    let last = parts.len() - 1;
    assert!(last > 0, "the kernel allocates");
    for part in &mut parts[..last] {
        let at = part.rfind(WAIT).expect("a wait in front of the allocation");
        part.replace_range(at..at + WAIT.len(), "");
    }
    let early_start = ptx.replace(ALLOC, &format!("{START}\n{ALLOC}"));
    for wrong in [parts.join(ALLOC), early_start] {
        let error = run(&wrong).expect_err("a deadlock");
        assert!(matches!(error, SimError::Deadlock(_)), "{error}");
    }
}

const STAGES: u32 = 3;

/// The picture of the pipeline in docs/. Drawn again with `PIPELINE_WRITE=1 cargo test --test kernels picture`.
/// Another nvcc may order instructions otherwise, so the committed file is not compared.
fn picture() {
    // The first of two CTAs that share two tiles has a whole one.
    let cutting = cutting((256, 5 * 256, 1), [256, STAGES, 2], true);
    let operands = Operands::new(&cutting.case(2, Data::Integers));
    let mut loaded = Loaded::new(&Arc::new(operands), ARCH);
    let gpu = Simulator::new(ARCH).gpu;
    let config = Tcgen05Config {
        ctas: 3,
        ..cutting.config
    };
    let plan = loaded.plan(config.into(), &gpu, false);
    let launch = launches(&plan.launches()[0]).expect("a launch").remove(0);
    let trace = traced(&mut loaded, &launch, &options(Policy::Fair, Timing::Random));
    let title = "gemv_tcgen05: one of three CTAs that share two tiles, three stages";
    let svg = picture::tcgen05(&trace, STAGES, title).expect("a picture");
    for name in ["load", "multiply", "full[0]", "empty[2]", "sum full[0]"] {
        assert!(svg.contains(name), "{name}");
    }
    if std::env::var_os("PIPELINE_WRITE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tensor-core-pipeline.svg");
        std::fs::write(path, svg).expect("the picture can be written");
    }
}

/// Launches that between them take every branch: tails of M and K, batches, rings and sums that are used several times,
/// tiles whole and divided, steps of both lengths, dependent launch, alphas, all types of output; for `n` vectors.
fn runs(n: usize) -> Vec<Run> {
    let cuttings = [
        cutting((20, 1312, 1), [256, 2, 6], true),
        cutting((300, 288, 2), [256, 3, 5], true),
        cutting((129, 1760, 1), [512, 2, 3], true),
        cutting((500, 96, 1), [256, 2, 1], false),
    ];
    let run = |(i, cutting): (usize, Cutting)| {
        let case = Case {
            output: FloatType::ALL[i % 3],
            row_alpha: i % 2 == 1,
            vector_alpha: i == 1,
            padded: i == 2,
            ..cutting.case(n, Data::Integers)
        };
        Run::new(ARCH, &case, cutting.config, i == 1, Uninitialised::Error)
    };
    cuttings.into_iter().enumerate().map(run).collect()
}

fn faults_of(name: &str, n: usize, pick: fn(&Mutant) -> bool) {
    let subject = subject(name, ARCH, runs(n), mutate::schedules(3), pick);
    demand(&subject, include_str!("equivalent_faults.txt"), 60);
}

fn wrong_plans() {
    let harmless = crate::words![Params:
        dependent = "a run has one grid",
        tmem_columns + 4 = PADDING,
        arrivals = "other counters are zeros too",
        partial = "all parts move alike, and what is behind them has room",
        epilogue.alpha + 4 = PADDING,
        epilogue.output_type + 4 = PADDING,
    ];
    let slack = [(
        At::Shared,
        "what aligns the ring is enough for the worst start",
    )];
    let harmless = [&harmless[..], &slack].concat();
    demand_right_plans(ARCH, &[runs(5), runs(16)].concat(), &harmless);
}
