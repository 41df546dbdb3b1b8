//! Vector clocks, one per way of being ordered, and a thread's knowledge by them.
//!
//! Threads that have synchronised know the same, so they share one [`View`]. A thread's knowledge of its own accesses
//! is apart from the view and costs no clock.

use std::sync::Arc;

use crate::models::versions::versions;

/// A vector clock; slots beyond its end are at time 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    pub(super) fn get(&self, slot: u32) -> u32 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, slot: u32, time: u32) {
        let at = slot as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = self.0[at].max(time);
    }

    /// The join of both, as a clock of its own.
    fn joined(&self, other: &Clock) -> Clock {
        let (more, less) = match self.0.len() < other.0.len() {
            true => (&other.0, &self.0),
            false => (&self.0, &other.0),
        };
        let mut all = Vec::with_capacity(more.len());
        later_of_both(more, less, &mut all);
        all.extend_from_slice(&more[less.len()..]);
        Clock(all)
    }

    pub(super) fn join(&mut self, other: &Clock) {
        *self = self.joined(other);
    }

    /// Whether it is nowhere behind the other.
    fn covers(&self, other: &Clock) -> bool {
        let n = self.0.len().min(other.0.len());
        let mut covers = true;
        compare(&self.0, &other.0, &mut covers);
        covers && other.0[n..].iter().fold(0, |all, t| all | t) == 0
    }
}

versions!(
    /// Appends the later ones of both, as many as the shorter one has.
    later_of_both(these: &[u32], others: &[u32], all: &mut Vec<u32>) = later_of_both_of
);
versions!(
    /// Whether no time of the first is before its one of the second.
    compare(these: &[u32], others: &[u32], covers: &mut bool) = compare_of
);

#[inline(always)]
fn later_of_both_of<const LANES: usize, const FUSED: bool>(
    these: &[u32],
    others: &[u32],
    all: &mut Vec<u32>,
) {
    all.extend(these.iter().zip(others).map(|(a, b)| *a.max(b)));
}

#[inline(always)]
fn compare_of<const LANES: usize, const FUSED: bool>(
    these: &[u32],
    others: &[u32],
    covers: &mut bool,
) {
    /// Times that are compared before one looks whether to go on: a loop over vectors has no early end.
    const AT_ONCE: usize = 128;
    let mut blocks = these.chunks(AT_ONCE).zip(others.chunks(AT_ONCE));
    *covers = blocks.all(|(these, others)| {
        let both = these.iter().zip(others);
        both.fold(true, |all, (a, b)| all & (a >= b))
    });
}

/// Order among tcgen05 operations on tensor memory. Threads that know the same share clocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Tensor {
    /// Operations known to be complete.
    pub(super) done: Arc<Clock>,
    /// Operations known to be issued: enough for the pairs that form a pipeline.
    pub(super) issued: Arc<Clock>,
}

impl Tensor {
    pub(super) fn join(&mut self, merger: &mut Merger, other: &Tensor) {
        merger.share(&mut self.done, &other.done);
        merger.share(&mut self.issued, &other.issued);
    }

    /// Learns of one operation.
    pub(super) fn raise_done(&mut self, slot: u32, time: u32) {
        Arc::make_mut(&mut self.done).raise(slot, time);
    }

    /// Learns that one operation was issued.
    pub(super) fn raise_issued(&mut self, slot: u32, time: u32) {
        Arc::make_mut(&mut self.issued).raise(slot, time);
    }
}

/// `into` becomes the join of both, and one of them where that says all.
fn share(into: &mut Arc<Clock>, from: &Arc<Clock>) {
    if Arc::ptr_eq(into, from) || into.covers(from) {
        return;
    }
    if from.covers(into) {
        *into = from.clone();
    } else {
        *into = Arc::new(into.joined(from));
    }
}

/// Accesses that precede a point, as far as others can know them.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// Base causality order: precedes accesses through the generic proxy.
    pub(super) generic: Clock,
    /// The part of it that a proxy fence (or the async proxy itself) has made visible to
    /// accesses through the async proxy.
    pub(super) fenced: Clock,
}

impl View {
    /// The join of both, as a view of its own.
    fn joined(&self, other: &View) -> View {
        View {
            generic: self.generic.joined(&other.generic),
            fenced: self.fenced.joined(&other.fenced),
        }
    }

    fn covers(&self, other: &View) -> bool {
        self.generic.covers(&other.generic) && self.fenced.covers(&other.fenced)
    }
}

/// Accesses that precede a point of a thread: accesses that it learned of, and its own.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) view: Arc<View>,
    pub(super) slot: u32,
    /// The thread's own accesses up to this time.
    pub(super) time: u32,
    /// The thread's own accesses that a proxy fence covers.
    pub(super) fenced: u32,
}

impl Known {
    /// Does this precede accesses through the generic proxy?
    pub(super) fn generic(&self, slot: u32, time: u32) -> bool {
        self.view.generic.get(slot) >= time || (slot == self.slot && self.time >= time)
    }

    /// Does this precede accesses through the async proxy?
    pub(super) fn fenced(&self, slot: u32, time: u32) -> bool {
        self.view.fenced.get(slot) >= time || (slot == self.slot && self.fenced >= time)
    }

    /// Learns one thing; `fenced` if through all proxies.
    pub(super) fn learn(&mut self, slot: u32, time: u32, fenced: bool) {
        let view = Arc::make_mut(&mut self.view);
        view.generic.raise(slot, time);
        if fenced {
            view.fenced.raise(slot, time);
        }
    }
}

/// Joins of clocks that are remembered: the lanes of a warp each learn of the same few objects.
const REMEMBERED: usize = 8;

/// Joins views, and remembers the last results: threads that meet mostly know the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Merger {
    joined: Option<[Arc<View>; 3]>,
    fenced: Option<[Arc<View>; 2]>,
    /// Clocks: which was joined into which, and the result.
    clocks: [Option<[Arc<Clock>; 3]>; REMEMBERED],
    oldest: usize,
}

impl Merger {
    /// `into` becomes the join of both, and one of them where that says all.
    pub(super) fn share(&mut self, into: &mut Arc<Clock>, from: &Arc<Clock>) {
        // Threads that have learned nothing have clocks of their own, which say nothing.
        if Arc::ptr_eq(into, from) || from.0.is_empty() {
            return;
        }
        let same = |[a, b, _]: &&[_; 3]| Arc::ptr_eq(a, into) && Arc::ptr_eq(b, from);
        if let Some([_, _, joined]) = self.clocks.iter().flatten().find(same) {
            *into = joined.clone();
            return;
        }
        let before = into.clone();
        share(into, from);
        self.clocks[self.oldest] = Some([before, from.clone(), into.clone()]);
        self.oldest = (self.oldest + 1) % REMEMBERED;
    }

    /// `into` becomes the join of both.
    pub(super) fn join(&mut self, into: &mut Arc<View>, from: &Arc<View>) {
        if Arc::ptr_eq(into, from) {
            return;
        }
        if let Some([a, b, joined]) = &self.joined
            && Arc::ptr_eq(a, into)
            && Arc::ptr_eq(b, from)
        {
            *into = joined.clone();
            return;
        }
        let before = into.clone();
        if from.covers(into) {
            *into = from.clone();
        } else if !into.covers(from) {
            *into = Arc::new(into.joined(from));
        }
        self.joined = Some([before, from.clone(), into.clone()]);
    }

    /// A proxy fence: all that is known is known through the async proxy.
    pub(super) fn fence(&mut self, view: &mut Arc<View>) {
        match &self.fenced {
            Some([before, after]) if Arc::ptr_eq(before, view) => *view = after.clone(),
            _ => {
                let before = view.clone();
                let v = Arc::make_mut(view);
                v.fenced.join(&v.generic);
                self.fenced = Some([before, view.clone()]);
            }
        }
    }
}
