//! The last accesses of every byte.
//!
//! Bytes with the same accesses share one [`State`], and a byte only holds its number. So an access looks at each
//! state once, however many bytes have it, and what is read or written as one stays one.

use super::super::swizzle::Swizzle;
use super::report::{AccessKind, Range, Side};
use std::collections::BTreeMap;

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
    /// Of these, those that the access at hand touches.
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

/// Bytes that mostly have one state.
const GRAIN: u64 = 16;
/// Grains of a page.
const GRAINS: u64 = 256;
/// Bytes of a page.
const PAGE: u64 = GRAIN * GRAINS;
/// Pages that are found by index: 4 MiB, more than any shared memory.
const NEAR: u64 = 1024;

/// The state of bytes that nothing has touched.
const NONE: u32 = 0;
/// Set in a grain whose bytes have states of their own: the rest is an index of [`Shadow::fine`].
const FINE: u32 = 1 << 31;

/// The state of each grain, or where those of its bytes are.
type Page = [u32; GRAINS as usize];

/// One memory.
#[derive(Debug, Clone, Default)]
struct Memory {
    near: Vec<Option<Box<Page>>>,
    far: BTreeMap<u64, Box<Page>>,
}

impl Memory {
    fn page(&self, number: u64) -> Option<&Page> {
        if number < NEAR {
            self.near.get(number as usize)?.as_deref()
        } else {
            self.far.get(&number).map(|p| &**p)
        }
    }

    fn page_mut(&mut self, number: u64) -> &mut Page {
        let new = || Box::new([NONE; GRAINS as usize]);
        if number < NEAR {
            let at = number as usize;
            if self.near.len() <= at {
                self.near.resize(at + 1, None);
            }
            self.near[at].get_or_insert_with(new)
        } else {
            self.far.entry(number).or_insert_with(new)
        }
    }

    /// Numbers of the pages that are there, from one to another.
    fn pages(&self, first: u64, last: u64) -> Vec<u64> {
        let near = first..last.saturating_add(1).min(self.near.len() as u64);
        let near = near.filter(|n| self.near[*n as usize].is_some());
        near.chain(self.far.range(first..=last).map(|p| *p.0))
            .collect()
    }
}

/// Bytes side by side with one state.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    state: u32,
}

/// What an access made of a state: the same access of other bytes makes the same of them.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: AccessKind,
    mine: Record,
    from: (u32, u64),
    to: (u32, u64),
}

/// All memories.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    spaces: BTreeMap<u64, Memory>,
    /// The first stands for [`NONE`] and stays empty.
    states: Vec<State>,
    unused: Vec<u32>,
    fine: Vec<[u32; GRAIN as usize]>,
    unused_fine: Vec<u32>,
    version: u64,
    last: Option<Step>,
    /// Kept for its allocation.
    runs: Vec<Run>,
}

fn push(runs: &mut Vec<Run>, start: u64, end: u64, state: u32) {
    match runs.last_mut() {
        Some(last) if last.state == state && last.end == start => last.end = end,
        _ => runs.push(Run { start, end, state }),
    }
}

impl Shadow {
    /// The runs of a part of a page.
    fn runs_of_page(&self, page: &Page, start: u64, end: u64, runs: &mut Vec<Run>) {
        let mut at = start;
        while at < end {
            let first = (at / GRAIN % GRAINS) as usize;
            let cell = page[first];
            if cell & FINE == 0 {
                // As many grains as have it.
                let rest = &page[first + 1..];
                let most = end.div_ceil(GRAIN) - at / GRAIN - 1;
                let rest = &rest[..rest.len().min(most as usize)];
                let same = rest.iter().take_while(|c| **c == cell).count() as u64;
                let to = ((at / GRAIN + 1 + same) * GRAIN).min(end);
                push(runs, at, to, cell);
                at = to;
            } else {
                let to = ((at / GRAIN + 1) * GRAIN).min(end);
                let bytes = &self.fine[(cell & !FINE) as usize];
                for b in at..to {
                    push(runs, b, b + 1, bytes[(b % GRAIN) as usize]);
                }
                at = to;
            }
        }
    }

    /// Gives a run's bytes another state.
    fn assign(
        memory: &mut Memory,
        (fine, unused_fine): (&mut Vec<[u32; GRAIN as usize]>, &mut Vec<u32>),
        run: Run,
        state: u32,
    ) {
        let mut at = run.start;
        while at < run.end {
            let page_end = (at / PAGE + 1).saturating_mul(PAGE).min(run.end);
            let page = memory.page_mut(at / PAGE);
            while at < page_end {
                let first = (at / GRAIN % GRAINS) as usize;
                let whole = match at.is_multiple_of(GRAIN) {
                    true => (page_end - at) / GRAIN,
                    false => 0,
                };
                if whole > 0 {
                    for cell in &mut page[first..first + whole as usize] {
                        if *cell & FINE != 0 {
                            unused_fine.push(*cell & !FINE);
                        }
                        *cell = state;
                    }
                    at += whole * GRAIN;
                    continue;
                }
                let to = (at / GRAIN + 1).saturating_mul(GRAIN).min(page_end);
                let cell = &mut page[first];
                if *cell & FINE == 0 {
                    let i = unused_fine.pop().unwrap_or_else(|| {
                        fine.push([NONE; GRAIN as usize]);
                        fine.len() as u32 - 1
                    });
                    fine[i as usize] = [*cell; GRAIN as usize];
                    *cell = FINE | i;
                }
                let bytes = &mut fine[(*cell & !FINE) as usize];
                let first = (at % GRAIN) as usize;
                bytes[first..first + (to - at) as usize].fill(state);
                at = to;
            }
        }
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Fewer bytes have a state.
    fn leave(&mut self, state: u32, bytes: u64) {
        if state == NONE {
            return;
        }
        let s = &mut self.states[state as usize];
        s.bytes -= bytes;
        if s.bytes == 0 {
            s.version = 0;
            self.unused.push(state);
        }
    }

    /// A state that no byte has yet, with the contents of another.
    fn copy_of(&mut self, state: u32) -> u32 {
        let new = self.unused.pop().unwrap_or_else(|| {
            self.states.push(State::default());
            self.states.len() as u32 - 1
        });
        let (a, b) = (state as usize, new as usize);
        let mut s = std::mem::take(&mut self.states[b]);
        s.clone_from(&self.states[a]);
        (s.bytes, s.touched) = (0, 0);
        self.states[b] = s;
        new
    }

    /// Records an access to some ranges (starts and ends, disjoint) and calls `conflict` for each earlier one it
    /// may conflict with. Of those of its own kind, it stands for the `outdated` ones from here on.
    pub(super) fn access(
        &mut self,
        (space, kind): (u64, AccessKind),
        ranges: impl Iterator<Item = (u64, u64)>,
        mine: Record,
        mut conflict: impl FnMut(&Record, Range),
        outdated: impl Fn(&Record) -> bool,
    ) {
        if self.states.is_empty() {
            self.states.push(State::default());
        }
        let mut memory = std::mem::take(self.spaces.entry(space).or_default());
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        for (start, end) in ranges {
            let mut at = start;
            while at < end {
                let to = (at / PAGE + 1).saturating_mul(PAGE).min(end);
                match memory.page(at / PAGE) {
                    Some(page) => self.runs_of_page(page, at, to, &mut runs),
                    None => push(&mut runs, at, to, NONE),
                }
                at = to;
            }
        }
        for r in &runs {
            self.states[r.state as usize].touched += r.end - r.start;
        }
        let overwrites = matches!(kind, AccessKind::Write | AccessKind::Init);
        let mut written = None;
        for i in 0..runs.len() {
            let old = runs[i].state;
            let touched = std::mem::take(&mut self.states[old as usize].touched);
            // A state that came before in the list has been seen to.
            if touched == 0 {
                continue;
            }
            let from = (old, self.states[old as usize].version);
            let seen = self.last.filter(|l| {
                l.kind == kind
                    && l.mine == mine
                    && l.from == from
                    && self.states[l.to.0 as usize].version == l.to.1
            });
            let new = match (seen, written) {
                (Some(l), None) => l.to.0,
                (_, Some(new)) if overwrites => {
                    let range = run_range(space, runs[i]);
                    visit(&self.states[old as usize], kind, |r| conflict(r, range));
                    new
                }
                _ => {
                    let range = run_range(space, runs[i]);
                    visit(&self.states[old as usize], kind, |r| conflict(r, range));
                    let whole = old != NONE && self.states[old as usize].bytes == touched;
                    let new = if whole { old } else { self.copy_of(old) };
                    let version = self.next_version();
                    let s = &mut self.states[new as usize];
                    s.version = version;
                    add(s, kind, mine, &outdated);
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
            };
            if overwrites {
                written = Some(new);
            }
            if new == old {
                continue;
            }
            self.states[new as usize].bytes += touched;
            if overwrites {
                self.leave(old, touched);
                continue;
            }
            let mut left = touched;
            for r in runs[i..].iter().filter(|r| r.state == old) {
                Self::assign(
                    &mut memory,
                    (&mut self.fine, &mut self.unused_fine),
                    *r,
                    new,
                );
                left -= r.end - r.start;
                if left == 0 {
                    break;
                }
            }
            self.leave(old, touched);
        }
        if let (Some(new), true) = (written, overwrites) {
            // All of it has the one state now, whatever it had.
            let (fine, unused) = (&mut self.fine, &mut self.unused_fine);
            for of_one in runs.chunk_by(|a, b| a.end == b.start) {
                let mut all = of_one[0];
                all.end = of_one[of_one.len() - 1].end;
                Self::assign(&mut memory, (&mut *fine, &mut *unused), all, new);
            }
        }
        self.runs = runs;
        self.spaces.insert(space, memory);
    }

    /// Calls `f` for every record of a range, then forgets them unless they are to be kept.
    pub(super) fn clear(&mut self, range: Range, keep: bool, mut f: impl FnMut(&Record, Range)) {
        let Range { space, start, end } = range;
        let Some(mut memory) = self.spaces.remove(&space) else {
            return;
        };
        if start < end {
            let mut runs = Vec::new();
            for number in memory.pages(start / PAGE, (end - 1) / PAGE) {
                let (first, last) = (number * PAGE, (number + 1).saturating_mul(PAGE));
                if let Some(page) = memory.page(number) {
                    self.runs_of_page(page, start.max(first), end.min(last), &mut runs);
                }
            }
            runs.retain(|r| r.state != NONE);
            for r in &runs {
                self.states[r.state as usize].touched = 1;
            }
            for r in &runs {
                let s = &mut self.states[r.state as usize];
                if std::mem::take(&mut s.touched) == 0 {
                    continue;
                }
                let at = run_range(space, *r);
                let all = s.writes.iter().chain(&s.reads).chain(&s.syncs);
                all.for_each(|r| f(r, at));
            }
            if !keep {
                for r in runs {
                    Self::assign(
                        &mut memory,
                        (&mut self.fine, &mut self.unused_fine),
                        r,
                        NONE,
                    );
                    self.leave(r.state, r.end - r.start);
                }
            }
        }
        if keep || start > 0 || end < u64::MAX {
            self.spaces.insert(space, memory);
        }
    }
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
