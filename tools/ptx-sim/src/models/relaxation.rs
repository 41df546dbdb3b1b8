//! Relaxations: properties that kernels rely on although the PTX ISA does not promise them, each by a name.

use super::hazard::Profile;

named! {
/// Something that GPUs are relied on to do, and that the ISA does not promise.
Relaxation {
    /// A `tcgen05.cp` behind a `tcgen05.mma` or `.cp` of the same thread may overwrite columns that the MMA reads, or
    /// that the other `.cp` wrote.
    CpAfterMma "cp-after-mma": "a tcgen05.cp waits for earlier tcgen05.mma and .cp of its thread",
    /// A thread that knows an operation to be over needs no `tcgen05.fence::after_thread_sync`.
    AfterFence "after-fence": "no tcgen05.fence::after_thread_sync is needed",
    /// Registers of a `tcgen05.ld` may be used without `tcgen05.wait::ld`.
    LoadedRegisters "loaded-registers": "a register that a tcgen05.ld writes is complete when it is used",
    /// Lanes of a warp may issue one bulk store several times.
    WarpStores "warp-stores": "lanes that issue the same bulk store issue it once",
    /// Lane bits of a tensor memory address that are not the warp's own count for nothing.
    LaneBits "lane-bits": "a warp reaches its own lanes of tensor memory, whatever the address says",
    /// A CTA may end before its own bulk stores have read their sources.
    UnreadStores "unread-stores": "shared memory stays until bulk stores have read it",
    /// A generic address of shared memory may stand where a shared one is expected, and for `tcgen05.commit` the other
    /// way round.
    GenericShared "generic-shared": "a generic address of shared memory and a shared one stand for each other",
    /// Matrix operands may have rows and columns that nothing wrote.
    Unwritten "unwritten": "no result depends on operands that nothing wrote",
    /// Asynchronous writes behind generic reads need no proxy fence.
    WriteAfterRead "write-after-read": "no proxy fence is needed behind a read",
    /// `shfl.sync` and its like order memory.
    Collectives "collectives": "warp-synchronous instructions order memory",
    /// The scope of an mbarrier operation counts for nothing.
    BarrierScope "barrier-scope": "the scope of mbarrier operations counts for nothing",
    /// A `.relaxed` wait on an mbarrier acquires.
    RelaxedWait "relaxed-wait": "a relaxed wait acquires",
    /// A thread between two mbarriers hands order of tcgen05 operations on without fences.
    HandedOn "handed-on": "a thread hands order of tcgen05 operations on without fences",
    /// Lanes of one instruction may write the same bytes.
    SameBytes "same-bytes": "of lanes that write the same bytes, one wins",
    /// Peer CTAs of a cluster run from its start.
    PeerRuns "peer-runs": "peer CTAs run from the start",
    /// The compiler adds a `wgmma.fence` where registers need one.
    CompiledFence "compiled-fence": "the compiler adds wgmma.fence for registers",
    /// Dependents that start early hold no tensor memory.
    LateDependents "late-dependents": "dependents hold no tensor memory before they may",
    /// An `mbarrier.init` needs no fence before a relaxed barrier.
    UnfencedInit "unfenced-init": "a relaxed barrier hands an mbarrier.init on without a fence",
    /// Each CTA of a pair answers for its own columns when they are freed.
    PeerColumns "peer-columns": "a CTA of a pair keeps its columns until it frees them itself",
    /// Columns may be freed behind operations that are over in execution order: behind a relaxed barrier, or one at
    /// which the threads that know of them have ended.
    ExecutionFree "execution-free": "tensor memory may be freed behind what is over in execution order",
    /// The signals of a thread's `tcgen05.commit`s arrive in their order.
    CommitOrder "commit-order": "the signals of a thread's commits arrive in order",
    /// A relaxed barrier of the cluster orders a CTA's accesses to its own shared memory, and its threads' operations
    /// on mbarriers of others are over behind it.
    RelaxedBarrier "relaxed-barrier": "a relaxed barrier orders what a CTA did to shared memory",
    /// The grid before a dependent one has allocated its tensor memory when that starts.
    AllocatedBefore "allocated-before": "the grid before has the tensor memory that it needs",
    /// Columns that a `tcgen05.ld` read may be overwritten behind `tcgen05.wait::ld` and a barrier, without tcgen05
    /// fences.
    WaitedLoads "waited-loads": "what a tcgen05.ld read may be overwritten behind its wait and a barrier",
    /// Loads may find bytes of shared memory that nothing wrote, or that nothing orders with another one's write, as long
    /// as nothing uses the value.
    UnusedLoads "unused-loads": "nothing uses the value of a load that finds no certain one",
    /// Lanes of a warp may issue one `cp.async` several times.
    WarpCopies "warp-copies": "lanes that issue the same cp.async issue it once",
    /// CTAs that wait for each other run at the same time.
    CoResident "co-resident": "CTAs that wait for each other run at the same time",
    /// A `wgmma.wait_group` waits for the other warps' quarters too.
    WarpgroupWait "warpgroup-wait": "a wgmma.wait_group waits for the whole warpgroup's products",
    /// `elect.sync` elects the lowest lane.
    FirstElected "first-elected": "elect.sync elects the lowest lane",
}
}

impl Relaxation {
    /// Whether a run notes where the relaxation was needed. The relaxations without notes are order that a kernel gets
    /// for nothing, and hands on. Only a second set of clocks could tell which accesses would lack such order.
    pub fn is_noted(self) -> bool {
        !matches!(
            self,
            Relaxation::Collectives
                | Relaxation::BarrierScope
                | Relaxation::RelaxedWait
                | Relaxation::HandedOn
                | Relaxation::FirstElected
        )
    }
}

/// Relaxations that a run may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Allowed(u32);

impl Allowed {
    /// None.
    pub const NONE: Allowed = Allowed(0);
    /// All.
    pub const ALL: Allowed = Allowed((1 << Relaxation::ALL.len()) - 1);

    /// Whether it is among them.
    pub fn has(self, r: Relaxation) -> bool {
        self.0 >> r as u8 & 1 == 1
    }

    /// With one more.
    #[must_use]
    pub fn with(self, r: Relaxation) -> Self {
        Self(self.0 | 1 << r as u8)
    }

    /// This set without one relaxation.
    #[must_use]
    pub fn without(self, r: Relaxation) -> Self {
        Self(self.0 & !(1 << r as u8))
    }

    /// The relaxations of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl From<Profile> for Allowed {
    fn from(p: Profile) -> Self {
        match p {
            Profile::Strict => Self::NONE,
            Profile::Hardware => Self::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for r in Relaxation::ALL {
            assert_eq!(r.name().parse(), Ok(r));
            assert!(Allowed::ALL.has(r) && !Allowed::NONE.has(r));
            assert!(Allowed::NONE.with(r).has(r));
        }
        let e = "fences".parse::<Relaxation>().unwrap_err();
        assert!(e.contains("after-fence"), "{e}");
    }
}
