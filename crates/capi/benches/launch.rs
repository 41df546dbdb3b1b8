//! Host time of a launch through the C functions, beside the driver's bare launch of the same kernel, in turns.
//!
//! `cargo bench -p nvfp4-gemv-capi --features cuda --bench launch` runs it on a machine with a GPU. So does the program that
//! `--no-run` names. An argument is how many batches of launches are measured (200).

use std::error::Error;
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::time::Instant;

use nvfp4_gemv::cudarc::driver::{CudaContext, CudaSlice, DevicePtr};
use nvfp4_gemv::measure::Bare;
use nvfp4_gemv::{ScaleLayout, Shape, raw};
use nvfp4_gemv_capi::*;

/// Launches between two waits for the device: fewer than its queue holds, or the host would wait.
const BATCH: usize = 256;

fn well(status: nvfp4_status) -> Result<(), Box<dyn Error>> {
    if status == NVFP4_OK {
        return Ok(());
    }
    // SAFETY: the text ends with a zero, and is copied before another call.
    let text = unsafe { CStr::from_ptr(nvfp4_last_error()) };
    Err(text.to_string_lossy().into())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(reason) = raw::device_count() {
        println!("launch needs a GPU: {reason}");
        return Ok(());
    }
    let batches = std::env::args().find_map(|word| word.parse::<usize>().ok());
    let batches = batches.unwrap_or(200).max(1);
    let context = CudaContext::new(0)?;
    // SAFETY: all work goes to one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let shape = Shape::matrix(1024, 4096)?;
    let bytes = |count: usize, value: u8| stream.clone_htod(&vec![value; count]);
    let address = |of: &CudaSlice<u8>| of.device_ptr(&stream).0;
    let layout = ScaleLayout::Tiled128x4;
    let codes = bytes(shape.weight_code_bytes(), 0x22)?;
    let scales = bytes(shape.weight_scale_bytes(layout), 0x38)?;
    let x = bytes(shape.row_code_bytes(), 0x22)?;
    let x_scales = bytes(layout.bytes(1, shape.blocks()), 0x38)?;
    let y = bytes(2 * shape.outputs(), 0)?;
    stream.synchronize()?;
    let weights = nvfp4_device_weights {
        rows: shape.m(),
        k: shape.k(),
        codes: address(&codes),
        scales: address(&scales),
        layout: NVFP4_128X4,
        global_kind: NVFP4_MULTIPLIER,
        global: 1.0,
        row_alpha: 0,
    };
    let vectors = nvfp4_device_vectors {
        element: NVFP4_CODES,
        values: address(&x),
        row_stride: 0,
        scales: address(&x_scales),
        scale_row_stride: 0,
        layout: NVFP4_128X4,
        global_kind: NVFP4_MULTIPLIER,
        global: 1.0,
        vector_alpha: 0,
    };
    let output = nvfp4_device_output {
        element: NVFP4_F16,
        values: address(&y),
        row_stride: 0,
        bias: 0,
        residual: 0,
    };
    let (mut gpu, mut call) = (null_mut(), null_mut());
    // SAFETY: all is there, and freed at the end.
    unsafe {
        well(nvfp4_gpu_of_device(0, &mut gpu))?;
        let none = null();
        well(nvfp4_call_prepare(
            gpu, &weights, &vectors, 1, &output, none, 0, &mut call,
        ))?;
    }
    let on = stream.cu_stream();
    // SAFETY: the memory outlives the work, which is waited for after every batch.
    let launch = || well(unsafe { nvfp4_call_launch(call, on.cast()) });
    launch()?;
    let bare = Bare::of(&stream, || {
        launch().expect("it was launched before");
        Ok(())
    })?;
    let mut times = [Vec::new(), Vec::new()];
    // The first two rounds warm up.
    for round in 0..batches + 2 {
        for (way, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..BATCH {
                match way {
                    // SAFETY: as above.
                    0 => unsafe { bare.launch(on) }?,
                    _ => launch()?,
                }
            }
            let seconds = start.elapsed().as_secs_f64();
            context.synchronize()?;
            if round >= 2 {
                times.push(seconds * 1e9 / BATCH as f64);
            }
        }
    }
    let [bare, c] = times.map(|mut of| {
        of.sort_by(f64::total_cmp);
        [0.1, 0.5, 0.9].map(|share| of[(share * (of.len() - 1) as f64) as usize])
    });
    let name = raw::gpu(0)?.name;
    println!("{name}, {shape}; host nanoseconds a launch, {batches} batches of {BATCH}");
    for (what, [low, median, high]) in [("bare launch", bare), ("nvfp4_call_launch", c)] {
        println!("{what:<20} {median:>6.0} (10% {low:.0}, 90% {high:.0})");
    }
    println!("over the bare launch {:>+6.0}", c[1] - bare[1]);
    // SAFETY: freed once.
    unsafe {
        nvfp4_call_free(call);
        nvfp4_gpu_free(gpu);
    }
    Ok(())
}
