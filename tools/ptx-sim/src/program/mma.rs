//! Operands of `mma.sync`.

use super::{Dst, Src};
use crate::models::mma_sync::Mma;

/// One instruction with its fragments' registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmaSync {
    /// The product that the instruction computes.
    pub mma: Mma,
    /// D; `None` for `_`.
    pub d: Vec<Option<Dst>>,
    /// A.
    pub a: Vec<Src>,
    /// B.
    pub b: Vec<Src>,
    /// C.
    pub c: Vec<Src>,
    /// The block scales of A and of B.
    pub scales: Option<[BlockScales; 2]>,
}

/// Block scales of A or B, and where in them those of the instruction are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockScales {
    /// The register of scales.
    pub register: Src,
    /// `{byte-id, thread-id}`.
    pub selector: [Src; 2],
}
