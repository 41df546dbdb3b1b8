//! `tcgen05.mma`: one dense matrix multiply-accumulate, executed at once.
//!
//! Source: PTX ISA "TensorCore 5th Generation Matrix Multiply and accumulate Operations". The
//! caller decides when it happens; [`execute`] reads every operand, then writes D.

mod compute;
mod inner;
mod layout;
mod operand;
mod owed;
mod scale;
mod shape;
mod small;

pub use compute::Summation;
pub use layout::{DCell, d_cell};
pub use owed::Owed;
pub use scale::{ScaleVec, sfa_cell, sfb_cell};
pub use shape::check_shape;

use super::idesc::{Idesc, IdescError, Kind};
use super::memory::{SharedRead, SharedReadError};
use super::smem_desc::{SmemDesc, SmemDescError};
use super::sums::{Form, Instruction, NoRule, Rule, SumRule};
use super::tmem::{Tmem, TmemAddr, TmemError};
use thiserror::Error;

/// `.cta_group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CtaGroup {
    /// One CTA.
    One,
    /// A CTA pair.
    Two,
}

impl CtaGroup {
    /// CTAs involved.
    pub fn ctas(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Place of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AOperand {
    /// In shared memory; each CTA has its half.
    Shared(SmemDesc),
    /// In tensor memory.
    Tmem(TmemAddr),
}

/// The scale operands of a block-scaled kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scales {
    /// `.scale_vec::NX`, aliases resolved.
    pub vec: ScaleVec,
    /// Address of scale_A.
    pub a: TmemAddr,
    /// Address of scale_B.
    pub b: TmemAddr,
}

/// One `tcgen05.mma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mma {
    /// `.cta_group`.
    pub group: CtaGroup,
    /// The decoded instruction descriptor; it carries the kind.
    pub idesc: Idesc,
    /// Address of D.
    pub d: TmemAddr,
    /// A.
    pub a: AOperand,
    /// B.
    pub b: SmemDesc,
    /// `enable-input-d`.
    pub accumulate: bool,
    /// `scale-input-d`: D is multiplied by 2^-this first.
    pub scale_input_d: u32,
    /// Scale operands, for the block-scaled kinds.
    pub scales: Option<Scales>,
    /// `disable-output-lane`: bit l of word w disables lane 32w + l; words 4.. are the odd
    /// CTA's.
    pub disable_lanes: [u32; 8],
    /// Rounding of the sum over K.
    pub summation: Summation,
}

/// The memories of one CTA of the group.
#[derive(Debug)]
pub struct CtaMemory<'a, S: SharedRead + ?Sized> {
    /// Shared memory of the CTA.
    pub shared: &'a S,
    /// Tensor memory of the CTA.
    pub tmem: &'a mut Tmem,
}

/// The rule an MMA breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum MmaError {
    #[error("shape M={m} N={n} is not defined for {kind:?} with .cta_group::{group}")]
    Shape {
        kind: Kind,
        group: usize,
        m: u32,
        n: u32,
    },
    #[error(transparent)]
    Idesc(#[from] IdescError),
    #[error("the instruction descriptor's fields contradict each other")]
    IdescFields,
    #[error("{got} CTA memories for .cta_group::{group}")]
    Ctas { got: usize, group: usize },
    #[error("A: {0}")]
    DescA(SmemDescError),
    #[error("B: {0}")]
    DescB(SmemDescError),
    #[error("operand {operand} of CTA {cta}: {source}")]
    Shared {
        operand: char,
        cta: usize,
        source: SharedReadError,
    },
    #[error("{operand} of CTA {cta}: {source}")]
    Tmem {
        operand: &'static str,
        cta: usize,
        source: TmemError,
    },
    #[error("{operand} starts at lane {lane}, which its data path layout does not allow")]
    Lane { operand: &'static str, lane: u32 },
    #[error("block-scaled kinds need scale operands and the others take none")]
    Scales,
    #[error("scale vector {vec:?} with {scale:?} scales is not defined for {kind:?}")]
    ScaleVec {
        kind: Kind,
        vec: ScaleVec,
        scale: super::idesc::ScaleType,
    },
    #[error("scale factor {which} id {id} is not allowed for {vec:?}")]
    ScaleId { which: char, id: u8, vec: ScaleVec },
    #[error(
        "scale {which} of row {row} differs between lane partitions: \
         it must be duplicated to all of them"
    )]
    ScaleNotDuplicated { which: char, row: u32 },
    #[error("scale {which} of row {row}, block {block} is {value:#04x}: UE4M3 has no sign bit")]
    ScaleSign {
        which: char,
        row: u32,
        block: u32,
        value: u8,
    },
    #[error("scale-input-d {value} is not in 0..=15, or {kind:?} does not take it")]
    ScaleInputD { value: u32, kind: Kind },
    #[error("columns {first}..{end} are written as part of D and read as another operand")]
    Overlap { first: u32, end: u32 },
    #[error(transparent)]
    SumRule(#[from] NoRule),
    #[error("not modelled: {0}")]
    Unmodelled(&'static str),
}

/// Tensor memory columns `first..first + count` of lanes `lane..lane + lanes` of one CTA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TmemBlock {
    /// CTA within the group.
    pub cta: usize,
    /// First lane.
    pub lane: u32,
    /// Number of lanes.
    pub lanes: u32,
    /// First column.
    pub column: u32,
    /// Number of columns.
    pub columns: u32,
}

impl TmemBlock {
    /// The columns that both have in some lane.
    fn common(&self, other: &Self) -> Option<(u32, u32)> {
        let both = |a, n, b, m| u32::max(a, b)..u32::min(a + n, b + m);
        let columns = both(self.column, self.columns, other.column, other.columns);
        let lanes = both(self.lane, self.lanes, other.lane, other.lanes);
        (self.cta == other.cta && !columns.is_empty() && !lanes.is_empty())
            .then_some((columns.start, columns.end))
    }
}

/// Memory that an MMA touches, for hazard checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Shared byte ranges `(cta, address, length)` read.
    pub shared_reads: Vec<(usize, u32, u32)>,
    /// Tensor memory read, apart from D.
    pub tmem_reads: Vec<TmemBlock>,
    /// D: written, and read if it accumulates.
    pub d: Vec<TmemBlock>,
}

impl Mma {
    /// The rule by which the instruction adds; `None` for integers, and where no rule says it.
    ///
    /// # Errors
    /// Nobody says how.
    pub fn rule(&self, sums: SumRule) -> Result<Option<Rule>, NoRule> {
        let i = &self.idesc;
        let scales = self.scales.map(|s| super::sums::Scales {
            kind: i.kind,
            count: s.vec.count() as usize,
            ty: i.scale,
        });
        sums.rule(&Form {
            instruction: Instruction::Tcgen05 {
                pair: self.group == CtaGroup::Two,
                scales_d: self.scale_input_d != 0,
            },
            k: i.kind.k() as usize,
            a: i.a,
            b: i.b,
            d: i.d,
            scales,
        })
    }

    /// Checks everything that does not depend on memory contents.
    pub fn check(&self) -> Result<(), MmaError> {
        let (i, kind) = (&self.idesc, self.idesc.kind);
        // Fields put together by hand must be ones a descriptor can hold.
        match Idesc::decode(i.encode(), kind) {
            Ok(decoded) if decoded == *i => {}
            Ok(_) => return Err(MmaError::IdescFields),
            Err(e) => return Err(MmaError::Idesc(e)),
        }
        if i.sparse {
            return Err(MmaError::Unmodelled("sparse A (tcgen05.mma.sp)"));
        }
        if i.k96 {
            return Err(MmaError::Unmodelled("K = 96 (sm_103a)"));
        }
        if i.ws_shift != 0 {
            return Err(MmaError::Unmodelled("the maximum-shift field of .ws"));
        }
        check_shape(i, self.group)?;
        let scalable = matches!(kind, Kind::F16 | Kind::Tf32);
        if self.scale_input_d > 15 || (self.scale_input_d != 0 && !scalable) {
            return Err(MmaError::ScaleInputD {
                value: self.scale_input_d,
                kind,
            });
        }
        match (&self.scales, kind.is_block_scaled()) {
            (Some(s), true) => scale::check(i, s.vec)?,
            (None, false) => {}
            _ => return Err(MmaError::Scales),
        }
        layout::check_d_lane(self.group, i.m, self.d)?;
        if let AOperand::Tmem(a) = self.a {
            operand::check_tmem_a(self, a)?;
        }
        Ok(())
    }

    /// The memory this MMA touches. D must not overlap the other operands: nothing promises that
    /// all of them are read before it is written.
    pub fn footprint(&self) -> Result<Footprint, MmaError> {
        self.check()?;
        let mut out = Footprint::default();
        operand::footprint(self, &mut out)?;
        scale::footprint(self, &mut out);
        layout::footprint(self, &mut out);
        let pairs = |r: &TmemBlock| out.d.iter().find_map(|d| r.common(d));
        match out.tmem_reads.iter().find_map(pairs) {
            Some((first, end)) => Err(MmaError::Overlap { first, end }),
            None => Ok(out),
        }
    }
}

/// Executes an MMA on the memories of its CTAs: even CTA first, and only one for
/// `.cta_group::1`. On an error D is unchanged.
pub fn execute<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &mut [CtaMemory<'_, S>],
) -> Result<(), MmaError> {
    mma.check()?;
    if ctas.len() != mma.group.ctas() {
        return Err(MmaError::Ctas {
            got: ctas.len(),
            group: mma.group.ctas(),
        });
    }
    let product = compute::product(mma, ctas)?;
    layout::write_d(mma, &product, ctas)
}
