//! The CUDA-core path on a real device. Without one, every test says why it is skipped.
#![cfg(feature = "cuda")]

mod device;

use device::{
    Case, Gpu, OnDevice, Uploaded, alone, assert_alphas, assert_dependent_in_a_graph,
    assert_follows_the_quantiser, gpu_or_skip, layouts, output, upload,
};
use half::f16;
use nvfp4_gemv::problem::{
    CONTEST_BENCHMARKS, CONTEST_TESTS, EdgeCase, Problem, contest_tolerance,
};
use nvfp4_gemv::{
    Activation, Config, CudaCoreConfig, CudaCoreKernel, CudaCoreTarget, DenseVectors, Error,
    FloatType, GlobalScale, Launched, Output, Path, ScaleLayout, Shape, Strides, Vectors, Weights,
    gemv_on_device_with, raw,
};

/// The path that these tests are about.
const CASE: Case = Case {
    path: Some(Path::CudaCore),
    ..device::CASE
};

impl Gpu {
    /// Buffers of their own are aligned for all loads.
    fn target(&self, shape: &Shape, case: Case) -> CudaCoreTarget {
        CudaCoreTarget {
            activation: case.activation,
            most_blocks_per_load: raw::most_blocks_per_load(shape, 0, 0, &self.info),
            tiled: case.weight_layout == ScaleLayout::Tiled128x4,
            multiprocessors: self.info.multiprocessors,
            shared_bytes: self.info.shared_bytes,
        }
    }
}

#[test]
fn contest_shapes() {
    let gpu = gpu_or_skip!();
    for &(m, k, l) in CONTEST_TESTS.iter().chain(&CONTEST_BENCHMARKS) {
        let shape = Shape::gemv(m, k, l).unwrap();
        let contest = Problem::contest(shape, 1);
        let contest_truth = contest.reference().unwrap();
        let full = Problem::full_range(shape, 2);
        let full_truth = full.reference().unwrap();
        for (weight_layout, vector_layout) in layouts() {
            let case = Case {
                weight_layout,
                vector_layout,
                padded: true,
                output: FloatType::F16,
                ..CASE
            };
            let (y, _) = OnDevice::new(&gpu, &contest, case).run();
            for (y, &c) in y.iter().zip(&contest_truth.y) {
                assert!((y - c).abs() <= contest_tolerance(c), "{shape} {y} {c}");
            }
            gpu.assert_in_bound(&full, &full_truth, case);
        }
    }
}

/// Shapes at the edges of tiles, blocks and loads.
const ODD: [(usize, usize, usize); 12] = [
    (1, 16, 1),
    (3, 48, 3),
    (4, 32, 1),
    (5, 80, 1),
    (127, 64, 2),
    (128, 80, 3),
    (129, 48, 1),
    (130, 4112, 1),
    (257, 528, 1),
    (33, 1040, 3),
    (300, 96, 1),
    (64, 2080, 2),
];

#[test]
fn odd_shapes_full_range() {
    let gpu = gpu_or_skip!();
    for (i, &(m, k, l)) in ODD.iter().enumerate() {
        for n in 1..=Shape::MAX_N {
            let shape = Shape::new(m, n, k, l).unwrap();
            let problem = Problem::full_range(shape, i as u64);
            let truth = problem.reference().unwrap();
            for activation in Activation::ALL {
                for output in FloatType::ALL {
                    for (weight_layout, vector_layout) in layouts() {
                        let case = Case {
                            weight_layout,
                            vector_layout,
                            activation,
                            output,
                            padded: n % 2 == 0,
                            ..CASE
                        };
                        gpu.assert_in_bound(&problem, &truth, case);
                    }
                }
            }
        }
    }
}

#[test]
fn odd_shapes_exact() {
    let gpu = gpu_or_skip!();
    for (i, &(m, k, l)) in ODD.iter().enumerate() {
        for n in [1, 2, 3, 5, 8, 11, 16] {
            let problem = Problem::integers(Shape::new(m, n, k, l).unwrap(), 100 + i as u64);
            let truth = problem.reference().unwrap();
            for activation in Activation::ALL {
                for output in FloatType::ALL {
                    for (weight_layout, vector_layout) in layouts() {
                        let case = Case {
                            weight_layout,
                            vector_layout,
                            activation,
                            output,
                            ..CASE
                        };
                        gpu.assert_exact(&problem, &truth, case);
                    }
                }
            }
        }
    }
}

#[test]
fn edge_cases() {
    let gpu = gpu_or_skip!();
    for case in EdgeCase::ALL {
        for (m, n, k) in [(130, 1, 4112), (33, 3, 96)] {
            let problem = Problem::edge_case(Shape::new(m, n, k, 2).unwrap(), case, 7);
            let truth = problem.reference().unwrap();
            for weight_layout in ScaleLayout::ALL {
                gpu.assert_in_bound(
                    &problem,
                    &truth,
                    Case {
                        weight_layout,
                        ..CASE
                    },
                );
            }
        }
    }
}

#[test]
fn every_configuration() {
    let gpu = gpu_or_skip!();
    for (m, n, k, l) in [
        (130, 1, 4128, 2),
        (131, 1, 4160, 2),
        (77, 4, 2080, 1),
        (79, 2, 1984, 3),
        (65, 8, 1088, 1),
    ] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let integers = Problem::integers(shape, 5);
        let integers_truth = integers.reference().unwrap();
        let full = Problem::full_range(shape, 6);
        let full_truth = full.reference().unwrap();
        for activation in Activation::ALL {
            for weight_layout in ScaleLayout::ALL {
                let case = Case {
                    weight_layout,
                    activation,
                    ..CASE
                };
                let target = gpu.target(&shape, case);
                for config in configurations().filter(|c| c.is_legal(&shape, &target)) {
                    let case = Case {
                        config: Some(config.into()),
                        ..case
                    };
                    gpu.assert_exact(&integers, &integers_truth, case);
                    gpu.assert_in_bound(&full, &full_truth, case);
                }
            }
        }
    }
}

/// Every configuration of each kernel with a few numbers of CTAs, legal or not.
fn configurations() -> impl Iterator<Item = CudaCoreConfig> {
    let kernels = [
        (CudaCoreKernel::Direct, 0),
        (CudaCoreKernel::IntegerDot, 1),
        (CudaCoreKernel::IntegerDot, 3),
        (CudaCoreKernel::IntegerDot, 132),
    ];
    kernels.into_iter().flat_map(|(kernel, ctas)| {
        [1, 2, 4].into_iter().flat_map(move |blocks_per_load| {
            (1..=16).flat_map(move |warps| {
                (1..=warps).map(move |k_split| CudaCoreConfig {
                    kernel,
                    blocks_per_load,
                    warps,
                    k_split,
                    ctas,
                    dependent: false,
                })
            })
        })
    })
}

#[test]
fn row_alpha() {
    let gpu = gpu_or_skip!();
    for (m, n, k, l) in [(129, 1, 80, 1), (40, 3, 512, 2)] {
        let problem = Problem::full_range(Shape::new(m, n, k, l).unwrap(), 3).with_row_alpha(4);
        let truth = problem.reference().unwrap();
        for activation in Activation::ALL {
            gpu.assert_in_bound(&problem, &truth, Case { activation, ..CASE });
        }
    }
}

#[test]
fn row_alpha_of_each_batch_and_alpha_of_each_vector() {
    let gpu = gpu_or_skip!();
    let shape = Shape::new(37, 11, 96, 3).unwrap();
    assert_alphas(&gpu, shape, CASE);
}

#[test]
fn strided_dense_vectors() {
    let gpu = gpu_or_skip!();
    let shape = Shape::new(50, 3, 48, 2).unwrap();
    let problem = Problem::integers(shape, 9);
    let truth = problem.reference().unwrap();
    let dense = problem.decoded_vectors().unwrap();
    let strides = Strides {
        row: 64,
        batch: 256,
    };
    let mut spread = vec![f16::NAN; 2 * 256];
    for l in 0..2 {
        for n in 0..3 {
            for k in 0..48 {
                spread[l * strides.batch + n * strides.row + k] =
                    f16::from_f32(dense[(l * 3 + n) * 48 + k]);
            }
        }
    }
    let stream = &gpu.stream;
    let w = problem.weights(ScaleLayout::Tiled128x4).unwrap();
    let (codes, scales) = (upload(stream, w.codes), upload(stream, &w.scales));
    let spread = upload(stream, &spread);
    let weights = Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        ScaleLayout::Tiled128x4,
        w.global(),
    )
    .unwrap();
    let vectors = Vectors::F16(DenseVectors::new(spread.as_view()).with_strides(strides));
    let y = output(
        stream,
        &shape,
        f16::NAN,
        |y| {
            gemv_on_device_with(
                None,
                None,
                stream,
                &shape,
                &weights,
                &vectors,
                Output::F16(y),
            )
            .unwrap();
        },
        f64::from,
    );
    assert_eq!(y, truth.y);
}

#[test]
fn a_hundred_repeats_give_the_same_bits() {
    let gpu = gpu_or_skip!();
    let mut shapes: Vec<Shape> = CONTEST_TESTS
        .iter()
        .map(|&(m, k, l)| Shape::gemv(m, k, l).unwrap())
        .collect();
    shapes.push(Shape::new(130, 7, 4112, 3).unwrap());
    for shape in shapes {
        let problem = Problem::full_range(shape, 11);
        let tiled = ScaleLayout::Tiled128x4;
        let case = Case {
            weight_layout: tiled,
            vector_layout: tiled,
            ..CASE
        };
        OnDevice::new(&gpu, &problem, case).assert_repeats();
    }
}

/// More batches than the grid's second dimension takes.
#[test]
fn many_batches() {
    let gpu = gpu_or_skip!();
    let problem = Problem::integers(Shape::gemv(2, 16, 70_000).unwrap(), 12);
    let truth = problem.reference().unwrap();
    gpu.assert_exact(&problem, &truth, CASE);
}

/// Byte offsets past 2^32.
#[test]
fn more_than_four_gigabytes_of_weights() {
    let gpu = gpu_or_skip!();
    let (m, k, l) = (4096, 16384, 130);
    // The same rows in every batch but the last, whose answer is checked.
    let shape = Shape::gemv(m, k, l).unwrap();
    assert!(shape.weight_code_bytes() > 1 << 32);
    let one = Problem::integers(Shape::gemv(m, k, 1).unwrap(), 13);
    let truth = one.reference().unwrap();
    let stream = &gpu.stream;
    let Ok(mut codes) = stream.alloc_zeros::<u8>(shape.weight_code_bytes()) else {
        eprintln!("skipped: not enough device memory");
        return;
    };
    let mut scales = stream
        .alloc_zeros::<u8>(shape.weight_scale_bytes(ScaleLayout::Linear))
        .unwrap();
    let last = |len: usize| (l - 1) * len..l * len;
    stream
        .memcpy_htod(&one.a, &mut codes.slice_mut(last(one.a.len())))
        .unwrap();
    stream
        .memcpy_htod(&one.sfa, &mut scales.slice_mut(last(one.sfa.len())))
        .unwrap();
    let x: Vec<f32> = one.decoded_vectors().unwrap().repeat(l);
    let x = upload(stream, &x);
    let weights = Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        ScaleLayout::Linear,
        GlobalScale::ONE,
    )
    .unwrap();
    let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
    let y = output(
        stream,
        &shape,
        f32::NAN,
        |y| {
            gemv_on_device_with(
                None,
                None,
                stream,
                &shape,
                &weights,
                &vectors,
                Output::F32(y),
            )
            .unwrap();
        },
        f64::from,
    );
    assert!(y[..(l - 1) * m].iter().all(|&y| y == 0.0));
    assert_eq!(y[(l - 1) * m..], truth.y);
}

#[test]
fn replayed_from_a_graph() {
    use cudarc::driver::sys;
    let gpu = gpu_or_skip!().without_events();
    let problem = Problem::integers(Shape::new(200, 10, 1024, 2).unwrap(), 14);
    let truth = problem.reference().unwrap();
    let shape = &problem.shape;
    let stream = &gpu.stream;
    let uploaded = Uploaded::new(
        stream,
        &problem,
        ScaleLayout::Linear,
        ScaleLayout::Linear,
        false,
    );
    let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
    let poison = vec![f32::NAN; shape.outputs()];
    let graph = {
        let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
        stream.synchronize().unwrap();
        let _capturing = alone();
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        let output = Output::F32(y.as_view_mut());
        gemv_on_device_with(None, None, stream, shape, &weights, &vectors, output).unwrap();
        stream
            .end_capture(
                sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            )
            .unwrap()
            .expect("the capture holds the launches")
    };
    for _ in 0..10 {
        stream.memcpy_htod(&poison, &mut y).unwrap();
        graph.launch().unwrap();
        let result: Vec<f64> = stream
            .clone_dtoh(&y)
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect();
        assert_eq!(result, truth.y);
    }
}

/// Each kernel's cuts, also with parts of K and with several batches a CTA.
fn dependent_cuts(gpu: &Gpu, shape: &Shape, case: Case) -> Vec<CudaCoreConfig> {
    let target = gpu.target(shape, case);
    let direct = CudaCoreConfig::direct(shape, &target);
    let split = CudaCoreConfig {
        warps: 8,
        k_split: 4,
        ..direct
    };
    let mut cuts = vec![direct, split];
    cuts.extend(CudaCoreConfig::integer_dot(shape, &target));
    cuts
}

#[test]
fn dependent_launches_replayed_from_a_graph() {
    let gpu = gpu_or_skip!().without_events();
    let mut works = Vec::new();
    for (m, n, k, l) in [(300, 2, 1056, 2), (4096, 1, 4096, 1), (129, 11, 96, 3)] {
        let shape = Shape::new(m, n, k, l).unwrap();
        let problem = Problem::full_range(shape, 14);
        for activation in Activation::ALL {
            let case = Case { activation, ..CASE };
            for config in dependent_cuts(&gpu, &shape, case) {
                works.push(OnDevice::new(&gpu, &problem, case).cut(config));
            }
        }
    }
    assert_dependent_in_a_graph(&gpu, &works);
}

#[test]
fn vectors_of_the_kernel_before() {
    let gpu = gpu_or_skip!();
    let shape = Shape::new(1000, 3, 1056, 2).unwrap();
    for layout in ScaleLayout::ALL {
        let case = Case {
            weight_layout: layout,
            ..CASE
        };
        for config in dependent_cuts(&gpu, &shape, case) {
            assert_follows_the_quantiser(&gpu, shape, layout, config.into());
        }
    }
}

#[test]
fn refusals_on_a_device() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let shape = Shape::new(8, 2, 64, 1).unwrap();
    let codes = upload(stream, &vec![0u8; shape.weight_code_bytes() + 16]);
    let scales = upload(stream, &[0x38u8; 8 * 4]);
    let x = upload(stream, &vec![f16::ONE; 2 * 64 + 8]);
    let mut y = upload(stream, &[f32::NAN; 16]);
    let layout = ScaleLayout::Linear;
    let mut call =
        |forced, config: Option<Config>, offset: usize, skip: usize| -> Result<Launched, Error> {
            let weights = Weights::on_device(
                &shape,
                codes.slice(offset..),
                scales.as_view(),
                layout,
                GlobalScale::ONE,
            )?;
            let vectors = Vectors::F16(DenseVectors::new(x.slice(skip..)));
            let output = Output::F32(y.as_view_mut());
            gemv_on_device_with(forced, config, stream, &shape, &weights, &vectors, output)
        };
    assert!(matches!(
        call(Some(Path::Cpu), None, 0, 0),
        Err(Error::PathUnavailable { .. })
    ));
    if gpu.info.compute_capability.0 != 10 {
        let error = call(Some(Path::TensorCore), None, 0, 0).unwrap_err();
        assert!(error.to_string().contains("10.x"), "{error}");
    }
    assert!(matches!(
        call(None, None, 4, 0),
        Err(Error::Misaligned {
            operand: "weight codes",
            align: 8,
            ..
        })
    ));
    assert!(matches!(
        call(None, None, 0, 4),
        Err(Error::Misaligned {
            operand: "vectors",
            align: 16,
            ..
        })
    ));
    let wide = CudaCoreConfig {
        kernel: CudaCoreKernel::Direct,
        ctas: 0,
        blocks_per_load: 2,
        warps: 4,
        k_split: 1,
        dependent: false,
    };
    assert!(matches!(
        call(None, Some(wide.into()), 8, 0),
        Err(Error::Config { .. })
    ));
    assert!(call(None, Some(wide.into()), 0, 0).is_ok());
    // 8-byte aligned codes take the narrow kernel.
    assert!(call(None, None, 8, 0).is_ok());
}
