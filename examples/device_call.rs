//! A linear layer on a GPU, with cudarc's buffers and stream.
//!
//! Shows how quantised weights reach a device once, how a call is enqueued on a stream, and what the call says about
//! its choice. The result is compared with the exact one.
//!
//! Needs feature `cuda` (nvcc to build) and a GPU of compute capability 8.0 or higher; says so where there is none.
//! `cargo run --release --example device_call`

use anyhow::{Context, Result, ensure};
use cudarc::driver::CudaContext;
use half::bf16;
use nvfp4_gemv::{
    Activation, Dialect, FloatType, Options, Output, ScaleLayout, Shape, TiledWeights, Vectors,
    gemv_on_device, quantize::quantize, raw, reference,
};

const ROWS: usize = 4096; // M: what the layer puts out
const COLUMNS: usize = 2048; // K: what it takes in

fn main() -> Result<()> {
    // cudarc panics where there is no driver. This is an error that says what is missing.
    raw::device_count()?;
    let stream = CudaContext::new(0)?.new_stream()?;

    // Once, when the model is loaded: quantise, copy, and bring the block scales into the layout that every path reads.
    let mut random = fastrand::Rng::with_seed(1);
    let dense: Vec<f32> = (0..ROWS * COLUMNS).map(|_| random.f32() - 0.5).collect();
    let matrix = quantize(&dense, ROWS, COLUMNS, Dialect::ModelOpt, None)?;
    let shape = Shape::matrix(ROWS, COLUMNS)?;
    let layer = TiledWeights::owned(
        &stream,
        &shape,
        stream.clone_htod(&matrix.codes)?,
        stream.clone_htod(&matrix.scales)?,
        ScaleLayout::Linear,
        matrix.global,
    )?;

    // Each token: nothing is allocated, synchronised or copied by the call.
    let x: Vec<bf16> = (0..COLUMNS)
        .map(|i| bf16::from_f32((i as f32).sin()))
        .collect();
    let x_on_device = stream.clone_htod(&x)?;
    let mut y = stream.alloc_zeros::<f32>(ROWS)?;
    let choice = gemv_on_device(
        &stream,
        &shape,
        &layer.weights()?,
        &Vectors::on_device(x_on_device.as_view()),
        Output::on_device(y.as_view_mut()),
        &Options::new(),
    )?;
    let config = choice.config.context("a device call without a config")?;
    println!("{shape:#}");
    println!(
        "{} on path {}: {}",
        config.kernel(),
        choice.path,
        choice.reason
    );

    let y = stream.clone_dtoh(&y)?;
    println!("y begins with {:?}", &y[..4]);

    // The exact result of the same NVFP4 weights, in f64, and how far this config may be from it.
    let exact = reference::gemv(&shape, &matrix.weights()?, &Vectors::of(&x))?;
    let roundings = config.roundings(&shape, Activation::Bf16);
    let mut worst: f64 = 0.0;
    for ((&y, &exact), &magnitude) in y.iter().zip(&exact.y).zip(&exact.magnitude) {
        let bound = reference::error_bound(exact, magnitude, roundings, FloatType::F32);
        worst = worst.max((f64::from(y) - exact).abs() / bound);
    }
    println!("largest error: {:.1}% of its bound", worst * 100.0);
    ensure!(worst <= 1.0, "an element is further off than its bound");
    Ok(())
}
