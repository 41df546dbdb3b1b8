//! NEON, with and without dot products of bytes: 128 elements (64 bytes of codes, 8 blocks) a step, in pairs of 128-bit
//! registers. Tails are copied.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::cpu::loops::{Dense, Nvfp4, family};
use crate::cpu::rows::{Kernels, MAX_VECTORS, Row};
use crate::cpu::vector::{HALVES, Products, Vector};

/// The kernels of any aarch64 CPU.
pub(super) const KERNELS: Kernels = Kernels {
    lanes: &[0, 1, 2, 3, 4, 5, 6, 7],
    order: &HALVES,
    nvfp4: family! {
        Nvfp4<Neon<false>>, "neon",
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: { tile: 64, rows: 16, at_once: 1 },
    },
    dense: family! {
        Dense<Neon<false>>, "neon",
        direct_tile: 128,
        direct_up_to: 7,
        decoding: { tile: 32, rows: 9, at_once: 3 },
    },
    parts: None,
};

/// The kernels of a CPU with `sdot`.
pub(super) const DOT: Kernels = Kernels {
    nvfp4: family! {
        Nvfp4<Neon<true>>, "neon,dotprod",
        direct_tile: 256,
        direct_up_to: MAX_VECTORS,
        decoding: { tile: 64, rows: 16, at_once: 1 },
    },
    ..KERNELS
};

/// The instructions.
#[derive(Clone, Copy)]
pub(super) enum Neon<const DOT: bool> {}

/// 256 bits of integers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Ints([int8x16_t; 2]);

/// 8 floats.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Floats([float32x4_t; 2]);

/// The low and the high nibbles of codes.
#[inline(always)]
unsafe fn nibbles(codes: int8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: every aarch64 CPU that Rust's Linux targets run on has NEON.
    unsafe {
        let codes = vreinterpretq_u8_s8(codes);
        [vandq_u8(codes, vdupq_n_u8(15)), vshrq_n_u8::<4>(codes)]
    }
}

/// The sums of each 4 products, added to `sums`.
///
/// # Safety
/// The CPU has the dot products.
#[inline(always)]
unsafe fn sdot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: an instruction on registers, which the caller's CPU has. Its intrinsic is not stable.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

impl<const DOT: bool> Vector for Neon<DOT> {
    const LANES: usize = 8;
    // 32 registers of half the size are as many as AVX2 has.
    const ROWS: usize = 1;

    type Ints = Ints;
    type Floats = Floats;

    #[inline(always)]
    unsafe fn codes<const TAIL: bool>(row: &Row<'_>, step: usize, half: usize) -> Ints {
        let at = step * 64 + half * 32;
        let mut rest = [0u8; 32];
        let from = if TAIL {
            let codes = row.codes.get(at..).unwrap_or_default();
            let some = codes.len().min(32);
            rest[..some].copy_from_slice(&codes[..some]);
            rest.as_ptr()
        } else {
            row.codes.as_ptr().wrapping_add(at)
        };
        // SAFETY: the row has the step, or its rest is copied.
        unsafe {
            let from = from.cast::<i8>();
            Ints([vld1q_s8(from), vld1q_s8(from.add(16))])
        }
    }

    /// The lanes are in the order of the blocks.
    #[inline(always)]
    unsafe fn scales<const TAIL: bool, const IN_LANES: bool>(row: &Row<'_>, step: usize) -> Floats {
        let mut rest = [0u8; 8];
        let from = if TAIL {
            let scales = &row.scales[step * 8..];
            rest[..scales.len()].copy_from_slice(scales);
            rest.as_ptr()
        } else {
            row.scales.as_ptr().wrapping_add(step * 8)
        };
        // SAFETY: the row has the step, or its rest is copied.
        unsafe {
            let wide = vmovl_u8(vld1_u8(from));
            // Exponent and mantissa where f32 has them, whose bias is 112 more than f16's. The product is exact, of f32's
            // subnormal numbers too.
            let low = vshlq_n_u32::<20>(vmovl_u16(vget_low_u16(wide)));
            let high = vshlq_n_u32::<20>(vmovl_u16(vget_high_u16(wide)));
            let numbers = Floats([vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]);
            Self::mul(numbers, Self::splat(f32::from_bits((127 + 112) << 23)))
        }
    }

    /// Twice the weights. Of the blocks' dwords of codes the even ones, then the odd ones: a block is a lane.
    #[inline(always)]
    unsafe fn planes(codes: [Ints; 2]) -> [Ints; 4] {
        // SAFETY: as in `nibbles`.
        unsafe {
            let table = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
            let table = vld1q_s8(table.as_ptr());
            let mut planes = [Ints([vdupq_n_s8(0); 2]); 4];
            for half in 0..2 {
                let [first, second] = codes[half].0;
                let (first, second) = (vreinterpretq_s32_s8(first), vreinterpretq_s32_s8(second));
                let even = vreinterpretq_s8_s32(vuzp1q_s32(first, second));
                let odd = vreinterpretq_s8_s32(vuzp2q_s32(first, second));
                let [even_low, even_high] = nibbles(even);
                let [odd_low, odd_high] = nibbles(odd);
                planes[0].0[half] = vqtbl1q_s8(table, even_low);
                planes[1].0[half] = vqtbl1q_s8(table, even_high);
                planes[2].0[half] = vqtbl1q_s8(table, odd_low);
                planes[3].0[half] = vqtbl1q_s8(table, odd_high);
            }
            planes
        }
    }

    /// Products of signed bytes need no corrections.
    #[inline(always)]
    unsafe fn dot(planes: &[Ints; 4], x: &[Ints; 4], _: Ints) -> Floats {
        // SAFETY: as in `nibbles`; with dot products where the caller's CPU has them. Nothing overflows: a product of
        // bytes is at most 1524, eight are 12192.
        unsafe {
            let mut sums = [vdupq_n_s32(0); 2];
            for half in 0..2 {
                if DOT {
                    for plane in 0..4 {
                        sums[half] = sdot(sums[half], planes[plane].0[half], x[plane].0[half]);
                    }
                    continue;
                }
                let (mut low, mut high) = (vdupq_n_s16(0), vdupq_n_s16(0));
                for plane in 0..4 {
                    let (w, x) = (planes[plane].0[half], x[plane].0[half]);
                    low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(x));
                    high = vmlal_high_s8(high, w, x);
                }
                sums[half] = vpaddlq_s16(vpaddq_s16(low, high));
            }
            Floats([vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1])])
        }
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> Floats {
        // SAFETY: as in `nibbles`.
        unsafe { Floats([vdupq_n_f32(number); 2]) }
    }

    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        // SAFETY: as in `nibbles`.
        unsafe { Floats([vmulq_f32(a.0[0], b.0[0]), vmulq_f32(a.0[1], b.0[1])]) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Floats, b: Floats, c: Floats) -> Floats {
        // SAFETY: as in `nibbles`.
        unsafe {
            Floats([
                vfmaq_f32(c.0[0], a.0[0], b.0[0]),
                vfmaq_f32(c.0[1], a.0[1], b.0[1]),
            ])
        }
    }

    /// Halves, neighbours, neighbours of those.
    #[inline(always)]
    unsafe fn sums<const R: usize, const N: usize>(acc: [[Floats; N]; R]) -> [[f32; N]; R] {
        let mut sums = [[0.0; N]; R];
        for (sums, acc) in sums.iter_mut().zip(acc) {
            for (sum, acc) in sums.iter_mut().zip(acc) {
                // SAFETY: as in `nibbles`.
                *sum = unsafe { vaddvq_f32(vaddq_f32(acc.0[0], acc.0[1])) };
            }
        }
        sums
    }
}

/// A piece has 8 weights of each of 2 blocks, which are lanes 0 to 3 and 4 to 7.
impl<const DOT: bool> Products for Neon<DOT> {
    type Vector = Self;

    const PIECES: usize = 2;
    const PLANES: usize = 4;
    const PARTS: usize = 1;

    type Piece = [Floats; 4];

    /// Plane `p` has the elements that the order puts at `(half * 2 + piece) * 32 + p * 8`.
    #[inline(always)]
    unsafe fn piece(codes: Ints, piece: usize) -> [Floats; 4] {
        // SAFETY: as in `nibbles`.
        unsafe {
            // The bytes of the bf16 values of the codes.
            let low: [u8; 16] = [
                0, 0, 128, 192, 0, 64, 128, 192, 0, 0, 128, 192, 0, 64, 128, 192,
            ];
            let high: [u8; 16] = [
                0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0,
                0xc0, 0xc0,
            ];
            let (low, high) = (vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr()));
            let mut planes = [Self::splat(0.0); 4];
            for lane in 0..2 {
                let nibbles = nibbles(codes.0[lane]);
                for nibble in 0..2 {
                    let low = vqtbl1q_u8(low, nibbles[nibble]);
                    let high = vqtbl1q_u8(high, nibbles[nibble]);
                    let bf16 = match piece {
                        0 => vzip1q_u8(low, high),
                        _ => vzip2q_u8(low, high),
                    };
                    let bf16 = vreinterpretq_u32_u8(bf16);
                    let upper_half = vdupq_n_u32(0xffff_0000);
                    let values = [vshlq_n_u32::<16>(bf16), vandq_u32(bf16, upper_half)];
                    planes[nibble * 2].0[lane] = vreinterpretq_f32_u32(values[0]);
                    planes[nibble * 2 + 1].0[lane] = vreinterpretq_f32_u32(values[1]);
                }
            }
            planes
        }
    }

    #[inline(always)]
    unsafe fn weights(piece: [Floats; 4], plane: usize) -> Floats {
        piece[plane]
    }

    #[inline(always)]
    unsafe fn scales(of_step: Floats, half: usize, piece: usize) -> Floats {
        let four = of_step.0[half];
        // SAFETY: as in `nibbles`.
        unsafe {
            match piece {
                0 => Floats([vdupq_laneq_f32::<0>(four), vdupq_laneq_f32::<2>(four)]),
                _ => Floats([vdupq_laneq_f32::<1>(four), vdupq_laneq_f32::<3>(four)]),
            }
        }
    }
}
