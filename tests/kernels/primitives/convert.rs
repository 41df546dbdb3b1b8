//! Codes to f16: all codes, by hardware instructions and by shifts.

use half::f16;

use super::trial::{ALL, BLACKWELL, Kernels, bytes16, bytes32};

crate::trials! {
    simulator: e4m3_to_f16, e2m1_to_f16_in_order, e2m1_instruction;
}

/// "E4M3": bias 7, no infinities, NaN where all bits but the sign are set.
fn e4m3(code: u8) -> f16 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => return f16::from_bits(0x7fff),
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    f16::from_f64(if code < 128 { magnitude } else { -magnitude })
}

fn e2m1(code: u8) -> f16 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    f16::from_f64(if code < 8 { magnitude } else { -magnitude })
}

/// Every code in either half of a pair, with every value of some others in the other half.
fn e4m3_pairs(codes: impl Iterator<Item = u8> + Clone) -> Vec<(u8, u8)> {
    let others = codes.clone().step_by(9);
    let mixed = codes.flat_map(move |low| others.clone().map(move |high| (low, high)));
    mixed.flat_map(|(a, b)| [(a, b), (b, a)]).collect()
}

fn e4m3_to_f16() {
    for arch in ALL {
        let kernels = Kernels::new("convert", arch);
        // Shifts convert only numbers that a block scale can be: neither signs nor NaN.
        let pairs = match arch {
            "80" => e4m3_pairs(0..0x7f),
            _ => e4m3_pairs(0..=255),
        };
        let input = bytes16(pairs.iter().map(|&(a, b)| u16::from_le_bytes([a, b])));
        let want = bytes16(
            pairs
                .iter()
                .flat_map(|&(a, b)| [a, b])
                .map(|c| e4m3(c).to_bits()),
        );
        let mut trial = one_each(&kernels, "e4m3_pairs", pairs.len(), &input, want.len());
        trial.gives(&want);
        trial.wrong(1).differs(&want);
    }
}

/// Every code in every place, with all codes beside it.
fn e2m1_words() -> Vec<u32> {
    let bytes = (0..=255u8).flat_map(|b| (0..4).map(move |at| (0x1234_5678u32, b, at)));
    let placed = |(fill, byte, at): (u32, u8, usize)| {
        let mut word = fill.rotate_left(4 * u32::from(byte)).to_le_bytes();
        word[at] = byte;
        u32::from_le_bytes(word)
    };
    bytes.map(placed).collect()
}

fn elements(words: &[u32]) -> Vec<u8> {
    let codes = words
        .iter()
        .flat_map(|w| (0..8).map(move |i| (w >> (4 * i) & 15) as u8));
    bytes16(codes.map(|c| e2m1(c).to_bits()))
}

fn e2m1_to_f16_in_order() {
    let words = e2m1_words();
    let want = elements(&words);
    for arch in ALL {
        let kernels = Kernels::new("convert", arch);
        let input = bytes32(words.iter().copied());
        let mut trial = one_each(&kernels, "e2m1_words", words.len(), &input, want.len());
        trial.gives(&want);
        trial.wrong(1).differs(&want);
        assert_eq!(
            kernels.ptx.contains("cvt.rn.f16x2.e2m1x2"),
            arch == BLACKWELL
        );
        assert_eq!(kernels.ptx.contains("cvt.rn.f16x2.e4m3x2"), arch != "80");
    }
}

fn e2m1_instruction() {
    let kernels = Kernels::new("convert", BLACKWELL);
    let words = e2m1_words();
    let want = elements(&words);
    let input = bytes32(words.iter().copied());
    let mut trial = one_each(&kernels, "cvt_e2m1x8", words.len(), &input, want.len());
    trial.gives(&want);
    trial.wrong(1).differs(&want);
}

/// A thread an element. There is nothing to schedule.
fn one_each(
    kernels: &Kernels,
    kernel: &str,
    count: usize,
    input: &[u8],
    output: usize,
) -> super::trial::Trial {
    let block = (1..=1024).rev().find(|b| count.is_multiple_of(*b)).unwrap();
    let mut trial = kernels
        .trial(kernel, [(count / block) as u32, 1, 1], [block as u32, 1, 1])
        .input(input)
        .output(output)
        .words(&[0]);
    trial.seeds = 1;
    trial
}
