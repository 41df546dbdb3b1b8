//! A linear layer on the CPU: y = alpha * W x.
//!
//! Shows how f32 weights become NVFP4, how host memory is described and multiplied, what the call says about its
//! choice, and how far the result is from the exact one.
//!
//! Needs nothing: no GPU, no CUDA, no file.
//! `cargo run --release --no-default-features --example host_call`

use anyhow::{Result, ensure};
use nvfp4_gemv::{
    Activation, Dialect, Dims, FloatType, Options, Output, Shape, Vectors, cpu::Implementation,
    gemv, quantize::quantize, reference,
};

const ROWS: usize = 1024; // M: what the layer puts out
const COLUMNS: usize = 2048; // K: what it takes in
const VECTORS: usize = 2; // N: tokens

fn main() -> Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut random = |count| -> Vec<f32> { (0..count).map(|_| random.f32() - 0.5).collect() };

    // The weights, row after row. A multiplier stands for the whole matrix, as in ModelOpt's checkpoints.
    let matrix = quantize(
        &random(ROWS * COLUMNS),
        ROWS,
        COLUMNS,
        Dialect::ModelOpt,
        None,
    )?;
    // Looks at every block scale once: make it when the model is loaded, and keep it.
    let weights = matrix.weights()?;

    let shape = Shape::new(Dims {
        m: ROWS,
        n: VECTORS,
        k: COLUMNS,
        l: 1,
    })?;
    let x = random(VECTORS * COLUMNS);
    let vectors = Vectors::of(&x);
    let mut y = vec![0.0f32; VECTORS * ROWS];
    let output = Output::of(&mut y);
    let choice = gemv(&shape, &weights, &vectors, output, &Options::new())?;
    println!("{shape:#}");
    println!("path {}: {}", choice.path, choice.reason);
    println!("y begins with {:?}", &y[..4]);

    // The exact result of the same NVFP4 weights, in f64, and how far the CPU path may be from it.
    let exact = reference::gemv(&shape, &weights, &vectors)?;
    let roundings = Implementation::best().roundings(&shape, Activation::F32);
    let mut worst: f64 = 0.0;
    for ((&y, &exact), &magnitude) in y.iter().zip(&exact.y).zip(&exact.magnitude) {
        let bound = reference::error_bound(exact, magnitude, roundings, FloatType::F32);
        worst = worst.max((f64::from(y) - exact).abs() / bound);
    }
    println!("largest error: {:.1}% of its bound", worst * 100.0);
    ensure!(worst <= 1.0, "an element is further off than its bound");
    Ok(())
}
