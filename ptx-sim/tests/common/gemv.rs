//! The CUDA-core kernels' names and parameters.

/// The kernel's name for up to `vectors` vectors: the direct one, with its number of
/// `nvfp4::Activation`, or else the integer-dot one.
pub(crate) fn kernel(direct: Option<u32>, vectors: usize, blocks_per_load: usize) -> String {
    let vectors = vectors.next_power_of_two();
    let kernel = match direct {
        Some(activation) => format!("_ZN5nvfp414gemv_cuda_coreILi{activation}ELi{vectors}"),
        None if blocks_per_load == 4 => {
            return format!("_ZN5nvfp415gemv_nvfp4_wideILi{vectors}EEEvNS_14CudaCoreParamsE");
        }
        None => format!("_ZN5nvfp410gemv_nvfp4ILi{vectors}"),
    };
    format!("{kernel}ELi{blocks_per_load}EEEvNS_14CudaCoreParamsE")
}

/// `int8::shared_bytes`, or for four blocks a load `wide::shared_bytes`: vectors and their scales, then
/// partial sums of a CTA's tiles of four rows.
pub(crate) fn shared_bytes(
    vectors: usize,
    blocks: usize,
    tiles: usize,
    k_split: usize,
    blocks_per_load: usize,
) -> u32 {
    let vectors = vectors.next_power_of_two();
    let vector_bytes = match blocks_per_load {
        4 => blocks.next_multiple_of(128) * (32 + 2),
        _ => blocks * (16 + 4),
    };
    (vectors * vector_bytes + tiles * k_split * 4 * vectors * 4) as u32
}

/// `ScaleLayout::make`: row stride, group stride, whether it is the 128x4 layout.
pub(crate) fn layout(blocks: usize, linear_row: usize, tiled: bool) -> (i64, i32, u8) {
    if tiled {
        (blocks.div_ceil(4) as i64 * 512, 512, 1)
    } else {
        (linear_row as i64, 4, 0)
    }
}

/// Row tiles of a batch: `row_tiles` in `cuda_core.cuh`.
pub(crate) fn row_tiles(m: usize, tiled: bool, rows: usize) -> usize {
    if tiled {
        m.div_ceil(32 * rows) * 32
    } else {
        m.div_ceil(rows)
    }
}

/// `CudaCoreParams`, in its order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Params {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) batches: usize,
    pub(crate) blocks: usize,
    pub(crate) k_split: usize,
    pub(crate) row_step: usize,
    pub(crate) tiles_per_cta: usize,
    pub(crate) tiles_left: usize,
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    pub(crate) scale_layout: (i64, i32, u8),
    pub(crate) code_row: usize,
    pub(crate) vectors: u64,
    pub(crate) vector_row: usize,
    pub(crate) vector_batch: usize,
    pub(crate) vector_scales: u64,
    pub(crate) vector_scale_layout: (i64, i32, u8),
    pub(crate) vector_scale_batch: usize,
    pub(crate) alpha: f32,
    pub(crate) row_alpha: u64,
    pub(crate) row_alpha_batch: usize,
    pub(crate) vector_alpha: u64,
    pub(crate) vector_alpha_batch: usize,
    pub(crate) output: u64,
    pub(crate) output_batch: usize,
    pub(crate) output_type: i32,
}

impl Params {
    /// The structure as the kernel reads it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(192);
        for v in [
            self.m,
            self.n,
            self.batches,
            self.blocks,
            self.k_split,
            self.row_step,
            self.tiles_per_cta,
            self.tiles_left,
        ] {
            b.extend((v as i32).to_le_bytes());
        }
        b.extend(self.codes.to_le_bytes());
        b.extend(self.scales.to_le_bytes());
        put_layout(&mut b, self.scale_layout);
        b.extend(self.code_row.to_le_bytes());
        b.extend(self.vectors.to_le_bytes());
        b.extend(self.vector_row.to_le_bytes());
        b.extend(self.vector_batch.to_le_bytes());
        b.extend(self.vector_scales.to_le_bytes());
        put_layout(&mut b, self.vector_scale_layout);
        b.extend(self.vector_scale_batch.to_le_bytes());
        b.extend(self.alpha.to_le_bytes());
        b.extend([0; 4]);
        b.extend(self.row_alpha.to_le_bytes());
        b.extend(self.row_alpha_batch.to_le_bytes());
        b.extend(self.vector_alpha.to_le_bytes());
        b.extend(self.vector_alpha_batch.to_le_bytes());
        b.extend(self.output.to_le_bytes());
        b.extend(self.output_batch.to_le_bytes());
        b.extend(self.output_type.to_le_bytes());
        b.extend([0; 4]);
        b
    }
}

fn put_layout(b: &mut Vec<u8>, (row, group, tiled): (i64, i32, u8)) {
    b.extend(row.to_le_bytes());
    b.extend(group.to_le_bytes());
    b.extend([tiled, 0, 0, 0]);
}
