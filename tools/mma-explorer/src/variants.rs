//! The matrix instructions: one table, which is the only place that knows them.
//!
//! A row of `ROWS` is a group of instructions that differ in types and shape alone; a [`Variant`] is one of them. The
//! instructions of PTX are taken from the PTX ISA (9.7.14 for `mma.sync`, 9.7.15 for `wgmma`, 9.7.16 for `tcgen05`).
//! Their machine code was read from the disassembly of what NVRTC 13.0 makes of them; the tests read it again.
//!
//! Left out are: sparse A, f64, the Volta shape m8n8k4, `.satfinite` (the same instruction, which saturates), and
//! `.kind::mxf4nvf4` with a UE8M0 scale for 16 elements, which needs PTX 9.1.

use std::fmt;

use serde::Serialize;

use crate::arch::Arch;
use crate::types::Type;
use Type::{B1, Bf16, E2m1, E2m3, E3m2, E4m3, E5m2, F16, F32, S4, S8, S32, Tf32, U4, U8};

/// Rows that one `tcgen05` instruction of a CTA has, which are lanes of tensor memory.
pub const LANES: u32 = 128;

/// Who executes an instruction, and where its operands lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `mma.sync`: a warp, all operands in registers.
    Mma,
    /// `wgmma.mma_async`: four warps, B in shared memory, A there or in registers.
    Wgmma,
    /// `tcgen05.mma`: one thread starts it; A and B in shared memory, the accumulator in tensor memory.
    Tcgen05,
}

impl Family {
    /// The beginning of variants' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mma => "mma",
            Self::Wgmma => "wgmma",
            Self::Tcgen05 => "tcgen05",
        }
    }
}

/// The architectures that an instruction is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// This one and all later ones.
    Since(u32),
    /// Architectures with the features of one of these families, each named by its first.
    Families(&'static [u32]),
    /// These very architectures, with all their features.
    Exactly(&'static [u32]),
}

/// How much of the machine code of an instruction is that instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Emission {
    /// One machine instruction of the same shape.
    Native,
    /// One machine instruction of a larger shape, a part of whose result is thrown away.
    Widened,
    /// Several instructions: conversions, and products of other types.
    Emulated,
}

impl Emission {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Widened => "widened",
            Self::Emulated => "emulated",
        }
    }
}

/// An instruction in the machine code of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Machine {
    /// The opcode of the matrix instruction, without modifiers: HMMA, QMMA, IMMA, BMMA, OMMA, HGMMA, UTCHMMA, ...
    pub opcode: &'static str,
    /// Whether that is all.
    pub emission: Emission,
}

/// Block scales: one for so many elements of K in each row of A and column of B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Scale {
    /// Type of a scale: `ue8m0` or `ue4m3`.
    pub ty: &'static str,
    /// Scales of a row in one instruction: 1, 2 or 4.
    pub vector: u32,
}

impl Scale {
    /// The code of one.
    pub fn one(&self) -> u8 {
        match self.ty {
            "ue4m3" => 0x38,
            _ => 0x7f,
        }
    }
}

/// Rows, columns and elements of K of one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[allow(missing_docs)]
pub struct Shape {
    pub m: u32,
    pub n: u32,
    pub k: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("m{}n{}k{}", self.m, self.n, self.k))
    }
}

/// M, N and K of instructions.
type Shapes = &'static [(u32, u32, u32)];

/// Which types A and B may have.
#[derive(Debug, Clone, Copy)]
enum Operands {
    /// One of these, both the same.
    Same(&'static [Type]),
    /// Each any of these.
    Any(&'static [Type]),
}

/// Instructions that differ in types and shape alone.
#[derive(Debug)]
struct Row {
    family: Family,
    /// `.kind`, without its `kind::`. Empty where there is none.
    kind: &'static str,
    shapes: Shapes,
    operands: Operands,
    accumulators: &'static [Type],
    /// The product of single bits: `xor` or `and`. None for other types.
    bits: Option<&'static str>,
    scale: Option<Scale>,
    needs: Needs,
    /// The first architecture that has the instruction, and its machine code there: native.
    machine: (u32, &'static str),
    /// The machine code from later architectures on, each up to the next one.
    later: &'static [(u32, &'static str, Emission)],
}

impl Row {
    /// Instructions of all architectures from the first on that has them: `mma.sync`, with sums in f32.
    const fn mma(shapes: Shapes, operands: Operands, machine: (u32, &'static str)) -> Self {
        Self {
            family: Family::Mma,
            kind: "",
            shapes,
            operands,
            accumulators: &[F32],
            bits: None,
            scale: None,
            needs: Needs::Since(machine.0),
            machine,
            later: &[],
        }
    }

    /// `mma.sync` of consumer Blackwells.
    const fn consumer(
        kind: &'static str,
        shapes: Shapes,
        operands: Operands,
        opcode: &'static str,
    ) -> Self {
        let needs = Needs::Families(&[120]);
        let row = Self::mma(shapes, operands, (120, opcode));
        Self { kind, needs, ..row }
    }

    const fn wgmma(shapes: Shapes, operands: Operands, opcode: &'static str) -> Self {
        let family = Family::Wgmma;
        let row = Self::mma(shapes, operands, (90, opcode)).only(&[90]);
        Self { family, ..row }
    }

    const fn tcgen05(
        kind: &'static str,
        shapes: Shapes,
        operands: Operands,
        opcode: &'static str,
    ) -> Self {
        Self {
            family: Family::Tcgen05,
            kind,
            needs: Needs::Families(&[100, 110]),
            ..Self::mma(shapes, operands, (100, opcode))
        }
    }

    const fn only(self, architectures: &'static [u32]) -> Self {
        let needs = Needs::Exactly(architectures);
        Self { needs, ..self }
    }

    const fn sums(self, accumulators: &'static [Type]) -> Self {
        Self {
            accumulators,
            ..self
        }
    }

    const fn bits(self, bits: &'static str) -> Self {
        let bits = Some(bits);
        Self { bits, ..self }.sums(&[S32])
    }

    const fn scaled(self, ty: &'static str, vector: u32) -> Self {
        let scale = Some(Scale { ty, vector });
        Self { scale, ..self }
    }

    const fn then(self, later: &'static [(u32, &'static str, Emission)]) -> Self {
        Self { later, ..self }
    }
}

const FP8: &[Type] = &[E4m3, E5m2];
const F8F6F4: &[Type] = &[E4m3, E5m2, E3m2, E2m3, E2m1];
const BYTES: &[Type] = &[S8, U8];
const NIBBLES: &[Type] = &[S4, U4];
const HALF_OR_SINGLE: &[Type] = &[F16, F32];

use Emission::{Emulated, Native, Widened};
use Operands::{Any, Same};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // mma.sync: floats.
    Row::mma(&[(16, 8, 8), (16, 8, 16)], Same(&[F16]), (80, "HMMA")).sums(HALF_OR_SINGLE),
    Row::mma(&[(16, 8, 8), (16, 8, 16)], Same(&[Bf16]), (80, "HMMA")),
    Row::mma(&[(16, 8, 4), (16, 8, 8)], Same(&[Tf32]), (80, "HMMA")),
    Row::mma(&[(16, 8, 16), (16, 8, 32)], Any(FP8), (89, "QMMA")).sums(HALF_OR_SINGLE)
        .then(&[(90, "HMMA", Emulated), (120, "QMMA", Native)]),
    // mma.sync: integers and bits.
    Row::mma(&[(8, 8, 16)], Any(BYTES), (80, "IMMA")).sums(&[S32]).then(&[(100, "IMMA", Widened)]),
    Row::mma(&[(16, 8, 16), (16, 8, 32)], Any(BYTES), (80, "IMMA")).sums(&[S32]),
    Row::mma(&[(8, 8, 32), (16, 8, 32), (16, 8, 64)], Any(NIBBLES), (80, "IMMA")).sums(&[S32])
        .then(&[(90, "IMMA", Emulated)]),
    Row::mma(&[(8, 8, 128), (16, 8, 128), (16, 8, 256)], Same(&[B1]), (80, "BMMA")).bits("and")
        .then(&[(100, "IMMA", Emulated)]),
    Row::mma(&[(8, 8, 128), (16, 8, 128), (16, 8, 256)], Same(&[B1]), (80, "BMMA")).bits("xor")
        .then(&[(90, "BMMA", Emulated), (100, "IMMA", Emulated)]),
    // mma.sync of consumer Blackwells.
    Row::consumer("f8f6f4", &[(16, 8, 32)], Any(F8F6F4), "QMMA").sums(HALF_OR_SINGLE),
    Row::consumer("mxf8f6f4", &[(16, 8, 32)], Any(F8F6F4), "QMMA").scaled("ue8m0", 1),
    Row::consumer("mxf4", &[(16, 8, 64)], Same(&[E2m1]), "OMMA").scaled("ue8m0", 2),
    Row::consumer("mxf4nvf4", &[(16, 8, 64)], Same(&[E2m1]), "OMMA").scaled("ue8m0", 2),
    Row::consumer("mxf4nvf4", &[(16, 8, 64)], Same(&[E2m1]), "OMMA").scaled("ue4m3", 4),
    // wgmma: M is 64; N is any multiple of 8 up to 256 (of integers, of 16 from 32 on), of which the largest stands
    // here.
    Row::wgmma(&[(64, 256, 16)], Same(&[F16]), "HGMMA").sums(HALF_OR_SINGLE),
    Row::wgmma(&[(64, 256, 16)], Same(&[Bf16]), "HGMMA"),
    Row::wgmma(&[(64, 256, 8)], Same(&[Tf32]), "HGMMA"),
    Row::wgmma(&[(64, 256, 32)], Any(FP8), "QGMMA").sums(HALF_OR_SINGLE),
    Row::wgmma(&[(64, 256, 32)], Any(BYTES), "IGMMA").sums(&[S32]),
    Row::wgmma(&[(64, 256, 256)], Same(&[B1]), "BGMMA").bits("and"),
    // tcgen05: the largest shape of one CTA; types and shape stand in a descriptor, not in the instruction's name.
    Row::tcgen05("f16", &[(128, 256, 16)], Same(&[F16]), "UTCHMMA").sums(HALF_OR_SINGLE),
    Row::tcgen05("f16", &[(128, 256, 16)], Same(&[Bf16]), "UTCHMMA"),
    Row::tcgen05("tf32", &[(128, 256, 8)], Same(&[Tf32]), "UTCHMMA"),
    Row::tcgen05("f8f6f4", &[(128, 256, 32)], Any(F8F6F4), "UTCQMMA").sums(HALF_OR_SINGLE),
    Row::tcgen05("i8", &[(128, 256, 32)], Any(BYTES), "UTCIMMA").only(&[100, 110]).sums(&[S32]),
    Row::tcgen05("mxf8f6f4", &[(128, 256, 32)], Any(F8F6F4), "UTCQMMA").scaled("ue8m0", 1),
    Row::tcgen05("mxf4", &[(128, 256, 64)], Same(&[E2m1]), "UTCOMMA").scaled("ue8m0", 2),
    Row::tcgen05("mxf4nvf4", &[(128, 256, 64)], Same(&[E2m1]), "UTCOMMA").scaled("ue8m0", 2),
    Row::tcgen05("mxf4nvf4", &[(128, 256, 64)], Same(&[E2m1]), "UTCOMMA").scaled("ue4m3", 4),
];

/// One matrix instruction: D = A * B + C, C and D of one type.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    row: &'static Row,
    /// Shape of one instruction; of a family that takes several, the largest.
    pub shape: Shape,
    /// Type of A.
    pub a: Type,
    /// Type of B.
    pub b: Type,
    /// Type of C and D.
    pub accumulator: Type,
}

/// All of them, in the table's order.
pub fn all() -> Vec<Variant> {
    let mut all = Vec::new();
    for row in ROWS {
        let pairs: Vec<(Type, Type)> = match row.operands {
            Operands::Same(types) => types.iter().map(|ty| (*ty, *ty)).collect(),
            Operands::Any(types) => {
                let with = |a: &Type| types.iter().map(move |b| (*a, *b)).collect::<Vec<_>>();
                types.iter().flat_map(with).collect()
            }
        };
        for &(m, n, k) in row.shapes {
            for &accumulator in row.accumulators {
                for &(a, b) in &pairs {
                    all.push(Variant {
                        row,
                        shape: Shape { m, n, k },
                        a,
                        b,
                        accumulator,
                    });
                }
            }
        }
    }
    all
}

/// The variant of that name.
pub fn find(name: &str) -> Option<Variant> {
    all().into_iter().find(|variant| variant.name() == name)
}

impl Variant {
    /// The variant's name: the words of the PTX instruction that tell it from others, such as
    /// `mma.m16n8k32.f32.e4m3.e5m2`: D, A, B.
    pub fn name(&self) -> String {
        let mut name = format!("{}.{}", self.row.family.name(), self.shape);
        if !self.row.kind.is_empty() {
            name += &format!(".{}", self.row.kind);
        }
        name += &format!(".{}.{}.{}", self.accumulator, self.a, self.b);
        for word in [self.row.scale.map(|scale| scale.ty), self.row.bits]
            .into_iter()
            .flatten()
        {
            name += &format!(".{word}");
        }
        name
    }

    /// Who executes it.
    pub fn family(&self) -> Family {
        self.row.family
    }

    /// PTX's `.kind`, without its `kind::`. Empty where there is none.
    pub fn kind(&self) -> &'static str {
        self.row.kind
    }

    /// Block scales of the instruction.
    pub fn scale(&self) -> Option<Scale> {
        self.row.scale
    }

    /// The product of single bits: `xor` or `and`; none for other types. Ones are counted and added up.
    pub fn bits(&self) -> Option<&'static str> {
        self.row.bits
    }

    /// Bits of memory and registers that an element of A or B takes. The `f8f6f4` kinds have every element in a byte.
    pub fn container_bits(&self, ty: Type) -> u32 {
        match self.row.kind {
            "f8f6f4" | "mxf8f6f4" => 8,
            _ => ty.bits(),
        }
    }

    /// The place of the lowest bit of a row's element, among the row's bits. Elements follow each other in their
    /// containers, except for narrow elements in bytes. `mma.sync` has E2M1 in the middle of its byte. `tcgen05` has
    /// sixteen elements side by side at the front of 16 bytes, and does not read the rest.
    pub fn bit_of(&self, ty: Type, element: usize) -> usize {
        let (bits, container) = (ty.bits() as usize, self.container_bits(ty) as usize);
        match (self.row.family, container, ty) {
            (Family::Tcgen05, 8, _) => element / 16 * 128 + element % 16 * bits,
            (_, 8, E2m1) => element * 8 + 2,
            _ => element * container,
        }
    }

    /// Why the instruction is not there for an architecture; `None` where it is.
    pub fn missing(&self, arch: Arch) -> Option<String> {
        match self.row.needs {
            Needs::Since(first) => {
                (arch.number < first).then(|| format!("needs sm_{first} or newer"))
            }
            Needs::Families(those) => {
                (!those.iter().any(|first| arch.has_family(*first))).then(|| {
                    let names = those.iter().map(|first| format!("{first}a or {first}f"));
                    let names: Vec<_> = names.collect();
                    format!(
                        "needs the features of a family: {}, or of later ones of these",
                        names.join(", ")
                    )
                })
            }
            Needs::Exactly(those) => {
                (!those.iter().any(|number| arch.is_exactly(*number))).then(|| {
                    let names: Vec<_> =
                        those.iter().map(|number| format!("sm_{number}a")).collect();
                    format!("exists for {} only", names.join(" and "))
                })
            }
        }
    }

    /// The instruction in machine code; `None` where the architecture does not have it.
    pub fn machine(&self, arch: Arch) -> Option<Machine> {
        if self.missing(arch).is_some() {
            return None;
        }
        let later = self.row.later.iter().rev();
        let (_, opcode, emission) = later
            .copied()
            .find(|(from, ..)| *from <= arch.number)
            .unwrap_or((0, self.row.machine.1, Native));
        Some(Machine { opcode, emission })
    }

    /// This variant with another N, of those that a family takes.
    pub fn with_n(self, n: u32) -> Self {
        let shape = Shape { n, ..self.shape };
        Self { shape, ..self }
    }

    /// This variant with another M: 256 rows of `tcgen05` are those of a pair of CTAs.
    pub fn with_m(self, m: u32) -> Self {
        let shape = Shape { m, ..self.shape };
        Self { shape, ..self }
    }

    /// Whether sums keep all of an f32's bits. Sums of FP8 with `wgmma` do not: an H200 cuts each term 13 bits below
    /// the largest one (ptx-sim's semantics, "Warpgroup matrices").
    pub fn sums_are_wide(&self) -> bool {
        self.row.family != Family::Wgmma || self.a.bits() != 8 || self.a.is_integer()
    }

    /// The PTX instruction, without operands.
    pub fn instruction(&self) -> String {
        let Self {
            shape,
            a,
            b,
            accumulator: d,
            row,
        } = self;
        let mut form = String::new();
        if !row.kind.is_empty() {
            form = format!(".kind::{}", row.kind);
        }
        let mut after = String::new();
        if let Some(scale) = row.scale {
            form += &format!(".block_scale.scale_vec::{}X", scale.vector);
            after = format!(".{}", scale.ty);
        }
        if let Some(bits) = row.bits {
            after = format!(".{bits}.popc");
        }
        match row.family {
            Family::Mma => format!("mma.sync.aligned.{shape}.row.col{form}.{d}.{a}.{b}.{d}{after}"),
            Family::Wgmma => format!("wgmma.mma_async.sync.aligned.{shape}.{d}.{a}.{b}{after}"),
            Family::Tcgen05 => {
                let ctas = shape.m.div_ceil(LANES);
                format!("tcgen05.mma.cta_group::{ctas}{form}")
            }
        }
    }

    /// Bytes of a row of A, and of a column of B, in one instruction.
    pub fn k_bytes(&self) -> u32 {
        self.shape.k * self.container_bits(self.a) / 8
    }

    /// Multiplications and additions of one instruction.
    pub fn operations(&self) -> u64 {
        2 * u64::from(self.shape.m) * u64::from(self.shape.n) * u64::from(self.shape.k)
    }

    /// Threads that execute one instruction together. One alone starts a `tcgen05.mma`; 128 read its result.
    pub fn threads(&self) -> u32 {
        match self.row.family {
            Family::Mma => 32,
            Family::Wgmma | Family::Tcgen05 => 128,
        }
    }

    /// 32-bit registers of a thread that hold C or D.
    pub fn accumulator_registers(&self) -> u32 {
        self.shape.m * self.shape.n * self.accumulator.bits() / 32 / self.threads()
    }

    /// 32-bit registers of a lane of a `mma.sync` variant: A, B, and C or D.
    pub fn registers(&self) -> [u32; 3] {
        // A lane has four bytes of eight rows and 16 bytes of K.
        let halves = self.k_bytes() / 16;
        let eights = self.shape.m / 8;
        [eights * halves, halves, self.accumulator_registers()]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::arch;

    #[test]
    fn names_are_unique_and_found() {
        let variants = all();
        let names: BTreeSet<_> = variants.iter().map(Variant::name).collect();
        assert_eq!(names.len(), variants.len());
        for name in &names {
            assert_eq!(find(name).unwrap().name(), *name);
        }
        let instruction = |name: &str| find(name).unwrap().instruction();
        assert_eq!(
            instruction("mma.m16n8k32.f32.e4m3.e5m2"),
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32"
        );
        assert_eq!(
            instruction("mma.m16n8k256.s32.b1.b1.xor"),
            "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc"
        );
        assert_eq!(
            instruction("mma.m16n8k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3"),
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"
        );
    }

    /// 9.7.14.5: every fragment of A is 8 or 16 rows of 16 or 32 bytes.
    #[test]
    fn fragments_have_the_isas_registers() {
        let registers = |name: &str| find(name).unwrap().registers();
        assert_eq!(registers("mma.m16n8k16.f32.f16.f16"), [4, 2, 4]);
        assert_eq!(registers("mma.m16n8k8.f16.f16.f16"), [2, 1, 2]);
        assert_eq!(registers("mma.m16n8k4.f32.tf32.tf32"), [2, 1, 4]);
        assert_eq!(registers("mma.m16n8k32.f16.e4m3.e4m3"), [4, 2, 2]);
        assert_eq!(registers("mma.m16n8k32.f8f6f4.f32.e2m1.e3m2"), [4, 2, 4]);
        assert_eq!(registers("mma.m8n8k16.s32.s8.u8"), [1, 1, 2]);
        assert_eq!(registers("mma.m8n8k32.s32.s4.s4"), [1, 1, 2]);
        assert_eq!(registers("mma.m16n8k256.s32.b1.b1.and"), [4, 2, 4]);
        for variant in all() {
            let whole = match variant.family() {
                Family::Mma => [16, 32].contains(&variant.k_bytes()),
                _ => variant.k_bytes() == 32,
            };
            assert!(whole, "{}", variant.name());
        }
        let f16 = find("wgmma.m64n256k16.f16.f16.f16").unwrap();
        assert_eq!(f16.accumulator_registers(), 64);
        assert_eq!(f16.with_n(16).accumulator_registers(), 4);
        let tensor = find("tcgen05.m128n256k16.f16.f32.f16.f16").unwrap();
        assert_eq!(tensor.accumulator_registers(), 256);
        assert_eq!(tensor.instruction(), "tcgen05.mma.cta_group::1.kind::f16");
        let pair = tensor.with_m(256).instruction();
        assert_eq!(pair, "tcgen05.mma.cta_group::2.kind::f16");
        assert_eq!(
            f16.with_n(16).instruction(),
            "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16"
        );
    }

    #[test]
    fn every_variant_is_on_some_architecture_and_every_gap_has_a_reason() {
        let archs: Vec<Arch> = arch::ALL.iter().map(|name| name.parse().unwrap()).collect();
        for variant in all() {
            assert!(
                archs.iter().any(|arch| variant.missing(*arch).is_none()),
                "{}",
                variant.name()
            );
            for arch in &archs {
                assert_eq!(
                    variant.missing(*arch).is_none(),
                    variant.machine(*arch).is_some()
                );
            }
        }
    }

    #[test]
    fn what_data_sheets_do_not_say() {
        let machine = |name: &str, arch: &str| find(name).unwrap().machine(arch.parse().unwrap());
        let fp8 = "mma.m16n8k32.f32.e4m3.e4m3";
        let seen = |arch| machine(fp8, arch).map(|it| (it.opcode, it.emission));
        assert_eq!(seen("80"), None);
        assert_eq!(seen("89"), Some(("QMMA", Native)));
        assert_eq!(seen("90a"), Some(("HMMA", Emulated)));
        assert_eq!(seen("103a"), Some(("HMMA", Emulated)));
        assert_eq!(seen("121a"), Some(("QMMA", Native)));
        let reason = find("tcgen05.m128n256k32.i8.s32.s8.s8")
            .unwrap()
            .missing("103a".parse().unwrap());
        assert_eq!(reason.unwrap(), "exists for sm_100a and sm_110a only");
    }
}
