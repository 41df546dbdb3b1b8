//! Cuts by hand, and random ones.

use proptest::prelude::*;

use super::*;

fn h200(activation: Activation, tiled: bool) -> StreamTarget {
    StreamTarget {
        activation,
        tiled,
        multiprocessors: 132,
        shared_bytes: 227 << 10,
    }
}

const TAKEN: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

fn cut(config: StreamConfig) -> (u32, u32, u32) {
    (config.warps, config.stages, config.ctas)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn defaults_and_candidates_are_legal(m in 1usize..60_000, n in 1usize..=16, steps in 1usize..200, l in 1usize..40, sms in 1u32..200, tiled: bool) {
        let shape = Shape::new(m, n, steps * STEP, l).unwrap();
        for activation in TAKEN {
            let target = StreamTarget { multiprocessors: sms, ..h200(activation, tiled) };
            let default = StreamConfig::for_problem(&shape, &target);
            prop_assert_eq!(default.is_some(), StreamConfig::any_is_legal(&shape, &target));
            let cuts = StreamConfig::candidates(&shape, &target);
            prop_assert_eq!(cuts.first(), default.as_ref());
            for (i, cut) in cuts.iter().enumerate() {
                prop_assert!(cut.is_legal(&shape, &target), "{:?}", cut);
                prop_assert!(!cuts[..i].contains(cut), "{:?} twice", cut);
                prop_assert!(!cut.dependent);
            }
        }
    }

    #[test]
    fn roundings_grow_with_k_and_with_the_vectors(warps in 1u32..=16, steps in 1usize..50) {
        let config = StreamConfig { warps, stages: 3, vectors: 8, fetch: 128, ctas: 1, dependent: false };
        let roundings = |steps: usize, activation| {
            let shape = Shape::gemv(64, steps * STEP, 1).unwrap();
            config.roundings(&shape, activation)
        };
        for activation in TAKEN {
            let more = roundings(steps + 1, activation) - roundings(steps, activation);
            prop_assert_eq!(more, 4);
        }
        prop_assert!(roundings(steps, Activation::Nvfp4) < roundings(steps, Activation::F16));
    }
}

/// By hand: 1024 is four steps of four blocks a lane.
#[test]
fn roundings_by_hand() {
    let shape = Shape::gemv(64, 1024, 1).unwrap();
    let config = StreamConfig {
        warps: 12,
        stages: 3,
        vectors: 8,
        fetch: 128,
        ctas: 1,
        dependent: false,
    };
    assert_eq!(config.roundings(&shape, Activation::Nvfp4), 16 + 2 + 12 + 4);
    let sixteen_bits = 24 + 16 + 2 + 12 + 4;
    assert_eq!(config.roundings(&shape, Activation::F16), sixteen_bits);
    // Of a bf16 vector two parts are added.
    assert_eq!(config.roundings(&shape, Activation::Bf16), sixteen_bits + 1);
    // Several vectors: eight instructions in a chain, two such chains a step. Nine vectors are a pass of eight and
    // one of one, of which the first counts.
    for (activation, n, each) in [
        (Activation::Bf16, 2, 18),
        (Activation::Bf16, 9, 18),
        (Activation::F16, 3, 130),
        (Activation::Nvfp4, 9, 130),
    ] {
        let several = Shape::new(64, n, 1024, 1).unwrap();
        let roundings = config.roundings(&several, activation);
        assert_eq!(roundings, 8 * each + 2 * 4 + 12 + 4, "{activation} {n}");
    }
    let two = Shape::new(64, 2, 1024, 1).unwrap();
    assert_eq!(config.roundings(&two, Activation::F16), sixteen_bits);
}

/// One cut for all but the smallest.
#[test]
fn cuts_of_the_benchmark_shapes() {
    for (m, k, l) in [
        (7168, 16384, 1),
        (4096, 7168, 8),
        (7168, 2048, 4),
        (4096, 4096, 1),
        (14336, 4096, 1),
        (4096, 14336, 1),
        (28672, 8192, 1),
        (8192, 28672, 1),
    ] {
        for (n, activation) in [
            (1, Activation::Nvfp4),
            (2, Activation::F16),
            (1, Activation::Bf16),
        ] {
            let shape = Shape::new(m, n, k, l).unwrap();
            for tiled in [false, true] {
                let config = StreamConfig::for_problem(&shape, &h200(activation, tiled)).unwrap();

                let warps = if m * k == 4096 * 4096 { 8 } else { 12 };
                assert_eq!(cut(config), (warps, 3, 132), "{shape} {activation}");
            }
        }
    }
}

#[test]
fn short_memory_takes_passes_then_warps_then_everything() {
    let with = |m, n, k, l, activation| {
        let shape = Shape::new(m, n, k, l).unwrap();
        StreamConfig::for_problem(&shape, &h200(activation, false)).map(cut)
    };
    assert_eq!(with(4096, 8, 8192, 1, Activation::F16).unwrap().0, 12);
    assert_eq!(with(4096, 1, 1 << 18, 1, Activation::Nvfp4), None);
    assert_eq!(with(4096, 1, 4096 + 16, 1, Activation::Nvfp4), None);
    assert_eq!(with(4096, 1, 4096, 1, Activation::F32), None);
    // Eight f16 vectors of 24 KiB each leave no room for eight warps: four at a time do.
    let vectors = |n, k| {
        let shape = Shape::new(4096, n, k, 1).unwrap();
        let config = StreamConfig::for_problem(&shape, &h200(Activation::F16, false))?;
        Some((config.vectors, config.warps))
    };
    assert_eq!(vectors(8, 8192), Some((8, 12)));
    assert_eq!(vectors(8, 12288), Some((4, 12)));
    assert_eq!(vectors(8, 28672), Some((2, 12)));
    assert_eq!(vectors(4, 65536), Some((1, 12)));
    assert_eq!(vectors(8, 65536), None, "five passes and more");
    // A CTA's sums do not fit: more CTAs.
    let (_, _, ctas) = with(1_000_000, 8, 1024, 1, Activation::Nvfp4).unwrap();
    assert!(ctas > 132, "{ctas}");
    // Many small batches: more CTAs than SMs, so that each has few of them.
    let (_, _, ctas) = with(2, 1, 16384, 10_000, Activation::Nvfp4).unwrap();
    assert!(ctas > 132, "{ctas}");
}

/// No CTA is without rows.
#[test]
fn few_rows_take_few_ctas() {
    for (m, l, tiled, ctas) in [(17, 1, false, 17), (1, 1, true, 32), (1, 3, false, 48)] {
        let shape = Shape::gemv(m, 1024, l).unwrap();
        let target = h200(Activation::Nvfp4, tiled);
        let config = StreamConfig::for_problem(&shape, &target).unwrap();
        assert_eq!(config.ctas, ctas);
        let more = StreamConfig {
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
    let good = StreamConfig {
        warps: 16,
        stages: 4,
        vectors: 8,
        fetch: 128,
        ctas: 132,
        dependent: true,
    };
    assert!(good.is_legal(&shape, &target));
    for bad in [
        StreamConfig { warps: 0, ..good },
        StreamConfig { warps: 17, ..good },
        StreamConfig {
            warps: u32::MAX,
            ..good
        },
        StreamConfig { stages: 0, ..good },
        StreamConfig { stages: 2, ..good },
        StreamConfig { stages: 5, ..good },
        StreamConfig { stages: 8, ..good },
        StreamConfig { vectors: 0, ..good },
        StreamConfig { vectors: 3, ..good },
        StreamConfig {
            vectors: 16,
            ..good
        },
        StreamConfig { fetch: 64, ..good },
        StreamConfig { ctas: 0, ..good },
        StreamConfig { ctas: 1025, ..good },
    ] {
        assert!(!bad.is_legal(&shape, &target), "{bad:?}");
    }
    let three = Shape::new(4096, 3, 4096, 1).unwrap();
    assert!(!good.is_legal(&three, &target), "16 warps of 12");
    let pairs = StreamConfig { vectors: 2, ..good };
    assert!(pairs.is_legal(&three, &target), "16 warps in passes of two");
    let nine = Shape::new(4096, 9, 4096, 1).unwrap();
    assert!(!pairs.is_legal(&nine, &target), "five passes");
    let odd = Shape::gemv(4096, 4096 + 32, 1).unwrap();
    assert!(!good.is_legal(&odd, &target));
    let dense = h200(Activation::F32, true);
    assert!(!good.is_legal(&shape, &dense));
    let long = Shape::gemv(4096, 65536, 1).unwrap();
    let deep = StreamConfig { stages: 6, ..good };
    assert!(!deep.is_legal(&long, &target), "no room");
}

/// `lay_out` of a problem by hand: 4096x4096 with linear scales, 132 CTAs of 32 rows at most.
#[test]
fn shared_memory_by_hand() {
    let shape = Shape::gemv(4096, 4096, 1).unwrap();
    let config = StreamConfig {
        warps: 12,
        stages: 3,
        vectors: 8,
        fetch: 128,
        ctas: 132,
        dependent: false,
    };
    let queues = 12 * 3 * 2304;
    let sums = (12 + 2) * 16 * 4 + 2 * 4;
    let bytes = |activation| config.shared_bytes(&shape, &h200(activation, false));
    assert_eq!(
        bytes(Activation::Nvfp4),
        Some(queues + 257 * 16 + 256 * 8 + 10 * 16 + sums)
    );
    assert_eq!(
        bytes(Activation::F16),
        Some(queues + 257 * 32 + 10 * 32 + sums)
    );
    // Two columns.
    let sums = |columns| (12 + 2) * 16 * 4 * columns + 2 * 4;
    assert_eq!(
        bytes(Activation::Bf16),
        Some(queues + 2 * 257 * 32 + 10 * 32 + sums(2))
    );
    // Weights carry their scales: neither zeros nor the vectors' scales.
    for (activation, n, columns) in [
        (Activation::Nvfp4, 3, 4),
        (Activation::F16, 8, 8),
        (Activation::Bf16, 2, 2),
    ] {
        let shape = Shape::new(4096, n, 4096, 1).unwrap();
        assert_eq!(
            config.shared_bytes(&shape, &h200(activation, false)),
            Some(queues + columns * 257 * 32 + sums(columns)),
            "{activation} {n}"
        );
    }
}

/// Three bf16 vectors in passes of two: the second one, of a single vector, has zeros besides its columns.
#[test]
fn the_last_pass_may_need_more_than_the_first() {
    let three = Shape::new(4096, 3, 4096, 1).unwrap();
    let two = Shape::new(4096, 2, 4096, 1).unwrap();
    let target = h200(Activation::Bf16, false);
    let config = StreamConfig {
        vectors: 2,
        ..StreamConfig::for_problem(&two, &target).unwrap()
    };
    let first = config.shared_bytes(&two, &target).unwrap();
    assert_eq!(config.shared_bytes(&three, &target), Some(first + 10 * 32));
    let tight = StreamTarget {
        shared_bytes: first as u32,
        ..target
    };
    assert!(config.is_legal(&two, &tight) && !config.is_legal(&three, &tight));
}
