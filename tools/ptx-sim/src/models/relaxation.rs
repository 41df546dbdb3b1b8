//! Relaxations: properties that kernels rely on although the PTX ISA does not promise them, each by a name.

use std::fmt;
use std::str::FromStr;

use super::hazard::Profile;

/// Something that GPUs are relied on to do, and that the ISA does not promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Relaxation {
    /// A `tcgen05.cp` behind a `tcgen05.mma` or `.cp` of the same thread may overwrite columns that the MMA reads, or
    /// that the other `.cp` wrote.
    CpAfterMma,
    /// A thread that knows an operation to be over needs no `tcgen05.fence::after_thread_sync`.
    AfterFence,
    /// Registers of a `tcgen05.ld` may be used without `tcgen05.wait::ld`.
    LoadedRegisters,
    /// Lanes of a warp may issue one bulk store several times.
    WarpStores,
    /// Lane bits of a tensor memory address that are not the warp's own count for nothing.
    LaneBits,
    /// A CTA may end before its own bulk stores have read their sources.
    UnreadStores,
    /// A generic address of shared memory may stand where a shared one is expected, and for `tcgen05.commit` the other
    /// way round.
    GenericShared,
    /// Matrix operands may have rows and columns that nothing wrote.
    Unwritten,
    /// Asynchronous writes behind generic reads need no proxy fence.
    WriteAfterRead,
    /// `shfl.sync` and its like order memory.
    Collectives,
    /// The scope of an mbarrier operation counts for nothing.
    BarrierScope,
    /// A `.relaxed` wait on an mbarrier acquires.
    RelaxedWait,
    /// A thread between two mbarriers hands order of tcgen05 operations on without fences.
    HandedOn,
    /// Lanes of one instruction may write the same bytes.
    SameBytes,
    /// Peer CTAs of a cluster run from its start.
    PeerRuns,
    /// The compiler adds a `wgmma.fence` where registers need one.
    CompiledFence,
    /// Dependents that start early hold no tensor memory.
    LateDependents,
    /// An `mbarrier.init` needs no fence before a relaxed barrier.
    UnfencedInit,
    /// Each CTA of a pair answers for its own columns when they are freed.
    PeerColumns,
    /// Columns may be freed behind operations that are over in execution order: behind a relaxed barrier, or one at
    /// which the threads that know of them have ended.
    ExecutionFree,
    /// The signals of a thread's `tcgen05.commit`s arrive in their order.
    CommitOrder,
    /// A relaxed barrier of the cluster orders a CTA's accesses to its own shared memory, and its threads' operations
    /// on mbarriers of others are over behind it.
    RelaxedBarrier,
    /// The grid before a dependent one has allocated its tensor memory when that starts.
    AllocatedBefore,
    /// Columns that a `tcgen05.ld` read may be overwritten behind `tcgen05.wait::ld` and a barrier, without tcgen05
    /// fences.
    WaitedLoads,
}

impl Relaxation {
    /// All of them.
    pub const ALL: [Relaxation; 24] = [
        Relaxation::CpAfterMma,
        Relaxation::AfterFence,
        Relaxation::LoadedRegisters,
        Relaxation::WarpStores,
        Relaxation::LaneBits,
        Relaxation::UnreadStores,
        Relaxation::GenericShared,
        Relaxation::Unwritten,
        Relaxation::WriteAfterRead,
        Relaxation::Collectives,
        Relaxation::BarrierScope,
        Relaxation::RelaxedWait,
        Relaxation::HandedOn,
        Relaxation::SameBytes,
        Relaxation::PeerRuns,
        Relaxation::CompiledFence,
        Relaxation::LateDependents,
        Relaxation::UnfencedInit,
        Relaxation::PeerColumns,
        Relaxation::ExecutionFree,
        Relaxation::CommitOrder,
        Relaxation::RelaxedBarrier,
        Relaxation::AllocatedBefore,
        Relaxation::WaitedLoads,
    ];

    /// Name of the relaxation, as `--allow` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Relaxation::CpAfterMma => "cp-after-mma",
            Relaxation::AfterFence => "after-fence",
            Relaxation::LoadedRegisters => "loaded-registers",
            Relaxation::WarpStores => "warp-stores",
            Relaxation::LaneBits => "lane-bits",
            Relaxation::UnreadStores => "unread-stores",
            Relaxation::GenericShared => "generic-shared",
            Relaxation::Unwritten => "unwritten",
            Relaxation::WriteAfterRead => "write-after-read",
            Relaxation::Collectives => "collectives",
            Relaxation::BarrierScope => "barrier-scope",
            Relaxation::RelaxedWait => "relaxed-wait",
            Relaxation::HandedOn => "handed-on",
            Relaxation::SameBytes => "same-bytes",
            Relaxation::PeerRuns => "peer-runs",
            Relaxation::CompiledFence => "compiled-fence",
            Relaxation::LateDependents => "late-dependents",
            Relaxation::UnfencedInit => "unfenced-init",
            Relaxation::PeerColumns => "peer-columns",
            Relaxation::ExecutionFree => "execution-free",
            Relaxation::CommitOrder => "commit-order",
            Relaxation::RelaxedBarrier => "relaxed-barrier",
            Relaxation::AllocatedBefore => "allocated-before",
            Relaxation::WaitedLoads => "waited-loads",
        }
    }

    /// The property that is relied on, in words.
    pub fn about(self) -> &'static str {
        match self {
            Relaxation::CpAfterMma => {
                "a tcgen05.cp waits for earlier tcgen05.mma and .cp of its thread"
            }
            Relaxation::AfterFence => "no tcgen05.fence::after_thread_sync is needed",
            Relaxation::LoadedRegisters => {
                "a register that a tcgen05.ld writes is complete when it is used"
            }
            Relaxation::WarpStores => "lanes that issue the same bulk store issue it once",
            Relaxation::LaneBits => {
                "a warp reaches its own lanes of tensor memory, whatever the address says"
            }
            Relaxation::UnreadStores => "shared memory stays until bulk stores have read it",
            Relaxation::GenericShared => {
                "a generic address of shared memory and a shared one stand for each other"
            }
            Relaxation::Unwritten => "no result depends on operands that nothing wrote",
            Relaxation::WriteAfterRead => "no proxy fence is needed behind a read",
            Relaxation::Collectives => "warp-synchronous instructions order memory",
            Relaxation::BarrierScope => "the scope of mbarrier operations counts for nothing",
            Relaxation::RelaxedWait => "a relaxed wait acquires",
            Relaxation::HandedOn => "a thread hands order of tcgen05 operations on without fences",
            Relaxation::SameBytes => "of lanes that write the same bytes, one wins",
            Relaxation::PeerRuns => "peer CTAs run from the start",
            Relaxation::CompiledFence => "the compiler adds wgmma.fence for registers",
            Relaxation::LateDependents => "dependents hold no tensor memory before they may",
            Relaxation::UnfencedInit => {
                "a relaxed barrier hands an mbarrier.init on without a fence"
            }
            Relaxation::PeerColumns => {
                "a CTA of a pair keeps its columns until it frees them itself"
            }
            Relaxation::ExecutionFree => {
                "tensor memory may be freed behind what is over in execution order"
            }
            Relaxation::CommitOrder => "the signals of a thread's commits arrive in order",
            Relaxation::RelaxedBarrier => {
                "a relaxed barrier orders what a CTA did to shared memory"
            }
            Relaxation::AllocatedBefore => "the grid before has the tensor memory that it needs",
            Relaxation::WaitedLoads => {
                "what a tcgen05.ld read may be overwritten behind its wait and a barrier"
            }
        }
    }

    /// Whether a run notes where the relaxation was needed. The relaxations without notes are order that a kernel gets
    /// for nothing, and hands on. Only a second set of clocks could tell which accesses would lack such order.
    pub fn is_noted(self) -> bool {
        !matches!(
            self,
            Relaxation::Collectives
                | Relaxation::BarrierScope
                | Relaxation::RelaxedWait
                | Relaxation::HandedOn
        )
    }
}

impl fmt::Display for Relaxation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Relaxation {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Relaxation::ALL.into_iter().find(|r| r.name() == s);
        found.ok_or_else(|| {
            let names: Vec<_> = Relaxation::ALL.iter().map(|r| r.name()).collect();
            format!("`{s}` is none of {}", names.join(", "))
        })
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
