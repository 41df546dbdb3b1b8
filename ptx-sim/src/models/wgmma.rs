//! `wgmma.mma_async` of a warpgroup: four warps multiply 64 rows of A with N columns of B.
//!
//! Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Warp w of
//! the group holds rows 16w to 16w + 15 of A and D, in the fragments of `mma.m16n8k16`; B, and A where
//! it is not in registers, lie in shared memory. The ISA leaves order and rounding of the sums open:
//! they are those of `mma.sync`, as an H200 was recorded to do (`docs/semantics.md`).

use thiserror::Error;

use super::memory::{SharedRead, SharedReadError};
use super::mma_number::{Format, Line};
use super::smem_desc::{Layout, Major, SmemDesc, SmemDescError};

/// Registers of a warp, one value a lane.
pub type Lanes = [u64; 32];

/// Rows of A and D.
pub const M: u32 = 64;
/// Elements of a row of A and a column of B.
pub const K: u32 = 16;
/// Registers of a lane that hold A.
pub const A_REGISTERS: usize = 4;

/// Rows of A and D that a warp holds.
const WARP_ROWS: u32 = 16;
/// Bytes of an element.
const ELEMENT: u32 = 2;
/// Elements that lie together in 16 bytes whatever the layout, along its contiguous index.
const CHUNK: u32 = 8;

/// Type of the elements of A and B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Element {
    F16,
    Bf16,
}

/// Type of the accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Accumulator {
    F16,
    F32,
}

/// The instruction without its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    n: u32,
    element: Element,
    accumulator: Accumulator,
}

/// A form that the ISA does not define.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// N.
    #[error("N is a multiple of 8 from 8 to 256, not {0}")]
    N(u32),
    /// f16 sums of bf16.
    #[error("bf16 is summed in f32 only")]
    Accumulator,
}

impl Shape {
    /// An instruction of shape m64nNk16.
    pub fn new(n: u32, element: Element, accumulator: Accumulator) -> Result<Self, ShapeError> {
        if !n.is_multiple_of(8) || !(8..=256).contains(&n) {
            return Err(ShapeError::N(n));
        }
        if (element, accumulator) == (Element::Bf16, Accumulator::F16) {
            return Err(ShapeError::Accumulator);
        }
        Ok(Self {
            n,
            element,
            accumulator,
        })
    }

    /// N.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Registers of a lane that hold D: an f32 each, or two f16.
    pub fn d_registers(&self) -> usize {
        match self.accumulator {
            Accumulator::F32 => self.n as usize / 2,
            Accumulator::F16 => self.n as usize / 4,
        }
    }

    /// Tells accumulators apart that need a fence or a wait between them: those of instructions of one
    /// shape are passed on in order.
    pub fn accumulator_key(&self) -> u32 {
        self.n << 1 | u32::from(self.accumulator == Accumulator::F16)
    }

    fn format(&self) -> Format {
        match self.element {
            Element::F16 => Format::F16,
            Element::Bf16 => Format::BF16,
        }
    }
}

/// A matrix in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMatrix {
    layout: Layout,
    rows: u32,
}

impl SharedMatrix {
    /// A, whose rows are M.
    pub fn a(descriptor: u64, transposed: bool) -> Result<Self, SmemDescError> {
        Self::new(descriptor, transposed, M)
    }

    /// B, whose rows here are its columns.
    pub fn b(descriptor: u64, transposed: bool, n: u32) -> Result<Self, SmemDescError> {
        Self::new(descriptor, transposed, n)
    }

    fn new(descriptor: u64, transposed: bool, rows: u32) -> Result<Self, SmemDescError> {
        let major = if transposed { Major::Mn } else { Major::K };
        let desc = SmemDesc::decode_wgmma(descriptor)?;
        let layout = desc.layout(major, K * ELEMENT, ELEMENT)?;
        Ok(Self { layout, rows })
    }

    /// The 16-byte pieces of some rows: the address, and row and K of the first element.
    fn pieces(&self, from: u32, rows: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let (row_step, k_step) = match self.layout.is_k_major() {
            true => (1, CHUNK),
            false => (CHUNK, 1),
        };
        (from..from + rows)
            .step_by(row_step as usize)
            .flat_map(move |row| (0..K).step_by(k_step as usize).map(move |k| (row, k)))
            .map(|(row, k)| (self.layout.element_address(row, k), row, k))
    }

    /// The bytes that it takes: address and length, not sorted.
    pub fn bytes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.pieces(0, self.rows)
            .map(|(address, ..)| (address, CHUNK * ELEMENT))
    }

    /// Elements of some rows, row by row.
    fn read<S: SharedRead + ?Sized>(
        &self,
        from: u32,
        rows: u32,
        shared: &S,
    ) -> Result<Vec<u32>, SharedReadError> {
        let mut out = vec![0; (rows * K) as usize];
        for (address, row, k) in self.pieces(from, rows) {
            let mut bytes = [0; (CHUNK * ELEMENT) as usize];
            shared.read(address, &mut bytes)?;
            let step = if self.layout.is_k_major() { 1 } else { K };
            let first = (row - from) * K + k;
            for (i, b) in (0..).zip(bytes.chunks_exact(2)) {
                out[(first + i * step) as usize] = u32::from(u16::from_le_bytes([b[0], b[1]]));
            }
        }
        Ok(out)
    }
}

/// Where A is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum A<'a> {
    /// In registers of the warp.
    Registers(&'a [Lanes; A_REGISTERS]),
    /// In shared memory.
    Shared(SharedMatrix),
}

/// An operand whose bytes nothing wrote, or which lies outside shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{operand}: {source}")]
pub struct ReadError {
    operand: char,
    source: SharedReadError,
}

/// One instruction with what does not lie in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Its form.
    pub shape: Shape,
    /// B.
    pub b: SharedMatrix,
    /// `imm-scale-a` is -1.
    pub negate_a: bool,
    /// `imm-scale-b` is -1.
    pub negate_b: bool,
    /// `scale-d`: D = A * B + D.
    pub accumulate: bool,
}

impl Product {
    /// The new D of the warp of this rank in its group, whose old D is `d`.
    pub fn run<S: SharedRead + ?Sized>(
        &self,
        rank: u32,
        a: A<'_>,
        d: &[Lanes],
        shared: &S,
    ) -> Result<Vec<Lanes>, ReadError> {
        let fail = |operand| move |source| ReadError { operand, source };
        let rows = match a {
            A::Registers(r) => unpack(r),
            A::Shared(m) => m
                .read(WARP_ROWS * rank, WARP_ROWS, shared)
                .map_err(fail('A'))?,
        };
        let columns = self.b.read(0, self.shape.n, shared).map_err(fail('B'))?;
        let lines = |elements: &[u32], negated| -> Vec<Line> {
            elements
                .chunks_exact(K as usize)
                .map(|line| Line::new(self.shape.format(), line.iter().copied(), negated))
                .collect()
        };
        let rows = lines(&rows, self.negate_a);
        let columns = lines(&columns, self.negate_b);
        let mut out = vec![[0; 32]; self.shape.d_registers()];
        for lane in 0..32 {
            for i in 0..self.shape.n as usize / 2 {
                let (row, column) = d_element(lane, i);
                let (x, y) = (&rows[row], &columns[column]);
                match self.shape.accumulator {
                    Accumulator::F32 => {
                        let old = if self.accumulate { d[i][lane] } else { 0 };
                        out[i][lane] = u64::from(x.dot_f32(y, old as u32));
                    }
                    Accumulator::F16 => {
                        let at = 16 * (i % 2);
                        let old = d[i / 2][lane] >> at & 0xffff;
                        let old = if self.accumulate { old } else { 0 };
                        out[i / 2][lane] |= u64::from(x.dot_f16(y, old as u32)) << at;
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Row, of the warp's sixteen, and column of element `i` of a lane's D.
fn d_element(lane: usize, i: usize) -> (usize, usize) {
    let row = lane / 4 + 8 * (i / 2 % 2);
    let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    (row, column)
}

/// The warp's rows of A: register r of a lane holds elements `2 * (lane % 4)` and the next of an
/// eight of K, the second eight from register 2 on, of row `lane / 4`, in odd registers 8 rows below.
fn unpack(registers: &[Lanes; A_REGISTERS]) -> Vec<u32> {
    let mut out = vec![0; (WARP_ROWS * K) as usize];
    for (r, lanes) in registers.iter().enumerate() {
        for (lane, v) in lanes.iter().enumerate() {
            let row = lane / 4 + 8 * (r % 2);
            let k = 8 * (r / 2) + 2 * (lane % 4);
            for half in 0..2 {
                out[row * K as usize + k + half] = (v >> (16 * half) & 0xffff) as u32;
            }
        }
    }
    out
}
