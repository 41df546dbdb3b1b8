//! `gemv_tcgen05`: the tiles of `tile`, on tensor cores.

use nvfp4_gemv::kernel::{Config, Tcgen05Config};
use nvfp4_gemv_simulate::picture;
use ptx_sim::{Policy, SimError, Timing};

use crate::support::faults::{no_arithmetic, share};
use crate::support::ptx::{self, Entry};
use crate::support::schedules::options;
use crate::tile::Kernel;

crate::trials! {
    simulator:
        odd_shapes = || KERNEL.odd_shapes(5),
        contest_shapes = || KERNEL.contest_shapes(false, 1),
        schedules = || KERNEL.schedules(10),
        sums_in_rank_order = || KERNEL.sums_in_rank_order(),
        many_vectors = || KERNEL.many_vectors(),
        faults = || KERNEL.faults(|mutant| no_arithmetic(mutant) && share(mutant, 6)),
        wrong_plans = || KERNEL.wrong_plans(&[]),
        loads_before_the_wait = || KERNEL.loads_before_the_wait(),
        order_around_the_allocation, picture;
    long:
        all_odd_shapes = || KERNEL.odd_shapes(1),
        all_contest_shapes = || KERNEL.contest_shapes(true, 3),
        all_schedules = || KERNEL.schedules(200),
        all_faults = || KERNEL.faults(no_arithmetic);
}

const KERNEL: Kernel = Kernel {
    name: "gemv_tcgen05",
    arch: ptx::BLACKWELL,
    three_stages: 3,
    vectors: 16,
    config: |stages, cluster| Config::from(Tcgen05Config { stages, cluster }),
};

/// Behind a kernel that lets it start early and allocates tensor memory late, and in front of one that
/// allocates before it waits, the order of three instructions decides whether all of them hang.
fn order_around_the_allocation() {
    const WAIT: &str = "griddepcontrol.wait;";
    const START: &str = "griddepcontrol.launch_dependents;";
    const ALLOC: &str = "tcgen05.alloc";
    let ptx = ptx::unit(KERNEL.name, KERNEL.arch);
    let run = |ptx: &str| {
        let entry = Entry::new(ptx, KERNEL.name);
        KERNEL.run_changed(&entry.program)
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
    let trace = KERNEL.trace(STAGES, &options(Policy::Fair, Timing::Random));
    let title = "gemv_tcgen05: one CTA of a cluster of two, three stages";
    let svg = picture::tcgen05(&trace, STAGES, title).expect("a picture");
    for name in ["load", "multiply", "full[0]", "empty[2]", "done"] {
        assert!(svg.contains(name), "{name}");
    }
    if std::env::var_os("PIPELINE_WRITE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tensor-core-pipeline.svg");
        std::fs::write(path, svg).expect("the picture can be written");
    }
}
