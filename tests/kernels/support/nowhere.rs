//! Operands at addresses that nobody has, far apart and well aligned: for tests that need no GPU.

use nvfp4_gemv::{
    FloatType, GlobalScale, RawOutput, RawVectors, RawWeights, ScaleLayout, Shape, Strides,
};

pub(crate) const OUTPUT: RawOutput = RawOutput::packed(0x70_0000_0000, FloatType::F16);

pub(crate) fn weights(layout: ScaleLayout) -> RawWeights {
    RawWeights {
        codes: 0x10_0000_0000,
        scales: 0x20_0000_0000,
        layout,
        global: GlobalScale::Multiplier(0.5),
        row_alpha: 0x30_0000_0000,
        row_alpha_batch_stride: 0,
        select: None,
    }
}

/// NVFP4 vectors, in 128 rows for each batch.
pub(crate) fn vectors(shape: &Shape, layout: ScaleLayout) -> RawVectors {
    let strides = |row: usize| Strides {
        row,
        batch: 128 * row,
    };
    RawVectors::Nvfp4 {
        codes: 0x40_0000_0000,
        code_strides: strides(shape.row_code_bytes()),
        scales: 0x50_0000_0000,
        layout,
        scale_strides: Strides {
            batch: layout.bytes(128, shape.blocks()),
            ..strides(shape.blocks())
        },
        global: GlobalScale::Divisor(2.0),
        vector_alpha: 0x60_0000_0000,
        digits: 1,
    }
}
