//! Which CUDA-core kernel computes a problem, and how it cuts it into warps.

use serde::{Deserialize, Serialize};

use super::ALPHAS;
use super::distinct::distinct;
use crate::shape::Shape;
use crate::types::Activation;

/// The kernels of the CUDA-core path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CudaCoreKernel {
    /// Any activation. Vectors are decoded where they are used, products are f16x2 or f32.
    Direct,
    /// NVFP4 activations. The vectors wait in shared memory as integers, products are dp4a; with four
    /// blocks a load they are f16, as exact as integers.
    IntegerDot,
}

/// The cut of a CUDA-core kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaCoreConfig {
    /// Which kernel.
    pub kernel: CudaCoreKernel,
    /// Blocks of 16 codes a lane loads at once: 2 (16 bytes), 1 (8 bytes), or, in the integer-dot kernel of
    /// Blackwell, 4 (32 bytes).
    pub blocks_per_load: u32,
    /// Warps a CTA.
    pub warps: u32,
    /// Warps that share a row tile and split K between them; divides `warps`.
    pub k_split: u32,
    /// CTAs that share a batch's rows. 0 for the direct kernel, which takes one for each `warps / k_split`
    /// row tiles.
    pub ctas: u32,
    /// Programmatic dependent launch, from compute capability 9.0 on: weights are read before the kernels before
    /// this one have ended. [What that asks of the caller](crate::Config#programmatic-dependent-launch).
    #[serde(default)]
    pub dependent: bool,
}

/// What a configuration depends on besides the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaCoreTarget {
    /// The vectors' element type.
    pub activation: Activation,
    /// The most blocks of weights that a load can have, 1, 2 or 4, by their alignment and the device:
    /// `raw::most_blocks_per_load`.
    pub most_blocks_per_load: u32,
    /// The weights' scales are in the 128x4 layout, which makes row tiles of rows 32 apart.
    pub tiled: bool,
    /// Streaming multiprocessors of the device.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a CTA can have.
    pub shared_bytes: u32,
}

impl CudaCoreConfig {
    /// The default for a problem on a device.
    pub fn for_problem(shape: &Shape, target: &CudaCoreTarget) -> Self {
        Self::integer_dot(shape, target).unwrap_or_else(|| Self::direct(shape, target))
    }

    /// The direct kernel's default.
    pub fn direct(shape: &Shape, target: &CudaCoreTarget) -> Self {
        let blocks_per_load = target
            .most_blocks_per_load
            .clamp(1, MOST_DIRECT_BLOCKS_PER_LOAD);
        let warps = 4;
        // Enough warps for the loads in flight that memory latency asks for: about 16 an SM.
        // But no warp without a step of its own.
        let steps = shape.blocks().div_ceil(32 * blocks_per_load as usize);
        let tiles = shape.m().div_ceil(direct_rows(shape.n())) * shape.l();
        let wanted = 16 * target.multiprocessors as usize;
        let mut k_split = 1;
        while k_split < warps && tiles * k_split as usize <= wanted && k_split as usize * 2 <= steps
        {
            k_split *= 2;
        }
        Self {
            kernel: CudaCoreKernel::Direct,
            blocks_per_load,
            warps,
            k_split,
            ctas: 0,
            dependent: false,
        }
    }

    /// The integer-dot kernel's default, if it can run the problem: the widest loads and as many warps as
    /// there is room for, and the K split with the fewest steps on the SM that has the most.
    pub fn integer_dot(shape: &Shape, target: &CudaCoreTarget) -> Option<Self> {
        integer_dot_loads(target)
            .find_map(|blocks_per_load| Self::integer_dot_with(blocks_per_load, shape, target))
    }

    fn integer_dot_with(
        blocks_per_load: u32,
        shape: &Shape,
        target: &CudaCoreTarget,
    ) -> Option<Self> {
        let tiles = integer_dot_tiles(shape, target.tiled);
        // Short rows: two CTAs an SM, so that one starts while the other ends. Measured on an H200:
        // docs/notes/tuning.md.
        let short = pass_vectors(shape.n()) <= 2 && shape.k() <= 4096;
        let cuts: &[(u32, usize)] = if short {
            &[(8, 2), (8, 1), (4, 1)]
        } else {
            &[(16, 1), (8, 1), (4, 1)]
        };
        cuts.iter().find_map(|&(warps, ctas_per_sm)| {
            // A CTA stays inside a batch, whose vectors it decodes.
            let ctas = target.multiprocessors as usize * ctas_per_sm / shape.l().max(1);
            let ctas = ctas.clamp(1, tiles.max(1));
            let cost = |k_split: u32| {
                let rounds = tiles.div_ceil(ctas).div_ceil((warps / k_split) as usize);
                let lanes = 32 * blocks_per_load * k_split;
                // In quarters of a step; ending a tile costs about one.
                rounds * (4 * shape.blocks().div_ceil(lanes as usize) + 1)
            };
            let k_split = (0..=warps.ilog2())
                .map(|log| 1 << log)
                .min_by_key(|&k_split| cost(k_split))?;
            let config = Self {
                kernel: CudaCoreKernel::IntegerDot,
                blocks_per_load,
                warps,
                k_split,
                ctas: ctas as u32,
                dependent: false,
            };
            config.is_legal(shape, target).then_some(config)
        })
    }

    /// Cuts worth measuring, the default first: of both kernels, around what the defaults take.
    pub fn candidates(shape: &Shape, target: &CudaCoreTarget) -> Vec<Self> {
        let direct = Self::direct(shape, target);
        let mut cuts = vec![direct];
        for warps in [4, 8] {
            for k_split in [1, 2, 4, 8] {
                cuts.push(Self {
                    warps,
                    k_split,
                    ..direct
                });
            }
        }
        let tiles = integer_dot_tiles(shape, target.tiled).max(1);
        // Loads of one block are for weights that allow no other.
        for blocks_per_load in integer_dot_loads(target) {
            for (warps, ctas_per_sm) in [(16, 1), (8, 1), (8, 2), (4, 2), (4, 4)] {
                let ctas = target.multiprocessors as usize * ctas_per_sm / shape.l().max(1);
                for k_split in [1, 2, 4, 8] {
                    cuts.push(Self {
                        kernel: CudaCoreKernel::IntegerDot,
                        blocks_per_load,
                        warps,
                        k_split,
                        ctas: ctas.clamp(1, tiles) as u32,
                        dependent: false,
                    });
                }
            }
        }
        // No warp without a step of its own.
        let steps = |cut: &Self| shape.blocks().div_ceil(32 * cut.blocks_per_load as usize);
        cuts.retain(|cut| cut.k_split as usize <= steps(cut));
        cuts.insert(0, Self::for_problem(shape, target));
        distinct(cuts, |cut| cut.is_legal(shape, target))
    }

    /// Successive f32 roundings of any term: the additions over a lane's blocks, over lanes, over
    /// parts, and the multiplications by alpha, row alpha and vector alpha. Dense vectors add the
    /// 16 of a block and the product with its scale. Fields that no kernel has count as the nearest one that does.
    pub fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let blocks = shape.blocks() as u32;
        let blocks_per_load = self.blocks_per_load.clamp(1, MOST_BLOCKS_PER_LOAD);
        let across_parts = self.k_split.clamp(1, MOST_WARPS);
        let lanes = 32 * across_parts * blocks_per_load;
        let in_lane = blocks.div_ceil(lanes) * blocks_per_load;
        let across_lanes = 5;
        let block = match activation {
            Activation::Nvfp4 => 0,
            _ => 16,
        };
        in_lane + across_lanes + across_parts + block + ALPHAS
    }

    /// The kernel has code for this, and the device room.
    pub fn is_legal(&self, shape: &Shape, target: &CudaCoreTarget) -> bool {
        let vectors = pass_vectors(shape.n());
        let integer_dot = || {
            target.activation == Activation::Nvfp4
                && self.warps <= most_integer_dot_warps(vectors)
                && self.ctas >= 1
                && i32::try_from(self.ctas).is_ok()
                && self.shared_bytes(shape, target.tiled) <= u64::from(target.shared_bytes)
        };
        // What a size is made of is in range before the size is computed.
        self.blocks_per_load.is_power_of_two()
            && self.blocks_per_load <= target.most_blocks_per_load
            && self.blocks_per_load <= MOST_BLOCKS_PER_LOAD
            && (1..=MOST_WARPS).contains(&self.warps)
            && self.k_split >= 1
            && self.warps.is_multiple_of(self.k_split)
            && match self.kernel {
                CudaCoreKernel::Direct => {
                    self.warps <= DIRECT_WARPS
                        && self.ctas == 0
                        && self.blocks_per_load <= MOST_DIRECT_BLOCKS_PER_LOAD
                }
                CudaCoreKernel::IntegerDot => integer_dot(),
            }
    }

    /// Bytes of shared memory of an integer-dot CTA: `int8::shared_bytes` in `gemv_nvfp4.cuh`,
    /// `wide::shared_bytes` in `gemv_nvfp4_wide.cuh`.
    fn shared_bytes(&self, shape: &Shape, tiled: bool) -> u64 {
        let vectors = pass_vectors(shape.n());
        let tiles = integer_dot_tiles(shape, tiled).div_ceil(self.ctas as usize);
        let vector_bytes = match self.blocks_per_load {
            4 => vectors * shape.blocks().next_multiple_of(WIDE_SPAN_BLOCKS) * (32 + 2),
            _ => vectors * shape.blocks() * (16 + 4),
        };
        let partial_bytes = tiles * self.k_split as usize * INTEGER_DOT_ROWS * vectors * 4;
        (vector_bytes + partial_bytes) as u64
    }
}

/// Blocks a load of the integer-dot kernels that are worth trying, the widest first.
fn integer_dot_loads(target: &CudaCoreTarget) -> impl Iterator<Item = u32> {
    let most = target.most_blocks_per_load;
    [4, 2, 1]
        .into_iter()
        .filter(move |&blocks| blocks == most || blocks == 2 && most > 2)
}

/// The most blocks a load, of any kernel, and the most warps of a CTA.
const MOST_BLOCKS_PER_LOAD: u32 = 4;
const MOST_WARPS: u32 = 16;

/// The most warps of a direct CTA: `kMaxWarps` in `gemv_cuda_core.cuh`.
const DIRECT_WARPS: u32 = 8;

/// The direct kernels' loads have at most 16 bytes.
const MOST_DIRECT_BLOCKS_PER_LOAD: u32 = 2;

/// Blocks that a warp takes of a row in one step of four blocks a lane: `kSpanBlocks` in
/// `gemv_nvfp4_wide.cuh`.
const WIDE_SPAN_BLOCKS: usize = 32 * 4;

/// Rows of an integer-dot tile: `int8::kRows` in `gemv_nvfp4.cuh`.
const INTEGER_DOT_ROWS: usize = 4;

/// Rows a warp of the direct kernel computes at once: `rows_per_warp` in `gemv_cuda_core.cuh`.
fn direct_rows(n: usize) -> usize {
    if n <= 2 { 4 } else { 2 }
}

/// Vectors that the kernel of the largest pass is compiled for.
fn pass_vectors(n: usize) -> usize {
    n.min(8).next_power_of_two()
}

/// `int8::max_threads` in `gemv_nvfp4.cuh`, in warps.
fn most_integer_dot_warps(vectors: usize) -> u32 {
    if vectors <= 2 { MOST_WARPS } else { 8 }
}

/// `row_tiles` in `cuda_core.cuh`, of one batch.
fn integer_dot_tiles(shape: &Shape, tiled: bool) -> usize {
    if tiled {
        shape.m().div_ceil(32 * INTEGER_DOT_ROWS) * 32
    } else {
        shape.m().div_ceil(INTEGER_DOT_ROWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(
        activation: Activation,
        most_blocks_per_load: u32,
        multiprocessors: u32,
    ) -> CudaCoreTarget {
        CudaCoreTarget {
            activation,
            most_blocks_per_load,
            tiled: false,
            multiprocessors,
            shared_bytes: 99 * 1024,
        }
    }

    const H200: CudaCoreTarget = CudaCoreTarget {
        activation: Activation::Nvfp4,
        most_blocks_per_load: 2,
        tiled: false,
        multiprocessors: 132,
        shared_bytes: 227 * 1024,
    };

    const B200: CudaCoreTarget = CudaCoreTarget {
        most_blocks_per_load: 4,
        multiprocessors: 148,
        ..H200
    };

    proptest! {
        #[test]
        fn defaults_are_legal(m in 1usize..100_000, n in 1usize..=16, blocks in 1usize..4000, l in 1usize..9, sms in 1u32..200) {
            let shape = Shape::new(m, n, blocks * 16, l).unwrap();
            for activation in Activation::ALL {
                for most_blocks_per_load in [1, 2, 4] {
                    let target = target(activation, most_blocks_per_load, sms);
                    let config = CudaCoreConfig::for_problem(&shape, &target);
                    prop_assert!(config.is_legal(&shape, &target), "{config:?}");
                    prop_assert!(CudaCoreConfig::direct(&shape, &target).is_legal(&shape, &target));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn candidates_are_legal_and_start_with_the_default(m in 1usize..100_000, n in 1usize..=16, blocks in 1usize..4000, l in 1usize..9) {
            let shape = Shape::new(m, n, blocks * 16, l).unwrap();
            for activation in Activation::ALL {
                let most_blocks_per_load = 1 << blocks.trailing_zeros().min(2);
                let target = CudaCoreTarget { activation, most_blocks_per_load, ..H200 };
                let cuts = CudaCoreConfig::candidates(&shape, &target);
                prop_assert_eq!(cuts[0], CudaCoreConfig::for_problem(&shape, &target));
                for (i, cut) in cuts.iter().enumerate() {
                    prop_assert!(cut.is_legal(&shape, &target), "{:?}", cut);
                    prop_assert!(!cuts[..i].contains(cut), "{:?} twice", cut);
                }
            }
        }
    }

    #[test]
    fn illegal_cuts() {
        let shape = Shape::gemv(4096, 4096, 1).unwrap();
        let target = target(Activation::F16, 1, 132);
        let good = CudaCoreConfig::direct(&shape, &target);
        assert!(good.is_legal(&shape, &target));
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
            CudaCoreConfig { ctas: 1, ..good },
        ] {
            assert!(!bad.is_legal(&shape, &target), "{bad:?}");
        }
        // f16 vectors have no integers.
        assert_eq!(CudaCoreConfig::integer_dot(&shape, &target), None);
        let good = CudaCoreConfig::for_problem(&shape, &H200);
        assert_eq!(good.kernel, CudaCoreKernel::IntegerDot);
        let narrow = CudaCoreTarget {
            most_blocks_per_load: 1,
            ..H200
        };
        assert!(!good.is_legal(&shape, &narrow));
        for bad in [
            CudaCoreConfig { ctas: 0, ..good },
            CudaCoreConfig { warps: 32, ..good },
        ] {
            assert!(!bad.is_legal(&shape, &H200), "{bad:?}");
        }
    }

    #[test]
    fn vectors_that_do_not_fit_shared_memory_take_the_direct_kernel() {
        let kernel = |n, k| {
            let shape = Shape::new(4096, n, k, 1).unwrap();
            CudaCoreConfig::for_problem(&shape, &H200).kernel
        };
        assert_eq!(kernel(1, 28672), CudaCoreKernel::IntegerDot);
        assert_eq!(kernel(8, 4096), CudaCoreKernel::IntegerDot);
        assert_eq!(kernel(8, 16384), CudaCoreKernel::IntegerDot);
        assert_eq!(kernel(8, 28672), CudaCoreKernel::Direct);
        assert_eq!(kernel(1, 1 << 20), CudaCoreKernel::Direct);
    }

    #[test]
    fn four_blocks_a_load_where_they_can_be() {
        let default = |n, k, target| {
            let shape = Shape::new(4096, n, k, 1).unwrap();
            CudaCoreConfig::for_problem(&shape, target)
        };
        assert_eq!(default(1, 7168, &B200).blocks_per_load, 4);
        assert_eq!(default(8, 7168, &B200).blocks_per_load, 4);
        assert_eq!(default(1, 7168, &H200).blocks_per_load, 2);
        // In f16 these vectors take more room than there is.
        let large = default(8, 16384, &B200);
        assert_eq!(large.kernel, CudaCoreKernel::IntegerDot);
        assert_eq!(large.blocks_per_load, 2);

        let shape = Shape::gemv(4096, 7168, 1).unwrap();
        let good = CudaCoreConfig::for_problem(&shape, &B200);
        assert!(!good.is_legal(&shape, &H200), "other devices refuse it");
        let three = CudaCoreConfig {
            blocks_per_load: 3,
            ..good
        };
        assert!(!three.is_legal(&shape, &B200));
        let direct = CudaCoreConfig {
            blocks_per_load: 4,
            ..CudaCoreConfig::direct(&shape, &B200)
        };
        assert!(!direct.is_legal(&shape, &B200));
        // The tuner tries both widths.
        let candidates = CudaCoreConfig::candidates(&shape, &B200);
        for blocks in [2, 4] {
            let of_them = |cut: &&CudaCoreConfig| {
                cut.kernel == CudaCoreKernel::IntegerDot && cut.blocks_per_load == blocks
            };
            assert!(candidates.iter().filter(of_them).count() > 4, "{blocks}");
        }
    }

    #[test]
    fn few_rows_split_k() {
        let split = |m, k| {
            let shape = Shape::gemv(m, k, 1).unwrap();
            CudaCoreConfig::for_problem(&shape, &H200).k_split
        };
        assert_eq!(split(128, 16384), 16);
        assert_eq!(split(128, 256), 1); // one step: nothing to split
        assert_eq!(split(4096, 4096), 2);
    }
}
