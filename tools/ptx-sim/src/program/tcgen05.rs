//! The `tcgen05` instructions, decoded: operands are registers, modifiers are the models' types.

use super::{Addr, Dst, PredSrc, Src};
use crate::models::idesc::Kind;
use crate::models::tcgen05_cp::{CpFormat, CpShape};
use crate::models::tcgen05_ld_st::LdSt;
use crate::models::tcgen05_mma::{CtaGroup, ScaleVec};

/// An address in tensor memory: register plus offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorAddr {
    /// Base register.
    pub base: Src,
    /// Constant offset.
    pub offset: i64,
}

/// Operand A of an MMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MmaA {
    /// A descriptor of shared memory.
    Descriptor(Src),
    /// Tensor memory.
    Tensor(TensorAddr),
}

/// Operands of `tcgen05.mma`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmaOperands {
    /// `.cta_group`.
    pub group: CtaGroup,
    /// `.kind`.
    pub kind: Kind,
    /// Accumulator.
    pub d: TensorAddr,
    /// A.
    pub a: MmaA,
    /// Descriptor of B.
    pub b: Src,
    /// Instruction descriptor.
    pub idesc: Src,
    /// Scale vector size and the addresses of both scales.
    pub scales: Option<(ScaleVec, TensorAddr, TensorAddr)>,
    /// `disable-output-lane`; empty if there is none.
    pub disable: Vec<Src>,
    /// `enable-input-d`.
    pub enable_d: PredSrc,
    /// `scale-input-d`.
    pub scale_d: Option<u32>,
}

/// A `tcgen05` instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Tcgen05 {
    /// Writes the address to shared memory.
    Alloc {
        group: CtaGroup,
        dst: Addr,
        columns: Src,
    },
    Dealloc {
        group: CtaGroup,
        address: Src,
        columns: Src,
    },
    Relinquish {
        group: CtaGroup,
    },
    Cp {
        group: CtaGroup,
        shape: CpShape,
        format: CpFormat,
        address: TensorAddr,
        desc: Src,
    },
    Mma(Box<MmaOperands>),
    /// With a mask: arrives at the same offset in every CTA of it.
    Commit {
        group: CtaGroup,
        barrier: Addr,
        mask: Option<Src>,
    },
    Ld {
        shape: LdSt,
        d: Vec<Dst>,
        address: TensorAddr,
    },
    St {
        shape: LdSt,
        s: Vec<Src>,
        address: TensorAddr,
    },
    /// `wait::st`, otherwise `wait::ld`.
    Wait {
        stores: bool,
    },
    /// `after_thread_sync`, otherwise `before_thread_sync`.
    Fence {
        after: bool,
    },
}

impl Tcgen05 {
    /// Whether it is `.sync.aligned`.
    pub fn aligned(&self) -> bool {
        use Tcgen05::{Alloc, Dealloc, Ld, Relinquish, St, Wait};
        matches!(
            self,
            Alloc { .. } | Dealloc { .. } | Relinquish { .. } | Ld { .. } | St { .. } | Wait { .. }
        )
    }
}
