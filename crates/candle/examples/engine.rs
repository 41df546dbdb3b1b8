//! A block of an engine: NVFP4 layers and dense tensors of one file, or of a directory. Its result is compared with the
//! one that the file has.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use nvfp4_gemv_candle::{Nvfp4Builder, Nvfp4Linear};

struct Block {
    up: Nvfp4Linear,
    down: Nvfp4Linear,
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(xs)?.gelu_erf()?)
    }
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let file = "tests/data/minilm-l0-compressed-tensors.safetensors";
    let nvfp4 = Nvfp4Builder::open(file, &device)?.pp("encoder.layer.0");
    // SAFETY: nobody writes the files.
    let dense =
        unsafe { VarBuilder::from_mmaped_safetensors(&nvfp4.files(), DType::F32, &device)? };
    let dense = dense.pp("encoder.layer.0.intermediate.dense");
    let block = Block {
        up: nvfp4.linear("intermediate.dense")?,
        down: nvfp4.linear("output.dense")?,
    };
    let xs = dense.get((8, 384), "test_input")?;
    println!("{}", block.forward(&xs)?);
    let (y, expected) = (
        block.up.forward(&xs)?,
        dense.get((8, 1536), "test_output_w4a16_f64")?,
    );
    let apart = (y - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(apart < 1e-4, "{apart}");
    Ok(())
}
