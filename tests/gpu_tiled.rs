//! The kernels that stream tiles through shared memory, on a real device: CUDA cores from compute
//! capability 9.0 on, tensor cores on 10.0 and 10.3. Without such a device, every test says why it is
//! skipped.
#![cfg(feature = "cuda")]

mod device;

use cudarc::driver::sys;
use device::{Gpu, Uploaded, alone, gpu_or_skip, output, upload};
use half::{bf16, f16};
use nvfp4_gemv::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS, Problem};
use nvfp4_gemv::quantize::quantize_vectors;
use nvfp4_gemv::reference::{error_bound, gemv};
use nvfp4_gemv::{
    DenseVectors, Error, FloatType, Output, Path, PreparedWeights, QuantizedVectors, ScaleLayout,
    Shape, TileConfig, TileKernel, Unavailable, Vectors, gemv_on_device_with, raw,
};

const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

/// The kernels that this device runs; a printed reason where there is none.
fn kernels(gpu: &Gpu) -> Vec<TileKernel> {
    let mut kernels = Vec::new();
    match gpu.info.compute_capability {
        cc if cc < (9, 0) => eprintln!("skipped: compute capability {cc:?} is below 9.0"),
        (10, _) => kernels.extend([16, 64, 128].map(|mma_n| TileKernel::TensorCore { mma_n })),
        _ => {}
    }
    if gpu.info.compute_capability >= (9, 0) {
        kernels.push(TileKernel::CudaCore);
    }
    kernels
}

/// Legal cuts: the default, the smallest ring, clusters of all sizes, each with and without
/// programmatic dependent launch.
fn cuts(gpu: &Gpu, kernel: TileKernel, shape: &Shape) -> Vec<TileConfig> {
    let target = raw::tile_target(&gpu.info);
    let mut cuts: Vec<TileConfig> = TileConfig::for_problem(kernel, shape, &target)
        .into_iter()
        .collect();
    for (stages, cluster) in [(2, 1), (4, 2), (2, 3), (4, 5), (2, 8)] {
        cuts.push(TileConfig {
            kernel,
            stages,
            cluster,
            dependent: cluster % 2 == 0,
        });
    }
    cuts.retain(|cut| cut.is_legal(shape, &target));
    cuts
}

fn run(gpu: &Gpu, problem: &Problem, config: TileConfig, element: FloatType) -> Vec<f64> {
    let stream = &gpu.stream;
    let shape = &problem.shape;
    let uploaded = Uploaded::new(stream, problem, TILED, TILED, true);
    let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
    let call = |output: Output<'_, nvfp4_gemv::Device>| {
        let config = Some(config.into());
        gemv_on_device_with(None, config, stream, shape, &weights, &vectors, output)
            .unwrap_or_else(|error| panic!("{shape} {config:?}: {error}"));
    };
    match element {
        FloatType::F16 => output(stream, shape, f16::NAN, |y| call(Output::F16(y)), f64::from),
        FloatType::Bf16 => output(
            stream,
            shape,
            bf16::NAN,
            |y| call(Output::Bf16(y)),
            f64::from,
        ),
        FloatType::F32 => output(stream, shape, f32::NAN, |y| call(Output::F32(y)), f64::from),
    }
}

fn assert_right(gpu: &Gpu, shape: Shape, cuts: &[TileConfig], element: FloatType) {
    let exact = Problem::integers(shape, 1);
    let exact_truth = exact.reference().unwrap();
    let random = Problem::full_range(shape, 2).with_row_alpha(3);
    let truth = random.reference().unwrap();
    for &config in cuts {
        let y = run(gpu, &exact, config, element);
        assert_eq!(y, exact_truth.y, "{shape} {config:?}");
        let roundings = config.roundings(&shape);
        for (i, y) in run(gpu, &random, config, element).into_iter().enumerate() {
            let bound = error_bound(truth.y[i], truth.magnitude[i], roundings, element);
            let error = (y - truth.y[i]).abs();
            assert!(
                error <= bound,
                "{shape} {config:?} element {i}: {y}, true {}, error {error:e} > {bound:e}",
                truth.y[i]
            );
        }
    }
}

#[test]
fn contest_shapes() {
    let gpu = gpu_or_skip!();
    for kernel in kernels(&gpu) {
        for &(m, k, l) in CONTEST_TESTS.iter().chain(&CONTEST_BENCHMARKS) {
            let shape = Shape::gemv(m, k, l).unwrap();
            assert_right(
                &gpu,
                shape,
                &cuts(&gpu, kernel, &shape)[..1],
                FloatType::F16,
            );
        }
    }
}

#[test]
fn odd_shapes() {
    let gpu = gpu_or_skip!();
    for kernel in kernels(&gpu) {
        for m in [1, 127, 129, 300] {
            for k in [32, 64, 96, 256, 1056, 4128] {
                for (l, n) in [(1, 1), (2, 2), (1, 4), (3, 7), (1, 8), (2, 16)] {
                    let shape = Shape::new(m, n, k, l).unwrap();
                    let element = FloatType::ALL[(m + k + n) % 3];
                    assert_right(&gpu, shape, &cuts(&gpu, kernel, &shape), element);
                }
            }
        }
    }
}

#[test]
fn a_hundred_repeats_give_the_same_bits() {
    let gpu = gpu_or_skip!();
    for kernel in kernels(&gpu) {
        for (m, n, k, l) in [(384, 1, 7168, 2), (2432, 1, 4608, 2), (130, 7, 4128, 3)] {
            let shape = Shape::new(m, n, k, l).unwrap();
            let problem = Problem::full_range(shape, 11);
            for config in cuts(&gpu, kernel, &shape) {
                let first = run(&gpu, &problem, config, FloatType::F32);
                for _ in 0..100 {
                    assert_eq!(run(&gpu, &problem, config, FloatType::F32), first);
                }
            }
        }
    }
}

/// Launches back to back, each reading weights before the one before has ended, captured into a graph
/// that is replayed a thousand times. The output of each launch is also written by the next but one:
/// a store that does not wait for the previous grid is found out.
#[test]
fn dependent_launches_replayed_from_a_graph() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    // SAFETY: this context is used by this test on one stream, whose order needs no events. Inside a
    // capture, tracked events would wait for events of before it.
    unsafe { stream.context().disable_event_tracking() };
    for kernel in kernels(&gpu) {
        let shapes = [(300, 2, 1056, 2), (4096, 1, 4096, 1), (129, 8, 96, 1)];
        let problems: Vec<Problem> = shapes
            .iter()
            .map(|&(m, n, k, l)| Problem::integers(Shape::new(m, n, k, l).unwrap(), 14))
            .collect();
        let uploaded: Vec<Uploaded> = problems
            .iter()
            .map(|problem| Uploaded::new(stream, problem, TILED, TILED, false))
            .collect();
        let mut outputs: Vec<_> = problems
            .iter()
            .map(|problem| upload(stream, &vec![f32::NAN; problem.shape.outputs()]))
            .collect();
        stream.synchronize().unwrap();
        let capturing = alone();
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        for _ in 0..4 {
            for (i, operands) in uploaded.iter().enumerate() {
                let shape = &problems[i].shape;
                let config = TileConfig {
                    dependent: true,
                    ..cuts(&gpu, kernel, shape)[0]
                };
                gemv_on_device_with(
                    None,
                    Some(config.into()),
                    stream,
                    shape,
                    &operands.weights(),
                    &operands.vectors(),
                    Output::F32(outputs[i].as_view_mut()),
                )
                .unwrap();
            }
        }
        let graph = stream
            .end_capture(
                sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            )
            .unwrap()
            .expect("the capture holds the launches");
        drop(capturing);
        for replay in 0..1000 {
            graph.launch().unwrap();
            if replay % 100 != 99 {
                continue;
            }
            for (problem, output) in problems.iter().zip(&mut outputs) {
                let y: Vec<f32> = stream.clone_dtoh(&*output).unwrap();
                let y: Vec<f64> = y.into_iter().map(f64::from).collect();
                assert_eq!(y, problem.reference().unwrap().y, "{kernel:?}");
                let poison = vec![f32::NAN; problem.shape.outputs()];
                stream.memcpy_htod(&poison, output).unwrap();
            }
        }
    }
}

/// bf16 vectors quantised on the device by the kernel before, which the dependent launch overlaps with,
/// times weights whose linear scales were laid out anew on the device. Every round has other vectors.
#[test]
fn vectors_of_the_kernel_before() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    for kernel in kernels(&gpu) {
        let shape = Shape::new(1000, 3, 1056, 2).unwrap();
        let problem = Problem::full_range(shape, 31);
        let linear = Uploaded::new(
            stream,
            &problem,
            ScaleLayout::Linear,
            ScaleLayout::Linear,
            false,
        );
        let prepared = PreparedWeights::new(stream, linear.weights()).unwrap();
        let mut quantized = QuantizedVectors::new(stream, &shape, TILED).unwrap();
        let config = TileConfig {
            dependent: true,
            ..cuts(&gpu, kernel, &shape)[0]
        };
        let count = shape.l() * shape.n();
        for round in 0..50 {
            let mut rng = fastrand::Rng::with_seed(round);
            let x: Vec<bf16> = (0..count * shape.k())
                .map(|_| bf16::from_f32(rng.f32() * 2.0 - 1.0))
                .collect();
            let x_device = upload(stream, &x);
            let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
            quantized
                .quantize(
                    stream,
                    &Vectors::Bf16(DenseVectors::new(x_device.as_view())),
                )
                .unwrap();
            gemv_on_device_with(
                None,
                Some(config.into()),
                stream,
                &shape,
                &prepared.weights().unwrap(),
                &quantized.vectors(),
                Output::F32(y.as_view_mut()),
            )
            .unwrap();
            let y = stream.clone_dtoh(&y).unwrap();
            if round % 10 != 0 {
                continue;
            }
            let host = quantize_vectors(&x, count, shape.k()).unwrap();
            let w = problem.weights(ScaleLayout::Linear).unwrap();
            let truth = gemv(&shape, &w.view().unwrap(), &host.vectors()).unwrap();
            for (i, y) in y.into_iter().enumerate() {
                let (true_y, magnitude) = (truth.y[i], truth.magnitude[i]);
                let bound =
                    error_bound(true_y, magnitude, config.roundings(&shape), FloatType::F32);
                assert!(
                    (f64::from(y) - true_y).abs() <= bound,
                    "{kernel:?} round {round} element {i}: {y}, true {true_y}"
                );
            }
        }
    }
}

/// More batches than the grid's second dimension takes.
#[test]
fn many_batches() {
    let gpu = gpu_or_skip!();
    for kernel in kernels(&gpu) {
        let shape = Shape::gemv(2, 32, 70_000).unwrap();
        let problem = Problem::integers(shape, 12);
        let truth = problem.reference().unwrap();
        for config in &cuts(&gpu, kernel, &shape)[..1] {
            assert_eq!(run(&gpu, &problem, *config, FloatType::F32), truth.y);
        }
    }
}

#[test]
fn refusals_on_a_device() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let shape = Shape::new(130, 2, 256, 1).unwrap();
    let problem = Problem::integers(shape, 1);
    let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
    let mut call = |forced, config: Option<TileConfig>, layout| {
        let uploaded = Uploaded::new(stream, &problem, layout, layout, false);
        gemv_on_device_with(
            forced,
            config.map(Into::into),
            stream,
            &shape,
            &uploaded.weights(),
            &uploaded.vectors(),
            Output::F32(y.as_view_mut()),
        )
    };
    let reason = |result: Result<_, Error>| match result {
        Err(Error::PathUnavailable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let compute_capability = gpu.info.compute_capability;
    if compute_capability < (9, 0) {
        let why = reason(call(Some(Path::CudaCoreTma), None, TILED));
        assert!(matches!(why, Unavailable::ComputeCapability { .. }));
        return;
    }
    if compute_capability.0 != 10 {
        let why = reason(call(Some(Path::TensorCore), None, TILED));
        assert!(matches!(why, Unavailable::ComputeCapability { .. }));
    }
    let why = reason(call(Some(Path::CudaCoreTma), None, ScaleLayout::Linear));
    assert!(matches!(why, Unavailable::ScaleLayout { .. }));
    let config = cuts(&gpu, TileKernel::CudaCore, &shape)[0];
    let other = call(Some(Path::CudaCore), Some(config), TILED);
    assert!(matches!(other, Err(Error::ConfigOfOtherPath { .. })));
    let odd = TileConfig {
        stages: 3,
        ..config
    };
    assert!(matches!(
        call(None, Some(odd), TILED),
        Err(Error::TileConfig { .. })
    ));
    assert!(call(Some(Path::CudaCoreTma), None, TILED).is_ok());
}
