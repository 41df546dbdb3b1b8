//! `gemv_packed`: the trials of `many_vectors`.

use nvfp4_gemv::ScaleLayout::{Linear, Tiled128x4};
use nvfp4_gemv::kernel::params::nvfp4_pack_params as PackParams;
use nvfp4_gemv::kernel::params::nvfp4_packed_add_params as AddParams;
use nvfp4_gemv::kernel::params::nvfp4_packed_params as Params;
use nvfp4_gemv::kernel::{Config, PackedConfig};

use crate::many_vectors::{Cutting, Kernel, cutting};
use crate::support::faults::{
    ALL_MATRICES, ANY_OPERAND, At, NO_BIAS, NOT_LATE, Run, SAMPLE, SAMPLE_OF_PLANS,
};

crate::trials! {
    simulator:
        hopper = || KERNEL.short_sweep("90a", &[3, 8, 9, 16, 30, 61]),
        many_vectors = || KERNEL.many_vectors(),
        vectors_of_every_magnitude = || KERNEL.vectors_of_every_magnitude(),
        faults_of_few_vectors = || KERNEL.faults(16, SAMPLE),
        faults_of_packing = || KERNEL.faults_beside("pack", 16, Run::first, 8),
        faults_of_adding = || KERNEL.faults_beside("add", 16, Run::last, 3),
        wrong_plans = || KERNEL.wrong_plans(SAMPLE_OF_PLANS),
        wrong_packing_plans = || KERNEL.wrong_plans_beside(Run::first, PACK, 1),
        wrong_adding_plans = || KERNEL.wrong_plans_beside(Run::last, ADD, 1);
    long:
        every_config = || KERNEL.every_config(),
        random_configs = || KERNEL.random_configs(),
        all_faults_of_few_vectors = || KERNEL.faults(16, 1),
        all_wrong_plans = || KERNEL.wrong_plans(1);
}

const MULTIPLES: &str = "multiples of 64 end in the same step";
const NO_BUNDLES: &str = "batches are not bundled";
const BATCHES: &str = "one batch, or several";

/// Words of the other launches' plans that may be wrong.
const PACK: &[(At, &str)] = &crate::words![PackParams:
    k = MULTIPLES,
    bundles.batches = NO_BUNDLES,
    bundles.batches + 4 = NO_BUNDLES,
];
const ADD: &[(At, &str)] = &crate::words![AddParams:
    l = BATCHES,
    epilogue.has_operands = ANY_OPERAND,
    epilogue.bias_batch = NO_BIAS,
    epilogue.bias_batch + 4 = NO_BIAS,
    select.matrices = ALL_MATRICES,
    select.late = NOT_LATE,
    deal.ctas = NO_BUNDLES,
    bundles.batches = NO_BUNDLES,
    bundles.batches + 4 = NO_BUNDLES,
];

pub(crate) const KERNEL: Kernel = Kernel {
    unit: "gemv_packed",
    config: |[warps, _, chunk, ctas, vectors]| {
        Config::from(PackedConfig {
            warps,
            chunk,
            ctas,
            vectors,
            ..PackedConfig::DEFAULT
        })
    },
    most_vectors: 128,
    cuttings: CUTTINGS,
    vectors: &[3, 8, 9, 16, 30, 61, 65, 128],
    few_warps: &[
        ([4, 1, 1, 1], 8),
        ([4, 1, 1, 1], 16),
        ([4, 1, 1, 1], 18),
        ([4, 1, 1, 1], 22),
        ([4, 1, 1, 1], 30),
        ([4, 1, 1, 1], 32),
        ([4, 1, 1, 1], 45),
        ([4, 1, 1, 1], 64),
        ([4, 1, 1, 1], 90),
        ([4, 1, 1, 1], 118),
        ([4, 1, 1, 1], 128),
    ],
    full: [
        (cutting((140, 320, 1), Linear, [8, 1, 1, 5]), 100),
        (cutting((20, 256, 1), Tiled128x4, [8, 1, 1, 2]), 128),
    ],
    short_k: 192,
    granule: 64,
    magnitudes: cutting((33, 512, 1), Linear, [4, 1, 2, 2]),
    archs: &["90a"],
    faulty: [
        // More spans than there are stages, the last chunk shorter; a warpgroup of which one warp has rows.
        cutting((70, 4352, 1), Linear, [5, 1, 3, 2]),
        cutting((40, 1472, 3), Tiled128x4, [2, 1, 2, 4]),
        // Groups that are divided, and groups that are not.
        cutting((9, 2112, 3), Linear, [4, 1, 1, 2]),
        cutting((21, 512, 3), Linear, [4, 1, 1, 4]),
    ],
    source: (
        "gemv_packed.cuh",
        include_str!("../../../csrc/kernels/gemv_packed.cuh"),
    ),
    never_taken: &[
        // A span has as many pieces as a CTA packs, or a multiple of them.
        ("if (batch >= (p.bundles.count ?", "_n32"),
        ("if (batch >= (p.bundles.count ?", "_n64"),
        ("if (batch >= (p.bundles.count ?", "_n128"),
        // At least one column of vectors exists.
        ("i < 4 * columns;", ""),
        // A span has at least 64 elements.
        ("if ((group + t) * 64 < p.k)", ""),
        // Every part of a group has a chunk, and every chunk has a span.
        ("span < part.end_span(p)", ""),
        ("for (; spans != 0;", ""),
        ("while (spans != 0)", ""),
        ("span < of_chunk", ""),
        // With 128 vectors, a span's second stage is behind its first stage.
        ("if (behind != 0)", "_n128"),
        // A column has vectors, except an entry point's last columns: for fewer vectors there is another entry point.
        ("} else if (column < columns) {", ""),
    ],
    harmless: &crate::words![Params:
        k = MULTIPLES,
        l = BATCHES,
        summed = "exact sums, of more or fewer at once",
        stages = "fewer are enough",
        scales_aligned + 4 = "padding",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        select.matrices = ALL_MATRICES,
        select.late = NOT_LATE,
        deal.ctas = NO_BUNDLES,
        bundles.batches = NO_BUNDLES,
        bundles.batches + 4 = NO_BUNDLES,
        ; unread in weights
    ],
};

const CUTTINGS: &[Cutting] = &[
    // Several groups, the last one with fewer rows than a tile; queues and buffers used several times. Two groups have
    // ten chunks for three CTAs.
    cutting((150, 1152, 1), Linear, [8, 1, 2, 3]).under_every_schedule(),
    // A group for each CTA; the last step of a row half as long.
    cutting((70, 832, 1), Linear, [4, 1, 4, 2]),
    // One step only.
    cutting((5, 64, 1), Linear, [4, 1, 4, 1]),
    // CTAs with one chunk less than others; batches.
    cutting((21, 832, 3), Linear, [4, 1, 2, 5]),
    // Tiles without rows; a chunk a CTA.
    cutting((70, 256, 2), Linear, [12, 1, 1, 4]),
    // Atoms of 128 rows, most of which are past M.
    cutting((130, 256, 1), Tiled128x4, [8, 1, 1, 3]),
    cutting((140, 320, 2), Tiled128x4, [8, 1, 2, 8]),
    // Groups that follow each other among the first stages of a queue, and behind them.
    cutting((130, 256, 1), Tiled128x4, [4, 1, 1, 1]),
    cutting((130, 1152, 1), Tiled128x4, [8, 1, 1, 1]),
    cutting((130, 640, 1), Linear, [4, 1, 1, 1]),
    // A group that all CTAs share.
    cutting((9, 1472, 1), Linear, [4, 1, 1, 12]),
    cutting((100, 896, 1), Linear, [8, 1, 1, 2]).under_every_schedule(),
    // Groups of one chunk: a chunk that is brought ahead is some groups further on.
    cutting((300, 64, 2), Linear, [4, 1, 1, 3]),
    cutting((100, 192, 3), Linear, [4, 1, 1, 4]),
    // All groups but the first one and the last one whole.
    cutting((20, 640, 3), Linear, [4, 1, 1, 2]),
    // Rings that go round more than once, with every number of vectors.
    // The warp that asks for copies is ahead of others, and waits for them.
    cutting((70, 960, 1), Linear, [12, 1, 1, 1]).always_under_every_schedule(),
    cutting((20, 1152, 1), Tiled128x4, [4, 1, 2, 2]),
    cutting((200, 1472, 1), Linear, [16, 1, 1, 5]),
    // Warps without rows, in a warpgroup of its own and behind others; groups that begin within an atom.
    cutting((100, 1088, 1), Linear, [1, 1, 1, 3]).under_every_schedule(),
    cutting((100, 640, 2), Linear, [7, 1, 1, 4]),
    cutting((300, 832, 1), Tiled128x4, [3, 1, 2, 5]),
    cutting((500, 320, 1), Tiled128x4, [11, 1, 1, 3]),
    cutting((460, 512, 1), Tiled128x4, [14, 1, 1, 2]),
];
