//! The last accesses of every byte.
//!
//! Bytes with the same accesses share one [`State`], and a byte only holds the state's number. So an access looks at
//! each state once, however many bytes have it. Bytes that are read or written as one keep one state.

mod bytes;

use super::super::swizzle::Swizzle;
use super::report::{AccessKind, Range, Side};
use bytes::{Memory, NONE, Run};
use rustc_hash::FxHashMap;
use std::ops::{Index, IndexMut};

/// An access with its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) slot: u32,
    pub(super) time: u32,
    pub(super) side: Side,
    /// Pipeline class of a tcgen05 operation.
    pub(super) class: super::OpClass,
    /// The pattern that an operation writes with, or expects.
    pub(super) swizzle: Option<Swizzle>,
}

/// The accesses of some bytes.
#[derive(Debug, Default)]
struct State {
    writes: Vec<Record>,
    reads: Vec<Record>,
    syncs: Vec<Record>,
    /// Bytes that have it.
    bytes: u64,
    /// Bytes that have the state and that the access at hand touches.
    touched: u64,
    /// Changes with the contents: no two contents have one number.
    version: u64,
}

impl Clone for State {
    fn clone(&self) -> Self {
        let mut new = Self::default();
        new.clone_from(self);
        new
    }

    /// Keeps the allocations.
    fn clone_from(&mut self, from: &Self) {
        self.writes.clone_from(&from.writes);
        self.reads.clone_from(&from.reads);
        self.syncs.clone_from(&from.syncs);
        (self.bytes, self.touched, self.version) = (from.bytes, from.touched, from.version);
    }
}

/// A list of this many records is looked through for outdated ones.
const PRUNE: usize = 8;

/// The change of a state by an access: the same access of other bytes makes the same change of the state.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: AccessKind,
    mine: Record,
    from: (u32, u64),
    to: (u32, u64),
}

/// All states, by number.
#[derive(Debug, Clone)]
struct States {
    /// The first stands for [`NONE`] and stays empty.
    list: Vec<State>,
    unused: Vec<u32>,
    version: u64,
    last: Option<Step>,
}

impl Default for States {
    fn default() -> Self {
        Self {
            list: vec![State::default()],
            unused: Vec::new(),
            version: 0,
            last: None,
        }
    }
}

impl Index<u32> for States {
    type Output = State;

    fn index(&self, number: u32) -> &State {
        &self.list[number as usize]
    }
}

impl IndexMut<u32> for States {
    fn index_mut(&mut self, number: u32) -> &mut State {
        &mut self.list[number as usize]
    }
}

impl States {
    /// Fewer bytes have a state.
    fn leave(&mut self, state: u32, bytes: u64) {
        if state == NONE {
            return;
        }
        let s = &mut self[state];
        s.bytes -= bytes;
        if s.bytes == 0 {
            s.version = 0;
            self.unused.push(state);
        }
    }

    /// A state that no byte has yet, with the contents of another.
    fn copy_of(&mut self, state: u32) -> u32 {
        let new = self.unused.pop().unwrap_or_else(|| {
            self.list.push(State::default());
            self.list.len() as u32 - 1
        });
        let mut s = std::mem::take(&mut self[new]);
        s.clone_from(&self[state]);
        (s.bytes, s.touched) = (0, 0);
        self[new] = s;
        new
    }

    /// The state that the same access has made of this state before.
    fn seen(&self, kind: AccessKind, mine: &Record, old: u32) -> Option<u32> {
        let from = (old, self[old].version);
        let l = self.last.as_ref()?;
        let same = l.from == from && l.kind == kind && l.mine == *mine;
        (same && self[l.to.0].version == l.to.1).then_some(l.to.0)
    }

    /// The state that an access makes of a state where it touches so many of its bytes.
    fn with(
        &mut self,
        (old, touched): (u32, u64),
        (kind, mine): (AccessKind, Record),
        outdated: impl Fn(&Record) -> bool,
    ) -> u32 {
        let from = (old, self[old].version);
        let whole = old != NONE && self[old].bytes == touched;
        let new = if whole { old } else { self.copy_of(old) };
        self.version += 1;
        let version = self.version;
        let s = &mut self[new];
        s.version = version;
        add(s, kind, mine, outdated);
        if !whole {
            self.last = Some(Step {
                kind,
                mine,
                from,
                to: (new, version),
            });
        }
        new
    }
}

/// All memories.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    spaces: FxHashMap<u64, Memory>,
    states: States,
    /// Kept for its allocation.
    runs: Vec<Run>,
}

impl Shadow {
    /// Records an access to some ranges (starts and ends, disjoint) and calls `conflict` for each earlier access that
    /// it may conflict with. From here on it stands for those earlier accesses of its own kind that are `outdated`.
    pub(super) fn access(
        &mut self,
        (space, kind): (u64, AccessKind),
        ranges: impl Iterator<Item = (u64, u64)>,
        mine: Record,
        mut conflict: impl FnMut(&Record, Range),
        outdated: impl Fn(&Record) -> bool,
    ) {
        let Self {
            spaces,
            states,
            runs,
        } = self;
        let memory = spaces.entry(space).or_default();
        runs.clear();
        memory.runs(ranges, runs);
        for r in &*runs {
            states[r.state].touched += r.end - r.start;
        }
        let overwrites = matches!(kind, AccessKind::Write | AccessKind::Init);
        let mut written = None;
        for (i, run) in runs.iter().enumerate() {
            let old = run.state;
            let touched = std::mem::take(&mut states[old].touched);
            // A state that came before in the list has been seen to.
            if touched == 0 {
                continue;
            }
            let seen = states.seen(kind, &mine, old);
            if seen.is_none() || written.is_some() {
                let range = run_range(space, *run);
                visit(&states[old], kind, |r| conflict(r, range));
            }
            let new = match written.or(seen) {
                Some(new) => new,
                None => states.with((old, touched), (kind, mine), &outdated),
            };
            if overwrites {
                written = Some(new);
            }
            if new == old {
                continue;
            }
            states[new].bytes += touched;
            if !overwrites {
                memory.assign(with_state(&runs[i..], old, touched), new);
            }
            states.leave(old, touched);
        }
        if let Some(new) = written {
            // All of it has the one state now, whatever it had.
            let whole = runs.chunk_by(|a, b| a.end == b.start).map(|of_one| Run {
                end: of_one[of_one.len() - 1].end,
                ..of_one[0]
            });
            memory.assign(whole, new);
        }
    }

    /// Calls `f` for every record of a range, then forgets them unless they are to be kept.
    pub(super) fn clear(&mut self, range: Range, keep: bool, mut f: impl FnMut(&Record, Range)) {
        let Range { space, start, end } = range;
        let Some(memory) = self.spaces.get_mut(&space) else {
            return;
        };
        let states = &mut self.states;
        let runs = memory.touched(start, end);
        for r in &runs {
            states[r.state].touched = 1;
        }
        for r in &runs {
            let s = &mut states[r.state];
            if std::mem::take(&mut s.touched) == 0 {
                continue;
            }
            let at = run_range(space, *r);
            let all = s.writes.iter().chain(&s.reads).chain(&s.syncs);
            all.for_each(|r| f(r, at));
        }
        if keep {
            return;
        }
        memory.assign(runs.iter().copied(), NONE);
        for r in runs {
            states.leave(r.state, r.end - r.start);
        }
        if start == 0 && end == u64::MAX {
            self.spaces.remove(&space);
        }
    }
}

/// Runs that have a state, where so many bytes have it.
fn with_state(runs: &[Run], state: u32, bytes: u64) -> impl Iterator<Item = Run> {
    let mut left = bytes;
    let all = runs.iter().take_while(move |r| {
        let any = left > 0;
        if r.state == state {
            left -= r.end - r.start;
        }
        any
    });
    all.filter(move |r| r.state == state).copied()
}

fn run_range(space: u64, run: Run) -> Range {
    Range {
        space,
        start: run.start,
        end: run.end,
    }
}

/// The records an access of `kind` may conflict with.
fn visit(state: &State, kind: AccessKind, conflict: impl FnMut(&Record)) {
    let unless = |same, list: &'_ Vec<Record>| if kind == same { 0 } else { list.len() };
    let reads = &state.reads[..unless(AccessKind::Read, &state.reads)];
    let syncs = &state.syncs[..unless(AccessKind::Sync, &state.syncs)];
    let all = state.writes.iter().chain(reads).chain(syncs);
    all.for_each(conflict);
}

fn add(state: &mut State, kind: AccessKind, mine: Record, outdated: impl Fn(&Record) -> bool) {
    let list = match kind {
        // Whoever frees it next must know of the others too.
        AccessKind::Free => &mut state.writes,
        AccessKind::Write | AccessKind::Init => {
            state.reads.clear();
            state.syncs.clear();
            state.writes.clear();
            &mut state.writes
        }
        AccessKind::Read => &mut state.reads,
        AccessKind::Sync => &mut state.syncs,
    };
    // Sorted, so that many readers cost little; outdated ones go when the list has doubled.
    let key = |r: &Record| (r.slot, r.side.proxy as u8);
    match list.binary_search_by_key(&key(&mine), key) {
        // A later access of the same slot and proxy stands for the earlier ones.
        Ok(i) => list[i] = mine,
        Err(i) => {
            list.insert(i, mine);
            if list.len() >= PRUNE && list.len().is_power_of_two() {
                list.retain(|r| key(r) == key(&mine) || !outdated(r));
            }
        }
    }
}
