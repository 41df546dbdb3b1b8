//! Scale factors in tensor memory: "Block Scaling", "Scale Factor A ID", "Scale Factor B ID".

use super::super::idesc::{Idesc, Kind, ScaleType};
use super::super::memory::SharedRead;
use super::super::tmem::TmemAddr;
use super::{CtaGroup, CtaMemory, Footprint, Mma, MmaError, TmemBlock};
use crate::softfloat::{ue4m3, ue8m0};

/// `.scale_vec::NX`, which `.block16` and `.block32` are aliases of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ScaleVec {
    X1,
    X2,
    X4,
}

impl ScaleVec {
    /// Resolves `.blockN` for a kind with K other than 96.
    pub fn from_block(block: u32, kind: Kind) -> Option<Self> {
        match (block, kind) {
            (16, Kind::Mxf4nvf4) => Some(Self::X4),
            (32, Kind::Mxf4 | Kind::Mxf4nvf4) => Some(Self::X2),
            (32, Kind::Mxf8f6f4) => Some(Self::X1),
            _ => None,
        }
    }

    /// Scales per row.
    pub fn count(self) -> u32 {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
        }
    }
}

/// "Valid combinations of scale_vectorsize with types and MMA-Kind", and the ids.
pub(super) fn check(i: &Idesc, vec: ScaleVec) -> Result<(), MmaError> {
    let ok = matches!(
        (i.kind, vec, i.scale),
        (Kind::Mxf8f6f4, ScaleVec::X1, ScaleType::Ue8m0)
            | (Kind::Mxf4 | Kind::Mxf4nvf4, ScaleVec::X2, ScaleType::Ue8m0)
            | (Kind::Mxf4nvf4, ScaleVec::X4, _)
    );
    if !ok {
        return Err(MmaError::ScaleVec {
            kind: i.kind,
            vec,
            scale: i.scale,
        });
    }
    for (which, id) in [('A', i.sfa_id), ('B', i.sfb_id)] {
        let allowed = match vec {
            ScaleVec::X1 => id < 4,
            ScaleVec::X2 => id == 0 || id == 2,
            ScaleVec::X4 => id == 0,
        };
        if !allowed {
            return Err(MmaError::ScaleId { which, id, vec });
        }
    }
    Ok(())
}

/// Copies of a scale: lane and column (relative), then how many lane partitions `step` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleCell {
    /// Lane of the first copy.
    pub lane: u32,
    /// Column.
    pub column: u32,
    /// Copies, 32 lanes apart.
    pub copies: u32,
}

/// The cell of the scales of row `row` of the CTA's share of A.
pub fn sfa_cell(row: u32) -> ScaleCell {
    ScaleCell {
        lane: row % 32,
        column: row / 32,
        copies: 4,
    }
}

/// The cell of the scales of column `col` of B. Every CTA of a pair holds all of B's scales;
/// with M = 128 of a pair (layout B), lanes 64.. hold those of the right half.
pub fn sfb_cell(group: CtaGroup, m: u32, n: u32, col: u32) -> ScaleCell {
    let col = col % 256;
    if group == CtaGroup::Two && m == 128 {
        let half = (n / 2).max(1);
        let (side, c) = (col / half, col % half);
        ScaleCell {
            lane: c % 32 + 64 * side,
            column: c / 32,
            copies: 2,
        }
    } else {
        ScaleCell {
            lane: col % 32,
            column: col / 32,
            copies: 4,
        }
    }
}

/// Scales of A `[m][count]` and of B `[n][count]`.
pub(super) struct Factors {
    pub(super) count: u32,
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
}

struct Reader<'a> {
    count: u32,
    scale: ScaleType,
    which: char,
    id: u8,
    base: TmemAddr,
    cta: usize,
    tmem: &'a super::Tmem,
}

impl Reader<'_> {
    fn read(&self, row: u32, cell: ScaleCell, out: &mut Vec<f64>) -> Result<(), MmaError> {
        let mask = ((1u32 << self.count) - 1) << self.id;
        let fail = |source| MmaError::Tmem {
            operand: if self.which == 'A' {
                "scale A"
            } else {
                "scale B"
            },
            cta: self.cta,
            source,
        };
        let bytes = mask_bytes(mask);
        let mut first = None;
        for copy in 0..cell.copies {
            let lane = self.base.lane() + cell.lane + 32 * copy;
            let column = self.base.column() + cell.column;
            let word = self
                .tmem
                .read_operand(lane, column, mask as u8)
                .map_err(fail)?
                & bytes;
            if *first.get_or_insert(word) != word {
                return Err(MmaError::ScaleNotDuplicated {
                    which: self.which,
                    row,
                });
            }
        }
        let word = first.unwrap_or(0) >> (8 * u32::from(self.id));
        for block in 0..self.count {
            let value = (word >> (8 * block)) as u8;
            out.push(match self.scale {
                ScaleType::Ue8m0 => ue8m0(value),
                ScaleType::Ue4m3 => ue4m3(value).ok_or(MmaError::ScaleSign {
                    which: self.which,
                    row,
                    block,
                    value,
                })?,
            });
        }
        Ok(())
    }
}

fn mask_bytes(mask: u32) -> u32 {
    (0..4)
        .filter(|i| mask >> i & 1 == 1)
        .fold(0, |m, i| m | 0xff << (8 * i))
}

/// Reads the scales of a checked block-scaled MMA; `None` for the other kinds.
pub(super) fn read<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &[CtaMemory<'_, S>],
) -> Result<Option<Factors>, MmaError> {
    let Some(s) = mma.scales else { return Ok(None) };
    for (operand, at) in [("scale A", s.a), ("scale B", s.b)] {
        if at.lane() != 0 {
            return Err(MmaError::Lane {
                operand,
                lane: at.lane(),
            });
        }
    }
    let i = &mma.idesc;
    let (count, scale) = (s.vec.count(), i.scale);
    let mut out = Factors {
        count,
        a: Vec::new(),
        b: Vec::new(),
    };
    let share = i.m / mma.group.ctas() as u32;
    for (cta, memory) in ctas.iter().enumerate() {
        let tmem = &*memory.tmem;
        let reader = |which, id, base| Reader {
            count,
            scale,
            which,
            id,
            base,
            cta,
            tmem,
        };
        let sfa = reader('A', i.sfa_id, s.a);
        for row in 0..share {
            sfa.read(row, sfa_cell(row), &mut out.a)?;
        }
        let sfb = reader('B', i.sfb_id, s.b);
        let mut b = Vec::with_capacity((i.n * count) as usize);
        for col in 0..i.n {
            sfb.read(col, sfb_cell(mma.group, i.m, i.n, col), &mut b)?;
        }
        let same = |x: &f64, y: &f64| x.to_bits() == y.to_bits();
        if cta > 0 && !b.iter().zip(&out.b).all(|(x, y)| same(x, y)) {
            // Each CTA scales its own rows with its own copy; differing copies would make D
            // inconsistent across the pair, which no layout of the ISA describes.
            return Err(MmaError::Unmodelled(
                "scale B that differs between the CTAs of a pair",
            ));
        }
        out.b = b;
    }
    Ok(Some(out))
}

pub(super) fn footprint(mma: &Mma, out: &mut Footprint) {
    let Some(s) = mma.scales else { return };
    let i = &mma.idesc;
    let share = i.m / mma.group.ctas() as u32;
    let b_columns = if mma.group == CtaGroup::Two && i.m == 128 {
        i.n / 2
    } else {
        i.n
    };
    for cta in 0..mma.group.ctas() {
        for (column, columns) in [
            (s.a.column(), share.div_ceil(32)),
            (s.b.column(), b_columns.div_ceil(32)),
        ] {
            out.tmem_reads.push(TmemBlock {
                cta,
                lane: 0,
                lanes: 128,
                column,
                columns,
            });
        }
    }
}
