//! The tiles and clusters of tma in the simulator, compared with the f64 reference, and its launches in chains.

use std::sync::Arc;

use nvfp4_gemv::kernel::Config;
use nvfp4_gemv::kernel::params::nvfp4_tile_params as Params;
use nvfp4_gemv::{Dims, FloatType, ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::{CONTEST_TESTS, Problem};
use ptx_sim::mutate::{self, Mutant};
use ptx_sim::trace::Kind;
use ptx_sim::{Options, Policy, Timing, Trace, Uninitialised};

use crate::support::faults::{At, PADDING, Run, demand, demand_right_plans, subject};
use crate::support::operands::{Case, Data, Operands, numbers};
use crate::support::passes::check_passes;
use crate::support::ptx;
use crate::support::schedules::{few, options, schedules};
use crate::support::sim::{Loaded, Simulator, launches};

/// One of the two.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// Its unit, and its name in the list of faults.
    pub(crate) name: &'static str,
    pub(crate) arch: &'static str,
    /// A number of stages that is no power of two, or the next one that it has.
    pub(crate) three_stages: u32,
    /// The most vectors of the faults' runs: those of one of its entry points.
    pub(crate) vectors: usize,
    /// The config of so many stages and CTAs of a cluster.
    pub(crate) config: fn(u32, u32) -> Config,
}

/// Vectors are rows 0..N of 128, the others garbage.
fn case(shape: Shape, data: Data, seed: u64) -> Case {
    Case {
        padded: true,
        ..Case::new(shape, data, ScaleLayout::Tiled128x4, seed)
    }
}

fn both(shape: Shape, seed: u64) -> [Case; 2] {
    [Data::Integers, Data::FullRange].map(|data| case(shape, data, seed))
}

/// Shapes with tails of every kind, batches, and every number of vectors that matters: every pair of M
/// and K with three pairs of L and N, which take turns, and a ring that is used again with all of them.
fn odd_shapes() -> Vec<Shape> {
    const L_N: [(usize, usize); 8] = [
        (1, 1),
        (2, 2),
        (1, 4),
        (3, 7),
        (1, 8),
        (1, 16),
        (2, 1),
        (3, 2),
    ];
    let mut shapes = Vec::new();
    let mut turn = L_N.iter().cycle();
    for m in [1, 127, 129, 300] {
        for k in [32, 64, 96, 256, 4128] {
            for &(l, n) in turn.by_ref().take(3) {
                // Long rows of many tiles take the time of all the others together.
                let l = if m * k > 300_000 { 1 } else { l };
                shapes.push(Shape::new(Dims { m, n, k, l }).unwrap());
            }
        }
    }
    shapes.extend(L_N.map(|(l, n)| {
        Shape::new(Dims {
            m: 129,
            n,
            k: 1056,
            l,
        })
        .unwrap()
    }));
    shapes
}

impl Kernel {
    fn default(&self, simulator: &Simulator, case: &Case) -> Config {
        let kernel = (self.config)(2, 1).kernel();
        simulator.job(case, false, |job| {
            kernel.default_config(job).expect("a default")
        })
    }

    /// Configs that a shape takes: the default, the smallest ring, clusters of all sizes.
    fn configs(&self, simulator: &Simulator, case: &Case) -> Vec<(Config, bool)> {
        let mut configs = vec![(self.default(simulator, case), false)];
        for (stages, cluster) in [(2, 1), (4, 2), (2, 3), (2, 8)] {
            configs.push(((self.config)(stages, cluster), cluster % 2 == 0));
        }
        configs.retain(|&(config, _)| simulator.takes(case, config));
        configs
    }

    /// One in `every` of the shapes; the whole sweep executes every instruction.
    pub(crate) fn odd_shapes(&self, every: usize) {
        let simulator = Simulator::new(self.arch);
        for (i, shape) in odd_shapes().into_iter().enumerate().step_by(every) {
            for case in both(shape, i as u64) {
                let operands = Arc::new(Operands::new(&case));
                let schedules = few(i as u64);
                let configs = self.configs(&simulator, &case).into_iter().enumerate();
                for (c, (config, chained)) in configs {
                    // In the whole sweep the default under all of them; the other configs take turns.
                    let one = (i + c) % schedules.len();
                    let those = if c == 0 && every == 1 {
                        0..schedules.len()
                    } else {
                        one..one + 1
                    };
                    for options in &schedules[those] {
                        simulator.run(&operands, config, chained, options);
                    }
                }
            }
        }
        // Alphas and output types.
        let mut turn = 0;
        for n in [1, 2, 3, 5] {
            let shape = Shape::new(Dims {
                m: 130,
                n,
                k: 1120,
                l: 2,
            })
            .expect("a shape");
            for output in FloatType::ALL {
                for alphas in [false, true] {
                    turn += 1;
                    if turn % every != 0 {
                        continue;
                    }
                    let case = Case {
                        output,
                        row_alpha: alphas,
                        vector_alpha: alphas,
                        ..case(shape, Data::FullRange, 1)
                    };
                    let config = self.default(&simulator, &case);
                    simulator.check(&case, config, false, &few(3)[1]);
                }
            }
        }
        if every == 1 {
            self.many_vectors_in(&simulator);
            simulator.demand_coverage(|_| false);
        }
    }

    /// The contest's shapes, and its benchmarks' with their full K and fewer rows and batches; or the small ones of
    /// them. Under so many schedules where they are small enough.
    pub(crate) fn contest_shapes(&self, large: bool, most: usize) {
        const SMALL: usize = 1 << 20;
        let simulator = Simulator::new(self.arch);
        let full_k = [(256, 16384, 1), (256, 7168, 2), (256, 2048, 2)];
        let shapes = CONTEST_TESTS.iter().copied().chain(full_k);
        for (i, (m, k, l)) in shapes.enumerate() {
            if !large && m * k * l > SMALL {
                continue;
            }
            let shape = Shape::new(Dims { m, n: 1, k, l }).expect("a shape");
            for case in both(shape, i as u64) {
                let operands = Arc::new(Operands::new(&case));
                let config = self.default(&simulator, &case);
                let schedules = few(i as u64);
                let those = if most > 1 && m * k * l < 8 << 20 {
                    &schedules[..]
                } else {
                    &schedules[1..2]
                };
                for options in those {
                    simulator.run(&operands, config, false, options);
                }
            }
        }
    }

    /// Every schedule on shapes small enough for it.
    pub(crate) fn schedules(&self, seeds: u64) {
        let simulator = Simulator::new(self.arch);
        for seed in 0..seeds {
            let n = 1 + seed as usize % 3;
            let shape = Shape::new(Dims {
                m: 1 + 37 * (seed as usize % 5),
                n,
                k: 1056,
                l: 1,
            })
            .expect("a shape");
            let case = both(shape, seed)[seed as usize % 2];
            let operands = Arc::new(Operands::new(&case));
            let config = (self.config)(2, 1 + seed as u32 % 2);
            for options in schedules(seed) {
                simulator.run(&operands, config, false, &options);
            }
        }
    }

    /// Many vectors, whose scales lie in all words of lines, and in a second row of atoms.
    pub(crate) fn many_vectors(&self) {
        self.many_vectors_in(&Simulator::new(self.arch));
    }

    fn many_vectors_in(&self, simulator: &Simulator) {
        for (turn, (m, n, k, l)) in [(130, 40, 352, 2), (3, 40, 1056, 1), (5, 130, 96, 2)]
            .into_iter()
            .enumerate()
        {
            let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
            for case in both(shape, 20 + turn as u64) {
                let case = Case {
                    padded: turn != 1,
                    vector_alpha: true,
                    ..case
                };
                let config = (self.config)(2, if k > 256 { 2 } else { 1 });
                let options = &few(turn as u64)[turn % 3];
                check_passes(simulator, &case, config, turn == 0, options);
            }
        }
    }

    /// [`sums_in_rank_order`], a K step a CTA.
    pub(crate) fn sums_in_rank_order(&self) {
        let simulator = Simulator::new(self.arch);
        sums_in_rank_order(130, |problem, cluster| {
            let case = case(problem.shape, Data::FullRange, 9);
            let operands = Arc::new(Operands::of(&case, problem));
            let config = (self.config)(2, cluster as u32);
            simulator.run(&operands, config, false, &few(1)[1])
        });
    }

    /// A launch in a chain, of six K steps of one tile.
    fn six_steps(&self, stages: u32) -> (Loaded, ptx_sim::Launch) {
        let shape = Shape::matrix(128, 6 * 256).expect("a shape");
        let operands = Operands::new(&case(shape, Data::Integers, 1));
        self.launched(operands, stages, 1, true)
    }

    fn launched(
        &self,
        operands: Operands,
        stages: u32,
        cluster: u32,
        chained: bool,
    ) -> (Loaded, ptx_sim::Launch) {
        let mut loaded = Loaded::new(&Arc::new(operands), self.arch);
        let gpu = Simulator::new(self.arch).gpu;
        let plan = loaded.plan((self.config)(stages, cluster), &gpu, chained);
        let launch = launches(&plan.launches()[0]).expect("a valid launch");
        (loaded, launch.into_iter().next().expect("a launch"))
    }

    /// Before the grid before has ended, the weights of the first stages are loaded, and nothing else is.
    pub(crate) fn loads_before_the_wait(&self) {
        for stages in [2, 4] {
            let (mut loaded, launch) = self.six_steps(stages);
            let trace = self.traced(&mut loaded, &launch, &late());
            assert_eq!(loaded.difference(0), None);
            let waits = trace.slices.iter();
            let ended = waits
                .filter(|s| s.kind == Kind::Wait && s.name == "griddepcontrol.wait")
                .map(|s| s.end)
                .min()
                .expect("it waits for the grid before");
            let before = trace
                .slices
                .iter()
                .filter(|s| s.kind == Kind::Copy && s.start < ended)
                .count();
            // Codes and scales.
            assert_eq!(before, 2 * stages as usize, "{stages} stages");
        }
    }

    fn traced(&self, loaded: &mut Loaded, launch: &ptx_sim::Launch, options: &Options) -> Trace {
        let program = &ptx::entry(&launch.kernel, self.arch).program;
        loaded
            .memory
            .traced(program, launch, options)
            .expect("it runs")
    }

    /// Launches that between them take every branch: tails of M and K, batches, rings that are used several
    /// times, also with a number of stages that is no power of two, clusters, dependent launch, alphas, all
    /// types of output; and a pass after many.
    fn runs(&self) -> Vec<Run> {
        let run = |(m, n, k, l), stages, cluster, chained, output, vector_alpha| {
            // A call of many ends with a pass of two.
            let n = if n > 32 { n } else { self.vectors.min(n) };
            let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
            let case = Case {
                output,
                row_alpha: vector_alpha,
                vector_alpha,
                ..case(shape, Data::Integers, 7)
            };
            let config = (self.config)(stages, cluster);
            Run::new(self.arch, &case, config, chained, Uninitialised::Error)
        };
        let three = self.three_stages;
        vec![
            run((130, 2, 2784, 1), 2, 2, true, FloatType::F32, true),
            run((127, 16, 96, 2), 2, 1, false, FloatType::Bf16, false),
            run((300, 5, 2304, 2), three, 2, false, FloatType::F16, true),
            // Scales in the second word of their lines.
            run((3, 34, 672, 1), 2, 1, false, FloatType::F32, false),
        ]
    }

    pub(crate) fn faults(&self, pick: fn(&Mutant) -> bool) {
        let schedules = mutate::schedules(3);
        let subject = subject(self.name, self.arch, self.runs(), schedules, pick);
        demand(&subject, include_str!("equivalent_faults.txt"), 60);
    }

    pub(crate) fn wrong_plans(&self, harmless: &[(At, &'static str)]) {
        let both = crate::words![Params:
            dependent = "a run has one grid",
            scale_column + 4 = PADDING,
            epilogue.alpha + 4 = PADDING,
            epilogue.output_type + 4 = PADDING,
        ];
        let slack = [(
            At::Shared,
            "what aligns the ring is enough for the worst start",
        )];
        let harmless = [&both[..], &slack, harmless].concat();
        demand_right_plans(self.arch, &self.runs(), &harmless);
    }
}

/// The grid before ends as late as it can.
fn late() -> Options {
    options(Policy::Fair, Timing::Lazy)
}

/// The sum of a cluster's CTAs is their partial sums in the order of ranks, to the bit: each one's step of K computed alone
/// gives its partial sum. `run` computes a problem of `m` rows, with so many CTAs in a cluster, and returns f32 outputs.
pub(crate) fn sums_in_rank_order(m: usize, run: impl Fn(&Problem, usize) -> Vec<u8>) {
    const CLUSTER: usize = 5;
    let shape = Shape::new(Dims {
        m,
        n: 2,
        k: CLUSTER * 256 - 64,
        l: 1,
    })
    .expect("a shape");
    let problem = Problem {
        alpha: None,
        ..Problem::full_range(shape, 9)
    };
    let run = |problem: &Problem, cluster: usize| -> Vec<f32> {
        let output = run(problem, cluster);
        numbers(&output, FloatType::F32).map(|y| y as f32).collect()
    };
    let whole = run(&problem, CLUSTER);
    let parts: Vec<Vec<f32>> = (0..CLUSTER)
        .map(|rank| run(&part(&problem, rank..rank + 1), 1))
        .collect();
    let sum = |i: usize, ranks: &mut dyn Iterator<Item = usize>| {
        ranks.fold(0.0f32, |sum, rank| sum + parts[rank][i])
    };
    let mut reversed_differs = false;
    for (i, &y) in whole.iter().enumerate() {
        let in_order = sum(i, &mut (0..CLUSTER));
        assert_eq!(y, in_order, "element {i}");
        reversed_differs |= sum(i, &mut (0..CLUSTER).rev()) != in_order;
    }
    assert!(reversed_differs, "these data do not show the order");
}

/// The K steps `steps` of a problem, without its alpha.
pub(crate) fn part(problem: &Problem, steps: std::ops::Range<usize>) -> Problem {
    const STEP: usize = 256;
    let shape = &problem.shape;
    let rows = |all: &[u8], row: usize, unit: usize| -> Vec<u8> {
        let range = steps.start * STEP / unit..(steps.end * STEP / unit).min(row);
        all.chunks(row)
            .flat_map(|r| r[range.clone()].to_vec())
            .collect()
    };
    let (codes, blocks) = (shape.row_code_bytes(), shape.blocks());
    let k = (steps.end * STEP).min(shape.k()) - steps.start * STEP;
    Problem {
        shape: Shape::new(Dims {
            m: shape.m(),
            n: shape.n(),
            k,
            l: shape.l(),
        })
        .unwrap(),
        a: rows(&problem.a, codes, 2),
        sfa: rows(&problem.sfa, blocks, 16),
        b: rows(&problem.b, codes, 2),
        sfb: rows(&problem.sfb, blocks, 16),
        alpha: None,
        c: None,
    }
}
