//! The tiled kernels, `gemv_tcgen05` and `gemv_cuda_core_tma`: launched as `csrc/launch/tiles.cuh`
//! does, compared with the f64 reference.

mod grid_dependency;
pub(crate) mod launch;
mod picture;

use nvfp4_gemv::problem::{CONTEST_TESTS, Problem};
use nvfp4_gemv::{FloatType, Shape, TileConfig, TileKernel, TileTarget};
use ptx_sim::{Module, Options};

use super::executed::Executed;
use super::ptx;
use super::schedules::{few, schedules};
use launch::{Comparison, Extras, Run};

const TENSOR_CORE: TileKernel = TileKernel::TENSOR_CORE;

const DEVICE: TileTarget = TileTarget {
    multiprocessors: 148,
    shared_bytes: 227 << 10,
};

/// One architecture's kernels.
struct Kernels {
    module: Module,
    executed: Executed,
}

impl Kernels {
    fn new(unit: &str, arch: &str) -> Option<Self> {
        Some(Self {
            module: ptx::compile(unit, arch)?,
            executed: Executed::default(),
        })
    }

    fn tensor_core() -> Option<Self> {
        Self::new("gemv_tcgen05", "compute_100a")
    }

    fn cuda_core(arch: &str) -> Option<Self> {
        Self::new("gemv_cuda_core_tma", arch)
    }

    fn run(&mut self, problem: &Problem, config: TileConfig, data: Comparison, options: &Options) {
        self.run_with(problem, config, Extras::default(), data, options);
    }

    fn run_with(
        &mut self,
        problem: &Problem,
        config: TileConfig,
        extras: Extras,
        data: Comparison,
        options: &Options,
    ) -> Vec<f64> {
        let run = Run::new(&self.module, problem, config, extras);
        let context = format!("{config:?}, {extras:?}, {options:?}");
        for (launch, entry) in run.launches() {
            let (program, counters) = self.executed.kernel(&self.module, &entry);
            let report = run
                .launch(program, &launch, options)
                .unwrap_or_else(|error| panic!("{:?}, {context}: {error}", problem.shape));
            counters.merge(&report.coverage.counters);
        }
        run.compare(data, &context);
        run.output()
    }
}

fn config(kernel: TileKernel, stages: u32, cluster: u32) -> TileConfig {
    TileConfig {
        kernel,
        stages,
        cluster,
        dependent: false,
    }
}

fn both(shape: Shape, seed: u64) -> [(Problem, Comparison); 2] {
    [
        (Problem::integers(shape, seed), Comparison::Exact),
        (Problem::full_range(shape, seed), Comparison::Bound),
    ]
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
                shapes.push(Shape::new(m, n, k, l).unwrap());
            }
        }
    }
    shapes.extend(L_N.map(|(l, n)| Shape::new(129, n, 1056, l).unwrap()));
    shapes
}

/// Legal cuts of a shape: the default, the smallest ring, clusters of all sizes.
fn cuts(kernel: TileKernel, shape: &Shape) -> Vec<TileConfig> {
    let mut cuts: Vec<TileConfig> = TileConfig::for_problem(kernel, shape, &DEVICE)
        .into_iter()
        .collect();
    for (stages, cluster) in [(2, 1), (4, 2), (2, 3), (2, 8)] {
        let dependent = cluster % 2 == 0;
        cuts.push(TileConfig {
            dependent,
            ..config(kernel, stages, cluster)
        });
    }
    cuts.retain(|c| c.is_legal(shape, &DEVICE));
    cuts
}

fn sweep_odd_shapes(kernels: &mut Kernels, kernel: TileKernel) {
    for (i, shape) in odd_shapes().into_iter().enumerate() {
        for (problem, data) in both(shape, i as u64) {
            let schedules = few(i as u64);
            for (c, config) in cuts(kernel, &shape).into_iter().enumerate() {
                // The default under all of them, the other cuts take turns.
                let one = (i + c) % schedules.len();
                let those = if c == 0 {
                    0..schedules.len()
                } else {
                    one..one + 1
                };
                for options in &schedules[those] {
                    kernels.run(&problem, config, data, options);
                }
            }
        }
    }
    // Alphas and output types.
    for n in [1, 2, 3, 5] {
        let shape = Shape::new(130, n, 1120, 2).unwrap();
        for element in [FloatType::F16, FloatType::Bf16, FloatType::F32] {
            for (vector_alpha, problem) in [
                (false, Problem::full_range(shape, 1)),
                (true, Problem::full_range(shape, 1).with_row_alpha(2)),
            ] {
                let extras = Extras {
                    element,
                    vector_alpha,
                };
                let config = TileConfig::for_problem(kernel, &shape, &DEVICE).unwrap();
                let options = &few(3)[1];
                kernels.run_with(&problem, config, extras, Comparison::Bound, options);
            }
        }
    }
}

/// The contest's shapes, and its benchmarks' with their full K and fewer rows and batches.
fn sweep_contest_shapes(kernels: &mut Kernels, kernel: TileKernel) {
    let full_k = [(256, 16384, 1), (256, 7168, 2), (256, 2048, 2)];
    let shapes = CONTEST_TESTS.iter().copied().chain(full_k);
    for (i, (m, k, l)) in shapes.enumerate() {
        let shape = Shape::gemv(m, k, l).unwrap();
        for (problem, data) in both(shape, i as u64) {
            let config = TileConfig::for_problem(kernel, &shape, &DEVICE).unwrap();
            let schedules = few(i as u64);
            // The one large shape, and CUDA cores, under one of them.
            let all = kernel != TileKernel::CudaCore && m * k * l < 8 << 20;
            let those = if all {
                &schedules[..]
            } else {
                &schedules[1..2]
            };
            for options in those {
                kernels.run(&problem, config, data, options);
            }
        }
    }
}

/// Every schedule on shapes small enough for it.
fn sweep_schedules(kernels: &mut Kernels, kernel: TileKernel, seeds: u64) {
    for seed in 0..seeds {
        let n = 1 + seed as usize % 3;
        let shape = Shape::new(1 + 37 * (seed as usize % 5), n, 1056, 1).unwrap();
        let (problem, data) = &both(shape, seed)[seed as usize % 2];
        let cluster = 1 + seed as u32 % 2;
        for options in schedules(seed) {
            kernels.run(problem, config(kernel, 2, cluster), *data, &options);
        }
    }
}

/// The K steps `steps` of a problem, without its alpha.
fn part(problem: &Problem, steps: std::ops::Range<usize>) -> Problem {
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
        shape: Shape::new(shape.m(), shape.n(), k, shape.l()).unwrap(),
        a: rows(&problem.a, codes, 2),
        sfa: rows(&problem.sfa, blocks, 16),
        b: rows(&problem.b, codes, 2),
        sfb: rows(&problem.sfb, blocks, 16),
        alpha: None,
        c: None,
    }
}

/// The cluster's sum is the partial sums in the order of ranks, to the bit: each CTA's K step computed
/// alone gives its partial sum.
fn check_order(kernels: &mut Kernels, kernel: TileKernel) {
    const CLUSTER: usize = 5;
    let shape = Shape::new(130, 2, CLUSTER * 256 - 64, 1).unwrap();
    let problem = Problem {
        alpha: None,
        ..Problem::full_range(shape, 9)
    };
    let options = &few(1)[1];
    let extras = Extras::default();
    let whole = config(kernel, 2, CLUSTER as u32);
    let whole = kernels.run_with(&problem, whole, extras, Comparison::Bound, options);
    let parts: Vec<Vec<f64>> = (0..CLUSTER)
        .map(|rank| {
            let part = part(&problem, rank..rank + 1);
            kernels.run_with(
                &part,
                config(kernel, 2, 1),
                extras,
                Comparison::Bound,
                options,
            )
        })
        .collect();
    let sum = |i: usize, ranks: &mut dyn Iterator<Item = usize>| {
        ranks.fold(0.0f32, |sum, rank| sum + parts[rank][i] as f32)
    };
    let mut reversed_differs = false;
    for (i, y) in whole.iter().enumerate() {
        let in_order = sum(i, &mut (0..CLUSTER));
        assert_eq!(*y as f32, in_order, "element {i}");
        reversed_differs |= sum(i, &mut (0..CLUSTER).rev()) != in_order;
    }
    assert!(reversed_differs, "these data do not show the order");
}

#[test]
fn partial_sums_are_added_in_rank_order() {
    if let Some(mut kernels) = Kernels::tensor_core() {
        check_order(&mut kernels, TENSOR_CORE);
    }
    if let Some(mut kernels) = Kernels::cuda_core("compute_90a") {
        check_order(&mut kernels, TileKernel::CudaCore);
    }
}

#[test]
fn tensor_core_odd_shapes() {
    let Some(mut kernels) = Kernels::tensor_core() else {
        return;
    };
    sweep_odd_shapes(&mut kernels, TENSOR_CORE);
    assert_eq!(kernels.executed.unexecuted(), "");
}

#[test]
fn tensor_core_contest_shapes() {
    if let Some(mut kernels) = Kernels::tensor_core() {
        sweep_contest_shapes(&mut kernels, TENSOR_CORE);
    }
}

#[test]
fn tensor_core_schedules() {
    if let Some(mut kernels) = Kernels::tensor_core() {
        sweep_schedules(&mut kernels, TENSOR_CORE, 200);
    }
}

/// The other sizes of the matrix instruction.
#[test]
fn tensor_core_wider_instructions() {
    let Some(mut kernels) = Kernels::tensor_core() else {
        return;
    };
    for mma_n in [64, 128] {
        let kernel = TileKernel::TensorCore { mma_n };
        for (i, (m, n, k)) in [(129, 1, 96), (1, 16, 1056), (127, 7, 256)]
            .into_iter()
            .enumerate()
        {
            let shape = Shape::new(m, n, k, 2).unwrap();
            for (problem, data) in both(shape, i as u64) {
                for config in cuts(kernel, &shape) {
                    kernels.run(&problem, config, data, &few(i as u64)[1]);
                }
            }
        }
    }
}

#[test]
fn cuda_core_odd_shapes() {
    let Some(mut kernels) = Kernels::cuda_core("compute_90a") else {
        return;
    };
    sweep_odd_shapes(&mut kernels, TileKernel::CudaCore);
    assert_eq!(kernels.executed.unexecuted(), "");
}

#[test]
fn cuda_core_contest_shapes() {
    for arch in ["compute_90a", "compute_100a"] {
        if let Some(mut kernels) = Kernels::cuda_core(arch) {
            sweep_contest_shapes(&mut kernels, TileKernel::CudaCore);
        }
    }
}

#[test]
fn cuda_core_schedules() {
    if let Some(mut kernels) = Kernels::cuda_core("compute_90a") {
        sweep_schedules(&mut kernels, TileKernel::CudaCore, 50);
    }
}
