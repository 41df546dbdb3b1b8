//! The picture of the tensor-core kernel's pipeline in docs/.
//!
//! Drawn again with `PIPELINE_WRITE=1 cargo test --test sim picture`. Another nvcc may order
//! instructions otherwise, so the committed file is not compared.

use std::collections::BTreeMap;

use nvfp4_gemv::Shape;
use nvfp4_gemv::problem::Problem;
use ptx_sim::trace::draw::{DrawOptions, draw};
use ptx_sim::trace::{DEFAULT_LIMIT, TrackKind};
use ptx_sim::{Options, Policy, Program, Timing, Trace};

use super::launch::{Comparison, Extras, Run};
use super::{Kernels, TENSOR_CORE, config};

const STAGES: u32 = 3;

#[test]
fn picture_of_the_tensor_core_pipeline() {
    let Some(kernels) = Kernels::tensor_core() else {
        return;
    };
    // Two CTAs share six K steps of a tile each.
    let problem = Problem::integers(Shape::new(128, 2, 12 * 256, 1).unwrap(), 1);
    let run = Run::new(
        &kernels.module,
        &problem,
        config(TENSOR_CORE, STAGES, 2),
        Extras::default(),
    );
    let (launch, entry) = run.launches().remove(0);
    let program = Program::new(&kernels.module, &entry).unwrap();
    let options = Options {
        policy: Policy::Fair,
        timing: Timing::Random,
        ..Options::default()
    };
    let trace = run
        .traced(&program, &launch, &options, DEFAULT_LIMIT)
        .unwrap();
    run.compare(Comparison::Exact, "picture");
    let svg = draw(
        &trace,
        &DrawOptions {
            title: Some("gemv_tcgen05: one CTA of a cluster of two, three stages".into()),
            ctas: vec![0],
            warps: vec![0, 4, 5],
            labels: labels(&trace),
            ..DrawOptions::default()
        },
    )
    .unwrap();
    for name in ["load", "multiply", "full[0]", "empty[2]", "done"] {
        assert!(svg.contains(name), "{name}");
    }
    if std::env::var_os("PIPELINE_WRITE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tensor-core-pipeline.svg");
        std::fs::write(path, svg).unwrap();
    }
}

/// Barriers in the order of `tile::Barriers`, then `done`.
fn labels(trace: &Trace) -> BTreeMap<String, String> {
    let mut barriers: Vec<u64> = trace
        .tracks
        .iter()
        .filter(|track| track.kind == TrackKind::Barrier)
        .map(|track| track.index)
        .collect();
    barriers.sort_unstable();
    barriers.dedup();
    assert_eq!(barriers.len(), 2 * STAGES as usize + 1);
    let full = (0..STAGES).map(|s| format!("full[{s}]"));
    let empty = (0..STAGES).map(|s| format!("empty[{s}]"));
    let names = full.chain(empty).chain(["done".into()]);
    let mut labels: BTreeMap<String, String> = barriers
        .iter()
        .map(|at| format!("{at:#x}"))
        .zip(names)
        .collect();
    for (warp, name) in [(0, "store"), (4, "load"), (5, "multiply")] {
        labels.insert(format!("warp {warp}"), name.into());
    }
    labels
}
