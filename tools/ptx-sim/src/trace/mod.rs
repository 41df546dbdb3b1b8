//! The order of a run's events: a timeline of warps, asynchronous operations and mbarrier phases.
//!
//! The axis counts the simulator's steps: one for each instruction of a warp and each completion of an asynchronous
//! operation. Under `Timing::After` steps also pass while everything waits. The axis shows the order in which the
//! schedule allowed things to happen, and says nothing about time on hardware.

mod chrome;
pub mod draw;
mod names;
mod phases;
mod recorder;

use std::collections::BTreeMap;

use serde_json::Value;

pub use chrome::TraceError;
pub(crate) use phases::{Cause, MbarrierState};
pub(crate) use recorder::{Operation, Recorder, WaitFor};

/// Slices kept unless told otherwise.
pub const DEFAULT_LIMIT: usize = 200_000;

/// Contents of a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackKind {
    /// A warp, by its index.
    Warp,
    /// Asynchronous copies, from issue to completion.
    Copies,
    /// `tcgen05` operations, from issue to completion.
    Tensor,
    /// `wgmma` operations, from issue to completion.
    Wgmma,
    /// The phases of an mbarrier, by its address.
    Barrier,
}

/// Event of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A warp ran.
    Run,
    /// A warp waited.
    Wait,
    /// An asynchronous copy was in flight.
    Copy,
    /// `tcgen05.mma`.
    Mma,
    /// A warp's quarter of `wgmma.mma_async`.
    Wgmma,
    /// `tcgen05.cp`.
    Cp,
    /// `tcgen05.ld`.
    Ld,
    /// `tcgen05.st`.
    St,
    /// `tcgen05.commit`.
    Commit,
    /// `cp.async.mbarrier.arrive`: the arrival that follows a thread's copies.
    Arrive,
    /// A phase of an mbarrier.
    Phase,
}

/// Names by which the file knows them.
const KINDS: [(Kind, &str); 11] = [
    (Kind::Run, "run"),
    (Kind::Wait, "wait"),
    (Kind::Copy, "copy"),
    (Kind::Mma, "mma"),
    (Kind::Wgmma, "wgmma"),
    (Kind::Cp, "cp"),
    (Kind::Ld, "ld"),
    (Kind::St, "st"),
    (Kind::Commit, "commit"),
    (Kind::Arrive, "arrive"),
    (Kind::Phase, "phase"),
];

const TRACK_KINDS: [(TrackKind, &str); 5] = [
    (TrackKind::Warp, "warp"),
    (TrackKind::Copies, "copies"),
    (TrackKind::Tensor, "tcgen05"),
    (TrackKind::Wgmma, "wgmma"),
    (TrackKind::Barrier, "mbarrier"),
];

/// A row of a CTA.
#[derive(Debug, Clone, PartialEq)]
pub struct Track {
    /// Linear number of the CTA.
    pub cta: u32,
    /// Contents of the track.
    pub kind: TrackKind,
    /// Warp, or address of the mbarrier in shared memory.
    pub index: u64,
    /// Name of the track, for people.
    pub name: String,
}

/// A stretch of a track. Operations of one track may overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// Index of its track.
    pub track: usize,
    /// First step.
    pub start: u64,
    /// Step after the last.
    pub end: u64,
    /// Kind of the event.
    pub kind: Kind,
    /// The event in words.
    pub name: String,
    /// Details by name.
    pub details: BTreeMap<String, Value>,
}

/// A slice whose end let another one begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Index of the slice that completed a phase.
    pub from: usize,
    /// Index of the slice that waited for it.
    pub to: usize,
}

/// The timeline of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Kernel name, policy and whatever else describes the run.
    pub about: BTreeMap<String, String>,
    /// `%ctaid` of each CTA, by its linear number.
    pub ctas: BTreeMap<u32, [u32; 3]>,
    /// Rows.
    pub tracks: Vec<Track>,
    /// Stretches, by their beginning.
    pub slices: Vec<Slice>,
    /// Arrows from an event to the warps that it let go on.
    pub flows: Vec<Flow>,
    /// Steps of the run, as far as they were recorded.
    pub steps: u64,
    /// The limit that ended the recording before the run ended.
    pub truncated: Option<usize>,
}

fn name_of<T: PartialEq + Copy>(list: &[(T, &'static str)], value: T) -> &'static str {
    list.iter().find(|e| e.0 == value).map_or("", |e| e.1)
}

fn by_name<T: Copy>(list: &[(T, &'static str)], name: &str) -> Option<T> {
    list.iter().find(|e| e.1 == name).map(|e| e.0)
}

impl Slice {
    /// A detail that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.details.get(name).and_then(Value::as_u64)
    }
}
