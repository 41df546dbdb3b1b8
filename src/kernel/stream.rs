//! The kernel whose warps stream rows through queues of their own in shared memory: `csrc/kernels/gemv_stream.cuh`.

use super::many_vectors::{has_wgmma, invariant_part};
use super::params::{
    NVFP4_ATOM_ROWS, NVFP4_BLOCK, NVFP4_STREAM_BF16_COLUMNS, NVFP4_STREAM_F32_COLUMNS,
    NVFP4_STREAM_FLOAT_BYTES, NVFP4_STREAM_INTEGER_BYTES, NVFP4_STREAM_MAX_WARPS,
    NVFP4_STREAM_MAX_WARPS_OF_MANY, NVFP4_STREAM_MAX_WARPS_ORDERED, NVFP4_STREAM_PART_BYTES,
    NVFP4_STREAM_RAGGED_STAGE_BYTES, NVFP4_STREAM_SCALED_FROM, NVFP4_STREAM_SCALED_FROM_BF16,
    NVFP4_STREAM_SCALED_FROM_F32, NVFP4_STREAM_STAGE_BYTES, NVFP4_STREAM_STEP_BLOCKS,
    NVFP4_STREAM_TILE_ROWS, NVFP4_STREAM_X_SCALE_BYTES, NVFP4_STREAM_ZERO_BLOCKS, NVFP4_WARP,
    nvfp4_stream_params,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::{
    ALPHAS, Call, Cost, Job, KernelConfig, MainLoop, Products, apart, distinct, expected, few,
    field, magic, shared_memory, with_room,
};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The config of the stream kernel. A CTA's rows, in tiles of 16, are divided into steps of 256 elements of K. Each
/// warp takes as many steps as the others, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamConfig {
    /// Warps of a CTA: 1 to 16, or to 12 with more than two vectors in a pass and a `part` of 0.
    pub warps: u32,
    /// Steps that a warp's queue holds: 3, 4 or 6.
    pub stages: u32,
    /// Vectors of a pass over the weights, at most: 1, 2, 4, 8 or 16. With ragged rows 8 at most, with f32 vectors 4.
    pub vectors: u32,
    /// Bytes of weights that L2 fetches at once: 128 or 256. With ragged rows, and with f32 vectors, always 128.
    pub fetch: u32,
    /// Stages of a queue's first filling that a chained launch asks for only after the launch before has ended, behind
    /// the vectors. The first filling is all stages but one. With 0, weights come as early as they can. With all stages
    /// of the filling, vectors do not wait behind weights. Without effect on launches that are not chained.
    pub behind: u32,
    /// Whether CTAs of a chained launch ask for so much shared memory that no multiprocessor has room for more of them
    /// than its share. CTAs come while the launch before still runs, to wherever there is room. Without `spread`, one
    /// multiprocessor may get two CTAs while another gets none, and the launch takes twice as long. With `spread`,
    /// fewer CTAs can come before CTAs of the launch before have ended. Without effect on launches that are not
    /// chained.
    pub spread: bool,
    /// Warps that take steps of a row side by side: 1, 2, 4 or 8. With more than one, a CTA asks for longer pieces of
    /// fewer rows at once, and stores sums more often. `warps` is a multiple of `beside`, and so is the number of a
    /// row's steps. With ragged rows, and with more than two vectors in a pass, `beside` is 1. It counts as 1 where
    /// batches select their matrix.
    pub beside: u32,
    /// CTAs that share the rows of all batches: no more than there are rows, or fours of rows where the
    /// weights' scales are in the 128x4 layout.
    pub ctas: u32,
    /// Steps of a part: a row is divided into parts from its beginning on, of which the last may be shorter. One warp
    /// adds up a part, in a chain of matrix instructions, and the parts are added in the order of K. So sums have the
    /// bits of the `packed` kernel with [long sums](super::PackedConfig::long_sums) and the same parts, whatever the
    /// number of vectors. 0: a warp ends where its share of the steps does, and adds each step or half a step by
    /// itself. A part needs compute capability 9.0, rows that are not ragged, vectors of 16 bits or NVFP4, passes of up
    /// to eight, batches that do not select their matrix, and a `beside` of 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub part: u32,
}

/// Whether a field is left out of files.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(field: &u32) -> bool {
    *field == 0
}

impl StreamConfig {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        warps: 1,
        stages: 3,
        vectors: 1,
        fetch: 128,
        behind: 0,
        spread: false,
        beside: 1,
        ctas: 1,
        part: 0,
    };
}

/// The unit for problems that are not [ragged](is_ragged); the one where batches select their matrix; the one for
/// problems that are ragged; and the one for sums in parts.
const UNIT: &str = "gemv_stream";
const SELECT_UNIT: &str = "gemv_stream_select";
const RAGGED_UNIT: &str = "gemv_stream_ragged";
const ORDERED_UNIT: &str = "gemv_stream_ordered";
/// Elements of K of a step.
const STEP: usize = (NVFP4_STREAM_STEP_BLOCKS * NVFP4_BLOCK) as usize;
/// Matrix instructions of a step.
const STEP_INSTRUCTIONS: u32 = STEP as u32 / 16;
const TILE_ROWS: u64 = NVFP4_STREAM_TILE_ROWS as u64;
/// Bytes of weights from which on L2 should fetch 256 bytes at once: measured on an H200, docs/notes/stream.md.
const FAR_AHEAD_BYTES: usize = 100_000_000;
/// Bytes of weights of an SM below which they count as little: tried on an H200, without figures that were kept
/// (docs/notes/tuning.md).
const SMALL_BYTES: u64 = 96 << 10;
/// Bytes of weights of an SM below which they count as a middling amount, of which a chained launch has two small CTAs
/// each (docs/notes/tuning.md, "A second round").
const MIDDLING_BYTES: u64 = 256 << 10;
/// Numbers of warps of the default, which takes the first that fits. On an H200 eight warps were faster than nine to
/// eleven, of which one scheduler of four has three (docs/notes/stream.md, "Long vectors").
const WARPS: [u32; 9] = [12, 8, 7, 6, 5, 4, 3, 2, 1];
/// Elements of the longest rows for which a chained launch with several vectors asks for all weights behind the
/// vectors. On an H200 that was better for rows of 4096 and 5120 elements, and worse for 8192 (docs/notes/stream.md,
/// "Chains").
const SHORT_ROWS: usize = 5120;
/// Bytes that a multiprocessor of an H200 could read until a CTA's vectors are in its shared memory: 2500 cycles, of a
/// short vector (docs/notes/stream.md, "Vectors of several batches").
const START_BYTES: f64 = 48e3;
/// Fraction of the bytes (`Bytes`) of one number of CTAs below which another is taken for several batches: what was
/// measured of such problems, with about as many bytes, has one CTA for each multiprocessor.
const CLEARLY_LESS: f64 = 0.875;
/// Numbers of stages that the kernel knows how to wait for.
const STAGES: [u32; 3] = [3, 4, 6];
/// Numbers of warps that may take steps side by side. More than one warp was faster with few vectors and linear scales
/// only, on an H100 (docs/notes/stream.md, "Warps side by side").
const BESIDE: [u32; 4] = [1, 2, 4, 8];
/// Numbers of vectors that the kernel is compiled for, the largest first.
const VECTORS: [u32; 5] = [16, 8, 4, 2, 1];
/// The most vectors of a pass with ragged rows, with sums in parts, and with f32 vectors.
const MOST_RAGGED: u32 = 8;
const MOST_ORDERED: u32 = 8;
const MOST_F32: u32 = 4;
/// Bytes that warps should have asked for at once, of stages: as many as in the default without parts.
const IN_FLIGHT_STAGES: u32 = 20;

/// Factor on the share where rows start anywhere, or vectors are f32. Measured on an H200: 0.69 to 0.86, and 0.86 to
/// 0.94 with f32 vectors (docs/notes/tuning.md).
const RAGGED: f64 = 0.8;

/// Costs of vectors on an H200 (docs/notes/stream.md, "More vectors and the model"). Ragged rows have no kernel for
/// sixteen vectors, which are two passes of eight.
const COST_F16: Cost = Cost::Compiled([1.0, 1.02, 1.07, 1.14, 1.6]);
const COST_BF16: Cost = Cost::Compiled([1.0, 1.07, 1.1, 1.2, 1.65]);
const COST_NVFP4: Cost = Cost::Compiled([1.0, 1.04, 1.1, 1.3, 1.8]);
const COST_RAGGED: Cost = Cost::Compiled([1.0, 1.04, 1.08, 1.45, 2.9]);

impl KernelConfig for StreamConfig {
    const MOST_VECTORS: u32 = VECTORS[0];
    const WHY: &'static str =
        "each warp's own queue keeps up with memory, and starts sooner than tiles shared by a CTA";
    /// A long vector leaves room for few warps.
    const ONE_VECTOR_VARIES: bool = true;

    fn share_of_one(shape: &Shape, operands: &Operands) -> f64 {
        let one = expected::share_of_one(operands.activation);
        match is_ragged(shape, operands) {
            true => RAGGED * one,
            false => one,
        }
    }

    fn cost(job: &Job<'_>) -> Cost {
        // The memory of Blackwells of data centres is too fast to hide the kernel's instructions as on an H200.
        if job.gpu.compute_capability.0 == 10 {
            return Cost::FAST;
        }
        match job.operands.activation {
            Activation::F32 => Cost::FAST,
            _ if !is_whole(job) => COST_RAGGED,
            Activation::Nvfp4 => COST_NVFP4,
            Activation::F16 => COST_F16,
            Activation::Bf16 => COST_BF16,
        }
    }

    /// Sums in parts have weights that carry their scales, which cost for one vector what they cost for four.
    fn cost_with(&self, job: &Job<'_>) -> Cost {
        match (self.part, Self::cost(job)) {
            (1.., Cost::Compiled([_, _, four, eight, _])) => {
                Cost::Compiled([four, four, four, eight, 2.0 * eight])
            }
            (_, cost) => cost,
        }
    }

    /// The fraction of the share that is left with few warps, if vectors leave shared memory for few. Measured on an
    /// H200 with one bf16 vector of 36864 to 53248 elements (docs/notes/stream.md, "Long vectors"); one warp was not
    /// measured. And, by bytes alone, what is left with several batches where CTAs that come one after the other stage
    /// vectors for longer than they multiply, and each has a start of its own.
    fn share_left(&self, job: &Job<'_>) -> f64 {
        let ctas = self.ctas / job.gpu.multiprocessors.max(1);
        let of_warps = match self.warps.saturating_mul(ctas.max(1)) {
            ..=1 => 0.2,
            2 => 0.41,
            3 => 0.59,
            4 => 0.74,
            5 | 6 => 0.78,
            7 => 0.89,
            _ => 1.0,
        };
        // As measured with one vector (docs/notes/tuning.md, "Few rows"). Few steps are not what takes time.
        let rounds = self.tiles(job) * steps(job.shape) / u64::from(self.warps.max(1));
        let of_rows = match job.shape.n() {
            ..=1 if rounds > 1 => 0.35 + 0.9 * self.rows_of_tile(job) / TILE_ROWS as f64,
            _ => 1.0,
        };
        let of_warps = of_warps * of_rows.min(1.0);
        let bytes = self.bytes(job);
        match job.shape.l() > 1 && bytes.ctas > 1.0 {
            true => {
                let once = bytes.start + bytes.ctas * bytes.tiles;
                of_warps * (bytes.tiles / bytes.start).min(once / bytes.all())
            }
            false => of_warps,
        }
    }

    fn default_reaches(_: &Job<'_>) -> f64 {
        0.97
    }

    /// A round is a step of each of twelve warps of a multiprocessor. It takes what memory takes for it, and with 16
    /// vectors what the warps take to multiply it; NVFP4 weights then carry scales of vectors, too. Each tile has an
    /// end, where sums of warps are added and stored: rows of two steps are mostly ends. And each CTA stages its
    /// vectors.
    fn microseconds(&self, job: &Job<'_>) -> Option<f64> {
        const WAIT: f64 = 2.9;
        if self.part != 0 {
            return None;
        }
        let nvfp4 = job.operands.activation == Activation::Nvfp4;
        let steps = steps(job.shape);
        let ctas = f64::from(self.ctas.div_ceil(job.gpu.multiprocessors.max(1)));
        let tiles = ctas * self.tiles(job) as f64;
        let rounds = tiles * steps as f64 / 12.0;
        let vectors = self.passes(job.shape)[0];
        let (round, end) = match vectors {
            ..=8 => (1.3, 0.15),
            _ if nvfp4 => (1.49, 0.51),
            _ => (0.97, 0.51),
        };
        let staged = ctas * f64::from(vectors) * job.shape.k() as f64 / 1e4;
        let staging = if nvfp4 { 0.22 } else { 0.37 };
        let passes = job.shape.n().div_ceil(self.pass_vectors() as usize) as f64;
        Some(WAIT + passes * (rounds * round + tiles * end + staged * staging))
    }

    /// With whole steps alone.
    fn takes_select(job: &Job<'_>) -> Result<(), Refusal> {
        match is_whole(job) {
            true => Ok(()),
            false => Err(Refusal::SelectWhole),
        }
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        job.needs((8, 0), "8.0 or newer")?;
        job.image(compiled_in(job))?;
        // Copies take 8 bytes of codes, to which all codes are aligned, and 4 of scales. Vectors have the alignment
        // that they need.
        if job.operands.alignment.scales < 4 {
            return Err(Refusal::Alignment { needed: 4 });
        }
        let shape = job.shape;
        // The kernel counts places in 32 bits.
        if (shape.m() + NVFP4_ATOM_ROWS as usize - 1) * shape.l() >= 1 << 31 {
            return Err(Refusal::Rows);
        }
        let fits = |vectors| {
            let smallest = Self {
                warps: 1,
                stages: 3,
                vectors,
                fetch: 128,
                behind: 0,
                spread: false,
                beside: 1,
                ctas: units(job) as u32,
                part: 0,
            };
            smallest.check(job).is_ok()
        };
        match numbers(job).any(fits) {
            true => Ok(()),
            false => Err(Refusal::VectorMemory),
        }
    }

    /// The config that was fastest or nearly so for problems measured on an H200. There are fewer warps where shared
    /// memory is short. There are more CTAs than SMs where a CTA's sums or the vectors of all its batches would not
    /// fit. Of several batches, fewer CTAs than SMs may divide each evenly: where the vectors of two would not fit, or
    /// where a multiprocessor then reads clearly fewer bytes (`Bytes`).
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let shape = job.shape;
        let units = units(job);
        let sms = u64::from(job.gpu.multiprocessors.max(1));
        let of_sms = [1, 2, 4, 16].map(|times| times * sms);
        let of_batches = [1, 2, 4, 8].map(|times| times * shape.l() as u64);
        let of_batches = of_batches.into_iter().filter(|&ctas| is_busy(ctas, sms));
        let ctas = of_sms.into_iter().chain(even(job)).chain(of_batches);
        let ctas: Vec<u64> = ctas.collect();
        // Little work starts and ends sooner with fewer warps.
        let most = if is_little(job) { 8 } else { 12 };
        let fetch = match shape.weight_bytes() {
            ..FAR_AHEAD_BYTES => 128,
            _ => 256,
        };
        let warps_of = |fewest: u32| {
            let of = move |warps: &u32| (fewest..=most).contains(warps);
            WARPS.into_iter().filter(of)
        };
        let find = |fewest: u32, ctas: &[u64]| {
            numbers(job).find_map(|vectors| {
                let fit = ctas.iter().filter_map(|&ctas| {
                    warps_of(fewest).find_map(|warps| {
                        let config = Self {
                            warps,
                            stages: 3,
                            vectors,
                            fetch,
                            behind: 0,
                            spread: false,
                            beside: 1,
                            ctas: ctas.clamp(1, units.max(1)) as u32,
                            part: 0,
                        };
                        config.check(job).is_ok().then_some(config)
                    })
                });
                // Of one matrix the first that fits reads least.
                fit.reduce(|best, other| {
                    let [least, bytes] = [best, other].map(|config| config.bytes(job).all());
                    match bytes < least * CLEARLY_LESS {
                        true => other,
                        false => best,
                    }
                })
            })
        };
        // Fewer vectors a pass are tried before fewer warps, and both before a CTA for each unit: every CTA decodes the
        // vectors of its batches.
        let every = [units];
        find(8, &ctas)
            .or_else(|| find(1, &ctas))
            .or_else(|| find(8, &every))
            .or_else(|| find(1, &every))
            .map(|config| config.with_enough_warps(job))
            .map(|config| config.side_by_side(job))
            .map(|config| config.of_default_for_chain(job))
            .ok_or(Refusal::VectorMemory)
    }

    fn in_chain(&self, job: &Job<'_>) -> Option<Self> {
        Some(self.for_chain(job))
    }

    /// Parts that calls of more vectors have, too.
    fn batch_invariant(job: &Job<'_>) -> Option<Self> {
        let part = invariant_part(job);
        let default = Self::default_for(job).ok()?;
        let passes = VECTORS
            .into_iter()
            .filter(|&vectors| vectors <= MOST_ORDERED);
        let configs = passes.flat_map(|vectors| {
            (1..=NVFP4_STREAM_MAX_WARPS_ORDERED)
                .rev()
                .flat_map(move |warps| {
                    let enough = |stages: &u32| warps * (stages - 1) >= IN_FLIGHT_STAGES;
                    let stages = STAGES.into_iter().find(enough).unwrap_or(STAGES[2]);
                    [stages, STAGES[0]].map(|stages| Self {
                        warps,
                        stages,
                        vectors,
                        beside: 1,
                        part,
                        ..default
                    })
                })
        });
        let legal = configs.filter(|config| config.check(job).is_ok());
        // Of configs that take the same time, the one with the most vectors a pass, the most warps and the most stages.
        let config = legal.min_by_key(|config| {
            let passes = job.shape.n().div_ceil(config.vectors as usize) as u64;
            let parts = config.tiles(job) * u64::from(parts(job.shape, part));
            passes * time_of_parts(parts, config.warps)
        })?;
        Some(config.for_chain(job))
    }

    fn is_batch_invariant(&self, _: &Job<'_>) -> bool {
        self.part != 0
    }

    fn chain(&self, job: &Job<'_>) -> Option<u32> {
        let steps = steps(job.shape).min(u32::MAX.into()) as u32;
        (self.part != 0).then_some(self.part.min(steps))
    }

    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        let beside = match few(job.shape.n()) && !job.operands.tiled() {
            true => &BESIDE[..],
            false => &BESIDE[..1],
        };
        let sms = u64::from(job.gpu.multiprocessors);
        let usual = [(6, 2), (8, 1), (8, 2), (10, 1), (12, 1), (14, 1), (16, 1)];
        let usual = usual.map(|(warps, per_sm)| (warps, sms * per_sm));
        let even = even(job).map(|ctas| [8, 12].map(|warps| (warps, ctas)));
        for (warps, ctas) in usual.into_iter().chain(even.into_iter().flatten()) {
            for stages in STAGES {
                let ctas = ctas.clamp(1, units(job));
                configs.extend(beside.iter().map(|&beside| Self {
                    warps,
                    stages,
                    beside,
                    ctas: ctas as u32,
                    ..default
                }));
            }
        }
        if is_whole(job) {
            configs.push(Self {
                fetch: 384 - default.fetch,
                ..default
            });
        }
        // More vectors may leave room for fewer warps.
        configs.extend(numbers(job).filter_map(|vectors| {
            let with = |warps| Self {
                warps,
                vectors,
                ..default
            };
            let mut all = (1..=default.warps).rev().map(with);
            all.find(|config| config.check(job).is_ok())
        }));
        if job.dependent() {
            // The default's way, weights as early as can be, and weights as late as in launches that wait.
            let ways = |config: Self| {
                let with = |behind, spread| Self {
                    behind,
                    spread,
                    ..config
                };
                [
                    config.of_default_for_chain(job),
                    config.for_chain(job),
                    with(0, false),
                    with(config.stages - 1, true),
                ]
            };
            configs = configs.into_iter().flat_map(ways).collect();
        }
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            warps,
            stages,
            vectors,
            fetch,
            behind,
            spread: _,
            beside,
            ctas,
            part,
        } = *self;
        if part != 0 {
            has_wgmma(job)?;
            job.image(ORDERED_UNIT)?;
        }
        field(
            "part",
            part,
            "0 where rows are ragged: K is no multiple of 256, or operands are not aligned to 16 bytes; 0 with f32 vectors, and where batches select their matrix",
            part == 0 || is_whole(job) && !job.operands.select,
        )?;
        field(
            "part",
            part,
            "0 with more than eight vectors a pass, or warps side by side",
            part == 0 || vectors <= MOST_ORDERED && beside == 1,
        )?;
        field(
            "vectors",
            vectors,
            "1, 2, 4, 8 or 16",
            VECTORS.contains(&vectors),
        )?;
        field(
            "vectors",
            vectors,
            "1, 2, 4 or 8 where rows are ragged: K is no multiple of 256, or operands are not aligned to 16 bytes",
            vectors <= MOST_RAGGED || is_whole(job),
        )?;
        let f32 = job.operands.activation == Activation::F32;
        field(
            "vectors",
            vectors,
            "1, 2 or 4 with f32 vectors",
            vectors <= MOST_F32 || !f32,
        )?;
        let most_warps = match few(self.passes(job.shape)[0] as usize) {
            _ if part != 0 => NVFP4_STREAM_MAX_WARPS_ORDERED,
            true => NVFP4_STREAM_MAX_WARPS,
            false => NVFP4_STREAM_MAX_WARPS_OF_MANY,
        };
        field(
            "warps",
            warps,
            "1 to 16, or to 12 with more than two vectors in a pass and a part of 0",
            (1..=most_warps).contains(&warps),
        )?;
        field("stages", stages, "3, 4 or 6", STAGES.contains(&stages))?;
        field("fetch", fetch, "128 or 256", [128, 256].contains(&fetch))?;
        field("behind", behind, "0 to the stages but one", behind < stages)?;
        field("beside", beside, "1, 2, 4 or 8", BESIDE.contains(&beside))?;
        field(
            "beside",
            beside,
            "1 where rows are ragged: K is no multiple of 256, or operands are not aligned to 16 bytes",
            beside == 1 || is_whole(job),
        )?;
        field(
            "beside",
            beside,
            "1 with more than two vectors in a pass",
            beside == 1 || few(self.passes(job.shape)[0] as usize),
        )?;
        field(
            "beside",
            beside,
            "a divisor of warps and of a row's steps, which have 256 elements of K",
            warps.is_multiple_of(beside) && steps(job.shape).is_multiple_of(beside.into()),
        )?;
        field(
            "ctas",
            ctas,
            "1 to the rows of all batches, or their fours with 128x4 scales of the weights",
            ctas >= 1 && u64::from(ctas) <= units(job),
        )?;
        // The kernel counts a CTA's steps in 32 bits, and divides them by multiplying.
        let steps = steps(job.shape);
        let counted = self.tiles(job) * steps;
        field(
            "ctas",
            ctas,
            "more: a CTA has too many steps to count",
            counted.saturating_mul(steps.max(warps.into())) < 1 << 32,
        )?;
        // The last pass may need more than the first: fewer vectors, but in another form.
        self.passes(job.shape).into_iter().try_for_each(|vectors| {
            shared_memory(self.layout(job, vectors, self.batches(job)).bytes, job.gpu)
        })
    }

    /// One vector at least, whatever the config says.
    fn pass_vectors(&self) -> u32 {
        self.vectors.max(1)
    }

    /// The roundings of the pass that has most.
    ///
    /// A warp adds what it makes of a step to its sum of a tile. One addition for each warp that shares the tile
    /// follows. The factor that ends a sum is a power of two, and exact.
    ///
    /// One or two vectors: a lane adds four blocks a step, and two additions over lanes follow. NVFP4 blocks are exact.
    /// Blocks of f16 and bf16 vectors are four matrix instructions in a chain, each of which counts for six
    /// (`FOUR_PRODUCTS_ROUNDINGS` in this file derives this number). The product with the block's scale is rounded
    /// together with the addition, by one fused operation. A bf16 vector is summed in two parts, each element in one of
    /// them, and one more rounding adds the parts.
    ///
    /// More vectors, two of bf16, or any of f32: weights are multiplied by their scales first, exactly. Eight matrix
    /// instructions in a chain (`scaled_matrix_roundings`) make half a step of all lanes. An f32 vector is summed in
    /// three parts, which are bf16. Two more roundings add the parts. One is for what the parts lose of elements below
    /// 2^-109, which count as 2^-109 in S ([`Reference::magnitude`](crate::reference::Reference)).
    ///
    /// Sums in parts: all instructions of a part are a chain, sixteen a step, and an addition for each part follows.
    fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let steps = steps(shape) as u32;
        if self.part != 0 {
            let chain = self.part.min(steps).saturating_mul(STEP_INSTRUCTIONS);
            return chain
                .saturating_mul(scaled_matrix_roundings(activation))
                .saturating_add(parts(shape, self.part))
                .saturating_add(ALPHAS);
        }
        let of_pass = |vectors| {
            if self.is_scaled(activation, vectors) {
                let parts = if activation == Activation::F32 { 3 } else { 0 };
                return 8 * scaled_matrix_roundings(activation) + 2 * steps + parts;
            }
            let block = match activation {
                Activation::Nvfp4 => 0,
                _ => 4 * FOUR_PRODUCTS_ROUNDINGS,
            };
            let parts = u32::from(activation == Activation::Bf16);
            block + 4 * steps + 2 + parts
        };
        let [first, last] = self.passes(shape).map(of_pass);
        // More warps than any kernel has count as the most that one has.
        first.max(last) + self.warps.min(NVFP4_STREAM_MAX_WARPS) + ALPHAS
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let (units, ctas) = (units(job), u64::from(self.ctas));
        let steps = steps(shape) as u32;
        let beside = self.beside(job);
        let group_steps = steps / beside;
        // 0 where sums are not in parts.
        let parts = match self.part {
            0 => 0,
            part => parts(shape, part),
        };
        let mut plan = Plan::new();
        for pass in call.passes(self.vectors as usize) {
            let vectors = (pass.n as u32).next_power_of_two();
            // Vectors that all batches share are kept once.
            let x_batches = match (pass.vectors.batch_bytes, pass.vectors.scale_batch_bytes) {
                (0, 0) => 1,
                _ => self.batches(job),
            };
            let layout = self.layout(job, vectors, x_batches);
            let parameters = nvfp4_stream_params {
                m: shape.m() as i32,
                n: pass.n,
                l: shape.l() as i32,
                steps,
                warps: self.warps,
                stages: self.stages,
                beside_log2: beside.ilog2(),
                group_steps,
                dealt_magic: magic(if parts == 0 { group_steps } else { parts }),
                groups_magic: magic(self.warps / beside),
                places: places(job) as u32,
                unit_log2: unit(job).ilog2(),
                units_per_cta: (units / ctas) as u32,
                units_left: (units % ctas) as u32,
                x_batches: x_batches as u32,
                ahead: match job.dependent() {
                    true => self.stages - 1 - self.behind,
                    false => 0,
                },
                far_ahead: (self.fetch == 256).into(),
                x_at: layout.x_at as u32,
                zero_at: layout.zero_at as u32,
                x_scale_at: layout.x_scale_at as u32,
                sums_at: layout.sums_at as u32,
                parts_at: layout.parts_at as u32,
                weights: pass.weights,
                vectors: pass.vectors,
                epilogue: pass.epilogue,
                select: call.select_operand(job),
                part_steps: self.part,
                parts,
            };
            plan.push(Launch {
                entry: match parts {
                    0 => entry(job, vectors, beside > 1),
                    _ => ordered_entry(job, vectors),
                },
                unit: match parts {
                    0 => compiled_in(job),
                    _ => ORDERED_UNIT,
                },
                grid: [self.ctas, 1, 1],
                threads: self.warps * NVFP4_WARP,
                dynamic_shared: match self.spread && job.dependent() {
                    true => layout.bytes.max(apart(self.ctas.into(), job.gpu)) as u32,
                    false => layout.bytes as u32,
                },
                dependent: job.dependent(),
                parameters: Parameters::of(&parameters),
                ..Launch::default()
            });
        }
        plan
    }

    fn bytes_in_flight(&self, job: &Job<'_>) -> u64 {
        // A stage is computed while the others fill.
        u64::from(self.warps)
            .saturating_mul(u64::from(self.stages.saturating_sub(1)))
            .saturating_mul(stage_bytes(job).into())
    }

    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        let vectors = self.passes(job.shape)[0];
        let scaled = self.is_scaled(job.operands.activation, vectors);
        MainLoop {
            // Four lanes share a row of a step, and a lane has two rows.
            lane_weights: 2 * STEP as u32 / 4,
            vectors,
            products: Products::WarpMatrix {
                vectors: match job.operands.activation {
                    // Eight columns: of two vectors, and of half of the next ones.
                    Activation::F32 => 8 / NVFP4_STREAM_F32_COLUMNS,
                    _ if scaled => 8,
                    _ => 2,
                },
            },
            tensor_columns: 0,
        }
    }
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_stream_params {}

/// Whether a problem is for the unit of ragged rows: rows have steps that are not whole, or start where copies of 16
/// bytes do not. Problems with f32 vectors have that unit only.
fn is_ragged(shape: &Shape, operands: &Operands) -> bool {
    operands.activation == Activation::F32
        || !shape.k().is_multiple_of(STEP)
        || !operands.alignment.is_16()
}

/// Whether what was measured on Hoppers says something of the job's GPU.
fn is_hopper(job: &Job<'_>) -> bool {
    job.gpu.compute_capability.0 == 9
}

/// Bytes of weights of an SM.
fn weights_of_sm(job: &Job<'_>) -> u64 {
    job.shape.weight_bytes() as u64 / u64::from(job.gpu.multiprocessors.max(1))
}

/// Whether an SM has few bytes of weights.
fn is_little(job: &Job<'_>) -> bool {
    weights_of_sm(job) < SMALL_BYTES
}

fn is_whole(job: &Job<'_>) -> bool {
    !is_ragged(job.shape, job.operands)
}

/// Numbers of vectors of a pass that are worth a try, the largest first. Sixteen are not, if eight are all or rows are
/// ragged.
fn numbers(job: &Job<'_>) -> impl Iterator<Item = u32> {
    let most = match is_whole(job) && job.shape.n() > MOST_RAGGED as usize {
        true => VECTORS[0],
        false => MOST_RAGGED,
    };
    VECTORS.into_iter().filter(move |&vectors| vectors <= most)
}

/// The unit of `csrc` that the job's kernel is in.
fn compiled_in(job: &Job<'_>) -> &'static str {
    match (is_whole(job), job.operands.select) {
        (true, false) => UNIT,
        (true, true) => SELECT_UNIT,
        (false, _) => RAGGED_UNIT,
    }
}

/// Bytes of a stage of a warp's queue.
fn stage_bytes(job: &Job<'_>) -> u32 {
    match is_whole(job) {
        true => NVFP4_STREAM_STAGE_BYTES,
        false => NVFP4_STREAM_RAGGED_STAGE_BYTES,
    }
}

/// The entry point for a pass of `vectors` vectors: 1, 2, 4, 8 or 16. With warps side by side 1 or 2, of whole steps.
fn entry(job: &Job<'_>, vectors: u32, beside: bool) -> &'static str {
    if beside {
        let [one, two] = match job.operands.activation {
            Activation::Nvfp4 => ["gemv_stream_nvfp4_n1_beside", "gemv_stream_nvfp4_n2_beside"],
            Activation::F16 => ["gemv_stream_f16_n1_beside", "gemv_stream_f16_n2_beside"],
            _ => ["gemv_stream_bf16_n1_beside", "gemv_stream_bf16_n2_beside"],
        };
        return if vectors == 1 { one } else { two };
    }
    // The entry points of a name, for 1, 2, 4, 8 and 16 vectors.
    macro_rules! whole {
        ($name:literal) => {
            [
                concat!("gemv_stream_", $name, "_n1"),
                concat!("gemv_stream_", $name, "_n2"),
                concat!("gemv_stream_", $name, "_n4"),
                concat!("gemv_stream_", $name, "_n8"),
                concat!("gemv_stream_", $name, "_n16"),
            ]
        };
    }
    // No pass of ragged rows has more than eight vectors, or than four of f32.
    macro_rules! ragged {
        ($name:literal) => {
            [
                concat!("gemv_stream_ragged_", $name, "_n1"),
                concat!("gemv_stream_ragged_", $name, "_n2"),
                concat!("gemv_stream_ragged_", $name, "_n4"),
                concat!("gemv_stream_ragged_", $name, "_n8"),
                concat!("gemv_stream_ragged_", $name, "_n8"),
            ]
        };
    }
    let kind = (is_whole(job), job.operands.select);
    let [one, two, four, eight, sixteen] = match (job.operands.activation, kind) {
        (Activation::Nvfp4, (true, false)) => whole!("nvfp4"),
        (Activation::Nvfp4, (true, true)) => whole!("select_nvfp4"),
        (Activation::Nvfp4, (false, _)) => ragged!("nvfp4"),
        (Activation::F16, (true, false)) => whole!("f16"),
        (Activation::F16, (true, true)) => whole!("select_f16"),
        (Activation::F16, (false, _)) => ragged!("f16"),
        (Activation::Bf16, (true, false)) => whole!("bf16"),
        (Activation::Bf16, (true, true)) => whole!("select_bf16"),
        (Activation::Bf16, (false, _)) => ragged!("bf16"),
        (Activation::F32, _) => [
            "gemv_stream_ragged_f32_n1",
            "gemv_stream_ragged_f32_n2",
            "gemv_stream_ragged_f32_n4",
            "gemv_stream_ragged_f32_n4",
            "gemv_stream_ragged_f32_n4",
        ],
    };
    match vectors {
        1 => one,
        2 => two,
        4 => four,
        8 => eight,
        _ => sixteen,
    }
}

/// The entry point for a pass of `vectors` vectors whose sums are in parts: 1, 2, 4 or 8.
fn ordered_entry(job: &Job<'_>, vectors: u32) -> &'static str {
    macro_rules! entries {
        ($name:literal) => {
            [
                concat!("gemv_stream_ordered_", $name, "_n1"),
                concat!("gemv_stream_ordered_", $name, "_n2"),
                concat!("gemv_stream_ordered_", $name, "_n4"),
                concat!("gemv_stream_ordered_", $name, "_n8"),
            ]
        };
    }
    let entries = match job.operands.activation {
        Activation::Nvfp4 => entries!("nvfp4"),
        Activation::F16 => entries!("f16"),
        _ => entries!("bf16"),
    };
    entries[vectors.ilog2() as usize]
}

/// Parts of a row.
fn parts(shape: &Shape, part: u32) -> u32 {
    steps(shape).div_ceil(part.into()) as u32
}

/// Time of a CTA's parts, in that of one part of one warp among eight. Each warp takes whole parts. Fewer than eight
/// warps take as much time as eight.
fn time_of_parts(parts: u64, warps: u32) -> u64 {
    parts.div_ceil(warps.into()) * u64::from(warps.max(8))
}

/// Time of the parts of a job, one CTA a multiprocessor, with the best number of warps: in that of a warp's step among
/// eight.
pub(super) fn time_in_parts(job: &Job<'_>, part: u32) -> u64 {
    let rows = units(job) * unit(job);
    let rows = rows.div_ceil(u64::from(job.gpu.multiprocessors.max(1)));
    let parts = rows.div_ceil(TILE_ROWS) * u64::from(parts(job.shape, part));
    let times = (1..=NVFP4_STREAM_MAX_WARPS_ORDERED).map(|warps| time_of_parts(parts, warps));
    times.min().unwrap_or(u64::MAX).saturating_mul(part.into())
}

/// Offsets in a CTA's dynamic shared memory, in bytes. The queues stand first.
struct Layout {
    x_at: u64,
    zero_at: u64,
    x_scale_at: u64,
    sums_at: u64,
    parts_at: u64,
    bytes: u64,
}

/// What a multiprocessor does in a pass, in bytes, where CTAs come one after the other.
struct Bytes {
    /// CTAs of a multiprocessor, at most.
    ctas: f64,
    /// A CTA's start, and the vectors of its batches.
    start: f64,
    /// A CTA's tiles, with rows that it does not have, which are multiplied as others are.
    tiles: f64,
}

impl Bytes {
    fn all(&self) -> f64 {
        self.ctas * (self.start + self.tiles)
    }
}

impl StreamConfig {
    /// Whether a kernel for so many vectors multiplies weights by their scales first.
    fn is_scaled(&self, activation: Activation, vectors: u32) -> bool {
        self.part != 0
            || vectors
                >= match activation {
                    Activation::F32 => NVFP4_STREAM_SCALED_FROM_F32,
                    Activation::Bf16 => NVFP4_STREAM_SCALED_FROM_BF16,
                    _ => NVFP4_STREAM_SCALED_FROM,
                }
    }

    fn kept(&self, activation: Activation, vectors: u32) -> Kept {
        Kept::new(activation, vectors, self.is_scaled(activation, vectors))
    }

    fn bytes(&self, job: &Job<'_>) -> Bytes {
        let kept = self.kept(job.operands.activation, self.passes(job.shape)[0]);
        let blocks = steps(job.shape) * u64::from(NVFP4_STREAM_STEP_BLOCKS);
        let of_batch = blocks * (kept.columns * kept.block_bytes + kept.scale_bytes);
        let of_row = job.shape.row_code_bytes() + job.shape.blocks();
        Bytes {
            ctas: f64::from(self.ctas.div_ceil(job.gpu.multiprocessors.max(1))),
            start: START_BYTES + (self.batches(job) * of_batch) as f64,
            tiles: (self.tiles(job) * TILE_ROWS) as f64 * of_row as f64,
        }
    }

    /// This config with what is best in chains, by measurements on an H200 (docs/notes/stream.md, "Chains").
    fn for_chain(self, job: &Job<'_>) -> Self {
        if !(job.dependent() && job.ahead()) {
            return self;
        }
        let all = self.stages.saturating_sub(1);
        let nvfp4 = job.operands.activation == Activation::Nvfp4;
        let behind = match self.passes(job.shape)[0] {
            1 => 1,
            2 if !nvfp4 => 1,
            2 => all,
            4 | 8 if job.shape.k() <= SHORT_ROWS => all,
            4 | 8 => 1,
            _ => 0,
        };
        Self {
            behind: behind.min(all),
            spread: true,
            ..self
        }
    }

    /// This default with twelve warps where little work is more than the queues of eight hold, with four and eight
    /// vectors: the others ask for the rest at once, too. Measured on an H100, of launches that wait: up to 9% faster
    /// (docs/notes/tuning.md, "A second round").
    fn with_enough_warps(self, job: &Job<'_>) -> Self {
        let held = u64::from(self.warps * self.stages);
        let more = Self { warps: 12, ..self };
        let is_more = self.warps == 8 && self.tiles(job) * steps(job.shape) > held;
        let measured = is_hopper(job) && !job.ahead() && matches!(self.passes(job.shape)[0], 4 | 8);
        match measured && is_more && is_little(job) && more.check(job).is_ok() {
            true => more,
            false => self,
        }
    }

    /// This default with two warps of a row side by side, where that is faster than one after the other: with one
    /// vector and with two, and not little work. A CTA asks for longer pieces of fewer rows at once. Measured on an
    /// H100, the 128x4 layout in chains alone: 1 to 4% faster (docs/notes/tuning.md, "A second round").
    fn side_by_side(self, job: &Job<'_>) -> Self {
        let beside = Self { beside: 2, ..self };
        let measured = is_hopper(job) && (job.ahead() || !job.operands.tiled());
        let few = few(self.passes(job.shape)[0] as usize) && !job.operands.select;
        match measured && few && !is_little(job) && beside.check(job).is_ok() {
            true => beside,
            false => self,
        }
    }

    /// This default with two CTAs of eight warps a multiprocessor, where both fit and the work is middling: when one
    /// has ended, a CTA of the next launch has room, while the other still computes. Measured on an H100 with one
    /// vector and with two: up to 8% faster (docs/notes/tuning.md, "A second round").
    fn in_halves(self, job: &Job<'_>) -> Self {
        let sms = job.gpu.multiprocessors;
        let halves = Self {
            warps: 8,
            ctas: 2 * sms,
            ..self
        };
        let few = few(self.passes(job.shape)[0] as usize) && !job.operands.select;
        let middling = !is_little(job) && weights_of_sm(job) < MIDDLING_BYTES;
        let is_usual = self.ctas == sms && self.warps > 8;
        if !(few && middling && is_usual && is_whole(job)) || halves.check(job).is_err() {
            return self;
        }
        // With tiles that are less than half full they are slower: docs/notes/tuning.md, "Few rows".
        if 2.0 * halves.rows_of_tile(job) <= TILE_ROWS as f64 {
            return self;
        }
        let x_batches = halves.batches(job);
        let layout = halves.layout(job, halves.passes(job.shape)[0], x_batches);
        match with_room(layout.bytes, job.gpu) >= 2 {
            true => halves,
            false => self,
        }
    }

    /// This default with what is best in chains of itself, by measurements on an H100 (docs/notes/tuning.md, "Problems
    /// that no table has"): what is best with a config that was measured alone is [`for_chain`](Self::for_chain)'s.
    /// Launches with little work gain where the next one has room beside them, and asks for weights as early as can be.
    /// Large ones gain if some weights come before the vectors.
    fn of_default_for_chain(self, job: &Job<'_>) -> Self {
        if !(job.dependent() && job.ahead()) {
            return self;
        }
        let config = self.for_chain(job);
        if !is_hopper(job) {
            return config;
        }
        let vectors = self.passes(job.shape)[0];
        let little = is_little(job);
        match vectors {
            1 | 2 | 4 if little && job.shape.l() == 1 => Self {
                behind: 0,
                spread: false,
                ..config
            },
            1 | 2 | 4 => Self {
                behind: 1.min(self.stages.saturating_sub(1)),
                ..config.in_halves(job)
            },
            8 if !little => Self {
                behind: 1.min(self.stages.saturating_sub(1)),
                ..config
            },
            _ => config,
        }
    }

    /// Numbers of vectors that the kernels of the first pass, which has most, and of the last pass are compiled for.
    fn passes(&self, shape: &Shape) -> [u32; 2] {
        let (n, most) = (shape.n() as u32, self.pass_vectors());
        [n.min(most), (n - 1) % most + 1].map(u32::next_power_of_two)
    }

    /// The most tiles of a CTA.
    fn tiles(&self, job: &Job<'_>) -> u64 {
        match job.shape.l() {
            // Its first tile begins where the CTA does.
            ..=1 => (units(job).div_ceil(self.ctas.into()) * unit(job)).div_ceil(TILE_ROWS),
            _ => self.most_pieces(job, TILE_ROWS),
        }
    }

    /// Rows of a tile, on average. A step takes as long with fewer.
    fn rows_of_tile(&self, job: &Job<'_>) -> f64 {
        let tiles = u64::from(self.ctas) * self.tiles(job);
        (places(job) * job.shape.l() as u64) as f64 / tiles.max(1) as f64
    }

    /// The most batches that a CTA has places of.
    fn batches(&self, job: &Job<'_>) -> u64 {
        self.most_pieces(job, places(job))
    }

    /// The most pieces of `piece` places that a CTA has places of. The places of all batches are whole pieces.
    ///
    /// Where CTAs take `units` units each from the first place on, this is as many pieces as hold `units`, or one more:
    /// where a piece ends within a CTA, at another place than pieces do that the CTA begins with. The part of a CTA
    /// beyond whole pieces decides that, as if it were all. If a piece is a multiple of it, none ends within. If not,
    /// the first piece does, if the CTAs reach so far. The CTAs with one unit more come first. The others end with the
    /// last place: counted from there, they lie as these do.
    fn most_pieces(&self, job: &Job<'_>, piece: u64) -> u64 {
        let (all, ctas, piece) = (units(job), u64::from(self.ctas.max(1)), piece / unit(job));
        let of = |ctas: u64, units: u64| {
            if ctas == 0 || units == 0 {
                return 0;
            }
            let beyond = units % piece;
            let cuts = beyond != 0 && !piece.is_multiple_of(beyond) && ctas * beyond > piece;
            units.div_ceil(piece) + u64::from(cuts)
        };
        let (units, left) = (all / ctas, all % ctas);
        of(left, units + 1).max(of(ctas - left, units))
    }

    /// Warps that take steps of a row side by side in a call.
    fn beside(&self, job: &Job<'_>) -> u32 {
        match job.operands.select {
            true => 1,
            false => self.beside,
        }
    }

    /// Shared memory of a pass whose kernel is compiled for `vectors` vectors, of a CTA that keeps those of `x_batches`
    /// batches.
    fn layout(&self, job: &Job<'_>, vectors: u32, x_batches: u64) -> Layout {
        let kept = self.kept(job.operands.activation, vectors);
        // Whole steps: zeros stand behind a row's end.
        let blocks = steps(job.shape) * u64::from(NVFP4_STREAM_STEP_BLOCKS);
        let (warps, tiles) = (u64::from(self.warps), self.tiles(job));
        let x_at = warps * u64::from(self.stages * stage_bytes(job));
        // A column has one block more than there are, or columns that are read at once would lie in the same banks.
        let column_bytes = (blocks + 1) * kept.block_bytes;
        let zero_at = x_at + x_batches * kept.columns * column_bytes;
        let x_scale_at = zero_at + kept.zero_blocks * kept.block_bytes;
        let sums_at = x_scale_at + x_batches * blocks * kept.scale_bytes;
        let sums = match self.part {
            0 => warps + tiles * u64::from(self.beside(job)),
            part => tiles * u64::from(parts(job.shape, part)),
        };
        let parts_at = sums_at + sums * TILE_ROWS * kept.columns * 4;
        Layout {
            x_at,
            zero_at,
            x_scale_at,
            sums_at,
            parts_at,
            bytes: parts_at + tiles * u64::from(NVFP4_STREAM_PART_BYTES),
        }
    }
}

/// Sizes of a pass's vectors in shared memory.
struct Kept {
    /// Columns that the vectors take.
    columns: u64,
    /// Bytes of a column's block.
    block_bytes: u64,
    /// Bytes of scales of a block of all vectors.
    scale_bytes: u64,
    /// Blocks of zeros that some lanes read instead.
    zero_blocks: u64,
}

impl Kept {
    fn new(activation: Activation, vectors: u32, is_scaled: bool) -> Self {
        let zeros = NVFP4_STREAM_ZERO_BLOCKS;
        let (columns, block_bytes, scale_bytes, zero_blocks) = match activation {
            Activation::F32 => (
                NVFP4_STREAM_F32_COLUMNS * vectors,
                NVFP4_STREAM_FLOAT_BYTES,
                0,
                0,
            ),
            _ if is_scaled => (vectors, NVFP4_STREAM_FLOAT_BYTES, 0, 0),
            Activation::Nvfp4 => (
                vectors,
                NVFP4_STREAM_INTEGER_BYTES,
                NVFP4_STREAM_X_SCALE_BYTES * vectors,
                zeros,
            ),
            Activation::Bf16 => (
                NVFP4_STREAM_BF16_COLUMNS * vectors,
                NVFP4_STREAM_FLOAT_BYTES,
                0,
                zeros,
            ),
            _ => (vectors, NVFP4_STREAM_FLOAT_BYTES, 0, zeros),
        };
        Self {
            columns: columns.into(),
            block_bytes: block_bytes.into(),
            scale_bytes: scale_bytes.into(),
            zero_blocks: zero_blocks.into(),
        }
    }
}

/// f32 roundings that one `mma.sync.m16n8k16` of f16 or bf16 into f32 counts for, where four products
/// of an element of the result are not zero.
///
/// The ISA leaves the rounding of the sum open. An H200 was recorded (`tools/ptx-sim/docs/semantics.md`, "Warp
/// matrices"). The H200 cuts every term, products and accumulator alike, toward zero at 2^-25 of the largest exponent
/// E. The H200 then adds the rest exactly, and cuts the sum to f32. Let u = 2^-24, and S the sum of the terms'
/// magnitudes. (With a bf16 vector the codes are bf16 times 2^-126, and 0.5 is subnormal as in f16. No term has bits
/// that a sum below f32's normal numbers would lose: `block_dot.cuh`.)
///
/// - Of five terms the largest loses nothing (a product has at most 13 bits, the accumulator 24), so the cuts lose less
///   than 4 * 2^(E-25) = 2^(E-23). A product's exponent is the sum of its factors' exponents. This sum is the product's
///   own exponent but for subnormal factors. The code 0.5, decoded to f16, may be subnormal: then the largest term is
///   at least 2^(E-1), and the loss below 4 u S. Otherwise the loss is below 2 u S. Where the largest exponent is that
///   of a subnormal element of the vector, all terms are multiples of what would be cut, and nothing is lost.
/// - Cutting the sum to f32 loses less than 2 u S.
///
/// Together these losses are less than 6 u S, which is what six roundings may lose. That leaves room for hardware that
/// cuts a bit earlier, at 2^-24, where codes are not subnormal: from compute capability 10.0 on an instruction decodes
/// the codes.
const FOUR_PRODUCTS_ROUNDINGS: u32 = 6;

/// f32 roundings that lose as much as one `mma.sync.m16n8k16` may, with weights times their scales, where sixteen
/// products are not zero (`scaled_products.cuh`).
///
/// As for `FOUR_PRODUCTS_ROUNDINGS`, but of 17 terms 16 may be cut: the cuts lose less than 16 * 2^(E-25) = 2^(E-21).
/// The assumptions are those of the simulator: a product with zero has no exponent, and a subnormal factor has that of
/// the smallest normal number.
///
/// - A subnormal element of a vector is counted as the smallest normal one in S
///   ([`Reference::magnitude`](crate::reference::Reference)). So the largest term is at least 2^E where weights are
///   normal, as in bf16, and the cuts lose at most 8 u S. Cutting the sum loses less than 2 u S. Together 10.
/// - In f16, weights are kept times 2^-7. Where the scale is below 2^-6, weights are below 2^-14: down to 2^-17, three
///   binades below what their exponent says. The largest term then is at least 2^(E-3), and the cuts lose at most 64 u
///   S: 66 in all. From compute capability 10.0 on weights are kept as they are, and normal.
///
/// These cuts were recorded on an H200 only. With room for hardware that cuts a bit earlier, at 2^-24: 18 and 130.
pub(super) fn scaled_matrix_roundings(activation: Activation) -> u32 {
    match activation {
        Activation::Bf16 | Activation::F32 => 18,
        _ => 130,
    }
}

/// Steps of a row.
fn steps(shape: &Shape) -> u64 {
    shape.k().div_ceil(STEP) as u64
}

/// Places of a batch, which rows take in the order of their scales; the last ones may be empty.
fn places(job: &Job<'_>) -> u64 {
    let whole = match job.operands.tiled() {
        true => NVFP4_ATOM_ROWS.into(),
        false if job.shape.l() > 1 => TILE_ROWS,
        false => 1,
    };
    (job.shape.m() as u64).next_multiple_of(whole)
}

/// Places that a CTA takes together: rows 32 apart, whose 128x4 scales are one word.
fn unit(job: &Job<'_>) -> u64 {
    if job.operands.tiled() { 4 } else { 1 }
}

/// Whether so many CTAs leave no more than a twentieth of the multiprocessors without one.
fn is_busy(ctas: u64, sms: u64) -> bool {
    20 * ctas >= 19 * sms
}

/// CTAs, one a multiprocessor at most, that divide each of several batches evenly, if they keep multiprocessors busy.
fn even(job: &Job<'_>) -> Option<u64> {
    let (batches, sms) = (job.shape.l() as u64, u64::from(job.gpu.multiprocessors));
    if batches < 2 {
        return None;
    }
    let of_batch = places(job) / unit(job);
    let divides = |ctas: &u64| of_batch.is_multiple_of(*ctas);
    let ctas = (1..=sms / batches).rev().find(divides)? * batches;
    is_busy(ctas, sms).then_some(ctas)
}

/// Units of all batches.
fn units(job: &Job<'_>) -> u64 {
    places(job) * job.shape.l() as u64 / unit(job)
}

#[cfg(test)]
mod tests;
