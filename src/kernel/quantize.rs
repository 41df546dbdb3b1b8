//! The kernels that quantise vectors, `csrc/kernels/quantize.cuh`: one for each element type and scale layout.

use nvfp4_gemv_targets::units::HELPERS;

use super::params::{
    NVFP4_GLOBAL_COMPUTED, NVFP4_GLOBAL_PER_VECTOR, NVFP4_GLOBAL_SHARED, NVFP4_QUANTIZE_THREADS,
    NVFP4_WARP, nvfp4_quantize_params,
};
use super::plan::{KernelParameters, Launch, MOST_GRID_Y, Parameters};
use crate::shape::{Shape, Strides};
use crate::tensor::GlobalScale;
use crate::types::{FloatType, ScaleLayout};

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

/// Vectors `[L][N][K]` to quantise, and places for the results, by address; see `QuantizedVectors`.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// The element type of the vectors.
    pub element: FloatType,
    /// The vectors, 16-byte aligned.
    pub values: u64,
    /// Strides of the vectors in bytes, multiples of 16.
    pub strides: Strides,
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
        codes: q.codes,
        scales: q.scales,
        alpha: q.vector_alpha,
        ..nvfp4_quantize_params::default()
    };
    // The kernel strides over vectors and batches that a grid does not hold.
    let [vectors, batches] = [shape.n(), shape.l()].map(|size| (size as u32).min(MOST_GRID_Y));
    Launch {
        entry: match (q.element, q.layout) {
            (FloatType::F16, ScaleLayout::Linear) => "quantize_f16_linear",
            (FloatType::F16, ScaleLayout::Tiled128x4) => "quantize_f16_128x4",
            (FloatType::Bf16, ScaleLayout::Linear) => "quantize_bf16_linear",
            (FloatType::Bf16, ScaleLayout::Tiled128x4) => "quantize_bf16_128x4",
            (FloatType::F32, ScaleLayout::Linear) => "quantize_f32_linear",
            (FloatType::F32, ScaleLayout::Tiled128x4) => "quantize_f32_128x4",
        },
        unit: HELPERS,
        grid: [ctas(shape), vectors, batches],
        threads: NVFP4_QUANTIZE_THREADS,
        // A maximum of each warp.
        static_shared: NVFP4_QUANTIZE_THREADS / NVFP4_WARP * 4,
        parameters: Parameters::of(&parameters),
        ..Launch::default()
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_quantize_params {}

/// CTAs that share a vector: a thread for each block, as long as that helps. Each of them reads the
/// whole vector, so they are few, and fewer where there are vectors enough to fill a device.
fn ctas(shape: &Shape) -> u32 {
    const MOST: usize = 16;
    const ENOUGH: usize = 512;
    let most = (ENOUGH / (shape.n() * shape.l()).max(1)).clamp(1, MOST);
    let threads = NVFP4_QUANTIZE_THREADS as usize;
    shape.blocks().div_ceil(threads).min(most) as u32
}
