//! The functions on a CUDA device, as C calls them. Where there is none, each trial is ignored, with the reason. `--record
//! FILE` records the run: see tests/recorded/README.md.

use std::ffi::CStr;
use std::process::ExitCode;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use nvfp4_gemv::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, sys};
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{Experts, Linear, LinearOnDevice, Mlp, Output, ScaleLayout, TESTED, Vectors, raw};
use nvfp4_gemv_capi::*;
use nvfp4_gemv_trials::{Program, trials};

fn main() -> ExitCode {
    let no_gpu = || Some(raw::device_count().err()?.to_string());
    let program = Program {
        name: "capi",
        gpus: || raw::gpu(0).map(|gpu| gpu.name).into_iter().collect(),
        sources: TESTED,
        one_by_one: true,
    };
    program.run(trials![
        no_gpu;
        a_call_by_address_gives_the_bits_of_rust,
        experts_give_the_bits_of_rust_and_are_near_the_cpu,
        ids_may_change_between_replays_of_a_graph,
        a_context_of_the_callers_stays_the_callers,
        what_experts_do_not_take_is_refused,
    ])
}

fn last() -> String {
    // SAFETY: the text ends with a zero, and is copied before another call.
    let text = unsafe { CStr::from_ptr(nvfp4_last_error()) };
    text.to_str().unwrap().to_owned()
}

#[track_caller]
fn well(status: nvfp4_status) {
    assert_eq!(status, NVFP4_OK, "{}", last());
}

/// A stream whose context cudarc has, and is the primary one; no events, as in C.
fn stream() -> Arc<CudaStream> {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: each trial uses one stream, or waits in between.
    unsafe { context.disable_event_tracking() };
    context.new_stream().unwrap()
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() - 0.5).collect()
}

fn address<T>(of: &CudaSlice<T>) -> u64 {
    of.device_ptr(of.stream()).0
}

/// Results as f32, which holds each of the three types, in bits.
fn bits<T: nvfp4_gemv::Element + DeviceRepr>(
    stream: &Arc<CudaStream>,
    y: &CudaSlice<T>,
) -> Vec<u32> {
    let y = stream.clone_dtoh(y).unwrap();
    stream.synchronize().unwrap();
    y.into_iter().map(|y| y.to_f32().to_bits()).collect()
}

fn dense(element: u32, values: u64, row_stride: usize) -> nvfp4_device_vectors {
    nvfp4_device_vectors {
        element,
        values,
        row_stride,
        scales: 0,
        scale_row_stride: 0,
        layout: 99, // not looked at
        global_kind: 99,
        global: 0.0,
        vector_alpha: 0,
    }
}

fn results(element: u32, values: u64) -> nvfp4_device_output {
    nvfp4_device_output {
        element,
        values,
        row_stride: 0,
        bias: 0,
        residual: 0,
    }
}

fn gpu() -> *mut nvfp4_gpu {
    let mut gpu = null_mut();
    // SAFETY: there is room.
    well(unsafe { nvfp4_gpu_of_device(0, &mut gpu) });
    gpu
}

fn a_call_by_address_gives_the_bits_of_rust() {
    let (stream, gpu) = (stream(), gpu());
    let (rows, k) = (384, 1024);
    let layer = Linear::from_dense(&numbers(rows * k, 1), rows, k).unwrap();
    let (codes, scales) = (layer.weights().codes(), layer.weights().scales());
    let [codes, scales] = [codes, scales].map(|of| Arc::new(stream.clone_htod(of).unwrap()));
    let global = layer.weights().global();
    let rust = LinearOnDevice::new(
        rows,
        k,
        codes.clone(),
        scales.clone(),
        ScaleLayout::Linear,
        global,
    );
    let rust = rust.unwrap();
    let weights = nvfp4_device_weights {
        rows,
        k,
        codes: address(&codes),
        scales: address(&scales),
        layout: NVFP4_LINEAR,
        global_kind: NVFP4_MULTIPLIER,
        global: global.multiplier() as f32,
        row_alpha: 0,
    };
    for n in [1, 3, 16, 40] {
        let x = numbers(n * k, n as u64);
        let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
        let (x, halves) = (
            stream.clone_htod(&x).unwrap(),
            stream.clone_htod(&halves).unwrap(),
        );
        for (element, at, vectors) in [
            (NVFP4_F32, address(&x), Vectors::on_device(x.as_view())),
            (
                NVFP4_F16,
                address(&halves),
                Vectors::on_device(halves.as_view()),
            ),
        ] {
            let mut y = stream.clone_htod(&vec![bf16::NAN; n * rows]).unwrap();
            let output = Output::on_device(y.as_view_mut());
            rust.forward(&stream, &vectors, n, output).unwrap();
            let expected = bits(&stream, &y);
            let y = stream.clone_htod(&vec![bf16::NAN; n * rows]).unwrap();
            stream.synchronize().unwrap();
            let mut call = null_mut();
            let (x, output) = (dense(element, at, 0), results(NVFP4_BF16, address(&y)));
            // SAFETY: all is there until the stream has been waited for, and freed once.
            unsafe {
                let none = null();
                well(nvfp4_call_prepare(
                    gpu, &weights, &x, n, &output, none, 0, &mut call,
                ));
                well(nvfp4_call_launch(call, stream.cu_stream().cast()));
                assert_eq!(bits(&stream, &y), expected, "{element} {n}");
                nvfp4_call_free(call);
            }
        }
    }
    // SAFETY: freed once.
    unsafe { nvfp4_gpu_free(gpu) };
}

const HIDDEN: usize = 512;
const BETWEEN: usize = 768;
const COUNT: usize = 8;

/// Experts of Rust's, and the same of C's.
fn experts() -> (Experts, *mut nvfp4_experts) {
    let layer = |rows: usize, k: usize, seed: u64| {
        Linear::from_dense(&numbers(rows * k, seed), rows, k).unwrap()
    };
    let expert = |seed: u64| {
        [
            layer(BETWEEN, HIDDEN, seed),
            layer(BETWEEN, HIDDEN, 100 + seed),
            layer(HIDDEN, BETWEEN, 200 + seed),
        ]
    };
    let all: Vec<_> = (0..COUNT as u64).map(expert).collect();
    let handle = |layer: &Linear| {
        let (weights, mut linear) = (layer.weights(), null_mut());
        let parts = nvfp4_weights {
            rows: layer.rows(),
            k: layer.k(),
            codes: weights.codes().as_ptr(),
            codes_bytes: weights.codes().len(),
            scales: weights.scales().as_ptr(),
            scales_bytes: weights.scales().len(),
            layout: NVFP4_LINEAR,
            global_kind: NVFP4_MULTIPLIER,
            global: weights.global().multiplier() as f32,
            row_alpha: null(),
            bias: null(),
        };
        // SAFETY: all is there.
        well(unsafe { nvfp4_linear_from_parts(&parts, &mut linear) });
        linear
    };
    let mut mlps = Vec::new();
    for layers in &all {
        let (handles, mut mlp) = (layers.each_ref().map(handle), null_mut());
        // SAFETY: all is there, and freed once.
        unsafe {
            well(nvfp4_mlp_new(handles[0], handles[1], handles[2], &mut mlp));
            handles.into_iter().for_each(|of| nvfp4_linear_free(of));
        }
        mlps.push(mlp.cast_const());
    }
    let mut experts = null_mut();
    // SAFETY: as above.
    unsafe {
        well(nvfp4_experts_new(mlps.as_ptr(), COUNT, &mut experts));
        mlps.into_iter()
            .for_each(|mlp| nvfp4_mlp_free(mlp.cast_mut()));
    }
    let mlps = all
        .into_iter()
        .map(|[gate, up, down]| Mlp::new(gate, up, down).unwrap());
    let mlps: Vec<Mlp> = mlps.collect();
    (Experts::new(mlps).unwrap(), experts)
}

fn on_device(
    experts: *const nvfp4_experts,
    layout: u32,
    chained: u32,
) -> *mut nvfp4_device_experts {
    let mut on_device = null_mut();
    // SAFETY: there is room. What follows on a stream waits for what is before it.
    well(unsafe { nvfp4_experts_on_device(experts, layout, chained, &mut on_device) });
    on_device
}

/// Chosen experts, one of the slots empty, and their weights.
fn choices(n: usize, slots: usize) -> (Vec<i32>, Vec<f32>) {
    let mut rng = fastrand::Rng::with_seed((n * slots) as u64);
    let mut ids: Vec<i32> = (0..n * slots).map(|_| rng.i32(0..COUNT as i32)).collect();
    ids[n * slots / 2] = -1;
    (ids, numbers(n * slots, 5))
}

fn experts_give_the_bits_of_rust_and_are_near_the_cpu() {
    let stream = stream();
    let (rust, host) = experts();
    for (layout, of_c, chained) in [
        (ScaleLayout::Linear, NVFP4_LINEAR, 0),
        (ScaleLayout::Tiled128x4, NVFP4_128X4, 0),
        (ScaleLayout::Linear, NVFP4_LINEAR, 1),
    ] {
        let experts = rust.on_device(&stream, layout).unwrap();
        stream.synchronize().unwrap();
        let on_device = on_device(host, of_c, chained);
        for (n, slots, step) in [(1, 4, HIDDEN), (3, 2, HIDDEN + 64), (40, 4, HIDDEN)] {
            let (ids, weights) = choices(n, slots);
            let x: Vec<bf16> = numbers(n * step, 7)
                .into_iter()
                .map(bf16::from_f32)
                .collect();
            let bias = numbers(HIDDEN, 8);
            let packed: Vec<bf16> = x.chunks(step).flat_map(|x| &x[..HIDDEN]).copied().collect();
            let mut on_host = vec![0.0f32; n * HIDDEN];
            let output = Output::of(&mut on_host).with_bias(&bias);
            rust.forward(&Vectors::of(&packed), n, &ids, &weights, output)
                .unwrap();

            let upload = |of: &[f32]| stream.clone_htod(of).unwrap();
            let ids = stream.clone_htod(&ids).unwrap();
            let (weights, bias) = (upload(&weights), upload(&bias));
            let [x, packed] = [&x, &packed].map(|of| stream.clone_htod(of).unwrap());
            let mut y = upload(&vec![f32::NAN; n * HIDDEN]);
            let mut buffers = experts.buffers(&stream, n, slots).unwrap();
            let vectors = Vectors::on_device(packed.as_view());
            let output = Output::on_device(y.as_view_mut()).with_bias_on_device(bias.as_view());
            let (of_ids, of_weights) = (ids.as_view(), weights.as_view());
            experts
                .forward(
                    &stream,
                    &mut buffers,
                    &vectors,
                    &of_ids,
                    &of_weights,
                    output,
                )
                .unwrap();
            let expected = bits(&stream, &y);

            let y = upload(&vec![f32::NAN; n * HIDDEN]);
            stream.synchronize().unwrap();
            let mut call = null_mut();
            let stride = if step == HIDDEN { 0 } else { 2 * step };
            let vectors = dense(NVFP4_BF16, address(&x), stride);
            let output = nvfp4_device_output {
                bias: address(&bias),
                ..results(NVFP4_F32, address(&y))
            };
            // SAFETY: all is there until the stream has been waited for, and freed once.
            unsafe {
                let at = [address(&ids), address(&weights)];
                let on = stream.cu_stream().cast();
                well(nvfp4_experts_call_prepare(
                    on_device, &vectors, n, at[0], at[1], slots, &output, on, &mut call,
                ));
                assert!(
                    stream.clone_dtoh(&y).unwrap().iter().all(|y| y.is_nan()),
                    "only prepared"
                );
                for _ in 0..2 {
                    well(nvfp4_experts_call_launch(call));
                    assert_eq!(bits(&stream, &y), expected, "{layout} {chained} {n}");
                }
                nvfp4_experts_call_free(call);
            }
            // The device multiplies vectors of four bits, twice. Other experts, or other weights of theirs, would be off by
            // as much as the results are.
            let square = |of: &mut dyn Iterator<Item = f32>| of.map(|y| y * y).sum::<f32>();
            let found = expected.iter().map(|bits| f32::from_bits(*bits));
            let off = square(&mut found.zip(&on_host).map(|(found, host)| found - host));
            let off = (off / square(&mut on_host.iter().copied())).sqrt();
            assert!(off < 0.35, "{layout} {chained} {n}: {off}");
        }
        // SAFETY: freed once.
        unsafe { nvfp4_device_experts_free(on_device) };
    }
    // SAFETY: as above.
    unsafe { nvfp4_experts_free(host) };
}

fn ids_may_change_between_replays_of_a_graph() {
    let stream = stream();
    let (_, host) = experts();
    let on_device = on_device(host, NVFP4_LINEAR, 0);
    let x = stream.clone_htod(&numbers(HIDDEN, 7)).unwrap();
    let mut ids = stream.clone_htod(&[0i32, 1]).unwrap();
    let weights = stream.clone_htod(&[0.75f32, 0.25]).unwrap();
    let y = stream.alloc_zeros::<f16>(HIDDEN).unwrap();
    stream.synchronize().unwrap();
    let mut call = null_mut();
    let (vectors, output) = (
        dense(NVFP4_F32, address(&x), 0),
        results(NVFP4_F16, address(&y)),
    );
    // SAFETY: all is there until the stream has been waited for, and freed once.
    unsafe {
        let at = [address(&ids), address(&weights)];
        let on = stream.cu_stream().cast();
        well(nvfp4_experts_call_prepare(
            on_device, &vectors, 1, at[0], at[1], 2, &output, on, &mut call,
        ));
        // Kernels that are compiled when they are used are there then.
        well(nvfp4_experts_call_launch(call));
        stream.synchronize().unwrap();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).unwrap();
        let status = nvfp4_experts_call_launch(call);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().unwrap();
        well(status);
        let mut all = Vec::new();
        for chosen in [[2i32, 5], [5, 7], [-1, -1]] {
            stream.memcpy_htod(&chosen, &mut ids).unwrap();
            graph.launch().unwrap();
            let replayed = bits(&stream, &y);
            well(nvfp4_experts_call_launch(call));
            assert_eq!(bits(&stream, &y), replayed, "{chosen:?}");
            assert!(!all.contains(&replayed), "other experts");
            all.push(replayed);
        }
        assert!(
            all[2].iter().all(|y| f32::from_bits(*y) == 0.0),
            "no expert"
        );
        drop(graph);
        nvfp4_experts_call_free(call);
        nvfp4_device_experts_free(on_device);
        nvfp4_experts_free(host);
    }
}

/// cudarc destroys a context that it wraps with the last use of it: this one is the caller's, and works afterwards.
fn a_context_of_the_callers_stays_the_callers() {
    raw::device_count().unwrap();
    let (_, host) = experts();
    let mut handle = null_mut();
    // SAFETY: the driver is there, and cudarc owns the new context.
    let own = unsafe {
        let code = sys::cuCtxCreate_v4(&mut handle, null_mut(), 0, 0);
        code.result().unwrap();
        CudaContext::from_raw_context(0, 0, handle).unwrap()
    };
    // SAFETY: one stream.
    unsafe { own.disable_event_tracking() };
    let stream = own.new_stream().unwrap();
    let x = stream.clone_htod(&numbers(HIDDEN, 7)).unwrap();
    let ids = stream.clone_htod(&[3i32]).unwrap();
    let weights = stream.clone_htod(&[1.0f32]).unwrap();
    let y = stream.alloc_zeros::<f32>(HIDDEN).unwrap();
    stream.synchronize().unwrap();
    own.bind_to_thread().unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        let on_device = on_device(host, NVFP4_LINEAR, 0);
        let current = nvfp4_gemv::cudarc::driver::result::ctx::get_current().unwrap();
        assert_eq!(current, Some(own.cu_ctx()));
        let mut call = null_mut();
        let (vectors, output) = (
            dense(NVFP4_F32, address(&x), 0),
            results(NVFP4_F32, address(&y)),
        );
        // SAFETY: all is there until the stream has been waited for, and freed once.
        unsafe {
            let at = [address(&ids), address(&weights)];
            let on = stream.cu_stream().cast();
            well(nvfp4_experts_call_prepare(
                on_device, &vectors, 1, at[0], at[1], 1, &output, on, &mut call,
            ));
            well(nvfp4_experts_call_launch(call));
            all.push(bits(&stream, &y));
            nvfp4_experts_call_free(call);
            nvfp4_device_experts_free(on_device);
        }
    }
    assert_eq!(all[0], all[1]);
    assert!(all[0].iter().any(|y| f32::from_bits(*y) != 0.0));
    // In the primary context the experts of this one are refused.
    let on_device = on_device(host, NVFP4_LINEAR, 0);
    let primary = self::stream();
    let (vectors, output) = (
        dense(NVFP4_F32, address(&x), 0),
        results(NVFP4_F32, address(&y)),
    );
    let mut call = null_mut();
    // SAFETY: nothing is launched.
    unsafe {
        let at = [address(&ids), address(&weights)];
        let on = primary.cu_stream().cast();
        let status = nvfp4_experts_call_prepare(
            on_device, &vectors, 1, at[0], at[1], 1, &output, on, &mut call,
        );
        assert_ne!(status, NVFP4_OK);
        assert!(call.is_null() && last().contains("context"), "{}", last());
        nvfp4_device_experts_free(on_device);
        nvfp4_experts_free(host);
    }
}

fn what_experts_do_not_take_is_refused() {
    let stream = stream();
    let (_, host) = experts();
    let on_device = on_device(host, NVFP4_LINEAR, 0);
    let x = stream.clone_htod(&numbers(2 * HIDDEN, 7)).unwrap();
    let ids = stream.clone_htod(&[3i32, 1]).unwrap();
    let y = stream.alloc_zeros::<f32>(2 * HIDDEN).unwrap();
    let good = (
        dense(NVFP4_F32, address(&x), 0),
        results(NVFP4_F32, address(&y)),
    );
    type Change<'a> =
        &'a dyn Fn(&mut (nvfp4_device_vectors, nvfp4_device_output), &mut [u64; 2], &mut usize);
    let refuses = |change: Change<'_>, says: &str| {
        let (mut operands, mut at, mut slots) = (good, [address(&ids); 2], 1);
        change(&mut operands, &mut at, &mut slots);
        let (x, y) = &operands;
        let (on, mut call) = (stream.cu_stream().cast(), std::ptr::dangling_mut());
        // SAFETY: nothing is launched.
        let status = unsafe {
            nvfp4_experts_call_prepare(on_device, x, 2, at[0], at[1], slots, y, on, &mut call)
        };
        assert_ne!(status, NVFP4_OK, "{says}");
        assert!(call.is_null() && last().contains(says), "{}", last());
    };
    refuses(&|(x, _), _, _| x.element = NVFP4_CODES, "f16, bf16 or f32");
    refuses(&|(x, _), _, _| x.values = 0, "x.values is NULL");
    refuses(&|(_, y), _, _| y.values = 0, "y.values is NULL");
    refuses(&|(x, _), _, _| x.values += 8, "16");
    refuses(&|(x, _), _, _| x.row_stride = 6, "no multiple of 4 byte");
    refuses(&|(x, _), _, _| x.row_stride = 16, "stride");
    refuses(
        &|(x, _), _, _| x.row_stride = usize::MAX - 3,
        "beyond memory",
    );
    refuses(&|_, at, _| at[0] = 0, "ids is NULL");
    refuses(&|_, at, _| at[1] += 2, "weights");
    refuses(&|_, _, slots| *slots = usize::MAX, "choices");
    // SAFETY: freed once.
    unsafe {
        nvfp4_device_experts_free(on_device);
        nvfp4_experts_free(host);
    }
}
