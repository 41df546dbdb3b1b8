//! Rates that data sheets promise: dense operations a second, by GPU and type.

use crate::types::Type;
use crate::variants::Variant;

/// An operation for which a data sheet has a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    Tf32,
    /// f16 and bf16, with sums in f32.
    Half,
    /// f16 with sums in f16.
    HalfInHalf,
    /// FP8 with sums in f32.
    Fp8,
    /// FP8 with sums in f16.
    Fp8InHalf,
    Int8,
    Int4,
    Bits,
    /// E3M2 and E2M3.
    Fp6,
    Fp4,
}
use Of::{Bits, Fp4, Fp6, Fp8, Fp8InHalf, Half, HalfInHalf, Int4, Int8, Tf32};

/// A GPU: words that all stand in the driver's name of it, and its rates in 10^12 dense operations a second. The sheets
/// of data-centre GPUs since Hopper do not tell sums in f16 from those in f32. Their rates follow from that of f16,
/// unless others are there.
#[derive(Debug)]
struct Sheet {
    words: &'static [&'static str],
    hopper: Option<f64>,
    rates: &'static [(Of, f64)],
}

const fn sheet(words: &'static [&'static str], rates: &'static [(Of, f64)]) -> Sheet {
    let hopper = None;
    Sheet {
        words,
        hopper,
        rates,
    }
}

/// `half`: the rate of f16.
const fn hopper(words: &'static [&'static str], half: f64, rates: &'static [(Of, f64)]) -> Sheet {
    let hopper = Some(half);
    Sheet {
        words,
        hopper,
        rates,
    }
}

impl Sheet {
    fn rate(&self, of: Of) -> Option<f64> {
        let own = self.rates.iter().find(|(what, _)| *what == of);
        let multiple = match of {
            Tf32 => Some(0.5),
            Half | HalfInHalf => Some(1.0),
            Fp8 | Fp8InHalf | Int8 => Some(2.0),
            Int4 | Bits | Fp6 | Fp4 => None,
        };
        own.map(|(_, rate)| *rate)
            .or_else(|| Some(multiple? * self.hopper?))
    }
}

/// A name belongs to the first sheet whose words all stand in it: sheets with more words come first. Rates "with
/// sparsity" are halved here. Behind a document stands how its figures were checked in November 2026. Where nothing
/// stands, they were found again in the document or a public copy of its table.
#[rustfmt::skip]
const SHEETS: &[Sheet] = &[
    // NVIDIA H200 Tensor Core GPU data sheet: H200 NVL, FP16 1,671 TFLOPS with sparsity.
    hopper(&["H200", "NVL"], 835.5, &[]),
    // NVIDIA H200 Tensor Core GPU data sheet: H200 SXM, FP16 1,979 TFLOPS with sparsity, FP8 and INT8 3,958, TF32 989.
    hopper(&["H200"], 989.5, &[]),
    // NVIDIA H100 Tensor Core GPU data sheet: H100 NVL 1,671, H100 PCIe 1,513, H100 SXM 1,979 with sparsity.
    hopper(&["H100", "NVL"], 835.5, &[]),
    hopper(&["H100", "PCIe"], 756.5, &[]),
    hopper(&["H100"], 989.5, &[]),
    // NVIDIA Blackwell data sheet, a GPU of an HGX B200. With sparsity FP4 18 PFLOPS, FP8 and FP6 9, INT8 9, FP16 and
    // BF16 4.5, TF32 2.2. The last one is rounded: half of FP16's would be 2.25.
    hopper(&["B200"], 2250.0, &[(Tf32, 1100.0), (Fp6, 4500.0), (Fp4, 9000.0)]),
    // NVIDIA A100 Tensor Core GPU data sheet; INT4 and binary: NVIDIA A100 architecture whitepaper. Those two were not
    // found again; they are 4 and 16 times FP16, as the sizes of the instructions are.
    sheet(&["A100"], &[
        (Tf32, 156.0), (Half, 312.0), (HalfInHalf, 312.0), (Int8, 624.0), (Int4, 1248.0), (Bits, 4992.0),
    ]),
    // NVIDIA L40S data sheet. INT8 and INT4 were not found again: public copies have these rows for the L40 alone.
    // There INT8 has FP8's rate, as here, but INT4 twice that: it may be too low here.
    sheet(&["L40S"], &[
        (Tf32, 183.0), (Half, 362.05), (HalfInHalf, 362.05), (Fp8, 733.0), (Fp8InHalf, 733.0),
        (Int8, 733.0), (Int4, 733.0),
    ]),
    // NVIDIA Ada GPU architecture whitepaper, appendix A: GeForce RTX 4090.
    sheet(&["RTX", "4090"], &[
        (Tf32, 82.6), (Half, 165.2), (HalfInHalf, 330.3), (Fp8, 330.3), (Fp8InHalf, 660.6),
        (Int8, 660.6), (Int4, 1321.2),
    ]),
    // NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A: GeForce RTX 5090. Found again as a benchmark of the
    // instructions quotes them, which also finds FP4 and FP6 without block scales no faster than FP8 with sums in f32.
    sheet(&["RTX", "5090"], &[
        (Tf32, 104.8), (Half, 209.5), (HalfInHalf, 419.0), (Fp8, 419.0), (Fp8InHalf, 838.0),
        (Int8, 838.0), (Fp4, 1676.0),
    ]),
];

/// Operations a second that the data sheet of a GPU, by the driver's name for it, has for a variant's types.
pub fn rate(gpu: &str, variant: &Variant) -> Option<f64> {
    let has = |word: &&str| gpu.split([' ', '-']).any(|part| part == *word);
    let sheet = SHEETS.iter().find(|sheet| sheet.words.iter().all(has))?;
    let in_half = variant.accumulator == Type::F16;
    let of = match variant.a {
        Type::Tf32 => Tf32,
        Type::F16 | Type::Bf16 if in_half => HalfInHalf,
        Type::F16 | Type::Bf16 => Half,
        Type::E4m3 | Type::E5m2 if in_half => Fp8InHalf,
        Type::E4m3 | Type::E5m2 => Fp8,
        Type::S8 | Type::U8 => Int8,
        Type::S4 | Type::U4 => Int4,
        Type::B1 => Bits,
        Type::E3m2 | Type::E2m3 => Fp6,
        // The fast kinds alone have the fast rate.
        Type::E2m1 if variant.container_bits(variant.a) == 4 => Fp4,
        _ => return None,
    };
    Some(sheet.rate(of)? * 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants;

    #[test]
    fn rates_are_those_of_the_named_gpu() {
        let tera = |gpu: &str, name: &str| {
            rate(gpu, &variants::find(name).unwrap()).map(|rate| rate / 1e12)
        };
        for (gpu, name, expected) in [
            ("H200", "wgmma.m64n256k16.f32.f16.f16", 989.5),
            ("H200 NVL", "wgmma.m64n256k16.f32.f16.f16", 835.5),
            ("H100 80GB HBM3", "wgmma.m64n256k16.f32.f16.f16", 989.5),
            ("A100-SXM4-80GB", "mma.m16n8k16.f32.f16.f16", 312.0),
            ("H200", "wgmma.m64n256k32.f16.e5m2.e4m3", 1979.0),
            ("H200", "mma.m16n8k64.s32.s4.s4", 0.0),
            ("GeForce RTX 3090", "wgmma.m64n256k16.f32.f16.f16", 0.0),
            (
                "GeForce RTX 5090",
                "mma.m16n8k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3",
                1676.0,
            ),
            ("GeForce RTX 5090", "mma.m16n8k32.f8f6f4.f32.e2m1.e2m1", 0.0),
            (
                "B200",
                "tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3",
                9000.0,
            ),
            ("B200", "tcgen05.m128n256k32.f8f6f4.f32.e3m2.e4m3", 4500.0),
            ("B200", "tcgen05.m128n256k8.tf32.f32.tf32.tf32", 1100.0),
        ] {
            let rate = tera(&format!("NVIDIA {gpu}"), name);
            assert_eq!(rate, (expected > 0.0).then_some(expected), "{gpu} {name}");
        }
        // Twice as fast with sums in f16: what a data sheet's one figure hides.
        let fp8 = |sums: &str| {
            let name = format!("mma.m16n8k32.{sums}.e4m3.e4m3");
            tera("NVIDIA GeForce RTX 4090", &name).unwrap()
        };
        assert_eq!(fp8("f16") / fp8("f32"), 2.0);
    }
}
