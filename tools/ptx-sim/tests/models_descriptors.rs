//! Matrix and instruction descriptors: reserved bits, round trips, canonical layouts.

#[macro_use]
#[path = "common/refused.rs"]
mod refused;

use proptest::prelude::*;
use ptx_sim::models::idesc::{Accumulator, Element, Idesc, Kind, ScaleType};
use ptx_sim::models::smem_desc::SmemDescError::{self, *};
use ptx_sim::models::smem_desc::{Major, SmemDesc};
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tcgen05_mma::{CtaGroup, check_shape};

fn desc(swizzle: Swizzle) -> SmemDesc {
    SmemDesc {
        start: 0x400,
        leading: 0x80,
        stride: 0x400,
        base_offset: 0,
        absolute: false,
        swizzle,
    }
}

const MODES: [Swizzle; 5] = [
    Swizzle::None,
    Swizzle::B32,
    Swizzle::B64,
    Swizzle::B128,
    Swizzle::B128Atom32,
];

#[test]
fn smem_descriptor_known_bits() {
    let d = SmemDesc {
        leading: 0,
        ..desc(Swizzle::B128)
    };
    assert_eq!(d.encode(), 0x40 | 0x40 << 32 | 1 << 46 | 2 << 61);
    for s in MODES {
        assert_eq!(SmemDesc::decode(desc(s).encode()), Ok(desc(s)));
    }
}

#[test]
fn every_reserved_bit_of_the_smem_descriptor() {
    for s in MODES {
        let good = desc(s).encode();
        for bit in [14, 15, 30, 31, 46, 47, 48].into_iter().chain(53..61) {
            let e = SmemDesc::decode(good ^ 1 << bit).unwrap_err();
            assert!(
                matches!(e, SmemDescError::Reserved { .. }),
                "bit {bit}: {e}"
            );
        }
        assert!(
            SmemDesc::decode(good | 1 << 52).is_err(),
            "absolute mode is sm_103a's"
        );
    }
    for mode in [3u64, 5, 7] {
        let bits = desc(Swizzle::None).encode() | mode << 61;
        assert_eq!(SmemDesc::decode(bits), Err(SmemDescError::Swizzle(mode)));
    }
}

#[test]
fn canonical_k_major() {
    // The usual formulas of K-major layouts, written out independently.
    for r in 0..64 {
        for kb in 0..32 {
            let d = desc(Swizzle::B128);
            for step in 0..4 {
                let d = SmemDesc {
                    start: d.start + 32 * step,
                    ..d
                };
                let mut x = d.start + r / 8 * 0x400 + r % 8 * 128 + kb;
                x ^= (x >> 7 & 7) << 4;
                assert_eq!(d.layout(Major::K, 32, 1).unwrap().byte_address(r, kb), x);
            }
            let mut x = 0x400 + r / 8 * 0x400 + r % 8 * 64 + kb;
            x ^= (x >> 7 & 3) << 4;
            let l = desc(Swizzle::B64).layout(Major::K, 32, 1).unwrap();
            assert_eq!(l.byte_address(r, kb), x);
            let mut x = 0x400 + r / 8 * 0x400 + r % 8 * 32 + kb;
            x ^= (x >> 7 & 1) << 4;
            let l = desc(Swizzle::B32).layout(Major::K, 32, 1).unwrap();
            assert_eq!(l.byte_address(r, kb), x);
            let l = desc(Swizzle::None).layout(Major::K, 32, 1).unwrap();
            let x = 0x400 + r / 8 * 0x400 + r % 8 * 16 + kb / 16 * 0x80 + kb % 16;
            assert_eq!(l.byte_address(r, kb), x);
        }
    }
}

/// The worked examples of "Canonical Layouts", in elements.
#[test]
fn canonical_examples_of_the_isa() {
    let at = |leading, stride, swizzle| SmemDesc {
        start: 0,
        leading,
        stride,
        ..desc(swizzle)
    };
    // K-major, no swizzling, tf32: ((8,2),(4,4)):((4,32),(1,64)).
    let l = at(64 * 4, 32 * 4, Swizzle::None)
        .layout(Major::K, 64, 4)
        .unwrap();
    for (r, k) in (0..16).flat_map(|r| (0..16).map(move |k| (r, k))) {
        let want = r % 8 * 4 + r / 8 * 32 + k % 4 + k / 4 * 64;
        assert_eq!(l.element_address(r, k), want * 4);
    }
    // MN-major, no swizzling, bf16: ((8,1,2),(8,2)):((1,8,64),(8,128)).
    let l = at(128 * 2, 64 * 2, Swizzle::None)
        .layout(Major::Mn, 32, 2)
        .unwrap();
    for (mn, k) in (0..16).flat_map(|r| (0..16).map(move |k| (r, k))) {
        let want = mn % 8 + mn / 8 * 64 + k % 8 * 8 + k / 8 * 128;
        assert_eq!(l.element_address(mn, k), want * 2);
    }
    // MN-major, 32B swizzling, bf16: ((8,2,2),(8,2)):((1,8,128),(16,256)).
    let l = at(128 * 2, 256 * 2, Swizzle::B32)
        .layout(Major::Mn, 32, 2)
        .unwrap();
    for (mn, k) in (0..32).flat_map(|r| (0..16).map(move |k| (r, k))) {
        let want = mn % 8 + mn / 8 % 2 * 8 + mn / 16 * 128 + k % 8 * 16 + k / 8 * 256;
        assert_eq!(l.element_address(mn, k), Swizzle::B32.apply(want * 2));
    }
    // MN-major, 64B swizzling, bf16: ((8,4,2),(8,2)):((1,8,256),(32,512)).
    let l = at(256 * 2, 512 * 2, Swizzle::B64)
        .layout(Major::Mn, 32, 2)
        .unwrap();
    for (mn, k) in (0..64).flat_map(|r| (0..16).map(move |k| (r, k))) {
        let want = mn % 32 + mn / 32 * 256 + k % 8 * 32 + k / 8 * 512;
        assert_eq!(l.element_address(mn, k), Swizzle::B64.apply(want * 2));
    }
}

#[test]
fn layouts_refuse() {
    let d = SmemDesc {
        start: 0x400 + 112,
        ..desc(Swizzle::B128)
    };
    refused!(d.layout(Major::K, 32, 1) => CrossesSpan { .. });
    assert!(desc(Swizzle::B128Atom32).layout(Major::Mn, 32, 2).is_err());
    assert!(desc(Swizzle::B128).layout(Major::Mn, 32, 4).is_err());
    assert!(desc(Swizzle::B128Atom32).layout(Major::Mn, 32, 4).is_ok());
    let d = SmemDesc {
        base_offset: 1,
        ..desc(Swizzle::None)
    };
    refused!(d.layout(Major::K, 32, 1) => BaseOffset { .. });
}

fn sample(kind: Kind) -> Idesc {
    use Element::*;
    let (a, d) = match kind {
        Kind::F16 => (Bf16, Accumulator::F32),
        Kind::Tf32 => (Tf32, Accumulator::F32),
        Kind::F8f6f4 | Kind::Mxf8f6f4 => (E4m3, Accumulator::F32),
        Kind::I8 => (S8, Accumulator::S32),
        Kind::Mxf4 | Kind::Mxf4nvf4 => (E2m1, Accumulator::F32),
    };
    Idesc::dense(kind, a, a, d, 128, 64)
}

#[test]
fn instruction_descriptor_known_values() {
    // The values public NVFP4 kernels use: M = 128, UE4M3.
    for (n, want) in [(8, 0x0802_0480), (16, 0x0804_0480), (64, 0x0810_0480)] {
        let mut i = sample(Kind::Mxf4nvf4);
        (i.n, i.scale) = (n, ScaleType::Ue4m3);
        assert_eq!(i.encode(), want);
        assert_eq!(Idesc::decode(want, Kind::Mxf4nvf4), Ok(i));
    }
    for kind in Kind::ALL {
        assert_eq!(Idesc::decode(sample(kind).encode(), kind), Ok(sample(kind)));
    }
}

/// Flipping any bit either is refused, or is a field of the kind that then reads differently.
#[test]
fn every_single_bit_of_the_instruction_descriptor() {
    for kind in Kind::ALL {
        let good = sample(kind).encode();
        // The bits the tables reserve, or fix, for each kind.
        let must_fail: Vec<u32> = match kind {
            Kind::F16 => vec![0, 1, 3, 5, 6, 8, 9, 11, 12, 23, 29],
            Kind::Tf32 => vec![0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 23, 29],
            Kind::F8f6f4 => vec![0, 1, 3, 5, 6, 8, 11, 23, 29],
            Kind::I8 => vec![0, 1, 4, 5, 6, 8, 9, 11, 12, 13, 14, 23, 29],
            Kind::Mxf8f6f4 => vec![0, 1, 3, 6, 8, 11, 23, 24, 25, 26, 31],
            Kind::Mxf4 => vec![
                0, 1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 15, 16, 23, 24, 25, 26, 29,
            ],
            Kind::Mxf4nvf4 => vec![0, 1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 15, 16, 24, 25, 26, 29],
        };
        for bit in 0..32 {
            let flipped = good ^ 1 << bit;
            match Idesc::decode(flipped, kind) {
                Err(_) => {}
                Ok(i) => {
                    assert!(!must_fail.contains(&bit), "{kind:?}: bit {bit} is accepted");
                    assert_ne!(i, sample(kind), "{kind:?}: bit {bit} is ignored");
                    assert_eq!(i.encode(), flipped);
                }
            }
        }
    }
}

#[test]
fn shapes() {
    let ok = |kind, group, m, n| {
        check_shape(
            &Idesc {
                m,
                n,
                ..sample(kind)
            },
            group,
        )
        .is_ok()
    };
    let (one, two) = (CtaGroup::One, CtaGroup::Two);
    assert!(ok(Kind::Mxf4nvf4, one, 128, 8) && ok(Kind::Mxf4nvf4, one, 128, 256));
    assert!(!ok(Kind::Mxf4nvf4, one, 64, 64) && !ok(Kind::Mxf4nvf4, one, 256, 64));
    assert!(!ok(Kind::Mxf4nvf4, one, 128, 12) && !ok(Kind::Mxf4nvf4, two, 256, 24));
    assert!(ok(Kind::Mxf4nvf4, two, 128, 32) && !ok(Kind::F16, two, 64, 32));
    assert!(ok(Kind::F16, one, 64, 24) && ok(Kind::F16, two, 256, 256));
    assert!(ok(Kind::I8, one, 64, 24) && !ok(Kind::I8, one, 64, 40) && ok(Kind::I8, one, 64, 48));
    assert!(ok(Kind::I8, two, 128, 64) && !ok(Kind::I8, two, 128, 48));
    let transposed = Idesc {
        b_major: Major::Mn,
        n: 24,
        ..sample(Kind::F8f6f4)
    };
    assert!(check_shape(&transposed, one).is_err());
    assert!(
        check_shape(
            &Idesc {
                n: 48,
                ..transposed
            },
            one
        )
        .is_ok()
    );
    assert!(
        check_shape(
            &Idesc {
                n: 48,
                ..transposed
            },
            two
        )
        .is_err()
    );
}

proptest! {
    /// Decoding never panics, and what it accepts it encodes back.
    #[test]
    fn decode_total_and_inverse(bits in any::<u64>(), low in any::<u32>()) {
        if let Ok(d) = SmemDesc::decode(bits) {
            prop_assert_eq!(d.encode(), bits);
        }
        for kind in Kind::ALL {
            if let Ok(i) = Idesc::decode(low, kind) {
                prop_assert_eq!(i.encode(), low);
            }
        }
    }

    /// A layout never maps two bytes of a matrix to one address.
    #[test]
    fn layouts_are_injective(mode in 0usize..4, start in 0u32..64) {
        let s = MODES[mode];
        let span = s.span().unwrap_or(16);
        let d = SmemDesc { start: start * 128, leading: 8 * 16 * 16, stride: 8 * span, ..desc(s) };
        let l = d.layout(Major::K, 32, 1).unwrap();
        let mut seen = std::collections::HashSet::new();
        for r in 0..128 { for kb in 0..32 { prop_assert!(seen.insert(l.byte_address(r, kb))); } }
    }
}
