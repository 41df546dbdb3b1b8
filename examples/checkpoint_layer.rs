//! A layer of a checkpoint, computed on the CPU.
//!
//! Shows how a safetensors checkpoint of ModelOpt or compressed-tensors is opened, how its NVFP4 layers are found, and
//! how one is computed straight from the mapped file. Where the file has a test input and its exact output beside the
//! layer, as those of `tests/data` have, the result is compared with it.
//!
//! Needs no GPU. Without arguments it needs the repository, for `tests/data`; the package that is published has none.
//! `cargo run --release --no-default-features --example checkpoint_layer -- [CHECKPOINT [LAYER]]`

use anyhow::{Context, Result, ensure};
use nvfp4_gemv::{
    Activation, FloatType, Options, Output, Vectors, checkpoint::Checkpoint, cpu::Implementation,
    gemv, reference,
};

const CHECKPOINT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/minilm-l0-compressed-tensors.safetensors"
);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or(CHECKPOINT.into());
    let checkpoint = Checkpoint::open(path)?;
    for name in checkpoint.layers() {
        println!("{name}");
    }
    let name = match arguments.next() {
        Some(name) => name,
        None => checkpoint.layers().next().context("no layer")?.to_owned(),
    };
    let layer = checkpoint.layer(&name)?;
    let (rows, k, exporter) = (layer.rows(), layer.k(), layer.exporter());
    println!("\n{name}: {rows} x {k}, {exporter}");

    // Tensors that the file has beside the layer: f32 vectors, one after the other, and their exact products in f64.
    let beside = |what: &str| checkpoint.tensor(&format!("{name}.{what}"));
    let x = match beside("test_input") {
        Some(input) => input.to_f32()?,
        None => (0..k).map(|i| (i as f32).sin()).collect(),
    };
    let shape = layer.shape(x.len() / k)?;
    let weights = layer.weights()?;
    let vectors = Vectors::of(&x);
    let mut y = vec![0.0f32; shape.outputs()];
    let output = Output::of(&mut y);
    let choice = gemv(&shape, &weights, &vectors, output, &Options::new())?;
    println!(
        "{} vectors on {}: {}",
        shape.n(),
        choice.path,
        choice.reason
    );
    println!("y begins with {:?}", &y[..4.min(y.len())]);

    let Some(expected) = beside("test_output_w4a16_f64") else {
        println!("the file has no output to compare with");
        return Ok(());
    };
    // The sum of |w * x| of each element: the error of the element's sum is proportional to it.
    let magnitude = reference::gemv(&shape, &weights, &vectors)?.magnitude;
    let roundings = Implementation::best().roundings(&shape, Activation::F32);
    let mut worst: f64 = 0.0;
    for ((&y, expected), magnitude) in y.iter().zip(expected.to_f64()?).zip(magnitude) {
        let bound = reference::error_bound(expected, magnitude, roundings, FloatType::F32);
        worst = worst.max((f64::from(y) - expected).abs() / bound);
    }
    println!(
        "largest difference to the file's own output: {:.1}% of its bound",
        worst * 100.0
    );
    ensure!(worst <= 1.0, "an element is further off than its bound");
    Ok(())
}
