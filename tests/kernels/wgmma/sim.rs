//! `gemv_wgmma`: the trials of `many_vectors`.

use nvfp4_gemv::ScaleLayout::{Linear, Tiled128x4};
use nvfp4_gemv::kernel::params::nvfp4_many_params as Params;
use nvfp4_gemv::kernel::{Config, WgmmaConfig};

use crate::many_vectors::sim::VECTORS_OF_A_WARP;
use crate::many_vectors::{Cutting, Kernel, cutting};
use crate::support::faults::{ANY_OPERAND, NO_BIAS, SAMPLE, SAMPLE_OF_PLANS};

crate::trials! {
    simulator:
        hopper = || KERNEL.short_sweep("90a", &[3, 8, 9, 16, 30, 61]),
        many_vectors = || KERNEL.many_vectors(),
        vectors_of_every_magnitude = || KERNEL.vectors_of_every_magnitude(),
        faults_of_few_vectors = || KERNEL.faults(16, SAMPLE),
        wrong_plans = || KERNEL.wrong_plans(SAMPLE_OF_PLANS);
    long:
        every_config = || KERNEL.every_config(),
        random_configs = || KERNEL.random_configs(),
        all_faults_of_few_vectors = || KERNEL.faults(16, 1),
        all_wrong_plans = || KERNEL.wrong_plans(1),
        faults_of_many_vectors = || KERNEL.faults_of_many_vectors();
}

pub(crate) const KERNEL: Kernel = Kernel {
    unit: "gemv_wgmma",
    config: |[tiles, parts, chunk, cluster, vectors]| {
        Config::from(WgmmaConfig {
            tiles,
            parts,
            chunk,
            cluster,
            vectors,
            ..WgmmaConfig::DEFAULT
        })
    },
    most_vectors: 128,
    cuttings: CUTTINGS,
    vectors: &[3, 8, 9, 16, 30, 33, 61, 65, 128],
    few_warps: &[
        ([1, 1, 1, 1], 8),
        ([1, 1, 1, 1], 16),
        ([1, 1, 1, 1], 18),
        ([1, 1, 1, 1], 22),
        ([1, 1, 1, 1], 30),
        ([1, 1, 1, 1], 32),
        ([1, 1, 1, 1], 45),
        ([1, 1, 1, 1], 64),
        ([2, 1, 1, 1], 90),
        ([2, 1, 1, 1], 118),
        ([2, 1, 1, 1], 128),
    ],
    full: [
        (cutting((140, 320, 1), Linear, [2, 1, 1, 1]), 100),
        (cutting((20, 256, 1), Tiled128x4, [2, 1, 1, 2]), 128),
    ],
    short_k: 192,
    granule: 64,
    magnitudes: cutting((33, 512, 1), Linear, [1, 2, 2, 1]),
    archs: &["90a"],
    faulty: [
        cutting((70, 1088, 1), Linear, [2, 1, 2, 1]),
        cutting((21, 832, 2), Tiled128x4, [1, 2, 2, 2]),
        cutting((9, 640, 3), Linear, [1, 1, 1, 1]),
        cutting((21, 256, 1), Linear, [1, 2, 2, 1]),
    ],
    source: (
        "gemv_wgmma.cuh",
        include_str!("../../../csrc/kernels/gemv_wgmma.cuh"),
    ),
    never_taken: &[
        // The four warps of a tile store two vectors each at once, and there are eight.
        (VECTORS_OF_A_WARP, "_n8"),
        // Two warpgroups at most, and the vectors of a chunk in all their registers, leave one config: two tiles, one
        // part, chunks of one step. Every piece is of that step, which every warp multiplies.
        ("exists(p, work, first)", "_n128"),
        ("for (uint32_t step = first; step < end;", "_n128"),
        ("if (first < end) {", "_n128"),
        ("for (uint32_t part = 0; part < parts; ++part)", "_n128"),
        // A cluster has 64 warps at most: each has a vector to store.
        ("place < rows && first < uint32_t(p.n);", "_n128"),
    ],
    harmless: &crate::words![Params:
        l = "one batch, or several",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        chunks_each = "a row ends the steps, too",
        chunks_left = "the same",
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
    // With more than 32 vectors: warps without a step of a chunk, the half step in every part of what is loaded, and
    // clusters.
    cutting((20, 640, 2), Linear, [2, 1, 1, 1]).from(33),
    cutting((5, 64, 1), Linear, [1, 1, 1, 1]).from(33),
    cutting((5, 64, 1), Linear, [2, 1, 1, 1]).from(33),
    cutting((5, 192, 1), Linear, [2, 1, 1, 1]).from(33),
    cutting((5, 320, 1), Linear, [1, 1, 1, 1]).from(33),
    cutting((5, 320, 1), Linear, [2, 1, 1, 1]).from(33),
    cutting((5, 896, 1), Linear, [3, 1, 2, 1]).from(33),
    cutting((20, 1152, 1), Tiled128x4, [1, 2, 2, 2]).from(33),
];
