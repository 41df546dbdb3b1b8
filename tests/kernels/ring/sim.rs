//! `gemv_ring`: every kind of config, compared with the f64 reference.

use std::sync::Arc;

use nvfp4_gemv::kernel::RingConfig;
use nvfp4_gemv::kernel::params::nvfp4_ring_params as Params;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};
use ptx_sim::mutate;
use ptx_sim::{Options, Policy, Timing, Uninitialised};

use crate::direct::sim::many;
use crate::support::faults::{
    ANY_OPERAND, At, NO_BIAS, PADDING, Run, demand, demand_right_plans, no_arithmetic, subject,
};
use crate::support::operands::{Case, Data, Operands};
use crate::support::passes::check_passes;
use crate::support::schedules::{few, options};
use crate::support::sim::{Simulator, dealt, is_of_factors, source_line};
use crate::support::sized;

crate::trials! {
    simulator:
        hopper, many_vectors,
        blackwell = || short_sweep(&Simulator::new("100a"), 7),
        slow_producer = || starve_producers(&Simulator::new("90a"), 3),
        faults_two_stages_a_unit = || faults(1, 2),
        faults_one_stage_a_unit = || faults(2, 4),
        faults_counted, faults_select, select, wrong_plans, wrong_counted_plans, vectors_of_every_magnitude;
    long: every_config_on_every_kernel, random_configs, faults_of_16_bit_vectors, faults_of_16_bit_vectors_counted;
}

/// Many vectors, with a pass for each. If there are several batches, the rows of a batch are whole units, or whole
/// atoms.
fn many_vectors() {
    let simulator = Simulator::new("90a");
    for (i, case) in many(Activation::Nvfp4, (128, 256)).into_iter().enumerate() {
        let shape = case.shape;
        let m = if shape.l() > 1 { shape.m() } else { 5 };
        let case = Case {
            shape: sized(m, shape.n(), shape.k(), shape.l()),
            ..case
        };
        let config = RingConfig {
            chunks: 1,
            groups: 2,
            rows: 4,
            depth: 1,
            cached: i % 2 == 0,
            ctas: 1 + i as u32 % 2,
            ..RingConfig::DEFAULT
        };
        // Units with rows past M leave gaps in the ring.
        let options = Options {
            uninitialised: Uninitialised::Stale(i as u64),
            ..few(i as u64)[i % 3].clone()
        };
        check_passes(&simulator, &case, config, i % 3 == 0, &options);
    }
}

/// A problem, and a config for it.
#[derive(Clone, Copy)]
struct Cutting {
    shape: Shape,
    layout: ScaleLayout,
    config: RingConfig,
    activation: Activation,
    chained: bool,
    every_schedule: bool,
}

fn cutting(
    (m, k, l): (usize, usize, usize),
    layout: ScaleLayout,
    (groups, depth, granule, ctas): (u32, u32, u32, u32),
) -> Cutting {
    Cutting {
        shape: sized(m, 1, k, l),
        layout,
        config: RingConfig {
            chunks: 1,
            groups,
            rows: 4,
            depth,
            granule,
            ctas,
            ..RingConfig::DEFAULT
        },
        activation: Activation::Nvfp4,
        chained: depth == 2,
        every_schedule: false,
    }
}

impl Cutting {
    /// The cutting for another kernel.
    fn on(mut self, (activation, chunks, rows, cached): Entry) -> Self {
        self.activation = activation;
        self.config.chunks = chunks;
        self.config.rows = rows;
        self.config.cached = cached;
        self
    }

    /// The cutting with so many eighths of the units counted.
    fn counted(mut self, eighths: u32) -> Self {
        self.config.counted = eighths;
        self
    }

    fn case(&self, data: Data) -> Case {
        Case {
            activation: self.activation,
            ..Case::new(self.shape, data, self.layout, 7)
        }
    }

    /// Rule for memory that nobody has written. Units with rows of another CTA, or past M, leave gaps in the ring, and
    /// the kernel reads and multiplies these gaps. Without gaps, nothing may be read that was not written.
    fn uninitialised(&self, seed: u64) -> Uninitialised {
        let unit = if self.layout == ScaleLayout::Tiled128x4 {
            128
        } else {
            4
        };
        let rows = self.shape.m() * self.shape.l();
        let own = rows / 4 - rows / 4 * self.config.counted as usize / 8;
        let whole = self.config.granule == 4 || own.is_multiple_of(self.config.ctas as usize);
        if whole && rows.is_multiple_of(unit) {
            Uninitialised::Error
        } else {
            Uninitialised::Stale(seed)
        }
    }
}

/// Small launches that between them do everything that a config can ask for.
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

/// Small launches whose units are counted, in part.
fn counted_cuttings() -> Vec<Cutting> {
    use ScaleLayout::{Linear, Tiled128x4};
    vec![
        // CTAs that take units side by side, with as few of their own as there may be.
        Cutting {
            every_schedule: true,
            ..cutting((96, 512, 1), Linear, (2, 1, 1, 2)).counted(4)
        },
        Cutting {
            every_schedule: true,
            ..cutting((256, 256, 1), Tiled128x4, (2, 2, 1, 4)).counted(4)
        },
        // A unit that ends behind the last row; several warps a row, and CTAs that end within units.
        cutting((101, 2304, 1), Linear, (2, 2, 1, 2)).counted(1),
        cutting((251, 512, 1), Tiled128x4, (3, 1, 1, 3)).counted(4),
        cutting((130, 1280, 1), Tiled128x4, (1, 1, 4, 2)).counted(7),
        // Batches that end among counted units.
        cutting((40, 256, 3), Linear, (2, 1, 1, 2)).counted(4),
        cutting((40, 2304, 3), Linear, (1, 1, 1, 1)).counted(4),
        cutting((128, 256, 3), Tiled128x4, (2, 1, 4, 2)).counted(7),
        // More groups than producers; one CTA that takes all; fewer counted units than takers, and none.
        cutting((256, 256, 1), Linear, (7, 1, 1, 1)).counted(4),
        cutting((60, 256, 1), Linear, (1, 2, 1, 1)).counted(6),
        cutting((72, 256, 1), Linear, (1, 1, 1, 5)).counted(1),
        cutting((15, 256, 1), Linear, (1, 1, 1, 1)).counted(1),
        cutting((24, 16384, 1), Linear, (1, 1, 1, 1)).counted(3),
        // More rows than consumer threads: a CTA's own, and others.
        cutting((161, 256, 1), Linear, (1, 1, 1, 1)).counted(4),
        cutting((250, 256, 1), Tiled128x4, (1, 2, 1, 1)).counted(4),
        cutting((200, 256, 1), Tiled128x4, (1, 1, 4, 1)).counted(1),
    ]
}

/// A kernel: type of vectors, chunks, rows of a stage, whether L1 keeps block scales.
type Entry = (Activation, u32, u32, bool);

/// All kernels; and the kernels that count units.
fn entries() -> [Vec<Entry>; 2] {
    let (mut dealing, mut counting) = (Vec::new(), Vec::new());
    for activation in [Activation::Nvfp4, Activation::F16, Activation::Bf16] {
        for cached in [true, false] {
            for (chunks, rows) in [(1, 4), (1, 2), (2, 4), (2, 2), (2, 1)] {
                // 16-bit vectors leave registers for two rows of two chunks, and a matrix instruction has two.
                if activation != Activation::Nvfp4 && chunks == 2 && rows != 2 {
                    continue;
                }
                dealing.push((activation, chunks, rows, cached));
                if chunks == 2 && rows <= 2 {
                    counting.push((activation, chunks, rows, cached));
                }
            }
        }
    }
    [dealing, counting]
}

/// Runs a cutting on exact and full-range data. The attributes that select no kernel are dealt out in turn. Nothing
/// runs if too many warps share a row.
fn check(simulator: &Simulator, cutting: &Cutting, turn: &mut usize) {
    if !simulator.takes(&cutting.case(Data::Integers), cutting.config) {
        return;
    }
    for data in Data::BOTH {
        *turn += 1;
        let operands = Arc::new(Operands::new(&cutting.case(data).dealt(*turn)));
        let all = cutting.every_schedule && data == Data::Integers;
        for options in dealt(*turn, all) {
            let options = Options {
                uninitialised: cutting.uninitialised(*turn as u64),
                ..options
            };
            simulator.run(&operands, cutting.config, cutting.chained, &options);
        }
    }
}

/// Every config on every kernel.
fn sweep(simulator: &Simulator) {
    let mut turn = 0;
    let [dealing, counting] = entries();
    for kernel in dealing {
        for cutting in cuttings() {
            check(simulator, &cutting.on(kernel), &mut turn);
        }
    }
    for kernel in counting {
        for cutting in counted_cuttings() {
            let cutting = cutting.on(kernel);
            assert!(simulator.takes(&cutting.case(Data::Integers), cutting.config));
            check(simulator, &cutting, &mut turn);
        }
    }
}

/// Every config on one kernel or another.
fn short_sweep(simulator: &Simulator, first: usize) {
    let mut turn = first;
    let [dealing, counting] = entries();
    for (i, cutting) in cuttings().into_iter().enumerate() {
        let kernel = dealing[(5 * i + first) % dealing.len()];
        check(simulator, &cutting.on(kernel), &mut turn);
    }
    for (i, cutting) in counted_cuttings().into_iter().enumerate() {
        let kernel = counting[(i + first) % counting.len()];
        check(simulator, &cutting.on(kernel), &mut turn);
    }
}

fn hopper() {
    let simulator = Simulator::new("90a");
    short_sweep(&simulator, 0);
}

fn every_config_on_every_kernel() {
    let simulator = Simulator::new("90a");
    sweep(&simulator);
    starve_producers(&simulator, 30);
    simulator.demand_coverage(cannot_be);
    sweep(&Simulator::new("100a"));
}

/// Starves the producer. Waits for barriers then give up now and then, and are tried again: all of the waits, after so
/// many tries.
fn starve_producers(simulator: &Simulator, seeds: u64) {
    let few_rows = cutting((48, 256, 1), ScaleLayout::Linear, (1, 1, 4, 1));
    let [dealing, counting] = entries();
    let dealt = dealing.into_iter().map(|kernel| few_rows.on(kernel));
    let counted = counting.into_iter();
    let counted = counted.map(|kernel| few_rows.on(kernel).counted(4));
    for cutting in dealt.chain(counted) {
        let operands = Arc::new(Operands::new(&cutting.case(Data::Integers)));
        for seed in 0..seeds {
            let starved = Policy::Starve(8 * seed); // warp 0 of 8, the producer
            let options = options(starved, Timing::Random);
            simulator.run(&operands, cutting.config, false, &options);
        }
    }
}

/// Whether no small launch can do better for a line of the coverage report, by the source of the line:
/// - Vectors that are not NVFP4 have no factors.
/// - The branch past a loop that always has work, although nvcc does not know: a stage has rows and bytes, a
///   group has stages and, if units are counted, units.
/// - The loop over rows of which a CTA has more than consumer threads: no row lies before the CTA's first row,
///   which is among the first four. There are no sums of more than three warps a row, because that takes rows for
///   as many warps' threads. Configs of sixteen warps a row run nvcc's other copy of that code, for the first rows.
fn cannot_be(line: &str) -> bool {
    const LOOPS: [&str; 4] = [
        "while (units.more(work))",
        "for (uint32_t r = s; r < s + kRows; ++r) bytes",
        "end = to + stage_bytes; to != end;",
        "i < p.depth * kStages<kRows>;",
    ];
    const MORE_ROWS: &str = "part[w] = w < p.row_warps ? all[w * p.sums_pitch + i]";
    if !line.contains("_nvfp4_") && is_of_factors(line) {
        return true;
    }
    let source = include_str!("../../../csrc/kernels/gemv_ring.cuh");
    let Some(at) = source_line(line, "gemv_ring.cuh", source) else {
        return false;
    };
    const BEFORE: [&str; 2] = [
        "place + r >= begin && place + r < end",
        "return mine && row(p, place, r)",
    ];
    let past = LOOPS.iter().chain(&BEFORE).any(|l| at.contains(l));
    at.contains(MORE_ROWS) || past && line.contains("never taken")
}

/// f16 and bf16 vectors over their whole ranges: small elements alone, and small elements that no large element hides.
fn vectors_of_every_magnitude() {
    let simulator = Simulator::new("90a");
    let ranges = [
        (Activation::F16, [(0, 31, 40), (0, 3, 1), (12, 18, 1)]),
        (Activation::Bf16, [(0, 230, 200), (0, 24, 1), (0, 24, 200)]),
    ];
    for (activation, ranges) in ranges {
        for (chunks, rows) in [(1, 4), (2, 2)] {
            let problem = cutting((36, 1024, 1), ScaleLayout::Linear, (2, 1, 4, 2));
            let cutting = problem.on((activation, chunks, rows, true));
            for (seed, (least, end, one_of)) in (0..).zip(ranges) {
                let case = Case {
                    seed,
                    ..cutting.case(Data::Exponents(least, end, one_of))
                };
                simulator.check(&case, cutting.config, false, &few(seed)[0]);
            }
        }
    }
}

/// Configs that nobody thought of: for changes of the kernel.
fn random_configs() {
    let [dealing, counting] = entries();
    for simulator in ["90a", "100a"].map(Simulator::new) {
        let mut left = 200;
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
            let cutting = match rng.bool() {
                true => cutting
                    .on(counting[rng.usize(..counting.len())])
                    .counted(rng.u32(1..=7)),
                false => cutting.on(dealing[rng.usize(..dealing.len())]),
            };
            if !simulator.takes(&cutting.case(Data::Integers), cutting.config) {
                continue;
            }
            check(&simulator, &cutting, &mut rng.usize(..99));
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
}

/// Cuttings for faults: rings that go round several times, with one stage and with several stages of a group. Groups
/// share a producer, and warps share a row. CTAs begin and end within units and have several batches. Both layouts;
/// more rows than threads.
fn cases(chunks: u32) -> [Cutting; 5] {
    use ScaleLayout::{Linear, Tiled128x4};
    [
        cutting((56, 1280 * chunks as usize, 1), Linear, (2, 2, 4, 1)),
        cutting((20, 256, 3), Linear, (2, 1, 1, 3)),
        cutting((130, 256, 1), Tiled128x4, (1, 3, 1, 6)),
        cutting((164, 256, 1), Linear, (5, 1, 4, 1)),
        cutting((40, 256, 1), Linear, (1, 2, 4, 1)),
    ]
}

impl Cutting {
    /// The run of this cutting on a kernel, for faults. The index `i` deals out layouts, outputs and factors.
    fn faulty(self, i: usize, kernel: Entry) -> Run {
        let cutting = self.on(kernel);
        let case = cutting.case(Data::Integers).for_faults(i);
        let (config, chained) = (cutting.config, cutting.chained);
        Run::new("90a", &case, config, chained, self.uninitialised(7))
    }
}

fn runs(activation: Activation, chunks: u32, rows: u32) -> Vec<Run> {
    let cases = cases(chunks).into_iter().enumerate();
    cases
        .map(|(i, case)| case.faulty(i, (activation, chunks, rows, true)))
        .collect()
}

/// Runs for faults with counted units: side by side, in several batches, in both layouts, with a last unit that is cut,
/// and with more groups than producers.
fn counted_runs(activation: Activation) -> Vec<Run> {
    use ScaleLayout::{Linear, Tiled128x4};
    let cases = [
        cutting((96, 512, 1), Linear, (2, 1, 1, 2)).counted(4),
        cutting((40, 256, 3), Linear, (2, 1, 1, 2)).counted(4),
        cutting((250, 256, 1), Tiled128x4, (2, 2, 1, 4)).counted(4),
        cutting((101, 2304, 1), Linear, (2, 2, 1, 2)).counted(1),
        cutting((130, 256, 1), Linear, (5, 1, 1, 1)).counted(3),
    ];
    let cases = cases.into_iter().enumerate();
    cases
        .map(|(i, case)| case.faulty(i, (activation, 2, 2, true)))
        .collect()
}

fn faults(chunks: u32, rows: u32) {
    faults_of("gemv_ring", runs(Activation::Nvfp4, chunks, rows));
}

fn faults_counted() {
    faults_of("gemv_ring_counted", counted_runs(Activation::Nvfp4));
}

/// Batches that select their matrix, batches without one among them: CTAs that begin and end within units, a CTA for
/// each batch, rows that are no whole units.
fn select_cuttings() -> [Cutting; 4] {
    use ScaleLayout::{Linear, Tiled128x4};
    [
        cutting((20, 256, 5), Linear, (2, 2, 1, 15)),
        cutting((130, 1280, 4), Tiled128x4, (1, 2, 1, 24)),
        cutting((9, 512, 7), Linear, (4, 1, 4, 1)),
        cutting((3, 256, 1), Linear, (1, 1, 1, 1)),
    ]
}

fn selecting(cutting: &Cutting, i: usize) -> Case {
    let case = Case {
        select: true,
        late: i.is_multiple_of(2),
        row_alpha: true,
        output: FloatType::ALL[i % 3],
        ..cutting.case(Data::BOTH[i % 2]).with_additions(i)
    };
    match cutting.shape.l() {
        1 => case,
        _ => [[case; 4], case.with_unknown_ids()][i % 3 % 2][i % 4],
    }
}

fn select() {
    let simulator = Simulator::new("90a");
    let mut i = 0;
    for kernel in entries().concat() {
        for cutting in select_cuttings() {
            let cutting = cutting.on(kernel);
            let options = Options {
                uninitialised: Uninitialised::Stale(i as u64),
                ..few(i as u64)[i % 3].clone()
            };
            simulator.check(
                &selecting(&cutting, i),
                cutting.config,
                i % 2 == 0,
                &options,
            );
            i += 1;
        }
    }
}

fn faults_select() {
    let runs = select_cuttings()
        .into_iter()
        .enumerate()
        .map(|(i, cutting)| {
            let cutting = cutting.on((Activation::Nvfp4, 1, 2, true));
            let case = Case {
                data: Data::Integers,
                // Places that are not stored stay NaN, and would not be missed with another id.
                unknown: (i < 3).then_some(-1),
                ..selecting(&cutting, i)
            };
            Run::new(
                "90a",
                &case,
                cutting.config,
                i % 2 == 0,
                cutting.uninitialised(7),
            )
        });
    faults_of("gemv_ring_select", runs.collect());
}

fn faults_of_16_bit_vectors() {
    faults_of("gemv_ring", runs(Activation::F16, 1, 4));
}

fn faults_of_16_bit_vectors_counted() {
    faults_of("gemv_ring_counted", counted_runs(Activation::Bf16));
}

fn faults_of(name: &str, runs: Vec<Run>) {
    let subject = subject(name, "90a", runs, mutate::schedules(3), no_arithmetic);
    demand(&subject, include_str!("equivalent_faults.txt"), 60);
}

fn wrong_plans() {
    const NOT_COUNTED: &str = "units are not counted";
    let harmless = crate::words![Params:
        places = NOT_COUNTED,
        dealt = "granules end there too, and rows are counted out by `rows`",
        counters = NOT_COUNTED,
        counters + 4 = NOT_COUNTED,
        turns = NOT_COUNTED,
        announced_at = NOT_COUNTED,
    ];
    wrong_plans_of(&runs(Activation::Nvfp4, 1, 2), &harmless);
}

fn wrong_counted_plans() {
    let harmless = crate::words![Params:
        granules_left = "what CTAs have of their own ends with `dealt`, however it is divided",
        aligned = "a unit in front of the CTA's first one has no rows",
        sums_at = "behind sums lie words for a CTA's own units, which nobody reads",
        announced_at = "in front lies the room of a unit that no CTA has",
        counters = "what lies behind a counter is zeros, too",
    ];
    wrong_plans_of(&counted_runs(Activation::Nvfp4), &harmless);
}

/// Demands that wrong words are noticed, except `harmless` words and words that no run of the kernel notices.
fn wrong_plans_of(runs: &[Run], harmless: &[(At, &str)]) {
    const SHORT: &str = "bytes of rows and scales are counted in 32 bits";
    const NO_SELECT: &str = "of kernels whose batches select their matrix";
    const NO_ON_READ: &str = "of kernels that quantise the vector when they read it";
    const FEW: &str = "few numbers are divided: a larger factor gives the same quotients";
    let in_all = crate::words![Params:
        bars_at + 4 = PADDING,
        row_warps_magic = FEW,
        dependent = "a run has one grid",
        m_magic = FEW,
        sums_pitch = "sums have room for a unit that no CTA has here",
        weights.scale_steps + 4 = SHORT,
        weights.row_bytes + 4 = SHORT,
        epilogue.output_vector = "the one vector of a pass is its first",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        batches_more = NO_SELECT,
        fewer_per_cta = NO_SELECT,
        fewer_left = NO_SELECT,
        quantized_at = NO_ON_READ,
        on_read.copies + 4 = PADDING,
        ; unread in weights, vectors, select, on_read
    ];
    demand_right_plans("90a", runs, &[&in_all, harmless].concat(), 1);
}
