//! The cells of tensor memory that registers of threads have in `tcgen05.ld` and `.st`.
//!
//! Source: PTX ISA "Matrix fragments for shape ...", `tcgen05.ld`, `tcgen05.st`, "Packing and Unpacking". The figures
//! there are pictures; the formulas below were checked against the copy layouts of public kernels' libraries.

use super::tmem::{Tmem, TmemAddr, TmemError, check_warp_lanes};
use thiserror::Error;

named! {
    /// `.shape`.
    #[allow(missing_docs)]
    Shape {
        S16x64b "16x64b",
        S16x128b "16x128b",
        S16x256b "16x256b",
        S32x32b "32x32b",
        S16x32bx2 "16x32bx2",
    }
}

/// The rule a load or store breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum LdStError {
    #[error(".x{num} does not exist for {shape:?}")]
    Num { shape: Shape, num: u32 },
    #[error(".16x32bx2 takes an immHalfSplitoff below 512, the other shapes none")]
    HalfSplit,
    #[error("lane {lane} of the address is not a multiple of {multiple} as {shape:?} needs")]
    LaneAlignment {
        shape: Shape,
        lane: u32,
        multiple: u32,
    },
    #[error("{got} registers given, {want} needed")]
    Registers { got: usize, want: usize },
    #[error(transparent)]
    Tmem(#[from] TmemError),
}

/// A checked load or store shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LdSt {
    shape: Shape,
    num: u32,
    packed: bool,
    half_split: u32,
}

/// A cell relative to the address operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Lanes below the address's.
    pub lane: u32,
    /// Columns right of the address's.
    pub column: u32,
}

impl LdSt {
    /// A shape with its repeat factor, `.pack::16b`/`.unpack::16b`, and `immHalfSplitoff`.
    pub fn new(
        shape: Shape,
        num: u32,
        packed: bool,
        half_split: Option<u32>,
    ) -> Result<Self, LdStError> {
        let max = match shape {
            Shape::S16x128b => 64,
            Shape::S16x256b => 32,
            _ => 128,
        };
        if !num.is_power_of_two() || num > max {
            return Err(LdStError::Num { shape, num });
        }
        let wants_split = shape == Shape::S16x32bx2;
        if half_split.is_some() != wants_split || half_split.is_some_and(|s| s >= 512) {
            return Err(LdStError::HalfSplit);
        }
        Ok(Self {
            shape,
            num,
            packed,
            half_split: half_split.unwrap_or(0),
        })
    }

    /// 32-bit registers per thread (tables of `.num` against `.shape`).
    pub fn registers(&self) -> usize {
        let each = match self.shape {
            Shape::S16x128b => 2,
            Shape::S16x256b => 4,
            _ => 1,
        };
        (each * self.num) as usize
    }

    /// Lanes touched, from the address's lane on.
    pub fn lanes(&self) -> u32 {
        if self.shape == Shape::S32x32b { 32 } else { 16 }
    }

    /// The cell of register `reg` of thread `thread`. With packing, the cell of its low half;
    /// the high half is the next column.
    pub fn cell(&self, thread: u32, reg: u32) -> Cell {
        let (t, j) = (thread % 32, reg % 128);
        let (lane, column) = match self.shape {
            Shape::S32x32b => (t, j),
            Shape::S16x32bx2 => (t % 16, j),
            Shape::S16x64b => (t / 4 + 8 * (t % 2), t / 2 % 2 + 2 * j),
            Shape::S16x128b => (t / 4 + 8 * (j % 2), t % 4 + 4 * (j / 2)),
            Shape::S16x256b => (t / 4 + 8 * (j / 2 % 2), 2 * (t % 4) + j % 2 + 8 * (j / 4)),
        };
        let column = if self.packed { 2 * column } else { column };
        // The second half of the x2 shape starts at the immediate, in columns of the address.
        let second = self.shape == Shape::S16x32bx2 && t >= 16;
        Cell {
            lane,
            column: column + if second { self.half_split } else { 0 },
        }
    }

    /// Checks the address for the warp that issues the operation.
    pub fn check(&self, warp: u32, address: TmemAddr) -> Result<(), LdStError> {
        let (lane, multiple) = (address.lane(), self.lanes());
        check_warp_lanes(warp, lane, multiple)?;
        if !lane.is_multiple_of(multiple) {
            return Err(LdStError::LaneAlignment {
                shape: self.shape,
                lane,
                multiple,
            });
        }
        Ok(())
    }

    /// Every cell touched, absolute, in no particular order (for hazard checks).
    pub fn cells(&self, address: TmemAddr) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (lane, column) = (address.lane(), address.column());
        (0..32).flat_map(move |t| {
            (0..self.registers() as u32).flat_map(move |r| {
                let c = self.cell(t, r);
                let at = (lane + c.lane, column + c.column);
                let next = self.packed.then_some((at.0, at.1 + 1));
                std::iter::once(at).chain(next)
            })
        })
    }

    /// The columns of [`LdSt::lanes`] lanes that are touched, as first and count: all of their cells are, and no
    /// others.
    pub fn columns(&self, address: TmemAddr) -> impl Iterator<Item = (u32, u32)> {
        let of_one = match self.shape {
            Shape::S32x32b | Shape::S16x32bx2 => 1,
            Shape::S16x64b => 2,
            Shape::S16x128b => 4,
            Shape::S16x256b => 8,
        };
        let count = of_one * self.num * (1 + u32::from(self.packed));
        let second = (self.shape == Shape::S16x32bx2).then_some(self.half_split);
        std::iter::once(0)
            .chain(second)
            .map(move |at| (address.column() + at, count))
    }

    /// `tcgen05.ld`: `out[reg][thread]`.
    pub fn load(
        &self,
        tmem: &Tmem,
        warp: u32,
        address: TmemAddr,
    ) -> Result<Vec<[u32; 32]>, LdStError> {
        self.check(warp, address)?;
        let mut out = vec![[0u32; 32]; self.registers()];
        // A thread has a row. The look at each cell below finds the fault where there is one.
        let rows = |out: &mut [[u32; 32]]| {
            for t in 0..32 {
                let lane = address.lane() + t;
                let row = tmem.row(lane, address.column(), out.len() as u32).ok()?;
                for (registers, value) in out.iter_mut().zip(row) {
                    registers[t as usize] = *value;
                }
            }
            Some(())
        };
        if self.shape == Shape::S32x32b && !self.packed && rows(&mut out).is_some() {
            return Ok(out);
        }
        for (r, row) in out.iter_mut().enumerate() {
            for (t, value) in row.iter_mut().enumerate() {
                let c = self.cell(t as u32, r as u32);
                let (lane, column) = (address.lane() + c.lane, address.column() + c.column);
                *value = if self.packed {
                    let low = tmem.read_masked(lane, column, 3)? & 0xffff;
                    low | tmem.read_masked(lane, column + 1, 3)? << 16
                } else {
                    tmem.read(lane, column)?
                };
            }
        }
        Ok(out)
    }

    /// `tcgen05.st` of `regs[reg][thread]`. Nothing is written if any cell is refused.
    pub fn store(
        &self,
        tmem: &mut Tmem,
        warp: u32,
        address: TmemAddr,
        regs: &[[u32; 32]],
    ) -> Result<(), LdStError> {
        self.check(warp, address)?;
        if regs.len() != self.registers() {
            return Err(LdStError::Registers {
                got: regs.len(),
                want: self.registers(),
            });
        }
        for (lane, column) in self.cells(address) {
            tmem.check(lane, column)?;
        }
        for (r, row) in regs.iter().enumerate() {
            for (t, &value) in row.iter().enumerate() {
                let c = self.cell(t as u32, r as u32);
                let (lane, column) = (address.lane() + c.lane, address.column() + c.column);
                if self.packed {
                    tmem.write_low_half(lane, column, value as u16)?;
                    tmem.write_low_half(lane, column + 1, (value >> 16) as u16)?;
                } else {
                    tmem.write(lane, column, value)?;
                }
            }
        }
        Ok(())
    }
}
