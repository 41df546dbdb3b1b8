//! f32 arithmetic with f16 operands: rounded once, from operands that are not rounded at all.

use half::f16;

use super::trial::{BLACKWELL, Kernels, bytes32};

crate::trials! {
    simulator: sums_and_products;
}

fn sums_and_products() {
    let kernels = Kernels::new("mixed", BLACKWELL);
    // Block scales, sums of halves of a block, and what f16 has at its ends.
    let halves = [
        0.0,
        -0.0,
        0.25,
        -287.75,
        288.0,
        448.0,
        1.0 / 512.0,
        65504.0,
        6e-8,
    ];
    let floats = [0.0, -0.0, 0.25, -288.0, 1e-3, 16_777_216.0, -65504.0];
    let mut operands = Vec::new();
    for a in halves {
        for b in halves {
            for c in floats {
                operands.push((f16::from_f64(a), f16::from_f64(b), c as f32));
            }
        }
    }
    let input = bytes32(operands.iter().flat_map(|&(a, b, c)| {
        let pair = u32::from(a.to_bits()) | u32::from(b.to_bits()) << 16;
        [pair, c.to_bits()]
    }));
    type Compute = fn(&(f16, f16, f32)) -> f32;
    let kinds: [(&str, Compute, &str); 2] = [
        ("add_f32_f16", |x| x.0.to_f32() + x.2, "add.rn.f32.f16"),
        // f32 holds the product of two halves, and -0 added to it changes nothing.
        (
            "fma_f32_f16",
            |x| x.0.to_f32() * x.1.to_f32(),
            "fma.rn.f32.f16",
        ),
    ];
    for (kernel, compute, instruction) in kinds {
        assert!(kernels.ptx.contains(instruction));
        let want = bytes32(operands.iter().map(|x| compute(x).to_bits()));
        let mut trial = kernels
            .trial(kernel, [1, 1, 1], [operands.len() as u32, 1, 1])
            .input(&input)
            .output(want.len())
            .words(&[0]);
        trial.seeds = 1;
        trial.gives(&want);
        trial.wrong(1).differs(&want);
    }
}
