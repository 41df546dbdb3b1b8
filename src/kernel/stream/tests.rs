//! Tests of configs and shared memory, by hand. `extremes.rs` tests that defaults and candidates are legal.

use std::mem::offset_of;

use super::*;
use crate::gpu::Gpu;
use crate::operands::Operands;
use crate::shape::Dims;
use crate::types::ScaleLayout;

const LINEAR: ScaleLayout = ScaleLayout::Linear;
const TILED: ScaleLayout = ScaleLayout::Tiled128x4;
/// A config of 12 warps, for problems whose config does not matter.
const USUAL: StreamConfig = StreamConfig {
    warps: 12,
    stages: 3,
    vectors: 8,
    fetch: 128,
    ctas: 132,
    ..StreamConfig::DEFAULT
};

fn h200() -> Gpu {
    Gpu::of_compute_capability((9, 0), "90a")
}

/// The answer of `ask` for a problem on an H200.
fn of<T>(
    (m, n, k, l): (usize, usize, usize, usize),
    activation: Activation,
    layout: ScaleLayout,
    ask: impl FnOnce(&Job<'_>) -> T,
) -> T {
    let shape = Shape::new(Dims { m, n, k, l }).unwrap();
    ask(&Job::new(
        &shape,
        &Operands::new(activation, layout),
        &h200(),
    ))
}

fn default(
    shape: (usize, usize, usize, usize),
    activation: Activation,
    layout: ScaleLayout,
) -> Result<StreamConfig, Refusal> {
    of(shape, activation, layout, |job| {
        StreamConfig::available(job)?;
        StreamConfig::default_for(job)
    })
}

/// By hand: 1024 is four steps of four blocks a lane.
#[test]
fn roundings_by_hand() {
    let shape = Shape::matrix(64, 1024).unwrap();
    assert_eq!(USUAL.roundings(&shape, Activation::Nvfp4), 16 + 2 + 12 + 4);
    let sixteen_bits = 24 + 16 + 2 + 12 + 4;
    assert_eq!(USUAL.roundings(&shape, Activation::F16), sixteen_bits);
    // Two parts of a bf16 vector are added.
    assert_eq!(USUAL.roundings(&shape, Activation::Bf16), sixteen_bits + 1);
    // Several vectors: eight instructions in a chain, two such chains a step. Nine vectors are a pass of eight and
    // one of one, of which the first counts.
    for (activation, n, each) in [
        (Activation::Bf16, 2, 18),
        (Activation::Bf16, 9, 18),
        (Activation::F16, 3, 130),
        (Activation::Nvfp4, 9, 130),
    ] {
        let several = Shape::new(Dims {
            m: 64,
            n,
            k: 1024,
            l: 1,
        })
        .unwrap();
        let roundings = USUAL.roundings(&several, activation);
        assert_eq!(roundings, 8 * each + 2 * 4 + 12 + 4, "{activation} {n}");
    }
    let two = Shape::new(Dims {
        m: 64,
        n: 2,
        k: 1024,
        l: 1,
    })
    .unwrap();
    assert_eq!(USUAL.roundings(&two, Activation::F16), sixteen_bits);
}

/// All shapes but the smallest have one config, but for `fetch`, and two warps side by side with linear scales.
#[test]
fn configs_of_the_benchmark_shapes() {
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
            for layout in ScaleLayout::ALL {
                let config = default((m, n, k, l), activation, layout).unwrap();
                let far_ahead = m * k * l * 9 / 16 >= 100_000_000;
                let usual = StreamConfig {
                    warps: if m * k == 4096 * 4096 { 8 } else { 12 },
                    fetch: if far_ahead { 256 } else { 128 },
                    beside: match layout {
                        ScaleLayout::Linear if m * k != 4096 * 4096 => 2,
                        _ => 1,
                    },
                    ..USUAL
                };
                assert_eq!(config, usual, "{m}x{k}x{l} {activation}");
            }
        }
    }
}

#[test]
fn short_memory_takes_passes_then_warps_then_everything() {
    // Eight f16 vectors of 24 KiB each leave no room for eight warps: four at a time do.
    let vectors = |n, k| {
        let config = default((4096, n, k, 1), Activation::F16, LINEAR).unwrap();
        assert_eq!(config.warps, 12);
        config.vectors
    };
    assert_eq!(vectors(8, 8192), 8);
    assert_eq!(vectors(8, 12288), 4);
    assert_eq!(vectors(8, 28672), 2);
    assert_eq!(vectors(4, 65536), 1);
    // Eight passes, or as many as there are vectors.
    assert_eq!(vectors(8, 65536), 1);
    assert_eq!(vectors(1000, 65536), 1);
    let ctas =
        |m, n, k, l| default((m, n, k, l), Activation::Nvfp4, LINEAR).map(|config| config.ctas);
    assert_eq!(ctas(4096, 1, 1 << 18, 1), Err(Refusal::VectorMemory));
    // A CTA's sums do not fit: more CTAs.
    assert!(ctas(1_000_000, 8, 1024, 1).unwrap() > 132);
    // Many small batches: more CTAs than SMs, so that each has few of them.
    assert!(ctas(2, 1, 16384, 10_000).unwrap() > 132);
}

/// A pass has sixteen vectors if there are more than eight, they fit, and no row is ragged.
#[test]
fn sixteen_vectors_a_pass() {
    for (n, k, vectors) in [
        (16, 4096, 16),
        (9, 4096, 16),
        (100, 4096, 16),
        (16, 4112, 8),
        (16, 8192, 8),
        (8, 4096, 8),
    ] {
        let config = default((14336, n, k, 1), Activation::F16, LINEAR).unwrap();
        assert!(config.warps >= 8, "{n} {k}");
        assert_eq!(config.vectors, vectors, "{n} {k}");
    }
}

/// No CTA is without rows.
#[test]
fn few_rows_take_few_ctas() {
    for (m, l, layout, ctas) in [(17, 1, LINEAR, 17), (1, 1, TILED, 32), (1, 3, LINEAR, 48)] {
        of((m, 1, 1024, l), Activation::Nvfp4, layout, |job| {
            let config = StreamConfig::default_for(job).unwrap();
            assert_eq!(config.ctas, ctas);
            let more = StreamConfig {
                ctas: ctas + 1,
                ..config
            };
            let refusal = more.check(job).unwrap_err();
            assert!(matches!(refusal, Refusal::Field { name: "ctas", .. }));
        });
    }
}

/// 4096x4096 with linear scales: 132 CTAs of 32 rows at most, which are two tiles.
#[test]
fn shared_memory_by_hand() {
    let queues = 12 * 3 * 2304;
    let sums = |columns: u64| (12 + 2) * 16 * 4 * columns + 2 * 4;
    for (activation, n, columns, rest) in [
        // A vector, its scales and zeros.
        (Activation::Nvfp4, 1, 1, 257 * 16 + 256 * 8 + 10 * 16),
        (Activation::F16, 1, 1, 257 * 32 + 10 * 32),
        (Activation::Bf16, 1, 2, 2 * 257 * 32 + 10 * 32),
        // Weights carry their scales: neither zeros nor the vectors' scales.
        (Activation::Nvfp4, 3, 4, 4 * 257 * 32),
        (Activation::F16, 8, 8, 8 * 257 * 32),
        (Activation::Bf16, 2, 2, 2 * 257 * 32),
    ] {
        let layout = of((4096, n, 4096, 1), activation, LINEAR, |job| {
            USUAL.layout(job, USUAL.passes(job.shape)[0], 1)
        });
        assert_eq!(layout.x_at, queues);
        assert_eq!(
            layout.bytes,
            queues + rest + sums(columns),
            "{activation} {n}"
        );
    }
}

/// Tiles and batches of each CTA, counted one by one as the kernel counts them (`stream_work.cuh`).
#[test]
fn the_most_tiles_and_batches_of_a_cta() {
    let most = |m, l, layout, ctas: u64| {
        of((m, 1, 256, l), Activation::F16, layout, |job| {
            let (units, unit, places) = (units(job), unit(job), places(job));
            let (each, left) = (units / ctas, units % ctas);
            let of = |cta: u64| {
                let begin = (cta * each + cta.min(left)) * unit;
                let end = begin + (each + u64::from(cta < left)) * unit;
                let first = begin / places;
                let origin = if l > 1 { begin / 16 * 16 } else { begin };
                (
                    (end - origin).div_ceil(16),
                    end.div_ceil(places).max(first + 1) - first,
                )
            };
            let (tiles, batches): (Vec<_>, Vec<_>) = (0..ctas).map(of).unzip();
            let config = StreamConfig {
                ctas: ctas as u32,
                ..USUAL
            };
            assert_eq!(
                (config.tiles(job), config.batches(job)),
                (*tiles.iter().max().unwrap(), *batches.iter().max().unwrap()),
                "{m} rows, {l} batches, {layout}, {ctas} CTAs"
            );
            config.batches(job)
        })
    };
    for m in [1, 16, 17, 100, 256, 300] {
        for l in [1, 2, 3, 7, 40] {
            for layout in ScaleLayout::ALL {
                let units = of((m, 1, 256, l), Activation::F16, layout, units);
                for ctas in (1..units.min(150)).chain([units / 3, units / 2, units - 1, units]) {
                    most(m, l, layout, ctas.max(1));
                }
            }
        }
    }
    // 248 rows and a few: seven of the CTAs have rows of two batches.
    assert_eq!(most(4096, 8, LINEAR, 132), 2);
    assert_eq!(most(4096, 8, LINEAR, 128), 1);
    assert_eq!(most(4096, 8, TILED, 128), 1);
}

/// Eight f16 vectors of two batches of 7168 elements do not fit a CTA: CTAs that divide batches evenly have those of
/// one. Few rows have a tile for each CTA, not two.
#[test]
fn ctas_divide_batches_evenly_where_that_is_clearly_less() {
    let ctas = |shape, activation| {
        let config = default(shape, activation, LINEAR).unwrap();
        (config.ctas, config.vectors)
    };
    let f16 = Activation::F16;
    assert_eq!(ctas((4096, 8, 7168, 8), f16), (128, 8));
    assert_eq!(ctas((4096, 4, 7168, 8), f16), (132, 8));
    assert_eq!(ctas((4096, 8, 7168, 1), f16), (132, 8));
    for n in 1..=8 {
        assert_eq!(ctas((256, n, 8192, 8), f16), (128, 8), "{n}");
        assert_eq!(ctas((256, n, 8192, 8), Activation::Nvfp4), (128, 8), "{n}");
    }
    // No more than 96 CTAs would divide three batches evenly.
    assert_eq!(ctas((256, 1, 8192, 3), f16), (132, 8));
    // Half a batch for each of 512 CTAs, in one pass: the sums of a whole one would not fit.
    assert_eq!(ctas((2048, 8, 7168, 256), f16), (512, 8));
}

/// The rule of before there were bytes: the first number of CTAs that fits, of the most vectors.
#[test]
fn one_matrix_takes_the_first_ctas_that_fit() {
    for m in [1, 17, 129, 256, 1000, 2112, 4096, 28672, 1_000_000] {
        for k in [256, 1040, 4096, 8192, 28672, 65536] {
            for n in [1, 2, 3, 5, 8, 16] {
                for (activation, layout) in [
                    (Activation::Nvfp4, TILED),
                    (Activation::F16, LINEAR),
                    (Activation::F32, LINEAR),
                ] {
                    let Ok(config) = default((m, n, k, 1), activation, layout) else {
                        continue;
                    };
                    of((m, n, k, 1), activation, layout, |job| {
                        let units = units(job) as u32;
                        let before = [1, 2, 4, 16].map(|times| (times * 132).min(units));
                        let before = before.into_iter().take_while(|&ctas| ctas < config.ctas);
                        for ctas in before {
                            let fewer = StreamConfig { ctas, ..config };
                            assert_ne!(fewer.check(job), Ok(()), "{m}x{k} {n} {activation}");
                        }
                        assert!(config.ctas >= units.min(132), "{m}x{k} {n} {activation}");
                    });
                }
            }
        }
    }
}

/// A CTA for each row of 256x8192x8 stages five vectors 16 times on a multiprocessor, and multiplies a tile each time.
#[test]
fn vectors_that_are_staged_again_cost_share() {
    let left = |l, ctas| {
        of((256, 5, 8192, l), Activation::F16, LINEAR, |job| {
            StreamConfig { ctas, ..USUAL }.share_left(job)
        })
    };
    // The kernel is for eight vectors, of 16 KiB each. A row is 4 KiB of codes, and an eighth of that of scales.
    let (staged, tile) = (48e3 + 8.0 * 16384.0, 16.0 * 4608.0);
    // 2048 CTAs are 16 for each of 132 multiprocessors, and 160 are two.
    let of = |times: f64, tiles: f64| (staged + times * tiles) / (times * (staged + tiles));
    assert_eq!(left(8, 2048), of(16.0, tile));
    // Nothing is staged again, or there are no other batches.
    assert_eq!([left(8, 128), left(8, 132), left(1, 256)], [1.0; 3]);
    // Eight tiles take longer than staging, which is done twice all the same.
    assert_eq!(left(80, 160), of(2.0, 8.0 * tile));
}

/// Three bf16 vectors in passes of two: the second one, of a single vector, has zeros besides its columns.
#[test]
fn the_last_pass_may_need_more_than_the_first() {
    let operands = Operands::new(Activation::Bf16, LINEAR);
    let [two, three] = [2, 3].map(|n| {
        Shape::new(Dims {
            m: 4096,
            n,
            k: 4096,
            l: 1,
        })
        .unwrap()
    });
    let pairs = StreamConfig {
        vectors: 2,
        ..USUAL
    };
    let mut gpu = h200();
    let first = pairs.layout(&Job::new(&two, &operands, &gpu), 2, 1).bytes;
    gpu.shared_bytes = first as u32;
    assert_eq!(pairs.check(&Job::new(&two, &operands, &gpu)), Ok(()));
    let refusal = Refusal::SharedMemory {
        needed: first + 10 * 32,
        available: first as u32,
    };
    assert_eq!(
        pairs.check(&Job::new(&three, &operands, &gpu)),
        Err(refusal)
    );
}

/// Two stages are filled before the first one is used. A launch that is not chained has nothing to read ahead of.
#[test]
fn stages_that_are_not_behind_the_wait_are_ahead_of_it() {
    let shape = Shape::matrix(4096, 4096).unwrap();
    let call = Call::nowhere(&shape, Activation::Nvfp4, LINEAR, 32);
    let ahead = |behind, chained| {
        let config = StreamConfig { behind, ..USUAL };
        let plan = crate::kernel::Config::from(config).plan(&call, &h200(), chained);
        let at = offset_of!(nvfp4_stream_params, ahead);
        let launch = plan.unwrap().launches()[0].clone();
        let bytes = &launch.parameters.bytes()[at..at + 4];
        u32::from_ne_bytes(bytes.try_into().unwrap())
    };
    assert_eq!([0, 1, 2].map(|behind| ahead(behind, true)), [2, 1, 0]);
    assert_eq!([0, 1, 2].map(|behind| ahead(behind, false)), [0; 3]);
}

/// The GPU has 132 multiprocessors with 228 KB of shared memory each, of which every CTA takes 1 KB.
#[test]
fn chained_ctas_that_are_spread_leave_no_room_for_more_than_their_share() {
    const ROOM: u64 = 228 << 10;
    let shape = Shape::matrix(4096, 4096).unwrap();
    let call = Call::nowhere(&shape, Activation::Bf16, LINEAR, 32);
    let shared = |warps, ctas, spread, chained| {
        let config = StreamConfig {
            warps,
            ctas,
            spread,
            ..USUAL
        };
        let plan = crate::kernel::Config::from(config).plan(&call, &h200(), chained);
        u64::from(plan.unwrap().launches()[0].dynamic_shared) + 1024
    };
    for (ctas, share) in [(1, 1), (132, 1), (133, 2), (264, 2), (396, 3)] {
        let used = shared(1, ctas, false, true);
        assert!(used * (share + 1) <= ROOM, "{used}: nothing to keep away");
        let asked = shared(1, ctas, true, true);
        assert!(
            asked * share <= ROOM && asked * (share + 1) > ROOM,
            "{ctas}: {asked}"
        );
        assert_eq!(shared(1, ctas, true, false), used);
    }
    // CTAs of 16 warps leave no such room as they are.
    assert_eq!(shared(16, 132, true, true), shared(16, 132, false, true));
}

#[test]
fn what_is_best_in_a_chain() {
    let behind = |activation, n, k| {
        let shape = Shape::new(Dims {
            m: 4096,
            n,
            k,
            l: 1,
        })
        .unwrap();
        let (operands, gpu) = (Operands::new(activation, LINEAR), h200());
        let job = Job::new(&shape, &operands, &gpu);
        assert_eq!(USUAL.in_chain(&job), Some(USUAL), "not chained");
        let chained = USUAL.in_chain(&job.chained(true)).unwrap();
        assert!(chained.spread);
        assert_eq!(
            StreamConfig {
                behind: 0,
                spread: false,
                ..chained
            },
            USUAL
        );
        chained.behind
    };
    let (nvfp4, f16) = (Activation::Nvfp4, Activation::F16);
    assert_eq!([1, 2, 4, 8].map(|n| behind(nvfp4, n, 4096)), [1, 2, 2, 2]);
    assert_eq!([1, 2, 4, 8].map(|n| behind(nvfp4, n, 8192)), [1, 2, 1, 1]);
    assert_eq!([1, 2, 3, 8].map(|n| behind(f16, n, 5120)), [1, 1, 2, 2]);
    assert_eq!([1, 2, 3, 8].map(|n| behind(f16, n, 5376)), [1, 1, 1, 1]);
    // Older GPUs know no such launches.
    let (shape, operands) = (Shape::matrix(64, 512).unwrap(), Operands::new(f16, LINEAR));
    let ampere = Gpu::of_compute_capability((8, 0), "80");
    let job = Job::new(&shape, &operands, &ampere).chained(true);
    assert_eq!(USUAL.in_chain(&job), Some(USUAL));
}
