//! Configurations, targets and shapes of extreme values. Fields are public and come from files: whatever they
//! say, nothing here panics (tests run with overflow checks), and what is legal is in range.

use proptest::prelude::*;

use super::*;

/// Small numbers, as legal configurations have, and those at which sums and products overflow.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0_u32..20,
        2 => (0_u32..32).prop_map(|bit| 1 << bit),
        2 => (0_u32..32).prop_map(|bit| u32::MAX >> bit),
        1 => any::<u32>(),
    ]
}

/// M, K and L from one to the largest, as far as they are a shape together.
fn shape() -> impl Strategy<Value = Shape> {
    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![
            (0_u32..31).prop_map(|bit| 1_usize << bit),
            (0_u32..31).prop_map(|bit| Shape::MAX_DIM >> bit),
            0..Shape::MAX_DIM,
        ]
    }
    let k = prop_oneof![size(), size().prop_map(|k| k / 4096 * 4096)];
    let sizes = (size(), 1..=Shape::MAX_N, k, size());
    sizes.prop_filter_map("sizes overflow", |(m, n, k, l)| {
        Shape::new(m, n, (k / 16).max(1) * 16, l)
            .or_else(|_| Shape::new(m, n, (k / 16).max(1) * 16, 1))
            .ok()
    })
}

fn activation() -> impl Strategy<Value = Activation> {
    prop::sample::select(Activation::ALL.to_vec())
}

fn tile_kernel() -> impl Strategy<Value = TileKernel> {
    prop_oneof![
        Just(TileKernel::CudaCore),
        Just(TileKernel::TENSOR_CORE),
        number().prop_map(|mma_n| TileKernel::TensorCore { mma_n }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn cuda_core(
        shape in shape(),
        activation in activation(),
        (tiled, dependent, direct) in any::<(bool, bool, bool)>(),
        (blocks_per_load, warps, k_split, ctas) in (number(), number(), number(), number()),
        (most_blocks_per_load, multiprocessors, shared_bytes) in (number(), number(), number()),
    ) {
        let target =
            CudaCoreTarget { activation, most_blocks_per_load, tiled, multiprocessors, shared_bytes };
        let kernel = if direct { CudaCoreKernel::Direct } else { CudaCoreKernel::IntegerDot };
        let config =
            CudaCoreConfig { kernel, blocks_per_load, warps, k_split, ctas, dependent };
        prop_assert!(config.roundings(&shape, activation) > 0);
        if config.is_legal(&shape, &target) {
            prop_assert!(warps <= 16 && blocks_per_load <= 4 && k_split <= warps);
        }
        let default = CudaCoreConfig::for_problem(&shape, &target);
        prop_assert!(default.roundings(&shape, activation) > 0);
        for cut in CudaCoreConfig::candidates(&shape, &target) {
            prop_assert!(cut.is_legal(&shape, &target));
        }
    }

    #[test]
    fn tile(
        shape in shape(),
        kernel in tile_kernel(),
        dependent in any::<bool>(),
        (stages, cluster) in (number(), number()),
        (multiprocessors, shared_bytes) in (number(), number()),
    ) {
        let target = TileTarget { multiprocessors, shared_bytes };
        let config = TileConfig { kernel, stages, cluster, dependent };
        prop_assert!(config.roundings(&shape) > 0);
        let (bytes, columns) = (config.shared_bytes(&shape), config.tensor_columns());
        prop_assert!(config.bytes_in_flight() <= bytes);
        if config.is_legal(&shape, &target) {
            prop_assert!(stages <= 12 && cluster <= 8 && bytes <= shared_bytes && columns <= 512);
        }
        for cut in TileConfig::candidates(kernel, &shape, &target) {
            prop_assert!(cut.is_legal(&shape, &target));
        }
    }

    #[test]
    fn stream(
        shape in shape(),
        activation in activation(),
        (tiled, dependent) in any::<(bool, bool)>(),
        (warps, stages, vectors, fetch, ctas) in (number(), number(), number(), number(), number()),
        (multiprocessors, shared_bytes) in (number(), number()),
    ) {
        let target = StreamTarget { activation, tiled, multiprocessors, shared_bytes };
        let config = StreamConfig { warps, stages, vectors, fetch, ctas, dependent };
        prop_assert!(config.roundings(&shape, activation) > 0);
        if config.is_legal(&shape, &target) {
            prop_assert!(warps <= 16 && stages <= 6 && vectors <= 8);
        }
        StreamConfig::any_is_legal(&shape, &target);
        for cut in StreamConfig::candidates(&shape, &target) {
            prop_assert!(cut.is_legal(&shape, &target));
        }
    }

    #[test]
    fn ring(
        shape in shape(),
        (tiled, cached, dependent) in any::<(bool, bool, bool)>(),
        (chunks, groups, rows, depth, granule, ctas) in
            (number(), number(), number(), number(), number(), number()),
        (multiprocessors, shared_bytes) in (number(), number()),
    ) {
        let target = RingTarget { tiled, multiprocessors, shared_bytes };
        let config = RingConfig { chunks, groups, rows, depth, granule, cached, ctas, dependent };
        prop_assert!(config.roundings(&shape) > 0);
        if config.is_legal(&shape, &target) {
            prop_assert!(chunks <= 2 && groups <= 16 && rows <= 4 && depth <= 8);
        }
        let cuts = RingConfig::candidates(&shape, &target)
            .into_iter()
            .chain(RingConfig::chained_candidates(&shape, &target));
        for cut in cuts {
            prop_assert!(cut.is_legal(&shape, &target));
            prop_assert!(Config::from(cut).for_chain(&shape, &target).is_dependent());
        }
    }
}

/// What panicked once: sizes that overflow, and divisions by zero.
#[test]
fn one_extreme_at_a_time() {
    let shape = Shape::gemv(1 << 20, 4096, 1).unwrap();
    for extreme in [0, u32::MAX] {
        let direct = CudaCoreConfig {
            kernel: CudaCoreKernel::IntegerDot,
            blocks_per_load: 2,
            warps: 4,
            k_split: extreme,
            ctas: 1,
            dependent: false,
        };
        let wide = CudaCoreConfig {
            blocks_per_load: extreme,
            k_split: 1,
            ..direct
        };
        let target = CudaCoreTarget {
            activation: Activation::Nvfp4,
            most_blocks_per_load: extreme,
            tiled: false,
            multiprocessors: u32::MAX,
            shared_bytes: u32::MAX,
        };
        for config in [direct, wide] {
            assert!(!config.is_legal(&shape, &target), "{config:?}");
            assert!(config.roundings(&shape, Activation::Nvfp4) > 0);
        }
        assert!(!CudaCoreConfig::candidates(&shape, &target).is_empty() || extreme == 0);

        let tile = TileConfig {
            kernel: TileKernel::TENSOR_CORE,
            stages: extreme,
            cluster: extreme,
            dependent: false,
        };
        let target = TileTarget {
            multiprocessors: u32::MAX,
            shared_bytes: u32::MAX,
        };
        assert!(!tile.is_legal(&shape, &target));
        assert!(tile.roundings(&shape) > 0 && tile.shared_bytes(&shape) > 0);
        assert!(TileConfig::for_problem(TileKernel::CudaCore, &shape, &target).is_some());
    }
}
