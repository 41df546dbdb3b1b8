//! A kernel that is compiled when it is first asked for, by a program that carries none.
//!
//! Shows when that happens, how a program hears of it, and what it costs: once to compile, and next to nothing when the
//! program runs again, from the cache.
//!
//! Needs feature `jit` (nothing to build), NVRTC, and a GPU of compute capability 8.0 or higher; says so where there is
//! none. `cargo run --release --no-default-features --features jit --example compiled_at_run_time`, twice

use std::time::Instant;

use anyhow::{Result, ensure};
use cudarc::driver::CudaContext;
use nvfp4_gemv::{
    GlobalScale, Options, Output, PreparedGemvOnDevice, ScaleLayout, Shape, Vectors, Weights, jit,
    raw,
};

fn main() -> Result<()> {
    // cudarc panics where there is no driver. This is an error that says what is missing.
    raw::device_count()?;
    let gpu = raw::gpu(0)?;
    println!("{}: machine code for sm_{}", gpu.name, gpu.images);
    // Without this, nothing is said.
    jit::observe(|event| println!("{event:?}"));

    let stream = CudaContext::new(0)?.new_stream()?;
    let shape = Shape::matrix(4096, 2048)?;
    let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
    let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
    let weights = Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        ScaleLayout::Linear,
        GlobalScale::ONE,
    )?;
    let x = stream.clone_htod(&vec![half::f16::ONE; shape.k()])?;
    let mut y = stream.alloc_zeros::<f32>(shape.m())?;

    // Here it is compiled, or read from the cache. NVRTC is loaded for either.
    let start = Instant::now();
    let vectors = Vectors::on_device(x.as_view());
    let output = Output::on_device(y.as_view_mut());
    let options = Options::new();
    let prepared =
        PreparedGemvOnDevice::new(&stream, &shape, &weights, &vectors, output, &options)?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    println!("prepared in {took:.1} ms: {}", prepared.choice().reason);

    // Each token: a launch, as of any other kernel.
    let output = Output::on_device(y.as_view_mut());
    prepared.run(&stream, &weights, &vectors, output)?;
    let y = stream.clone_dtoh(&y)?;
    ensure!(y.iter().all(|&y| y == 2048.0), "{:?}", &y[..4]);
    println!("y is {} everywhere, as it should be", y[0]);
    Ok(())
}
