//! How matrix instructions round their sums: the only place that has the numbers.
//!
//! The ISA leaves order and rounding open. A [`Rule`] says all of it for one form of an instruction. Three parties give
//! rules ([`SumRule`]): this simulator's own assumptions; a published model of a GPU; or a caller who tries a rule.
//!
//! The published model is MMA-Sim: arXiv 2511.10909, `microsoft/MMA-Sim` at c785138 (January 2026). It claims to give
//! the bits of hardware. On Hopper this repository's recordings agree with it, all of them
//! (`tests/published_sums.rs`). For Blackwell nobody here has a recording: there the rule is somebody's claim. What the
//! model does not compute is refused: [`NoRule`]. One of its choices is not taken over: it gives a product with a
//! zero an exponent of -126 plus the other factor's. Here such a product counts for nothing, which differs only where
//! all other terms of a sum are below 2^-101.

use super::element::{Accumulator, Element, ScaleType};
use super::idesc::Kind;
use super::matrix_sums::{Lines, add_products};
use super::mma_number::{Number, Sum};
use crate::softfloat::{E2M1_DOUBLED, E4M3, F32};

named! {
    /// A kind of GPU that a published model of sums exists for.
    Silicon {
        Ampere "ampere": "compute capability 8.0 to 8.7",
        Ada "ada": "compute capability 8.9",
        Hopper "hopper": "compute capability 9.0",
        Blackwell "blackwell": "compute capability 10.x",
        RtxBlackwell "rtx-blackwell": "compute capability 12.x",
    }
}

/// Who says how matrix instructions round their sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SumRule {
    /// The simulator. Instructions of warps and warpgroups add as an H200 was recorded to, also those of types that it
    /// does not have; `tcgen05.mma` in f64, rounded once to nearest.
    #[default]
    Own,
    /// The published model of a GPU. An instruction for which it has no rule is refused.
    Published(Silicon),
    /// One rule for every float sum, to try it.
    Tried(Rule),
}

impl std::str::FromStr for SumRule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match (name, Silicon::parse(name)) {
            ("own", _) => Ok(Self::Own),
            (_, Some(silicon)) => Ok(Self::Published(silicon)),
            _ => {
                let names = Silicon::ALL.map(Silicon::name).join(", ");
                Err(format!("`{name}` is none of own, {names}"))
            }
        }
    }
}

impl std::fmt::Display for SumRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own => f.pad("own"),
            Self::Published(silicon) => silicon.fmt(f),
            Self::Tried(rule) => write!(f, "{rule:?}"),
        }
    }
}

/// How an instruction adds K products and C. The terms of a sum are aligned to the largest exponent among them and cut
/// toward zero; then they are added exactly, and the sum is rounded. The exponent of a product is the sum of its
/// factors', whatever their significands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Products of one sum. Several sums follow each other: each has the one before as a term, the first one has C.
    pub chain: usize,
    /// Products that become one term, exactly. Where it is more than one, the exponent of such a term is that of its
    /// two block scales, added, also where all its products are zero; products need block scales then.
    pub block: usize,
    /// Binary places that a term keeps below the largest exponent.
    pub fraction: i32,
    /// Bits of the mantissa that an f32 sum keeps, cut toward zero. A sum in f16 is rounded to nearest, ties to even.
    pub mantissa: u32,
}

/// Bits of f32's mantissa.
const F32_MANTISSA: u32 = 23;
/// Places that Hopper and Blackwell keep. Recordings of an H200 say the same of Hopper.
const WIDE: i32 = 25;
/// Places that Ampere and Ada keep.
const AMPERE: i32 = 24;
/// Places that the FP8 units of Ada and of Hopper's `wgmma` keep, and the bits of their f32 sums' mantissas.
const NARROW: i32 = 13;
/// Places that Blackwell keeps of sums of FP4 with block scales.
const FP4: i32 = 35;
/// Products of a term of sums of FP4 with block scales, whatever the length of a block.
const FP4_BLOCK: usize = 16;
/// The exponent of C where C is zero: that of f32's smallest normal number.
const OF_ZERO: i32 = -126;

/// An instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Instruction {
    MmaSync,
    Wmma,
    Wgmma,
    /// `tcgen05.mma`, of a CTA or of a pair; and whether D is scaled on the way in.
    Tcgen05 {
        pair: bool,
        scales_d: bool,
    },
}

/// Block scales of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scales {
    /// `.kind`.
    pub kind: Kind,
    /// Scales of a row, over the K of the instruction.
    pub count: usize,
    /// Their type.
    pub ty: ScaleType,
}

/// All of an instruction that decides how it adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    /// The instruction.
    pub instruction: Instruction,
    /// Products of a sum.
    pub k: usize,
    /// Elements of A.
    pub a: Element,
    /// Elements of B.
    pub b: Element,
    /// Type of C and D.
    pub d: Accumulator,
    /// Block scales, if there are any.
    pub scales: Option<Scales>,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { k, a, b, d, .. } = self;
        let name = match self.instruction {
            Instruction::MmaSync => "mma.sync",
            Instruction::Wmma => "wmma",
            Instruction::Wgmma => "wgmma",
            Instruction::Tcgen05 { pair: false, .. } => "tcgen05.mma",
            Instruction::Tcgen05 { pair: true, .. } => "tcgen05.mma of two CTAs",
        };
        write!(f, "{name} with K = {k} of {a} and {b} into {d}")?;
        if let Some(Scales { kind, count, ty }) = self.scales {
            write!(f, ", {kind:?} with {count} scales of type {ty:?}")?;
        }
        match self.instruction {
            Instruction::Tcgen05 { scales_d: true, .. } => write!(f, ", with scale-input-d"),
            _ => Ok(()),
        }
    }
}

/// Why an instruction has no rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRule {
    /// The model of the GPU does not have the instruction.
    #[error("no rule for the sums of {form} is published for {silicon}")]
    Unpublished {
        /// The instruction.
        form: Form,
        /// The GPU.
        silicon: Silicon,
    },
    /// A rule that is tried, and that no sum can follow.
    #[error(
        "{rule:?} says nothing of {form}: a sum has a term or more, a term of several products is of FP4 with block \
         scales, up to {MOST_FRACTION} places are kept, and up to {F32_MANTISSA} bits of a mantissa"
    )]
    Impossible {
        /// The instruction.
        form: Form,
        /// The rule.
        rule: Rule,
    },
}

/// The most places for which sums are exact in the integers and in the f64 that they are formed in.
const MOST_FRACTION: i32 = 38;

impl SumRule {
    /// How an instruction adds. `None` for integers, whose sums are exact, and for `tcgen05.mma` of [`SumRule::Own`],
    /// which no rule describes.
    ///
    /// # Errors
    /// The model of a GPU does not have the instruction, or a rule that is tried says nothing of it.
    pub fn rule(self, form: &Form) -> Result<Option<Rule>, NoRule> {
        if form.a.is_integer() {
            return Ok(None);
        }
        let whole = Rule {
            chain: form.k,
            block: 1,
            fraction: WIDE,
            mantissa: F32_MANTISSA,
        };
        match self {
            Self::Own => Ok(match form.instruction {
                Instruction::MmaSync | Instruction::Wmma => Some(whole),
                Instruction::Wgmma => published(Silicon::Hopper, form, whole),
                Instruction::Tcgen05 { .. } => None,
            }),
            Self::Published(silicon) => match published(silicon, form, whole) {
                Some(rule) => Ok(Some(rule)),
                None => Err(NoRule::Unpublished {
                    form: *form,
                    silicon,
                }),
            },
            Self::Tried(rule) if rule.is_possible(form) => Ok(Some(rule)),
            Self::Tried(rule) => Err(NoRule::Impossible { form: *form, rule }),
        }
    }
}

/// The published rule; `whole` is one sum of all products and C in 25 places.
fn published(silicon: Silicon, form: &Form, whole: Rule) -> Option<Rule> {
    use Accumulator::{F16 as InF16, F32 as InF32};
    use Element::*;
    use Silicon::*;
    let &Form {
        instruction,
        k,
        a,
        b,
        d,
        scales,
    } = form;
    let fp8 = |e| matches!(e, E4m3 | E5m2);
    // Types whose instructions Ampere brought, in f32 or f16, and their shapes.
    let halves = matches!(
        (a, b, d),
        (F16, F16, InF16 | InF32) | (Bf16, Bf16, InF32) | (Tf32, Tf32, InF32)
    );
    let narrow = Rule {
        fraction: NARROW,
        mantissa: NARROW as u32,
        ..whole
    };
    if let Some(of) = scales {
        let fp4 = Rule {
            block: FP4_BLOCK,
            fraction: FP4,
            ..whole
        };
        let instruction = match (silicon, instruction) {
            (RtxBlackwell, Instruction::MmaSync) => true,
            (Blackwell, Instruction::Tcgen05 { pair, scales_d }) => !pair && !scales_d,
            _ => false,
        };
        // MMA-Sim lists E2M1 with one scale for 32 products as well, and cannot compute it.
        return match (of.kind, k) {
            _ if !instruction || d != InF32 => None,
            (Kind::Mxf8f6f4, 32) => (fp8(a) && fp8(b)).then_some(whole),
            (Kind::Mxf4 | Kind::Mxf4nvf4, 64) => Some(fp4),
            _ => None,
        };
    }
    match (silicon, instruction) {
        (Ampere | Ada, Instruction::MmaSync) if halves => {
            // Units of four tf32, or of eight of 16 bits: the longer instructions are two sums.
            let unit = if a == Tf32 { 4 } else { 8 };
            Some(Rule {
                chain: unit.min(k),
                fraction: AMPERE,
                ..whole
            })
        }
        (Ada, Instruction::MmaSync) if fp8(a) && fp8(b) => Some(Rule {
            chain: 16.min(k),
            ..narrow
        }),
        (Hopper | Blackwell | RtxBlackwell, Instruction::MmaSync) if halves => Some(whole),
        (RtxBlackwell, Instruction::MmaSync) if fp8(a) && fp8(b) => Some(whole),
        (Hopper, Instruction::Wgmma) if halves => Some(whole),
        (Hopper, Instruction::Wgmma) if fp8(a) && fp8(b) => Some(narrow),
        (
            Blackwell,
            Instruction::Tcgen05 {
                pair: false,
                scales_d: false,
            },
        ) => {
            let mixed = matches!((a, b, d), (F16 | Bf16, F16 | Bf16, InF32));
            (halves || mixed || fp8(a) && fp8(b)).then_some(whole)
        }
        _ => None,
    }
}

impl Rule {
    fn is_possible(&self, form: &Form) -> bool {
        let fp4 = (form.a, form.b) == (Element::E2m1, Element::E2m1) && form.scales.is_some();
        // A block has one scale, and lies within one sum.
        let blocks = self.block > 0
            && form.k.is_multiple_of(self.block)
            && self.block <= FP4_BLOCK
            && self.chain.is_multiple_of(self.block);
        self.chain > 0
            && (self.block == 1 || fp4 && blocks)
            && (0..=MOST_FRACTION).contains(&self.fraction)
            && self.mantissa <= F32_MANTISSA
    }

    /// The bits that an f32 sum keeps.
    fn kept(&self, sum: u32) -> u32 {
        let cut = F32_MANTISSA.saturating_sub(self.mantissa);
        match f32::from_bits(sum).is_finite() {
            true => sum >> cut << cut,
            false => sum,
        }
    }

    /// C and products of each row of A with each column of B: C is `[row][column]`, as bits of D's type.
    pub(super) fn add_lines(&self, d: Accumulator, (a, b): (&Lines, &Lines), c: &mut [u32]) {
        for part in a.parts(self.chain) {
            add_products((a, b), &part, c, d.format(), self.fraction);
            if d != Accumulator::F16 {
                c.iter_mut().for_each(|sum| *sum = self.kept(*sum));
            }
        }
    }

    /// C and products of pairs of numbers: bits of D's type, as C has them. `scales` are those of a row and of a
    /// column, each for an equal part of K.
    pub(super) fn add(
        &self,
        d: Accumulator,
        c: u32,
        (a, b): (&[Number], &[Number]),
        scales: Option<(&[Number], &[Number])>,
    ) -> u32 {
        let format = d.format();
        let scale = |k: usize| {
            let of = |all: &[Number]| all[k * all.len() / a.len()];
            scales.map(|(row, column)| of(row).times(of(column)))
        };
        let mut bits = c;
        for first in (0..a.len()).step_by(self.chain) {
            let end = (first + self.chain).min(a.len());
            let mut sum = Sum::new(Number::of(format, bits), end - first, self.fraction);
            for k in (first..end).step_by(self.block) {
                let products = (k..(k + self.block).min(end)).map(|k| a[k].times(b[k]));
                match scale(k) {
                    None => products.for_each(|product| sum.add(product)),
                    Some(scale) if self.block == 1 => {
                        products.for_each(|product| sum.add(product.times(scale)));
                    }
                    Some(scale) => sum.add_block(Number::exact_sum(products).times(scale), scale),
                }
            }
            if self.block > 1 {
                sum.reach(OF_ZERO);
            }
            bits = match d {
                Accumulator::F16 => sum.to(format),
                _ => self.kept(sum.to(format)),
            };
        }
        bits
    }
}

/// An FP4 instruction's operand of one row or column: 64 codes of E2M1, two a byte, low nibble first, and their four
/// UE4M3 scales.
pub type Nvfp4 = ([u8; 32], [u8; 4]);

/// The rule of a GPU for NVFP4 (`kind::mxf4nvf4`, four scales of type UE4M3).
///
/// # Errors
/// A GPU that has no such instruction.
pub fn nvfp4(silicon: Silicon) -> Result<Rule, NoRule> {
    let instruction = match silicon {
        Silicon::Blackwell => Instruction::Tcgen05 {
            pair: false,
            scales_d: false,
        },
        _ => Instruction::MmaSync,
    };
    let form = Form {
        instruction,
        k: 64,
        a: Element::E2m1,
        b: Element::E2m1,
        d: Accumulator::F32,
        scales: Some(Scales {
            kind: Kind::Mxf4nvf4,
            count: 4,
            ty: ScaleType::Ue4m3,
        }),
    };
    let rule = SumRule::Published(silicon).rule(&form)?;
    rule.ok_or(NoRule::Unpublished { form, silicon })
}

impl Rule {
    /// One element of D of an NVFP4 instruction onto C, by this rule where terms are blocks of 16 of one sum
    /// ([`nvfp4`]): for whole problems, which are too long to execute. Signs of scales are ignored.
    pub fn nvfp4(&self, c: f32, (a, of_a): &Nvfp4, (b, of_b): &Nvfp4) -> f32 {
        // Not `add`, which would decode every code by itself: it takes ten times as long.
        let mut sum = Sum::new(Number::of(F32, c.to_bits()), 4, self.fraction);
        let blocks = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
        for ((x, y), (of_x, of_y)) in blocks.zip(of_a.iter().zip(of_b)) {
            let double = |code: u8| i64::from(E2M1_DOUBLED[usize::from(code)]);
            let pair = |(x, y): (&u8, &u8)| {
                double(x & 15) * double(y & 15) + double(x >> 4) * double(y >> 4)
            };
            let quarters: i64 = x.iter().zip(y).map(pair).sum();
            let scale = |bits: u8| Number::of(E4M3, u32::from(bits & 0x7f));
            let scale = scale(*of_x).times(scale(*of_y));
            sum.add_block(Number::whole(quarters, -2).times(scale), scale);
        }
        sum.reach(OF_ZERO);
        f32::from_bits(self.kept(sum.to(F32)))
    }
}
