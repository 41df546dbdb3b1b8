//! `gemv_mma`: the trials of `many_vectors`.

use nvfp4_gemv::ScaleLayout::{Linear, Tiled128x4};
use nvfp4_gemv::kernel::params::nvfp4_many_params as Params;
use nvfp4_gemv::kernel::{Config, MmaConfig};

use crate::many_vectors::{Cutting, Kernel, cutting};
use crate::support::faults::{ANY_OPERAND, NO_BIAS, SAMPLE, SAMPLE_OF_PLANS};

crate::trials! {
    simulator:
        hopper = || KERNEL.short_sweep("90a", &[3, 8, 9, 16, 30, 61]),
        ampere = || KERNEL.short_sweep("80", &[12, 40, 100]),
        blackwell = || KERNEL.short_sweep("100a", &[16, 20]),
        many_vectors = || KERNEL.many_vectors(),
        vectors_of_every_magnitude = || KERNEL.vectors_of_every_magnitude(),
        faults_of_few_vectors = || KERNEL.faults(16, SAMPLE),
        wrong_plans = || KERNEL.wrong_plans(SAMPLE_OF_PLANS),
        ragged_hopper = || RAGGED.short_sweep("90a", &[9, 30, 33, 61, 100]),
        ragged_ampere = || RAGGED.short_sweep("80", &[12, 70]),
        ragged_blackwell = || RAGGED.short_sweep("100a", &[16, 40]),
        ragged_vectors_of_every_magnitude = || RAGGED.vectors_of_every_magnitude(),
        ragged_faults = || RAGGED.faults(20, SAMPLE),
        ragged_wrong_plans = || RAGGED.wrong_plans(SAMPLE_OF_PLANS);
    long:
        every_config = || KERNEL.every_config(),
        random_configs = || KERNEL.random_configs(),
        all_faults_of_few_vectors = || KERNEL.faults(16, 1),
        all_wrong_plans = || KERNEL.wrong_plans(1),
        ragged_all_faults = || RAGGED.faults(20, 1),
        ragged_all_wrong_plans = || RAGGED.wrong_plans(1),
        faults_of_many_vectors = || KERNEL.faults_of_many_vectors(),
        ragged_every_config = || RAGGED.every_config(),
        ragged_random_configs = || RAGGED.random_configs(),
        ragged_faults_of_many_vectors = || RAGGED.faults_of_many_vectors();
}

pub(crate) const KERNEL: Kernel = Kernel {
    unit: "gemv_mma",
    config: |[tiles, parts, chunk, cluster, vectors]| {
        Config::from(MmaConfig {
            tiles,
            parts,
            chunk,
            cluster,
            vectors,
            ..MmaConfig::DEFAULT
        })
    },
    most_vectors: 128,
    cuttings: CUTTINGS,
    vectors: &[3, 8, 9, 16, 30, 33, 61, 64, 65, 128],
    few_warps: &[
        ([1, 1, 1, 1], 8),
        ([2, 1, 1, 1], 16),
        ([4, 1, 1, 1], 22),
        ([4, 1, 1, 1], 32),
        ([4, 1, 1, 1], 45),
        ([4, 1, 1, 1], 54),
        ([4, 1, 1, 1], 64),
        ([8, 1, 1, 1], 70),
        ([7, 1, 1, 1], 90),
        ([8, 1, 1, 1], 118),
        ([6, 1, 1, 1], 128),
    ],
    full: [
        (cutting((40, 320, 1), Linear, [8, 1, 1, 1]), 100),
        (cutting((20, 256, 1), Tiled128x4, [8, 1, 1, 2]), 128),
    ],
    short_k: 192,
    granule: 64,
    magnitudes: cutting((33, 512, 1), Linear, [3, 2, 2, 1]),
    archs: &["90a", "100a"],
    faulty: [
        cutting((37, 1088, 1), Linear, [4, 1, 2, 1]),
        cutting((21, 832, 2), Tiled128x4, [2, 2, 2, 2]),
        cutting((9, 640, 3), Linear, [4, 2, 4, 1]),
        cutting((21, 256, 1), Linear, [2, 2, 2, 1]),
    ],
    source: (
        "gemv_mma.cuh",
        include_str!("../../../csrc/kernels/gemv_mma.cuh"),
    ),
    never_taken: &[
        // There are more than 32, and more than 64 vectors.
        ("some * kColumns >= uint32_t(p.n)", "_n64"),
        ("some * kColumns >= uint32_t(p.n)", "_n128"),
        // At most eight warps hold a chunk of more vectors: the chunk has one step, and a tile has one part.
        ("exists(p, work, first)", "_n128"),
        ("for (uint32_t step = first; step < end;", "_n128"),
        ("for (uint32_t part = 0; part < parts; ++part)", "_n128"),
        // A cluster has 64 warps at most: each has a vector to store.
        ("place < rows && first < uint32_t(p.n);", "_n128"),
    ],
    harmless: &crate::words![Params:
        l = "one batch, or several",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        stored_at = "this kernel has no mbarrier",
        chunks_each = "a row ends the steps, too",
        chunks_left = "the same",
    ],
};

/// The unit for rows that start anywhere.
const RAGGED: Kernel = Kernel {
    unit: "gemv_mma_ragged",
    cuttings: RAGGED_CUTTINGS,
    vectors: &[3, 9, 16, 27, 32, 33, 45, 64, 65, 100, 128],
    few_warps: &[
        ([2, 1, 1, 1], 8),
        ([2, 1, 1, 1], 16),
        ([4, 1, 1, 1], 22),
        ([4, 1, 1, 1], 32),
        ([4, 1, 1, 1], 45),
        ([4, 1, 1, 1], 54),
        ([4, 1, 1, 1], 64),
        ([8, 1, 1, 1], 70),
        ([7, 1, 1, 1], 90),
        ([8, 1, 1, 1], 118),
        ([6, 1, 1, 1], 128),
    ],
    full: [
        (cutting((40, 336, 1), Linear, [8, 1, 1, 1]), 100),
        (cutting((20, 272, 2), Tiled128x4, [8, 1, 1, 2]), 128),
    ],
    short_k: 176,
    granule: 16,
    magnitudes: cutting((33, 528, 1), Linear, [4, 2, 2, 1]),
    faulty: [
        cutting((37, 1104, 1), Linear, [4, 1, 1, 1]),
        cutting((21, 816, 2), Tiled128x4, [4, 2, 2, 2]),
        cutting((9, 656, 3), Linear, [4, 2, 2, 1]),
        cutting((21, 272, 1), Linear, [4, 2, 2, 1]),
    ],
    never_taken: &[
        // There are more than 16, more than 32, and more than 64 vectors.
        ("some * kColumns >= uint32_t(p.n)", "_n32"),
        ("some * kColumns >= uint32_t(p.n)", "_n64"),
        ("some * kColumns >= uint32_t(p.n)", "_n128"),
        // At most eight warps hold a chunk of more vectors: the chunk has one step, and a tile has one part.
        ("exists(p, work, first)", "_n128"),
        ("for (uint32_t step = first; step < end;", "_n128"),
        ("for (uint32_t part = 0; part < parts; ++part)", "_n128"),
        // A cluster has 64 warps at most: each has a vector to store.
        ("place < rows && first < uint32_t(p.n);", "_n128"),
    ],
    harmless: &crate::words![Params:
        l = "one batch, or several",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        stored_at = "this kernel has no mbarrier",
        chunks_each = "a row ends the steps, too",
        chunks_left = "the same",
        k = "what is not a block's is not counted",
        steps = "behind a row's end there are zeros",
    ],
    ..KERNEL
};

/// A cutting of few rows of so many blocks.
const fn ending(blocks: usize) -> Cutting {
    cutting((5, 16 * blocks, 1), Linear, [6, 1, 1, 1])
}

/// The scales of a linear row start at each of four places of a word; the last step has one to eight blocks.
const RAGGED_CUTTINGS: &[Cutting] = &[
    // Several groups, the last one with fewer rows than a tile; queues and buffers used several times.
    cutting((70, 1168, 1), Linear, [4, 1, 1, 1]).under_every_schedule(),
    // Warps that share tiles, and chunks that end within a warp's steps.
    cutting((33, 784, 1), Linear, [3, 2, 2, 1]),
    cutting((21, 848, 3), Linear, [2, 2, 2, 1]),
    cutting((40, 304, 1), Linear, [4, 2, 2, 1]),
    cutting((20, 656, 2), Linear, [8, 1, 2, 1]),
    cutting((20, 848, 1), Linear, [12, 1, 2, 1]),
    cutting((20, 336, 1), Linear, [12, 1, 1, 1]),
    // One step, for warps of which some have none.
    cutting((5, 48, 1), Tiled128x4, [4, 2, 2, 1]),
    // Every number of blocks of a first step, and of a later one, that leave K no multiple of 64.
    ending(1),
    ending(2),
    ending(3),
    ending(5),
    ending(6),
    ending(7),
    ending(9),
    ending(10),
    ending(11),
    ending(13),
    ending(14),
    ending(15),
    // Atoms of 128 rows, most of which are past M; K a multiple of 32.
    cutting((130, 272, 1), Tiled128x4, [3, 2, 2, 1]),
    cutting((140, 352, 2), Tiled128x4, [8, 1, 1, 1]),
    // Clusters, of which some CTAs have more chunks than others, or none.
    cutting((40, 912, 1), Linear, [4, 1, 1, 2]).under_every_schedule(),
    cutting((17, 688, 2), Linear, [4, 2, 2, 4]),
    cutting((9, 272, 1), Tiled128x4, [8, 1, 1, 8]),
    // With more than 32 vectors.
    cutting((100, 592, 1), Linear, [6, 1, 1, 1]).from(33),
    cutting((5, 16, 1), Linear, [7, 1, 1, 1]).from(33),
    cutting((21, 80, 1), Linear, [8, 1, 1, 1]).from(33),
    cutting((130, 496, 2), Tiled128x4, [7, 1, 1, 2]).from(33),
    cutting((40, 1136, 1), Linear, [8, 1, 1, 1]).from(33),
];

const CUTTINGS: &[Cutting] = &[
    // Several groups, the last one with fewer rows than a tile; queues and buffers used several times.
    cutting((70, 1152, 1), Linear, [4, 1, 2, 1]).under_every_schedule(),
    // Warps that share tiles, the last step of a row half as long.
    cutting((33, 832, 1), Linear, [3, 2, 2, 1]),
    // One step only, for warps that have none.
    cutting((5, 64, 1), Linear, [1, 4, 4, 1]),
    cutting((5, 64, 1), Linear, [2, 4, 4, 1]),
    // A chunk that ends within a warp's steps, batches.
    cutting((21, 832, 3), Linear, [2, 2, 2, 1]),
    cutting((40, 320, 1), Linear, [4, 2, 2, 1]),
    // Tiles without rows.
    cutting((40, 256, 2), Linear, [4, 1, 1, 1]),
    // Atoms of 128 rows, most of which are past M.
    cutting((130, 256, 1), Tiled128x4, [3, 2, 2, 1]),
    cutting((140, 320, 2), Tiled128x4, [8, 1, 1, 1]),
    // Clusters, of which some CTAs have more chunks than others, or none.
    cutting((40, 896, 1), Linear, [2, 1, 1, 2]).under_every_schedule(),
    cutting((17, 640, 2), Linear, [2, 2, 2, 4]),
    cutting((9, 256, 1), Tiled128x4, [2, 1, 1, 8]),
    // More than 16 vectors, and clusters: buffers used several times, warps with several steps of a chunk or without
    // one. Every part of what is loaded has the half step.
    cutting((40, 1152, 1), Linear, [4, 2, 2, 1]).from(17),
    cutting((40, 1152, 1), Tiled128x4, [4, 2, 2, 2]).from(17),
    cutting((20, 640, 2), Linear, [8, 1, 2, 1]).from(17),
    cutting((20, 832, 1), Linear, [12, 1, 2, 1]).from(33),
    cutting((20, 320, 1), Linear, [12, 1, 1, 1]).from(33),
    cutting((5, 64, 1), Linear, [4, 2, 2, 1]).from(17),
    cutting((5, 192, 1), Linear, [4, 2, 2, 1]).from(17),
    cutting((5, 448, 1), Linear, [4, 2, 2, 1]).from(17),
    cutting((9, 256, 1), Linear, [8, 1, 1, 8]).from(17),
    // More than 64 vectors, and clusters: the fewest warps, the half step first, last and alone.
    cutting((100, 576, 1), Linear, [6, 1, 1, 1]).from(65),
    cutting((5, 64, 1), Linear, [7, 1, 1, 1]).from(65),
    cutting((130, 448, 2), Tiled128x4, [7, 1, 1, 2]).from(65),
];
