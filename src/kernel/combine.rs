//! The kernel that sums a token's experts, `csrc/kernels/combine.cuh`.

use nvfp4_gemv_targets::units::HELPERS;

use super::call::float_type;
use super::params::{NVFP4_COMBINE_THREADS, nvfp4_combine_params, nvfp4_epilogue};
use super::plan::{KernelParameters, Launch, MOST_GRID_Y, Parameters};
use crate::operands::RawOutput;
use crate::shape::{Shape, Strides};
use crate::types::FloatType;

/// Results `[N][slots][M]` that become one for each of N tokens, by address:
/// `y[n] = Σ_s weights[n][s] · inputs[n][s]`, in f32, in the order of the slots: one fused
/// multiply-add for each.
#[derive(Clone, Copy, Debug)]
pub struct Combine {
    /// Results that become one.
    pub slots: usize,
    /// The type of the results.
    pub element: FloatType,
    /// The results, densely packed, aligned to their type.
    pub inputs: u64,
    /// What they are multiplied by: f32 `[N][slots]`, 4-byte aligned.
    pub weights: u64,
    /// i32 `[N][slots]`, 4-byte aligned, or 0: no ids. Where a number is -1 the slot counts as nothing, whatever its
    /// result and its weight are. Other numbers say nothing here.
    pub ids: u64,
    /// Where the sums go, `[N][M]`, with what is added to them.
    pub output: RawOutput,
    /// Whether this is a programmatic dependent launch, on GPUs of compute capability 9.0 and up. Nothing is read or
    /// written before the launch before has ended. What follows may start at once, and must wait for this launch too.
    pub chained: bool,
}

/// The launch that sums: M and N of the shape count, and operands were checked.
pub fn launch(shape: &Shape, c: &Combine) -> Launch {
    let size = c.output.element.bytes();
    let packed = Strides::packed(shape.n(), shape.m() * size);
    let strides = c.output.strides.unwrap_or(packed);
    let has_operands = c.output.bias != 0 || c.output.residual != 0;
    let parameters = nvfp4_combine_params {
        m: shape.m() as i32,
        n: shape.n() as i32,
        slots: c.slots as i32,
        input_type: float_type(c.element),
        inputs: c.inputs,
        input_slot: shape.m() as i64,
        weights: c.weights,
        ids: c.ids,
        epilogue: nvfp4_epilogue {
            alpha: 1.0,
            has_operands: has_operands.into(),
            output: c.output.address,
            output_vector: (strides.row / size) as i32,
            output_type: float_type(c.output.element),
            bias: c.output.bias,
            residual: c.output.residual,
            ..nvfp4_epilogue::default()
        },
    };
    Launch {
        entry: "combine",
        unit: HELPERS,
        // The kernel strides over tokens that a grid does not hold.
        grid: [
            (shape.m() as u32).div_ceil(NVFP4_COMBINE_THREADS),
            (shape.n() as u32).min(MOST_GRID_Y),
            1,
        ],
        threads: NVFP4_COMBINE_THREADS,
        dependent: c.chained,
        parameters: Parameters::of(&parameters),
        ..Launch::default()
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_combine_params {}
