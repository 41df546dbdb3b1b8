//! The kernel for up to 128 vectors that a launch before packs into a workspace: `csrc/kernels/gemv_packed.cuh`.
//! Products are made on Hopper's `wgmma`, and work is dealt evenly to CTAs.

use super::many_vectors::{self, at_activation, has_wgmma, invariant_part, takes_operands};
use super::params::{
    NVFP4_ATOM_BLOCKS, NVFP4_ATOM_LINES, NVFP4_ATOM_ROWS, NVFP4_BLOCK, NVFP4_BUNDLE_MOST_BATCHES,
    NVFP4_BUNDLE_MOST_MATRICES, NVFP4_BUNDLE_SHARED_BYTES, NVFP4_BUNDLE_THREADS,
    NVFP4_MANY_COLUMNS, NVFP4_MANY_VECTOR_STEP_BYTES, NVFP4_MANY_WARP_ROWS, NVFP4_PACKED_ADD_WARPS,
    NVFP4_PACKED_BARRIER_BYTES, NVFP4_PACKED_BARRIER_BYTES_OF_MANY, NVFP4_PACKED_GROUP_WARPS,
    NVFP4_PACKED_LONG_SUMS, NVFP4_PACKED_MANY, NVFP4_PACKED_MAX_STAGES,
    NVFP4_PACKED_MAX_WARPGROUPS, NVFP4_PACKED_MAX_WARPGROUPS_OF_MANY, NVFP4_PACKED_PACK_WARPS,
    NVFP4_PACKED_SCALE_UNIT, NVFP4_PACKED_SPAN_BLOCKS, NVFP4_PACKED_SPAN_BYTES,
    NVFP4_PACKED_SPAN_STEPS, NVFP4_WARP, nvfp4_bundle_params, nvfp4_bundles, nvfp4_pack_params,
    nvfp4_packed_add_params, nvfp4_packed_deal, nvfp4_packed_params, nvfp4_select,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::stream::scaled_matrix_roundings;
use super::tensor_maps::{codes_map, maps_batches};
use super::{
    ALPHAS, Call, Cost, Job, KernelConfig, MainLoop, Products, distinct, field, shared_memory,
};
use crate::operands::RawWorkspace;
use crate::refusal::Refusal;
use crate::shape::{Dims, Shape};
use crate::types::Activation;

/// The config of the packed kernel. A group is the rows that a CTA multiplies at once, 16 a warp. A span is 256
/// elements of K of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PackedConfig {
    /// Warps of a group: 1 to 16, or to 12 with more than 64 vectors.
    pub warps: u32,
    /// Spans of a chunk. Work is dealt in chunks. In a pass of up to 32 vectors matrix instructions add up a chunk,
    /// unless sums are [long](Self::long_sums).
    pub chunk: u32,
    /// CTAs, up to one for each multiprocessor. Each has as many chunks as the others, or one more.
    pub ctas: u32,
    /// Vectors of a pass over the weights, or of a bundle, at most: 8, 16, 32, 64 or 128.
    pub vectors: u32,
    /// Whether batches of one vector that select the same matrix are bundled: multiplied together, as vectors of that
    /// matrix, which is read once for them. A launch in front reads what each batch selects. The order of an output's
    /// sums depends on what all batches select.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bundle: bool,
    /// Whether each pass of a chained call is launched without the attribute that makes it overlap: it begins when the
    /// launch before has ended. Without effect on calls that are not chained.
    pub waits: bool,
    /// Whether matrix instructions add up all that a CTA has of a group in passes of up to 32 vectors, too, as they do
    /// in passes of more. Then a vector's sums are added in an order that the number of vectors does not change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub long_sums: bool,
}

impl PackedConfig {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        warps: 1,
        chunk: 1,
        ctas: 1,
        vectors: 8,
        bundle: false,
        waits: false,
        long_sums: false,
    };
}

const UNIT: &str = "gemv_packed";

/// Numbers of vectors that the kernels are compiled for.
const VECTORS: [u32; 5] = [8, 16, 32, 64, 128];

/// Entry points of a family, one for each of [`VECTORS`].
macro_rules! entries {
    ($of:literal $(, $end:literal)?) => {
        [
            concat!("gemv_packed_", $of, "_n8" $(, $end)?),
            concat!("gemv_packed_", $of, "_n16" $(, $end)?),
            concat!("gemv_packed_", $of, "_n32" $(, $end)?),
            concat!("gemv_packed_", $of, "_n64" $(, $end)?),
            concat!("gemv_packed_", $of, "_n128" $(, $end)?),
        ]
    };
}

/// Entry points that pack vectors, by their type: NVFP4, f16 and bf16.
const PACK: [[&str; 5]; 3] = [
    entries!("pack_nvfp4"),
    entries!("pack_f16"),
    entries!("pack_bf16"),
];

/// Entry points that multiply, without and with operands of the epilogue. NVFP4 vectors are packed as f16.
const MULTIPLY: [[[&str; 5]; 3]; 2] = [
    [entries!("f16"), entries!("f16"), entries!("bf16")],
    [
        entries!("f16", "_operands"),
        entries!("f16", "_operands"),
        entries!("bf16", "_operands"),
    ],
];

const MOST_VECTORS: u32 = VECTORS[VECTORS.len() - 1];
const SPAN_STEPS: u64 = NVFP4_PACKED_SPAN_STEPS as u64;
/// Elements of a span.
const SPAN: usize = (NVFP4_PACKED_SPAN_BLOCKS * NVFP4_BLOCK) as usize;
/// Matrix instructions of a span.
const SPAN_INSTRUCTIONS: u32 = SPAN as u32 / 16;
/// The fewest stages: one that is multiplied, and one that is brought.
const LEAST_STAGES: u32 = 2;
/// Bytes of weights that bundles are expected to spare where they are worth their launches.
const BUNDLING_BYTES: f64 = 16e6;
/// Time of a bundle, in that of the fastest kernel for a batch: four tokens of DeepSeek-V3 on an H100.
const BUNDLED_TIME: f64 = 1.15;
/// Weights of a multiprocessor below which groups of four warps are faster than of eight, on an H100, with a pass of up
/// to [`FEW_VECTORS`].
const LITTLE_WORK: u64 = 400_000;
/// The same with more vectors.
const LITTLE_WORK_OF_MANY: u64 = 130_000;
const FEW_VECTORS: u32 = 32;
/// Spans of a row below which a group is mostly its end.
const SHORT_SPANS: u64 = 4;
/// Weights of a multiprocessor below which it is worth a third of the multiprocessors to spare the launch that adds
/// parts.
const LITTLEST_WORK: u64 = 200_000;
/// Alignment of the place where sums begin in the workspace, in bytes.
const PARTIAL_ALIGN: u64 = 256;

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_pack_params {}
// SAFETY: as above.
unsafe impl KernelParameters for nvfp4_packed_params {}
// SAFETY: as above.
unsafe impl KernelParameters for nvfp4_packed_add_params {}
// SAFETY: as above.
unsafe impl KernelParameters for nvfp4_bundle_params {}

/// Index in [`VECTORS`] of the number that a pass of `n` vectors is compiled for.
fn at(n: u64) -> usize {
    let at = VECTORS.iter().position(|&most| n <= u64::from(most));
    at.unwrap_or(VECTORS.len() - 1)
}

/// The number of vectors that the first pass is compiled for, if passes are as few as can be.
fn most_at_once(shape: &Shape) -> u32 {
    VECTORS[at(shape.n() as u64)]
}

/// Spans of a row: the last one may be shorter.
pub(super) fn spans(shape: &Shape) -> u64 {
    shape.k().div_ceil(SPAN) as u64
}

/// The most warps of a group, for a kernel that is compiled for `vectors` vectors.
fn most_warps(vectors: u32) -> u32 {
    NVFP4_PACKED_GROUP_WARPS
        * match vectors {
            ..NVFP4_PACKED_MANY => NVFP4_PACKED_MAX_WARPGROUPS,
            _ => NVFP4_PACKED_MAX_WARPGROUPS_OF_MANY,
        }
}

/// Bytes of a span of `vectors` packed vectors.
fn span_vector_bytes(vectors: u32) -> u64 {
    SPAN_STEPS * u64::from(vectors * NVFP4_MANY_VECTOR_STEP_BYTES)
}

/// Bytes of a batch's packed vectors, for a kernel that is compiled for `vectors` vectors.
fn packed_batch_bytes(vectors: u32, shape: &Shape) -> u64 {
    spans(shape).saturating_mul(span_vector_bytes(vectors))
}

/// Offset of the sums of parts of groups from the packed vectors, which come first in the workspace.
fn partial_at(vectors: u32, shape: &Shape) -> u64 {
    packed_batch_bytes(vectors, shape)
        .saturating_mul(shape.l() as u64)
        .checked_next_multiple_of(PARTIAL_ALIGN)
        .unwrap_or(u64::MAX)
}

/// Bytes of the workspace, if passes are as few as can be. The number is the same for all configs: those with fewer
/// CTAs or vectors would need less.
fn workspace_bytes(job: &Job<'_>) -> u64 {
    workspace_bytes_of(job, most_at_once(job.shape))
}

/// The same for kernels that are compiled for so many vectors.
fn workspace_bytes_of(job: &Job<'_>, vectors: u32) -> u64 {
    // A CTA leaves sums of two groups at most: of the group that it begins in, and of the group that it ends in.
    let of_cta = 2
        * u64::from(most_warps(vectors) * NVFP4_MANY_WARP_ROWS * vectors)
        * size_of::<f32>() as u64;
    let all = of_cta.saturating_mul(job.gpu.multiprocessors.into());
    RawWorkspace::COUNTER_BYTES
        .saturating_add(partial_at(vectors, job.shape))
        .saturating_add(all)
}

/// Bundles at most, of as many batches of one vector each. Each kind of batches, those of a matrix, or of an id without
/// one, has one bundle that is not full at most.
fn most_bundles(batches: usize, matrices: usize, width: u32) -> usize {
    let width = width as usize;
    let kinds = matrices.saturating_add(2);
    let all = batches.saturating_add(kinds.saturating_mul(width - 1)) / width;
    all.min(batches)
}

/// Where the lists of bundles lie behind the sums of parts: offsets, in bytes.
struct Lists {
    ids: u64,
    batches: u64,
    bytes: u64,
}

impl Lists {
    fn of(bundles: usize, width: u32) -> Self {
        let aligned = |bytes: u64| bytes.next_multiple_of(PARTIAL_ALIGN);
        let ids = aligned(size_of::<u32>() as u64); // the count comes first
        let batches = ids + aligned((bundles * size_of::<i32>()) as u64);
        let of_bundle = u64::from(width) * size_of::<i32>() as u64;
        Self {
            ids,
            batches,
            bytes: batches + bundles as u64 * of_bundle,
        }
    }
}

/// Matrices that batches which select any of them are expected to have, all equally often.
fn expected_matrices(batches: usize, matrices: usize) -> f64 {
    let none = (1.0 - 1.0 / matrices.max(1) as f64).powf(batches as f64);
    matrices as f64 * (1.0 - none)
}

/// Offsets in a CTA's dynamic shared memory, in bytes: stages of codes, of vectors and of scales; then mbarriers.
struct Layout {
    stages: u32,
    vectors_at: u64,
    scales_at: u64,
    barriers_at: u64,
    bytes: u64,
}

impl PackedConfig {
    /// Two configs. The first has a CTA for each multiprocessor. The second has fewer CTAs, if there is a number near
    /// the first with which no group is divided, or all groups are divided alike.
    fn with_warps(job: &Job<'_>, warps: u32) -> [Self; 2] {
        const TRIES: usize = 64;
        let vectors = most_at_once(job.shape);
        let sms = job.gpu.multiprocessors;
        let one_a_multiprocessor = Self {
            warps,
            chunk: match vectors {
                ..NVFP4_PACKED_LONG_SUMS => 4,
                _ => 2,
            },
            ctas: sms,
            vectors,
            bundle: false,
            waits: job.dependent() && waits(job.shape.n()),
            long_sums: false,
        };
        let groups = one_a_multiprocessor
            .groups(job)
            .saturating_mul(job.shape.l() as u64);
        let chunks = one_a_multiprocessor.chunks(job.shape);
        let even = match u64::from(sms).checked_div(groups) {
            None => None,
            // The same number of groups for each CTA.
            Some(0) => (1..=sms)
                .rev()
                .take(TRIES)
                .find(|&ctas| groups.is_multiple_of(ctas.into())),
            // The same number of CTAs for each group.
            Some(most) => {
                let mut times = (1..=most).rev().take(TRIES);
                let times = times.find(|&times| chunks.is_multiple_of(times));
                times.map(|times| (times * groups) as u32)
            }
        };
        let even = Self {
            ctas: even.unwrap_or(sms),
            ..one_a_multiprocessor
        };
        [one_a_multiprocessor, even]
    }

    /// The config with long sums whose groups all have parts of `part` spans, for a kernel that is compiled for
    /// `vectors` vectors, and its time, in that of a span of one warp. Each CTA has one part; or where groups have one
    /// part, the whole of some groups. `None` if there are more parts than multiprocessors with every number of warps.
    pub(super) fn for_parts(job: &Job<'_>, part: u32, vectors: u32) -> Option<(u64, Self)> {
        /// Fewer warps are taken to need as much time as so many. With eight vectors of 4096x14336 on an H100, parts of
        /// 14 spans with eight warps took 1.07 times as long as the free choice, parts of 12 with ten 1.24 times
        /// (docs/notes/many-vectors.md, "Few vectors with the bits of packed").
        const LEAST_WARPS: u64 = 8;
        /// Time of the launch that adds parts: about 3 us.
        const ADDING: u64 = 16;
        let shape = job.shape.with_vectors(vectors as usize).ok()?;
        let of = Job {
            shape: &shape,
            ..*job
        };
        let sms = u64::from(job.gpu.multiprocessors);
        let parts = spans(&shape).div_ceil(part.into());
        let configs = (1..=most_warps(vectors)).filter_map(|warps| {
            let config = Self {
                warps,
                chunk: part,
                vectors: MOST_VECTORS,
                waits: job.dependent() && waits(job.shape.n()),
                long_sums: true,
                ..Self::DEFAULT
            };
            let groups = config.groups(job).checked_mul(shape.l() as u64)?;
            let (ctas, rounds, adding) = match parts {
                1 => (groups.min(sms), groups.div_ceil(sms.max(1)), 0),
                _ => (groups.checked_mul(parts)?, 1, ADDING),
            };
            let ctas = u32::try_from(ctas).ok()?;
            let time = rounds * u64::from(warps).max(LEAST_WARPS) * u64::from(part) + adding;
            let config = Self { ctas, ..config };
            config.check(&of).is_ok().then_some((time, config))
        });
        // Of configs that take the same time, the one with the fewest warps, which are on the most multiprocessors.
        configs.min_by_key(|&(time, config)| (time, config.warps))
    }

    /// Index in [`VECTORS`] of the number that the first pass, which has most vectors, is compiled for.
    fn compiled(&self, shape: &Shape) -> usize {
        match self.bundle {
            true => at(self.vectors.into()),
            false => at((shape.n() as u64).min(self.vectors.into())),
        }
    }

    /// Asks with the shape that the launches behind the first one have: the most bundles in place of batches, and the
    /// vectors of a bundle.
    fn of_bundles<T>(&self, job: &Job<'_>, ask: impl FnOnce(&Job<'_>) -> T) -> T {
        let shape = job.shape;
        let (batches, matrices) = (shape.l(), job.operands.matrices);
        let bundled = || Dims {
            m: shape.m(),
            n: self.vectors as usize,
            k: shape.k(),
            l: most_bundles(batches, matrices, self.vectors),
        };
        match self.bundle.then(|| Shape::new(bundled())) {
            Some(Ok(shape)) => ask(&Job {
                shape: &shape,
                ..*job
            }),
            _ => ask(job),
        }
    }

    /// Offset of the lists of bundles in the workspace, for a job of bundles.
    fn lists_at(&self, of: &Job<'_>) -> u64 {
        let before = workspace_bytes_of(of, self.vectors);
        before
            .checked_next_multiple_of(PARTIAL_ALIGN)
            .unwrap_or(u64::MAX)
    }

    /// Whether batches can be bundled.
    fn can_bundle(job: &Job<'_>) -> bool {
        let (shape, matrices) = (job.shape, job.operands.matrices);
        job.operands.select
            && shape.n() == 1
            && shape.l() > 1
            && matrices > 0
            && shape.l() <= NVFP4_BUNDLE_MOST_BATCHES as usize
            && matrices <= NVFP4_BUNDLE_MOST_MATRICES as usize
    }

    /// The config for bundles: as many vectors of one as a matrix is expected to have batches if all are selected
    /// equally often, and half as many more. Fitted on an H100: docs/notes/experts.md.
    fn bundling(job: &Job<'_>) -> Self {
        let batches = job.shape.l();
        let each = batches as f64 / expected_matrices(batches, job.operands.matrices).max(1.0);
        let vectors = VECTORS
            .into_iter()
            .find(|&most| 1.5 * each <= f64::from(most));
        Self {
            warps: 8,
            chunk: 4,
            ctas: job.gpu.multiprocessors,
            vectors: vectors.unwrap_or(MOST_VECTORS),
            bundle: true,
            waits: false,
            long_sums: false,
        }
    }

    /// Rows of a group.
    fn rows(&self) -> u32 {
        self.warps * NVFP4_MANY_WARP_ROWS
    }

    /// Units of scales of a stage: one a row, or in the 128x4 layout those of all atoms that have some of a group's
    /// rows.
    fn scale_units(&self, tiled: bool) -> u32 {
        match tiled {
            false => self.rows(),
            true => {
                // A group begins at a multiple of its rows.
                let common = 1 << self.rows().trailing_zeros();
                let before = NVFP4_ATOM_ROWS - common.min(NVFP4_ATOM_ROWS);
                let blocks = (before + self.rows()).div_ceil(NVFP4_ATOM_ROWS);
                blocks * NVFP4_ATOM_LINES * (NVFP4_PACKED_SPAN_BLOCKS / NVFP4_ATOM_BLOCKS)
            }
        }
    }

    /// Shared memory of a CTA, with as many stages as there is room for, two at least.
    fn layout(&self, vectors: u32, tiled: bool, shared_bytes: u32) -> Layout {
        let codes = u64::from(self.rows() * NVFP4_PACKED_SPAN_BYTES);
        let scales = u64::from(self.scale_units(tiled) * NVFP4_PACKED_SCALE_UNIT);
        let barriers = match vectors {
            ..NVFP4_PACKED_MANY => NVFP4_PACKED_BARRIER_BYTES,
            _ => NVFP4_PACKED_BARRIER_BYTES_OF_MANY,
        };
        let barriers = u64::from(barriers);
        let vectors = span_vector_bytes(vectors);
        let room = u64::from(shared_bytes) / (codes + vectors + scales + barriers);
        let stages = room.clamp(LEAST_STAGES.into(), NVFP4_PACKED_MAX_STAGES.into());
        let vectors_at = stages * codes;
        let scales_at = vectors_at + stages * vectors;
        let barriers_at = scales_at + stages * scales;
        Layout {
            stages: stages as u32,
            vectors_at,
            scales_at,
            barriers_at,
            bytes: barriers_at + stages * barriers,
        }
    }

    /// Chunks of a group.
    fn chunks(&self, shape: &Shape) -> u64 {
        spans(shape).div_ceil(self.chunk.into())
    }

    /// Groups of a batch.
    fn groups(&self, job: &Job<'_>) -> u64 {
        (job.shape.m() as u64).div_ceil(self.rows().into())
    }

    /// The chunks of all groups, which [`takes_chunks`] has found to be less than 2³¹.
    fn all_chunks(&self, job: &Job<'_>) -> u32 {
        (self.groups(job) * job.shape.l() as u64 * self.chunks(job.shape)) as u32
    }

    /// How the chunks of all groups are dealt. Where batches are bundled, it is for the most bundles.
    fn deal(&self, job: &Job<'_>) -> nvfp4_packed_deal {
        let all = self.all_chunks(job);
        let ctas = self.ctas.min(all);
        nvfp4_packed_deal {
            groups: self.groups(job) as u32,
            chunks: self.chunks(job.shape) as u32,
            ctas,
            each: all / ctas,
            more: all % ctas,
            warps: self.warps,
        }
    }

    /// Whether some group is divided, so that a launch has to add parts.
    fn divides_groups(&self, job: &Job<'_>) -> bool {
        let deal = self.deal(job);
        let even = deal.more == 0 && deal.each.is_multiple_of(deal.chunks);
        deal.chunks != 1 && !even
    }

    /// The fewest warps of a group with which there are no more groups than multiprocessors. `None` if a group cannot
    /// have so many warps.
    fn even_warps(job: &Job<'_>) -> Option<u32> {
        let of_batch = u64::from(job.gpu.multiprocessors) / job.shape.l() as u64;
        let rows = (job.shape.m() as u64).div_ceil(of_batch.max(1));
        let warps = rows.div_ceil(NVFP4_MANY_WARP_ROWS.into());
        let most = most_warps(most_at_once(job.shape));
        (warps <= most.into()).then_some(warps as u32)
    }

    /// The most parts that a group is divided into.
    fn most_parts(&self, shape: &Shape) -> u32 {
        // This kernel takes only shapes of less than 2^31 chunks.
        let chunks = self.chunks(shape).min(u32::MAX.into()) as u32;
        chunks.min(self.ctas)
    }
}

/// Whether a chained call of `vectors` vectors begins when the launch before has ended, where nothing else is known.
/// Otherwise chains lost time: on an H200 up to a seventh with 64 vectors, and up to 4% with 128. On an H100 chains
/// with eight vectors lost up to 4% behind calls of `stream`, which most such calls follow (docs/notes/many-vectors.md,
/// "Chains"). Five to seven were not measured.
fn waits(vectors: usize) -> bool {
    matches!(vectors, 5..=8 | 33..)
}

/// Whether 16 bytes of linear scales, those of a row's span, are aligned to 16 bytes.
fn scales_aligned(job: &Job<'_>) -> bool {
    job.operands.alignment.scales >= 16 && job.shape.k().is_multiple_of(SPAN)
}

/// Checks that chunks can be counted in 31 bits, for every config.
fn takes_chunks(job: &Job<'_>) -> Result<(), Refusal> {
    let shape = job.shape;
    let columns = u64::from(MOST_VECTORS / NVFP4_MANY_COLUMNS);
    // Pieces that are packed are counted in 31 bits, too: a piece is a step of eight vectors.
    let pieces = spans(shape)
        .saturating_mul(SPAN_STEPS)
        .saturating_mul(shape.l() as u64)
        .saturating_mul(columns);
    if pieces > i32::MAX as u64 {
        return Err(Refusal::Vectors);
    }
    let groups = (shape.m() as u64).div_ceil(NVFP4_MANY_WARP_ROWS.into());
    let chunks = groups
        .saturating_mul(shape.l() as u64)
        .saturating_mul(spans(shape));
    match chunks <= i32::MAX as u64 {
        true => Ok(()),
        false => Err(Refusal::Rows),
    }
}

impl PackedConfig {
    /// The launches of a call. `of` is the shape that those behind the first one see, with bundles in place of batches.
    fn launches(&self, call: &Call, job: &Job<'_>, of: &Shape) -> Plan {
        let seen = &Job { shape: of, ..*job };
        let (k, l) = (of.k() as u32, of.l() as u32);
        let spans = spans(of) as u32;
        let deal = self.deal(seen);
        // How many bundles there are is not known here.
        let whole = deal.chunks == 1 || !self.bundle && !self.divides_groups(seen);
        let activation = at_activation(job.operands.activation);
        // Behind the counters of other kernels.
        let packed = call.workspace.address + RawWorkspace::COUNTER_BYTES;
        let mut select = call.select_operand(job);
        let mut bundles = nvfp4_bundles::default();
        let mut plan = Plan::new();
        if self.bundle {
            let lists = Lists::of(of.l(), self.vectors);
            let at = call.workspace.address + self.lists_at(seen);
            bundles = nvfp4_bundles {
                count: at,
                batches: at + lists.batches,
            };
            let ids = at + lists.ids;
            plan.push(Launch {
                entry: "bundle_batches",
                unit: UNIT,
                grid: [1, 1, 1],
                threads: NVFP4_BUNDLE_THREADS,
                static_shared: NVFP4_BUNDLE_SHARED_BYTES,
                dependent: job.dependent() && !self.waits,
                auxiliary: true,
                parameters: Parameters::of(&nvfp4_bundle_params {
                    select,
                    bundles,
                    ids,
                    l: job.shape.l() as u32,
                    width: self.vectors,
                }),
                ..Launch::default()
            });
            // Launches of this call write them.
            select = nvfp4_select {
                ids,
                late: 1,
                ..select
            };
        }
        for mut pass in call.passes(self.vectors as usize) {
            if self.bundle {
                pass.n = self.vectors as i32;
            }
            let compiled = at(pass.n as u64);
            let vectors = VECTORS[compiled];
            let packed_columns = vectors / NVFP4_MANY_COLUMNS;
            let layout = self.layout(vectors, job.operands.tiled(), job.gpu.shared_bytes);
            let packed_batch_bytes = packed_batch_bytes(vectors, of) as i64;
            // Columns that have a vector. Sums of other columns are not stored.
            let columns = (pass.n as u32).div_ceil(NVFP4_MANY_COLUMNS);
            let partial = packed + partial_at(vectors, of);
            plan.push(Launch {
                entry: PACK[activation][compiled],
                unit: UNIT,
                grid: [
                    (l * spans * SPAN_STEPS as u32 * packed_columns)
                        .div_ceil(NVFP4_PACKED_PACK_WARPS),
                    1,
                    1,
                ],
                threads: NVFP4_PACKED_PACK_WARPS * NVFP4_WARP,
                dependent: self.bundle || job.dependent() && !self.waits,
                auxiliary: true,
                parameters: Parameters::of(&nvfp4_pack_params {
                    n: pass.n,
                    k,
                    spans,
                    l,
                    vectors: pass.vectors,
                    bundles,
                    packed,
                    packed_batch_bytes,
                }),
                ..Launch::default()
            });
            plan.push(Launch {
                entry: MULTIPLY
                    [usize::from(job.operands.select || pass.epilogue.has_operands != 0)]
                    [activation][compiled],
                unit: UNIT,
                grid: [deal.ctas, 1, 1],
                // The threads of one warpgroup more bring what the others multiply.
                threads: (self.warps.next_multiple_of(NVFP4_PACKED_GROUP_WARPS)
                    + NVFP4_PACKED_GROUP_WARPS)
                    * NVFP4_WARP,
                dynamic_shared: layout.bytes as u32,
                // May start while the vectors are packed: until its wait it reads weights alone. They are complete when
                // the first launch starts: by the stream's order, or by the promise of a chained call. With bundles it
                // reads nothing before its wait, since the launch in front writes which weights these are.
                dependent: true,
                // A box is a group's span.
                maps: vec![codes_map(call, [NVFP4_PACKED_SPAN_BYTES, self.rows()])],
                parameters: Parameters::of(&nvfp4_packed_params {
                    m: of.m() as i32,
                    n: pass.n,
                    k,
                    spans,
                    l,
                    chunk: self.chunk,
                    summed: match self.long_sums {
                        true => u32::MAX,
                        false => self.chunk,
                    },
                    stages: layout.stages,
                    deal,
                    vectors_at: layout.vectors_at as u32,
                    scales_at: layout.scales_at as u32,
                    barriers_at: layout.barriers_at as u32,
                    scale_units: self.scale_units(job.operands.tiled()),
                    scales_aligned: scales_aligned(job).into(),
                    weights: pass.weights,
                    packed,
                    packed_batch_bytes,
                    partial,
                    epilogue: pass.epilogue,
                    select,
                    bundles,
                    ..nvfp4_packed_params::default()
                }),
                ..Launch::default()
            });
            if whole {
                continue;
            }
            plan.push(Launch {
                entry: "gemv_packed_add",
                unit: UNIT,
                grid: [
                    deal.ctas - 1,
                    (self.warps * columns).div_ceil(NVFP4_PACKED_ADD_WARPS),
                    1,
                ],
                threads: NVFP4_PACKED_ADD_WARPS * NVFP4_WARP,
                dependent: true,
                auxiliary: true,
                parameters: Parameters::of(&nvfp4_packed_add_params {
                    m: of.m() as i32,
                    n: pass.n,
                    l,
                    columns,
                    deal,
                    partial,
                    epilogue: pass.epilogue,
                    select,
                    bundles,
                }),
                ..Launch::default()
            });
        }
        plan
    }
}

impl KernelConfig for PackedConfig {
    const MOST_VECTORS: u32 = MOST_VECTORS;
    const WHY: &'static str = many_vectors::WHY;

    /// Fitted to times of 16 to 128 vectors on an H200: docs/notes/many-vectors.md.
    fn cost(_: &Job<'_>) -> Cost {
        Cost::Linear {
            first_vector: 1.58,
            further_vector: 0.0114,
            columns: NVFP4_MANY_COLUMNS,
        }
    }

    fn default_reaches(job: &Job<'_>) -> f64 {
        match job.shape.n() <= many_vectors::FEW {
            true => 0.91,
            false => 0.96,
        }
    }

    /// Two launches, and a third where groups are divided. A CTA takes one span after the other; a group has an end,
    /// where its sums are stored. The first launch packs vectors, and the third adds the parts of each group.
    fn microseconds(&self, job: &Job<'_>) -> Option<f64> {
        const LAUNCHES: f64 = 3.9;
        const THIRD: f64 = 1.75;
        const AHEAD: f64 = 0.5;
        if self.bundle || self.long_sums {
            return None;
        }
        let deal = self.deal(job);
        let each = u64::from(deal.each + u32::from(deal.more > 0));
        let chunks = u64::from(deal.chunks);
        let divides = self.divides_groups(job);
        let count = |count: u64| count as f64;
        let spans_each = count(each * u64::from(self.chunk).min(spans(job.shape)));
        let warps = f64::from(self.warps);
        let ends = each.div_ceil(chunks) + u64::from(divides && !each.is_multiple_of(chunks));
        let parts = match divides {
            true => chunks.min(chunks.div_ceil(each) + 1),
            false => 0,
        };
        let wide = f64::from(VECTORS[self.compiled(job.shape)]) / 16.0;
        let packed = (job.shape.k() * job.shape.l()) as f64 / 1e4;
        let pass = f64::from(u8::from(divides)) * THIRD
            + spans_each * (0.14 + 0.083 * warps)
            + wide * (0.037 * count(ends) * warps + 0.11 * count(parts) + 1.06 * packed);
        let passes = job.shape.n().div_ceil(self.pass_vectors() as usize) as f64;
        let ahead = if job.ahead() { AHEAD } else { 0.0 };
        Some(LAUNCHES - ahead + passes * pass)
    }

    fn pass_vectors(&self) -> u32 {
        match VECTORS.contains(&self.vectors) {
            true => self.vectors,
            false => MOST_VECTORS,
        }
    }

    fn takes_select(_: &Job<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn bundles(job: &Job<'_>) -> Option<Self> {
        let (batches, matrices) = (job.shape.l(), job.operands.matrices);
        if !Self::can_bundle(job) || job.operands.distinct {
            return None;
        }
        let read = expected_matrices(batches, matrices) * BUNDLED_TIME;
        let spared = batches as f64 - read;
        let bytes = job.shape.weight_bytes() as f64 / batches as f64;
        let bundling = Self::bundling(job);
        (spared * bytes >= BUNDLING_BYTES && bundling.check(job).is_ok()).then_some(bundling)
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        has_wgmma(job)?;
        job.image(UNIT)?;
        takes_operands(job)?;
        // Atoms of scales are copied a line at once.
        if job.operands.tiled() && job.operands.alignment.scales < 16 {
            return Err(Refusal::Alignment { needed: 16 });
        }
        takes_chunks(job)?;
        maps_batches(job)?;
        let (needed, given) = (workspace_bytes(job), job.operands.workspace);
        match needed <= given {
            true => Ok(()),
            false => Err(Refusal::Workspace { needed, given }),
        }
    }

    /// The config that was fastest or nearly so for problems drawn at random, measured on an H100
    /// (docs/notes/tuning.md, "Problems that no table has"). Groups have eight warps, or four where multiprocessors
    /// have little work: larger groups are few then, and divide it unevenly. Where rows are shorter than a chunk, and
    /// groups of four warps more than multiprocessors, groups have eight. There is one CTA a multiprocessor, or nearly
    /// so many if no group is then divided, or all are divided alike. With so little work that the launch which adds
    /// parts counts, fewer CTAs do, if no group is then divided.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        if let Some(bundling) = Self::bundles(job) {
            return Ok(bundling);
        }
        let sms = u64::from(job.gpu.multiprocessors);
        let shape = job.shape;
        let weights = shape.m() as u64 * shape.k() as u64 * shape.l() as u64 / sms.max(1);
        let at_once = most_at_once(shape);
        let little = if at_once <= FEW_VECTORS {
            LITTLE_WORK
        } else {
            LITTLE_WORK_OF_MANY
        };
        // Where rows are less than a chunk, each group is mostly its end, and the fewer there are the better.
        let is_short = spans(shape) < SHORT_SPANS
            && Self {
                warps: 4,
                ..Self::DEFAULT
            }
            .groups(job)
                * shape.l() as u64
                > sms;
        let warps = if weights < little && !is_short { 4 } else { 8 };
        let configs = [warps, 8, 4, 1].into_iter().map(|warps| {
            let [one_a_multiprocessor, even] = Self::with_warps(job, warps);
            let little = even.ctas > 0 && weights < LITTLEST_WORK;
            let fewer = little && !even.divides_groups(job);
            let ctas = u64::from(even.ctas);
            match ctas * 6 >= 5 * sms || fewer && ctas * 3 >= 2 * sms {
                true => even,
                false => one_a_multiprocessor,
            }
        });
        let mut fit = configs.filter(|config| config.check(job).is_ok());
        fit.next().ok_or(Refusal::VectorMemory)
    }

    /// Groups that are all divided into the same parts. How many warps a group has may depend on the vectors.
    fn batch_invariant(job: &Job<'_>) -> Option<Self> {
        let compiled = most_at_once(job.shape);
        let (_, config) = Self::for_parts(job, invariant_part(job), compiled)?;
        config.is_batch_invariant(job).then_some(config)
    }

    /// Matrix instructions add to a sum in the order of K, whatever their number of columns. A part of a group is added
    /// up by them, and parts are added in the order of K. Where parts begin follows from the config, M, K and L.
    /// Batches that select their matrix are as many as there are vectors, or more.
    fn is_batch_invariant(&self, job: &Job<'_>) -> bool {
        self.long_sums && !job.operands.select
    }

    fn chain(&self, job: &Job<'_>) -> Option<u32> {
        if !self.is_batch_invariant(job) {
            return None;
        }
        let deal = self.deal(job);
        let spans = spans(job.shape) as u32;
        let shares_alike = deal.more == 0;
        match deal.chunks {
            1 => Some(spans),
            chunks if shares_alike && deal.each.is_multiple_of(chunks) => Some(spans),
            chunks if shares_alike && chunks.is_multiple_of(deal.each) => {
                Some(deal.each * self.chunk)
            }
            _ => None,
        }
    }

    fn in_chain(&self, job: &Job<'_>) -> Option<Self> {
        Some(Self {
            waits: job.dependent() && waits(job.shape.n()),
            ..*self
        })
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        let warps = [4, 8, 12, 16, 14, 7]
            .into_iter()
            .chain(Self::even_warps(job));
        for warps in warps {
            for config in Self::with_warps(job, warps) {
                configs.extend([1, 2].map(|by| Self {
                    chunk: config.chunk / by,
                    ..config
                }));
            }
        }
        configs.extend(VECTORS.map(|vectors| Self { vectors, ..default }));
        if Self::can_bundle(job) {
            let one = Self::bundling(job);
            let near = one.vectors / 2..=one.vectors * 2;
            let near = VECTORS.into_iter().filter(|vectors| near.contains(vectors));
            let more = |vectors| {
                let sizes = [(8, 4), (8, 1), (12, 4), (16, 4)];
                sizes.map(|(warps, chunk)| Self {
                    warps,
                    chunk,
                    vectors,
                    ..one
                })
            };
            configs.extend(near.flat_map(more));
        }
        if job.dependent() {
            let ways = |config: Self| {
                let waits = !config.waits;
                [config, Self { waits, ..config }]
            };
            configs = configs.into_iter().flat_map(ways).collect();
        }
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            warps,
            chunk,
            ctas,
            vectors,
            bundle,
            waits: _,
            long_sums: _,
        } = *self;
        field(
            "vectors",
            vectors,
            "8, 16, 32, 64 or 128",
            VECTORS.contains(&vectors),
        )?;
        field(
            "bundle",
            bundle.into(),
            "1 only for 2 to 4096 batches of one vector that select from at most 4096 matrices",
            !bundle || Self::can_bundle(job),
        )?;
        let compiled = VECTORS[self.compiled(job.shape)];
        let most = most_warps(compiled);
        let takes = match compiled {
            ..NVFP4_PACKED_MANY => "1 to 16",
            _ => "1 to 12",
        };
        field("warps", warps, takes, (1..=most).contains(&warps))?;
        field("chunk", chunk, "1 or more", chunk != 0)?;
        field(
            "ctas",
            ctas,
            "1 to the number of multiprocessors",
            (1..=job.gpu.multiprocessors).contains(&ctas),
        )?;
        if bundle {
            self.of_bundles(job, takes_chunks)?;
            let (needed, given) = (self.workspace_bytes(job), job.operands.workspace);
            if needed > given {
                return Err(Refusal::Workspace { needed, given });
            }
        }
        let layout = self.layout(compiled, job.operands.tiled(), job.gpu.shared_bytes);
        shared_memory(layout.bytes, job.gpu)
    }

    /// A term passes through the sixteen matrix instructions of each span that are added to one another. The spans of a
    /// chunk are added so, or with many vectors or long sums all spans of the term's part of a group. Each instruction
    /// counts for [`scaled_matrix_roundings`]. The additions of chunks and of parts follow. The factor that ends a sum
    /// is a power of two, and exact.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let spans = spans(shape).min(u32::MAX.into()) as u32;
        let chunk = self.chunk.max(1);
        let (summed, chunks) = match VECTORS[self.compiled(shape)] {
            ..NVFP4_PACKED_LONG_SUMS if !self.long_sums => {
                (chunk.min(spans), spans.div_ceil(chunk))
            }
            _ => (spans, 1),
        };
        let parts = Self { chunk, ..*self }.most_parts(shape);
        summed
            .saturating_mul(SPAN_INSTRUCTIONS * scaled_matrix_roundings(activation))
            .saturating_add(chunks)
            .saturating_add(parts)
            .saturating_add(ALPHAS)
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        self.of_bundles(job, |of| self.launches(call, job, of.shape))
    }

    fn workspace_bytes(&self, job: &Job<'_>) -> u64 {
        match self.bundle {
            false => workspace_bytes(job),
            true => self.of_bundles(job, |of| {
                let lists = Lists::of(of.shape.l(), self.vectors).bytes;
                // At least what every config has.
                (self.lists_at(of).saturating_add(lists)).max(workspace_bytes(job))
            }),
        }
    }

    fn bytes_in_flight(&self, job: &Job<'_>) -> u64 {
        // A stage is computed while the others fill.
        let vectors = VECTORS[self.compiled(job.shape)];
        if !(1..=most_warps(vectors)).contains(&self.warps) {
            return 0; // no legal config
        }
        let layout = self.layout(vectors, job.operands.tiled(), job.gpu.shared_bytes);
        let row = NVFP4_PACKED_SPAN_BYTES + NVFP4_PACKED_SPAN_BLOCKS;
        u64::from(self.rows()) * u64::from((layout.stages - 1) * row)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        MainLoop {
            // Four lanes share a row of a span, and a lane has two rows.
            lane_weights: 2 * SPAN as u32 / 4,
            vectors: VECTORS[self.compiled(job.shape)],
            products: Products::WarpgroupMatrix,
            tensor_columns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::kernel::{Config, Kernel};
    use crate::types::{Activation, ScaleLayout};

    /// The first of three launches reads data that the call before may write. The second and the third follow launches
    /// of the same call.
    #[test]
    fn a_chained_call_waits_for_the_one_before_where_that_is_faster() {
        let gpu = Gpu::of_compute_capability((9, 0), "90a");
        let dependent = |n, chained| -> Vec<bool> {
            let (m, k, l) = (4096, 4096, 1);
            let shape = Shape::new(Dims { m, n, k, l }).unwrap();
            let call = Call::nowhere(&shape, Activation::F16, ScaleLayout::Linear, 32);
            let operands = call.operands();
            let job = Job::new(&shape, &operands, &gpu).chained(chained);
            let config: Config = Kernel::Packed.default_config(&job).unwrap();
            let plan = config.plan(&call, &gpu, chained).unwrap();
            plan.launches().iter().map(|one| one.dependent).collect()
        };
        for n in [1, 4, 9, 16, 32] {
            assert_eq!(dependent(n, true), [true; 3], "{n}");
        }
        for n in [5, 8, 33, 64, 128] {
            assert_eq!(dependent(n, true), [false, true, true], "{n}");
        }
        assert_eq!(dependent(32, false), [false, true, true]);
    }
}
