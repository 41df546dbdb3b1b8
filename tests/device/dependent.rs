//! Programmatic dependent launches: the bits of launches that wait, and no read or store too early.

use cudarc::driver::{CudaSlice, sys};
use half::bf16;
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::quantize::quantize_vectors;
use nvfp4_gemv::reference::{error_bound, gemv};
use nvfp4_gemv::{
    Activation, Config, DenseVectors, FloatType, Output, PreparedWeights, QuantizedVectors,
    ScaleLayout, Shape, Vectors,
};

use super::operands::call;
use super::{Gpu, OnDevice, Uploaded, alone, upload};

/// Launches back to back, each reading weights before the one before has ended, captured into a graph
/// that is replayed a thousand times. They give the bits of launches that wait. Every output is written in
/// each of four rounds: a store that does not wait for the previous grid is found out. The device is
/// [`without_events`](Gpu::without_events).
pub(crate) fn assert_dependent_in_a_graph(gpu: &Gpu, works: &[OnDevice]) {
    let stream = &gpu.stream;
    let poisoned = |work: &OnDevice| upload(stream, &vec![f32::NAN; work.shape.outputs()]);
    let bits = |y: &CudaSlice<f32>| -> Vec<u32> {
        let y = stream.clone_dtoh(y).unwrap();
        y.into_iter().map(f32::to_bits).collect()
    };
    let mut isolated = Vec::new();
    let mut dependent = Vec::new();
    for work in works {
        let mut y = poisoned(work);
        let config = work.enqueue(Output::F32(y.as_view_mut())).unwrap().config;
        assert!(!config.is_dependent());
        isolated.push(bits(&y));
        dependent.push(config.with_dependent(true));
    }
    let mut outputs: Vec<_> = works.iter().map(poisoned).collect();
    let works: Vec<_> = works.iter().zip(dependent).collect();
    stream.synchronize().unwrap();
    let capturing = alone();
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    for _ in 0..4 {
        for ((work, config), y) in works.iter().zip(&mut outputs) {
            let output = Output::F32(y.as_view_mut());
            work.enqueue_as(Some(*config), output).unwrap();
        }
    }
    let graph = stream
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .unwrap()
        .expect("the capture holds the launches");
    drop(capturing);
    for replay in 0..1000 {
        graph.launch().unwrap();
        if replay % 100 != 99 {
            continue;
        }
        for (i, y) in outputs.iter_mut().enumerate() {
            let (work, config) = &works[i];
            assert_eq!(bits(y), isolated[i], "{} {config:?}", work.shape);
            let poison = vec![f32::NAN; work.shape.outputs()];
            stream.memcpy_htod(&poison, y).unwrap();
        }
    }
}

/// bf16 vectors quantised on the device by the kernel before, which the dependent launch overlaps with,
/// times weights whose linear scales were laid out anew on the device. Every round has other vectors.
pub(crate) fn assert_follows_the_quantiser(
    gpu: &Gpu,
    shape: Shape,
    layout: ScaleLayout,
    config: Config,
) {
    let stream = &gpu.stream;
    let problem = Problem::full_range(shape, 31);
    let linear = ScaleLayout::Linear;
    let uploaded = Uploaded::new(stream, &problem, linear, linear, false);
    let prepared = PreparedWeights::new(stream, uploaded.weights()).unwrap();
    let mut quantized = QuantizedVectors::new(stream, &shape, layout).unwrap();
    let weights = match layout {
        ScaleLayout::Linear => uploaded.weights(),
        ScaleLayout::Tiled128x4 => prepared.weights().unwrap(),
    };
    let config = config.with_dependent(true);
    let count = shape.l() * shape.n();
    for round in 0..50 {
        let mut rng = fastrand::Rng::with_seed(round);
        let x: Vec<bf16> = (0..count * shape.k())
            .map(|_| bf16::from_f32(rng.f32() * 2.0 - 1.0))
            .collect();
        let x_device = upload(stream, &x);
        let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
        let vectors = Vectors::Bf16(DenseVectors::new(x_device.as_view()));
        quantized.quantize(stream, &vectors).unwrap();
        let (vectors, output) = (quantized.vectors(), Output::F32(y.as_view_mut()));
        // The copies of x and y end after the kernel that laid out the scales.
        call(
            None,
            Some(config),
            stream,
            &shape,
            &weights,
            &vectors,
            output,
        )
        .unwrap();
        let y = stream.clone_dtoh(&y).unwrap();
        if round % 10 != 0 {
            continue;
        }
        let host = quantize_vectors(&x, count, shape.k()).unwrap();
        let w = problem.weights(linear).unwrap();
        let truth = gemv(&shape, &w.view().unwrap(), &host.vectors()).unwrap();
        let roundings = config.roundings(&shape, Activation::Nvfp4);
        for (i, y) in y.into_iter().enumerate() {
            let (true_y, magnitude) = (truth.y[i], truth.magnitude[i]);
            let bound = error_bound(true_y, magnitude, roundings, FloatType::F32);
            assert!(
                (f64::from(y) - true_y).abs() <= bound,
                "{config:?} round {round} element {i}: {y}, true {true_y}"
            );
        }
    }
}
