use super::*;
use proptest::prelude::*;

const HOPPER: RingTarget = RingTarget {
    tiled: false,
    multiprocessors: 132,
    shared_bytes: 227 << 10,
};

fn tiled(target: RingTarget) -> RingTarget {
    RingTarget {
        tiled: true,
        ..target
    }
}

fn shape(m: usize, k: usize, l: usize) -> Shape {
    Shape::gemv(m, k, l).unwrap()
}

#[test]
fn defaults_fill_the_ring_and_the_warps() {
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
        let shape = shape(m, k, l);
        for target in [HOPPER, tiled(HOPPER)] {
            let cut = RingConfig::for_problem(&shape, &target).unwrap();
            let warps = cut.groups * row_warps(&shape, cut.chunks);
            assert!((8..=16).contains(&warps), "{shape}: {cut:?}");
            let ring = u64::from(cut.groups * cut.depth) * 4 * shape.row_code_bytes() as u64;
            assert!((32 << 10..=64 << 10).contains(&ring), "{shape}: {cut:?}");
            assert_eq!(cut.ctas, 132);
        }
    }
}

#[test]
fn chains_have_deeper_rings() {
    for (k, depth) in [
        (2048, 3),
        (4096, 3),
        (7168, 2),
        (8192, 2),
        (14336, 2),
        (16384, 2),
        (28672, 2),
    ] {
        let shape = shape(4096, k, 1);
        for target in [HOPPER, tiled(HOPPER)] {
            let chain = RingConfig::for_chain(&shape, &target).unwrap();
            assert_eq!((chain.depth, chain.dependent), (depth, true), "{shape}");
            assert!(chain.is_legal(&shape, &target));
        }
    }
    // No room for a deeper one.
    let small = RingTarget {
        shared_bytes: 99 << 10,
        ..HOPPER
    };
    let shape = shape(4096, 8192, 1);
    let default = RingConfig::for_problem(&shape, &small).unwrap();
    let chain = RingConfig::for_chain(&shape, &small).unwrap();
    assert_eq!(chain.depth, default.depth);
}

#[test]
fn candidates_are_legal_and_the_default_comes_first() {
    for (m, k, l) in [(4096, 2048, 1), (4096, 4096, 1), (512, 28672, 2)] {
        let shape = shape(m, k, l);
        for target in [HOPPER, tiled(HOPPER)] {
            let alone = RingConfig::candidates(&shape, &target);
            let chained = RingConfig::chained_candidates(&shape, &target);
            assert_eq!(
                alone.first(),
                RingConfig::for_problem(&shape, &target).as_ref()
            );
            assert_eq!(
                chained.first(),
                RingConfig::for_chain(&shape, &target).as_ref()
            );
            for (cuts, dependent) in [(alone, false), (chained, true)] {
                assert!(cuts.len() > 1, "{shape}: {}", cuts.len());
                for cut in &cuts {
                    assert!(cut.is_legal(&shape, &target), "{shape}: {cut:?}");
                    assert_eq!(cut.dependent, dependent);
                }
            }
        }
    }
}

#[test]
fn what_the_kernel_takes() {
    let takes =
        |m, k, l, target: RingTarget| RingConfig::for_problem(&shape(m, k, l), &target).is_some();
    assert!(takes(1, 256, 1, HOPPER));
    assert!(takes(1, 32768, 1, HOPPER));
    assert!(
        !takes(1, 32768 + 256, 1, HOPPER),
        "more than 16 warps a row"
    );
    assert!(!takes(1, 128, 1, HOPPER));
    assert!(takes(12, 256, 3, HOPPER) && !takes(13, 256, 3, HOPPER));
    assert!(takes(128, 256, 3, tiled(HOPPER)) && !takes(132, 256, 3, tiled(HOPPER)));
    assert!(takes(13, 256, 1, tiled(HOPPER)));
    let two = Shape::new(128, 2, 256, 1).unwrap();
    assert_eq!(RingConfig::for_problem(&two, &HOPPER), None);
}

#[test]
fn every_field_has_limits() {
    let shape = shape(1000, 8192, 1);
    let good = RingConfig::for_problem(&shape, &HOPPER).unwrap();
    assert!(good.is_legal(&shape, &HOPPER));
    for bad in [
        RingConfig { chunks: 0, ..good },
        RingConfig { chunks: 3, ..good },
        RingConfig { groups: 0, ..good },
        RingConfig { groups: 5, ..good },
        RingConfig { rows: 3, ..good },
        RingConfig { rows: 0, ..good },
        RingConfig { depth: 0, ..good },
        RingConfig { depth: 9, ..good },
        RingConfig {
            depth: 8,
            groups: 4,
            ..good
        },
        RingConfig { granule: 2, ..good },
        RingConfig { ctas: 0, ..good },
        RingConfig { ctas: 1001, ..good },
    ] {
        assert!(!bad.is_legal(&shape, &HOPPER), "{bad:?}");
    }
}

/// With the kernel's own arithmetic.
#[test]
fn batches_are_found_by_multiplying() {
    for (m, l) in [
        (4096, 8),
        (7168, 4),
        (4, 70_000),
        (12, 1000),
        (128, 65_536),
        (2_147_480, 900),
    ] {
        let shape = shape(m, 256, l);
        if !places_are_counted(&shape, false) {
            continue;
        }
        let magic = (1_u64 << 32).div_ceil(m as u64);
        let rows = (m * l) as u64;
        for row in [
            0,
            1,
            m as u64 - 1,
            m as u64,
            rows / 2,
            rows - m as u64,
            rows - 1,
        ] {
            assert_eq!(
                (row * magic) >> 32,
                row / m as u64,
                "row {row} of {m} x {l}"
            );
        }
    }
    assert!(places_are_counted(&shape(4096, 256, 8), false));
    assert!(!places_are_counted(&shape(2_147_484, 256, 1000), false));
}

proptest! {
    #[test]
    fn candidates_are_legal_and_begin_with_the_default(
        m in 1_usize..40_000, steps in 1_usize..130, batches in 1_usize..6, blocks in any::<bool>(),
        sms in 1_u32..200,
    ) {
        let target = RingTarget { tiled: blocks, multiprocessors: sms, shared_bytes: 227 << 10 };
        let shape = shape(m, steps * 256, batches);
        let cuts = RingConfig::candidates(&shape, &target);
        prop_assert_eq!(cuts.first().copied(), RingConfig::for_problem(&shape, &target));
        for cut in cuts {
            prop_assert!(cut.is_legal(&shape, &target), "{:?}", cut);
        }
    }

    /// Whatever the multiplication is used for gives the quotient.
    #[test]
    fn quotients_are_exact(m in 1_usize..1 << 20, l in 2_usize..1 << 12, at in 0.0..1.0_f64) {
        let shape = shape(m, 256, l);
        if places_are_counted(&shape, false) {
            let row = ((m * l - 1) as f64 * at) as u64;
            prop_assert_eq!((row * (1_u64 << 32).div_ceil(m as u64)) >> 32, row / m as u64);
        }
    }
}
