//! Where D lies: "Data Path Layout Organization", layouts A, B, D and F.

use super::super::idesc::Accumulator;
use super::super::memory::SharedRead;
use super::super::tmem::TmemAddr;
use super::compute::Product;
use super::{CtaGroup, CtaMemory, Footprint, Mma, MmaError, TmemBlock};

/// A cell of D, relative to the address operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DCell {
    /// CTA of the group.
    pub cta: usize,
    /// Lane offset.
    pub lane: u32,
    /// Column offset.
    pub column: u32,
}

/// The cell of element (`row`, `col`) of an `m` by `n` D; both below 256.
pub fn d_cell(group: CtaGroup, m: u32, n: u32, row: u32, col: u32) -> DCell {
    let (row, col) = (row % 256, col % 256);
    match (group, m) {
        // Layout F: 16 rows in each quarter.
        (CtaGroup::One, 64) => DCell {
            cta: 0,
            lane: row % 16 + 32 * (row / 16),
            column: col,
        },
        // Layout D: lane = row.
        (CtaGroup::One, _) => DCell {
            cta: 0,
            lane: row,
            column: col,
        },
        // Layout B: 64 rows a CTA; the right half of the columns in lanes 64...
        (CtaGroup::Two, 128) => {
            let half = (n / 2).max(1);
            DCell {
                cta: (row / 64) as usize,
                lane: row % 64 + 64 * (col / half),
                column: col % half,
            }
        }
        // Layout A: 128 rows a CTA.
        (CtaGroup::Two, _) => DCell {
            cta: (row / 128) as usize,
            lane: row % 128,
            column: col,
        },
    }
}

pub(super) fn check_d_lane(group: CtaGroup, m: u32, d: TmemAddr) -> Result<(), MmaError> {
    let half = group == CtaGroup::One && m == 64;
    match d.lane() {
        0 => Ok(()),
        16 if half => Ok(()),
        lane => Err(MmaError::Lane { operand: "D", lane }),
    }
}

pub(super) fn footprint(mma: &Mma, out: &mut Footprint) {
    let (m, n) = (mma.idesc.m, mma.idesc.n);
    let column = mma.d.column();
    for cta in 0..mma.group.ctas() {
        let block = |lane, lanes, columns| TmemBlock {
            cta,
            lane,
            lanes,
            column,
            columns,
        };
        match (mma.group, m) {
            (CtaGroup::One, 64) => {
                out.d
                    .extend((0..4).map(|q| block(mma.d.lane() + 32 * q, 16, n)));
            }
            (CtaGroup::Two, 128) => out.d.push(block(0, 128, n / 2)),
            _ => out.d.push(block(0, 128, n)),
        }
    }
}

fn disabled(mma: &Mma, cta: usize, lane: u32) -> bool {
    mma.disable_lanes[cta * 4 + (lane / 32 % 4) as usize] >> (lane % 32) & 1 == 1
}

/// Reads D where it accumulates, adds, and writes it; nothing is written on an error.
pub(super) fn write_d<S: SharedRead + ?Sized>(
    mma: &Mma,
    product: &Product,
    ctas: &mut [CtaMemory<'_, S>],
) -> Result<(), MmaError> {
    let (m, n, kind) = (mma.idesc.m, mma.idesc.n, mma.idesc.d);
    let mask = if kind == Accumulator::F16 { 0x3 } else { 0xf };
    let mut writes = Vec::with_capacity((m * n) as usize);
    for row in 0..m {
        for col in 0..n {
            let c = d_cell(mma.group, m, n, row, col);
            let (lane, column) = (mma.d.lane() + c.lane, mma.d.column() + c.column);
            if disabled(mma, c.cta, lane) {
                continue;
            }
            let tmem = &ctas[c.cta].tmem;
            let fail = |source| MmaError::Tmem {
                operand: "D",
                cta: c.cta,
                source,
            };
            let old = if mma.accumulate {
                tmem.read_masked(lane, column, mask).map_err(fail)?
            } else {
                tmem.check(lane, column).map_err(fail)?;
                0
            };
            writes.push((c.cta, lane, column, product.finish(mma, row, col, old)));
        }
    }
    for (cta, lane, column, value) in writes {
        let tmem = &mut ctas[cta].tmem;
        let done = if kind == Accumulator::F16 {
            tmem.write_low_half(lane, column, value as u16)
        } else {
            tmem.write(lane, column, value)
        };
        done.map_err(|source| MmaError::Tmem {
            operand: "D",
            cta,
            source,
        })?;
    }
    Ok(())
}
