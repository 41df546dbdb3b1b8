//! `gemv_packed`: the trials of `many_vectors`.

use nvfp4_gemv::ScaleLayout::{Linear, Tiled128x4};
use nvfp4_gemv::kernel::params::{nvfp4_many_params as Params, nvfp4_pack_params as PackParams};
use nvfp4_gemv::kernel::{Config, PackedConfig};

use crate::many_vectors::sim::VECTORS_OF_A_WARP;
use crate::many_vectors::{Cutting, Kernel, cutting};
use crate::support::faults::At;

crate::trials! {
    simulator:
        hopper = || KERNEL.short_sweep("90a", &[3, 8, 9, 16, 30, 61]),
        many_vectors = || KERNEL.many_vectors(),
        vectors_of_every_magnitude = || KERNEL.vectors_of_every_magnitude(),
        faults_of_few_vectors = || KERNEL.faults(16),
        faults_of_packing = || KERNEL.packing_faults(16),
        wrong_plans = || KERNEL.wrong_plans(),
        wrong_packing_plans = || KERNEL.wrong_packing_plans(K);
    long:
        every_config = || KERNEL.every_config(),
        random_configs = || KERNEL.random_configs();
}

/// Why a wrong word does nothing.
const PACKED: &str = "only the launch before reads it";

/// Of the launch that packs.
const K: &[(At, &str)] = &crate::words![PackParams: k = MULTIPLES];
const MULTIPLES: &str = "multiples of 64 end in the same step";

pub(crate) const KERNEL: Kernel = Kernel {
    unit: "gemv_packed",
    config: |[tiles, parts, chunk, cluster, vectors]| {
        Config::from(PackedConfig {
            tiles,
            parts,
            chunk,
            cluster,
            vectors,
        })
    },
    most_vectors: 128,
    cuttings: CUTTINGS,
    vectors: &[3, 8, 9, 16, 30, 61, 65, 128],
    few_warps: &[
        ([1, 1, 1, 1], 8),
        ([1, 1, 1, 1], 16),
        ([1, 1, 1, 1], 18),
        ([1, 1, 1, 1], 22),
        ([1, 1, 1, 1], 30),
        ([1, 1, 1, 1], 32),
        ([1, 1, 1, 1], 45),
        ([1, 1, 1, 1], 64),
        ([1, 1, 1, 1], 90),
        ([1, 1, 1, 1], 118),
        ([1, 1, 1, 1], 128),
    ],
    full: [
        (cutting((140, 320, 1), Linear, [2, 1, 1, 1]), 100),
        (cutting((20, 256, 1), Tiled128x4, [2, 1, 1, 2]), 128),
    ],
    magnitudes: cutting((33, 512, 1), Linear, [1, 2, 2, 1]),
    archs: &["90a"],
    faulty: [
        cutting((70, 1088, 1), Linear, [2, 1, 2, 1]),
        cutting((21, 832, 2), Tiled128x4, [1, 2, 2, 2]),
        // Every buffer three times.
        cutting((9, 1472, 1), Linear, [1, 1, 1, 1]),
        cutting((21, 256, 1), Linear, [1, 2, 2, 1]),
    ],
    source: include_str!("../../../csrc/kernels/gemv_packed.cuh"),
    never_taken: &[
        // The four warps of a tile store two vectors each at once, and there are eight.
        (VECTORS_OF_A_WARP, "_n8"),
        // A step has as many pieces as a CTA packs, or twice as many.
        ("if (batch >= p.l) return;", "_n64"),
        ("if (batch >= p.l) return;", "_n128"),
        // Buffers of 128 vectors have room for one step, and so for one part of a chunk: every warpgroup has all steps.
        ("for (uint32_t step = first; step < end;", "_n128"),
        ("for (uint32_t part = 0; part < parts; ++part)", "_n128"),
        // A cluster has 64 warps at most: each has a vector to store.
        ("place < rows && first < uint32_t(p.n);", "_n128"),
    ],
    harmless: &crate::words![Params:
        k = MULTIPLES,
        vectors = PACKED,
        vectors + 4 = PACKED,
        vector_row_bytes = PACKED,
        vector_row_bytes + 4 = PACKED,
        vector_batch_bytes = PACKED,
        vector_batch_bytes + 4 = PACKED,
        vector_scales = PACKED,
        vector_scales + 4 = PACKED,
        vector_scale_layout.row_stride = PACKED,
        vector_scale_layout.row_stride + 4 = PACKED,
        vector_scale_layout.group_stride = PACKED,
        vector_scale_layout.group_stride + 4 = PACKED,
        vector_scale_batch_bytes = PACKED,
        vector_scale_batch_bytes + 4 = PACKED,
    ],
};

const CUTTINGS: &[Cutting] = &[
    // Several groups, the last one with fewer rows than a tile; queues and buffers used several times.
    cutting((150, 1152, 1), Linear, [2, 1, 2, 1]).under_every_schedule(),
    // Warpgroups that share tiles, the last step of a row half as long.
    cutting((70, 832, 1), Linear, [1, 2, 4, 1]),
    // One step only, for warpgroups that have none.
    cutting((5, 64, 1), Linear, [1, 4, 4, 1]),
    // A chunk that ends within a warpgroup's steps, batches.
    cutting((21, 832, 3), Linear, [1, 2, 2, 1]),
    // Tiles without rows.
    cutting((70, 256, 2), Linear, [3, 1, 1, 1]),
    // Atoms of 128 rows, most of which are past M.
    cutting((130, 256, 1), Tiled128x4, [2, 1, 1, 1]),
    cutting((140, 320, 2), Tiled128x4, [2, 2, 2, 1]),
    // Clusters, of which some CTAs have more chunks than others, or none.
    cutting((100, 896, 1), Linear, [2, 1, 1, 2]).under_every_schedule(),
    cutting((17, 640, 2), Linear, [1, 2, 2, 4]),
    cutting((9, 256, 1), Tiled128x4, [2, 1, 1, 8]),
    // Rings that go round more than once, with every number of vectors.
    // The warp that asks for copies is ahead of others, and waits for them.
    cutting((70, 960, 1), Linear, [4, 1, 1, 1]).always_under_every_schedule(),
    cutting((20, 1152, 1), Tiled128x4, [1, 2, 2, 2]),
    cutting((200, 1472, 1), Linear, [4, 1, 1, 1]),
];
