//! The kernel whose rows come in bulk copies, into a ring in shared memory: `csrc/kernels/gemv_ring.cuh`.

use super::call::Pass;
use super::params::{
    NVFP4_ATOM_ROWS, NVFP4_RING_AHEAD, NVFP4_RING_BAR_BYTES, NVFP4_RING_CHUNK_BYTES,
    NVFP4_RING_COUNTER_STRIDE, NVFP4_RING_LARGEST_BYTES, NVFP4_RING_MAX_PRODUCERS,
    NVFP4_RING_MAX_WARPS, NVFP4_RING_PLACE_BYTES, NVFP4_RING_QUANTIZED_ALIGN,
    NVFP4_RING_SCALE_BYTES, NVFP4_RING_SCALE_SLOTS, NVFP4_RING_UNIT_ROWS, NVFP4_WARP,
    nvfp4_ring_params,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::stream::scaled_matrix_roundings;
use super::{
    ALPHAS, Call, Job, KernelConfig, MainLoop, Products, distinct, expected, field, magic,
    shared_memory,
};
use crate::gpu::Gpu;
use crate::operands::{Operands, RawWorkspace};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the ring kernel. A CTA takes its rows four at a time: a unit. As many warps as a row
/// takes are a group, and groups take units in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RingConfig {
    /// Chunks of 32 elements that a thread has of a row: 1 or 2.
    pub chunks: u32,
    /// Groups of a CTA: together they have 16 warps at most.
    pub groups: u32,
    /// Rows of a stage, for which a group waits at once: 1, 2 or 4. With one chunk 2 or 4: a stage of one row of one
    /// chunk was the fastest nowhere. With two chunks of a 16-bit vector 2. Where vectors
    /// are quantised when they are read, 4 with two chunks is the same as 2.
    pub rows: u32,
    /// Units in the ring for each group: 1 to 8.
    pub depth: u32,
    /// Rows, in the order of their scales, that stay in one CTA: 1 or 4.
    pub granule: u32,
    /// Whether L1 keeps block scales: in the 128x4 layout two units share what L1 fetches at once. Rings that take most
    /// of an SM's shared memory leave L1 too small to keep scales.
    pub cached: bool,
    /// CTAs that share the rows of all batches: no more than there are granules. Where batches select their matrix, or
    /// vectors are quantised when they are read, each batch has as many of them as the others, or one more, and one at
    /// least.
    pub ctas: u32,
    /// Eighths of all units, 0 to 7, that belong to no CTA at first. A CTA takes the next of these units when one of
    /// its groups has room, so that all CTAs end at about the same time. Units that are taken are counted in the
    /// workspace. In a call without a workspace all units are dealt, as with 0. A value that is not 0 needs `chunks` 2
    /// and `rows` 1 or 2: others are not compiled. Each group of each CTA then keeps `depth` + 2 units of its own.
    /// Where batches select their matrix, or vectors are quantised when they are read, all units are dealt, too.
    pub counted: u32,
}

impl RingConfig {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        chunks: 1,
        groups: 1,
        rows: 2,
        depth: 1,
        granule: 1,
        cached: false,
        ctas: 1,
        counted: 0,
    };
}

const UNIT: &str = "gemv_ring";
/// The unit of the kernels whose batches select their matrix.
const SELECT_UNIT: &str = "gemv_ring_select";
/// The unit of the kernels that quantise the vector when they read it.
const ON_READ_UNIT: &str = "gemv_ring_on_read";
/// Vectors of a pass over the weights.
const PASS: usize = 1;
/// K is a multiple of this number of elements: scales of a row are copied 16 bytes at once.
const STEP: usize = 256;
const UNIT_ROWS: u64 = NVFP4_RING_UNIT_ROWS as u64;
const MAX_WARPS: u32 = NVFP4_RING_MAX_WARPS;
/// Elements of a warp's chunk.
const WARP_CHUNK: usize = 2 * NVFP4_RING_CHUNK_BYTES as usize * NVFP4_WARP as usize;
const ROWS: [u32; 3] = [1, 2, 4];
const DEPTHS: std::ops::RangeInclusive<u32> = 1..=8;
/// Bytes of codes that the ring should hold: measured on an H200, docs/notes/ring.md.
const RING_BYTES: u64 = 64 << 10;
/// Bytes of codes that the ring should hold in chained launches: more, since the ring fills while the vector is
/// awaited. With short rows, two CTAs still fit an SM, one of each launch.
const CHAINED_RING_BYTES: u64 = 128 << 10;
const CHAINED_SHORT_RING_BYTES: u64 = 96 << 10;
/// The smallest ring, in bytes of codes, that is worth measuring in chains of large matrices with a 16-bit vector and
/// one CTA a multiprocessor. Smaller rings were the fastest of single layers, and slow between others
/// (docs/notes/ring.md, "16-bit vectors").
const APART_BYTES: u64 = 80 << 10;
/// Values of `counted` that are worth measuring, the best one first, and the bytes of codes from which on they are:
/// docs/notes/ring.md.
const COUNTED: [u32; 2] = [4, 6];
const COUNTED_BYTES: u64 = 60_000_000;
/// Bytes of codes from which on the default counts units.
const MANY_BYTES: u64 = 100_000_000;
/// The most units for each group in the ring that the rule takes.
const RULED_DEPTH: u32 = 4;
/// Bytes of codes with which a ring holds enough, by the rule.
const RULED_RING_BYTES: u64 = 48 << 10;
/// What a config may lose by the rule, more than the best one, and still be taken because it was measured nearby.
const NO_BETTER: f64 = 0.08;
/// The fewest consumers of a CTA with which counted units gain.
const COUNTED_WARPS: u32 = 9;
/// The denominator of `counted`.
const EIGHTHS: u32 = 8;
/// Two counters at the front of the workspace.
const COUNTERS: u64 = 2;
const _: () = assert!(COUNTERS * NVFP4_RING_COUNTER_STRIDE as u64 <= RawWorkspace::COUNTER_BYTES);
/// The largest K of a short row.
const SHORT: usize = 7167;

/// Factor from the stream kernel's share to the ring kernel's with one 16-bit vector, where ring is behind. Measured on
/// an H100: 0.95 to 0.99 (docs/notes/ring.md, "16-bit vectors").
const BEHIND_STREAM: f64 = 0.97;

/// Whether ring is ahead of the stream kernel with one 16-bit vector, on an H100: where rows are short, and where there
/// are many weights.
fn is_ahead(shape: &Shape) -> bool {
    shape.k() < 4096 || shape.weight_bytes() >= 100_000_000
}

impl KernelConfig for RingConfig {
    const MOST_VECTORS: u32 = PASS as u32;
    const OPTIONAL_WORKSPACE: u64 = RawWorkspace::COUNTER_BYTES;
    const WHY: &'static str = "bulk copies ask for whole rows long before they are multiplied";

    fn share_of_one(shape: &Shape, operands: &Operands) -> f64 {
        let one = expected::share_of_one(operands.activation);
        match operands.activation {
            Activation::Nvfp4 => one,
            _ if is_ahead(shape) => one,
            _ => BEHIND_STREAM * one,
        }
    }

    /// With 16-bit vectors chained defaults are far from the best. Rows of less than a warp's chunk leave lanes idle.
    fn default_reaches(job: &Job<'_>) -> f64 {
        let reaches = match (integers(job), job.ahead()) {
            (true, _) => 0.98,
            (false, false) => 0.95,
            (false, true) => 0.88,
        };
        let idle = 1.0 - job.shape.k() as f64 / WARP_CHUNK as f64;
        reaches * (1.0 - 0.5 * idle.max(0.0))
    }

    fn takes_select(job: &Job<'_>) -> Result<(), Refusal> {
        job.image(SELECT_UNIT)
    }

    fn takes_on_read(job: &Job<'_>) -> Result<(), Refusal> {
        job.image(ON_READ_UNIT)
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        job.needs((9, 0), "9.0 or newer")?;
        job.image(UNIT)?;
        job.not_f32()?;
        job.row_length(STEP, "a multiple of 256")?;
        job.aligned_16()?;
        let (shape, tiled) = (job.shape, job.operands.tiled());
        let whole = if tiled {
            NVFP4_ATOM_ROWS
        } else {
            NVFP4_RING_UNIT_ROWS
        } as usize;
        if shape.l() > 1 && !are_apart(job) && !shape.m().is_multiple_of(whole) {
            return Err(Refusal::RowsOfBatch {
                m: shape.m(),
                of: whole,
            });
        }
        if row_warps(shape, 2) > MAX_WARPS {
            return Err(Refusal::RowLength {
                k: shape.k(),
                needed: "32768 at most",
            });
        }
        match places_are_counted(&dealt_at_once(job), tiled) {
            true => Ok(()),
            false => Err(Refusal::Rows),
        }
    }

    /// In launches that wait, a config of larger or smaller matrices may not divide these rows well. Of chains only
    /// those of the smallest matrices have a rule.
    fn follows(&self, job: &Job<'_>, default: &Self) -> bool {
        let worse = |job| self.loses(job) > default.loses(job) + NO_BETTER;
        is_measured(job)
            && match job.ahead() {
                true => !is_short_chain(job),
                false => !worse(job),
            }
    }

    /// The default, which deals all units; or counts a part of them, if there are many weights and a workspace.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let dealt = Self::default_dealt(job)?;
        let counted = match has_rule(job) {
            // Stages of one row cost 18% and more where counted units are short.
            true => Self {
                counted: COUNTED[0],
                rows: 2,
                ..dealt
            },
            false => Self {
                counted: COUNTED[0],
                ..dealt
            },
        };
        let enough = match has_rule(job) {
            true => dealt.groups * row_warps(job.shape, dealt.chunks) >= COUNTED_WARPS,
            false => job.shape.k() > SHORT,
        };
        let gains = counters(job) && code_bytes(job.shape) >= MANY_BYTES && enough;
        match gains && counted.check(job).is_ok() {
            true => Ok(counted),
            false => Ok(dealt),
        }
    }

    /// All weights are there before the vector is, where a multiprocessor has few: what counts then is how many warps
    /// multiply. Measured on an H200 with one token of Qwen3-30B-A3B (docs/notes/experts.md, "Three launches").
    fn behind_ids(&self, job: &Job<'_>) -> Self {
        const FEW_BYTES: u64 = 256 << 10;
        const LONGEST: usize = 2048;
        let sms = u64::from(job.gpu.multiprocessors.max(1));
        let few = job.shape.weight_bytes() as u64 / sms <= FEW_BYTES && job.shape.k() <= LONGEST;
        let late = job.dependent() && job.operands.late && job.operands.distinct;
        let of_group = row_warps(job.shape, self.chunks) * self.ctas.div_ceil(sms as u32).max(1);
        let groups = (MAX_WARPS / of_group.max(1)).max(self.groups);
        let more = Self {
            groups,
            // One unit more than hold as much.
            depth: (self.depth * self.groups / groups + 1).max(2),
            ..*self
        };
        let known = few && late && integers(job) && groups > self.groups;
        match known && more.check(job).is_ok() {
            true => more,
            false => *self,
        }
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        // With several vectors, other kernels read the weights less often. One time says how far behind ring is.
        if job.shape.n() > PASS {
            return vec![default];
        }
        // Bytes in flight hide the latency of memory; more do nothing.
        let (deepest, rings) = match job.ahead() {
            false => (4, RING_BYTES * 3 / 5..=RING_BYTES * 5 / 2),
            // CTAs of a chained launch come to wherever there is room. No multiprocessor has room for three with such a
            // ring.
            true if !integers(job) && code_bytes(job.shape) >= COUNTED_BYTES => {
                (6, APART_BYTES..=RING_BYTES * 13 / 4)
            }
            true => (6, RING_BYTES * 3 / 4..=RING_BYTES * 13 / 4),
        };
        let (shape, tiled) = (job.shape, job.operands.tiled());
        let mut configs = vec![default];
        let dealt = Self {
            counted: 0,
            ..default
        };
        for chunks in [2, 1] {
            let most = MAX_WARPS / row_warps(shape, chunks).clamp(1, MAX_WARPS);
            for groups in [most, most.div_ceil(2), most.div_ceil(4)] {
                for rows in ROWS {
                    for depth in 1..=deepest {
                        let ring = u64::from(groups * depth) * unit_bytes(shape);
                        if !rings.contains(&ring) {
                            continue;
                        }
                        for &granule in if tiled { &[4, 1][..] } else { &[1] } {
                            configs.push(Self {
                                chunks,
                                groups,
                                rows,
                                depth,
                                granule,
                                ctas: ctas(job, granule, 1),
                                ..dealt
                            });
                        }
                    }
                }
            }
        }
        // Two CTAs an SM, each with half of the warps.
        let two: Vec<Self> = configs
            .iter()
            .filter(|config| config.groups > 1)
            .map(|config| Self {
                groups: config.groups / 2,
                ctas: ctas(job, config.granule, 2),
                ..*config
            })
            .collect();
        configs.extend(two);
        // With the small rings of isolated launches, L1 is large enough.
        if tiled && !default.cached {
            let cached = |config: &Self| Self {
                cached: true,
                ..*config
            };
            configs.extend(configs.iter().map(cached).collect::<Vec<_>>());
        }
        if counters(job) && code_bytes(shape) >= COUNTED_BYTES {
            let counted = |config: &Self| COUNTED.map(|counted| Self { counted, ..*config });
            configs.extend(configs.iter().flat_map(counted).collect::<Vec<_>>());
        }
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let (shape, tiled) = (job.shape, job.operands.tiled());
        let Self {
            chunks,
            groups,
            rows,
            depth,
            granule,
            ctas,
            counted,
            ..
        } = *self;
        field("chunks", chunks, "1 or 2", [1, 2].contains(&chunks))?;
        let most = MAX_WARPS / row_warps(shape, chunks).max(1);
        field(
            "groups",
            groups,
            "1 to 16 divided by the warps that share a row (K / 1024 / chunks, rounded up)",
            (1..=most).contains(&groups),
        )?;
        field(
            "rows",
            rows,
            "1, 2 or 4, and 2 or 4 with one chunk",
            ROWS.contains(&rows) && chunks * rows > 1,
        )?;
        field(
            "rows",
            rows,
            "2 with two chunks of a 16-bit vector",
            chunks == 1 || rows == 2 || integers(job),
        )?;
        field("depth", depth, "1 to 8", DEPTHS.contains(&depth))?;
        field("granule", granule, "1 or 4", [1, 4].contains(&granule))?;
        let granules = places(shape, tiled).div_ceil(granule.into());
        field(
            "ctas",
            ctas,
            "1 to the granules of all rows",
            ctas >= 1 && u64::from(ctas) <= granules,
        )?;
        field(
            "counted",
            counted,
            "0 to 7 eighths; not 0 with two chunks and 1 or 2 rows only, where each group keeps depth + 2 units of \
             its own",
            counted == 0
                || (counted < EIGHTHS && chunks == 2 && rows <= 2 && self.keeps_enough(job)),
        )?;
        // The check includes what counted units take, even if a call without a workspace deals them. So a workspace
        // refuses no config.
        shared_memory(self.layout(job, counted > 0).bytes, job.gpu)
    }

    fn workspace_bytes(&self, job: &Job<'_>) -> u64 {
        match self.counts(job) {
            true => RawWorkspace::COUNTER_BYTES,
            false => 0,
        }
    }

    /// A thread adds two blocks of each chunk, each by one fused operation. Five additions over the lanes follow, and
    /// one for each warp that shares the row. Blocks and the product of two block scales are exact.
    ///
    /// With a 16-bit vector a chunk is eight matrix instructions in a chain ([`scaled_matrix_roundings`]), of a thread
    /// and three others. The factor that ends a sum is a power of two, and exact.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        // A number of chunks that no kernel has counts as the nearest one that a kernel has.
        let chunks = self.chunks.clamp(1, 2);
        let of_chunk = match activation {
            Activation::Nvfp4 => 2,
            _ => 8 * scaled_matrix_roundings(activation),
        };
        of_chunk * chunks + 5 + row_warps(shape, chunks) + ALPHAS
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let tiled = job.operands.tiled();
        let counts = self.counts(job);
        let layout = self.layout(job, counts);
        let dealt = dealt_at_once(job);
        // The first batches may have a CTA more than others.
        let l = shape.l() as u32;
        let batches_more = match are_apart(job) {
            true => self.ctas.saturating_sub(self.ctas_at_once(job) * l),
            false => 0,
        };
        let ctas = self.ctas_at_once(job) + u32::from(batches_more > 0);
        let granules = places(&dealt, tiled)
            .min(layout.dealt)
            .div_ceil(self.granule.into());
        let (m, several) = (shape.m() as u32, dealt.l() > 1);
        let row_warps = row_warps(shape, self.chunks);
        let producers = self.groups.min(NVFP4_RING_MAX_PRODUCERS);
        let parameters = |pass: &Pass| nvfp4_ring_params {
            granules_per_cta: granules as u32 / ctas,
            granules_left: granules as u32 % ctas,
            granule_log2: self.granule.ilog2(),
            producers,
            aligned: if tiled || several {
                NVFP4_RING_UNIT_ROWS - 1
            } else {
                0
            },
            rows: m * dealt.l() as u32,
            places: places(&dealt, tiled) as u32,
            dealt: layout.dealt as u32,
            depth: self.depth,
            groups: self.groups,
            row_warps,
            row_warps_magic: (1_u32 << 16).div_ceil(row_warps),
            bars_at: layout.bars_at as u32,
            weights: pass.weights,
            chunks: shape.row_code_bytes() as u32 / NVFP4_RING_CHUNK_BYTES,
            dependent: u32::from(job.dependent()),
            m,
            m_magic: if several { magic(m) } else { 0 },
            zero: 0,
            scales_at: layout.scales_at as u32,
            sums_at: layout.sums_at as u32,
            sums_pitch: layout.sums_pitch as u32,
            vectors: pass.vectors,
            epilogue: pass.epilogue,
            counters: if counts { call.workspace.address } else { 0 },
            turns: layout.turns as u32,
            announced_at: layout.announced_at as u32,
            select: call.select_operand(job),
            batches_more,
            fewer_per_cta: layout.granules_per_cta as u32,
            fewer_left: layout.granules_left as u32,
            quantized_at: layout.quantized_at as u32,
            on_read: call.on_read_operand(),
            ..nvfp4_ring_params::default()
        };
        let mut plan = Plan::new();
        for pass in call.passes(PASS) {
            plan.push(Launch {
                entry: self.entry(job),
                unit: match (job.operands.on_read, job.operands.select) {
                    (true, _) => ON_READ_UNIT,
                    (false, true) => SELECT_UNIT,
                    (false, false) => UNIT,
                },
                grid: match are_apart(job) {
                    true => [l, ctas, 1],
                    false => [ctas, 1, 1],
                },
                threads: (self.groups * row_warps + producers) * NVFP4_WARP,
                dynamic_shared: layout.bytes as u32,
                dependent: job.dependent(),
                parameters: Parameters::of(&parameters(&pass)),
                ..Launch::default()
            });
        }
        plan
    }

    fn bytes_in_flight(&self, job: &Job<'_>) -> u64 {
        // Codes, and their scales, which have an eighth of the codes' bytes.
        let units = u64::from(self.groups) * u64::from(self.depth);
        units.saturating_mul(unit_bytes(job.shape) / 8 * 9)
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        MainLoop {
            lane_weights: NVFP4_RING_UNIT_ROWS * 2 * NVFP4_RING_CHUNK_BYTES * self.chunks,
            vectors: 1,
            products: match integers(job) {
                true => Products::Integer,
                false => Products::WarpMatrix { vectors: 1 },
            },
            tensor_columns: 0,
        }
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_ring_params {}

/// The entry point of a kernel for a type of vectors, with the chunks, rows and caching of a config.
macro_rules! entry {
    ($kernel:literal, $config:expr, $activation:expr, $end:literal) => {{
        macro_rules! both {
            ($name:literal) => {
                [
                    concat!("gemv_", $kernel, "_", $name, "_l2", $end),
                    concat!("gemv_", $kernel, "_", $name, "_l1", $end),
                ]
            };
        }
        let [in_l2, in_l1] = match ($activation, $config.chunks, $config.rows) {
            (Activation::Nvfp4, 1, 2) => both!("nvfp4_c1_r2"),
            (Activation::Nvfp4, 1, _) => both!("nvfp4_c1_r4"),
            (Activation::Nvfp4, _, 1) => both!("nvfp4_c2_r1"),
            (Activation::Nvfp4, _, 2) => both!("nvfp4_c2_r2"),
            (Activation::Nvfp4, ..) => both!("nvfp4_c2_r4"),
            (Activation::F16, 1, 2) => both!("f16_c1_r2"),
            (Activation::F16, 1, _) => both!("f16_c1_r4"),
            (Activation::F16, ..) => both!("f16_c2_r2"),
            (_, 1, 2) => both!("bf16_c1_r2"),
            (_, 1, _) => both!("bf16_c1_r4"),
            _ => both!("bf16_c2_r2"),
        };
        if $config.cached { in_l1 } else { in_l2 }
    }};
}

/// A CTA's own granules, and offsets in its dynamic shared memory, in bytes. The ring stands first.
struct Layout {
    /// Places that are dealt to CTAs. Units of the other places are counted.
    dealt: u64,
    granules_per_cta: u64,
    granules_left: u64,
    /// The most units of a group, its own and counted ones.
    turns: u64,
    scales_at: u64,
    bars_at: u64,
    sums_at: u64,
    sums_pitch: u64,
    announced_at: u64,
    quantized_at: u64,
    bytes: u64,
}

impl RingConfig {
    /// The config that was fastest or nearly so for problems measured on an H200. The ring is smaller where shared
    /// memory is short. There are more CTAs than SMs where a CTA's sums would not fit. In chains the ring is deeper, if
    /// the GPU has room.
    fn default_dealt(job: &Job<'_>) -> Result<Self, Refusal> {
        if (has_rule(job) || is_short_chain(job))
            && let Some(config) = Self::by_rule(job)
        {
            return Ok(match job.ahead() {
                true => config.deeper(job, CHAINED_SHORT_RING_BYTES),
                false => config.behind_ids(job),
            });
        }
        let (shape, tiled) = (job.shape, job.operands.tiled());
        // A row that one chunk of a warp holds would leave half of the threads idle with two.
        let fits_chunk = shape.k() <= WARP_CHUNK;
        let granule = if tiled && !fits_chunk { 4 } else { 1 };
        let rows = match shape.k() {
            _ if fits_chunk => 4,
            _ if !integers(job) => 2,
            // In chains stages of four rows took 11 and 13% longer (docs/notes/tuning.md, "A second round").
            2049..4096 if job.ahead() => 2,
            ..4096 => 4,
            4096..8192 => 2,
            _ => 1,
        };
        let chunks = if fits_chunk { [1, 2] } else { [2, 1] };
        let alone = chunks.into_iter().find_map(|chunks| {
            let row_warps = row_warps(shape, chunks);
            // Eight warps have little to start and to end.
            let groups = (MAX_WARPS / row_warps).min(if row_warps == 1 { 8 } else { 4 });
            let depth = RING_BYTES / (unit_bytes(shape) * u64::from(groups.max(1)));
            let depth = depth.clamp(1, 4) as u32;
            [1, 2, 4, 16].into_iter().find_map(|per_sm| {
                (1..=groups).rev().find_map(|groups| {
                    let config = Self {
                        chunks,
                        groups,
                        rows,
                        depth,
                        granule,
                        cached: true,
                        ctas: ctas(job, granule, per_sm),
                        counted: 0,
                    };
                    config.check(job).is_ok().then_some(config)
                })
            })
        });
        let smallest = Self {
            chunks: 2,
            groups: 1,
            rows,
            depth: 1,
            granule,
            cached: true,
            ctas: ctas(job, granule, 16),
            counted: 0,
        };
        let alone = match alone {
            Some(config) => config,
            None => return smallest.check(job).map(|()| smallest),
        };
        if !job.ahead() {
            return Ok(alone.behind_ids(job));
        }
        let ring = match shape.k() {
            ..=SHORT => CHAINED_SHORT_RING_BYTES,
            _ => CHAINED_RING_BYTES,
        };
        Ok(alone.deeper(job, ring))
    }

    /// This config with as many units in the rings of a multiprocessor as `ring` bytes hold, if the GPU has room.
    fn deeper(self, job: &Job<'_>, ring: u64) -> Self {
        let turn = unit_bytes(job.shape) * u64::from(self.groups);
        let deepest = (ring / turn.max(1)).clamp(self.depth.into(), (*DEPTHS.end()).into()) as u32;
        let deeper = (self.depth..=deepest).rev().map(|depth| Self {
            depth,
            cached: false,
            ..self
        });
        let mut fitting = deeper.filter(|config| config.check(job).is_ok());
        fitting.next().unwrap_or(self)
    }

    /// The config that loses least of those that are worth measuring, without counted units. Calls that are not
    /// prepared ask for it: what few fields decide is worked out once for all others.
    fn by_rule(job: &Job<'_>) -> Option<Self> {
        let shape = job.shape;
        let plain = Self {
            granule: if job.operands.tiled() { 4 } else { 1 },
            cached: true,
            ..Self::DEFAULT
        };
        let stages = ROWS.map(|rows| (rows, Self { rows, ..plain }.loses_by_stages(job)));
        let mut best: Option<(f64, Self)> = None;
        for (chunks, per_sm) in [(2, 1), (2, 2), (1, 1), (1, 2)] {
            let most = MAX_WARPS / row_warps(shape, chunks).clamp(1, MAX_WARPS);
            for groups in [most, most.div_ceil(2), most.div_ceil(4)] {
                let config = Self {
                    chunks,
                    groups: groups / per_sm,
                    ctas: ctas(job, plain.granule, per_sm.into()),
                    ..plain
                };
                if config.groups == 0 {
                    continue;
                }
                let of_groups = config.loses_by_groups(job);
                // The fewest units with which the ring holds enough, or one less. If one is enough, two may lose less.
                let turn = u64::from(config.groups * per_sm) * unit_bytes(shape);
                let enough = RULED_RING_BYTES
                    .div_ceil(turn.max(1))
                    .clamp(2, RULED_DEPTH.into());
                for depth in enough as u32 - 1..=enough as u32 {
                    let config = Self { depth, ..config };
                    let of_ring = of_groups + config.loses_by_ring(job);
                    for (rows, of_stages) in stages {
                        let config = Self { rows, ..config };
                        let loses = of_ring + of_stages + config.loses_by_waiting();
                        let better = best.is_none_or(|(least, _)| loses < least);
                        if better && chunks * rows > 1 && config.check(job).is_ok() {
                            best = Some((loses, config));
                        }
                    }
                }
            }
        }
        best.map(|(_, config)| config)
    }

    /// The time that launches which wait lose with this config, as a natural logarithm, with one NVFP4 vector. The
    /// parts are a sum that was fitted, no factor below 0, on 12 of 24 shapes that were measured on an H100 with all
    /// candidates (docs/notes/ring.md, "A rule for one NVFP4 vector").
    fn loses(&self, job: &Job<'_>) -> f64 {
        let of_units = self.loses_by_groups(job) + self.loses_by_ring(job);
        of_units + self.loses_by_stages(job) + self.loses_by_waiting()
    }

    /// CTAs of a multiprocessor.
    fn per_sm(&self, job: &Job<'_>) -> u32 {
        let multiprocessors = job.gpu.multiprocessors.max(1);
        // By an integer, the nearest one.
        ((self.ctas + multiprocessors / 2) / multiprocessors).max(1)
    }

    /// What the groups lose, whatever they have in the ring.
    fn loses_by_groups(&self, job: &Job<'_>) -> f64 {
        let (shape, per_sm) = (job.shape, self.per_sm(job));
        let row_warps = row_warps(shape, self.chunks);
        let units = places(shape, false)
            .div_ceil(self.ctas.max(1).into())
            .div_ceil(UNIT_ROWS);
        let groups = u64::from(self.groups.max(1));
        let turns = units.div_ceil(groups);
        let idle = (turns * groups) as f64 / units.max(1) as f64 - 1.0;
        let warps = f64::from(self.groups * row_warps * per_sm);
        let lanes = shape.k() as f64 / (f64::from(self.chunks * row_warps) * WARP_CHUNK as f64);
        0.04 * (octaves_below(warps, 12.0) + octaves_below(warps, 8.0))
            // In the last turn.
            + 0.136 * idle
            // Without elements of a row.
            + 0.1 * (1.0 - lanes)
            + if self.chunks == 1 { 0.034 } else { 0.0 }
            + if per_sm > 1 { 0.015 } else { 0.0 }
            + if turns == 1 { 0.032 } else { 0.0 }
    }

    /// What rings lose in which too little is asked for, or more than memory gives by then. The first factor was not
    /// fitted: on an H200, whose memory is faster, calls with 34 to 40 KiB take 9 to 11% longer.
    fn loses_by_ring(&self, job: &Job<'_>) -> f64 {
        let units = self.groups * self.depth * self.per_sm(job);
        let kib = (u64::from(units) * unit_bytes(job.shape)) as f64 / 1024.0;
        let enough = (RULED_RING_BYTES >> 10) as f64;
        0.15 * octaves_below(kib, enough) + 0.054 * octaves_below(64.0, kib)
    }

    /// What stages lose that are small, since each costs the same, or so large that the first products wait for them.
    fn loses_by_stages(&self, job: &Job<'_>) -> f64 {
        let kib = (u64::from(self.rows) * job.shape.row_code_bytes() as u64) as f64 / 1024.0;
        let small = 0.031 * octaves_below(kib, 2.0) + 0.048 * octaves_below(kib, 1.25);
        small + 0.0125 * octaves_below(2.0, kib)
    }

    /// What groups lose that have one unit in the ring: its stages come when all of the last one are done.
    fn loses_by_waiting(&self) -> f64 {
        match self.depth {
            1 => 0.024 + 0.012 * f64::from(self.rows.max(1).ilog2()),
            _ => 0.0,
        }
    }

    /// The entry point of a call.
    fn entry(&self, job: &Job<'_>) -> &'static str {
        let activation = job.operands.activation;
        if job.operands.on_read {
            let config = Self {
                rows: self.stage_rows(job),
                ..*self
            };
            return entry!("ring_on_read", config, activation, "");
        }
        match (job.operands.select, self.counts(job)) {
            (true, _) => entry!("ring_select", self, activation, ""),
            (false, false) => entry!("ring", self, activation, ""),
            (false, true) => entry!("ring", self, activation, "_counted"),
        }
    }

    /// Rows of a stage in this job's launches.
    fn stage_rows(&self, job: &Job<'_>) -> u32 {
        match job.operands.on_read && self.chunks == 2 {
            true => self.rows.min(2),
            false => self.rows,
        }
    }

    /// Whether this config counts units of a call.
    fn counts(&self, job: &Job<'_>) -> bool {
        self.counted > 0 && counters(job)
    }

    /// Number of counted units: the last ones of all.
    fn counted_units(&self, shape: &Shape, tiled: bool) -> u64 {
        let units = places(shape, tiled).div_ceil(UNIT_ROWS);
        units * u64::from(self.counted.min(EIGHTHS)) / u64::from(EIGHTHS)
    }

    /// Whether the first `depth` + NVFP4_RING_AHEAD units of every group are its CTA's own, if the other units are
    /// counted. In turn t a producer announces the unit of turn t + NVFP4_RING_AHEAD. In the first `depth` turns a
    /// producer must announce no counted unit: the warps of the CTA have not met yet, and the launch before may still
    /// use the counters.
    fn keeps_enough(&self, job: &Job<'_>) -> bool {
        let layout = self.layout(job, true);
        let units = layout.granules_per_cta * u64::from(self.granule) / UNIT_ROWS;
        units / u64::from(self.groups) >= u64::from(self.depth + NVFP4_RING_AHEAD)
    }

    /// The fewest CTAs that share what is [dealt at once](dealt_at_once).
    fn ctas_at_once(&self, job: &Job<'_>) -> u32 {
        match are_apart(job) {
            true => (self.ctas / job.shape.l() as u32).max(1),
            false => self.ctas,
        }
    }

    fn layout(&self, job: &Job<'_>, counts: bool) -> Layout {
        let (shape, tiled) = (&dealt_at_once(job), job.operands.tiled());
        let row_warps = u64::from(row_warps(shape, self.chunks));
        let (groups, ctas) = (u64::from(self.groups), u64::from(self.ctas_at_once(job)));
        let all = places(shape, tiled);
        let counted = match counts {
            true => self.counted_units(shape, tiled),
            false => 0,
        };
        let dealt = ((all.div_ceil(UNIT_ROWS) - counted) * UNIT_ROWS).min(all);
        let granules = dealt.div_ceil(self.granule.into());
        // Units of the CTA that has most: one more if alignment cuts the first one.
        let own = (granules.div_ceil(ctas) * u64::from(self.granule)).div_ceil(UNIT_ROWS) + 1;
        // Room for twice as many counted units as there are: groups that have no room left leave enough to others.
        let turns = own.div_ceil(groups) + (2 * counted).div_ceil(groups * ctas) + 1;
        let units = if counts { turns * groups } else { own };
        let sums_pitch = units * UNIT_ROWS;
        let ring_units = groups * u64::from(self.depth);
        let scale_bytes = u64::from(NVFP4_RING_SCALE_SLOTS * NVFP4_RING_SCALE_BYTES);
        let scales_at = ring_units * unit_bytes(shape);
        let bars_at = scales_at + groups * row_warps * u64::from(self.chunks) * scale_bytes;
        let stages = ring_units * (UNIT_ROWS / u64::from(self.stage_rows(job)));
        let sums_at = bars_at + stages * u64::from(NVFP4_RING_BAR_BYTES);
        let announced_at = sums_at + row_warps * sums_pitch * 4;
        let announced = match counts {
            true => units * u64::from(NVFP4_RING_PLACE_BYTES),
            false => 0,
        };
        let behind = announced_at + announced;
        // Codes, block scales, and what each warp has found to be the largest magnitude.
        let quantized_at = behind.next_multiple_of(NVFP4_RING_QUANTIZED_ALIGN.into());
        let bytes = match job.operands.on_read {
            true => {
                let vector = shape.row_code_bytes() as u64 + shape.blocks() as u64;
                quantized_at + vector + groups * row_warps * u64::from(NVFP4_RING_LARGEST_BYTES)
            }
            false => behind,
        };
        Layout {
            dealt,
            granules_per_cta: granules / ctas,
            granules_left: granules % ctas,
            turns,
            scales_at,
            bars_at,
            sums_at,
            sums_pitch,
            announced_at,
            quantized_at,
            bytes,
        }
    }
}

/// How far a value is below a limit, in octaves; 0 above it.
fn octaves_below(value: f64, limit: f64) -> f64 {
    match value < limit {
        true => (limit / value).log2(),
        false => 0.0,
    }
}

/// Whether measurements say how configs of one shape do on another: one NVFP4 vector, on a Hopper.
fn is_measured(job: &Job<'_>) -> bool {
    integers(job)
        && job.shape.n() == PASS
        && job.gpu.compute_capability.0 == 9
        && !job.operands.select
}

/// Whether [`RingConfig::loses`] says which config is the best.
fn has_rule(job: &Job<'_>) -> bool {
    is_measured(job) && !job.ahead()
}

/// Whether a job is a chain of launches so short that the bytes of a multiprocessor fit its ring: their time depends on
/// whether the next launch finds room beside this one. Rows of a warp's chunk have a config of their own.
fn is_short_chain(job: &Job<'_>) -> bool {
    let rows = places(job.shape, false).div_ceil(job.gpu.multiprocessors.max(1).into());
    let bytes = rows * job.shape.row_code_bytes() as u64;
    let chained = job.ahead() && job.shape.k() > WARP_CHUNK;
    is_measured(job) && chained && bytes <= CHAINED_SHORT_RING_BYTES
}

/// Whether vectors are multiplied as integers.
fn integers(job: &Job<'_>) -> bool {
    job.operands.activation == Activation::Nvfp4
}

/// Whether units can be counted: the call has a workspace to count in, and batches are not apart.
fn counters(job: &Job<'_>) -> bool {
    job.operands.workspace >= RawWorkspace::COUNTER_BYTES && !are_apart(job)
}

/// Whether CTAs have rows of one batch each: where batches select their matrix, and where vectors are quantised when
/// they are read, since a CTA quantises one.
fn are_apart(job: &Job<'_>) -> bool {
    job.operands.select || job.operands.on_read
}

/// The part of a problem whose rows are dealt to CTAs together: all batches, or one where batches are apart.
fn dealt_at_once(job: &Job<'_>) -> Shape {
    match are_apart(job) {
        true => job.shape.one_batch(),
        false => *job.shape,
    }
}

/// Bytes of all codes.
fn code_bytes(shape: &Shape) -> u64 {
    shape.weight_code_bytes() as u64
}

/// Bytes of a unit's codes.
fn unit_bytes(shape: &Shape) -> u64 {
    UNIT_ROWS * shape.row_code_bytes() as u64
}

/// `per_sm` CTAs for each SM, but no more than there are granules.
fn ctas(job: &Job<'_>, granule: u32, per_sm: u64) -> u32 {
    let granules = places(job.shape, job.operands.tiled()) / u64::from(granule);
    let Gpu {
        multiprocessors, ..
    } = job.gpu;
    (u64::from((*multiprocessors).max(1)) * per_sm).clamp(1, granules.max(1)) as u32
}

/// Warps that share a row.
fn row_warps(shape: &Shape, chunks: u32) -> u32 {
    u32::try_from(shape.k().div_ceil(WARP_CHUNK * chunks.max(1) as usize)).unwrap_or(u32::MAX)
}

/// Places of all batches, which rows take in the order of their scales; the last ones may be empty.
fn places(shape: &Shape, tiled: bool) -> u64 {
    let rows = shape.m() as u64 * shape.l() as u64;
    if tiled {
        rows.next_multiple_of(NVFP4_ATOM_ROWS.into())
    } else {
        rows
    }
}

/// Whether the kernel can count places in 32 bits, and find a row's batch by multiplying with 2^32 / M, rounded up. The
/// product is exact while what the rounding adds, times the row, stays below 2^32.
fn places_are_counted(shape: &Shape, tiled: bool) -> bool {
    let (m, places) = (shape.m() as u64, places(shape, tiled));
    let added = (1_u64 << 32).div_ceil(m) * m - (1 << 32);
    places < 1 << 31 && (shape.l() == 1 || added * places < 1 << 32)
}
