//! Vector clocks, one per way of being ordered.

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

    pub(super) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

/// Order among tcgen05 operations on tensor memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Tensor {
    /// Operations known to be complete.
    pub(super) done: Clock,
    /// Operations known to be issued: enough for the pairs that form a pipeline.
    pub(super) issued: Clock,
}

impl Tensor {
    pub(super) fn join(&mut self, other: &Tensor) {
        self.done.join(&other.done);
        self.issued.join(&other.issued);
    }
}

/// What precedes a point of a thread, or what a synchronisation object hands over.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// Base causality order: precedes accesses through the generic proxy.
    pub(super) generic: Clock,
    /// The part of it that a proxy fence (or the async proxy itself) has made visible to
    /// accesses through the async proxy.
    pub(super) fenced: Clock,
    /// Order of tensor memory operations.
    pub(super) tensor: Tensor,
}

impl View {
    pub(super) fn join(&mut self, other: &View) {
        self.join_memory(other);
        self.tensor.join(&other.tensor);
    }

    pub(super) fn join_memory(&mut self, other: &View) {
        self.generic.join(&other.generic);
        self.fenced.join(&other.fenced);
    }

    /// The completion of an asynchronous operation, which carries an implicit proxy fence.
    pub(super) fn observe(&mut self, slot: u32, time: u32) {
        self.generic.raise(slot, time);
        self.fenced.raise(slot, time);
    }
}
