//! Operands of `wgmma`.

use super::{Dst, PredSrc, Src};
use crate::models::wgmma::{A_REGISTERS, Shape};

/// Operand A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WgmmaA {
    Registers([Dst; A_REGISTERS]),
    Shared { descriptor: Src, transposed: bool },
}

/// `wgmma.mma_async`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WgmmaMma {
    /// Form of the instruction.
    pub shape: Shape,
    /// Accumulator.
    pub d: Vec<Dst>,
    /// A.
    pub a: WgmmaA,
    /// Descriptor of B.
    pub b: Src,
    /// B is transposed: N is contiguous.
    pub transposed_b: bool,
    /// `scale-d`.
    pub accumulate: PredSrc,
    /// `imm-scale-a` is -1.
    pub negate_a: bool,
    /// `imm-scale-b` is -1.
    pub negate_b: bool,
    /// `.satfinite`.
    pub saturate: bool,
}

/// A `wgmma` instruction. All of them are `.sync.aligned`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wgmma {
    /// `fence`.
    Fence,
    /// `mma_async`.
    Mma(Box<WgmmaMma>),
    /// `commit_group`.
    Commit,
    /// `wait_group`: so many groups may be pending.
    Wait {
        /// Number of groups that may stay pending.
        keep: u32,
    },
}
