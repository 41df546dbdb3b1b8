use crate::ops::testing::{decode, eval, gives};
use half::{bf16, f16};
use proptest::prelude::*;

fn f(x: f32) -> u64 {
    u64::from(x.to_bits())
}

/// E4M3 by its definition: bias 7, no infinity.
fn e4m3(code: u32) -> f64 {
    let (s, e, m) = (code >> 7 & 1, code >> 3 & 15, code & 7);
    let v = if e == 0 {
        f64::from(m) * 2f64.powi(-9)
    } else {
        (1.0 + f64::from(m) / 8.0) * 2f64.powi(e as i32 - 7)
    };
    if s == 1 { -v } else { v }
}

#[test]
fn all_e4m3_and_e2m1_codes() {
    for c in 0..256u32 {
        let got = eval("cvt.rn.f16x2.e4m3x2", 32, &[u64::from(c) | 0x3800]);
        assert_eq!(got >> 16, 0x3c00);
        if c & 0x7f == 0x7f {
            assert_eq!(got & 0xffff, 0x7fff);
        } else {
            let want = f16::from_f64(e4m3(c)).to_bits();
            assert_eq!(got & 0xffff, u64::from(want), "{c:02x}");
            let back = eval("cvt.rn.satfinite.e4m3x2.f32", 16, &[0, f(e4m3(c) as f32)]);
            assert_eq!(back, u64::from(c));
        }
    }
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for c in 0..16u64 {
        let v = values[(c & 7) as usize] * if c & 8 != 0 { -1.0 } else { 1.0 };
        let got = eval("cvt.rn.f16x2.e2m1x2", 32, &[c << 4]);
        assert_eq!(got >> 16, u64::from(f16::from_f64(v).to_bits()));
        gives! { "cvt.rn.satfinite.e2m1x2.f32" 8 [f(v as f32), 0] => c << 4; }
    }
}

#[test]
fn e2m1_takes_the_nearest_and_of_two_the_even_one() {
    let code = |x: f32| eval("cvt.rn.satfinite.e2m1x2.f32", 8, &[f(x), 0]) >> 4;
    let values = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (i, pair) in values.windows(2).enumerate() {
        let (i, middle) = (i as u64, (pair[0] + pair[1]) / 2.0);
        assert_eq!(code(middle), i + i % 2, "{middle}");
        for (x, want) in [(middle.next_down(), i), (middle.next_up(), i + 1)] {
            assert_eq!((code(x), code(-x)), (want, want | 8), "{x}");
        }
    }
    assert_eq!((code(6.5), code(f32::INFINITY), code(-1e30)), (7, 7, 15));
}

#[test]
fn special_cases() {
    let nan = f(f32::NAN);
    gives! {
        "cvt.rn.satfinite.e4m3x2.f32" 16 [nan, f(1e9)] => 0x7f7e;
        "cvt.rn.satfinite.e2m1x2.f32" 8 [nan, f(-1e9)] => 0x7f;
        "cvt.rn.satfinite.relu.e5m2x2.f32" 16 [f(-1.0), f(1e9)] => 0x007b;
        "cvt.rzi.s32.f32" 32 [nan] => 0;
        "cvt.rzi.s64.f32" 64 [nan] => 1 << 63;
        "cvt.rni.s32.f32" 32 [f(2.5)] => 2;
        "cvt.rpi.u8.f32" 32 [f(300.0)] => 255;
        "cvt.rzi.u32.f32" 32 [f(-5.0)] => 0;
        "cvt.s8.s32" 16 [0x80] => 0xff80;
        "cvt.s16.s8" 16 [0x80] => 0xff80;
        "cvt.sat.u8.s32" 32 [(-3i32) as u32 as u64] => 0;
        "cvt.s64.s32" 64 [0xffff_ffff] => u64::MAX;
        "cvt.rn.bf16x2.f32" 32 [f(1.0), f(2.0)] => 0x3f80_4000;
        "cvt.rn.satfinite.f16.f32" 16 [f(1e9)] => 0x7bff;
        "cvt.rna.tf32.f32" 32 [0x3f80_1000] => 0x3f80_2000;
        "cvt.rmi.f32.f32" 32 [f(-0.5)] => f(-1.0);
        "cvt.sat.f32.f32" 32 [f(3.0)] => f(1.0);
    }
    assert!(decode("cvt.f16.f32", 16, 1).is_err());
    assert!(decode("cvt.u32.f32", 32, 1).is_err());
    assert!(decode("cvt.rn.s32.s64", 32, 1).is_err());
}

proptest! {
    #[test]
    fn floats_and_ints(a: u64) {
        let x = f32::from_bits(a as u32);
        if !x.is_nan() {
            prop_assert_eq!(eval("cvt.rn.f16.f32", 16, &[a]), u64::from(f16::from_f32(x).to_bits()));
            prop_assert_eq!(eval("cvt.rn.bf16.f32", 16, &[a]), u64::from(bf16::from_f32(x).to_bits()));
            prop_assert_eq!(eval("cvt.rzi.s32.f32", 32, &[a]), u64::from(x as i32 as u32));
            prop_assert_eq!(eval("cvt.f64.f32", 64, &[a]), f64::from(x).to_bits());
        }
        prop_assert_eq!(eval("cvt.rn.f32.u64", 32, &[a]), u64::from((a as f32).to_bits()));
        prop_assert_eq!(eval("cvt.rn.f32.s64", 32, &[a]), u64::from((a as i64 as f32).to_bits()));
        prop_assert_eq!(eval("cvt.rn.f16.s32", 16, &[a]), u64::from(f16::from_f64(f64::from(a as i32)).to_bits()));
    }
}
