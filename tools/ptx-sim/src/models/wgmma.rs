//! `wgmma.mma_async` of a warpgroup: four warps multiply 64 rows of A with N columns of B.
//!
//! Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Warp w of the group holds
//! rows 16w to 16w + 15 of A and D, in the fragments of `mma.sync`. B, and A where it is not in registers, lie in
//! shared memory. Rows of A and columns of B have 32 bytes of K, of whatever type. The ISA leaves order and rounding of
//! the sums open: [`sums`](super::sums) has the rules, by default the ones that an H200 was recorded to follow
//! (`docs/semantics.md`).

use thiserror::Error;

pub use super::element::{Accumulator, Element};
pub use super::matrix_sums::Lanes;
use super::matrix_sums::{Lines, gather, scatter, whole};
use super::memory::{SharedRead, SharedReadError};
use super::smem_desc::{Layout, Major, SmemDesc, SmemDescError};
use super::sums::{Form, Instruction, NoRule, Rule, SumRule};
use super::swizzle::Swizzle;

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
        self.n as usize * self.accumulator.bits() / 64
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
        let (of_a, of_b, ty) = (self.shape.a, self.shape.b, self.shape.accumulator);
        let (rows, columns) = (elements(&rows, of_a), elements(&columns, of_b));
        let n = self.shape.n as usize;
        let mut sums = match self.accumulate {
            true => gather(d, (WARP_ROWS as usize, n), ty),
            false => vec![0; WARP_ROWS as usize * n],
        };
        let k = (K_BYTES / of_a.bytes()) as usize;
        if let (Some(format_a), Some(format_b), Some(rule)) = (of_a.format(), of_b.format(), rule) {
            let rows = Lines::new(format_a, k, rows, self.negate_a);
            let columns = Lines::new(format_b, k, columns, self.negate_b);
            rule.add_lines(ty, (&rows, &columns), &mut sums);
        } else {
            let (rows, columns): (Vec<_>, Vec<_>) = (rows.collect(), columns.collect());
            for (i, sum) in sums.iter_mut().enumerate() {
                let (x, y) = (&rows[i / n * k..][..k], &columns[i % n * k..][..k]);
                let products = x.iter().zip(y).map(|(x, y)| match of_a {
                    Element::B1 => i64::from((x & y).count_ones()),
                    _ => of_a.integer(*x) * of_b.integer(*y),
                });
                *sum = whole(*sum, products, self.saturate);
            }
        }
        Ok(scatter(&sums, n, ty))
    }
}

/// Codes of elements, from their bytes; of single bits, eight at a time.
fn elements(bytes: &[u8], of: Element) -> impl Iterator<Item = u32> + '_ {
    let all = bytes.chunks_exact(of.bytes() as usize);
    all.map(move |element| {
        let one = |all: u32, byte: &u8| all << 8 | u32::from(*byte);
        of.code(element.iter().rev().fold(0, one))
    })
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
