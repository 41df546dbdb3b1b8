//! Asynchronous copies and reductions, and the groups that threads wait for them by.

use super::{Addr, PredSrc, Src};
use crate::ast::Ty;
use crate::models::tma::Direction;
use crate::models::tma_bulk::ReduceOp;

/// Signal of a copy that it has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// By a complete-tx on an mbarrier object.
    Mbarrier(Addr),
    /// By the bulk group of its thread.
    Group,
}

/// Operation and element type of a reduction.
pub type Reduction = (ReduceOp, Ty);

/// An instruction about asynchronous copies.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Transfer {
    /// `cp.async`: `size` bytes, of which `src_size` are read and the rest is zero.
    Small {
        dst: Addr,
        src: Addr,
        size: u32,
        src_size: Option<Src>,
        ignore: Option<PredSrc>,
    },
    /// `cp.async.bulk` and `cp.reduce.async.bulk`.
    Bulk {
        dst: Addr,
        src: Addr,
        size: Src,
        completion: Completion,
        mask: Option<Src>,
        reduce: Option<Reduction>,
    },
    /// The tensor copies. `pair`: the mbarrier object may be the peer CTA's.
    Tensor {
        map: Addr,
        coords: Vec<Src>,
        shared: Addr,
        direction: Direction,
        completion: Completion,
        mask: Option<Src>,
        /// The tensor map has the type.
        reduce: Option<ReduceOp>,
        pair: bool,
    },
    /// `st.async` and `red.async`.
    Store {
        dst: Addr,
        values: Vec<Src>,
        bytes: u32,
        mbarrier: Addr,
        reduce: Option<Reduction>,
    },
    /// `commit_group`.
    Commit { bulk: bool },
    /// `wait_group`: all groups but the last `keep`; all operations if there is none.
    Wait {
        bulk: bool,
        keep: Option<u32>,
        reads_only: bool,
    },
    /// `cp.async.mbarrier.arrive`.
    Arrive { addr: Addr, increments: bool },
}
