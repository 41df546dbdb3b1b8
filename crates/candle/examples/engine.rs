//! NVFP4 layers and dense tensors of one file, as an engine loads them, compared with the result that the file has.
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use nvfp4_gemv_candle::{Nvfp4Builder, Nvfp4Linear};

struct Block(Nvfp4Linear, Nvfp4Linear);

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.1.forward(&self.0.forward(xs)?.gelu_erf()?)
    }
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let file = "tests/data/minilm-l0-compressed-tensors.safetensors";
    let nvfp4 = Nvfp4Builder::open(file, &device)?.pp("encoder.layer.0");
    let up = nvfp4.linear("intermediate.dense")?;
    let down = nvfp4.linear("output.dense")?;
    let files = nvfp4.files();
    // SAFETY: nobody writes the files.
    let dense = unsafe { VarBuilder::from_mmaped_safetensors(&files, DType::F32, &device)? };
    let dense = dense.pp("encoder.layer.0.intermediate.dense");
    let xs = dense.get((8, 384), "test_input")?;
    let apart = (up.forward(&xs)? - dense.get((8, 1536), "test_output_w4a16_f64")?)?;
    assert!(apart.abs()?.max_all()?.to_scalar::<f32>()? < 1e-4);
    println!("{}", Block(up, down).forward(&xs)?);
    Ok(())
}
