//! The call by address: for engines that have their own buffers, streams and context.
//!
//! Shows a problem described by device addresses, and its launch on a `CUstream` that this crate did not make. The
//! driver's functions, through cudarc's thin layer, stand for the engine; a `cudaStream_t` does as well.
//!
//! Needs feature `cuda` (nvcc to build) and a GPU of compute capability 8.0 or higher; says so where there is none.
//! `cargo run --release --example raw_pointers`

use anyhow::{Result, ensure};
use cudarc::driver::{DriverError, result, sys};
use nvfp4_gemv::raw::{self, Call, RawOutput, RawVectors, RawWeights};
use nvfp4_gemv::{FloatType, GlobalScale, Options, ScaleLayout, Shape, Strides};

/// The engine's allocator: memory with this content, at an address.
fn upload<T: Copy>(content: &[T]) -> Result<sys::CUdeviceptr, DriverError> {
    // SAFETY: the memory has as many bytes as are copied; without a current context the driver refuses.
    unsafe {
        let address = result::malloc_sync(size_of_val(content))?;
        result::memcpy_htod_sync(address, content)?;
        Ok(address)
    }
}

fn main() -> Result<()> {
    raw::device_count()?; // an error that says what is missing, where cudarc would panic
    let gpu = raw::gpu(0)?; // ask once, and keep it

    // The engine: a current context, a stream, buffers.
    result::init()?;
    let device = result::device::get(0)?;
    // SAFETY: the device exists; the context is released below, after its last use.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?) }?;
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
    let shape = Shape::matrix(1024, 2048)?;
    let (layout, element) = (ScaleLayout::Linear, FloatType::F32);
    let codes = upload(&vec![0x22u8; shape.weight_code_bytes()])?; // all weights 1
    let scales = upload(&vec![0x38u8; shape.weight_scale_bytes(layout)])?; // all block scales 1
    let x = upload(&vec![0.5f32; shape.k()])?;
    let y = upload(&vec![0.0f32; shape.m()])?;

    // The problem by address. Making the call checks all that can be checked without reading device memory.
    let weights = RawWeights {
        codes,
        scales,
        layout,
        global: GlobalScale::ONE,
        row_alpha: 0, // none
        row_alpha_batch_stride: 0,
        select: None,
    };
    let [row, batch] = [shape.k() * element.bytes(); 2];
    let vectors = RawVectors::Dense {
        element,
        values: x,
        strides: Strides { row, batch },
    };
    let output = RawOutput::packed(y, element);
    let call = Call::new(&shape, &weights, &vectors, &output)?;
    // SAFETY: the stream's context is current. All four buffers are as long as the shape says, and are freed after the
    // stream was synchronised. Nothing else uses them meanwhile.
    let choice = unsafe { raw::gemv(&call, &gpu, &Options::new(), stream.cast()) }?;
    println!("path {} on {}: {}", choice.path, gpu.name, choice.reason);

    let mut computed = vec![0.0f32; shape.m()];
    // SAFETY: the call has run before y is copied; then nothing uses stream, buffers and context any more.
    unsafe {
        result::stream::synchronize(stream)?;
        result::memcpy_dtoh_sync(&mut computed, y)?;
        for address in [codes, scales, x, y] {
            result::free_sync(address)?;
        }
        result::stream::destroy(stream)?;
        result::primary_ctx::release(device)?;
    }
    ensure!(computed == vec![1024.0; shape.m()], "{computed:?}");
    Ok(())
}
