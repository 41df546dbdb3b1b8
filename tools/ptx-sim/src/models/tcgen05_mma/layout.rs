//! Place of D in tensor memory: "Data Path Layout Organization", layouts A, B, D and F.

use super::super::idesc::Accumulator;
use super::super::memory::SharedRead;
use super::super::tmem::{TmemAddr, TmemError};
use super::compute::{Product, Sums};
use super::inner::ROWS;
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

/// The lane of D's first row of each [`ROWS`], in one CTA's tensor memory.
pub(super) fn lanes_of_rows(mma: &Mma) -> impl Iterator<Item = (usize, u32)> {
    let (group, m, n) = (mma.group, mma.idesc.m, mma.idesc.n);
    let lane = move |row| mma.d.lane() + d_cell(group, m, n, row, 0).lane;
    (0..m)
        .step_by(ROWS)
        .map(move |row| (row as usize, lane(row)))
}

fn disabled(mma: &Mma, cta: usize, lane: u32) -> bool {
    mma.disable_lanes[cta * 4 + (lane / 32 % 4) as usize] >> (lane % 32) & 1 == 1
}

/// Columns of a row of D that lie side by side.
struct Run {
    cta: usize,
    lane: u32,
    /// First column of tensor memory.
    column: u32,
    /// First column of D.
    first: u32,
    count: u32,
}

/// The runs of a row of D, without lanes that are disabled.
fn runs(mma: &Mma, row: u32) -> impl Iterator<Item = Run> {
    let (group, m, n) = (mma.group, mma.idesc.m, mma.idesc.n);
    // Layout B: the right half of the columns lies in other lanes.
    let halves = if (group, m) == (CtaGroup::Two, 128) {
        2
    } else {
        1
    };
    let count = n / halves;
    (0..halves).filter_map(move |half| {
        let first = half * count;
        let c = d_cell(group, m, n, row, first);
        let run = Run {
            cta: c.cta,
            lane: mma.d.lane() + c.lane,
            column: mma.d.column() + c.column,
            first,
            count,
        };
        (!disabled(mma, run.cta, run.lane)).then_some(run)
    })
}

/// The bytes of D's cells that are written.
fn mask(mma: &Mma) -> u8 {
    match mma.idesc.d {
        Accumulator::F16 => 0x3,
        _ => 0xf,
    }
}

fn of_d(cta: usize) -> impl Fn(TmemError) -> MmaError {
    move |source| MmaError::Tmem {
        operand: "D",
        cta,
        source,
    }
}

/// Whether a row of D is written at all.
pub(super) fn writes_row(mma: &Mma, row: usize) -> bool {
    runs(mma, row as u32).next().is_some()
}

/// Checks that D may be written, and read where it accumulates.
pub(super) fn check_d<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &[CtaMemory<'_, S>],
) -> Result<(), MmaError> {
    for row in 0..mma.idesc.m {
        for r in runs(mma, row) {
            let needed = if mma.accumulate { mask(mma) } else { 0 };
            let tmem = &ctas[r.cta].tmem;
            tmem.check_row(r.lane, r.column, r.count, needed)
                .map_err(of_d(r.cta))?;
        }
    }
    Ok(())
}

/// Counts D as written, which was checked.
pub(super) fn claim_d<S: SharedRead + ?Sized>(
    mma: &Mma,
    ctas: &mut [CtaMemory<'_, S>],
) -> Result<(), MmaError> {
    for row in 0..mma.idesc.m {
        for r in runs(mma, row) {
            let tmem = &mut ctas[r.cta].tmem;
            tmem.row_mut(r.lane, r.column, r.count, mask(mma))
                .map_err(of_d(r.cta))?;
        }
    }
    Ok(())
}

/// Reads D where it accumulates, adds, and writes it; nothing is written on an error.
pub(super) fn write_d<S: SharedRead + ?Sized>(
    mma: &Mma,
    product: &Product,
    ctas: &mut [CtaMemory<'_, S>],
) -> Result<(), MmaError> {
    check_d(mma, ctas)?;
    let m = mma.idesc.m;
    let mut sums = Sums::default();
    for row in 0..m {
        if (row as usize).is_multiple_of(ROWS) {
            product.rows(row as usize, &mut sums);
        }
        for r in runs(mma, row) {
            let cells = ctas[r.cta]
                .tmem
                .row_mut(r.lane, r.column, r.count, mask(mma))
                .map_err(of_d(r.cta))?;
            product.finish(mma, &sums, row as usize, r.first as usize, cells);
        }
    }
    Ok(())
}
