//! The kernel whose warps stream rows through queues of their own, on a real device. Without one,
//! every test says why it is skipped.
#![cfg(feature = "cuda")]

mod device;

use cudarc::driver::CudaSlice;
use device::{
    Case, Data, Gpu, OnDevice, Uploaded, assert_alphas, assert_dependent_in_a_graph,
    assert_follows_the_quantiser, gpu_or_skip, layouts, upload,
};
use half::{bf16, f16};
use nvfp4_gemv::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS, EdgeCase, Problem};
use nvfp4_gemv::reference::{self, Reference};
use nvfp4_gemv::{
    Activation, Config, DenseVectors, Device, Error, FloatType, GlobalScale, Launched, Output,
    Path, ScaleLayout, Shape, StreamConfig, StreamTarget, Unavailable, Vectors, Weights,
    gemv_on_device_with,
};

/// The path that these tests are about.
const CASE: Case = Case {
    path: Some(Path::CudaCore),
    ..device::CASE
};

const TAKEN: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

fn target(gpu: &Gpu, case: Case) -> StreamTarget {
    StreamTarget {
        activation: case.activation,
        tiled: case.weight_layout == ScaleLayout::Tiled128x4,
        multiprocessors: gpu.info.multiprocessors,
        shared_bytes: gpu.info.shared_bytes,
    }
}

/// Types of vectors and layouts of scales, each once: dense vectors have no scales.
fn operands() -> impl Iterator<Item = Case> {
    TAKEN.into_iter().flat_map(|activation| {
        layouts()
            .filter(move |&(_, v)| activation == Activation::Nvfp4 || v == ScaleLayout::Linear)
            .map(move |(weight_layout, vector_layout)| Case {
                weight_layout,
                vector_layout,
                activation,
                ..CASE
            })
    })
}

/// Legal cuts of every kind: all numbers of warps and stages, CTAs that have many tiles and parts of several
/// batches, and as many CTAs as there are rows for.
fn cuts(shape: &Shape, target: &StreamTarget) -> Vec<StreamConfig> {
    let mut cuts: Vec<StreamConfig> = StreamConfig::for_problem(shape, target)
        .into_iter()
        .collect();
    let most = shape.m() * shape.l() / if target.tiled { 4 } else { 1 };
    for warps in 1..=16 {
        for stages in [3, 4, 6] {
            // Another number of CTAs for each, not all of them for all.
            let ctas = [1, 3, 7, target.multiprocessors, most as u32];
            cuts.push(StreamConfig {
                warps,
                stages,
                vectors: 8,
                fetch: 128,
                ctas: ctas[(warps + stages) as usize % ctas.len()],
                dependent: false,
            });
        }
    }
    // In passes of fewer vectors, and with the other prefetch.
    for (warps, vectors) in [(16, 1), (13, 2), (5, 4)] {
        cuts.push(StreamConfig {
            warps,
            stages: 3,
            vectors,
            fetch: 256,
            ctas: target.multiprocessors,
            dependent: false,
        });
    }
    cuts.retain(|cut| cut.is_legal(shape, target));
    cuts
}

#[test]
fn contest_shapes() {
    let gpu = gpu_or_skip!();
    for &(m, k, l) in CONTEST_TESTS.iter().chain(&CONTEST_BENCHMARKS) {
        if k % 256 != 0 {
            continue;
        }
        let shape = Shape::gemv(m, k, l).unwrap();
        let data = Data::new(shape, 1);
        for case in operands() {
            let case = Case {
                output: FloatType::F16,
                padded: true,
                ..case
            };
            let default = &cuts(&shape, &target(&gpu, case))[..1];
            data.assert_right(&gpu, case, default);
        }
    }
}

/// The default cut for every number of vectors, with rows that end inside a tile, and batches that do.
#[test]
fn odd_shapes() {
    let gpu = gpu_or_skip!();
    for (i, m) in [1, 17, 130, 1000].into_iter().enumerate() {
        for n in 1..=Shape::MAX_N {
            let k = [256, 1024, 3584, 4352][(i + n) % 4];
            let shape = Shape::new(m, n, k, 1 + n % 5).unwrap();
            let data = Data::new(shape, n as u64);
            for case in operands() {
                let case = Case {
                    output: FloatType::ALL[(i + n) % 3],
                    padded: n % 2 == 0,
                    ..case
                };
                let default = &cuts(&shape, &target(&gpu, case))[..1];
                data.assert_right(&gpu, case, default);
            }
        }
    }
}

#[test]
fn every_kind_of_cut() {
    let gpu = gpu_or_skip!();
    let mut kinds = std::collections::BTreeSet::new();
    for (m, n, k, l) in [
        (300, 1, 28672, 1), // 112 steps
        (130, 2, 3584, 5),  // 14
        (77, 3, 4096, 3),   // 16
        (1000, 8, 2048, 2), // 8
        (17, 11, 1792, 4),  // 7, two passes
        (40, 1, 4352, 2),   // 17
    ] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let data = Data::new(shape, 3);
        for case in operands() {
            let cuts = cuts(&shape, &target(&gpu, case));
            kinds.extend(cuts.iter().map(|cut| (cut.warps, cut.stages)));
            data.assert_right(&gpu, case, &cuts);
        }
    }
    for kind in [(1, 3), (7, 4), (12, 3), (12, 6), (16, 3), (16, 4)] {
        assert!(kinds.contains(&kind), "{kind:?} was not tried: {kinds:?}");
    }
}

/// Warps that have many tiles, and queues that go round many times.
#[test]
fn few_ctas_and_many_rows() {
    let gpu = gpu_or_skip!();
    for (m, n, k, l) in [(20_001, 8, 256, 1), (5003, 1, 1024, 3), (4999, 4, 512, 2)] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let data = Data::new(shape, 5);
        for case in operands() {
            let few = [(12, 3, 9), (5, 6, 2), (1, 3, 5), (2, 4, 3)];
            let mut cuts: Vec<StreamConfig> = few
                .into_iter()
                .map(|(warps, stages, ctas)| StreamConfig {
                    warps,
                    stages,
                    vectors: 8,
                    fetch: 128,
                    ctas,
                    dependent: false,
                })
                .collect();
            cuts.retain(|cut| cut.is_legal(&shape, &target(&gpu, case)));
            data.assert_right(&gpu, case, &cuts);
        }
    }
}

#[test]
fn many_batches() {
    let gpu = gpu_or_skip!();
    for (m, k) in [(2, 256), (1, 1024)] {
        let shape = Shape::gemv(m, k, 70_000).unwrap();
        let problem = Problem::integers(shape, 12);
        let truth = problem.reference().unwrap();
        for weight_layout in ScaleLayout::ALL {
            let case = Case {
                weight_layout,
                ..CASE
            };
            gpu.assert_exact(&problem, &truth, case);
        }
    }
}

#[test]
fn edge_cases() {
    let gpu = gpu_or_skip!();
    for edge in EdgeCase::ALL {
        for (m, n, k) in [(130, 1, 4096), (33, 3, 256)] {
            let problem = Problem::edge_case(Shape::new(m, n, k, 2).unwrap(), edge, 7);
            let truth = problem.reference().unwrap();
            for weight_layout in ScaleLayout::ALL {
                let case = Case {
                    weight_layout,
                    ..CASE
                };
                gpu.assert_in_bound(&problem, &truth, case);
            }
        }
    }
}

/// Every sum of `y` is within what is promised of a launch.
fn assert_in_bound(
    truth: &Reference,
    launched: &Launched,
    shape: &Shape,
    activation: Activation,
    y: &[f32],
) {
    let roundings = launched.config.roundings(shape, activation);
    for (i, &y) in y.iter().enumerate() {
        let (true_y, magnitude) = (truth.y[i], truth.magnitude[i]);
        let bound = reference::error_bound(true_y, magnitude, roundings, FloatType::F32);
        let error = (f64::from(y) - true_y).abs();
        assert!(
            error <= bound,
            "{activation} {shape} element {i}: {y}, true {true_y}, error {error:e} > {bound:e}"
        );
    }
}

/// f16 and bf16 vectors over their types' whole ranges, also as weights with the code 0.5 see them: what
/// is promised of matrix instructions' sums, subnormal elements included.
#[test]
fn dense_vectors_of_every_magnitude() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let linear = ScaleLayout::Linear;
    for n in [1, 2, 3] {
        let shape = Shape::new(130, n, 2048, 1).unwrap();
        // Without alpha: results of vectors that are small stay small, in f32 far from its limits.
        let mut problem = Problem::full_range(shape, 21);
        problem.alpha = None;
        let w = problem.weights(linear).unwrap();
        let host = w.view().unwrap();
        let uploaded = Uploaded::new(stream, &problem, linear, linear, false);
        let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
        let mut launch = |vectors: &Vectors<'_, Device>| {
            let output = Output::F32(y.as_view_mut());
            let launched = gemv_on_device_with(
                CASE.path,
                None,
                stream,
                &shape,
                &uploaded.weights(),
                vectors,
                output,
            )
            .unwrap();
            (launched, stream.clone_dtoh(&y).unwrap())
        };
        let sign_and_mantissa =
            |rng: &mut fastrand::Rng, bits: u32| rng.u16(..2) << 15 | rng.u16(..1 << bits);
        for (seed, exponents) in [(0, 1u16..31), (1, 0..3), (2, 0..31), (3, 12..18)] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let x: Vec<f16> = (0..n * shape.k())
                .map(|_| rng.u16(exponents.clone()) << 10 | sign_and_mantissa(&mut rng, 10))
                .map(f16::from_bits)
                .collect();
            let truth = reference::gemv(&shape, &host, &Vectors::f16(&x)).unwrap();
            let x = upload(stream, &x);
            let (launched, y) = launch(&Vectors::F16(DenseVectors::new(x.as_view())));
            assert_in_bound(&truth, &launched, &shape, Activation::F16, &y);
        }
        // 127 is the exponent of 1, where a single vector is cut in two. One element of many, so that no
        // large one hides what becomes of a small one.
        for (seed, exponents, one_of) in [
            (4, 1u16..230, 1),
            (5, 0..3, 1),
            (6, 0..230, 1),
            (7, 124..130, 1),
            (8, 0..230, 700),
            (9, 125..129, 700),
            (10, 0..3, 700),
        ] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let x: Vec<bf16> = (0..n * shape.k())
                .map(|_| {
                    let bits = rng.u16(exponents.clone()) << 7 | sign_and_mantissa(&mut rng, 7);
                    let kept = if rng.u32(..one_of) == 0 { bits } else { 0 };
                    bf16::from_bits(kept)
                })
                .collect();
            let truth = reference::gemv(&shape, &host, &Vectors::bf16(&x)).unwrap();
            let x = upload(stream, &x);
            let (launched, y) = launch(&Vectors::Bf16(DenseVectors::new(x.as_view())));
            assert_in_bound(&truth, &launched, &shape, Activation::Bf16, &y);
        }
    }
}

#[test]
fn a_hundred_repeats_give_the_same_bits() {
    let gpu = gpu_or_skip!();
    for (m, n, k, l) in [(2432, 1, 4608, 2), (130, 7, 3584, 3), (4096, 1, 4096, 1)] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let problem = Problem::full_range(shape, 11);
        for case in operands() {
            for config in cuts(&shape, &target(&gpu, case)).into_iter().step_by(7) {
                OnDevice::new(&gpu, &problem, case)
                    .cut(config)
                    .assert_repeats();
            }
        }
    }
}

#[test]
fn row_alpha_of_each_batch_and_alpha_of_each_vector() {
    let gpu = gpu_or_skip!();
    let shape = Shape::new(37, 11, 512, 3).unwrap();
    for config in cuts(&shape, &target(&gpu, CASE)) {
        let case = Case {
            config: Some(config.into()),
            ..CASE
        };
        assert_alphas(&gpu, shape, case);
    }
}

#[test]
fn dependent_launches_replayed_from_a_graph() {
    let gpu = gpu_or_skip!().without_events();
    let mut works = Vec::new();
    for (m, n, k, l) in [(300, 2, 1024, 2), (4096, 1, 4096, 1), (129, 11, 256, 3)] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let problem = Problem::full_range(shape, 14);
        for case in operands() {
            let default = cuts(&shape, &target(&gpu, case))[0];
            works.push(OnDevice::new(&gpu, &problem, case).cut(default));
        }
    }
    assert_dependent_in_a_graph(&gpu, &works);
}

#[test]
fn vectors_of_the_kernel_before() {
    let gpu = gpu_or_skip!();
    let shape = Shape::new(1000, 3, 1024, 2).unwrap();
    for layout in ScaleLayout::ALL {
        let case = Case {
            weight_layout: layout,
            vector_layout: layout,
            ..CASE
        };
        let default = cuts(&shape, &target(&gpu, case))[0].into();
        assert_follows_the_quantiser(&gpu, shape, layout, default);
    }
}

#[test]
fn refusals_before_anything_is_launched() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let x = upload(stream, &vec![f16::ONE; 2 * 512 + 8]);
    let codes = upload(stream, &vec![0x22u8; 64 * 256 + 16]);
    let scales = upload(stream, &vec![0x38u8; 64 * 32 + 16]);
    let good = StreamConfig {
        warps: 4,
        stages: 4,
        vectors: 8,
        fetch: 128,
        ctas: 3,
        dependent: false,
    };
    let mut y = upload(stream, &[f32::NAN; 128]);
    // K, the configuration, and how far codes and scales are from their alignment.
    let call =
        |y: &mut CudaSlice<f32>, k: usize, config: Option<StreamConfig>, skip: (usize, usize)| {
            let shape = Shape::new(64, 2, k, 1).unwrap();
            let weights = Weights::on_device(
                &shape,
                codes.slice(skip.0..),
                scales.slice(skip.1..),
                ScaleLayout::Linear,
                GlobalScale::ONE,
            )
            .unwrap();
            gemv_on_device_with(
                Some(Path::CudaCore),
                config.map(Config::from),
                stream,
                &shape,
                &weights,
                &Vectors::F16(DenseVectors::new(x.as_view())),
                Output::F32(y.as_view_mut()),
            )
            .map(|launched| launched.config)
        };
    let reason = |result: Result<Config, Error>| match result {
        Err(Error::PathUnavailable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    for skip in [(8, 0), (0, 8)] {
        assert_eq!(
            reason(call(&mut y, 512, Some(good), skip)),
            Unavailable::Alignment
        );
    }
    let why = reason(call(&mut y, 384, Some(good), (0, 0)));
    assert!(matches!(why, Unavailable::RowLength { k: 384, .. }));
    for bad in [
        StreamConfig { warps: 17, ..good },
        StreamConfig { warps: 0, ..good },
        StreamConfig { stages: 5, ..good },
        StreamConfig { stages: 34, ..good },
        StreamConfig { ctas: 0, ..good },
        StreamConfig { ctas: 65, ..good },
    ] {
        let refused = call(&mut y, 512, Some(bad), (0, 0));
        assert!(
            matches!(refused, Err(Error::StreamConfig { .. })),
            "{refused:?}"
        );
    }
    let untouched = stream.clone_dtoh(&y).unwrap();
    assert!(untouched.iter().all(|y| y.is_nan()));
    let default = call(&mut y, 512, None, (0, 0)).unwrap();
    assert!(matches!(default, Config::Stream(_)));
    let result = stream.clone_dtoh(&y).unwrap();
    assert_eq!(result, vec![512.0; 128], "1 * 1 in every place");
}
