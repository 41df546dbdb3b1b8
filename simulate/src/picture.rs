//! Pictures of what the warps of a kernel do, and of what they wait for.

use std::collections::BTreeMap;

use ptx_sim::Trace;
use ptx_sim::trace::TrackKind;
use ptx_sim::trace::draw::{DrawError, DrawOptions, draw};

/// The first CTA of `gemv_tcgen05` with a ring of so many stages: the warps that load and multiply and the first one
/// that stores, and the barriers between them.
///
/// # Errors
/// A trace that holds nothing of it.
pub fn tcgen05(trace: &Trace, stages: u32, title: &str) -> Result<String, DrawError> {
    let how = DrawOptions {
        title: Some(title.into()),
        ctas: vec![0],
        warps: vec![0, 4, 5],
        labels: labels(trace, stages),
        ..DrawOptions::default()
    };
    draw(trace, &how)
}

/// Barriers in the order of the kernel's `Shared`.
fn labels(trace: &Trace, stages: u32) -> BTreeMap<String, String> {
    let mut barriers: Vec<u64> = trace
        .tracks
        .iter()
        .filter(|track| track.kind == TrackKind::Barrier)
        .map(|track| track.index)
        .collect();
    barriers.sort_unstable();
    barriers.dedup();
    assert_eq!(barriers.len(), 2 * (stages as usize + 2));
    let full = (0..stages).map(|s| format!("full[{s}]"));
    let empty = (0..stages).map(|s| format!("empty[{s}]"));
    let sums = ["sum full", "sum empty"].map(|of| [0, 1].map(|s| format!("{of}[{s}]")));
    let names = full.chain(empty).chain(sums.concat());
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
