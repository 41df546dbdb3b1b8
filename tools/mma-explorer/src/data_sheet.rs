//! Rates that data sheets promise: dense operations a second, by GPU and type.

use crate::types::Type;
use crate::variants::Variant;

/// A GPU's rates in 10^12 dense operations a second. Zero: the data sheet has none.
#[derive(Debug)]
struct Sheet {
    /// Words that all stand in the driver's name of the GPU.
    words: &'static [&'static str],
    tf32: f64,
    /// f16 and bf16, with sums in f32.
    half: f64,
    /// f16 with sums in f16.
    half_in_half: f64,
    /// FP8 with sums in f32.
    fp8: f64,
    /// FP8 with sums in f16.
    fp8_in_half: f64,
    int8: f64,
    int4: f64,
    bits: f64,
    /// E3M2 and E2M3.
    fp6: f64,
    fp4: f64,
}

const fn sheet(words: &'static [&'static str]) -> Sheet {
    Sheet {
        words,
        tf32: 0.0,
        half: 0.0,
        half_in_half: 0.0,
        fp8: 0.0,
        fp8_in_half: 0.0,
        int8: 0.0,
        int4: 0.0,
        bits: 0.0,
        fp6: 0.0,
        fp4: 0.0,
    }
}

/// Data-centre GPUs since Hopper, whose sheets do not tell sums in f16 from those in f32. `half`: the rate of f16.
const fn hopper(words: &'static [&'static str], half: f64) -> Sheet {
    Sheet {
        tf32: half / 2.0,
        half,
        half_in_half: half,
        fp8: 2.0 * half,
        fp8_in_half: 2.0 * half,
        int8: 2.0 * half,
        ..sheet(words)
    }
}

/// A name belongs to the first sheet whose words all stand in it: sheets with more words come first. Rates "with
/// sparsity" are halved here. Behind a document stands how its figures were checked in November 2026. Where nothing
/// stands, they were found again in the document or a public copy of its table.
const SHEETS: &[Sheet] = &[
    // NVIDIA H200 Tensor Core GPU data sheet: H200 NVL, FP16 1,671 TFLOPS with sparsity.
    hopper(&["H200", "NVL"], 835.5),
    // NVIDIA H200 Tensor Core GPU data sheet: H200 SXM, FP16 1,979 TFLOPS with sparsity, FP8 and INT8 3,958, TF32 989.
    hopper(&["H200"], 989.5),
    // NVIDIA H100 Tensor Core GPU data sheet: H100 NVL 1,671, H100 PCIe 1,513, H100 SXM 1,979 with sparsity.
    hopper(&["H100", "NVL"], 835.5),
    hopper(&["H100", "PCIe"], 756.5),
    hopper(&["H100"], 989.5),
    // NVIDIA Blackwell data sheet, a GPU of an HGX B200. With sparsity FP4 18 PFLOPS, FP8 and FP6 9, INT8 9, FP16 and
    // BF16 4.5, TF32 2.2. The last one is rounded: half of FP16's would be 2.25.
    Sheet {
        tf32: 1100.0,
        fp6: 4500.0,
        fp4: 9000.0,
        ..hopper(&["B200"], 2250.0)
    },
    // NVIDIA A100 Tensor Core GPU data sheet; INT4 and binary: NVIDIA A100 architecture whitepaper. Those two were not
    // found again; they are 4 and 16 times FP16, as the sizes of the instructions are.
    Sheet {
        tf32: 156.0,
        half: 312.0,
        half_in_half: 312.0,
        int8: 624.0,
        int4: 1248.0,
        bits: 4992.0,
        ..sheet(&["A100"])
    },
    // NVIDIA L40S data sheet. INT8 and INT4 were not found again: public copies have these rows for the L40 alone.
    // There INT8 has FP8's rate, as here, but INT4 twice that: it may be too low here.
    Sheet {
        tf32: 183.0,
        half: 362.05,
        half_in_half: 362.05,
        fp8: 733.0,
        fp8_in_half: 733.0,
        int8: 733.0,
        int4: 733.0,
        ..sheet(&["L40S"])
    },
    // NVIDIA Ada GPU architecture whitepaper, appendix A: GeForce RTX 4090.
    Sheet {
        tf32: 82.6,
        half: 165.2,
        half_in_half: 330.3,
        fp8: 330.3,
        fp8_in_half: 660.6,
        int8: 660.6,
        int4: 1321.2,
        ..sheet(&["RTX", "4090"])
    },
    // NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A: GeForce RTX 5090. Found again as a benchmark of the
    // instructions quotes them, which also finds FP4 and FP6 without block scales no faster than FP8 with sums in f32.
    Sheet {
        tf32: 104.8,
        half: 209.5,
        half_in_half: 419.0,
        fp8: 419.0,
        fp8_in_half: 838.0,
        int8: 838.0,
        fp4: 1676.0,
        ..sheet(&["RTX", "5090"])
    },
];

/// Operations a second that the data sheet of a GPU, by the driver's name for it, has for a variant's types.
pub fn rate(gpu: &str, variant: &Variant) -> Option<f64> {
    let has = |word: &&str| gpu.split([' ', '-']).any(|part| part == *word);
    let sheet = SHEETS.iter().find(|sheet| sheet.words.iter().all(has))?;
    let in_half = variant.accumulator == Type::F16;
    let rate = match variant.a {
        Type::Tf32 => sheet.tf32,
        Type::F16 | Type::Bf16 if in_half => sheet.half_in_half,
        Type::F16 | Type::Bf16 => sheet.half,
        Type::E4m3 | Type::E5m2 if in_half => sheet.fp8_in_half,
        Type::E4m3 | Type::E5m2 => sheet.fp8,
        Type::S8 | Type::U8 => sheet.int8,
        Type::S4 | Type::U4 => sheet.int4,
        Type::B1 => sheet.bits,
        Type::E3m2 | Type::E2m3 => sheet.fp6,
        // The fast kinds alone have the fast rate.
        Type::E2m1 if variant.container_bits(variant.a) == 4 => sheet.fp4,
        _ => 0.0,
    };
    (rate > 0.0).then_some(rate * 1e12)
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
        let f16 = "wgmma.m64n256k16.f32.f16.f16";
        assert_eq!(tera("NVIDIA H200", f16), Some(989.5));
        assert_eq!(tera("NVIDIA H200 NVL", f16), Some(835.5));
        assert_eq!(tera("NVIDIA H100 80GB HBM3", f16), Some(989.5));
        assert_eq!(
            tera("NVIDIA A100-SXM4-80GB", "mma.m16n8k16.f32.f16.f16"),
            Some(312.0)
        );
        assert_eq!(
            tera("NVIDIA H200", "wgmma.m64n256k32.f16.e5m2.e4m3"),
            Some(1979.0)
        );
        // Twice as fast with sums in f16: what a data sheet's one figure hides.
        let fp8 = |sums: &str| {
            let name = format!("mma.m16n8k32.{sums}.e4m3.e4m3");
            tera("NVIDIA GeForce RTX 4090", &name).unwrap()
        };
        assert_eq!(fp8("f16") / fp8("f32"), 2.0);
        assert_eq!(tera("NVIDIA H200", "mma.m16n8k64.s32.s4.s4"), None);
        assert_eq!(tera("NVIDIA GeForce RTX 3090", f16), None);
        let nvfp4 = "mma.m16n8k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3";
        assert_eq!(tera("NVIDIA GeForce RTX 5090", nvfp4), Some(1676.0));
        let of_b200 = |name: &str| tera("NVIDIA B200", name);
        assert_eq!(
            of_b200("tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3"),
            Some(9000.0)
        );
        assert_eq!(
            of_b200("tcgen05.m128n256k32.f8f6f4.f32.e3m2.e4m3"),
            Some(4500.0)
        );
        assert_eq!(
            of_b200("tcgen05.m128n256k8.tf32.f32.tf32.tf32"),
            Some(1100.0)
        );
        assert_eq!(
            tera(
                "NVIDIA GeForce RTX 5090",
                "mma.m16n8k32.f8f6f4.f32.e2m1.e2m1"
            ),
            None
        );
    }
}
