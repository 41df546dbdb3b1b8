//! From a trace to lanes: what each warp does, one thing at a time.

use std::collections::BTreeSet;

use ptx_sim::Trace;
use ptx_sim::trace::{Kind, Slice, TrackKind};
use serde_json::Value;

/// Activities of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Copies are issued.
    Copies,
    /// Loads from global memory are issued.
    Loads,
    /// Products are made.
    Multiplies,
    /// Results are stored in global memory.
    Stores,
    /// Any other instructions: addresses, conversions, sums, exchange in shared memory.
    Other,
    /// Copies have not landed.
    WaitsForCopies,
    /// Other warps have not arrived, or have not read what is to be overwritten.
    WaitsForWarps,
}

/// A warp does one thing from one step to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The activity.
    pub activity: Activity,
    /// The first step.
    pub start: u64,
    /// The step after the last.
    pub end: u64,
}

/// A warp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The warp's label.
    pub label: String,
    /// Activities of the warp, without gaps until it ends.
    pub stretches: Vec<Stretch>,
    /// Bytes of the warp's copies that are on their way, each from a step on.
    pub in_flight: Vec<(u64, u64)>,
}

/// The lanes of these warps of the first CTA, where `product` is the instruction that multiplies.
pub fn lanes(trace: &Trace, warps: &[(u64, String)], product: &str) -> Vec<Lane> {
    let of_cta = |kind: Kind| {
        let slices = trace.slices.iter().filter(move |slice| slice.kind == kind);
        slices.filter(|slice| trace.tracks[slice.track].cta == 0)
    };
    let copies: Vec<&Slice> = of_cta(Kind::Copy).collect();
    let landing: BTreeSet<String> = copies.iter().flat_map(|copy| signals(copy)).collect();
    let lane = |(warp, label): &(u64, String)| {
        let mine: Vec<&Slice> = copies
            .iter()
            .filter(|copy| copy.details.get("warp").and_then(Value::as_u64) == Some(*warp))
            .copied()
            .collect();
        let is_warp = |slice: &&Slice| {
            let track = &trace.tracks[slice.track];
            track.kind == TrackKind::Warp && track.index == *warp
        };
        let runs = of_cta(Kind::Run).filter(is_warp);
        let runs = runs.flat_map(|run| running(run, &mine, product));
        let waits = of_cta(Kind::Wait).filter(is_warp);
        let waits = waits.map(|wait| Stretch {
            activity: waiting(&wait.name, &landing),
            start: wait.start,
            end: wait.end,
        });
        Lane {
            label: label.clone(),
            stretches: joined(runs.chain(waits).collect()),
            in_flight: in_flight(&mine),
        }
    };
    warps.iter().map(lane).collect()
}

/// The names by which waits know the barriers that a copy completes.
fn signals(copy: &Slice) -> Vec<String> {
    let signals = copy.details.get("signals").and_then(Value::as_array);
    let addresses = signals
        .into_iter()
        .flatten()
        .filter_map(|at| at[1].as_u64());
    addresses
        .map(|address| format!("barrier +0x{address:x}"))
        .collect()
}

/// Activities of a warp in a turn. The trace tells when copies were issued, but only that other instructions were. A
/// warp that multiplies too is taken to do so behind its last copy.
fn running(run: &Slice, copies: &[&Slice], product: &str) -> Vec<Stretch> {
    let has = |opcode: &str| run.details["opcodes"].get(opcode).is_some();
    let stretch = |activity, start, end| Stretch {
        activity,
        start,
        end,
    };
    let issued = copies.iter().map(|copy| copy.start);
    let last = issued
        .filter(|issued| (run.start..run.end).contains(issued))
        .max();
    let whole = |activity| vec![stretch(activity, run.start, run.end)];
    match last {
        _ if has("st.global") => whole(Activity::Stores),
        Some(last) if has(product) && last + 1 < run.end => vec![
            stretch(Activity::Copies, run.start, last + 1),
            stretch(Activity::Multiplies, last + 1, run.end),
        ],
        _ if has(product) => whole(Activity::Multiplies),
        Some(_) => whole(Activity::Copies),
        None if has("ld.global") => whole(Activity::Loads),
        None => whole(Activity::Other),
    }
}

fn waiting(name: &str, landing: &BTreeSet<String>) -> Activity {
    let mut words = name.split_whitespace().skip(1);
    let barrier = match (words.next(), words.next()) {
        (Some("barrier"), Some(address)) => format!("barrier {address}"),
        _ => String::new(),
    };
    match name.starts_with("cp.async.") || landing.contains(&barrier) {
        true => Activity::WaitsForCopies,
        false => Activity::WaitsForWarps,
    }
}

/// The stretches in order, without gaps: between its turns a warp goes on with what it does.
fn joined(mut slices: Vec<Stretch>) -> Vec<Stretch> {
    slices.sort_by_key(|slice| slice.start);
    let mut stretches: Vec<Stretch> = Vec::new();
    for next in slices {
        match stretches.last_mut() {
            Some(last) if last.activity == next.activity => last.end = next.end,
            last => {
                if let Some(last) = last {
                    last.end = next.start;
                }
                stretches.push(next);
            }
        }
    }
    stretches
}

fn in_flight(copies: &[&Slice]) -> Vec<(u64, u64)> {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for copy in copies {
        let bytes = copy.details.get("bytes").and_then(Value::as_i64);
        let bytes = bytes.unwrap_or(0);
        changes.extend([(copy.start, bytes), (copy.end, -bytes)]);
    }
    changes.sort_unstable();
    let mut now = 0;
    let mut levels: Vec<(u64, u64)> = Vec::new();
    for (step, change) in changes {
        now += change;
        let level = u64::try_from(now).unwrap_or(0);
        match levels.last_mut() {
            Some(last) if last.0 == step => last.1 = level,
            _ => levels.push((step, level)),
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ptx_sim::trace::Track;
    use serde_json::json;

    use super::*;

    fn slice(track: usize, kind: Kind, (start, end): (u64, u64), name: &str) -> Slice {
        Slice {
            track,
            start,
            end,
            kind,
            name: name.into(),
            details: BTreeMap::from([("opcodes".into(), json!({}))]),
        }
    }

    #[test]
    fn a_wait_is_for_what_completes_its_barrier() {
        let track = |kind, index| Track {
            cta: 0,
            kind,
            index,
            name: String::new(),
        };
        let mut copy = slice(1, Kind::Copy, (5, 50), "copy");
        copy.details.insert("warp".into(), json!(0));
        copy.details.insert("bytes".into(), json!(16));
        copy.details.insert("signals".into(), json!([[0, 0x400]]));
        let mut multiplies = slice(0, Kind::Run, (80, 90), "");
        multiplies
            .details
            .insert("opcodes".into(), json!({ "dp4a": 1 }));
        // A turn that copies, and multiplies behind that.
        let (mut both, mut second) = (multiplies.clone(), copy.clone());
        (both.start, both.end) = (90, 100);
        (second.start, second.end) = (93, 120);
        let trace = Trace {
            tracks: vec![track(TrackKind::Warp, 0), track(TrackKind::Copies, 0)],
            slices: vec![
                slice(0, Kind::Run, (0, 10), ""),
                slice(0, Kind::Wait, (10, 50), "try_wait barrier +0x400 parity 0"),
                slice(0, Kind::Run, (50, 60), ""),
                // Another warp's turn; then the same again.
                slice(0, Kind::Run, (65, 70), ""),
                slice(0, Kind::Wait, (70, 80), "try_wait barrier +0x408 parity 0"),
                multiplies,
                both,
                copy,
                second,
            ],
            ..Trace::default()
        };
        let lanes = lanes(&trace, &[(0, "a warp".into())], "dp4a");
        let stretches = [
            (Activity::Copies, 0, 10),
            (Activity::WaitsForCopies, 10, 50),
            (Activity::Other, 50, 70),
            (Activity::WaitsForWarps, 70, 80),
            (Activity::Multiplies, 80, 90),
            (Activity::Copies, 90, 94),
            (Activity::Multiplies, 94, 100),
        ];
        let stretches = stretches.map(|(activity, start, end)| Stretch {
            activity,
            start,
            end,
        });
        assert_eq!(
            lanes,
            [Lane {
                label: "a warp".into(),
                stretches: stretches.to_vec(),
                in_flight: vec![(5, 16), (50, 0), (93, 16), (120, 0)],
            }]
        );
    }
}
