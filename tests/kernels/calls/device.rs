//! Safe calls on a GPU, whichever kernel runs: prepared and not, graphs, threads, chains, and what they refuse.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use cudarc::driver::{CudaContext, CudaSlice};
use half::f16;
use mimalloc::MiMalloc;
use nvfp4_gemv::kernel::Job;
use nvfp4_gemv::{
    Activation, Alignment, DenseVectors, Device, Error, GemvPath, GlobalScale, Kernel, Operands,
    Options, Output, PreparedGemvOnDevice, Refusal, Result, ScaleLayout, Shape, Strides, Vectors,
    Weights, Workspace, gemv_on_device, reference,
};
use nvfp4_gemv_cli::problem::Problem;

use crate::support::device::{Uploaded, into};
use crate::support::gpu::{Gpu, alone};
use crate::support::sized;

crate::trials! {
    host: prepared_calls_cross_threads;
    gpu:
        prepared_calls_give_the_bits_of_others,
        vectors_may_change_and_addresses_may_not,
        a_launch_allocates_nothing,
        replayed_from_a_graph,
        prepared_by_several_threads,
        nothing_to_compute_is_nothing_to_launch,
        strided_dense_vectors,
        bias_residual_and_strided_results,
        ids_change_between_replays,
        with_events_that_order_streams,
        layers_that_feed_each_other,
        refusals,
        workspaces_belong_to_streams,
        memory_of_another_context;
}

/// An allocator that counts a thread's allocations.
struct Counting;

thread_local! {
    pub(super) static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to another allocator. The count needs no allocation of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread may allocate when its variables are gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: this function's own contract.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TILED: ScaleLayout = ScaleLayout::Tiled128x4;

fn uploaded(gpu: &Gpu, problem: &Problem) -> Uploaded {
    Uploaded::new(gpu, problem, TILED, TILED, false)
}

const OPERANDS: Operands = Operands {
    activation: Activation::Nvfp4,
    weight_layout: TILED,
    vector_layout: TILED,
    digits: 1,
    alignment: Alignment::BEST,
    workspace: 0,
    select: false,
    matrices: 0,
    distinct: false,
    late: false,
    on_read: false,
};

/// A workspace for calls on the GPU's stream, with any kernel.
fn workspace(gpu: &Gpu, shape: &Shape) -> Workspace {
    let job = Job::new(shape, &OPERANDS, &gpu.info);
    Workspace::new(&gpu.stream, Kernel::most_workspace_bytes(&job)).unwrap()
}

/// Each kernel that takes such a problem on this GPU; at least one does.
fn kernels<'w>(gpu: &Gpu, shape: &Shape, workspace: &'w Workspace) -> Vec<Options<'w>> {
    let operands = OPERANDS.with_workspace(workspace.bytes());
    let job = Job::new(shape, &operands, &gpu.info);
    let takes = |kernel: &&Kernel| kernel.available(&job).is_ok();
    let kernels: Vec<_> = Kernel::ALL
        .iter()
        .filter(takes)
        .map(|&kernel| Options::new().kernel(kernel).workspace(workspace))
        .collect();
    assert!(!kernels.is_empty());
    kernels
}

fn poisoned(gpu: &Gpu, shape: &Shape) -> CudaSlice<f32> {
    gpu.upload(&vec![f32::NAN; shape.outputs()])
}

fn numbers(gpu: &Gpu, y: &CudaSlice<f32>) -> Vec<f64> {
    let y = gpu.stream.clone_dtoh(y).unwrap();
    y.into_iter().map(f64::from).collect()
}

fn bits(gpu: &Gpu, y: &CudaSlice<f32>) -> Vec<u32> {
    let y = gpu.stream.clone_dtoh(y).unwrap();
    y.into_iter().map(f32::to_bits).collect()
}

fn prepared_calls_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<nvfp4_gemv::raw::PreparedRawGemv>();
    crosses::<PreparedGemvOnDevice>();
    crosses::<nvfp4_gemv::tune::Tuned>();
}

/// One or two passes, one or many batches, more batches than a grid has.
fn prepared_calls_give_the_bits_of_others() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    for (m, n, k, l) in [
        (130, 1, 4096, 1),
        (200, 10, 1024, 2),
        (4096, 3, 4096, 1),
        (96, 16, 256, 3),
        (2, 1, 32, 70_000),
    ] {
        let shape = sized(m, n, k, l);
        let problem = Problem::full_range(shape, 3);
        let uploaded = Uploaded::new(&gpu, &problem, TILED, TILED, l < 9);
        let (w, x) = (uploaded.weights(), uploaded.vectors());
        let workspace = workspace(&gpu, &shape);
        for options in kernels(&gpu, &shape, &workspace) {
            let mut y = poisoned(&gpu, &shape);
            let choice = gemv_on_device(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            let expected = bits(&gpu, &y);

            let mut y = poisoned(&gpu, &shape);
            let prepared =
                PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            assert_eq!(*prepared.choice(), choice);
            assert!(numbers(&gpu, &y).iter().all(|y| y.is_nan()));
            for _ in 0..3 {
                let poison = vec![f32::NAN; shape.outputs()];
                stream.memcpy_htod(&poison, &mut y).unwrap();
                prepared.run(stream, &w, &x, into(&mut y)).unwrap();
                assert_eq!(bits(&gpu, &y), expected, "{shape} {choice:?}");
            }
        }
    }
}

fn vectors_may_change_and_addresses_may_not() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = Shape::matrix(64, 512).unwrap();
    let problem = Problem::integers(shape, 4);
    let uploads = [(); 2].map(|()| uploaded(&gpu, &problem));
    let [weights, other_weights] = [0, 1].map(|i| uploads[i].weights());
    let mut x = gpu.upload(&vec![0.0f32; shape.k()]);
    let mut y = poisoned(&gpu, &shape);
    let prepared = {
        let vectors = Vectors::on_device(x.as_view());
        let options = Options::new();
        let (w, x) = (&weights, &vectors);
        PreparedGemvOnDevice::new(stream, &shape, w, x, into(&mut y), &options).unwrap()
    };
    let mut results = Vec::new();
    for value in [1.0, 2.0] {
        stream.memcpy_htod(&vec![value; shape.k()], &mut x).unwrap();
        let x = Vectors::on_device(x.as_view());
        prepared.run(stream, &weights, &x, into(&mut y)).unwrap();
        results.push(numbers(&gpu, &y));
    }
    let doubled: Vec<f64> = results[0].iter().map(|y| 2.0 * y).collect();
    assert!(doubled.iter().any(|&y| y != 0.0));
    assert_eq!(results[1], doubled);

    let refused = |result: Result<()>| match result {
        Err(Error::NotAsPrepared { operand }) => operand,
        other => panic!("{other:?}"),
    };
    let other_x = gpu.upload(&vec![0.0f32; shape.k()]);
    let mut other_y = poisoned(&gpu, &shape);
    let [right, wrong] = [&x, &other_x].map(|x| Vectors::on_device(x.as_view()));
    let result = prepared.run(stream, &weights, &wrong, into(&mut y));
    assert_eq!(refused(result), "vectors");
    let result = prepared.run(stream, &other_weights, &right, into(&mut y));
    assert_eq!(refused(result), "weights");
    let result = prepared.run(stream, &weights, &right, into(&mut other_y));
    assert_eq!(refused(result), "outputs");
    let launched = numbers(&gpu, &other_y).iter().any(|y| !y.is_nan());
    assert!(!launched);
}

fn a_launch_allocates_nothing() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    for (n, l) in [(9, 2), (1, 1)] {
        let shape = sized(130, n, 1024, l);
        let problem = Problem::integers(shape, 6);
        let uploaded = uploaded(&gpu, &problem);
        let (w, x) = (uploaded.weights(), uploaded.vectors());
        let workspace = workspace(&gpu, &shape);
        for options in kernels(&gpu, &shape, &workspace) {
            let mut y = poisoned(&gpu, &shape);
            let prepared =
                PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            let before = ALLOCATIONS.get();
            for _ in 0..10 {
                prepared.run(stream, &w, &x, into(&mut y)).unwrap();
            }
            assert_eq!(ALLOCATIONS.get(), before, "{:?}", prepared.choice());
        }
    }
}

/// Calls and prepared launches, each in a graph of its own.
fn replayed_from_a_graph() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = sized(200, 10, 1024, 2);
    let problem = Problem::integers(shape, 14);
    let truth = problem.reference().unwrap();
    let uploaded = uploaded(&gpu, &problem);
    let (w, x) = (uploaded.weights(), uploaded.vectors());
    let workspace = workspace(&gpu, &shape);
    for options in kernels(&gpu, &shape, &workspace) {
        for prepare in [false, true] {
            let mut y = poisoned(&gpu, &shape);
            let prepared =
                PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
            let graph = gpu.capture(|| {
                let y = into(&mut y);
                match prepare {
                    true => prepared.run(stream, &w, &x, y),
                    false => gemv_on_device(stream, &shape, &w, &x, y, &options).map(drop),
                }
                .unwrap();
            });
            for _ in 0..10 {
                let poison = vec![f32::NAN; shape.outputs()];
                stream.memcpy_htod(&poison, &mut y).unwrap();
                graph.launch().unwrap();
                assert_eq!(numbers(&gpu, &y), truth.y, "{:?}", prepared.choice());
            }
        }
    }
}

/// Threads prepare and launch at the same time: all need more shared memory than a kernel has unasked, and none may
/// see another's kernel half ready.
fn prepared_by_several_threads() {
    let gpu = Gpu::first();
    let shape = sized(256, 8, 8192, 1);
    let problem = Problem::integers(shape, 5);
    let truth = problem.reference().unwrap();
    let context = gpu.stream.context();
    let gpus: Vec<Gpu> = (0..8).map(|_| Gpu::new_stream(context)).collect();
    std::thread::scope(|scope| {
        for (i, gpu) in gpus.iter().enumerate() {
            let (problem, truth) = (&problem, &truth);
            scope.spawn(move || {
                let stream = &gpu.stream;
                stream.context().bind_to_thread().unwrap();
                let uploaded = uploaded(gpu, problem);
                let (w, x) = (uploaded.weights(), uploaded.vectors());
                let workspace = workspace(gpu, &shape);
                let all = kernels(gpu, &shape, &workspace);
                for turn in 0..20 {
                    let options = &all[(i + turn) % all.len()];
                    let mut y = poisoned(gpu, &shape);
                    let prepared =
                        PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), options)
                            .unwrap();
                    prepared.run(stream, &w, &x, into(&mut y)).unwrap();
                    assert_eq!(numbers(gpu, &y), truth.y, "{:?}", prepared.choice());
                }
            });
        }
    });
}

fn nothing_to_compute_is_nothing_to_launch() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (codes, scales) = (gpu.upload(&[0u8; 64]), gpu.upload(&[0x38u8; 16]));
    let ones = gpu.upload(&[1.0f32; 64]);
    let mut y = gpu.upload(&[f32::NAN; 1]);
    let options = Options::new();
    for (m, n, l) in [(0, 1, 1), (2, 0, 1), (2, 1, 0)] {
        let shape = sized(m, n, 64, l);
        let w = linear_weights(&shape, &codes, 0, &scales, 0).unwrap();
        let x = ones.slice(..shape.vector_elements());
        let x = Vectors::F32(DenseVectors::new(x));
        gemv_on_device(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
        let prepared =
            PreparedGemvOnDevice::new(stream, &shape, &w, &x, into(&mut y), &options).unwrap();
        prepared.run(stream, &w, &x, into(&mut y)).unwrap();
        assert!(numbers(&gpu, &y)[0].is_nan());
    }
}

/// Weights so many bytes behind the buffers' begin.
fn linear_weights<'a>(
    shape: &Shape,
    codes: &'a CudaSlice<u8>,
    codes_at: usize,
    scales: &'a CudaSlice<u8>,
    scales_at: usize,
) -> Result<Weights<'a, nvfp4_gemv::Device>> {
    let of = |from: usize, bytes: usize| from..from + bytes;
    let codes = codes.slice(of(codes_at, shape.weight_code_bytes()));
    let bytes = shape.weight_scale_bytes(ScaleLayout::Linear);
    let scales = scales.slice(of(scales_at, bytes));
    Weights::on_device(shape, codes, scales, ScaleLayout::Linear, GlobalScale::ONE)
}

/// Several vectors of several batches.
fn several() -> Shape {
    sized(50, 3, 48, 2)
}

fn strided_dense_vectors() {
    let gpu = Gpu::first();
    let shape = several();
    let problem = Problem::integers(shape, 9);
    let truth = problem.reference().unwrap();
    let dense = problem.decoded_vectors().unwrap();
    let strides = Strides {
        row: 64,
        batch: 256,
    };
    let mut spread = vec![f16::NAN; 2 * 256];
    for (i, row) in dense.chunks(48).enumerate() {
        for (k, &x) in row.iter().enumerate() {
            spread[i / 3 * strides.batch + i % 3 * strides.row + k] = f16::from_f32(x);
        }
    }
    let spread = gpu.upload(&spread);
    let uploaded = uploaded(&gpu, &problem);
    let vectors = Vectors::F16(DenseVectors::new(spread.as_view()).with_strides(strides));
    // Past the end, NaN stays.
    let mut y = gpu.upload(&vec![f16::NAN; shape.outputs() + 64]);
    let output = Output::on_device(y.slice_mut(..shape.outputs()));
    let (stream, weights) = (&gpu.stream, uploaded.weights());
    gemv_on_device(stream, &shape, &weights, &vectors, output, &Options::new()).unwrap();
    let mut y = stream.clone_dtoh(&y).unwrap();
    assert!(y.split_off(shape.outputs()).iter().all(|y| y.is_nan()));
    assert!(y.iter().map(|y| y.to_f64()).eq(truth.y));
}

/// Graphs of a call and of a prepared call are captured once. Then ids change: ids of matrices give the results of
/// these matrices, -1 gives zeros, other ids give NaN.
fn ids_change_between_replays() {
    let gpu = Gpu::first();
    let of = |l| sized(24, 2, 64, l);
    let (one, shape) = (of(1), of(5));
    let problem = Problem::integers(of(3), 9);
    let uploaded = uploaded(&gpu, &problem);
    let x = |i: usize| f16::from_f32((i % 7) as f32 - 3.0);
    let x: Vec<f16> = (0..shape.vector_elements()).map(x).collect();
    let (mut ids_there, x_there) = (gpu.upload(&[0i32; 5]), gpu.upload(&x));
    let mut results = [poisoned(&gpu, &shape), poisoned(&gpu, &shape)];
    let graphs: Vec<_> = std::iter::zip([false, true], &mut results)
        .map(|(prepare, y)| {
            let (all, stream, options) = (uploaded.weights(), &gpu.stream, Options::new());
            let weights = all.select_on_device(ids_there.as_view());
            let vectors = Vectors::on_device(x_there.as_view());
            let prepared =
                PreparedGemvOnDevice::new(stream, &shape, &weights, &vectors, into(y), &options)
                    .unwrap();
            gpu.capture(|| {
                match prepare {
                    true => prepared.run(stream, &weights, &vectors, into(y)),
                    false => gemv_on_device(stream, &shape, &weights, &vectors, into(y), &options)
                        .map(drop),
                }
                .unwrap();
            })
        })
        .collect();
    let matrices = problem.weights(TILED).unwrap();
    let matrices = matrices.view().unwrap();
    let (of_batch, of_results) = (x.len() / 5, one.outputs());
    for ids in [
        [0, 1, 2, 0, 1],
        [2, 2, 2, 2, 2],
        [1, -1, 0, 3, 2],
        [i32::MAX, i32::MIN, 0, 1, 0],
    ] {
        gpu.stream.memcpy_htod(&ids, &mut ids_there).unwrap();
        for (graph, y) in std::iter::zip(&graphs, &results) {
            graph.launch().unwrap();
            let y = numbers(&gpu, y);
            for (batch, id) in ids.into_iter().enumerate() {
                let y = &y[batch * of_results..][..of_results];
                let only = [id];
                if id == -1 {
                    assert!(y.iter().all(|&y| y == 0.0), "{ids:?} {batch}: {y:?}");
                    continue;
                }
                let Ok(matrix) = matrices.select(&only) else {
                    assert!(y.iter().all(|y| y.is_nan()), "{ids:?} {batch}: {y:?}");
                    continue;
                };
                let x = Vectors::of(&x[batch * of_batch..][..of_batch]);
                let truth = reference::gemv(&one, &matrix, &x).unwrap();
                assert_eq!(y, truth.y, "{ids:?} {batch}");
            }
        }
    }
}

/// By views: a bias of each batch, a residual apart or at the results' place, and numbers between results that stay.
fn bias_residual_and_strided_results() {
    let gpu = Gpu::first();
    let shape = several();
    let (m, n) = (shape.m(), shape.n());
    let problem = Problem::integers(shape, 9);
    let truth = problem.reference().unwrap();
    let uploaded = uploaded(&gpu, &problem);
    let (stream, weights) = (&gpu.stream, uploaded.weights());
    let strides = Strides {
        row: 64,
        batch: 256,
    };
    let at = |i: usize| i / (n * m) * strides.batch + i / m % n * strides.row + i % m;
    let count = at(shape.outputs() - 1) + 1;
    let bias: Vec<f32> = (0..2 * m).map(|i| (i % 5) as f32).collect();
    let residual: Vec<f32> = (0..count).map(|i| (i % 11) as f32 - 5.0).collect();
    let (of_rows, r) = (gpu.upload(&bias), gpu.upload(&residual));
    fn to<'a>(
        (of_rows, r): (&'a CudaSlice<f32>, &'a CudaSlice<f32>),
        y: &'a mut CudaSlice<f32>,
        (strides, in_place): (Strides, bool),
    ) -> Output<'a, Device> {
        let output = Output::on_device(y.as_view_mut())
            .with_strides(strides)
            .with_bias_on_device(of_rows.as_view());
        match in_place {
            true => output.accumulating(),
            false => output.adding_on_device(r.as_view()),
        }
    }
    for in_place in [false, true] {
        let before = if in_place {
            residual.clone()
        } else {
            vec![77.0; count]
        };
        let mut expected = before.clone();
        for (i, y) in truth.y.iter().enumerate() {
            let added = bias[i / (n * m) * m + i % m] + residual[at(i)];
            expected[at(i)] = (*y + f64::from(added)) as f32;
        }
        let call = |prepared: bool| {
            let mut y = gpu.upload(&before);
            let (vectors, options) = (uploaded.vectors(), Options::new());
            let (x, how) = (&vectors, (strides, in_place));
            if prepared {
                let output = to((&of_rows, &r), &mut y, how);
                let gemv = PreparedGemvOnDevice::new(stream, &shape, &weights, x, output, &options);
                let output = to((&of_rows, &r), &mut y, how);
                gemv.unwrap().run(stream, &weights, x, output).unwrap();
            } else {
                let output = to((&of_rows, &r), &mut y, how);
                gemv_on_device(stream, &shape, &weights, x, output, &options).unwrap();
            }
            stream.clone_dtoh(&y).unwrap()
        };
        assert!(
            call(false) == expected && call(true) == expected,
            "{in_place}"
        );
    }
}

/// Default events of cudarc: they order the use of a buffer by several streams.
fn with_events_that_order_streams() {
    let context = CudaContext::new(0).unwrap();
    let streams: Vec<_> = {
        let _alone = alone();
        (0..2).map(|_| context.new_stream().unwrap()).collect()
    };
    let shape = Shape::matrix(2048, 2048).unwrap();
    let (codes, scales) = (vec![0x22u8; 2048 * 1024], vec![0x38u8; 2048 * 128]);
    let codes = streams[0].clone_htod(&codes).unwrap();
    let scales = streams[0].clone_htod(&scales).unwrap();
    let weights = linear_weights(&shape, &codes, 0, &scales, 0).unwrap();
    let mut x = streams[0].clone_htod(&vec![1.0f32; 2048]).unwrap();
    let mut y = streams[0].alloc_zeros::<f32>(2048).unwrap();
    let options = Options::new();
    // Each layer multiplies by 2048, on the other stream.
    for layer in 0..6 {
        let stream = &streams[layer % 2];
        let vectors = Vectors::on_device(x.as_view());
        gemv_on_device(stream, &shape, &weights, &vectors, into(&mut y), &options).unwrap();
        std::mem::swap(&mut x, &mut y);
    }
    let x = streams[1].clone_dtoh(&x).unwrap();
    assert_eq!(x, [2048f32.powi(6); 2048]);
}

/// Each layer reads the results of the layer before: chained launches give the bits of other launches.
fn layers_that_feed_each_other() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = Shape::matrix(1024, 1024).unwrap();
    let mut codes = vec![0; shape.weight_code_bytes()];
    fastrand::Rng::with_seed(17).fill(&mut codes);
    let (codes, scales) = (gpu.upload(&codes), gpu.upload(&[0x38u8; 1024 * 64]));
    // Sums of 1024 random codes are about 93 in size: numbers stay as large as they are.
    let (global, linear) = (GlobalScale::Divisor(93.0), ScaleLayout::Linear);
    let (codes, scales) = (codes.as_view(), scales.as_view());
    let weights = Weights::on_device(&shape, codes, scales, linear, global).unwrap();
    let x: Vec<f16> = (0..1024)
        .map(|i| f16::from_f32((i % 7) as f32 - 3.0))
        .collect();
    let run = |options: &Options<'_>| -> Vec<u16> {
        let mut x = gpu.upload(&x);
        let mut y = gpu.upload(&vec![f16::NAN; 1024]);
        for _ in 0..32 {
            let vectors = Vectors::on_device(x.as_view());
            let output = Output::on_device(y.as_view_mut());
            gemv_on_device(stream, &shape, &weights, &vectors, output, options).unwrap();
            std::mem::swap(&mut x, &mut y);
        }
        let x = stream.clone_dtoh(&x).unwrap();
        assert!(x.iter().all(|x| x.is_finite()) && x.iter().any(|x| x.to_f32().abs() > 0.1));
        x.into_iter().map(f16::to_bits).collect()
    };
    for kernel in [Kernel::Stream, Kernel::Direct] {
        let operands = Operands::new(Activation::F16, linear);
        let job = nvfp4_gemv::kernel::Job::new(&shape, &operands, &gpu.info).chained(true);
        let options = Options::new().config(kernel.default_config(&job).unwrap());
        let expected = run(&options);
        for _ in 0..20 {
            // SAFETY: the weights were copied to the device, and no kernel writes them.
            let chained = unsafe { options.chained() };
            assert!(run(&chained) == expected, "{kernel}");
        }
    }
}

/// Refusals of short or unaligned operands, and of paths, kernels and configs: nothing is written.
fn refusals() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = sized(8, 2, 64, 1);
    let codes = gpu.upload(&vec![0u8; shape.weight_code_bytes() + 16]);
    let scales = gpu.upload(&[0x38u8; 8 * 4 + 16]);
    let x = gpu.upload(&vec![f16::ONE; 2 * 64 + 8]);
    let mut y = gpu.upload(&[f32::NAN; 16]);
    let mut call = |options: &Options<'_>, codes_at, x_at: usize, outputs: usize| {
        let weights = linear_weights(&shape, &codes, codes_at, &scales, 0)?;
        let vectors = Vectors::F16(DenseVectors::new(x.slice(x_at..x_at + 2 * 64)));
        let output = Output::on_device(y.slice_mut(..outputs));
        gemv_on_device(stream, &shape, &weights, &vectors, output, options)
    };
    let any = Options::new().without_environment();
    assert!(matches!(
        call(&any.path(GemvPath::Cpu), 0, 0, 16),
        Err(Error::PathUnavailable {
            path: GemvPath::Cpu,
            reason: Refusal::OperandsOnDevice
        })
    ));
    if gpu.info.compute_capability.0 != 10 {
        let error = call(&any.path(GemvPath::TensorCore), 0, 0, 16).unwrap_err();
        assert!(error.to_string().contains("10.x"), "{error}");
    }
    let misaligned = |error| match error {
        Err(Error::Misaligned { operand, align, .. }) => (operand, align),
        other => panic!("{other:?}"),
    };
    assert_eq!(misaligned(call(&any, 4, 0, 16)), ("weight codes", 8));
    assert_eq!(misaligned(call(&any, 0, 4, 16)), ("vectors", 16));
    assert!(matches!(
        call(&any, 0, 0, 15),
        Err(Error::BufferTooShort {
            operand: "output",
            ..
        })
    ));
    let wide = nvfp4_gemv::kernel::DirectConfig {
        blocks_per_load: 2,
        warps: 4,
        k_split: 1,
        ..nvfp4_gemv::kernel::DirectConfig::DEFAULT
    };
    let wide = any.config(nvfp4_gemv::Config::from(wide));
    assert!(matches!(call(&wide, 8, 0, 16), Err(Error::Config { .. })));
    // A kernel that is asked for computes where it says that it can, and is refused with its own reason elsewhere.
    let operands = Operands::new(Activation::F16, ScaleLayout::Linear);
    let job = Job::new(&shape, &operands, &gpu.info);
    for &kernel in Kernel::ALL {
        match (kernel.available(&job), call(&any.kernel(kernel), 0, 0, 16)) {
            (Ok(()), Ok(choice)) => {
                assert_eq!(choice.config.map(|config| config.kernel()), Some(kernel));
            }
            (Err(says), Err(Error::KernelUnavailable { kernel: of, reason })) => {
                assert_eq!((of, reason), (kernel.name(), says));
            }
            other => panic!("{kernel}: {other:?}"),
        }
    }
    let [mut launched, mut refused] = [0, 0];
    for (options, codes_at) in [(&wide, 0), (&any, 8), (&any.kernel(Kernel::Ring), 0)] {
        match call(options, codes_at, 0, 16) {
            Ok(_) => launched += 1,
            Err(Error::KernelUnavailable {
                reason: Refusal::RowLength { .. } | Refusal::ComputeCapability { .. },
                ..
            }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((launched, refused), (2, 1));
}

/// A workspace is for calls on its stream; a prepared call keeps its memory.
fn workspaces_belong_to_streams() {
    let gpu = Gpu::first();
    let other = Gpu::new_stream(gpu.stream.context());
    let shape = sized(200, 10, 1024, 2);
    let problem = Problem::integers(shape, 14);
    let truth = problem.reference().unwrap();
    let uploaded = uploaded(&gpu, &problem);
    let (w, x) = (uploaded.weights(), uploaded.vectors());
    let workspace = workspace(&gpu, &shape);
    for options in kernels(&gpu, &shape, &workspace) {
        let mut y = poisoned(&gpu, &shape);
        let refused = gemv_on_device(&other.stream, &shape, &w, &x, into(&mut y), &options);
        assert_eq!(refused.unwrap_err(), Error::WorkspaceOfAnotherStream);
        // Memory that nobody else has, gone but for the prepared call.
        let memory = gpu
            .stream
            .clone_htod(&vec![0xffu8; workspace.bytes().max(1) as usize]);
        let own = Workspace::of_memory(memory.unwrap()).unwrap();
        let options = options.workspace(&own);
        let prepared =
            PreparedGemvOnDevice::new(&gpu.stream, &shape, &w, &x, into(&mut y), &options).unwrap();
        drop(own);
        let refused = prepared.run(&other.stream, &w, &x, into(&mut y));
        assert_eq!(refused.unwrap_err(), Error::WorkspaceOfAnotherStream);
        assert!(numbers(&gpu, &y).iter().all(|y| y.is_nan()));
        prepared.run(&gpu.stream, &w, &x, into(&mut y)).unwrap();
        assert_eq!(numbers(&gpu, &y), truth.y, "{:?}", prepared.choice());
    }
}

fn memory_of_another_context() {
    let (gpu, other) = (Gpu::first(), Gpu::in_another_context());
    let shape = Shape::matrix(64, 512).unwrap();
    let problem = Problem::integers(shape, 4);
    let (here, there) = (uploaded(&gpu, &problem), uploaded(&other, &problem));
    let mut y = poisoned(&gpu, &shape);
    let options = Options::new();
    let mut call = |weights: &Uploaded, vectors: &Uploaded| {
        let (w, x) = (weights.weights(), vectors.vectors());
        gemv_on_device(&gpu.stream, &shape, &w, &x, into(&mut y), &options).map(drop)
    };
    let refused = |result| match result {
        Err(Error::WrongContext { operand }) => operand,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(call(&there, &here)), "weight codes");
    assert_eq!(refused(call(&here, &there)), "vector codes");
    assert_eq!(call(&here, &here), Ok(()));
    let prepared = {
        let (w, x) = (here.weights(), here.vectors());
        PreparedGemvOnDevice::new(&gpu.stream, &shape, &w, &x, into(&mut y), &options).unwrap()
    };
    let (w, x) = (here.weights(), here.vectors());
    let elsewhere = prepared.run(&other.stream, &w, &x, into(&mut y));
    assert_eq!(refused(elsewhere), "prepared call");
}
