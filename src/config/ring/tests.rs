//! Cuts by hand, and random ones.

use proptest::prelude::*;

use super::*;

fn h200(activation: Activation, tiled: bool) -> RingTarget {
    RingTarget {
        activation,
        tiled,
        multiprocessors: 132,
        shared_bytes: 227 << 10,
    }
}

const TAKEN: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

fn cut(config: RingConfig) -> (u32, u32, u32) {
    (config.slices, config.groups, config.stages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn defaults_and_candidates_are_legal(m in 1usize..60_000, n in 1usize..=16, slices in 1usize..200, l in 1usize..40, sms in 1u32..200, tiled: bool) {
        let shape = Shape::new(m, n, slices * SLICE, l).unwrap();
        for activation in TAKEN {
            let target = RingTarget { multiprocessors: sms, ..h200(activation, tiled) };
            let default = RingConfig::for_problem(&shape, &target);
            prop_assert_eq!(default.is_some(), RingConfig::any_is_legal(&shape, &target));
            let cuts = RingConfig::candidates(&shape, &target);
            prop_assert_eq!(cuts.first(), default.as_ref());
            for (i, cut) in cuts.iter().enumerate() {
                prop_assert!(cut.is_legal(&shape, &target), "{:?}", cut);
                prop_assert!(!cuts[..i].contains(cut), "{:?} twice", cut);
                prop_assert!(!cut.dependent);
            }
        }
    }

    #[test]
    fn roundings_grow_with_k_and_with_the_vectors(slices in 1u32..=16, groups in 1u32..=16, chunks in 1usize..50) {
        let config = RingConfig { slices, groups, stages: groups, ctas: 1, dependent: false };
        let roundings = |chunks: usize, activation| {
            let shape = Shape::gemv(64, chunks * slices as usize * SLICE, 1).unwrap();
            config.roundings(&shape, activation)
        };
        for activation in TAKEN {
            prop_assert!(roundings(chunks, activation) <= roundings(chunks + 1, activation));
            // A group that has a stage more adds four blocks more.
            let more = roundings(chunks + groups as usize, activation) - roundings(chunks, activation);
            prop_assert_eq!(more, 4);
        }
        prop_assert!(roundings(chunks, Activation::Nvfp4) < roundings(chunks, Activation::F16));
    }
}

/// By hand: 1024 = 4 slices in 2 chunks; a group has one of them.
#[test]
fn roundings_by_hand() {
    let shape = Shape::gemv(64, 1024, 1).unwrap();
    let config = RingConfig {
        slices: 2,
        groups: 2,
        stages: 4,
        ctas: 1,
        dependent: false,
    };
    assert_eq!(config.roundings(&shape, Activation::Nvfp4), 4 + 2 + 4 + 4);
    assert_eq!(
        config.roundings(&shape, Activation::Bf16),
        24 + 4 + 2 + 4 + 4
    );
}

/// The cuts that were fastest on an H200.
#[test]
fn cuts_of_the_benchmark_shapes() {
    for (m, k, l, fastest) in [
        (7168, 16384, 1, (8, 2, 4)),
        (4096, 7168, 8, (14, 1, 3)),
        (7168, 2048, 4, (8, 1, 3)),
        (4096, 4096, 1, (4, 2, 8)),
        (14336, 4096, 1, (8, 1, 3)),
        (4096, 14336, 1, (8, 2, 4)),
        (28672, 8192, 1, (8, 2, 4)),
        (8192, 28672, 1, (8, 2, 6)),
    ] {
        let shape = Shape::gemv(m, k, l).unwrap();
        for tiled in [false, true] {
            let config = RingConfig::for_problem(&shape, &h200(Activation::Nvfp4, tiled)).unwrap();
            assert_eq!(cut(config), fastest, "{shape}");
            assert_eq!(config.ctas, 132);
        }
    }
    let with = |n, k, activation| {
        let shape = Shape::new(4096, n, k, 1).unwrap();
        RingConfig::for_problem(&shape, &h200(activation, false)).map(cut)
    };
    assert_eq!(with(1, 16384, Activation::F16), Some((16, 1, 3)));
    assert_eq!(with(1, 4096, Activation::Bf16), Some((8, 1, 3)));
    assert_eq!(with(4, 4096, Activation::Nvfp4), Some((8, 1, 3)));
    assert_eq!(with(8, 4096, Activation::Nvfp4), Some((4, 2, 4)));
}

#[test]
fn short_memory_takes_stages_then_slices_then_everything() {
    let with = |n, k, activation| {
        let shape = Shape::new(4096, n, k, 1).unwrap();
        RingConfig::for_problem(&shape, &h200(activation, false)).map(cut)
    };
    // Eight f16 vectors of 8 KiB each leave little room, of 16 KiB none.
    assert_eq!(with(8, 12288, Activation::F16), Some((4, 2, 2)));
    assert_eq!(with(8, 16384, Activation::F16), None);
    assert_eq!(with(1, 1 << 18, Activation::Nvfp4), None);
    assert_eq!(with(1, 4096 + 16, Activation::Nvfp4), None);
    assert_eq!(with(1, 4096, Activation::F32), None);
    // Many small batches: more CTAs than SMs, so that each has few of them.
    let shape = Shape::gemv(2, 16384, 10_000).unwrap();
    let target = h200(Activation::Nvfp4, true);
    let config = RingConfig::for_problem(&shape, &target).unwrap();
    assert!(config.ctas > 132, "{config:?}");
}

/// No CTA is without rows: the kernel would wait for stages that nobody fills.
#[test]
fn few_rows_take_few_ctas() {
    for (m, l, tiled, ctas) in [(17, 1, false, 17), (1, 1, true, 32), (1, 3, false, 48)] {
        let shape = Shape::gemv(m, 1024, l).unwrap();
        let target = h200(Activation::Nvfp4, tiled);
        let config = RingConfig::for_problem(&shape, &target).unwrap();
        assert_eq!(config.ctas, ctas);
        let more = RingConfig {
            ctas: ctas + 1,
            ..config
        };
        assert!(!more.is_legal(&shape, &target));
    }
}

#[test]
fn illegal_cuts() {
    let shape = Shape::gemv(4096, 4096, 1).unwrap();
    let target = h200(Activation::Nvfp4, true);
    let good = RingConfig {
        slices: 8,
        groups: 2,
        stages: 4,
        ctas: 132,
        dependent: true,
    };
    assert!(good.is_legal(&shape, &target));
    for bad in [
        RingConfig { slices: 3, ..good },
        RingConfig { slices: 0, ..good },
        RingConfig { groups: 0, ..good },
        RingConfig {
            groups: 3,
            stages: 6,
            ..good
        }, // 24 warps
        RingConfig { stages: 3, ..good },
        RingConfig { stages: 0, ..good },
        RingConfig { stages: 34, ..good },
        RingConfig { stages: 16, ..good }, // 300 KB
        RingConfig { ctas: 0, ..good },
        RingConfig { ctas: 1025, ..good },
        RingConfig {
            slices: u32::MAX,
            ..good
        },
    ] {
        assert!(!bad.is_legal(&shape, &target), "{bad:?}");
    }
    let three = Shape::new(4096, 3, 4096, 1).unwrap();
    assert!(!good.is_legal(&three, &target), "16 warps of 12");
    let odd = Shape::gemv(4096, 4096 + 32, 1).unwrap();
    assert!(!good.is_legal(&odd, &target));
    let dense = h200(Activation::F32, true);
    assert!(!good.is_legal(&shape, &dense));
}

/// `lay_out` of a problem by hand: 4096x4096 with linear scales, 132 CTAs of 32 rows at most.
#[test]
fn shared_memory_by_hand() {
    let shape = Shape::gemv(4096, 4096, 1).unwrap();
    let config = RingConfig {
        slices: 8,
        groups: 1,
        stages: 3,
        ctas: 132,
        dependent: false,
    };
    let stage = 16 * (8 * 128 + 16) + 16 * (8 * 16 + 16);
    let x = 256 * 16;
    let window = 2 * 8 * 16 * 4;
    let bytes = |activation| config.shared_bytes(&shape, &h200(activation, false));
    assert_eq!(
        bytes(Activation::Nvfp4),
        Some(512 + 3 * stage + x + 128 + 256 * 4 + window)
    );
    assert_eq!(
        bytes(Activation::F16),
        Some(512 + 3 * stage + 2 * x + 128 + window)
    );
}
