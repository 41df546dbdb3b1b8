//! The kernels that change the layout of the weights' block scales, `csrc/kernels/relayout.cuh`.

use nvfp4_gemv_targets::units::HELPERS;

use super::params::{
    NVFP4_ATOM_BLOCKS, NVFP4_ATOM_BYTES, NVFP4_ATOM_LINE_BYTES, NVFP4_RELAYOUT_THREADS,
    NVFP4_RELAYOUT_TILE_ATOMS, NVFP4_RELAYOUT_TILE_ROWS, nvfp4_relayout_params,
};
use super::plan::{KernelParameters, Launch, Parameters};
use crate::shape::Shape;
use crate::types::ScaleLayout;

/// Bytes of an atom in shared memory, with a gap that puts the atoms of a row into other banks.
const ATOM_BYTES: u32 = NVFP4_ATOM_BYTES + NVFP4_ATOM_LINE_BYTES;

/// The launch that writes the scales at `source` to `destination` in the layout `to`, from the other layout. The
/// addresses were checked, and the shape is not empty.
pub fn launch(shape: &Shape, to: ScaleLayout, source: u64, destination: u64) -> Launch {
    let parameters = nvfp4_relayout_params {
        m: shape.m() as i32,
        l: shape.l() as i32,
        blocks: shape.blocks() as i32,
        source,
        destination,
        ..nvfp4_relayout_params::default()
    };
    let rows = shape.m().div_ceil(NVFP4_RELAYOUT_TILE_ROWS as usize);
    let blocks = (NVFP4_RELAYOUT_TILE_ATOMS * NVFP4_ATOM_BLOCKS) as usize;
    let tiles = rows * shape.l() * shape.blocks().div_ceil(blocks);
    Launch {
        entry: match to {
            ScaleLayout::Linear => "relayout_to_linear",
            ScaleLayout::Tiled128x4 => "relayout_to_128x4",
        },
        unit: HELPERS,
        // The kernel strides over tiles that a grid does not hold.
        grid: [tiles.min(i32::MAX as usize) as u32, 1, 1],
        threads: NVFP4_RELAYOUT_THREADS,
        static_shared: NVFP4_RELAYOUT_TILE_ATOMS * ATOM_BYTES,
        parameters: Parameters::of(&parameters),
        ..Launch::default()
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_relayout_params {}
