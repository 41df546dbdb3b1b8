//! Operands of `wmma`.

use super::{Addr, Dst, Src};
use crate::models::wmma::{Fragment, WmmaProduct};

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Wmma {
    /// From memory, by rows or columns; `stride` of its lines in elements.
    Load {
        fragment: Fragment,
        by_columns: bool,
        d: Vec<Option<Dst>>,
        addr: Addr,
        stride: Src,
    },
    /// To memory.
    Store {
        fragment: Fragment,
        by_columns: bool,
        s: Vec<Src>,
        addr: Addr,
        stride: Src,
    },
    Mma {
        product: Box<WmmaProduct>,
        d: Vec<Option<Dst>>,
        /// A, B and C.
        s: [Vec<Src>; 3],
    },
}
