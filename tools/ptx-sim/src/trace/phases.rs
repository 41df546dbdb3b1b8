//! Phases of mbarriers: objects are compared with their earlier states, so that nothing that changes them need know of
//! the recorder.

use std::collections::BTreeMap;

use serde_json::json;

use super::recorder::Recorder;
use super::{Kind, Slice, TrackKind};

/// An mbarrier object as the machine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MbarrierState {
    pub(crate) phase: u64,
    pub(crate) pending: u32,
    pub(crate) expected: u32,
    pub(crate) tx: i64,
}

/// The warp or operation that changed an mbarrier.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cause {
    /// A warp of a linear CTA.
    Warp(u32, u32),
    /// An asynchronous operation that has just completed: its slice.
    Operation(Option<usize>),
}

#[derive(Debug)]
pub(super) struct OpenPhase {
    state: MbarrierState,
    start: u64,
    arrivals: u64,
    expected_tx: i64,
    completed_tx: i64,
}

impl Recorder {
    /// Compares all mbarrier objects with their earlier states; objects that are missing have gone.
    pub(crate) fn mbarriers(
        &mut self,
        now: &BTreeMap<(u32, u64), MbarrierState>,
        cause: Cause,
        step: u64,
    ) {
        if self.full() {
            return;
        }
        let gone: Vec<_> = self
            .phases
            .keys()
            .filter(|k| !now.contains_key(k))
            .copied()
            .collect();
        for key in gone {
            if let Some(p) = self.phases.remove(&key) {
                self.close_phase(key, &p, step, false);
            }
        }
        for (key, state) in now {
            let Some(mut p) = self.phases.remove(key) else {
                self.phases.insert(*key, open(*state, step, 0));
                continue;
            };
            let (before, delta) = (p.state, state.tx - p.state.tx);
            if delta > 0 {
                p.expected_tx += delta;
            } else {
                p.completed_tx -= delta;
            }
            if before.phase == state.phase {
                p.arrivals += u64::from(before.pending.saturating_sub(state.pending));
                p.state = *state;
                self.phases.insert(*key, p);
                continue;
            }
            p.arrivals += u64::from(before.pending);
            self.close_phase(*key, &p, step, true);
            let arrived = state.expected.saturating_sub(state.pending);
            self.phases
                .insert(*key, open(*state, step, u64::from(arrived)));
            let slice = match cause {
                Cause::Warp(c, w) => self.warps.get(&(c, w)).and_then(|w| w.slice),
                Cause::Operation(s) => s,
            };
            if let Some(s) = slice {
                self.completed.insert(*key, (state.phase - 1, s));
            }
        }
    }

    pub(super) fn close_phase(
        &mut self,
        (cta, at): (u32, u64),
        p: &OpenPhase,
        step: u64,
        completed: bool,
    ) {
        let n = p.state.phase;
        let mut name = format!("phase {n}");
        if !completed {
            name += " (open)";
        }
        let mut details = BTreeMap::from([
            ("phase".to_string(), json!(n)),
            ("parity".to_string(), json!(n & 1)),
            ("arrivals".to_string(), json!(p.arrivals)),
            ("completed".to_string(), json!(completed)),
        ]);
        let tx = p.expected_tx.max(p.completed_tx);
        if tx > 0 {
            details.insert("tx_bytes".into(), json!(tx));
        }
        let track = self.track(cta, TrackKind::Barrier, at);
        self.add(Slice {
            track,
            start: p.start,
            end: step,
            kind: Kind::Phase,
            name,
            details,
        });
    }
}

fn open(state: MbarrierState, start: u64, arrivals: u64) -> OpenPhase {
    OpenPhase {
        state,
        start,
        arrivals,
        expected_tx: state.tx.max(0),
        completed_tx: (-state.tx).max(0),
    }
}
