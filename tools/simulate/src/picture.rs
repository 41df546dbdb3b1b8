//! Pictures of what the warps of a kernel do, and of what they wait for.

use std::collections::{BTreeMap, BTreeSet};

use ptx_sim::Trace;
use ptx_sim::trace::TrackKind;
use ptx_sim::trace::draw::{DrawError, DrawOptions, draw};

/// The first CTA of `gemv_tcgen05` with a ring of so many stages: the warps that load and multiply and the first one
/// that stores, and the barriers between them.
///
/// # Errors
/// A trace that holds nothing of it.
pub fn tcgen05(trace: &Trace, stages: u32, title: &str) -> Result<String, DrawError> {
    let full = (0..stages).map(|s| format!("full[{s}]"));
    let empty = (0..stages).map(|s| format!("empty[{s}]"));
    let sums = ["sum full", "sum empty"].map(|of| [0, 1].map(|s| format!("{of}[{s}]")));
    let barriers = full.chain(empty).chain(sums.concat());
    let warps = [(0, "store"), (4, "load"), (5, "multiply")];
    first_cta(trace, barriers, &warps, title)
}

/// The first CTA of `gemv_mma_fp4` with one warp that multiplies, beside the one that loads, and a ring of so many
/// stages.
///
/// # Errors
/// A trace that holds nothing of it.
pub fn mma_fp4(trace: &Trace, stages: u32, title: &str) -> Result<String, DrawError> {
    let of_stage = |s| ["full", "empty"].map(|of| format!("{of}[{s}]"));
    let barriers = (0..stages).flat_map(of_stage);
    first_cta(trace, barriers, &[(0, "multiply"), (1, "load")], title)
}

/// A picture of these warps of the first CTA, by what they do. `barriers` are the names of all mbarriers, in the order
/// of their addresses.
fn first_cta(
    trace: &Trace,
    barriers: impl Iterator<Item = String>,
    warps: &[(u64, &str)],
    title: &str,
) -> Result<String, DrawError> {
    let of_barriers = trace.tracks.iter();
    let at: BTreeSet<u64> = of_barriers
        .filter(|track| track.kind == TrackKind::Barrier)
        .map(|track| track.index)
        .collect();
    let names: Vec<String> = barriers.collect();
    assert_eq!(at.len(), names.len());
    let mut labels: BTreeMap<String, String> =
        at.iter().map(|at| format!("{at:#x}")).zip(names).collect();
    labels.extend(
        warps
            .iter()
            .map(|(warp, does)| (format!("warp {warp}"), (*does).into())),
    );
    let how = DrawOptions {
        title: Some(title.into()),
        ctas: vec![0],
        warps: warps.iter().map(|(warp, _)| *warp).collect(),
        labels,
        ..DrawOptions::default()
    };
    draw(trace, &how)
}
