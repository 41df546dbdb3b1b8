//! Layers of random weights, and files of them.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use nvfp4_gemv::quantize::{Quantized, quantize};
use nvfp4_gemv::{Dialect, Linear};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// Numbers around 0.
pub(crate) fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() - 0.5).collect()
}

pub(crate) fn tensor(seed: u64, dims: &[usize], dtype: DType) -> Tensor {
    let values = values(seed, dims.iter().product());
    let tensor = Tensor::from_vec(values, dims, &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap()
}

/// A matrix; its global scale depends on its seed.
pub(crate) fn matrix(seed: u64, rows: usize, k: usize) -> Quantized {
    let size = 1.0 + seed as f32 / 8.0;
    let values: Vec<f32> = values(seed, rows * k).iter().map(|v| v * size).collect();
    quantize(&values, rows, k, Dialect::ModelOpt, None).unwrap()
}

pub(crate) fn layer(seed: u64, rows: usize, k: usize) -> Linear {
    Linear::from_quantized(matrix(seed, rows, k)).unwrap()
}

/// Tensors for a file.
#[derive(Default)]
pub(crate) struct File {
    tensors: HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl File {
    pub(crate) fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        let tensor = (dtype, shape.to_vec(), bytes);
        assert!(self.tensors.insert(name.into(), tensor).is_none(), "{name}");
    }

    pub(crate) fn add_floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.add(name, Dtype::F32, shape, bytes.collect());
    }

    /// A layer with ModelOpt's names.
    pub(crate) fn add_layer(&mut self, name: &str, matrix: Quantized) {
        let (rows, k) = (matrix.rows, matrix.k);
        let of = |what: &str| format!("{name}.{what}");
        self.add(&of("weight"), Dtype::U8, &[rows, k / 2], matrix.codes);
        let scales = [rows, k / 16];
        self.add(&of("weight_scale"), Dtype::F8_E4M3, &scales, matrix.scales);
        self.add_floats(&of("weight_scale_2"), &[], &[matrix.global.stored()]);
    }

    /// Experts that are stacked, as vLLM and transformers name them.
    pub(crate) fn add_stack(&mut self, name: &str, matrices: Vec<Quantized>) {
        let (experts, rows, k) = (matrices.len(), matrices[0].rows, matrices[0].k);
        let globals: Vec<f32> = matrices.iter().map(|of| of.global.stored()).collect();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for matrix in matrices {
            codes.extend(matrix.codes);
            scales.extend(matrix.scales);
        }
        self.add(name, Dtype::U8, &[experts, rows, k / 2], codes);
        let of_scales = [experts, rows, k / 16];
        self.add(
            &format!("{name}_weight_scale"),
            Dtype::F8_E4M3,
            &of_scales,
            scales,
        );
        self.add_floats(&format!("{name}_weight_scale_2"), &[experts], &globals);
    }

    pub(crate) fn write(&self, to: &Path) {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, to).unwrap();
    }
}
