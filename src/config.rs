//! How a kernel cuts a problem into warps: chosen here, obeyed by the launchers.

use crate::shape::Shape;

/// The cut of the CUDA-core kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CudaCoreConfig {
    /// Blocks of 16 codes a lane loads at once: 2 (16 bytes) or 1 (8 bytes).
    pub blocks_per_load: u32,
    /// Warps a CTA, 1 to 8.
    pub warps: u32,
    /// Warps that share a row tile and split K between them; divides `warps`.
    pub k_split: u32,
}

impl CudaCoreConfig {
    /// The most warps a CTA.
    pub const MAX_WARPS: u32 = 8;

    /// The default for a problem on a device with `multiprocessors` SMs. `wide` says that codes,
    /// their rows and their scales are aligned for 16-byte loads.
    pub fn for_problem(shape: &Shape, wide: bool, multiprocessors: u32) -> Self {
        let blocks_per_load = if wide { 2 } else { 1 };
        let warps = 4;
        // Enough warps for the loads in flight that memory latency asks for: about 16 an SM.
        // But no warp without a step of its own.
        let steps = shape.blocks().div_ceil(32 * blocks_per_load as usize);
        let tiles = shape.m().div_ceil(rows_per_warp(shape.n())) * shape.l();
        let wanted = 16 * multiprocessors as usize;
        let mut k_split = 1;
        while k_split < warps && tiles * k_split as usize <= wanted && k_split as usize * 2 <= steps
        {
            k_split *= 2;
        }
        Self {
            blocks_per_load,
            warps,
            k_split,
        }
    }

    /// Successive f32 roundings of any term: the additions over a lane's blocks, over lanes, over
    /// parts, and the multiplications by alpha, row alpha and vector alpha. `dense` vectors add the
    /// 16 of a block and the product with its scale.
    pub fn roundings(&self, shape: &Shape, dense: bool) -> u32 {
        let blocks = shape.blocks() as u32;
        let lanes = 32 * self.k_split * self.blocks_per_load;
        let in_lane = blocks.div_ceil(lanes) * self.blocks_per_load;
        let across_lanes = 5;
        let across_parts = self.k_split;
        let block = if dense { 16 } else { 0 };
        in_lane + across_lanes + across_parts + 3 + block + ALPHA
    }

    /// The kernel has code for this.
    pub(crate) fn is_legal(&self, wide: bool) -> bool {
        (self.blocks_per_load == 1 || self.blocks_per_load == 2 && wide)
            && (1..=Self::MAX_WARPS).contains(&self.warps)
            && self.k_split >= 1
            && self.warps.is_multiple_of(self.k_split)
    }
}

/// The product of the global scales, rounded to f32.
const ALPHA: u32 = 1;

/// Rows a warp computes at once, as `rows_per_warp` in `gemv_cuda_core.cuh`.
fn rows_per_warp(n: usize) -> usize {
    if n <= 2 { 4 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn defaults_are_legal(m in 0usize..100_000, n in 1usize..=16, blocks in 1usize..4000, l in 0usize..9, sms in 1u32..200) {
            let shape = Shape::new(m, n, blocks * 16, l).unwrap();
            for wide in [false, true] {
                let config = CudaCoreConfig::for_problem(&shape, wide, sms);
                prop_assert!(config.is_legal(wide), "{config:?}");
            }
        }
    }

    #[test]
    fn illegal_cuts() {
        let good = CudaCoreConfig {
            blocks_per_load: 1,
            warps: 4,
            k_split: 2,
        };
        assert!(good.is_legal(false));
        for bad in [
            CudaCoreConfig {
                blocks_per_load: 2,
                ..good
            },
            CudaCoreConfig {
                blocks_per_load: 0,
                ..good
            },
            CudaCoreConfig { warps: 0, ..good },
            CudaCoreConfig { warps: 9, ..good },
            CudaCoreConfig { k_split: 3, ..good },
            CudaCoreConfig { k_split: 0, ..good },
        ] {
            assert!(!bad.is_legal(false), "{bad:?}");
        }
    }

    #[test]
    fn few_rows_split_k() {
        let split = |m, k| {
            let shape = Shape::gemv(m, k, 1).unwrap();
            CudaCoreConfig::for_problem(&shape, true, 132).k_split
        };
        assert_eq!(split(128, 16384), 4);
        assert_eq!(split(128, 256), 1); // one step: nothing to split
        assert_eq!(split(100_000, 16384), 1);
    }
}
