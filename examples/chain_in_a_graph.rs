//! Layers of a model as one CUDA graph: each reads what the one before wrote.
//!
//! Shows prepared calls (checks, dispatch and tensor maps once), chained launches, and a graph that is replayed with
//! other input. A chained launch reads a layer's weights before the layer before has ended; the example argues why that
//! is safe here.
//!
//! Needs feature `cuda` (nvcc to build) and a GPU of compute capability 8.0 or higher; says so where there is none.
//! Chained launches overlap from compute capability 9.0 on. `cargo run --release --example chain_in_a_graph`

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaContext, sys};
use nvfp4_gemv::{
    GlobalScale, Options, Output, PreparedGemvOnDevice, ScaleLayout, Shape, Vectors, Weights, raw,
};

const LAYERS: usize = 8;
const LAYOUT: ScaleLayout = ScaleLayout::Linear;

fn main() -> Result<()> {
    raw::device_count()?; // an error that says what is missing, where cudarc would panic
    let context = CudaContext::new(0)?;
    // SAFETY: all work goes to the one stream below, whose order is the order in which buffers are used and freed.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?; // the default stream cannot be captured

    // Every weight is 1 (code 2, block scale 0x38), and the global scale 2 / K: a layer doubles its input's mean.
    let shape = Shape::matrix(4096, 4096)?;
    let global = GlobalScale::Multiplier(2.0 / shape.k() as f32);
    let (codes, scales) = (shape.weight_code_bytes(), shape.weight_scale_bytes(LAYOUT));
    let mut layers = Vec::new();
    for _ in 0..LAYERS {
        let codes = stream.clone_htod(&vec![0x22u8; codes])?;
        layers.push((codes, stream.clone_htod(&vec![0x38u8; scales])?));
    }
    stream.synchronize()?;
    // SAFETY: all weights were complete before the stream was synchronised, and nothing writes them from then on: the
    // kernels that follow write x and y, and copies write x. So a launch may read its weights whenever it starts.
    let options = unsafe { Options::new().chained() };

    let mut x = stream.alloc_zeros::<f32>(shape.k())?;
    let mut y = stream.alloc_zeros::<f32>(shape.m())?;
    let mut prepared: Vec<PreparedGemvOnDevice> = Vec::new();
    // Twice over the layers: first they are prepared, which loads kernels, then they are captured.
    for capture in [false, true] {
        if capture {
            stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        }
        for (at, (codes, scales)) in layers.iter().enumerate() {
            let (codes, scales) = (codes.as_view(), scales.as_view());
            let weights = Weights::on_device(&shape, codes, scales, LAYOUT, global)?;
            let vectors = Vectors::on_device(x.as_view());
            let output = Output::on_device(y.as_view_mut());
            match prepared.get(at) {
                Some(layer) => layer.run(&stream, &weights, &vectors, output)?,
                None => prepared.push(PreparedGemvOnDevice::new(
                    &stream, &shape, &weights, &vectors, output, &options,
                )?),
            }
            std::mem::swap(&mut x, &mut y); // what this layer writes, the next one reads
        }
    }
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.context("nothing was captured")?;
    println!("{LAYERS} layers, each by {:?}", prepared[0].choice());

    // Both buffers have been swapped an even number of times: the first layer reads x, and the last layer writes x.
    for step in 1..=3 {
        stream.memcpy_htod(&vec![step as f32; shape.k()], &mut x)?;
        graph.launch()?;
        let result = stream.clone_dtoh(&x)?;
        let expected = (step << LAYERS) as f32;
        println!("input {step}, output {}", result[0]);
        ensure!(result == vec![expected; shape.m()], "expected {expected}");
    }
    Ok(())
}
