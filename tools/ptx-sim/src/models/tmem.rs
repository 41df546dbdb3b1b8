//! Tensor memory of one CTA: 128 lanes by 512 columns of 32 bits, initialised per byte.
//!
//! Source: PTX ISA "Tensor Memory", "Tensor Memory Addressing", "Access restrictions".

use self::TmemError::*;
use std::cell::Cell;

use thiserror::Error;

/// Rows of tensor memory.
pub const LANES: u32 = 128;
/// Columns of tensor memory.
pub const COLUMNS: u32 = 512;

/// A tensor memory address: lane in bits 16-31, column in bits 0-15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TmemAddr(pub u32);

impl TmemAddr {
    /// From its two parts.
    pub fn new(lane: u32, column: u32) -> Self {
        Self(lane << 16 | (column & 0xffff))
    }

    /// Lane index.
    pub fn lane(self) -> u32 {
        self.0 >> 16
    }

    /// Column index.
    pub fn column(self) -> u32 {
        self.0 & 0xffff
    }
}

/// The rule an access to tensor memory breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum TmemError {
    #[error("tensor memory lane {lane}, column {column} does not exist (128 lanes, 512 columns)")]
    OutOfRange { lane: u32, column: u32 },
    #[error("tensor memory column {column} is not allocated (lane {lane})")]
    NotAllocated { lane: u32, column: u32 },
    #[error("tensor memory lane {lane}, column {column} is read but not initialised")]
    Uninitialised { lane: u32, column: u32 },
    #[error("warp {warp} may touch lanes {first}..{end} only, not {lane}")]
    WarpLanes {
        warp: u32,
        first: u32,
        end: u32,
        lane: u32,
    },
}

/// The cells, which bytes of them were written, and which columns are allocated.
#[derive(Clone)]
pub struct Tmem {
    cells: Vec<u32>,
    init: Vec<u8>,
    allocated: Vec<bool>,
    /// Operands may have bytes that nothing wrote: they are [`UNWRITTEN`].
    lenient: bool,
    /// Whether such were read.
    unwritten: Cell<bool>,
}

/// Value of a byte that nothing wrote, where such a byte may be read: NaN, or a large number, in most formats.
pub const UNWRITTEN: u8 = 0x7f;

impl std::fmt::Debug for Tmem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let allocated = self.allocated.iter().filter(|a| **a).count();
        let written = self.init.iter().filter(|m| **m != 0).count();
        write!(
            f,
            "Tmem {{ {allocated} columns allocated, {written} cells written }}"
        )
    }
}

impl Default for Tmem {
    fn default() -> Self {
        Self::new()
    }
}

impl Tmem {
    /// Bytes of a CTA's tensor memory.
    pub const BYTES: u64 = (LANES * COLUMNS * 4) as u64;

    /// Nothing written and nothing allocated.
    pub fn new() -> Self {
        let n = (LANES * COLUMNS) as usize;
        Self {
            cells: vec![0; n],
            init: vec![0; n],
            allocated: vec![false; COLUMNS as usize],
            lenient: false,
            unwritten: Cell::new(false),
        }
    }

    /// All columns allocated: for tests and for callers that track allocation elsewhere.
    pub fn all_allocated() -> Self {
        let mut t = Self::new();
        t.allocated.fill(true);
        t
    }

    /// Marks columns as allocated (contents uninitialised) or freed.
    pub fn set_allocated(&mut self, first: u32, count: u32, allocated: bool) {
        let end = first.saturating_add(count).min(COLUMNS);
        let columns = first.min(end) as usize..end as usize;
        self.allocated[columns.clone()].fill(allocated);
        for lane in self.init.chunks_exact_mut(COLUMNS as usize) {
            lane[columns.clone()].fill(0);
        }
    }

    fn index(&self, lane: u32, column: u32) -> Result<usize, TmemError> {
        if lane >= LANES || column >= COLUMNS {
            return Err(OutOfRange { lane, column });
        }
        if !self.allocated[column as usize] {
            return Err(NotAllocated { lane, column });
        }
        Ok((lane * COLUMNS + column) as usize)
    }

    /// From here on operands may have bytes that nothing wrote, or no longer. Says whether any were read before.
    pub fn set_lenient(&mut self, lenient: bool) -> bool {
        self.lenient = lenient;
        self.unwritten.take()
    }

    /// Reads a cell of an operand: its bytes in `mask` must have been written, unless that is let be.
    pub fn read_operand(&self, lane: u32, column: u32, mask: u8) -> Result<u32, TmemError> {
        let i = self.index(lane, column)?;
        let missing = mask & !self.init[i];
        if missing == 0 || !self.lenient {
            return self.read_masked(lane, column, mask);
        }
        self.unwritten.set(true);
        let mut bytes = self.cells[i].to_le_bytes();
        for (b, byte) in bytes.iter_mut().enumerate() {
            if missing >> b & 1 == 1 {
                *byte = UNWRITTEN;
            }
        }
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a cell whose bytes in `mask` (bit i = byte i) must all have been written.
    pub fn read_masked(&self, lane: u32, column: u32, mask: u8) -> Result<u32, TmemError> {
        let i = self.index(lane, column)?;
        if self.init[i] & mask != mask {
            return Err(Uninitialised { lane, column });
        }
        Ok(self.cells[i])
    }

    /// Reads a whole cell.
    pub fn read(&self, lane: u32, column: u32) -> Result<u32, TmemError> {
        self.read_masked(lane, column, 0xf)
    }

    /// Checks that a cell may be written.
    pub fn check(&self, lane: u32, column: u32) -> Result<(), TmemError> {
        self.index(lane, column).map(|_| ())
    }

    /// Checks that cells side by side may be written, and that their bytes in `mask` were.
    pub fn check_row(&self, lane: u32, column: u32, n: u32, mask: u8) -> Result<(), TmemError> {
        let inside = lane < LANES && column.saturating_add(n) <= COLUMNS;
        let at = (lane * COLUMNS + column) as usize;
        // No early end: so that these are loops over vectors.
        let good = |a: &[bool], init: &[u8]| {
            a.iter().fold(true, |all, a| all & a)
                && init.iter().fold(mask, |all, i| all & i) == mask
        };
        if inside
            && good(
                &self.allocated[column as usize..][..n as usize],
                &self.init[at..][..n as usize],
            )
        {
            return Ok(());
        }
        // The first one that is at fault.
        (column..column.saturating_add(n))
            .try_for_each(|c| self.read_masked(lane, c, mask).map(|_| ()))
    }

    /// Cells side by side, all of which were written.
    pub fn row(&self, lane: u32, column: u32, n: u32) -> Result<&[u32], TmemError> {
        self.check_row(lane, column, n, 0xf)?;
        let at = (lane * COLUMNS + column) as usize;
        Ok(&self.cells[at..][..n as usize])
    }

    /// Cells side by side, of which the bytes in `mask` count as written from here on, and no others.
    pub fn row_mut(
        &mut self,
        lane: u32,
        column: u32,
        n: u32,
        mask: u8,
    ) -> Result<&mut [u32], TmemError> {
        self.check_row(lane, column, n, 0)?;
        let at = (lane * COLUMNS + column) as usize;
        self.init[at..][..n as usize].fill(mask);
        Ok(&mut self.cells[at..][..n as usize])
    }

    /// All cells in blocks of so many lanes, whatever was written of them.
    pub fn blocks_mut(&mut self, lanes: u32) -> impl Iterator<Item = &mut [u32]> {
        self.cells.chunks_mut((lanes * COLUMNS).max(1) as usize)
    }

    /// Writes a whole cell.
    pub fn write(&mut self, lane: u32, column: u32, value: u32) -> Result<(), TmemError> {
        let i = self.index(lane, column)?;
        self.cells[i] = value;
        self.init[i] = 0xf;
        Ok(())
    }

    /// Writes 16 bits into the low half of a cell; the upper half becomes uninitialised.
    pub fn write_low_half(&mut self, lane: u32, column: u32, value: u16) -> Result<(), TmemError> {
        let i = self.index(lane, column)?;
        self.cells[i] = u32::from(value);
        self.init[i] = 0x3;
        Ok(())
    }

    /// Makes a cell uninitialised again (poison, for writes in flight).
    pub fn poison(&mut self, lane: u32, column: u32) -> Result<(), TmemError> {
        let i = self.index(lane, column)?;
        self.init[i] = 0;
        Ok(())
    }
}

/// "Access restrictions": warp w of a warpgroup touches lanes 32w..32w+32 only.
pub fn check_warp_lanes(warp: u32, first: u32, count: u32) -> Result<(), TmemError> {
    let low = 32 * (warp % 4);
    let end = low + 32;
    let last = first.saturating_add(count.saturating_sub(1));
    for lane in [first, last] {
        if !(low..end).contains(&lane) {
            return Err(WarpLanes {
                warp,
                first: low,
                end,
                lane,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_track_allocation_and_initialisation() {
        let mut t = Tmem::new();
        assert!(matches!(t.read(0, 0), Err(NotAllocated { .. })));
        t.set_allocated(32, 32, true);
        assert!(matches!(t.write(0, 31, 1), Err(NotAllocated { .. })));
        assert!(matches!(
            t.read(5, 32),
            Err(Uninitialised {
                lane: 5,
                column: 32
            })
        ));
        t.write(5, 32, 7).unwrap();
        assert_eq!(t.read(5, 32), Ok(7));
        t.write_low_half(5, 32, 9).unwrap();
        assert!(t.read(5, 32).is_err());
        assert_eq!(t.read_masked(5, 32, 3), Ok(9));
        t.poison(5, 32).unwrap();
        assert!(t.read_masked(5, 32, 1).is_err());
        t.write(5, 32, 7).unwrap();
        t.write(5, 33, 8).unwrap();
        assert_eq!(t.row(5, 32, 2), Ok(&[7, 8][..]));
        let column = |e: TmemError| match e {
            Uninitialised { column, .. } | NotAllocated { column, .. } => column,
            other => panic!("{other}"),
        };
        assert_eq!(t.row(5, 32, 3).map_err(column), Err(34));
        assert_eq!(t.row(5, 31, 3).map_err(column), Err(31));
        assert!(t.row(5, 511, 2).is_err() && t.row(128, 32, 1).is_err());
        t.set_allocated(32, 32, false);
        t.set_allocated(32, 32, true);
        assert!(
            t.read(5, 32).is_err(),
            "a new allocation does not see old contents"
        );
        assert!(matches!(t.read(128, 32), Err(OutOfRange { .. })));
        assert!(matches!(t.write(0, 512, 0), Err(OutOfRange { .. })));
    }

    #[test]
    fn warps_own_quarters() {
        assert!(check_warp_lanes(1, 32, 32).is_ok());
        assert!(check_warp_lanes(5, 48, 16).is_ok());
        assert!(check_warp_lanes(1, 48, 32).is_err());
        assert!(check_warp_lanes(0, 32, 1).is_err());
        let a = TmemAddr::new(17, 300);
        assert_eq!((a.lane(), a.column(), a.0), (17, 300, 17 << 16 | 300));
    }
}
