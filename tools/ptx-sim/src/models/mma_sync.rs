//! `mma.sync` of one warp: fragments, block scales, exact products, and their sums.
//!
//! PTX ISA 9.7.14.5. The ISA leaves order and rounding of the sum open: [`sums`](super::sums) has the rules, by default
//! the one that an H200 was recorded to follow (`docs/semantics.md`).

pub use super::element::{Accumulator, Element, ScaleType};
pub use super::idesc::Kind;
pub use super::matrix_sums::Lanes;
use super::matrix_sums::{Lines, gather, scatter, whole};
use super::mma_number::Number;
use super::sums::{Form, Instruction, NoRule, Rule, Scales, SumRule};
use crate::softfloat::{E4M3, ue4m3};

impl Element {
    /// Whether `.kind::f8f6f4` has it.
    fn is_f8f6f4(self) -> bool {
        use Element::*;
        matches!(self, E4m3 | E5m2 | E3m2 | E2m3 | E2m1)
    }
}

/// A combination that the ISA does not define.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mma.m{m}n8k{k} of {a} and {b} into {d} is not defined")]
pub struct MmaError {
    m: usize,
    k: usize,
    a: Element,
    b: Element,
    d: Accumulator,
}

/// Scales where the ISA has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the place of {vector} scales is not defined: {a} of A, {b} of B")]
pub struct SelectorError {
    a: Selector,
    b: Selector,
    vector: usize,
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{{{}, {}}}", self.byte, self.thread)
    }
}

/// Operation that stands for the product of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// The product.
    Times,
    /// Whether both of two single bits are set.
    And,
    /// Whether one alone of two single bits is set.
    Xor,
}

/// Modifiers of an instruction beside shape and types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Modifiers {
    /// `.satfinite`: integer sums saturate.
    pub satfinite: bool,
    /// `.kind::f8f6f4`.
    pub f8f6f4: bool,
    /// `.and.popc` or `.xor.popc` of single bits; otherwise the product.
    pub product: Product,
    /// `.block_scale`.
    pub scaling: Option<Scaling>,
}

/// Bytes and lanes that hold scales: `{byte-id, thread-id}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Selector {
    /// The first byte of the register.
    pub byte: usize,
    /// For A, a pair of every four lanes; for B, one of them.
    pub thread: usize,
}

/// Block scales of A and B: 9.7.14.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scaling {
    /// `.kind`.
    pub kind: Kind,
    /// Scales of a row or column: `.scale_vec::1X`, 2 or 4.
    pub vector: usize,
    /// `.stype`.
    pub ty: ScaleType,
    /// Place of A's scales.
    pub a: Selector,
    /// Place of B's scales.
    pub b: Selector,
}

impl Scaling {
    /// Table 36, as PTX 9.1 has it, and table 37.
    fn is_defined(&self) -> bool {
        use Kind::*;
        use ScaleType::*;
        let combination = matches!(
            (self.kind, self.vector, self.ty),
            (Mxf8f6f4, 1, Ue8m0) | (Mxf4 | Mxf4nvf4, 2, Ue8m0) | (Mxf4nvf4, 4, _)
        );
        // Whole vectors, at multiples of their size.
        let byte = |s: Selector| s.byte < 4 && s.byte.is_multiple_of(self.vector);
        combination && byte(self.a) && byte(self.b) && self.a.thread < 2 && self.b.thread < 4
    }

    /// The lane that has the scales of a row of A: of the pair, the first one those of the upper eight rows, the second
    /// one those of the lower.
    fn lane_of_row(&self, row: usize) -> usize {
        row % 8 * 4 + self.a.thread * 2 + row / 8
    }

    /// The lane that has the scales of a column of B.
    fn lane_of_column(&self, column: usize) -> usize {
        column * 4 + self.b.thread
    }

    /// The scales of a row or column, from its lane's register.
    fn numbers(&self, register: u64, selector: Selector) -> Result<Vec<Number>, &'static str> {
        let bytes = register.to_le_bytes();
        let all = bytes[selector.byte..][..self.vector].iter();
        all.map(|bits| match self.ty {
            ScaleType::Ue8m0 => Ok(Number::power_of_two(*bits)),
            ScaleType::Ue4m3 => ue4m3(*bits)
                .map(|scale| Number::of_value(scale, E4M3.least_exponent()))
                .ok_or("a scale of type ue4m3 has its top bit set"),
        })
        .collect()
    }
}

impl Modifiers {
    /// Whether the instruction exists in the m16n8 shapes alone.
    fn is_of_16_rows(&self) -> bool {
        self.f8f6f4 || self.scaling.is_some()
    }
}

/// One m16n8 or m8n8 instruction, A by rows and B by columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mma {
    m: usize,
    k: usize,
    a: Element,
    b: Element,
    d: Accumulator,
    modifiers: Modifiers,
}

/// Columns of B and D.
const N: usize = 8;

impl Mma {
    /// An instruction of M rows and K elements; C has the type of D.
    pub fn new(
        (m, k): (usize, usize),
        a: Element,
        b: Element,
        d: Accumulator,
        modifiers: Modifiers,
    ) -> Result<Self, MmaError> {
        use Accumulator as Acc;
        use Element::*;
        let defined = match (m, a, b) {
            (16, a, b) if modifiers.scaling.is_some() => {
                let kind = modifiers
                    .scaling
                    .filter(Scaling::is_defined)
                    .map(|scaling| scaling.kind);
                let elements = match kind {
                    Some(Kind::Mxf8f6f4) => k == 32 && a.is_f8f6f4() && b.is_f8f6f4(),
                    Some(_) => k == 64 && (a, b) == (E2m1, E2m1),
                    None => false,
                };
                elements && d == Acc::F32 && !modifiers.f8f6f4
            }
            (16, a, b) if modifiers.f8f6f4 => {
                a.is_f8f6f4() && b.is_f8f6f4() && k == 32 && d != Acc::S32
            }
            (16, F16, F16) => matches!(k, 8 | 16) && d != Acc::S32,
            (16, Bf16, Bf16) => matches!(k, 8 | 16) && d == Acc::F32,
            (16, Tf32, Tf32) => matches!(k, 4 | 8) && d == Acc::F32,
            (16, E4m3 | E5m2, E4m3 | E5m2) => matches!(k, 16 | 32) && d != Acc::S32,
            (16, S8 | U8, S8 | U8) => matches!(k, 16 | 32) && d == Acc::S32,
            (16, S4 | U4, S4 | U4) => matches!(k, 32 | 64) && d == Acc::S32,
            (16, B1, B1) => matches!(k, 128 | 256) && d == Acc::S32,
            (8, S8 | U8, S8 | U8) => k == 16 && d == Acc::S32,
            (8, S4 | U4, S4 | U4) => k == 32 && d == Acc::S32,
            (8, B1, B1) => k == 128 && d == Acc::S32,
            _ => false,
        };
        let saturates = !modifiers.satfinite || d == Acc::S32 && a != B1;
        let multiplies = (a == B1) == (modifiers.product != Product::Times);
        if !defined || !saturates || !multiplies || modifiers.is_of_16_rows() && m != 16 {
            return Err(MmaError { m, k, a, b, d });
        }
        Ok(Self {
            m,
            k,
            a,
            b,
            d,
            modifiers,
        })
    }

    /// The same with the scales in other places.
    ///
    /// # Errors
    /// Places that the ISA does not define.
    pub fn selecting(mut self, [a, b]: [Selector; 2]) -> Result<Self, SelectorError> {
        if let Some(scaling) = &mut self.modifiers.scaling {
            (scaling.a, scaling.b) = (a, b);
            if !scaling.is_defined() {
                let vector = scaling.vector;
                return Err(SelectorError { a, b, vector });
            }
        }
        Ok(self)
    }

    /// Bits an element of A or B takes in a register.
    fn bits(&self) -> u32 {
        if self.is_fp4() { 4 } else { self.a.bits() }
    }

    /// Whether E2M1 has no padding.
    fn is_fp4(&self) -> bool {
        let kind = self.modifiers.scaling.map(|scaling| scaling.kind);
        matches!(kind, Some(Kind::Mxf4 | Kind::Mxf4nvf4))
    }

    /// Elements in a register of A or B.
    fn packed(&self) -> usize {
        (32 / self.bits()) as usize
    }

    /// Registers a lane gives for A, for B, and for C or D.
    pub fn registers(&self) -> (usize, usize, usize) {
        let row = self.k / (4 * self.packed());
        let eights = self.m / 8;
        let of_eight = if self.d == Accumulator::F16 { 1 } else { 2 };
        (eights * row, row, eights * of_eight)
    }

    /// A by rows, as bits. Each of the four lanes that share a row holds one register's worth of neighbours. With 16
    /// rows, registers alternate between a row and the one 8 below.
    fn rows(&self, a: &[Lanes]) -> Vec<u32> {
        let mut out = vec![0; self.m * self.k];
        let eights = self.m / 8;
        for (r, lanes) in a.iter().enumerate() {
            for (lane, v) in lanes.iter().enumerate() {
                let row = lane / 4 + 8 * (r % eights);
                self.spread(&mut out[row * self.k..][..self.k], lane, r / eights, *v);
            }
        }
        out
    }

    /// B by columns, as bits.
    fn columns(&self, b: &[Lanes]) -> Vec<u32> {
        let mut out = vec![0; N * self.k];
        for (r, lanes) in b.iter().enumerate() {
            for (lane, v) in lanes.iter().enumerate() {
                self.spread(&mut out[lane / 4 * self.k..][..self.k], lane, r, *v);
            }
        }
        out
    }

    /// The elements of one register along K.
    fn spread(&self, line: &mut [u32], lane: usize, group: usize, v: u64) {
        let (n, bits) = (self.packed(), self.bits());
        let mask = u64::MAX >> (64 - bits);
        for i in 0..n {
            line[(group * 4 + lane % 4) * n + i] = (v >> (bits * i as u32) & mask) as u32;
        }
    }

    /// The rule by which the instruction adds, as `mma.sync` or as `wmma`; `None` for integers.
    ///
    /// # Errors
    /// Nobody says how.
    pub fn rule(&self, sums: SumRule, instruction: Instruction) -> Result<Option<Rule>, NoRule> {
        let scales = self.modifiers.scaling.map(|scaling| Scales {
            kind: scaling.kind,
            count: scaling.vector,
            ty: scaling.ty,
        });
        sums.rule(&Form {
            instruction,
            k: self.k,
            a: self.a,
            b: self.b,
            d: self.d,
            scales,
        })
    }

    /// D = A * B + C on the fragments of a warp, whose numbers of registers must be those of
    /// [`Mma::registers`]. With block scales there is a register of A's and one of B's. The rule is that of
    /// [`Mma::rule`].
    ///
    /// # Errors
    /// Scales whose value the ISA does not define.
    pub fn run(
        &self,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        scales: Option<[&Lanes; 2]>,
        rule: Option<Rule>,
    ) -> Result<Vec<Lanes>, &'static str> {
        let (a, b) = (self.rows(a), self.columns(b));
        let factors = match (self.modifiers.scaling, scales) {
            (Some(scaling), Some([of_a, of_b])) => {
                let rows = (0..self.m)
                    .map(|row| scaling.numbers(of_a[scaling.lane_of_row(row)], scaling.a))
                    .collect::<Result<Vec<_>, _>>()?;
                let columns = (0..N)
                    .map(|column| scaling.numbers(of_b[scaling.lane_of_column(column)], scaling.b))
                    .collect::<Result<Vec<_>, _>>()?;
                Some([rows, columns])
            }
            _ => None,
        };
        let mut sums = gather(c, (self.m, N), self.d);
        self.add_to(&mut sums, (&a, &b), factors, rule);
        Ok(scatter(&sums, N, self.d))
    }

    /// Adds the products to C, which has a row for each of A's. `scales`: those of each row and each column. Floats
    /// need a rule.
    pub(super) fn add_to(
        &self,
        c: &mut [u32],
        (a, b): (&[u32], &[u32]),
        scales: Option<[Vec<Vec<Number>>; 2]>,
        rule: Option<Rule>,
    ) {
        let (Some(of_a), Some(of_b), Some(rule)) = (self.a.format(), self.b.format(), rule) else {
            for (i, c) in c.iter_mut().enumerate() {
                let (row, column) = (
                    &a[i / N * self.k..][..self.k],
                    &b[i % N * self.k..][..self.k],
                );
                let products = row.iter().zip(column);
                let products = products.map(|(x, y)| match self.modifiers.product {
                    Product::Times => self.a.integer(*x) * self.b.integer(*y),
                    Product::And => i64::from(x & y),
                    Product::Xor => i64::from(x ^ y),
                });
                *c = whole(*c, products, self.modifiers.satfinite);
            }
            return;
        };
        let lines = |of: Element, format, all: &[u32]| {
            let codes = all.iter().map(|x| match self.is_fp4() {
                true => *x,
                false => of.code(*x),
            });
            Lines::new(format, self.k, codes, false)
        };
        let (a, b) = (lines(self.a, of_a, a), lines(self.b, of_b, b));
        let Some([rows, columns]) = scales else {
            return rule.add_lines(self.d, (&a, &b), c);
        };
        let numbers =
            |lines: &Lines, n| -> Vec<Vec<_>> { (0..n).map(|i| lines.line(i).collect()).collect() };
        let (a, b) = (numbers(&a, self.m), numbers(&b, N));
        for (i, c) in c.iter_mut().enumerate() {
            let (row, column) = (i / N, i % N);
            let scales = (&rows[row][..], &columns[column][..]);
            *c = rule.add(self.d, *c, (&a[row], &b[column]), Some(scales));
        }
    }
}
