//! Faults planted in the tiled kernels' PTX, and in their tensor maps: the simulator notices each, or
//! `equivalent_faults.txt` says why there is nothing to notice. ptx-sim/docs/planted-faults.md explains how.

use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::{FloatType, Shape, TileConfig, TileKernel};
use ptx_sim::mutate::{
    Check, Kernel, Kind, Known, Mutant, Planted, Ran, Score, Subject, schedules,
};
use ptx_sim::{Options, SimError};

use super::ptx;
use super::tiled::launch::{Comparison, Extras, Run};

const LIST: &str = include_str!("equivalent_faults.txt");

/// A launch of a subject.
struct Case {
    /// M, N, K, L.
    shape: (usize, usize, usize, usize),
    stages: u32,
    cluster: u32,
    dependent: bool,
    extras: Extras,
}

/// Launches that between them take every branch: tails of M and K, batches, rings that are used several
/// times, also with a number of stages that is no power of two, clusters, dependent launch, alphas, all
/// types of output.
fn cases(kernel: TileKernel) -> [Case; 3] {
    let three = match kernel {
        TileKernel::CudaCore => 4, // an even number
        TileKernel::TensorCore { .. } => 3,
    };
    let case = |shape, stages, cluster, dependent, element, vector_alpha| Case {
        shape,
        stages,
        cluster,
        dependent,
        extras: Extras {
            element,
            vector_alpha,
        },
    };
    [
        case((130, 2, 2784, 1), 2, 2, true, FloatType::F32, true),
        case((127, 16, 96, 2), 2, 1, false, FloatType::Bf16, false),
        case((300, 5, 2304, 2), three, 2, false, FloatType::F16, false),
    ]
}

fn subject(
    name: &str,
    unit: &str,
    arch: &str,
    tile: TileKernel,
    vectors: usize,
    pick: fn(&Mutant) -> bool,
) -> Option<Subject> {
    let module = ptx::compile(unit, arch)?;
    let mut kernel = None;
    let mut host = None;
    let mut launches = Vec::new();
    for case in cases(tile) {
        let (m, n, k, l) = case.shape;
        let shape = Shape::new(m, n.min(vectors), k, l).unwrap();
        let mut problem = Problem::integers(shape, 7);
        if case.dependent {
            // Powers of two, so that results stay exact.
            problem.alpha = Some((0..m).map(|row| [1.0, -2.0, 0.5][row % 3]).collect());
        }
        // Kept until the test ends: the checks may run on any thread at any time.
        let problem: &'static Problem = Box::leak(Box::new(problem));
        let config = TileConfig {
            kernel: tile,
            stages: case.stages,
            cluster: case.cluster,
            dependent: case.dependent,
        };
        let extras = case.extras;
        let run = Run::new(&module, problem, config, extras);
        let (launch, entry) = run.launches().remove(0);
        let kernel = kernel.get_or_insert_with(|| Kernel::new(&module, &entry).expect(&entry));
        assert_eq!(launch.kernel, entry);
        host = Some(launch);
        let module = kernel.module().clone();
        let check = move |planted: &Planted, options: &Options| -> Result<Ran, SimError> {
            let run = Run::new(&module, problem, config, extras);
            let (launch, _) = run.launches().remove(0);
            let launch = planted.launch(launch)?;
            let report = run.launch(planted.program(), &launch, options)?;
            let wrong = run.difference(Comparison::Exact);
            Ok(Ran { report, wrong })
        };
        launches.push((format!("{shape}"), Box::new(check) as Box<Check<'static>>));
    }
    Some(Subject {
        name: name.into(),
        kernel: kernel?,
        host,
        launches,
        schedules: schedules(3),
        pick,
    })
}

/// Every fault is noticed or in the list.
pub(crate) fn demand(subject: Option<Subject>, list: &str) {
    let Some(subject) = subject else { return };
    let known = Known::parse(list).unwrap();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let findings = subject.run(&known, 3, threads).unwrap();
    println!("{}", Score::new(&subject.name, &findings, &known));
    let problems = subject.disagreements(&findings, &known);
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
    assert!(findings.len() >= 60, "only {} faults", findings.len());
}

/// Everything but arithmetic, of which the kernels have hundreds to thousands of instructions: the exact and
/// the random data of the other tests are there for that.
pub(crate) fn no_arithmetic(mutant: &Mutant) -> bool {
    use Kind::*;
    !matches!(
        mutant.kind,
        Guard | Compare | LoopBound | Offset | Select | Selector | Shift | Constant | Operation
    )
}

#[test]
fn tensor_core() {
    demand(
        subject(
            "gemv_tcgen05",
            "gemv_tcgen05",
            "compute_100a",
            TileKernel::TENSOR_CORE,
            16,
            no_arithmetic,
        ),
        LIST,
    );
}

#[test]
fn cuda_core() {
    demand(
        subject(
            "gemv_cuda_core_tma",
            "gemv_cuda_core_tma",
            "compute_90a",
            TileKernel::CudaCore,
            1,
            no_arithmetic,
        ),
        LIST,
    );
}
