//! Programmatic dependent launch of the tiled kernels: what they do before the grid before them has
//! ended, and when they let the next one start. The tests of shapes and schedules launch some of their
//! cuts dependently as well.

use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::{Shape, TileConfig, TileKernel};
use ptx_sim::trace::{DEFAULT_LIMIT, Kind};
use ptx_sim::{Module, Options, Policy, Program, SimError, Timing};

use super::launch::{Comparison, Extras, Run};
use super::{Kernels, TENSOR_CORE, config};
use crate::ptx;

/// The grid before ends as late as it can.
fn late() -> Options {
    Options {
        policy: Policy::Fair,
        timing: Timing::Lazy,
        ..Options::default()
    }
}

fn dependent(kernel: TileKernel, stages: u32) -> TileConfig {
    TileConfig {
        dependent: true,
        ..config(kernel, stages, 1)
    }
}

/// Six K steps of one tile.
fn problem() -> Problem {
    Problem::integers(Shape::new(128, 1, 6 * 256, 1).unwrap(), 1)
}

/// The weights of the first stages are loaded before the grid before has ended, and nothing else is.
fn check_loads(kernels: &Kernels, kernel: TileKernel) {
    let problem = problem();
    for stages in [2, 4] {
        let run = Run::new(
            &kernels.module,
            &problem,
            dependent(kernel, stages),
            Extras::default(),
        );
        let (launch, entry) = run.launches().remove(0);
        let program = Program::new(&kernels.module, &entry).unwrap();
        let trace = run
            .traced(&program, &launch, &late(), DEFAULT_LIMIT)
            .unwrap();
        run.compare(Comparison::Exact, &entry);
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
        assert_eq!(before, 2 * stages as usize, "{entry}, {stages} stages");
    }
}

#[test]
fn weights_are_loaded_before_the_grid_before_has_ended() {
    if let Some(kernels) = Kernels::tensor_core() {
        check_loads(&kernels, TENSOR_CORE);
    }
    if let Some(kernels) = Kernels::cuda_core("compute_90a") {
        check_loads(&kernels, TileKernel::CudaCore);
    }
}

/// One run of the tensor-core kernel with its PTX changed.
fn run_changed(ptx: &str) -> Result<(), SimError> {
    let module = Module::parse(ptx).unwrap();
    let problem = problem();
    let run = Run::new(
        &module,
        &problem,
        dependent(TENSOR_CORE, 2),
        Extras::default(),
    );
    let (launch, entry) = run.launches().remove(0);
    let program = Program::new(&module, &entry).unwrap();
    run.launch(&program, &launch, &late()).map(|_| ())
}

/// Behind a kernel that lets it start early and allocates tensor memory late, and in front of one that
/// allocates before it waits, the order of three instructions decides whether all of them hang.
#[test]
fn the_order_around_the_allocation_matters() {
    const WAIT: &str = "griddepcontrol.wait;";
    const START: &str = "griddepcontrol.launch_dependents;";
    const ALLOC: &str = "tcgen05.alloc";
    let Some(ptx) = ptx::source("csrc/launch/gemv_tcgen05.cu", "compute_100a") else {
        return;
    };
    run_changed(&ptx).unwrap();
    // Without the wait in front of each allocation: other warps wait for the grid before as well.
    let mut parts = ptx.split(ALLOC).map(str::to_string).collect::<Vec<_>>();
    let last = parts.len() - 1;
    assert!(last > 0, "the kernels allocate");
    for part in &mut parts[..last] {
        let at = part.rfind(WAIT).expect("a wait in front of the allocation");
        part.replace_range(at..at + WAIT.len(), "");
    }
    let early_start = ptx.replace(ALLOC, &format!("{START}\n{ALLOC}"));
    for wrong in [parts.join(ALLOC), early_start] {
        let error = run_changed(&wrong).unwrap_err();
        assert!(matches!(error, SimError::Deadlock(_)), "{error}");
    }
}
