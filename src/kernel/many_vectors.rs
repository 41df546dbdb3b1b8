//! Code that the kernels for many vectors share: the division of a problem, and the plan of launches
//! (`csrc/kernels/many_vectors.cuh`).

use std::cmp::Reverse;

use super::packed::spans;
use super::params::{
    NVFP4_ATOM_ROWS, NVFP4_BLOCK, NVFP4_MANY_COLUMNS, NVFP4_MANY_HOLD_ONE,
    NVFP4_MANY_RAGGED_STAGE_BYTES, NVFP4_MANY_STAGE_BYTES, NVFP4_MANY_STAGES,
    NVFP4_MANY_STEP_BLOCKS, NVFP4_MANY_SUMS_PAD, NVFP4_MANY_VECTOR_STEP_BYTES,
    NVFP4_MANY_VECTORS_ALIGN, NVFP4_MANY_WARP_ROWS, NVFP4_PACKED_MANY, NVFP4_WARP,
    nvfp4_many_params,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::stream::{scaled_matrix_roundings, time_in_parts};
use super::{
    ALPHAS, Call, Cost, Job, MainLoop, PackedConfig, Products, distinct, expected, field,
    shared_memory, with_room,
};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::Activation;

/// The most vectors of the narrowest matrix instruction.
pub(super) const FEW: usize = NVFP4_MANY_COLUMNS as usize;
/// Elements of K of a step.
pub(super) const STEP: usize = (NVFP4_MANY_STEP_BLOCKS * NVFP4_BLOCK) as usize;
/// Sets of warps that may share a tile, and CTAs of a cluster.
const POWERS: [u32; 4] = [1, 2, 4, 8];
/// K is a multiple of this number of elements where rows are not ragged.
const WHOLE: usize = 64;

/// Part of a sentence: why these kernels come first for jobs that nobody measured.
pub(super) const WHY: &str = "it decodes each weight once for all vectors";
/// Factor on the share of mma where rows are ragged. Measured on an H200 with 16 to 128 vectors: 0.87 to 0.95
/// (docs/notes/many-vectors.md).
const RAGGED: f64 = 0.92;

/// Description of one of the kernels for many vectors.
pub(super) struct Kind {
    pub(super) unit: &'static str,
    /// Whether the GPU has the kernel's instructions.
    pub(super) runs_on: fn(&Job<'_>) -> Result<(), Refusal>,
    /// The most steps of a set of warps whose products matrix instructions add to one another.
    pub(super) summed_steps: fn(&Division) -> u32,
    /// Warps of a tile, each with 16 of its rows.
    pub(super) tile_warps: u32,
    /// The part of its best config's share that the default reaches with up to [`FEW`] vectors, and with more.
    pub(super) default_reaches: [f64; 2],
    /// The instructions that multiply.
    pub(super) products: Products,
    /// Numbers of vectors that the kernel is compiled for.
    pub(super) vectors: &'static [u32],
    /// The numbers of `vectors` as text.
    pub(super) takes_vectors: &'static str,
    /// The most warps of a CTA, for each of `vectors`.
    pub(super) most_warps: &'static [u32],
    /// Pieces of vectors that a warp holds in registers, as a function of the vectors of a pass. A piece is a step of
    /// eight vectors.
    pub(super) held: fn(u32) -> u32,
    /// Allowed values of `chunk`, as text, for when warps cannot hold a chunk's pieces.
    pub(super) takes_chunk: &'static str,
    /// Buffers of vectors in shared memory.
    pub(super) buffers: u32,
    /// Bytes of mbarriers in shared memory.
    pub(super) barriers: u32,
    /// Allowed values of `tiles` beside `parts`, as text.
    pub(super) takes_tiles: &'static str,
    /// Entry points: NVFP4, f16 and bf16 vectors.
    pub(super) entries: [&'static [&'static str]; 3],
    /// The expected cost of the vectors of a pass.
    pub(super) cost: Cost,
    /// The rule for the config of jobs that nobody measured, other than those of [`Division::least_microseconds`].
    pub(super) default: fn(&Kind, &Job<'_>) -> Option<Division>,
    /// What an H100 takes for its parts.
    pub(super) timing: Timing,
    /// The unit for ragged rows, if the kernel has one.
    pub(super) ragged: Option<Ragged>,
}

/// Microseconds of an H100: fitted ones, and a margin (docs/notes/tuning.md, "Times of 9 to 32 vectors").
#[derive(Clone, Copy)]
pub(super) struct Timing {
    /// A launch, and how much sooner it begins in a chain.
    pub(super) launch: f64,
    pub(super) ahead: f64,
    /// A wave of CTAs.
    pub(super) wave: f64,
    /// A step of each of 16 warps of a multiprocessor, and more of it for each 16 vectors.
    pub(super) step: [f64; 2],
    /// A chunk of vectors, at which all warps of a CTA meet.
    pub(super) chunk: f64,
    /// Each doubling of a cluster, with few vectors.
    pub(super) cluster: f64,
    /// The sums of a tile, for each 16 vectors.
    pub(super) end: f64,
}

/// A unit of a kernel for ragged rows: K is any multiple of 16, and codes are aligned to 8 bytes
/// (`csrc/kernels/ragged_parts.cuh`).
pub(super) struct Ragged {
    pub(super) unit: &'static str,
    /// Numbers of vectors that the unit is compiled for: some of the kind's, the largest among them.
    pub(super) vectors: &'static [u32],
    /// Entry points: NVFP4, f16 and bf16 vectors.
    pub(super) entries: [&'static [&'static str]; 3],
}

/// Makes a type with the fields of a [`Division`] the config of the kernel that the module's `KIND` describes.
macro_rules! divided {
    ($config:ident) => {
        impl From<$config> for Division {
            fn from(config: $config) -> Self {
                let $config {
                    tiles,
                    parts,
                    chunk,
                    cluster,
                    vectors,
                } = config;
                Self {
                    tiles,
                    parts,
                    chunk,
                    cluster,
                    vectors,
                }
            }
        }

        impl From<Division> for $config {
            fn from(division: Division) -> Self {
                let Division {
                    tiles,
                    parts,
                    chunk,
                    cluster,
                    vectors,
                } = division;
                Self {
                    tiles,
                    parts,
                    chunk,
                    cluster,
                    vectors,
                }
            }
        }

        impl KernelConfig for $config {
            const MOST_VECTORS: u32 = KIND.most_vectors();
            const WHY: &'static str = many_vectors::WHY;

            fn share_of_one(shape: &Shape, operands: &Operands) -> f64 {
                KIND.share_of_one(shape, operands)
            }

            fn cost(_: &Job<'_>) -> Cost {
                KIND.cost
            }

            fn default_reaches(job: &Job<'_>) -> f64 {
                KIND.default_reaches[usize::from(job.shape.n() > many_vectors::FEW)]
            }

            fn microseconds(&self, job: &Job<'_>) -> Option<f64> {
                Some(Division::from(*self).microseconds(KIND, job))
            }

            fn pass_vectors(&self) -> u32 {
                Division::from(*self).pass_vectors(KIND)
            }

            fn available(job: &Job<'_>) -> Result<(), Refusal> {
                KIND.available(job)
            }

            fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
                Division::default_for(KIND, job).map(Self::from)
            }

            fn batch_invariant(job: &Job<'_>) -> Option<Self> {
                Division::batch_invariant(KIND, job).map(Self::from)
            }

            fn is_batch_invariant(&self, _: &Job<'_>) -> bool {
                // As Division::batch_invariant says.
                true
            }

            /// The fastest of launches that wait: more of a default's warps in chains say nothing of a measured config.
            fn in_chain(&self, _: &Job<'_>) -> Option<Self> {
                Some(*self)
            }

            fn candidates(job: &Job<'_>) -> Vec<Self> {
                let candidates = Division::candidates(KIND, job);
                candidates.into_iter().map(Self::from).collect()
            }

            fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
                Division::from(*self).check(KIND, job)
            }

            fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
                Division::from(*self).roundings(KIND, shape, activation)
            }

            fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
                Division::from(*self).plan(KIND, call, job)
            }

            fn bytes_in_flight(&self, job: &Job<'_>) -> u64 {
                Division::from(*self).bytes_in_flight(KIND, job)
            }

            fn main_loop(&self, job: &Job<'_>) -> MainLoop {
                Division::from(*self).main_loop(KIND, job)
            }
        }
    };
}
pub(super) use divided;

/// Checks that the GPU has `wgmma`: Hopper alone has this instruction.
pub(super) fn has_wgmma(job: &Job<'_>) -> Result<(), Refusal> {
    match job.gpu.compute_capability {
        (9, _) => Ok(()),
        found => Err(Refusal::ComputeCapability {
            found,
            needed: "9.0",
        }),
    }
}

/// A config: how a problem is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Tiles of a CTA.
    pub(super) tiles: u32,
    /// Sets of warps that share the K of a tile.
    pub(super) parts: u32,
    /// Steps whose vectors a buffer holds.
    pub(super) chunk: u32,
    /// CTAs that share the K of a group of tiles.
    pub(super) cluster: u32,
    /// The most vectors of a pass.
    pub(super) vectors: u32,
}

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_many_params {}

impl Kind {
    /// The most vectors of a pass.
    pub(super) const fn most_vectors(&self) -> u32 {
        self.vectors[self.vectors.len() - 1]
    }

    /// Index in `vectors` of the number that the first pass is compiled for, if passes are as few as can be.
    fn most_at_once(&self, job: &Job<'_>) -> usize {
        self.at(job, job.shape.n().min(self.most_vectors() as usize) as u32)
    }

    /// Whether there is a config for the job.
    pub(super) fn available(&self, job: &Job<'_>) -> Result<(), Refusal> {
        (self.runs_on)(job)?;
        match self.ragged(job) {
            Some(ragged) => {
                job.image(ragged.unit)?;
                job.not_f32()?;
                takes_rows(job, 8)
            }
            None => {
                job.image(self.unit)?;
                takes_operands(job)
            }
        }
    }

    /// The share that is expected with one vector.
    pub(super) fn share_of_one(&self, shape: &Shape, operands: &Operands) -> f64 {
        let one = expected::share_of_one(operands.activation);
        match self.ragged.is_some() && has_ragged_rows(shape, operands) {
            true => RAGGED * one,
            false => one,
        }
    }

    /// The unit for ragged rows, if the job is for this unit.
    fn ragged(&self, job: &Job<'_>) -> Option<&Ragged> {
        let ragged = has_ragged_rows(job.shape, job.operands);
        self.ragged.as_ref().filter(|_| ragged)
    }

    /// Index in `vectors` of the smallest number with room for `n` vectors. Only numbers that the job's unit is
    /// compiled for count: the unit for ragged rows does not have all.
    fn at(&self, job: &Job<'_>, n: u32) -> usize {
        let ragged = self.ragged(job);
        let exists = |vectors| ragged.is_none_or(|ragged| ragged.vectors.contains(vectors));
        let at = self
            .vectors
            .iter()
            .position(|vectors| n <= *vectors && exists(vectors));
        at.unwrap_or(self.vectors.len() - 1)
    }

    /// The unit and the entry point for the number of vectors at index `compiled`.
    fn entry(&self, job: &Job<'_>, compiled: usize) -> (&'static str, &'static str) {
        let activation = at_activation(job.operands.activation);
        match self.ragged(job) {
            None => (self.unit, self.entries[activation][compiled]),
            Some(ragged) => {
                let vectors = self.vectors[compiled];
                let at = ragged.vectors.iter().position(|&of| of == vectors);
                let at = at.expect("one that it is compiled for");
                (ragged.unit, ragged.entries[activation][at])
            }
        }
    }

    /// Bytes of a stage of a warp's queue.
    fn stage_bytes(&self, job: &Job<'_>) -> u32 {
        match self.ragged(job) {
            None => NVFP4_MANY_STAGE_BYTES,
            Some(_) => NVFP4_MANY_RAGGED_STAGE_BYTES,
        }
    }
}

/// Whether rows are ragged for the kernels for many vectors.
pub(super) fn has_ragged_rows(shape: &Shape, operands: &Operands) -> bool {
    !shape.k().is_multiple_of(WHOLE) || operands.alignment.codes < 16
}

/// Index of a vector type among NVFP4, f16 and bf16, the order of entry points.
pub(super) fn at_activation(activation: Activation) -> usize {
    match activation {
        Activation::Nvfp4 => 0,
        Activation::F16 => 1,
        _ => 2,
    }
}

/// Checks that steps can be copied from the operands.
pub(super) fn takes_operands(job: &Job<'_>) -> Result<(), Refusal> {
    job.not_f32()?;
    job.row_length(WHOLE, "a multiple of 64")?;
    takes_rows(job, 16)
}

/// Checks the needs that ragged rows have, too: codes aligned to `codes` bytes, scales to four, and a grid that can be
/// counted.
fn takes_rows(job: &Job<'_>, codes: u32) -> Result<(), Refusal> {
    // Copies take `codes` bytes of codes and 4 of scales. Vectors have the alignment that they need.
    let alignment = &job.operands.alignment;
    for (has, needed) in [(alignment.codes, codes), (alignment.scales, 4)] {
        if has < needed {
            return Err(Refusal::Alignment { needed });
        }
    }
    // Places are counted in 32 bits, and the CTAs of a grid in 31, eight for each 16 rows at most.
    let tiles = places(job).div_ceil(NVFP4_MANY_WARP_ROWS.into());
    match tiles.saturating_mul(job.shape.l() as u64) {
        ..0x800_0000 => Ok(()),
        _ => Err(Refusal::Rows),
    }
}

/// [`Kind::held`] of kernels that have no number of their own.
pub(super) fn held(vectors: u32) -> u32 {
    match vectors {
        ..=NVFP4_MANY_HOLD_ONE => 1,
        _ => 2,
    }
}

/// Steps of a row: the last one may have fewer elements, 64, or in ragged rows any multiple of 16.
pub(super) fn steps(shape: &Shape) -> u64 {
    shape.k().div_ceil(STEP) as u64
}

/// Spans, of 256 elements, of the parts of a row whose sums batch invariant calls on Hopper make in one chain of matrix
/// instructions. The last part may be shorter. `packed` and `stream` know configs for these parts, and so give the same
/// bits.
///
/// The number follows from M, K, L, the layout and the GPU alone. It is the one with which both kernels lose least: the
/// product of their times is the smallest, and of equal ones the parts are the longest. `packed` is for 128 vectors
/// there, with which it has the fewest configs, and `stream` for one.
pub(super) fn invariant_part(job: &Job<'_>) -> u32 {
    /// The third launch of `packed` reads and adds all parts.
    const MOST_PARTS: u64 = 16;
    let spans = spans(job.shape);
    let parts = (1..=MOST_PARTS.min(spans)).map(|parts| spans.div_ceil(parts));
    let parts = parts.filter_map(|part| Some((part, u32::try_from(part).ok()?)));
    let timed = parts.filter_map(|(part, spans)| {
        let (packed, _) = PackedConfig::for_parts(job, spans, NVFP4_PACKED_MANY)?;
        Some((packed.saturating_mul(time_in_parts(job, spans)), part))
    });
    let best = timed.min_by_key(|&(time, part)| (time, Reverse(part)));
    best.map_or(spans, |(_, part)| part).min(u32::MAX.into()) as u32
}

/// Places of a batch, which rows take in the order of their scales; the last ones may be empty.
pub(super) fn places(job: &Job<'_>) -> u64 {
    let m = job.shape.m() as u64;
    match job.operands.tiled() {
        true => m.next_multiple_of(NVFP4_ATOM_ROWS.into()),
        false => m,
    }
}

/// Offsets in a CTA's dynamic shared memory, in bytes: the queues, then buffers of vectors, then mbarriers. After the
/// last step the sums are in the place of queues and buffers.
struct Layout {
    x_at: u64,
    stored_at: u64,
    bytes: u64,
}

impl Division {
    /// The most vectors of a pass, whatever the field says.
    pub(super) fn pass_vectors(&self, kind: &Kind) -> u32 {
        match kind.vectors.contains(&self.vectors) {
            true => self.vectors,
            false => kind.most_vectors(),
        }
    }

    /// Microseconds that an H100 takes, about: each wave of CTAs has a start; steps of all warps of a multiprocessor,
    /// which its schedulers share; a meeting for each chunk; and sums to add and to store, in clusters through other
    /// CTAs' memory. Of launches that overlap, CTAs of which two fit a multiprocessor come to it together, and leave
    /// another without.
    pub(super) fn microseconds(&self, kind: &Kind, job: &Job<'_>) -> f64 {
        let Timing {
            launch,
            ahead,
            wave,
            step,
            chunk,
            cluster,
            end,
        } = kind.timing;
        let compiled = self.compiled(kind, job);
        let vectors = kind.vectors[compiled];
        let warps = self.warps(kind).max(1);
        let by_memory = with_room(self.layout(kind, job, compiled).bytes, job.gpu);
        let by_registers = u64::from(kind.most_warps[compiled] / warps);
        let at_once = by_memory.min(by_registers).max(1);
        let ctas = self
            .ctas(kind, job)
            .div_ceil(job.gpu.multiprocessors.max(1).into());
        let waves = ctas.div_ceil(at_once) as f64;
        let together = match job.ahead() && ctas < at_once {
            true => at_once.min(2),
            false => ctas.min(at_once),
        };
        let all = steps(job.shape);
        let chunks = all
            .div_ceil(self.chunk.max(1).into())
            .div_ceil(self.cluster.max(1).into());
        let each =
            (chunks * u64::from(self.chunk_steps())).min(all.div_ceil(self.parts.max(1).into()));
        // Fewer warps than eight take as long.
        let shared = (u64::from(warps) * together).max(8) as f64 / 16.0;
        let wide = f64::from(vectors) / 16.0;
        let of_cluster = match self.cluster {
            ..=1 => 0.0,
            more => cluster * f64::from(more.ilog2()) * (1.0 + wide / 2.0),
        };
        let step = step[0] + step[1] * wide;
        let one = wave
            + each as f64 * shared * step
            + chunks as f64 * chunk
            + of_cluster
            + end * wide * f64::from(self.tiles);
        let passes = job.shape.n().div_ceil(self.pass_vectors(kind) as usize) as f64;
        let ahead = if job.ahead() { ahead } else { 0.0 };
        launch - ahead + passes * waves * one
    }

    /// Warps of a CTA.
    fn warps(&self, kind: &Kind) -> u32 {
        kind.tile_warps * self.tiles * self.parts
    }

    /// Index in the kernel's numbers of vectors of the number that the first pass, which has most vectors, is compiled
    /// for.
    fn compiled(&self, kind: &Kind, job: &Job<'_>) -> usize {
        kind.at(job, (job.shape.n() as u64).min(self.vectors.into()) as u32)
    }

    /// Groups of rows of a batch.
    fn groups(&self, kind: &Kind, job: &Job<'_>) -> u64 {
        places(job).div_ceil(u64::from(
            self.tiles * kind.tile_warps * NVFP4_MANY_WARP_ROWS,
        ))
    }

    pub(super) fn check(&self, kind: &Kind, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            tiles,
            parts,
            chunk,
            cluster,
            vectors,
        } = *self;
        field(
            "vectors",
            vectors,
            kind.takes_vectors,
            kind.vectors.contains(&vectors),
        )?;
        field("parts", parts, "1, 2, 4 or 8", POWERS.contains(&parts))?;
        let compiled = self.compiled(kind, job);
        let most = kind.most_warps[compiled];
        field(
            "tiles",
            tiles,
            kind.takes_tiles,
            (1..=most).contains(&tiles) && kind.tile_warps * tiles * parts <= most,
        )?;
        field(
            "chunk",
            chunk,
            "a multiple of parts",
            chunk != 0 && chunk.is_multiple_of(parts),
        )?;
        let clusters = job.gpu.compute_capability >= (9, 0);
        field(
            "cluster",
            cluster,
            "1, 2, 4 or 8, and 1 before compute capability 9.0",
            POWERS.contains(&cluster) && (cluster == 1 || clusters),
        )?;
        let columns = kind.vectors[compiled] / NVFP4_MANY_COLUMNS;
        field(
            "chunk",
            chunk,
            kind.takes_chunk,
            u64::from(chunk) * u64::from(columns)
                <= u64::from(self.warps(kind)) * u64::from((kind.held)(kind.vectors[compiled])),
        )?;
        shared_memory(self.layout(kind, job, compiled).bytes, job.gpu)
    }

    /// Shared memory of a kernel that is compiled for the number of vectors at index `compiled`.
    fn layout(&self, kind: &Kind, job: &Job<'_>, compiled: usize) -> Layout {
        let [warps, parts, chunk, vectors] = [
            self.warps(kind),
            self.parts,
            self.chunk,
            kind.vectors[compiled],
        ]
        .map(u64::from);
        let queues = warps * u64::from(NVFP4_MANY_STAGES * kind.stage_bytes(job));
        let x_at = queues.next_multiple_of(NVFP4_MANY_VECTORS_ALIGN.into());
        let buffers =
            u64::from(kind.buffers) * chunk * vectors * u64::from(NVFP4_MANY_VECTOR_STEP_BYTES);
        let rows = warps / parts * u64::from(NVFP4_MANY_WARP_ROWS);
        let sums = parts * vectors * (rows + u64::from(NVFP4_MANY_SUMS_PAD)) * 4;
        let stored_at = (x_at + buffers).max(sums.next_multiple_of(8));
        Layout {
            x_at,
            stored_at,
            bytes: stored_at + u64::from(kind.barriers),
        }
    }

    pub(super) fn plan(&self, kind: &Kind, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let steps = steps(shape) as u32;
        let chunks = steps.div_ceil(self.chunk);
        let groups = self.groups(kind, job) as u32;
        let mut plan = Plan::new();
        for pass in call.passes(self.vectors as usize) {
            let compiled = kind.at(job, pass.n as u32);
            let (unit, entry) = kind.entry(job, compiled);
            let layout = self.layout(kind, job, compiled);
            let parameters = nvfp4_many_params {
                m: shape.m() as i32,
                n: pass.n,
                k: shape.k() as u32,
                steps,
                l: shape.l() as u32,
                groups,
                tiles: self.tiles,
                parts_log2: self.parts.ilog2(),
                each: self.chunk / self.parts,
                cluster_log2: self.cluster.ilog2(),
                chunks_each: chunks / self.cluster,
                chunks_left: chunks % self.cluster,
                x_at: layout.x_at as u32,
                stored_at: layout.stored_at as u32,
                weights: pass.weights,
                vectors: pass.vectors,
                epilogue: pass.epilogue,
            };
            plan.push(Launch {
                entry,
                unit,
                grid: [groups * shape.l() as u32 * self.cluster, 1, 1],
                threads: self.warps(kind) * NVFP4_WARP,
                cluster: if self.cluster == 1 { 0 } else { self.cluster },
                dynamic_shared: layout.bytes as u32,
                dependent: job.dependent(),
                parameters: Parameters::of(&parameters),
                ..Launch::default()
            });
        }
        plan
    }

    pub(super) fn bytes_in_flight(&self, kind: &Kind, job: &Job<'_>) -> u64 {
        // A stage is computed while the others fill.
        [kind.tile_warps, self.tiles, self.parts]
            .into_iter()
            .fold(1, |warps: u64, by| warps.saturating_mul(by.into()))
            .saturating_mul(u64::from((NVFP4_MANY_STAGES - 1) * kind.stage_bytes(job)))
    }

    pub(super) fn main_loop(&self, kind: &Kind, job: &Job<'_>) -> MainLoop {
        MainLoop {
            // Four lanes share a row of a step, and a lane has two rows.
            lane_weights: 2 * STEP as u32 / 4,
            vectors: self.compiled_vectors(kind, job),
            products: kind.products,
            tensor_columns: 0,
        }
    }

    /// The number of vectors that the kernel of the first pass, which has most, is compiled for.
    pub(super) fn compiled_vectors(&self, kind: &Kind, job: &Job<'_>) -> u32 {
        kind.vectors[self.compiled(kind, job)]
    }

    /// Steps of a chunk that one set of warps takes.
    pub(super) fn chunk_steps(&self) -> u32 {
        self.chunk / self.parts.max(1)
    }

    /// A term passes through the eight matrix instructions of each step that are added to one another, and then through
    /// the additions that follow. Each instruction counts for [`scaled_matrix_roundings`]. The factor that ends a sum
    /// is a power of two, and exact.
    pub(super) fn roundings(&self, kind: &Kind, shape: &Shape, activation: Activation) -> u32 {
        let summed = (kind.summed_steps)(self).min(steps(shape) as u32);
        summed
            .saturating_mul(8 * scaled_matrix_roundings(activation))
            .saturating_add(self.additions(shape) + ALPHAS)
    }

    /// f32 additions that follow the matrix instructions: for a set's steps or chunks at most one a step, and one for
    /// each set and CTA that share a tile.
    fn additions(&self, shape: &Shape) -> u32 {
        steps(shape) as u32 + self.parts.min(8) * self.cluster.min(8)
    }

    pub(super) fn default_for(kind: &Kind, job: &Job<'_>) -> Result<Self, Refusal> {
        Self::least_microseconds(kind, job)
            .or_else(|| (kind.default)(kind, job))
            .ok_or(Refusal::VectorMemory)
    }

    /// A config whose order of sums follows from all of the job but N.
    ///
    /// The order is that of `parts`, `chunk` and `cluster`, for every number of vectors that the kernel is compiled
    /// for: matrix instructions of a number of columns add to each other as those of another. It is neither that of
    /// `tiles`, which only says whose rows they are, nor that of passes. So it is taken from the default for `FEW`
    /// vectors, with which passes of fewer are legal, too. More vectors take passes of so many; or of more where the
    /// order is the plain one of K, whatever the chunk: one set of warps has all of it, and adds each step by itself.
    pub(super) fn batch_invariant(kind: &Kind, job: &Job<'_>) -> Option<Self> {
        const FEW: usize = 32;
        let n = job.shape.n();
        let with = |n| job.shape.with_vectors(n).ok();
        let of = |shape| Job { shape, ..*job };
        let with_few = with(FEW)?;
        let few = (kind.default)(kind, &of(&with_few))?;
        let each_step = (kind.summed_steps)(&Self {
            chunk: 2,
            parts: 1,
            ..few
        }) == 1;
        let is_plain = |config: &Self| config.parts == 1 && config.cluster == 1;
        if n > FEW && each_step && is_plain(&few) {
            let most = with(n.min(kind.most_vectors() as usize))?;
            return Self::least_time_of(kind, &of(&most), is_plain).or(Some(few));
        }
        Some(few)
    }

    /// The config of least time, as counted here. A wave is as many CTAs as there are SMs. The time of a wave is the
    /// steps of all warps of a CTA, and 30 such steps more to begin and to end. Fewer than eight warps take as much
    /// time as eight. Of configs that take the same time, the one that divides K least has the fewest sums to add.
    /// docs/notes/many-vectors.md, "mma: which config", has measurements.
    pub(super) fn least_time(kind: &Kind, job: &Job<'_>) -> Option<Self> {
        Self::least_time_of(kind, job, |_| true)
    }

    /// As [`least_time`](Self::least_time), of some configs.
    fn least_time_of(kind: &Kind, job: &Job<'_>, among: impl Fn(&Self) -> bool) -> Option<Self> {
        let compiled = kind.most_at_once(job);
        let vectors = kind.vectors[compiled];
        let sms = u64::from(job.gpu.multiprocessors);
        let steps = steps(job.shape);
        // A cluster adds the sums of all its CTAs, which many vectors make long.
        let clusters = match vectors {
            ..64 => &POWERS[..],
            _ => &POWERS[..2],
        };
        let all = (1..=kind.most_warps[compiled] / kind.tile_warps).flat_map(|tiles| {
            let parts = POWERS.into_iter();
            parts.flat_map(move |parts| {
                let clusters = clusters.iter();
                clusters.filter_map(move |&cluster| {
                    Self::with_chunk(kind, job, vectors, [tiles, parts, cluster])
                })
            })
        });
        all.filter(among).min_by_key(|config| {
            let warps = config.warps(kind);
            let divided = u64::from(config.parts * config.cluster);
            let waves = config.ctas(kind, job).div_ceil(sms.max(1));
            let one = u64::from(warps.max(8)) * steps.div_ceil(divided) + 30;
            let time = waves.saturating_mul(one);
            // Tiles without rows are no use.
            let tiles = config.groups(kind, job) * u64::from(config.tiles);
            (time, divided, config.cluster, tiles, Reverse(warps))
        })
    }

    /// The config of least [time](Self::microseconds) on Hopper, with up to 32 vectors; of those with as many warps as
    /// can be, or half as many in launches that wait, whose clusters have two CTAs at most, and whose tiles are a power
    /// of two: others were far slower than their counts say.
    pub(super) fn least_microseconds(kind: &Kind, job: &Job<'_>) -> Option<Self> {
        let compiled = kind.most_at_once(job);
        let vectors = kind.vectors[compiled];
        if job.gpu.compute_capability.0 != 9 || vectors > 32 {
            return None;
        }
        let sets = kind.most_warps[compiled] / kind.tile_warps;
        let mut best: Option<(f64, Self)> = None;
        for tiles in (0..=sets.ilog2()).map(|halved| sets >> halved) {
            for parts in POWERS {
                let full = tiles * parts == sets;
                if !full && (job.ahead() || tiles * parts != sets / 2) {
                    continue;
                }
                for cluster in [1, 2] {
                    let divided = [tiles, parts, cluster];
                    let Some(config) = Self::with_chunk(kind, job, vectors, divided) else {
                        continue;
                    };
                    let time = config.microseconds(kind, job);
                    if best.is_none_or(|(least, _)| time < least) {
                        best = Some((time, config));
                    }
                }
            }
        }
        best.map(|(_, config)| config)
    }

    /// The config that was fastest or nearly so for problems measured on an H200 (docs/notes/many-vectors.md). A CTA
    /// has as many sets of warps as fit. Each set has a tile of its own, if enough SMs then have a CTA. If not, sets
    /// share tiles, and last CTAs do.
    pub(super) fn most_warps(kind: &Kind, job: &Job<'_>) -> Option<Self> {
        let compiled = kind.most_at_once(job);
        let vectors = kind.vectors[compiled];
        let sets = 1_u32 << (kind.most_warps[compiled] / kind.tile_warps).ilog2();
        let sms = u64::from(job.gpu.multiprocessors);
        // A cluster adds the sums of all its CTAs, which many vectors make long.
        let enough = match vectors {
            ..128 => 3 * sms / 4,
            _ => 3 * sms / 8,
        };
        let with = |tiles, parts, cluster| Self {
            tiles,
            parts,
            chunk: Self::chunk(kind, vectors, tiles, parts),
            cluster,
            vectors,
        };
        let steps = steps(job.shape);
        let fits = |config: &Self| {
            // Two sets that share a tile of a cluster were better than four.
            let few = config.cluster == 1 || config.parts <= 2;
            few && u64::from(config.parts * config.cluster) <= steps
                && config.ctas(kind, job) >= enough
                && config.check(kind, job).is_ok()
        };
        let halves = |most: u32| (0..=most.ilog2()).map(move |halved| most >> halved);
        // First the most warps, the fewest CTAs that share a tile, and the most tiles. Fewer warps are for short K, or
        // little shared memory.
        for sets in halves(sets) {
            for cluster in POWERS {
                for tiles in halves(sets) {
                    for parts in halves(sets / tiles).filter(|parts| POWERS.contains(parts)) {
                        let config = with(tiles, parts, cluster);
                        if fits(&config) {
                            return Some(config);
                        }
                    }
                }
            }
        }
        // There is too little work for that many CTAs.
        let all = Self::all(kind, job);
        all.into_iter().max_by_key(|config| {
            let ctas = config.ctas(kind, job).min(enough);
            (ctas, config.warps(kind), config.parts)
        })
    }

    pub(super) fn candidates(kind: &Kind, job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(kind, job) else {
            return Vec::new();
        };
        let compiled = default.compiled(kind, job);
        let sms = u64::from(job.gpu.multiprocessors);
        // No config with few warps, or on few SMs, was fast.
        let busy = |config: &Self| {
            2 * config.warps(kind) >= kind.most_warps[compiled]
                && 2 * config.ctas(kind, job) >= sms.min(2 * default.ctas(kind, job))
                && config.cluster <= 4
        };
        let mut configs = vec![default];
        configs.extend(Self::all(kind, job).into_iter().filter(busy));
        configs.extend(
            kind.vectors
                .iter()
                .map(|&vectors| Self { vectors, ..default }),
        );
        distinct(configs, |config| config.check(kind, job).is_ok())
    }

    /// CTAs of all batches.
    fn ctas(&self, kind: &Kind, job: &Job<'_>) -> u64 {
        self.groups(kind, job) * job.shape.l() as u64 * u64::from(self.cluster)
    }

    /// The largest chunk whose vectors warps hold in registers, or `parts` if that is more.
    fn chunk(kind: &Kind, vectors: u32, tiles: u32, parts: u32) -> u32 {
        let pieces = (kind.held)(vectors) * kind.tile_warps * tiles * parts;
        let columns = vectors / NVFP4_MANY_COLUMNS;
        let chunk = (pieces / columns).min(8) / parts * parts;
        chunk.max(parts)
    }

    /// The legal config with the largest chunk, if there is one: `parts` may be a number that the kernel does not take.
    fn with_chunk(
        kind: &Kind,
        job: &Job<'_>,
        vectors: u32,
        [tiles, parts, cluster]: [u32; 3],
    ) -> Option<Self> {
        let most = Self::chunk(kind, vectors, tiles, parts);
        let chunks = (1..=most / parts).rev().map(|each| Self {
            tiles,
            parts,
            chunk: each * parts,
            cluster,
            vectors,
        });
        let mut legal = chunks.filter(|config| config.check(kind, job).is_ok());
        legal.next()
    }

    /// Legal configs for as few passes as can be, each with its largest chunk.
    fn all(kind: &Kind, job: &Job<'_>) -> Vec<Self> {
        let compiled = kind.most_at_once(job);
        let vectors = kind.vectors[compiled];
        let sets = kind.most_warps[compiled] / kind.tile_warps;
        let mut all = Vec::new();
        for tiles in [1, 2, 3, 4, 6, 7, 8, 12, 14, 16] {
            for parts in POWERS.into_iter().filter(|parts| tiles * parts <= sets) {
                let configs = POWERS
                    .map(|cluster| Self::with_chunk(kind, job, vectors, [tiles, parts, cluster]));
                all.extend(configs.into_iter().flatten());
            }
        }
        all
    }
}
