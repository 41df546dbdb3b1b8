//! Accesses, and conflicts between two of them, as reports have them.

use super::super::swizzle::Swizzle;
use std::fmt;

/// Method of access ("Proxies").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// Ordinary loads and stores, and every mbarrier operation.
    Generic,
    /// TMA, and the shared memory side of `tcgen05.mma` and `.cp`.
    Async,
    /// Tensor memory accesses of tcgen05 operations.
    Tensor,
}

/// Kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Reads.
    Read,
    /// Writes (`mbarrier.inval` too).
    Write,
    /// `mbarrier.init`.
    Init,
    /// The memory is freed, or its CTA ends.
    Free,
    /// Acts atomically: mbarrier operations and atomics, which do not conflict with each other.
    Sync,
}

/// A range of one memory. The caller numbers its memories: shared memory of each CTA, global
/// memory, each lane quarter of each tensor memory (ranged by column), and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// Number of the memory.
    pub space: u64,
    /// First byte (or column).
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Range {
    /// `len` bytes from `start`.
    pub fn new(space: u64, start: u64, len: u64) -> Self {
        Self {
            space,
            start,
            end: start.saturating_add(len),
        }
    }
}

/// One access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// Bytes of the access.
    pub range: Range,
    /// Kind of the access.
    pub kind: AccessKind,
    /// Proxy of the access.
    pub proxy: Proxy,
    /// The caller's number for the instruction, for reports.
    pub site: u32,
}

impl Access {
    /// An access by an instruction of this number.
    pub fn new(range: Range, kind: AccessKind, proxy: Proxy, site: u32) -> Self {
        Self {
            range,
            kind,
            proxy,
            site,
        }
    }
}

/// A thread (or warp), numbered by the tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Agent(pub(super) u32);

/// An asynchronous operation, numbered by the tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(pub(super) u32);

/// The maker of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Actor {
    /// A thread itself.
    Agent(Agent),
    /// An asynchronous operation.
    Op(Op),
}

/// One side of a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Side {
    /// The maker of the access.
    pub actor: Actor,
    /// The thread that executed the instruction.
    pub thread: Agent,
    /// The instruction.
    pub site: u32,
    /// Kind of the access.
    pub kind: AccessKind,
    /// Proxy of the access.
    pub proxy: Proxy,
}

/// Why two accesses conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// Nothing orders them.
    Race,
    /// The earlier one is an asynchronous operation that has not completed.
    InFlight,
    /// The earlier operation has completed, but nobody told the later one's thread.
    NotWaitedFor,
    /// Ordered, but through different proxies without a proxy fence in between.
    MissingProxyFence,
    /// A generic read, then an async write, ordered but without a proxy fence. Public kernels
    /// rely on this order; [`super::Profile::Hardware`] does not report it.
    MissingProxyFenceWar,
    /// Ordered by synchronisation, but without the `tcgen05.fence` that extends it to tcgen05
    /// operations.
    MissingTcgen05Fence,
    /// An mbarrier is used where its initialisation is not visible.
    BarrierInitNotVisible,
    /// The memory was freed before.
    Freed,
    /// Memory of threads that are not known to run yet. Both sides are the access.
    PeerNotStarted,
    /// Memory may be gone before an access to it is over: the later side is the end of its CTA.
    MayOutlive,
}

impl ConflictKind {
    /// The reason in words.
    pub fn why(self) -> &'static str {
        match self {
            ConflictKind::Race => "nothing orders the two",
            ConflictKind::InFlight => "the earlier one is still in flight",
            ConflictKind::NotWaitedFor => "the completion of the earlier one was not waited for",
            ConflictKind::MissingProxyFence => "fence.proxy.async is missing between them",
            ConflictKind::MissingProxyFenceWar => {
                "fence.proxy.async is missing between them (write after read)"
            }
            ConflictKind::MissingTcgen05Fence => "a tcgen05.fence is missing between them",
            ConflictKind::BarrierInitNotVisible => "the mbarrier's initialisation is not visible",
            ConflictKind::Freed => "the memory was freed before",
            ConflictKind::PeerNotStarted => "nothing tells that the CTA of this memory runs",
            ConflictKind::MayOutlive => "nothing keeps the CTA of this memory until it is over",
        }
    }
}

/// An operand that is read with another swizzle than it was written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixed {
    /// Written with, and read with.
    pub swizzles: [Swizzle; 2],
    /// The access that wrote, and the access that reads.
    pub sides: [Side; 2],
}

/// A reported conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conflict {
    /// Why.
    pub kind: ConflictKind,
    /// Bytes (or columns) both touch.
    pub range: Range,
    /// The access that was made first.
    pub earlier: Side,
    /// The access that found it.
    pub later: Side,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |s: &Side| {
            let who = match s.actor {
                Actor::Agent(a) => format!("thread {}", a.0),
                Actor::Op(o) => format!("asynchronous operation {}", o.0),
            };
            format!(
                "{:?} through the {:?} proxy by {who} at site {}",
                s.kind, s.proxy, s.site
            )
        };
        let why = self.kind.why();
        write!(
            f,
            "space {} {:#x}..{:#x}: {}, then {}: {why}",
            self.range.space,
            self.range.start,
            self.range.end,
            side(&self.earlier),
            side(&self.later)
        )
    }
}
