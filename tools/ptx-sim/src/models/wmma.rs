//! `wmma` of one warp, section 9.7.14.4: fragments whose layout is this simulator's own, and products as those of
//! `mma.sync`.

use super::mma_sync::{Accumulator, Element, Lanes, Mma, MmaError, Modifiers, Product};
use super::sums::{Instruction, NoRule, Rule, SumRule};
use crate::softfloat::F16;

named! {
    /// The matrix of a fragment.
    #[allow(missing_docs)]
    Matrix {
        A "a",
        B "b",
        C "c",
        D "d",
    }
}

/// M, N and K of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
}

impl Shape {
    /// The shape that a modifier names.
    pub fn parse(name: &str) -> Option<Self> {
        let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let [m, n, k] = [m, n, k].map(|v| v.parse().ok());
        let shape = (m?, n?, k?);
        let known = matches!(shape, (16, 16, 8 | 16) | (32, 8, 16) | (8, 32, 16));
        let (m, n, k) = shape;
        known.then_some(Self { m, n, k })
    }
}

/// A matrix in the registers of a warp: A and C by rows, B by columns. "The identity of individual matrix elements in
/// the fragment is unspecified": element by element, register by register of all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Lines of the matrix, rows or columns.
    pub lines: usize,
    /// Elements of a line.
    pub length: usize,
    /// Bits of an element.
    pub bits: usize,
    /// Registers of a lane. Matrices that have fewer elements than these hold are held several times.
    pub registers: usize,
    /// Whether lines are columns.
    pub by_columns: bool,
    /// A or B with the other layout: it lies in other lanes, because `wmma.mma` must name the layout of the load.
    pub turned: bool,
}

impl Fragment {
    /// The fragment of a matrix whose elements have this type. `None` where there is none, or none is modelled.
    pub fn of(matrix: Matrix, s: Shape, ty: &str) -> Option<Self> {
        let (lines, length) = match matrix {
            Matrix::A => (s.m, s.k),
            Matrix::B => (s.n, s.k),
            Matrix::C | Matrix::D => (s.m, s.n),
        };
        let factor = matches!(matrix, Matrix::A | Matrix::B);
        let bits = match (factor, ty, s.k) {
            (true, "f16" | "bf16", 16) => 16,
            (true, "s8" | "u8", 16) => 8,
            (true, "tf32", 8) => 32,
            (false, "f16", 16) => 16,
            (false, "f32" | "s32", _) => 32,
            _ => return None,
        };
        let registers = match (factor, ty) {
            (true, "f16") => 8,
            _ => lines * length * bits / (32 * 32),
        };
        Some(Self {
            lines,
            length,
            bits,
            registers,
            by_columns: matrix == Matrix::B,
            turned: false,
        })
    }

    /// Register, lane and first bit of an element.
    pub fn place(&self, element: usize) -> (usize, usize, usize) {
        let packed = 32 / self.bits;
        let (slot, i) = (element / packed, element % packed);
        let turn = if self.turned { 17 } else { 0 };
        (slot / 32, (slot % 32) ^ turn, i * self.bits)
    }

    /// The elements that registers hold.
    pub fn elements(&self, registers: &[Lanes]) -> Vec<u32> {
        let mask = u64::MAX >> (64 - self.bits);
        let all = 0..self.lines * self.length;
        all.map(|i| {
            let (register, lane, bit) = self.place(i);
            (registers[register][lane] >> bit & mask) as u32
        })
        .collect()
    }

    /// Registers that hold these elements.
    pub fn registers(&self, elements: &[u32]) -> Vec<Lanes> {
        let once = elements.len() * self.bits / (32 * 32);
        let mut all = vec![[0; 32]; self.registers];
        for (i, v) in elements.iter().enumerate() {
            let (register, lane, bit) = self.place(i);
            for copy in (register..self.registers).step_by(once.max(1)) {
                all[copy][lane] |= u64::from(*v) << bit;
            }
        }
        all
    }
}

/// `wmma.mma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WmmaProduct {
    /// Fragments of A, B, C and D.
    pub fragments: [Fragment; 4],
    mma: Mma,
    /// C has f16 and D f32.
    widens: bool,
}

/// Columns that are multiplied together.
const COLUMNS: usize = 8;

impl WmmaProduct {
    /// D, A, B and C have these types. `None` where that is not modelled.
    pub fn new(
        s: Shape,
        [d, a, b, c]: [&str; 4],
        satfinite: bool,
    ) -> Option<Result<Self, MmaError>> {
        let of = |matrix, ty| Fragment::of(matrix, s, ty);
        let fragments = [
            of(Matrix::A, a)?,
            of(Matrix::B, b)?,
            of(Matrix::C, c)?,
            of(Matrix::D, d)?,
        ];
        let widens = (c, d) == ("f16", "f32");
        if c != d && !widens {
            return None;
        }
        let modifiers = Modifiers {
            satfinite,
            f8f6f4: false,
            product: Product::Times,
            scaling: None,
        };
        let (a, b, d) = (
            Element::parse(a)?,
            Element::parse(b)?,
            Accumulator::parse(d)?,
        );
        let mma = Mma::new((16, s.k), a, b, d, modifiers);
        Some(mma.map(|mma| Self {
            fragments,
            mma,
            widens,
        }))
    }

    /// The rule by which the instruction adds; `None` for integers.
    ///
    /// # Errors
    /// Nobody says how.
    pub fn rule(&self, sums: SumRule) -> Result<Option<Rule>, NoRule> {
        self.mma.rule(sums, Instruction::Wmma)
    }

    /// D of the fragments of A, B and C, by the rule of [`WmmaProduct::rule`].
    pub fn run(&self, a: &[Lanes], b: &[Lanes], c: &[Lanes], rule: Option<Rule>) -> Vec<Lanes> {
        let [of_a, of_b, of_c, of_d] = self.fragments;
        let (a, b, mut sums) = (of_a.elements(a), of_b.elements(b), of_c.elements(c));
        if self.widens {
            sums.iter_mut()
                .for_each(|v| *v = (F16.to_f64(*v) as f32).to_bits());
        }
        let n = of_d.length;
        for first in (0..n).step_by(COLUMNS) {
            let rows = sums.chunks_exact(n);
            let mut part: Vec<u32> = rows
                .flat_map(|r| &r[first..first + COLUMNS])
                .copied()
                .collect();
            let columns = &b[first * of_b.length..][..COLUMNS * of_b.length];
            self.mma.add_to(&mut part, (&a, columns), None, rule);
            for (row, part) in sums.chunks_exact_mut(n).zip(part.chunks_exact(COLUMNS)) {
                row[first..first + COLUMNS].copy_from_slice(part);
            }
        }
        of_d.registers(&sums)
    }
}
