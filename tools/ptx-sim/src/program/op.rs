//! The executable instruction set.

use super::{
    Addr, Alu, AtomicFn, BarMode, BoolOp, CarryForm, Compare, Dst, FenceKind, MbarrierOp, Order,
    PredSrc, Reduction, ShflMode, Src, Transfer, VoteMode,
};
use crate::memory::Space;
use crate::models::approx::Approx;

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
    /// A function that the ISA bounds and does not define.
    Approx {
        f: Approx,
        d: Dst,
        s: [Src; 2],
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
    /// `set`: `yes` where the comparison holds, else zero; in halves of 16 bits if packed.
    Set {
        f: Compare,
        d: Dst,
        a: Src,
        b: Src,
        with: Option<(BoolOp, PredSrc)>,
        yes: u64,
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
        order: Order,
    },
    /// Store.
    St {
        s: Vec<Src>,
        addr: Addr,
        bytes: u32,
        align: u32,
        order: Order,
    },
    /// `atom` and `red`: the new value from old, b and c.
    Atom {
        f: AtomicFn,
        d: Option<Dst>,
        addr: Addr,
        bytes: u32,
        b: Src,
        c: Src,
        order: Order,
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
        uniform: bool,
    },
    /// `exit`, and `ret` of a kernel.
    Exit {
        uniform: bool,
    },
    /// `trap`.
    Trap,
    /// Nothing to compute; hazard checkers may care.
    Fence {
        kind: FenceKind,
    },
    /// Nothing at all: hints, `nanosleep`.
    Hint,
    /// `setmaxnreg`, which changes no value.
    Registers,
    /// `griddepcontrol.wait`.
    GridWait,
    /// `griddepcontrol.launch_dependents`.
    LaunchDependents,
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
        d: Option<Dst>,
        p: Option<u32>,
        a: Src,
        mask: Src,
    },
    Redux {
        op: Reduction,
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
    /// `clusterlaunchcontrol`.
    LaunchControl(super::LaunchControl),
    /// `discard`: 128 bytes that hold nothing any more.
    Discard {
        addr: Addr,
    },
    /// `mma.sync`.
    Mma(Box<super::MmaSync>),
    /// `wgmma`.
    Wgmma(super::Wgmma),
    /// `wmma`.
    Wmma(Box<super::Wmma>),
    /// A call of `vprintf`: addresses in local memory of its result, and of the addresses of its format and values.
    Printf {
        result: u64,
        format: u64,
        values: u64,
    },
    /// A call of `__assertfail`: addresses in local memory of the addresses of its condition, file and function, and
    /// of its line.
    AssertFail {
        texts: [u64; 3],
        line: u64,
    },
    /// Parsed, and known to the ISA, but not modelled: an error when it is reached.
    Unmodelled {
        reason: String,
    },
}

impl Op {
    /// Whether it only moves values between registers or computes with them.
    pub fn hands_values_on(&self) -> bool {
        use Op::*;
        let packs = matches!(self, Multi(_) | Pack { .. } | Unpack { .. } | Insert { .. });
        let computes = matches!(
            self,
            Alu { .. } | Approx { .. } | Carry { .. } | Setp { .. } | Set { .. } | PredLogic { .. }
        );
        packs || computes || matches!(self, Selp { .. } | Shfl { .. })
    }

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
            | Op::Mma(_)
            | Op::Wgmma(_)
            | Op::Wmma(_)
            | Op::Registers
            | Op::Bar {
                aligned: true,
                mode: BarMode::Sync | BarMode::Popc(..) | BarMode::Vote(..),
                ..
            } => WarpSync::All,
            Op::Bar { aligned: true, .. }
            | Op::ClusterArrive { aligned: true, .. }
            | Op::ClusterWait { aligned: true } => WarpSync::Aligned,
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
    /// The whole warp, but it is an error if some lanes have gone another way.
    Aligned,
}
