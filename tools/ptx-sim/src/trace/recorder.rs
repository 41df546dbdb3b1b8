//! Builds a [`Trace`] while a kernel runs. The machine holds one only when asked to.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::names::{describe, family};
use super::phases::OpenPhase;
use super::{Flow, Kind, Slice, Trace, Track, TrackKind};
use crate::program::Ins;

/// An asynchronous operation, as it describes itself.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// Bytes, destination and the like.
    pub(crate) details: Vec<(&'static str, Value)>,
    /// Objects it will signal: linear CTA and address.
    pub(crate) barriers: Vec<(u32, u64)>,
}

/// The event that a warp waits for: in words, and the mbarrier phase if it is one.
#[derive(Debug, Clone)]
pub(crate) struct WaitFor {
    pub(crate) name: String,
    pub(crate) phase: Option<(u32, u64, u64)>,
}

/// Instructions from which on a warp that goes on begins another stretch.
const LONG: u64 = 128;

#[derive(Debug)]
struct OpenOperation {
    operation: Operation,
    track: usize,
    start: u64,
    site: (String, u32),
    by: (u32, u32),
}

/// The stretch that a warp runs, and the wait that it came from.
#[derive(Debug, Default)]
pub(super) struct WarpState {
    pub(super) slice: Option<usize>,
    wait: Option<(u64, WaitFor)>,
    instructions: u64,
    lines: Option<(u32, u32)>,
    families: Vec<(&'static str, u32)>,
}

impl WarpState {
    fn describe(&self, s: &mut Slice) {
        let lines = self.lines.unwrap_or_default();
        describe(s, &self.families, lines, self.instructions);
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    limit: usize,
    pub(crate) trace: Trace,
    /// Completions so far, which count as steps.
    pub(crate) completions: u64,
    /// Asynchronous operations seen so far.
    pub(crate) seen: u64,
    tracks: BTreeMap<(u32, TrackKind, u64), usize>,
    pub(super) warps: BTreeMap<(u32, u32), WarpState>,
    operations: BTreeMap<u64, OpenOperation>,
    pub(super) phases: BTreeMap<(u32, u64), OpenPhase>,
    /// The last phase of each object that completed, and in which slice.
    pub(super) completed: BTreeMap<(u32, u64), (u64, usize)>,
    /// The warp that ran last.
    last: Option<(u32, u32)>,
}

impl Recorder {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            trace: Trace::default(),
            completions: 0,
            seen: 0,
            tracks: BTreeMap::new(),
            warps: BTreeMap::new(),
            operations: BTreeMap::new(),
            phases: BTreeMap::new(),
            completed: BTreeMap::new(),
            last: None,
        }
    }

    pub(super) fn full(&self) -> bool {
        self.trace.truncated.is_some()
    }

    pub(super) fn track(&mut self, cta: u32, kind: TrackKind, index: u64) -> usize {
        let tracks = &mut self.trace.tracks;
        *self.tracks.entry((cta, kind, index)).or_insert_with(|| {
            let name = match kind {
                TrackKind::Warp => format!("warp {index}"),
                TrackKind::Copies => "copies".into(),
                TrackKind::Tensor => "tcgen05".into(),
                TrackKind::Wgmma => "wgmma".into(),
                TrackKind::Barrier => format!("mbarrier +0x{index:x}"),
            };
            tracks.push(Track {
                cta,
                kind,
                index,
                name,
            });
            tracks.len() - 1
        })
    }

    pub(super) fn add(&mut self, slice: Slice) -> Option<usize> {
        if self.full() {
            return None;
        }
        self.trace.steps = self.trace.steps.max(slice.end);
        self.trace.slices.push(slice);
        if self.trace.slices.len() >= self.limit {
            self.trace.truncated = Some(self.limit);
        }
        Some(self.trace.slices.len() - 1)
    }

    pub(crate) fn admit(&mut self, cta: u32, id: [u32; 3]) {
        if !self.full() {
            self.trace.ctas.insert(cta, id);
        }
    }

    /// A warp begins to run.
    pub(crate) fn begin(&mut self, cta: u32, warp: u32, step: u64) {
        if self.full() {
            return;
        }
        let w = self.warps.entry((cta, warp)).or_default();
        // Completions between two turns do not part them, another warp does.
        let goes_on = w.wait.is_none()
            && self.last == Some((cta, warp))
            && (1..LONG).contains(&w.instructions)
            && w.slice.is_some();
        if goes_on {
            return;
        }
        *w = WarpState {
            wait: w.wait.take(),
            ..WarpState::default()
        };
        let track = self.track(cta, TrackKind::Warp, u64::from(warp));
        let slice = self.add(Slice {
            track,
            start: step,
            end: step,
            kind: Kind::Run,
            name: String::new(),
            details: BTreeMap::new(),
        });
        if let Some(w) = self.warps.get_mut(&(cta, warp)) {
            w.slice = slice;
        }
    }

    /// A warp has executed an instruction.
    pub(crate) fn instruction(&mut self, cta: u32, warp: u32, ins: &Ins, step: u64) {
        if self.full() {
            return;
        }
        let Some(w) = self.warps.get_mut(&(cta, warp)) else {
            return;
        };
        w.instructions += 1;
        let (low, high) = w.lines.unwrap_or((ins.line, ins.line));
        w.lines = Some((low.min(ins.line), high.max(ins.line)));
        if let Some(f) = family(&ins.text) {
            match w.families.iter_mut().find(|e| e.0 == f) {
                Some(e) => e.1 += 1,
                None => w.families.push((f, 1)),
            }
        }
        if let Some(s) = w.slice {
            self.trace.slices[s].end = step;
            self.trace.steps = self.trace.steps.max(step);
        }
    }

    /// A warp stops, and waits for something or only for its turn.
    pub(crate) fn end(&mut self, cta: u32, warp: u32, step: u64, waits: Option<WaitFor>) {
        let Some(mut w) = self.warps.remove(&(cta, warp)) else {
            return;
        };
        if w.instructions == 0 {
            // Nothing happened: as if it had not been asked.
            if w.slice.is_some_and(|s| s + 1 == self.trace.slices.len()) && !self.full() {
                self.trace.slices.pop();
            }
            w.slice = None;
            w.wait = w.wait.or(waits.map(|f| (step, f)));
            self.warps.insert((cta, warp), w);
            return;
        }
        self.last = Some((cta, warp));
        if let Some((since, f)) = w.wait.take() {
            self.waited(cta, warp, since, &f, w.slice);
        }
        if let Some(s) = w.slice {
            w.describe(&mut self.trace.slices[s]);
        }
        w.wait = waits.map(|f| (step, f));
        self.warps.insert((cta, warp), w);
    }

    /// A wait that is over because the warp ran in `to`.
    fn waited(&mut self, cta: u32, warp: u32, since: u64, f: &WaitFor, to: Option<usize>) {
        let Some(to) = to else { return };
        let end = self.trace.slices[to].start;
        let track = self.track(cta, TrackKind::Warp, u64::from(warp));
        if end > since {
            self.add(Slice {
                track,
                start: since,
                end,
                kind: Kind::Wait,
                name: f.name.clone(),
                details: BTreeMap::new(),
            });
        }
        if let Some((owner, at, phase)) = f.phase
            && let Some((done, from)) = self.completed.get(&(owner, at))
            && *done == phase
            && *from != to
        {
            self.trace.flows.push(Flow { from: *from, to });
        }
    }

    /// An operation is issued; `site` is its opcode and line.
    pub(crate) fn issue(
        &mut self,
        id: u64,
        operation: Operation,
        site: (String, u32),
        by: (u32, u32),
        step: u64,
    ) {
        if self.full() {
            return;
        }
        let kind = match operation.kind {
            Kind::Copy | Kind::Arrive => TrackKind::Copies,
            Kind::Wgmma => TrackKind::Wgmma,
            _ => TrackKind::Tensor,
        };
        let track = self.track(by.0, kind, 0);
        let open = OpenOperation {
            operation,
            track,
            start: step,
            site,
            by,
        };
        self.operations.insert(id, open);
    }

    /// An operation is over. Returns its slice, and who issued it.
    pub(crate) fn complete(&mut self, id: u64, step: u64) -> (Option<usize>, (u32, u32)) {
        // Beyond the limit, an open stretch stays open: it ends where the recording does.
        let open = match self.full() {
            true => None,
            false => self.operations.remove(&id),
        };
        let Some(o) = open else {
            return (None, (0, 0));
        };
        let by = o.by;
        (self.close(o, step, true), by)
    }

    fn close(&mut self, o: OpenOperation, step: u64, completed: bool) -> Option<usize> {
        let mut details: BTreeMap<String, Value> = o
            .operation
            .details
            .into_iter()
            .map(|(k, v)| (k.to_string(), v))
            .collect();
        details.insert("opcode".into(), o.site.0.into());
        details.insert("line".into(), o.site.1.into());
        details.insert("warp".into(), o.by.1.into());
        if !o.operation.barriers.is_empty() {
            let list = o.operation.barriers.iter();
            details.insert(
                "signals".into(),
                list.map(|(c, a)| json!([c, a])).collect::<Vec<_>>().into(),
            );
        }
        if !completed {
            details.insert("completed".into(), false.into());
        }
        self.add(Slice {
            track: o.track,
            start: o.start,
            end: step.max(o.start + 1),
            kind: o.operation.kind,
            name: o.operation.name,
            details,
        })
    }

    /// The run is over, by its end or by an error.
    pub(crate) fn finish(mut self, step: u64) -> Trace {
        let end = if self.full() { self.trace.steps } else { step };
        // A stretch that is still open gets its slice even where the limit has been reached.
        let truncated = self.trace.truncated.take();
        self.limit = usize::MAX;
        for ((cta, warp), mut w) in std::mem::take(&mut self.warps) {
            let wait = w.wait.take();
            if let Some(s) = w.slice.filter(|s| self.trace.slices[*s].name.is_empty()) {
                // The warp was running: an error ended the run.
                if let Some((since, f)) = wait {
                    self.waited(cta, warp, since, &f, Some(s));
                }
                w.describe(&mut self.trace.slices[s]);
            } else if let Some((since, f)) = wait.filter(|w| end > w.0) {
                let track = self.track(cta, TrackKind::Warp, u64::from(warp));
                self.add(Slice {
                    track,
                    start: since,
                    end,
                    kind: Kind::Wait,
                    name: f.name,
                    details: BTreeMap::from([("completed".to_string(), json!(false))]),
                });
            }
        }
        for (_, o) in std::mem::take(&mut self.operations) {
            self.close(o, end, false);
        }
        for (key, p) in std::mem::take(&mut self.phases) {
            self.close_phase(key, &p, end, false);
        }
        self.trace.truncated = truncated;
        self.trace.steps = end;
        self.trace
    }
}
