//! `gemv_tcgen05`: every kind of config, compared with the f64 reference.

use std::sync::Arc;

use nvfp4_gemv::kernel::{Config, Tcgen05Config};
use nvfp4_gemv::{FloatType, ScaleLayout};
use nvfp4_gemv_simulate::picture;
use ptx_sim::trace::Kind;
use ptx_sim::{Options, Policy, Program, SimError, Timing};

use crate::support::operands::{Case, Data, Operands};
use crate::support::passes::check_passes;
use crate::support::ptx::{self, Entry};
use crate::support::rank_order;
use crate::support::schedules::{few, options, schedules};
use crate::support::sim::{
    Loaded, Simulator, copies_before_the_wait, dealt, demand_picture, source_line,
};
use crate::support::sized;

crate::trials! {
    simulator:
        short_sweep = || sweep(&Simulator::new(ARCH), &[1, 3, 8, 16, 17], 1),
        vectors_of_every_entry_point, several_passes, vectors_of_digits,
        sums_in_the_order_of_k, launches_on_one_workspace, loads_before_the_wait, copies_of_a_step,
        order_around_the_allocation, picture;
    long:
        every_config, random_configs;
}

pub(super) const ARCH: &str = ptx::BLACKWELL;

/// A shape without N, and a config for it.
#[derive(Clone, Copy)]
pub(super) struct Cutting {
    shape: (usize, usize, usize),
    pub(super) config: Tcgen05Config,
    every_schedule: bool,
}

pub(super) const fn cutting(
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
            ..Tcgen05Config::DEFAULT
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
    // A tile that three CTAs share.
    cutting((127, 1312, 1), [256, 2, 3], true).under_every_schedule(),
    // CTAs that begin and end within tiles, of several batches.
    cutting((130, 544, 2), [256, 2, 5], true).under_every_schedule(),
    // A CTA with the end of a tile, a whole tile, and the begin of another. Both places of sums are in use again,
    // behind parts of tiles and behind whole tiles.
    cutting((600, 544, 1), [256, 2, 3], true),
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

    pub(super) fn case(&self, n: usize, data: Data) -> Case {
        let (m, k, l) = self.shape;
        Case::new(sized(m, n, k, l), data, ScaleLayout::Tiled128x4, 7)
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
                vector_layout: ScaleLayout::Tiled128x4,
                ..self.case(n, data).dealt(*turn)
            };
            let operands = Arc::new(Operands::new(&case));
            let all = self.every_schedule && data == Data::Integers && n < 10;
            let chained = (*turn / 4).is_multiple_of(2);
            let run = |options| simulator.run(&operands, self.config, chained, &options);
            let bits = dealt(*turn, all).into_iter().map(run);
            let bits: Vec<_> = bits.collect();
            assert!(bits.iter().all(|of| *of == bits[0]), "other bits");
        }
    }
}

/// Runs every cutting with `each` of these numbers of vectors, in turn.
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

/// Digits of vectors: those of one vector in two goes of 16 sums, of whole tiles and of divided ones; all entry points;
/// more vectors than a pass takes.
fn vectors_of_digits() {
    let simulator = Simulator::new(ARCH);
    let mut turn = 0;
    for (n, digits) in [(1, 3), (4, 4), (3, 5), (7, 3), (13, 5), (30, 4)] {
        for divided in [true, false] {
            let cutting = cutting((135, 608, 1), [256, 2, 2], divided);
            cutting.check_digits(&simulator, (n, digits), &mut turn);
        }
    }
    for (n, digits) in [(33, 4), (70, 2)] {
        cutting((19, 352, 2), [256, 2, 3], true).check_digits(&simulator, (n, digits), &mut turn);
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

/// The copies that a K step asks of the hardware. Beside 128 rows of weights and their scales, a step copies a row for
/// each vector, and from each of the four atoms the lines that the vectors have.
fn copies_of_a_step() {
    for (n, of_vectors) in [
        (1, &[128, 16, 16, 16, 16][..]),
        (8, &[1024, 128, 128, 128, 128]),
        (32, &[4096, 2048]),
        (100, &[12800, 2048]),
    ] {
        let cutting = cutting((128, 256, 1), [256, 2, 1], true);
        let case = cutting.case(n, Data::Integers);
        let (mut loaded, launch) = Loaded::with_launch(&case, ARCH, cutting.config, false);
        let trace = loaded.traced(ARCH, &launch, &late());
        let copies = trace.slices.iter().filter(|s| s.kind == Kind::Copy);
        let mut copies: Vec<_> = copies.collect();
        copies.sort_by_key(|copy| copy.start);
        let bytes = copies.iter().filter_map(|s| s.details["bytes"].as_u64());
        let bytes: Vec<u64> = bytes.collect();
        let expected = [&[128 * 128, 4 * 512][..], of_vectors].concat();
        assert_eq!(bytes, expected, "{n} vectors");
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
    // Vectors of digits, of every entry point.
    let mut turn = 0;
    for (n, digits) in [
        (3, 5),
        (4, 4),
        (7, 3),
        (8, 4),
        (12, 5),
        (21, 3),
        (25, 5),
        (32, 4),
    ] {
        for divided in [true, false] {
            let cutting = cutting((130, 288, 1), [256, 2, 3], divided);
            cutting.check_digits(&simulator, (n, digits), &mut turn);
        }
    }
    // A pass ends behind each of the sums that are taken at once, and digits of a vector end there or do not: in the code
    // of each entry point and type of output, for a tile of one CTA and for one that two share.
    for (i, rows_before) in [0, 16, 48, 112].into_iter().enumerate() {
        for (output, ctas) in FloatType::ALL
            .into_iter()
            .flat_map(|output| [(output, 1), (output, 2)])
        {
            let ends = (1..=16).map(|rows| (rows_before + rows, 1));
            let digits = [2, 3].map(|digits| ((rows_before + 16) / digits, digits));
            for (n, digits) in ends.chain(digits) {
                let cutting = cutting((3, 256 * ctas as usize, 1), [256, 2, ctas], true);
                let case = Case {
                    output,
                    digits,
                    ..cutting.case(n, Data::Integers)
                };
                simulator.check(&case, cutting.config, false, &few(i as u64)[i % 3]);
            }
        }
    }
    // Every wait has to try again, the waits for sums too: five tiles a CTA.
    let five = cutting((600, 96, 2), [256, 3, 2], false);
    for n in [16, 32, 64, 128] {
        let operands = Arc::new(Operands::new(&five.case(n, Data::Integers)));
        for options in schedules(n as u64) {
            simulator.run(&operands, five.config, true, &options);
        }
    }
    for (_, text, _) in NEVER_TAKEN {
        assert!(SOURCE.lines().any(|of| of.trim() == *text), "{text}");
    }
    simulator.demand_coverage(cannot_be);
}

/// Branches that no launch takes: entry points, the source line that the branch is compiled of, and the reason. Each
/// branch is where a loop would have nothing to do, or would go round again.
#[rustfmt::skip]
const NEVER_TAKEN: &[(&[&str], &str, &str)] = &[
    (ALL, "for (uint32_t s = 0; s < p.stages; ++s) {", "there are two stages or more"),
    (ALL, "for (uint32_t slot = 0; slot < p.stages; ++slot, stages += stage.bytes) {", "the same"),
    (ALL, "for (uint32_t piece = 0; piece < pieces; ++piece) {", "a step has an atom, so that it has a piece"),
    (&["n16", "n64"],
        "if (i != 0 && first + i >= uint32_t(p.n)) break;",
        "nvcc copies this for each type of the output where the epilogue has no operands: not every copy ends a pass"),
    (&["n16"], ": vectors(p.pieces * kWeightBytes),",
        "a step may have a piece: nvcc asks in clear_missing_vectors where it first reads how many"),
    (&["n32"], "vector_scales(p.pieces * (kWeightBytes + kVectorBytes + kScaleBytes)),", "the same"),
    (&["n64", "n128"], "const uint32_t lines = vector_lines(p), rows = p.n;", "the same"),
    (&["n32"], "for (uint32_t at = rows * kPieceBytes + threadIdx.x * kUnit; at < Stage<kN>::kVectorBytes;",
        "15 rows of 8 units at most are for 128 threads: it does not go round again"),
    (&["n64", "n128"], "for (uint32_t i = 0; i < copies; ++i) {",
        "more vectors than an atom has lines are one copy: it does not go round again"),
    (ALL, "for (uint32_t step = begin; step < part.end; ++step) {", "a part has a step"),
    (ALL, "for (uint32_t i = 0; i < atoms; ++i) {", "a step has an atom"),
    (ALL, "for (uint32_t first = 0; first < uint32_t(p.n); first += kTaken) {",
        "there is a vector; and n16 has 16 at most: it does not go round again"),
    (ALL, "for (uint32_t cta = sharers.first; cta <= sharers.last; cta += kAtOnce) {", "a tile has a CTA"),
];

const ALL: &[&str] = &["n16", "n32", "n64", "n128"];
const SOURCE: &str = include_str!("../../../csrc/kernels/gemv_tcgen05.cuh");

/// Whether a line of the coverage report is one of [`NEVER_TAKEN`].
fn cannot_be(line: &str) -> bool {
    let Some(at) = source_line(line, "gemv_tcgen05.cuh", SOURCE) else {
        return false;
    };
    NEVER_TAKEN.iter().any(|(entries, text, _)| {
        let of_entry =
            |entry: &&str| line.starts_with(&format!("gemv_tcgen05_{entry}: never taken"));
        at.trim() == *text && entries.iter().any(of_entry)
    })
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

/// Runs [`rank_order::check`] with one step for each CTA.
fn sums_in_the_order_of_k() {
    let simulator = Simulator::new(ARCH);
    rank_order::check(100, |problem, ctas| {
        let case = Case::new(problem.shape, Data::FullRange, ScaleLayout::Tiled128x4, 9);
        let operands = Arc::new(Operands::of(&case, problem));
        let config = cutting((0, 0, 0), [256, 2, ctas as u32], true).config;
        simulator.run(&operands, config, false, &few(1)[1])
    });
}

/// Calls that follow each other on one workspace. Nobody writes zeros to the workspace in between. If its front were
/// not zeros, a tile would never be whole.
fn launches_on_one_workspace() {
    let cutting = cutting((130, 800, 1), [256, 2, 3], true);
    let (case, config) = (
        cutting.case(5, Data::FullRange),
        Config::from(cutting.config),
    );
    let (mut loaded, launch) = Loaded::with_launch(&case, ARCH, config, true);
    let program = &ptx::entry(&launch.kernel, ARCH).program;
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

/// A launch of six K steps of one tile by so many CTAs, in a chain or alone.
fn six_steps(stages: u32, ctas: u32, chained: bool) -> (Loaded, ptx_sim::Launch) {
    let cutting = cutting((128, 6 * 256, 1), [256, stages, ctas], true);
    let case = cutting.case(2, Data::Integers);
    Loaded::with_launch(&case, ARCH, cutting.config, chained)
}

/// Options under which the grid before ends as late as it can.
fn late() -> Options {
    options(Policy::Fair, Timing::Lazy)
}

/// While the grid before runs, only the weights of the first stages are loaded, and nothing else is.
fn loads_before_the_wait() {
    for stages in [2, 4] {
        let (mut loaded, launch) = six_steps(stages, 1, true);
        let trace = loaded.traced(ARCH, &launch, &late());
        let before = copies_before_the_wait(&trace);
        // Codes and scales.
        assert_eq!(before, 2 * stages as usize, "{stages} stages");
    }
}

/// The order of three instructions decides whether three launches hang: the kernel, the launch before it, and the
/// launch behind it. The launch before lets the kernel start early and allocates tensor memory late. The launch behind
/// allocates before it waits.
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
    // The waits in front of the allocations are taken out: other warps wait for the grid before as well.
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

/// The picture of the pipeline in docs/.
fn picture() {
    // The first of two CTAs that share two tiles has a whole one.
    let cutting = cutting((256, 5 * 256, 1), [256, STAGES, 2], true);
    let config = Tcgen05Config {
        ctas: 3,
        ..cutting.config
    };
    let case = cutting.case(2, Data::Integers);
    let (mut loaded, launch) = Loaded::with_launch(&case, ARCH, config, false);
    let trace = loaded.traced(ARCH, &launch, &options(Policy::Fair, Timing::Random));
    let title = "gemv_tcgen05: one of three CTAs that share two tiles, three stages";
    let svg = picture::tcgen05(&trace, STAGES, title).expect("a picture");
    let texts = ["load", "multiply", "full[0]", "empty[2]", "sum full[0]"];
    demand_picture(&svg, &texts, "tensor-core-pipeline.svg");
}
