//! `wgmma.mma_async` of a warpgroup: four warps multiply 64 rows of A with N columns of B.
//!
//! Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Warp w of the group holds
//! rows 16w to 16w + 15 of A and D, in the fragments of `mma.sync`. B, and A where it is not in registers, lie in
//! shared memory. Rows of A and columns of B have 32 bytes of K, of whatever type. The ISA leaves order and rounding of
//! the sums open: [`sums`](super::sums) has the rules, by default the ones that an H200 was recorded to follow
//! (`docs/semantics.md`).

use thiserror::Error;

pub use super::element::{Accumulator, Element};
use super::matrix_sums::{Lines, SumOf, add_products};
use super::memory::{SharedRead, SharedReadError};
use super::smem_desc::{Layout, Major, SmemDesc, SmemDescError};
use super::sums::{Form, Instruction, NoRule, Rule, SumRule};
use super::swizzle::Swizzle;

/// Registers of a warp, one value a lane.
pub type Lanes = [u64; 32];

/// Rows of A and D.
pub const M: u32 = 64;
/// Bytes of a row of A and a column of B.
pub const K_BYTES: u32 = 32;
/// Registers of a lane that hold A.
pub const A_REGISTERS: usize = 4;

/// Rows of A and D that a warp holds.
const WARP_ROWS: u32 = 16;
/// Bytes that lie together whatever the layout, along its contiguous index.
const CHUNK: u32 = 16;

impl Element {
    /// Bytes of an element; of single bits, the byte that has eight of them.
    fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether it may be multiplied with the other one.
    fn goes_with(self, other: Self) -> bool {
        use Element::*;
        self == other
            || matches!(
                (self, other),
                (E4m3, E5m2) | (E5m2, E4m3) | (S8, U8) | (U8, S8)
            )
    }
}

/// The instruction without its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    n: u32,
    a: Element,
    b: Element,
    accumulator: Accumulator,
}

/// A form that the ISA does not define.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// N.
    #[error("N is a multiple of 8 from 8 to 256, not {0}")]
    N(u32),
    /// N of integers.
    #[error("N of integers is 8, 24 or a multiple of 16 up to 256, not {0}")]
    IntegerN(u32),
    /// A type of other instructions.
    #[error("wgmma does not multiply {0}")]
    Element(Element),
    /// A and B.
    #[error("A and B have one type, but for e4m3 with e5m2 and s8 with u8")]
    Elements,
    /// f16 sums of bf16.
    #[error(
        "{0} is not summed in {1}: f16, e4m3 and e5m2 are in f16 or f32, bf16 and tf32 in f32 only, integers in s32"
    )]
    Accumulator(Element, Accumulator),
}

impl Shape {
    /// An instruction of 64 rows and N columns.
    pub fn new(
        n: u32,
        a: Element,
        b: Element,
        accumulator: Accumulator,
    ) -> Result<Self, ShapeError> {
        use Accumulator as Acc;
        use Element::*;
        if !n.is_multiple_of(8) || !(8..=256).contains(&n) {
            return Err(ShapeError::N(n));
        }
        if a.is_integer() && n > 32 && !n.is_multiple_of(16) {
            return Err(ShapeError::IntegerN(n));
        }
        if !a.goes_with(b) {
            return Err(ShapeError::Elements);
        }
        let sums = match a {
            F16 | E4m3 | E5m2 => accumulator != Acc::S32,
            Bf16 | Tf32 => accumulator == Acc::F32,
            S8 | U8 | B1 => accumulator == Acc::S32,
            S4 | U4 | E3m2 | E2m3 | E2m1 => return Err(ShapeError::Element(a)),
        };
        if !sums {
            return Err(ShapeError::Accumulator(a, accumulator));
        }
        Ok(Self {
            n,
            a,
            b,
            accumulator,
        })
    }

    /// N.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Elements of a row of A.
    pub fn k(&self) -> u32 {
        8 * K_BYTES / self.a.bits()
    }

    /// The rule by which the instruction adds; `None` for integers.
    ///
    /// # Errors
    /// Nobody says how.
    pub fn rule(&self, sums: SumRule) -> Result<Option<Rule>, NoRule> {
        sums.rule(&Form {
            instruction: Instruction::Wgmma,
            k: self.k() as usize,
            a: self.a,
            b: self.b,
            d: self.accumulator,
            scales: None,
        })
    }

    /// Whether A and B are whole numbers.
    pub fn is_integer(&self) -> bool {
        self.a.is_integer()
    }

    /// Whether elements have 16 bits, and matrices in shared memory can be transposed.
    pub fn has_transposition(&self) -> bool {
        self.a.bits() == 16
    }

    /// Registers of a lane that hold D: a 32-bit sum each, or two f16.
    pub fn d_registers(&self) -> usize {
        match self.accumulator {
            Accumulator::F32 | Accumulator::S32 => self.n as usize / 2,
            Accumulator::F16 => self.n as usize / 4,
        }
    }

    /// Tells accumulators apart that need a fence or a wait between them: those of instructions of one
    /// shape are passed on in order.
    pub fn accumulator_key(&self) -> u32 {
        self.n << 2 | self.accumulator as u32
    }
}

/// A matrix in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMatrix {
    layout: Layout,
    rows: u32,
    /// Bytes of an element.
    element: u32,
}

impl SharedMatrix {
    /// A, whose rows are M.
    pub fn a(shape: &Shape, descriptor: u64, transposed: bool) -> Result<Self, SmemDescError> {
        Self::new(descriptor, transposed, M, shape.a)
    }

    /// B, whose rows here are its columns.
    pub fn b(shape: &Shape, descriptor: u64, transposed: bool) -> Result<Self, SmemDescError> {
        Self::new(descriptor, transposed, shape.n, shape.b)
    }

    fn new(
        descriptor: u64,
        transposed: bool,
        rows: u32,
        element: Element,
    ) -> Result<Self, SmemDescError> {
        let major = if transposed { Major::Mn } else { Major::K };
        let element = element.bytes();
        let desc = SmemDesc::decode_wgmma(descriptor)?;
        let layout = desc.layout(major, K_BYTES, element)?;
        Ok(Self {
            layout,
            rows,
            element,
        })
    }

    /// The pattern that its bytes lie in.
    pub fn swizzle(&self) -> Swizzle {
        self.layout.swizzle()
    }

    /// The 16-byte pieces of some rows: the address, and row and K of the first element.
    fn pieces(&self, from: u32, rows: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let along = CHUNK / self.element;
        let (row_step, k_step) = match self.layout.is_k_major() {
            true => (1, along),
            false => (along, 1),
        };
        let k = K_BYTES / self.element;
        (from..from + rows)
            .step_by(row_step as usize)
            .flat_map(move |row| (0..k).step_by(k_step as usize).map(move |k| (row, k)))
            .map(|(row, k)| (self.layout.element_address(row, k), row, k))
    }

    /// The bytes that it takes: address and length, not sorted.
    pub fn bytes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.pieces(0, self.rows)
            .map(|(address, ..)| (address, CHUNK))
    }

    /// Some rows, of 32 bytes each.
    fn read<S: SharedRead + ?Sized>(
        &self,
        from: u32,
        rows: u32,
        shared: &S,
    ) -> Result<Vec<u8>, SharedReadError> {
        let mut out = vec![0; (rows * K_BYTES) as usize];
        let element = self.element as usize;
        for (address, row, k) in self.pieces(from, rows) {
            let mut bytes = [0; CHUNK as usize];
            shared.read(address, &mut bytes)?;
            let step = match self.layout.is_k_major() {
                true => element,
                false => K_BYTES as usize,
            };
            let first = ((row - from) * K_BYTES) as usize + k as usize * element;
            for (i, b) in bytes.chunks_exact(element).enumerate() {
                out[first + i * step..][..element].copy_from_slice(b);
            }
        }
        Ok(out)
    }
}

/// Place of A.
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

/// One instruction with its operands that do not lie in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Form of the instruction.
    pub shape: Shape,
    /// B.
    pub b: SharedMatrix,
    /// `imm-scale-a` is -1.
    pub negate_a: bool,
    /// `imm-scale-b` is -1.
    pub negate_b: bool,
    /// `scale-d`: D = A * B + D.
    pub accumulate: bool,
    /// `.satfinite`: sums of integers saturate.
    pub saturate: bool,
}

impl Product {
    /// The new D of the warp of this rank in its group, whose old D is `d`. The rule is that of [`Shape::rule`].
    pub fn run<S: SharedRead + ?Sized>(
        &self,
        rank: u32,
        a: A<'_>,
        d: &[Lanes],
        shared: &S,
        rule: Option<Rule>,
    ) -> Result<Vec<Lanes>, ReadError> {
        let fail = |operand| move |source| ReadError { operand, source };
        let rows = match a {
            A::Registers(r) => unpack(r),
            A::Shared(m) => m
                .read(WARP_ROWS * rank, WARP_ROWS, shared)
                .map_err(fail('A'))?,
        };
        let columns = self.b.read(0, self.shape.n, shared).map_err(fail('B'))?;
        let (of_a, of_b) = (self.shape.a, self.shape.b);
        let formats = (of_a.format(), of_b.format(), rule);
        let (Some(format_a), Some(format_b), Some(rule)) = formats else {
            return Ok(self.whole_numbers(&rows, &columns, d));
        };
        let k = self.shape.k() as usize;
        let (chain, bytes) = (rule.chain.min(k), K_BYTES as usize);
        let lines = |all: &[u8], of: Element, format, negated, first: usize| {
            let size = of.bytes() as usize;
            let part = first * size..((first + chain) * size).min(bytes);
            let lines = all.chunks_exact(bytes);
            let bits = lines.flat_map(|line| elements(&line[part.clone()], of.bytes()));
            Lines::new(format, part.len() / size, bits, negated)
        };
        let n = self.shape.n as usize;
        let result = match self.shape.accumulator {
            Accumulator::F32 | Accumulator::S32 => SumOf::F32,
            Accumulator::F16 => SumOf::F16,
        };
        // Place of an element of D: its register, and its first bit there.
        let place = |i: usize| match result {
            SumOf::F32 => (i, 0),
            SumOf::F16 => (i / 2, 16 * (i % 2)),
        };
        let mask = if result == SumOf::F16 {
            0xffff
        } else {
            u32::MAX
        };
        let places = || (0..32).flat_map(|lane| (0..n / 2).map(move |i| (lane, i)));
        let mut sums = vec![0; WARP_ROWS as usize * n];
        if self.accumulate {
            for (lane, i) in places() {
                let ((row, column), (register, bit)) = (d_element(lane, i), place(i));
                sums[row * n + column] = (d[register][lane] >> bit) as u32 & mask;
            }
        }
        for first in (0..k).step_by(chain) {
            let rows = lines(&rows, of_a, format_a, self.negate_a, first);
            let columns = lines(&columns, of_b, format_b, self.negate_b, first);
            add_products(&rows, &columns, &mut sums, result, rule.fraction);
            if result == SumOf::F32 {
                sums.iter_mut().for_each(|sum| *sum = rule.kept(*sum));
            }
        }
        let mut out = vec![[0; 32]; self.shape.d_registers()];
        for (lane, i) in places() {
            let ((row, column), (register, bit)) = (d_element(lane, i), place(i));
            let sum = sums[row * n + column];
            out[register][lane] |= match result {
                SumOf::F32 => u64::from(sum),
                SumOf::F16 => u64::from(sum) << bit,
            };
        }
        Ok(out)
    }

    /// The new D of bytes or single bits: products and D are added exactly, and wrap or saturate.
    fn whole_numbers(&self, rows: &[u8], columns: &[u8], d: &[Lanes]) -> Vec<Lanes> {
        let number = |element: Element, byte: u8| match element {
            Element::S8 => i64::from(byte as i8),
            _ => i64::from(byte),
        };
        let line = |i: usize| i * K_BYTES as usize..(i + 1) * K_BYTES as usize;
        let mut out = vec![[0; 32]; self.shape.d_registers()];
        for lane in 0..32 {
            for (i, out) in out.iter_mut().enumerate() {
                let (row, column) = d_element(lane, i);
                let (x, y) = (&rows[line(row)], &columns[line(column)]);
                let products = x.iter().zip(y).map(|(x, y)| match self.shape.a {
                    Element::B1 => i64::from((x & y).count_ones()),
                    a => number(a, *x) * number(self.shape.b, *y),
                });
                let old = if self.accumulate {
                    d[i][lane] as i32
                } else {
                    0
                };
                let sum = i64::from(old) + products.sum::<i64>();
                let sum = match self.saturate {
                    true => sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
                    false => sum as i32,
                };
                out[lane] = u64::from(sum as u32);
            }
        }
        out
    }
}

/// Little-endian elements of so many bytes.
fn elements(line: &[u8], bytes: u32) -> impl Iterator<Item = u32> + '_ {
    line.chunks_exact(bytes as usize).map(|element| {
        let one = |all: u32, byte: &u8| all << 8 | u32::from(*byte);
        element.iter().rev().fold(0, one)
    })
}

/// Row, of the warp's sixteen, and column of element `i` of a lane's D.
fn d_element(lane: usize, i: usize) -> (usize, usize) {
    let row = lane / 4 + 8 * (i / 2 % 2);
    let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    (row, column)
}

/// Rows of A of the warp, 32 bytes each. Register r of a lane holds four bytes of a row, from `4 * (lane % 4)` on of 16
/// bytes of K. These 16 bytes are the second ones from register 2 on. The row is `lane / 4`, in odd registers 8 rows
/// below.
fn unpack(registers: &[Lanes; A_REGISTERS]) -> Vec<u8> {
    let mut out = vec![0; (WARP_ROWS * K_BYTES) as usize];
    for (r, lanes) in registers.iter().enumerate() {
        for (lane, v) in lanes.iter().enumerate() {
            let row = lane / 4 + 8 * (r % 2);
            let at = row * K_BYTES as usize + 16 * (r / 2) + 4 * (lane % 4);
            out[at..at + 4].copy_from_slice(&(*v as u32).to_le_bytes());
        }
    }
    out
}
