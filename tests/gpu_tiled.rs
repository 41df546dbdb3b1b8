//! The kernels that stream tiles through shared memory, on a real device: CUDA cores from compute
//! capability 9.0 on, tensor cores on 10.0 and 10.3. Without such a device, every test says why it is
//! skipped.
#![cfg(feature = "cuda")]

mod device;

use device::{
    CASE, Case, Gpu, OnDevice, Uploaded, assert_dependent_in_a_graph, assert_follows_the_quantiser,
    gpu_or_skip, upload,
};
use nvfp4_gemv::problem::{CONTEST_BENCHMARKS, CONTEST_TESTS, Problem};
use nvfp4_gemv::{
    Error, FloatType, Output, Path, ScaleLayout, Shape, TileConfig, TileKernel, Unavailable,
    gemv_on_device_with, raw,
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

fn on_device(gpu: &Gpu, problem: &Problem, config: TileConfig, output: FloatType) -> OnDevice {
    let case = Case {
        weight_layout: TILED,
        vector_layout: TILED,
        output,
        padded: true,
        config: Some(config.into()),
        ..CASE
    };
    OnDevice::new(gpu, problem, case)
}

fn assert_right(gpu: &Gpu, shape: Shape, cuts: &[TileConfig], element: FloatType) {
    let exact = Problem::integers(shape, 1);
    let exact_truth = exact.reference().unwrap();
    let random = Problem::full_range(shape, 2).with_row_alpha(3);
    let truth = random.reference().unwrap();
    for &config in cuts {
        on_device(gpu, &exact, config, element).assert_exact(&exact_truth);
        on_device(gpu, &random, config, element).assert_in_bound(&truth);
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
                on_device(&gpu, &problem, config, FloatType::F32).assert_repeats();
            }
        }
    }
}

#[test]
fn dependent_launches_replayed_from_a_graph() {
    let gpu = gpu_or_skip!().without_events();
    for kernel in kernels(&gpu) {
        let shapes = [(300, 2, 1056, 2), (4096, 1, 4096, 1), (129, 8, 96, 1)];
        let works: Vec<OnDevice> = shapes
            .iter()
            .map(|&(m, n, k, l)| {
                let shape = Shape::new(m, n, k, l).unwrap();
                let problem = Problem::full_range(shape, 14);
                let config = cuts(&gpu, kernel, &shape)[0];
                on_device(&gpu, &problem, config, FloatType::F32)
            })
            .collect();
        assert_dependent_in_a_graph(&gpu, &works);
    }
}

#[test]
fn vectors_of_the_kernel_before() {
    let gpu = gpu_or_skip!();
    for kernel in kernels(&gpu) {
        let shape = Shape::new(1000, 3, 1056, 2).unwrap();
        let config = cuts(&gpu, kernel, &shape)[0].into();
        assert_follows_the_quantiser(&gpu, shape, TILED, config);
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
            on_device(&gpu, &problem, *config, FloatType::F32).assert_exact(&truth);
        }
    }
}

#[test]
fn refusals_on_a_device() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let shape = Shape::new(130, 2, 288, 1).unwrap();
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
