//! Tests with configs, GPUs and shapes of extreme values. Fields are public and come from files. Whatever the fields
//! say, nothing panics (tests run with overflow checks), and a legal config gives launches that the GPU takes.

use proptest::prelude::*;

use super::many_vectors::Division;
use super::*;
use crate::operands::Alignment;
use crate::shape::Dims;
use crate::types::ScaleLayout;

/// One config of each kernel, its fields taken from these values.
fn configs([a, b, c, d, e, f]: [u32; 6], flag: bool) -> Vec<Config> {
    let division = Division {
        tiles: a,
        parts: b,
        chunk: c,
        cluster: d,
        vectors: e,
    };
    vec![
        RingConfig {
            chunks: a,
            groups: b,
            rows: c,
            depth: d,
            granule: e,
            cached: flag,
            ctas: f,
            counted: if flag { e } else { 0 },
            ..RingConfig::DEFAULT
        }
        .into(),
        StreamConfig {
            warps: a,
            stages: b,
            vectors: c,
            fetch: if flag { 128 } else { d },
            behind: f,
            spread: flag,
            beside: c,
            ctas: e,
            part: if flag { 0 } else { d },
        }
        .into(),
        MmaConfig::from(division).into(),
        WgmmaConfig::from(division).into(),
        PackedConfig {
            warps: a,
            chunk: b,
            ctas: c,
            vectors: d,
            bundle: e.is_multiple_of(2),
            waits: flag,
            long_sums: flag,
            ..PackedConfig::DEFAULT
        }
        .into(),
        DirectConfig {
            blocks_per_load: a,
            warps: b,
            k_split: c,
            ..DirectConfig::DEFAULT
        }
        .into(),
        Tcgen05Config {
            step: if b < 4 { 256 * b } else { b },
            stages: a,
            ctas: c,
            divided: d.is_multiple_of(2),
            ..Tcgen05Config::DEFAULT
        }
        .into(),
        MmaFp4Config {
            warps: a,
            stages: b,
            cluster: c,
            vectors: d,
            ..MmaFp4Config::DEFAULT
        }
        .into(),
    ]
}

/// Small numbers, as legal configs have, and those at which sums and products overflow.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0_u32..6,
        4 => 0_u32..20,
        2 => (0_u32..32).prop_map(|bit| 1 << bit),
        2 => (0_u32..32).prop_map(|bit| u32::MAX >> bit),
        1 => any::<u32>(),
    ]
}

/// M, N, K and L up to the largest, as far as they are a shape together.
fn shape() -> impl Strategy<Value = Shape> {
    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![
            (0_u32..31).prop_map(|bit| 1_usize << bit),
            (0_u32..31).prop_map(|bit| Shape::MAX_DIM >> bit),
            0..Shape::MAX_DIM,
            0..60_000_usize,
        ]
    }
    let n = prop_oneof![
        Just(1),
        0..=16_usize,
        prop::sample::select(vec![17, 32, 33, 100, 128, 129, 1000]),
    ];
    let k = prop_oneof![
        size(),
        size().prop_map(|k| k / 4096 * 4096),
        (1..99_usize).prop_map(|k| k * 256)
    ];
    let sizes = (size(), n, k, size());
    sizes.prop_filter_map("sizes overflow", |(m, n, k, l)| {
        Shape::new(Dims {
            m,
            n,
            k: (k / 16).max(1) * 16,
            l,
        })
        .or_else(|_| {
            Shape::new(Dims {
                m,
                n,
                k: (k / 16).max(1) * 16,
                l: 1,
            })
        })
        .ok()
    })
}

fn operands() -> impl Strategy<Value = Operands> {
    let activation = prop_oneof![
        Just(Activation::Nvfp4),
        prop::sample::select(Activation::ALL.to_vec())
    ];
    let layout = prop::sample::select(ScaleLayout::ALL.to_vec());
    let workspace = prop::sample::select(vec![0, 1 << 16, 1 << 40, u64::MAX]);
    (activation, layout, workspace).prop_map(|(activation, layout, workspace)| {
        Operands::new(activation, layout).with_workspace(workspace)
    })
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let known = [(8, 0), (9, 0), (10, 0), (12, 0)]
        .map(|cc| Gpu::of_compute_capability(cc, "80;90a;100f;120f"));
    let known = prop::sample::select(known.to_vec());
    (known, any::<bool>(), number(), number()).prop_map(
        |(known, usual, multiprocessors, shared_bytes)| match usual {
            true => known,
            false => Gpu {
                multiprocessors,
                shared_bytes,
                ..known
            },
        },
    )
}

/// Whether the config is legal. An error if its roundings cannot be counted, or if a legal config's plan has a launch
/// that the GPU does not take.
fn is_sound(config: &Config, job: &Job<'_>) -> Result<bool, TestCaseError> {
    prop_assert!(config.roundings(job.shape, job.operands.activation) > 0);
    let in_flight = config.bytes_in_flight(job);
    let legal = config.check(job).is_ok();
    if !legal {
        return Ok(false);
    }
    let Operands {
        activation,
        weight_layout,
        ..
    } = *job.operands;
    let call = Call::nowhere(job.shape, activation, weight_layout, 32);
    prop_assert!(config.workspace_bytes(job) <= job.operands.workspace);
    let plan = config.plan(&call, job.gpu, job.chained).unwrap();
    let passes = match job.shape.is_empty() {
        true => 0,
        false => job.shape.n().div_ceil(config.pass_vectors() as usize),
    };
    let multiply = plan.launches().iter().filter(|launch| !launch.auxiliary);
    prop_assert_eq!(multiply.count(), passes);
    prop_assert!(in_flight > 0 || job.shape.is_empty());
    for launch in plan.launches() {
        let [x, y, z] = launch.grid;
        prop_assert!(x > 0 && x <= i32::MAX as u32, "{launch:?}");
        let most = 1..=plan::MOST_GRID_Y;
        prop_assert!(most.contains(&y) && most.contains(&z), "{launch:?}");
        prop_assert!((1..=1024).contains(&launch.threads), "{launch:?}");
        prop_assert!(launch.threads.is_multiple_of(32), "{launch:?}");
        prop_assert!(
            launch.cluster <= 8 && (launch.cluster == 0 || x.is_multiple_of(launch.cluster)),
            "{launch:?}"
        );
        let shared = u64::from(launch.dynamic_shared) + u64::from(launch.static_shared);
        // Every GPU has room for static shared memory.
        let fits = shared <= u64::from(job.gpu.shared_bytes);
        prop_assert!(launch.dynamic_shared == 0 || fits, "{launch:?}");
    }
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_config(
        shape in shape(),
        operands in operands(),
        gpu in gpu(),
        chained in any::<bool>(),
        numbers in prop::array::uniform6(number()),
        flag in any::<bool>(),
    ) {
        let job = Job::new(&shape, &operands, &gpu).chained(chained);
        for config in configs(numbers, flag) {
            is_sound(&config, &job)?;
        }
        for kernel in Kernel::ALL {
            let candidates = kernel.candidates(&job);
            let default = kernel.default_config(&job);
            prop_assert_eq!(candidates.first(), default.as_ref().ok());
            for (i, config) in candidates.iter().chain(&default).enumerate() {
                prop_assert!(is_sound(config, &job)?, "{config:?}");
                let first = i >= candidates.len() || !candidates[..i].contains(config);
                prop_assert!(first, "{config:?} twice");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A default is legal for any alignment of operands and any layout of the vectors' scales: dispatch does not check
    /// a default again.
    #[test]
    fn any_default_is_legal(
        shape in shape(),
        operands in operands(),
        gpu in gpu(),
        chained in any::<bool>(),
        aligned in prop::array::uniform5(0_u32..6),
        vector_layout in prop::sample::select(ScaleLayout::ALL.to_vec()),
    ) {
        let [codes, scales, vectors, vector_codes, vector_scales] = aligned.map(|bit| 1 << bit);
        let alignment = Alignment {
            codes: 8.max(codes),
            scales,
            vectors,
            vector_codes,
            vector_scales,
        };
        let operands = Operands { alignment, vector_layout, ..operands };
        let job = Job::new(&shape, &operands, &gpu).chained(chained);
        for kernel in Kernel::ALL {
            if let Ok(default) = kernel.default_config(&job) {
                prop_assert_eq!(default.check(&job), Ok(()), "{:?}", default);
            }
        }
    }
}

/// Each `DEFAULT` computes a small problem on some GPU, and gives the values that files leave out.
#[test]
fn defaults_are_legal() {
    let shape = Shape::matrix(128, 512).unwrap();
    for config in Config::DEFAULTS {
        let legal = |cc, layout| {
            let operands = Operands::new(Activation::Nvfp4, layout).with_workspace(u64::MAX);
            let gpu = Gpu::of_compute_capability(cc, "90a;100f;120f");
            config.check(&Job::new(&shape, &operands, &gpu)).is_ok()
        };
        let somewhere = [(9, 0), (10, 0), (12, 0)]
            .iter()
            .any(|cc| ScaleLayout::ALL.iter().any(|layout| legal(*cc, *layout)));
        assert!(somewhere, "{config:?}");
        let nothing = format!(r#"{{"{}": {{}}}}"#, config.kernel());
        assert_eq!(serde_json::from_str::<Config>(&nothing).unwrap(), *config);
    }
}

/// Sizes that overflow and divisions by zero, which panicked once.
#[test]
fn one_extreme_at_a_time() {
    let shape = Shape::matrix(1 << 20, 4096).unwrap();
    let operands = Operands {
        alignment: Alignment::BEST,
        ..Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4)
    };
    for cc in [(9, 0), (10, 0)] {
        let gpu = Gpu {
            multiprocessors: u32::MAX,
            shared_bytes: u32::MAX,
            ..Gpu::of_compute_capability(cc, "90a;100f")
        };
        let job = Job::new(&shape, &operands, &gpu);
        for at in 0..6 {
            for extreme in [0, u32::MAX] {
                let mut numbers = [2, 2, 2, 2, 1, 4];
                numbers[at] = extreme;
                for config in configs(numbers, false) {
                    let _ = is_sound(&config, &job).unwrap();
                }
            }
        }
        for kernel in Kernel::ALL {
            let [available, default] = [
                kernel.available(&job),
                kernel.default_config(&job).map(drop),
            ];
            assert_eq!(available, default, "{kernel}");
        }
    }
}
