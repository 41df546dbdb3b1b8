//! The executable instruction set.

use std::fmt;
use std::sync::Arc;

use super::Transfer;
use crate::memory::Space;

/// A register of a warp: one value a lane, zero-extended.
pub type Lanes = [u64; 32];

/// A register to read; with the high bit set, a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Src(pub u32);

impl Src {
    /// Marks constants.
    pub const CONST: u32 = 1 << 31;
}

/// A register to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dst(pub u32);

/// A predicate to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredSrc {
    /// Its slot.
    pub slot: u32,
    /// Read as its opposite.
    pub negated: bool,
}

/// An arithmetic instruction over all lanes, from its sources to its result.
#[derive(Clone)]
pub struct Alu(pub(crate) Arc<AluFn>);

/// A loop over lanes, generated around a scalar function so that the compiler can vectorise it.
pub type AluFn = dyn Fn(&Lanes, &Lanes, &Lanes, &mut Lanes) + Send + Sync;

impl Alu {
    /// From a function of one source.
    pub fn of1(f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |a, _, _, d| {
            for (d, a) in d.iter_mut().zip(a) {
                *d = f(*a);
            }
        }))
    }

    /// From a function of two sources.
    pub fn of2(f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |a, b, _, d| {
            for i in 0..32 {
                d[i] = f(a[i], b[i]);
            }
        }))
    }

    /// From a function of three sources.
    pub fn of3(f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |a, b, c, d| {
            for i in 0..32 {
                d[i] = f(a[i], b[i], c[i]);
            }
        }))
    }

    /// The result for one lane's values.
    pub fn scalar(&self, a: u64, b: u64, c: u64) -> u64 {
        let mut d = [0; 32];
        (self.0)(&[a; 32], &[b; 32], &[c; 32], &mut d);
        d[0]
    }
}

impl fmt::Debug for Alu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alu")
    }
}

/// A comparison over all lanes; a bit a lane. Packed comparisons have a second result.
#[derive(Clone)]
pub struct Compare(pub(crate) Arc<CompareFn>);

/// See [`Compare`].
pub type CompareFn = dyn Fn(&Lanes, &Lanes) -> (u32, u32) + Send + Sync;

impl fmt::Debug for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compare")
    }
}

/// How two predicates combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

impl BoolOp {
    /// On a bit a lane.
    pub fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            BoolOp::And => a & b,
            BoolOp::Or => a | b,
            BoolOp::Xor => a ^ b,
        }
    }
}

/// Values that a warp finds in registers when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    NWarpId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    ClusterId(usize),
    NClusterId(usize),
    ClusterCtaid(usize),
    ClusterNctaid(usize),
    ClusterCtaRank,
    ClusterNctaRank,
    SmId,
    NSmId,
    GridId,
    DynamicSharedSize,
    TotalSharedSize,
    /// Address of a shared variable at this offset: it holds the CTA's rank in its upper bits.
    SharedAddress(u32),
}

/// Counters that read differently each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Clock {
    Clock,
    ClockHi,
    Clock64,
    Timer,
    TimerLo,
    TimerHi,
}

/// An address: register plus offset in a state space; `None` is generic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addr {
    /// Space, `None` for generic addresses.
    pub space: Option<Space>,
    /// Shared memory of this CTA only (`.shared::cta`).
    pub own: bool,
    /// Base register.
    pub base: Src,
    /// Constant offset.
    pub offset: i64,
    /// Addresses in 32-bit registers wrap at 32 bits.
    pub narrow: bool,
}

/// An atomic operation: the new value from the old one and the sources.
#[derive(Clone)]
pub struct AtomicFn {
    pub(crate) f: Arc<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>,
    /// It is `cas`: the third argument is its second source. Otherwise that argument is 1 on
    /// global memory, where some additions round differently.
    pub(crate) compares: bool,
}

impl fmt::Debug for AtomicFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtomicFn")
    }
}

/// Modes of `shfl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// Modes of `vote` and reductions over predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VoteMode {
    All,
    Any,
    Uni,
}

/// Reductions of `redux.sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReduxOp {
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
}

/// What a fence orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceKind {
    /// `membar` and `fence` of the generic proxy.
    Memory,
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

/// What a barrier instruction does.
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

/// What an `mbarrier` instruction does to its object.
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
    },
    /// `test_wait`, or `try_wait` if it may suspend; by parity or by state.
    Wait {
        p: u32,
        operand: Src,
        parity: bool,
        suspends: bool,
    },
}

/// Which extended-precision instruction.
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
    /// Of a product: its upper half.
    pub high: bool,
    /// Of a product: of signed numbers.
    pub signed: bool,
}

/// An executable instruction.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Op {
    /// Arithmetic of up to three sources.
    Alu {
        f: Alu,
        d: Dst,
        s: [Src; 3],
        n: u8,
    },
    /// Extended-precision addition; reads and writes the carry of each lane.
    Carry {
        d: Dst,
        a: Src,
        b: Src,
        times: Option<Src>,
        f: CarryForm,
    },
    /// `bfi` with position and length in registers.
    Insert {
        d: Dst,
        a: Src,
        b: Src,
        at: Src,
        n: Src,
        bits: u32,
    },
    /// Moves that happen at once.
    Multi(Vec<(Dst, Src)>),
    /// Packs parts, the lowest first, each of so many bits.
    Pack {
        d: Dst,
        parts: Vec<Src>,
        bits: u32,
    },
    /// Splits into parts.
    Unpack {
        parts: Vec<Option<Dst>>,
        a: Src,
        bits: u32,
    },
    /// `setp`.
    Setp {
        f: Compare,
        p: Option<u32>,
        q: Option<u32>,
        a: Src,
        b: Src,
        with: Option<(BoolOp, PredSrc)>,
        packed: bool,
    },
    /// `selp`.
    Selp {
        d: Dst,
        a: Src,
        b: Src,
        p: PredSrc,
    },
    /// Logic on predicates.
    PredLogic {
        op: BoolOp,
        d: u32,
        a: PredSrc,
        b: PredSrc,
    },
    /// Counter.
    ReadClock {
        d: Dst,
        which: Clock,
    },
    /// Load of vector elements, each of `bytes`, sign-extended from there if asked.
    Ld {
        d: Vec<Option<Dst>>,
        addr: Addr,
        bytes: u32,
        align: u32,
        signed: bool,
    },
    /// Store.
    St {
        s: Vec<Src>,
        addr: Addr,
        bytes: u32,
        align: u32,
    },
    /// `atom` and `red`: the new value from old, b and c.
    Atom {
        f: AtomicFn,
        d: Option<Dst>,
        addr: Addr,
        bytes: u32,
        b: Src,
        c: Src,
    },
    /// A prefetch, or an address that is only checked by hardware that may ignore it.
    Prefetch,
    /// Branch.
    Bra {
        target: u32,
        uniform: bool,
    },
    /// Indexed branch.
    BrxIdx {
        targets: Vec<u32>,
        index: Src,
    },
    /// `exit`, and `ret` of a kernel.
    Exit,
    /// `trap`.
    Trap,
    /// Nothing to compute; hazard checkers may care.
    Fence {
        kind: FenceKind,
    },
    /// Nothing at all: hints, `nanosleep`, `griddepcontrol`.
    Hint,
    /// `bar` and `barrier`.
    Bar {
        mode: BarMode,
        id: Src,
        count: Option<Src>,
        aligned: bool,
    },
    /// `barrier.cluster.arrive`.
    ClusterArrive {
        relaxed: bool,
        aligned: bool,
    },
    /// `barrier.cluster.wait`.
    ClusterWait {
        aligned: bool,
    },
    /// `bar.warp.sync`.
    WarpSync {
        mask: Src,
    },
    Shfl {
        mode: ShflMode,
        d: Dst,
        p: Option<u32>,
        a: Src,
        b: Src,
        c: Src,
        mask: Src,
    },
    Vote {
        mode: VoteMode,
        d: u32,
        p: PredSrc,
        mask: Src,
    },
    Ballot {
        d: Dst,
        p: PredSrc,
        mask: Src,
    },
    Match {
        all: bool,
        d: Dst,
        p: Option<u32>,
        a: Src,
        mask: Src,
    },
    Redux {
        op: ReduxOp,
        d: Dst,
        a: Src,
        mask: Src,
    },
    Elect {
        d: Option<Dst>,
        p: u32,
        mask: Src,
    },
    ActiveMask {
        d: Dst,
    },
    /// `isspacep`.
    IsSpace {
        p: u32,
        a: Src,
        space: Space,
        own: bool,
    },
    /// `mapa`: the same address in another CTA of the cluster.
    Mapa {
        d: Dst,
        a: Src,
        rank: Src,
        generic: bool,
    },
    /// `getctarank`.
    CtaRank {
        d: Dst,
        a: Src,
        generic: bool,
    },
    /// Tensor memory and the fifth-generation tensor core.
    Tcgen05(super::Tcgen05),
    /// `mbarrier`.
    Mbarrier {
        op: MbarrierOp,
        addr: Addr,
    },
    /// `mbarrier.pending_count`.
    PendingCount {
        d: Dst,
        a: Src,
    },
    /// Asynchronous copies.
    Transfer(Box<Transfer>),
    /// `ldmatrix`.
    LdMatrix {
        d: Vec<Option<Dst>>,
        addr: Addr,
        transposed: bool,
    },
    /// `stmatrix`.
    StMatrix {
        s: Vec<Src>,
        addr: Addr,
        transposed: bool,
    },
    /// `movmatrix`.
    MovMatrix {
        d: Dst,
        a: Src,
    },
    /// Parsed, and known to the ISA, but not modelled: an error when it is reached.
    Unmodelled {
        reason: String,
    },
}

impl Op {
    /// The lanes that must meet before it executes: those of a mask operand, or the whole warp.
    pub fn warp_sync(&self) -> WarpSync {
        match self {
            Op::WarpSync { mask }
            | Op::Shfl { mask, .. }
            | Op::Vote { mask, .. }
            | Op::Ballot { mask, .. }
            | Op::Match { mask, .. }
            | Op::Redux { mask, .. }
            | Op::Elect { mask, .. } => WarpSync::Mask(*mask),
            Op::LdMatrix { .. }
            | Op::StMatrix { .. }
            | Op::MovMatrix { .. }
            | Op::Bar { aligned: true, .. }
            | Op::ClusterArrive { aligned: true, .. }
            | Op::ClusterWait { aligned: true } => WarpSync::All,
            Op::Tcgen05(t) if t.aligned() => WarpSync::All,
            _ => WarpSync::None,
        }
    }
}

/// See [`Op::warp_sync`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WarpSync {
    None,
    Mask(Src),
    All,
}
