//! One problem by address, checked: what a launch plan is made of.

use super::params::{
    NVFP4_OUTPUT_BF16, NVFP4_OUTPUT_F16, NVFP4_OUTPUT_F32, nvfp4_epilogue, nvfp4_scale_steps,
};
use crate::operands::{Operands, RawOutput, RawVectors, RawWeights};
use crate::shape::Shape;
use crate::types::{FloatType, ScaleLayout};

/// One problem by address. `Call::new` in `raw` checks everything; what is in one is consistent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    pub(crate) shape: Shape,
    pub(crate) weights: RawWeights,
    pub(crate) vectors: RawVectors,
    pub(crate) output: RawOutput,
    /// The product of the global scales.
    pub(crate) alpha: f32,
}

/// The vectors of one pass over the weights: addresses of the first, and strides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) n: i32,
    pub(super) vectors: u64,
    pub(super) vector_row_bytes: i64,
    pub(super) vector_batch_bytes: i64,
    pub(super) vector_scales: u64,
    pub(super) vector_scale_steps: nvfp4_scale_steps,
    pub(super) vector_scale_batch_bytes: i64,
    pub(super) epilogue: nvfp4_epilogue,
}

impl Call {
    /// The problem's dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What dispatch asks about the operands.
    pub fn operands(&self) -> Operands {
        Operands::of(&self.shape, &self.weights, &self.vectors)
    }

    /// Passes over the weights, each for at most `most` vectors.
    pub(super) fn passes(&self, most: usize) -> impl Iterator<Item = Pass> + '_ {
        let n = self.shape.n();
        (0..n)
            .step_by(most.max(1))
            .map(move |first| self.pass(first, most.min(n - first)))
    }

    /// The pass for the vectors `first..first + n`.
    pub(super) fn pass(&self, first: usize, n: usize) -> Pass {
        let blocks = self.shape.blocks();
        let (vectors, strides, vector_scales, layout, scale_strides) = match self.vectors {
            RawVectors::Nvfp4 {
                codes,
                code_strides,
                scales,
                layout,
                scale_strides,
                ..
            } => (codes, code_strides, scales, layout, scale_strides),
            RawVectors::Dense {
                values, strides, ..
            } => {
                let none = crate::tensor::Strides { row: 0, batch: 0 };
                (values, strides, 0, ScaleLayout::Linear, none)
            }
        };
        // The scales of a vector, one of fewer than 32, lie 16 bytes apart in an atom of the 128x4 layout.
        let scale_row = match layout {
            ScaleLayout::Linear => scale_strides.row,
            ScaleLayout::Tiled128x4 => ATOM_ROW_BYTES,
        };
        Pass {
            n: n as i32,
            vectors: vectors + (first * strides.row) as u64,
            vector_row_bytes: strides.row as i64,
            vector_batch_bytes: strides.batch as i64,
            vector_scales: vector_scales + (first * scale_row) as u64,
            vector_scale_steps: scale_steps(layout, blocks, scale_strides.row),
            vector_scale_batch_bytes: scale_strides.batch as i64,
            epilogue: self.epilogue(first),
        }
    }

    /// Where the weights' block scales lie.
    pub(super) fn weight_scale_steps(&self) -> nvfp4_scale_steps {
        let blocks = self.shape.blocks();
        scale_steps(self.weights.layout, blocks, blocks)
    }

    /// What becomes of sums, for the vectors from `first` on.
    pub(super) fn epilogue(&self, first: usize) -> nvfp4_epilogue {
        let (m, n) = (self.shape.m(), self.shape.n());
        let vector_alpha = match self.vectors {
            RawVectors::Nvfp4 { vector_alpha, .. } => vector_alpha,
            RawVectors::Dense { .. } => 0,
        };
        nvfp4_epilogue {
            alpha: self.alpha,
            row_alpha: self.weights.row_alpha,
            row_alpha_batch: self.weights.row_alpha_batch_stride as i64,
            vector_alpha: match vector_alpha {
                0 => 0,
                address => address + 4 * first as u64,
            },
            vector_alpha_batch: n as i64,
            output: self.output.address + (first * m * self.output.element.bytes()) as u64,
            output_batch: (n * m) as i64,
            output_type: match self.output.element {
                FloatType::F16 => NVFP4_OUTPUT_F16,
                FloatType::Bf16 => NVFP4_OUTPUT_BF16,
                FloatType::F32 => NVFP4_OUTPUT_F32,
            } as i32,
            ..nvfp4_epilogue::default()
        }
    }
}

/// Bytes of an atom's row in the 128x4 layout: the scales of rows 32 apart.
const ATOM_ROW_BYTES: usize = 16;

/// How the scales of rows of `blocks` blocks lie; `row_stride` counts for the linear layout.
fn scale_steps(layout: ScaleLayout, blocks: usize, row_stride: usize) -> nvfp4_scale_steps {
    let (row_stride, group_stride, tiled) = match layout {
        ScaleLayout::Linear => (row_stride, 4, false),
        ScaleLayout::Tiled128x4 => (layout.bytes(128, blocks), 512, true),
    };
    nvfp4_scale_steps {
        row_stride: row_stride as i64,
        group_stride,
        tiled,
        ..nvfp4_scale_steps::default()
    }
}

/// 2^32 / y rounded up, in 32 bits, for kernels that divide by multiplying; 0 for a y of 1.
pub(super) fn magic(y: u32) -> u32 {
    match y {
        1 => 0,
        y => (1_u64 << 32).div_ceil(u64::from(y)) as u32,
    }
}
