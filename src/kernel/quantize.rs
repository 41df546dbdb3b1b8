//! The kernels that quantise vectors, `csrc/kernels/quantize.cuh`: one for each element type and each [`Input`].

use nvfp4_gemv_targets::units::HELPERS;

use super::params::{
    NVFP4_GATE_CLAMPED, NVFP4_GATE_GELU_TANH, NVFP4_GATE_SILU, NVFP4_GLOBAL_COMPUTED,
    NVFP4_GLOBAL_PER_VECTOR, NVFP4_GLOBAL_SHARED, NVFP4_QUANTIZE_THREADS, NVFP4_WARP, nvfp4_gate,
    nvfp4_quantize_params,
};
use super::plan::{KernelParameters, Launch, MOST_GRID_Y, Parameters};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::shape::{Dims, Shape, Strides};
use crate::tensor::GlobalScale;
use crate::types::{FloatType, RowOrder, ScaleLayout};

/// The source of the global scales of quantised vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Global {
    /// Each vector's largest magnitude / 2688; 1 for a vector of zeros.
    Computed,
    /// One for all vectors. A divisor counts as its reciprocal in f32.
    Shared(GlobalScale),
    /// Multipliers by address, f32 `[L][N]`, 4-byte aligned. A vector whose scale is not positive
    /// and finite is written as one that holds a NaN: see `raw::quantize`.
    PerVector(u64),
}

/// What is quantised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Input {
    /// The vectors.
    #[default]
    Plain,
    /// What a gate makes of vectors of 2K elements, which are results of `gate` and `up` in an order.
    Gated {
        /// The gate.
        gate: Gate,
        /// The order.
        order: RowOrder,
    },
    /// [`rms_norm`](crate::rms_norm) of the vectors.
    Normed {
        /// K weights of the vectors' type, by address, 16-byte aligned.
        weight: u64,
        /// Added to the mean square; positive and finite.
        epsilon: f32,
    },
}

impl Input {
    /// One of each kind, with no address.
    pub const KINDS: [Self; 3] = [
        Self::Plain,
        Self::Gated {
            gate: Gate::Silu,
            order: RowOrder::Stacked,
        },
        Self::Normed {
            weight: 0,
            epsilon: 1e-5,
        },
    ];

    /// What a gate makes of the vectors, or the vectors themselves.
    pub(crate) fn of(gate: Option<(Gate, RowOrder)>) -> Self {
        match gate {
            Some((gate, order)) => Self::Gated { gate, order },
            None => Self::Plain,
        }
    }

    /// The vectors that are read, of which those of a shape are made, each batch in so many copies. M means nothing.
    pub(crate) fn source(&self, shape: &Shape, copies: usize) -> Result<Shape> {
        let batches = shape.l();
        if copies == 0 || !batches.is_multiple_of(copies) {
            return Err(Error::Copies { copies, batches });
        }
        let elements = match self {
            Self::Gated { .. } => 2,
            Self::Plain | Self::Normed { .. } => 1,
        };
        Shape::new(Dims {
            m: 0,
            n: shape.n(),
            k: elements * shape.k(),
            l: batches / copies,
        })
    }

    fn entry(&self, element: FloatType, digits: usize) -> &'static str {
        match (self, element) {
            (Self::Plain, FloatType::F16) if digits != 1 => "quantize_digits_f16",
            (Self::Plain, FloatType::Bf16) if digits != 1 => "quantize_digits_bf16",
            (Self::Plain, FloatType::F32) if digits != 1 => "quantize_digits_f32",
            (Self::Plain, FloatType::F16) => "quantize_f16",
            (Self::Plain, FloatType::Bf16) => "quantize_bf16",
            (Self::Plain, FloatType::F32) => "quantize_f32",
            (Self::Gated { .. }, FloatType::F16) => "quantize_gated_f16",
            (Self::Gated { .. }, FloatType::Bf16) => "quantize_gated_bf16",
            (Self::Gated { .. }, FloatType::F32) => "quantize_gated_f32",
            (Self::Normed { .. }, FloatType::F16) => "quantize_normed_f16",
            (Self::Normed { .. }, FloatType::Bf16) => "quantize_normed_bf16",
            (Self::Normed { .. }, FloatType::F32) => "quantize_normed_f32",
        }
    }
}

/// Vectors `[L][N][K]` to quantise, and places for the results, by address; see `QuantizedVectors`.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// The element type of the vectors.
    pub element: FloatType,
    /// What becomes of the vectors before they are quantised.
    pub input: Input,
    /// Whether this is a programmatic dependent launch, on GPUs of compute capability 9.0 and up. Nothing is read or
    /// written before the launch before has ended.
    pub chained: bool,
    /// Whether launches that depend on this one fetch nothing before they wait, as those with late ids do: they may then
    /// start before the vectors are read. Weights that are fetched meanwhile would delay that.
    pub early: bool,
    /// Each batch of vectors is written so often, as batches that follow each other, as the experts of a vector want
    /// them. There are L / copies batches of vectors then; usually one copy.
    pub copies: usize,
    /// The vectors, 16-byte aligned: of 2K elements each where they are gated.
    pub values: u64,
    /// Strides of the vectors in bytes, multiples of 16.
    pub strides: Strides,
    /// [Digits](crate::Nvfp4Vectors::with_digits) of a vector, usually 1. With several the input is plain and global
    /// scales are computed, and N · digits vectors of codes and scales are written for N.
    pub digits: usize,
    /// The source of the global scales.
    pub global: Global,
    /// Written: packed E2M1 codes, dense `[L][N][K/2]`, 8-byte aligned.
    pub codes: u64,
    /// Written: E4M3 block scales, N rows of the layout a batch, dense batches. In the 128x4 layout
    /// 16-byte aligned, and its padding is zeroed.
    pub scales: u64,
    /// The layout of the block scales.
    pub layout: ScaleLayout,
    /// Written: the global scales as multipliers, f32 `[L][N]`, 4-byte aligned. `RawVectors::Nvfp4` takes them as its
    /// `vector_alpha`.
    pub vector_alpha: u64,
}

/// The launch that quantises N vectors of each of L batches, for operands that were checked.
pub fn launch(shape: &Shape, q: &Quantize) -> Launch {
    let (global_kind, global, globals) = match q.global {
        Global::Computed => (NVFP4_GLOBAL_COMPUTED, 0.0, 0),
        Global::Shared(global) => (NVFP4_GLOBAL_SHARED, global.multiplier() as f32, 0),
        Global::PerVector(globals) => (NVFP4_GLOBAL_PER_VECTOR, 0.0, globals),
    };
    let (norm_weight, epsilon) = match q.input {
        Input::Normed { weight, epsilon } => (weight, epsilon),
        Input::Plain | Input::Gated { .. } => (0, 0.0),
    };
    let parameters = nvfp4_quantize_params {
        n: shape.n() as i32,
        l: shape.l() as i32,
        blocks: shape.blocks() as i32,
        global_kind: global_kind as i32,
        global,
        globals,
        vectors: q.values,
        vector_row_bytes: q.strides.row as i64,
        vector_batch_bytes: q.strides.batch as i64,
        tiled: (q.layout == ScaleLayout::Tiled128x4).into(),
        gate: match q.input {
            Input::Gated { gate, order } => operand(gate, order),
            Input::Plain | Input::Normed { .. } => nvfp4_gate::default(),
        },
        norm_weight,
        epsilon,
        copies: q.copies as i32,
        early: q.early.into(),
        digits: q.digits as i32,
        codes: q.codes,
        scales: q.scales,
        alpha: q.vector_alpha,
        ..nvfp4_quantize_params::default()
    };
    // The kernel strides over vectors and batches that a grid does not hold.
    let [vectors, batches] = [shape.n(), shape.l()].map(|size| (size as u32).min(MOST_GRID_Y));
    Launch {
        entry: q.input.entry(q.element, q.digits),
        unit: HELPERS,
        grid: [ctas(shape), vectors, batches],
        threads: NVFP4_QUANTIZE_THREADS,
        // A maximum or a sum of each warp.
        static_shared: NVFP4_QUANTIZE_THREADS / NVFP4_WARP * 4,
        dependent: q.chained,
        parameters: Parameters::of(&parameters),
        ..Launch::default()
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_quantize_params {}

/// A gate as kernels take it.
pub(super) fn operand(gate: Gate, order: RowOrder) -> nvfp4_gate {
    let (kind, alpha, limit) = match gate {
        Gate::Silu => (NVFP4_GATE_SILU, 0.0, 0.0),
        Gate::GeluTanh => (NVFP4_GATE_GELU_TANH, 0.0, 0.0),
        Gate::Clamped { alpha, limit } => (NVFP4_GATE_CLAMPED, alpha, limit),
    };
    nvfp4_gate {
        kind: kind as i32,
        interleaved: (order == RowOrder::Interleaved).into(),
        alpha,
        limit,
    }
}

/// CTAs that share a vector: two threads for each block, as long as that helps. Each of them reads the
/// whole vector, so they are few, and fewer where there are vectors enough to fill a device.
fn ctas(shape: &Shape) -> u32 {
    const MOST: usize = 16;
    const ENOUGH: usize = 512;
    let most = (ENOUGH / (shape.n() * shape.l()).max(1)).clamp(1, MOST);
    let threads = NVFP4_QUANTIZE_THREADS as usize;
    (2 * shape.blocks()).div_ceil(threads).min(most) as u32
}
