//! A problem in device memory for the safe calls: cudarc's buffers and views of them.

use cudarc::driver::CudaSlice;
use nvfp4_gemv::raw::Call;
use nvfp4_gemv::{
    Device, FloatType, GlobalScale, Nvfp4Vectors, Output, RawOutput, RawVectors, RawWeights,
    ScaleLayout, Shape, Strides, VectorScale, Vectors, Weights,
};
use nvfp4_gemv_cli::problem::Problem;

use super::gpu::Gpu;
use super::sized;

/// A problem's weights and NVFP4 vectors.
pub(crate) struct Uploaded {
    shape: Shape,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    layout: ScaleLayout,
    global: GlobalScale,
    row_alpha: Option<CudaSlice<f32>>,
    x_codes: CudaSlice<u8>,
    x_scales: CudaSlice<u8>,
    x_layout: ScaleLayout,
    x_strides: Option<(Strides, Strides)>,
}

impl Uploaded {
    /// Uploads a problem. Vectors are packed, or padded with garbage to a multiple of 128 rows.
    pub(crate) fn new(
        gpu: &Gpu,
        problem: &Problem,
        layout: ScaleLayout,
        x_layout: ScaleLayout,
        padded: bool,
    ) -> Self {
        let w = problem.weights(layout).unwrap();
        let x = match padded {
            true => problem.padded_vectors(x_layout, 99),
            false => problem.vectors(x_layout),
        }
        .unwrap();
        Self {
            shape: problem.shape,
            codes: gpu.upload(w.codes),
            scales: gpu.upload(&w.scales),
            layout,
            global: w.global(),
            row_alpha: w.row_alpha().map(|alpha| gpu.upload(alpha)),
            x_codes: gpu.upload(&x.codes),
            x_scales: gpu.upload(&x.scales),
            x_layout,
            x_strides: x.code_strides.zip(x.scale_strides),
        }
    }

    /// A problem of so many batches. The last batch has the weights of `one`; all other weights are zero.
    pub(crate) fn last_of(gpu: &Gpu, one: &Problem, batches: usize, layout: ScaleLayout) -> Self {
        let last = |bytes: &[u8]| {
            let size = batches * bytes.len();
            let mut all = gpu.stream.alloc_zeros::<u8>(size).unwrap();
            let mut end = all.slice_mut(size - bytes.len()..);
            gpu.stream.memcpy_htod(bytes, &mut end).unwrap();
            all
        };
        let (m, n, k) = (one.shape.m(), one.shape.n(), one.shape.k());
        let w = one.weights(layout).unwrap();
        let x = one.vectors(layout).unwrap();
        Self {
            shape: sized(m, n, k, batches),
            codes: last(w.codes),
            scales: last(&w.scales),
            layout,
            global: w.global(),
            row_alpha: None,
            x_codes: gpu.upload(&x.codes.repeat(batches)),
            x_scales: gpu.upload(&x.scales.repeat(batches)),
            x_layout: layout,
            x_strides: None,
        }
    }

    pub(crate) fn weights(&self) -> Weights<'_, Device> {
        let (codes, scales) = (self.codes.as_view(), self.scales.as_view());
        let weights = Weights::on_device(&self.shape, codes, scales, self.layout, self.global);
        match &self.row_alpha {
            Some(alpha) => weights.unwrap().with_row_alpha_on_device(alpha.as_view()),
            None => weights,
        }
        .unwrap()
    }

    pub(crate) fn vectors(&self) -> Vectors<'_, Device> {
        let one = VectorScale::Shared(GlobalScale::ONE);
        let (codes, scales) = (self.x_codes.as_view(), self.x_scales.as_view());
        let mut vectors = Nvfp4Vectors::new(codes, scales, self.x_layout, one);
        if let Some((codes, scales)) = self.x_strides {
            vectors = vectors.with_code_strides(codes).with_scale_strides(scales);
        }
        Vectors::Nvfp4(vectors)
    }

    /// The problem as a call by address. Vectors must be packed, and rows must have no factors.
    pub(crate) fn call(&self, gpu: &Gpu, y: &CudaSlice<f32>) -> Call {
        assert!(self.row_alpha.is_none() && self.x_strides.is_none());
        let (n, blocks) = (self.shape.n(), self.shape.blocks());
        let strides = |row, batch| Strides { row, batch };
        let weights = RawWeights {
            codes: gpu.address(&self.codes),
            scales: gpu.address(&self.scales),
            layout: self.layout,
            global: self.global,
            row_alpha: 0,
            row_alpha_batch_stride: 0,
            select: None,
        };
        let row = self.shape.row_code_bytes();
        let vectors = RawVectors::Nvfp4 {
            codes: gpu.address(&self.x_codes),
            code_strides: strides(row, n * row),
            scales: gpu.address(&self.x_scales),
            layout: self.x_layout,
            scale_strides: strides(blocks, self.x_layout.bytes(n, blocks)),
            global: GlobalScale::ONE,
            vector_alpha: 0,
            digits: 1,
        };
        let output = RawOutput::packed(gpu.address(y), FloatType::F32);
        Call::new(&self.shape, &weights, &vectors, &output).unwrap()
    }
}

/// The f32 output `y`.
pub(crate) fn into(y: &mut CudaSlice<f32>) -> Output<'_, Device> {
    Output::on_device(y.as_view_mut())
}
