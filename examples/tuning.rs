//! Finds the fastest kernel for a shape by measuring, keeps what was found in a file, and computes with it.
//!
//! Shows `Tuner`, which measures for some seconds, `Tuned`, which is saved and loaded, and the option that lets a call
//! use it. A second run loads the file and measures nothing.
//!
//! Needs feature `cuda` (nvcc to build) and a GPU of compute capability 8.0 or higher; says so where there is none.
//! `cargo run --release --example tuning -- [FILE]`; without an argument, the file is in the temporary directory.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cudarc::driver::CudaContext;
use nvfp4_gemv::tune::{Limits, Tuned, Tuner};
use nvfp4_gemv::{
    Activation, GlobalScale, Operands, Options, Output, ScaleLayout, Shape, Vectors, Weights,
    gemv_on_device,
};

const LAYOUT: ScaleLayout = ScaleLayout::Linear;

fn main() -> Result<()> {
    let file = std::env::args().nth(1).map(PathBuf::from);
    let file = file.unwrap_or(std::env::temp_dir().join("nvfp4-gemv-tuned.jsonl"));
    let shape = Shape::matrix(2048, 4096)?;
    let operands = Operands::new(Activation::F16, LAYOUT);

    // A typed error where there is no driver, no GPU, or a build without kernels.
    let mut tuner = Tuner::new(0)?;
    println!("{shape:#}, on {}", tuner.gpu().name);
    // A file of another GPU, driver or version is refused, not used and not replaced.
    let mut tuned = Tuned::load_or_new(&file, tuner.machine(), "examples/tuning.rs")?;
    if tuned.find(&shape, &operands).is_none() {
        let outcome = tuner.tune(&shape, &operands, &Limits::default(), |_| ())?;
        for (config, found) in outcome.ranking.iter().take(3) {
            println!("{:8.2} us  {config:?}", found.median * 1e6);
        }
        tuned.insert(outcome.entry);
        tuned.save(&file)?;
        println!("saved to {}", file.display());
    }

    // Another program, which does not tune, would do this: it needs `tune::machine`, and no `Tuner`.
    let tuned = Tuned::load(&file, tuner.machine())?;
    let found = tuned.find(&shape, &operands).context("not in the file")?;
    let best = found.kernels.first().context("no kernel was found")?;

    let stream = CudaContext::new(0)?.new_stream()?;
    let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?; // all weights 1
    let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(LAYOUT)])?;
    let (codes, scales) = (codes.as_view(), scales.as_view());
    let weights = Weights::on_device(&shape, codes, scales, LAYOUT, GlobalScale::ONE)?;
    let x = stream.clone_htod(&vec![half::f16::ONE; shape.k()])?;
    let vectors = Vectors::on_device(x.as_view());
    let mut y = stream.alloc_zeros::<f32>(shape.m())?;
    let options = Options::new().tuned(&tuned);
    let output = Output::on_device(y.as_view_mut());
    let choice = gemv_on_device(&stream, &shape, &weights, &vectors, output, &options)?;
    let y = stream.clone_dtoh(&y)?;
    ensure!(y == vec![shape.k() as f32; shape.m()], "wrong: {}", y[0]);
    println!("computed with {:?}", best.config);
    println!("because {}", choice.reason);
    ensure!(choice.config == Some(best.config), "{choice:?}");
    Ok(())
}
