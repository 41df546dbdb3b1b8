use crate::ops::testing::{eval, gives};
use proptest::prelude::*;

#[test]
fn edges() {
    gives! {
        "mul.hi.s32" 32 [0x8000_0000, 2] => 0xffff_ffff;
        "mul.hi.u64" 64 [u64::MAX, u64::MAX] => u64::MAX - 1;
        "mul.wide.s16" 32 [0xffff, 4] => 0xffff_fffc;
        "mad.wide.u32" 64 [0xffff_ffff, 0xffff_ffff, 1] => 0xffff_fffe_0000_0002;
        "div.s32" 32 [0x8000_0000, 0xffff_ffff] => 0x8000_0000;
        "rem.s32" 32 [(-7i32) as u64, 3] => u64::from(-1i32 as u32);
        "neg.s16" 16 [1] => 0xffff;
        "abs.s32" 32 [0x8000_0000] => 0x8000_0000;
        "add.sat.s32" 32 [0x7fff_ffff, 1] => 0x7fff_ffff;
        "clz.b32" 32 [1] => 31;
        "clz.b64" 32 [0] => 64;
        "popc.b64" 32 [u64::MAX] => 64;
        "brev.b32" 32 [1] => 0x8000_0000;
        "bfind.u32" 32 [0] => 0xffff_ffff;
        "bfind.s32" 32 [0xffff_fff0] => 3;
        "bfind.shiftamt.u32" 32 [1] => 31;
        "bfe.s32" 32 [0xf0, 4, 4] => 0xffff_ffff;
        "bfe.u32" 32 [0xf0, 4, 40] => 0xf;
        "dp4a.s32.u32" 32 [0xff01_0203, 0x0102_0304, 10] => 10 - 1 + 2 + 6 + 12;
        "dp2a.lo.u32.u32" 32 [0x0002_0003, 0x0405_0607, 1] => 1 + 2 * 6 + 3 * 7;
        "min.s16x2" 32 [0x0001_ffff, 0x0000_0001] => 0x0000_ffff;
        "max.relu.s16x2" 32 [0xfffe_0003, 0xffff_0005] => 0x0000_0005;
        "min.relu.s16x2" 32 [0x7fff_0003, 0x0009_8000] => 0x0009_0000;
    }
    // The upper half of 2^30 * -2^31 is -2^29.
    let s = [1 << 30, 0x8000_0000, 0x8000_0000];
    assert_eq!(eval("mad.hi.sat.s32", 32, &s), 0x8000_0000);
    assert_eq!(eval("mad.hi.s32", 32, &s), 0x6000_0000);
    gives! {
        "mad.hi.sat.s32" 32 [0x4000_0000, 0x4000_0000, 0x7fff_ffff] => 0x7fff_ffff;
        "mad.hi.sat.s32" 32 [1 << 16, 1 << 16, 5] => 6;
    }
}

/// The loop of the ISA's pseudocode, bit by bit.
fn bfe_by_bits(a: u64, b: u64, c: u64, bits: u64, signed: bool) -> u64 {
    let cut = if bits == 32 { 0xff } else { u64::MAX };
    let (pos, len, msb) = (b & cut, c & cut, bits - 1);
    let sign = if !signed || len == 0 {
        0
    } else {
        a >> (pos + len - 1).min(msb) & 1
    };
    (0..bits)
        .map(|i| if i < len && pos + i <= msb { a >> (pos + i) & 1 } else { sign } << i)
        .fold(0, |x, y| x | y)
}

proptest! {
    #[test]
    fn arithmetic_32(a: u32, b: u32, c: u32) {
        let s = [u64::from(a), u64::from(b), u64::from(c)];
        let (x, y) = (a as i32, b as i32);
        prop_assert_eq!(eval("mad.lo.s32", 32, &s), u64::from(a.wrapping_mul(b).wrapping_add(c)));
        prop_assert_eq!(eval("min.s32", 32, &s[..2]), u64::from(x.min(y) as u32));
        prop_assert_eq!(eval("mul.wide.s32", 64, &s[..2]), (i64::from(x) * i64::from(y)) as u64);
        prop_assert_eq!(eval("sad.s32", 32, &s), u64::from(x.abs_diff(y).wrapping_add(c)));
    }

    #[test]
    fn bit_fields(a: u64, b in 0u64..300, c in 0u64..300) {
        prop_assert_eq!(eval("bfe.u64", 64, &[a, b, c]), bfe_by_bits(a, b, c, 64, false));
        prop_assert_eq!(eval("bfe.s64", 64, &[a, b, c]), bfe_by_bits(a, b, c, 64, true));
        let low = a & 0xffff_ffff;
        prop_assert_eq!(eval("bfe.s32", 32, &[low, b, c]), bfe_by_bits(low, b, c, 32, true));
    }
}
