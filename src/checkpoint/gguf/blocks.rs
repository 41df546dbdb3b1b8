//! GGUF's blocks of integers: what each element is, in f32, with the roundings of ggml's definition.
//!
//! Source: ggml's `ggml-quants.c` (`dequantize_row_*`) and `ggml-common.h`.

use half::f16;

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Of 32 elements' nibbles: byte j has elements j (low) and j + 16.
fn nibble(codes: &[u8], at: usize) -> u8 {
    codes[at % 16] >> (at / 16 * 4) & 15
}

/// A scale, then the codes.
pub(in crate::checkpoint) fn q4_0(bytes: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(bytes, 0);
    for (at, out) in out.iter_mut().enumerate() {
        *out = (f32::from(nibble(&bytes[2..], at)) - 8.0) * scale;
    }
}

/// A scale, the least number, then the codes.
pub(in crate::checkpoint) fn q4_1(bytes: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, least) = (half(bytes, 0), half(bytes, 2));
    for (at, out) in out.iter_mut().enumerate() {
        *out = f32::from(nibble(&bytes[4..], at)) * scale + least;
    }
}

/// A code's fifth bit, of 32 that stand together.
fn fifth(bits: &[u8], at: usize) -> u8 {
    (bits[at / 8] >> (at % 8) & 1) << 4
}

/// A scale, the codes' fifth bits, the codes.
pub(in crate::checkpoint) fn q5_0(bytes: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(bytes, 0);
    for (at, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[6..], at) | fifth(&bytes[2..6], at);
        *out = (f32::from(code) - 16.0) * scale;
    }
}

/// A scale, the least number, the codes' fifth bits, the codes.
pub(in crate::checkpoint) fn q5_1(bytes: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, least) = (half(bytes, 0), half(bytes, 2));
    for (at, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[8..], at) | fifth(&bytes[4..8], at);
        *out = f32::from(code) * scale + least;
    }
}

/// A scale, then the codes.
pub(in crate::checkpoint) fn q8_0(bytes: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(bytes, 0);
    for (out, code) in out.iter_mut().zip(&bytes[2..]) {
        *out = f32::from(code.cast_signed()) * scale;
    }
}

/// The scale and the least number of each 32 of a block's 256 elements, six bits each of twelve bytes, times the
/// block's own.
fn eighths(bytes: &[u8]) -> [(f32, f32); 8] {
    let (scale, least) = (half(bytes, 0), half(bytes, 2));
    let packed = &bytes[4..16];
    std::array::from_fn(|at| {
        let (of_scale, of_least) = match at {
            0..4 => (packed[at] & 63, packed[at + 4] & 63),
            _ => (
                packed[at + 4] & 15 | packed[at - 4] >> 6 << 4,
                packed[at + 4] >> 4 | packed[at] >> 6 << 4,
            ),
        };
        (scale * f32::from(of_scale), least * f32::from(of_least))
    })
}

/// A scale, the least number, those of each 32, then the codes: of each 64 elements 32 bytes, low nibbles first.
pub(in crate::checkpoint) fn q4_k(bytes: &[u8; 144], out: &mut [f32; 256]) {
    let codes = &bytes[16..];
    for ((at, out), (scale, least)) in out.chunks_mut(32).enumerate().zip(eighths(bytes)) {
        for (out, pair) in out.iter_mut().zip(&codes[at / 2 * 32..]) {
            *out = scale * f32::from(pair >> (at % 2 * 4) & 15) - least;
        }
    }
}

/// As [`q4_k`], with the fifth bits before the codes: byte j has those of elements j, j + 32, j + 64 and so on.
pub(in crate::checkpoint) fn q5_k(bytes: &[u8; 176], out: &mut [f32; 256]) {
    let (fifths, codes) = bytes[16..].split_at(32);
    for ((at, out), (scale, least)) in out.chunks_mut(32).enumerate().zip(eighths(bytes)) {
        let pairs = fifths.iter().zip(&codes[at / 2 * 32..]);
        for (out, (fifth, pair)) in out.iter_mut().zip(pairs) {
            let code = pair >> (at % 2 * 4) & 15 | (fifth >> at & 1) << 4;
            *out = scale * f32::from(code) - least;
        }
    }
}

/// Low nibbles of codes of six bits, their upper two bits, a scale of a signed byte for each 16, and the block's. In each
/// half of 128 elements, 64 bytes of nibbles: low ones first, then high ones; and 32 bytes of upper bits, of which byte j
/// has those of elements j, j + 32, j + 64 and j + 96.
pub(in crate::checkpoint) fn q6_k(bytes: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = bytes.split_at(128);
    let (high, scales) = rest.split_at(64);
    let scale = half(scales, 16);
    for (at, out) in out.iter_mut().enumerate() {
        let (of_half, within) = (at / 128, at % 128);
        let nibbles = low[of_half * 64 + within % 64] >> (within / 64 * 4) & 15;
        let upper = high[of_half * 32 + within % 32] >> (within / 32 * 2) & 3;
        let code = f32::from(nibbles | upper << 4) - 32.0;
        *out = scale * f32::from(scales[at / 16].cast_signed()) * code;
    }
}
