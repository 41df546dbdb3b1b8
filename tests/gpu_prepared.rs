//! Prepared calls on a real device: the bits of calls that are not prepared, refusals, graphs, threads.
//! Without a device, every test says why it is skipped.
#![cfg(feature = "cuda")]

mod device;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cudarc::driver::sys;
use device::{Gpu, Uploaded, alone, gpu_or_skip, upload};
use nvfp4_gemv::path::available;
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::{
    Activation, DenseVectors, Error, Output, Path, PreparedGemv, ScaleLayout, Shape, Vectors,
    gemv_on_device_with, path,
};

/// The system's allocator, which counts a thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator. The count needs no allocation of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The paths that this device runs with scales in the 128x4 layout.
fn paths(gpu: &Gpu, shape: &Shape) -> Vec<Path> {
    let operands = path::Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
    let runs = |path: &Path| available(*path, shape, &operands, &gpu.info.target()).is_ok();
    Path::ALL.into_iter().filter(runs).collect()
}

fn bits(gpu: &Gpu, y: &cudarc::driver::CudaSlice<f32>) -> Vec<u32> {
    let y = gpu.stream.clone_dtoh(y).unwrap();
    y.into_iter().map(f32::to_bits).collect()
}

/// One or two passes, one or many batches, more batches than a grid has.
fn shapes() -> [Shape; 5] {
    [
        (130, 1, 4096, 1),
        (200, 10, 1024, 2),
        (4096, 3, 4096, 1),
        (96, 16, 256, 3),
        (2, 1, 32, 70_000),
    ]
    .map(|(m, n, k, l)| Shape::new(m, n, k, l).unwrap())
}

#[test]
fn the_bits_of_a_call_that_is_not_prepared() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    for shape in shapes() {
        let problem = Problem::full_range(shape, 3);
        let layout = ScaleLayout::Tiled128x4;
        let uploaded = Uploaded::new(stream, &problem, layout, layout, shape.l() < 9);
        let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
        for path in paths(&gpu, &shape) {
            let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
            let output = Output::F32(y.as_view_mut());
            let launched =
                gemv_on_device_with(Some(path), None, stream, &shape, &weights, &vectors, output)
                    .unwrap();
            let expected = bits(&gpu, &y);

            let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
            let output = Output::F32(y.as_view_mut());
            let prepared =
                PreparedGemv::with(Some(path), None, stream, &shape, &weights, &vectors, output)
                    .unwrap();
            assert_eq!(prepared.launched(), launched);
            assert!(bits(&gpu, &y).iter().all(|&y| f32::from_bits(y).is_nan()));
            for _ in 0..3 {
                let poison = vec![f32::NAN; shape.outputs()];
                stream.memcpy_htod(&poison, &mut y).unwrap();
                let output = Output::F32(y.as_view_mut());
                prepared.launch(stream, &weights, &vectors, output).unwrap();
                assert_eq!(bits(&gpu, &y), expected, "{shape} on {path}");
            }
        }
    }
}

#[test]
fn vectors_may_change_between_launches_and_addresses_may_not() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let shape = Shape::gemv(64, 512, 1).unwrap();
    let problem = Problem::integers(shape, 4);
    let layout = ScaleLayout::Linear;
    let uploaded = Uploaded::new(stream, &problem, layout, layout, false);
    let weights = uploaded.weights();
    let mut x = upload(stream, &vec![0.0f32; shape.k()]);
    let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
    let prepared = {
        let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
        let output = Output::F32(y.as_view_mut());
        PreparedGemv::new(stream, &shape, &weights, &vectors, output).unwrap()
    };
    let mut results = Vec::new();
    for value in [1.0, 2.0] {
        stream.memcpy_htod(&vec![value; shape.k()], &mut x).unwrap();
        let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
        let output = Output::F32(y.as_view_mut());
        prepared.launch(stream, &weights, &vectors, output).unwrap();
        results.push(stream.clone_dtoh(&y).unwrap());
    }
    let doubled: Vec<f32> = results[0].iter().map(|y| 2.0 * y).collect();
    assert!(doubled.iter().any(|&y| y != 0.0));
    assert_eq!(results[1], doubled);

    let refused = |result: nvfp4_gemv::Result<()>| match result {
        Err(Error::NotAsPrepared { operand }) => operand,
        other => panic!("{other:?}"),
    };
    let other_x = upload(stream, &vec![0.0f32; shape.k()]);
    let mut other_y = upload(stream, &vec![f32::NAN; shape.outputs()]);
    let other_weights = Uploaded::new(stream, &problem, layout, layout, false);
    let (right, wrong) = (
        Vectors::F32(DenseVectors::new(x.as_view())),
        Vectors::F32(DenseVectors::new(other_x.as_view())),
    );
    let output = Output::F32(y.as_view_mut());
    let result = prepared.launch(stream, &weights, &wrong, output);
    assert_eq!(refused(result), "vectors");
    let output = Output::F32(y.as_view_mut());
    let result = prepared.launch(stream, &other_weights.weights(), &right, output);
    assert_eq!(refused(result), "weights");
    let output = Output::F32(other_y.as_view_mut());
    let result = prepared.launch(stream, &weights, &right, output);
    assert_eq!(refused(result), "outputs");
    let other_y = stream.clone_dtoh(&other_y).unwrap();
    assert!(other_y.iter().all(|y| y.is_nan()), "nothing was launched");
}

#[test]
fn a_launch_allocates_nothing() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let shape = Shape::new(130, 9, 1024, 2).unwrap();
    let problem = Problem::integers(shape, 6);
    let layout = ScaleLayout::Tiled128x4;
    let uploaded = Uploaded::new(stream, &problem, layout, layout, false);
    let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
    for path in paths(&gpu, &shape) {
        let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
        let output = Output::F32(y.as_view_mut());
        let prepared =
            PreparedGemv::with(Some(path), None, stream, &shape, &weights, &vectors, output)
                .unwrap();
        let before = ALLOCATIONS.get();
        for _ in 0..10 {
            let output = Output::F32(y.as_view_mut());
            prepared.launch(stream, &weights, &vectors, output).unwrap();
        }
        assert_eq!(ALLOCATIONS.get(), before, "{path}");
    }
}

#[test]
fn replayed_from_a_graph() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    // Inside a capture, cudarc's event tracking would wait for events of before it.
    // SAFETY: this context is used by this test on one stream, whose order needs no events.
    unsafe { stream.context().disable_event_tracking() };
    let shape = Shape::new(200, 10, 1024, 2).unwrap();
    let problem = Problem::integers(shape, 14);
    let truth = problem.reference().unwrap();
    let layout = ScaleLayout::Tiled128x4;
    let uploaded = Uploaded::new(stream, &problem, layout, layout, false);
    let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
    for path in paths(&gpu, &shape) {
        let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
        let prepared = {
            let output = Output::F32(y.as_view_mut());
            PreparedGemv::with(Some(path), None, stream, &shape, &weights, &vectors, output)
                .unwrap()
        };
        stream.synchronize().unwrap();
        let graph = {
            let _capturing = alone();
            stream
                .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
                .unwrap();
            let output = Output::F32(y.as_view_mut());
            prepared.launch(stream, &weights, &vectors, output).unwrap();
            stream
                .end_capture(
                    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
                )
                .unwrap()
                .expect("the capture holds the launches")
        };
        graph.launch().unwrap();
        let result = stream.clone_dtoh(&y).unwrap();
        let result: Vec<f64> = result.into_iter().map(f64::from).collect();
        assert_eq!(result, truth.y, "{path}");
    }
}

/// Threads prepare and launch at the same time: all need more shared memory than a kernel has unasked,
/// and none may see another's kernel half ready.
#[test]
fn prepared_by_several_threads() {
    let gpu = gpu_or_skip!();
    let shape = Shape::new(256, 8, 8192, 1).unwrap();
    let problem = Problem::integers(shape, 5);
    let truth = problem.reference().unwrap();
    let streams: Vec<_> = {
        let _alone = alone();
        (0..8)
            .map(|_| gpu.stream.context().new_stream().unwrap())
            .collect()
    };
    let paths = paths(&gpu, &shape);
    std::thread::scope(|scope| {
        for (i, stream) in streams.iter().enumerate() {
            let (problem, truth, paths) = (&problem, &truth, &paths);
            scope.spawn(move || {
                let layout = ScaleLayout::Tiled128x4;
                let uploaded = Uploaded::new(stream, problem, layout, layout, false);
                let (weights, vectors) = (uploaded.weights(), uploaded.vectors());
                for turn in 0..20 {
                    let path = paths[(i + turn) % paths.len()];
                    let mut y = upload(stream, &vec![f32::NAN; shape.outputs()]);
                    let output = Output::F32(y.as_view_mut());
                    let prepared = PreparedGemv::with(
                        Some(path),
                        None,
                        stream,
                        &shape,
                        &weights,
                        &vectors,
                        output,
                    )
                    .unwrap();
                    let output = Output::F32(y.as_view_mut());
                    prepared.launch(stream, &weights, &vectors, output).unwrap();
                    let y = stream.clone_dtoh(&y).unwrap();
                    let y: Vec<f64> = y.into_iter().map(f64::from).collect();
                    assert_eq!(y, truth.y, "{path}");
                }
            });
        }
    });
}

#[test]
fn nothing_to_compute_is_nothing_to_launch() {
    let gpu = gpu_or_skip!();
    let stream = &gpu.stream;
    let shape = Shape::new(0, 1, 64, 1).unwrap();
    let codes = upload(stream, &[0u8; 16]);
    let scales = upload(stream, &[0x38u8; 16]);
    let x = upload(stream, &[1.0f32; 64]);
    let mut y = upload(stream, &[f32::NAN; 1]);
    let weights = nvfp4_gemv::Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        ScaleLayout::Linear,
        nvfp4_gemv::GlobalScale::ONE,
    )
    .unwrap();
    let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
    let output = Output::F32(y.as_view_mut());
    let prepared = PreparedGemv::new(stream, &shape, &weights, &vectors, output).unwrap();
    let output = Output::F32(y.as_view_mut());
    prepared.launch(stream, &weights, &vectors, output).unwrap();
    assert!(stream.clone_dtoh(&y).unwrap()[0].is_nan());
}
