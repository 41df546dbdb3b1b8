//! Modes in which instructions of one family differ.

use super::{Dst, PredSrc, Src};

named! {
    /// Modes of `shfl`.
    #[allow(missing_docs)]
    ShflMode {
        Up "up",
        Down "down",
        Bfly "bfly",
        Idx "idx",
    }
}

named! {
    /// Modes of `vote` and reductions over predicates.
    #[allow(missing_docs)]
    VoteMode {
        All "all",
        Any "any",
        Uni "uni",
    }
}

/// Kind of a fence, by the accesses that it orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceKind {
    /// `fence.acq_rel`.
    AcqRel,
    /// `fence.acquire`.
    Acquire,
    /// `fence.release`.
    Release,
    /// `fence.sc` and `membar`.
    Sc,
    /// `fence.mbarrier_init`.
    MbarrierInit,
    /// `fence.proxy.alias`.
    ProxyAlias,
    /// `fence.proxy.async` and the spaces it is limited to.
    ProxyAsync {
        /// Orders global memory.
        global: bool,
        /// Orders shared memory.
        shared: bool,
    },
}

/// Kind of a barrier instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarMode {
    /// Arrive and wait.
    Sync,
    /// Arrive only.
    Arrive,
    /// Arrive, wait, and count predicates.
    Popc(Dst, PredSrc),
    /// Arrive, wait, and combine predicates; `true` for and.
    Vote(u32, PredSrc, bool),
}

/// Memory semantics of a load, store or atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Order {
    /// Not weak: `.relaxed` or more, `.volatile`, atomics. Such accesses are no data races.
    pub strong: bool,
    /// `.acquire`.
    pub acquires: bool,
    /// `.release`.
    pub releases: bool,
    /// `red`, whose read begins no acquire pattern.
    pub reduces: bool,
}

/// Semantics and scope of an arrive or wait on an mbarrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BarrierSync {
    /// `.relaxed`; release or acquire otherwise.
    pub relaxed: bool,
    /// `.cluster`; `.cta` otherwise.
    pub cluster: bool,
}

/// Operation of an `mbarrier` instruction on its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MbarrierOp {
    Init {
        count: Src,
    },
    Inval,
    ExpectTx {
        tx: Src,
    },
    CompleteTx {
        tx: Src,
    },
    /// The state goes to `d`; `drop` is `arrive_drop`.
    Arrive {
        d: Option<Dst>,
        count: Option<Src>,
        tx: Option<Src>,
        drop: bool,
        no_complete: bool,
        sync: BarrierSync,
    },
    /// `test_wait`, or `try_wait` if it may suspend; by parity or by state.
    Wait {
        p: u32,
        operand: Src,
        parity: bool,
        suspends: bool,
        sync: BarrierSync,
    },
}

/// An extended-precision instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarryForm {
    /// 32 or 64.
    pub bits: u32,
    /// Subtracts instead of adding.
    pub subtract: bool,
    /// Adds the carry.
    pub carry_in: bool,
    /// Sets the carry.
    pub carry_out: bool,
    /// Whether the result is the upper half of a product.
    pub high: bool,
    /// Whether the factors of a product are signed.
    pub signed: bool,
}
