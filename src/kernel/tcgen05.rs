//! The kernel that multiplies on Blackwell's block-scaled tensor cores: `csrc/kernels/gemv_tcgen05.cuh`. Verified in
//! simulation, not yet on hardware.

use super::call::Pass;
use super::params::{
    NVFP4_ATOM_BLOCKS, NVFP4_TCGEN05_ATOM_COLUMNS, NVFP4_TCGEN05_ATOM_ELEMENTS,
    NVFP4_TCGEN05_EPILOGUE_WARPS, NVFP4_TCGEN05_MAX_COLUMNS, NVFP4_TCGEN05_MAX_STAGES,
    NVFP4_TCGEN05_PATTERN_BYTES, NVFP4_TCGEN05_PIECE_ATOMS, NVFP4_TCGEN05_PIECE_BYTES,
    NVFP4_TCGEN05_PIECE_ELEMENTS, NVFP4_TCGEN05_QUAD, NVFP4_TCGEN05_ROWS,
    NVFP4_TCGEN05_SHARED_ALIGN, NVFP4_TCGEN05_STAGE_PIECE_BYTES, NVFP4_TCGEN05_STATIC_BYTES,
    NVFP4_TCGEN05_THREADS, NVFP4_WARP, nvfp4_tcgen05_params, nvfp4_tensor_map,
};
use super::plan::{KernelParameters, Launch, Parameters, Plan};
use super::tensor_maps::{maps_batches, vectors_map, weights_map};
use super::{
    ALPHAS, Call, Cost, Job, KernelConfig, MainLoop, Products, distinct, field, shared_memory,
    with_room,
};
use crate::operands::{Operands, RawWorkspace};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::{Activation, ScaleLayout};

/// The config of the tcgen05 kernel. The K steps of all tiles of 128 rows, one tile's after the other's, are dealt to
/// CTAs in equal shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tcgen05Config {
    /// Elements of K of a step: 256 or 512.
    pub step: u32,
    /// Steps that a CTA has in flight: 2 to 12.
    pub stages: u32,
    /// CTAs, up to as many as the GPU has room for at once.
    pub ctas: u32,
    /// Whether CTAs may share a tile, whose sums then go through a workspace; else their shares are whole tiles.
    pub divided: bool,
}

impl Tcgen05Config {
    /// A legal and plain config that literals start from; not a good choice.
    pub const DEFAULT: Self = Self {
        step: 256,
        stages: 2,
        ctas: 1,
        divided: false,
    };
}

const UNIT: &str = "gemv_tcgen05";

/// Expected share of the read-only ceiling, for any number of vectors of a pass.
const SHARE: f64 = 0.76;

/// Rows of the N operand that the kernel is compiled for, with their entry points.
const ENTRIES: [(u32, &str); 4] = [
    (16, "gemv_tcgen05_n16"),
    (32, "gemv_tcgen05_n32"),
    (64, "gemv_tcgen05_n64"),
    (128, "gemv_tcgen05_n128"),
];

const MOST_VECTORS: u32 = ENTRIES[ENTRIES.len() - 1].0;
const LEAST_STAGES: u32 = 2;
const MOST_STAGES: u32 = NVFP4_TCGEN05_MAX_STAGES;
/// Sums that tensor memory holds at once.
const SUMS: u32 = 2;
/// Elements of K of a step, in the order of preference.
const STEPS: [u32; 2] = [
    NVFP4_TCGEN05_PIECE_ELEMENTS,
    2 * NVFP4_TCGEN05_PIECE_ELEMENTS,
];
/// CTAs for which the workspace has counters.
const MOST_CTAS: u64 = RawWorkspace::COUNTER_BYTES / (4 * NVFP4_TCGEN05_EPILOGUE_WARPS) as u64;
/// f32 roundings of one block-scaled matrix instruction of 64 elements, here and in mma-fp4. They follow from a published
/// model of the instruction (docs/tensor-core-path.md) that no GPU of ours has confirmed. Cutting the result counts as
/// two, aligning its five terms as less than one. A B200 and an RTX 50 have to say.
pub(super) const ASSUMED_ROUNDINGS: u32 = 3;
/// Bytes of weights that an SM should have in flight: Little's law at 8 TB/s and 148 SMs gives 43 to 54 KB for
/// latencies of 0.8 to 1 microsecond.
const BYTES_IN_FLIGHT: u64 = 64 << 10;
/// The cost of sharing tiles, in steps of 256 elements: sums go to the workspace and back, about a microsecond.
const SHARING: u64 = 3;

// SAFETY: bindgen makes padding fields of this structure's padding.
unsafe impl KernelParameters for nvfp4_tcgen05_params {}

/// The entry of [`ENTRIES`] for a pass of `n` vectors.
fn compiled(n: u64) -> (u32, &'static str) {
    let entry = ENTRIES.into_iter().find(|&(rows, _)| n <= u64::from(rows));
    entry.unwrap_or(ENTRIES[ENTRIES.len() - 1])
}

/// Rows of the N operand of the pass that has most vectors.
fn most_rows(job: &Job<'_>) -> u32 {
    compiled(job.vector_rows()).0
}

/// Atoms of scales of a row: the matrix instructions that its products pass through.
fn atoms(shape: &Shape) -> u64 {
    shape.k().div_ceil(NVFP4_TCGEN05_ATOM_ELEMENTS as usize) as u64
}

/// Tiles of a batch.
fn tiles(shape: &Shape) -> u64 {
    (shape.m() as u64).div_ceil(NVFP4_TCGEN05_ROWS.into())
}

/// Tiles of all batches.
fn all_tiles(shape: &Shape) -> u64 {
    tiles(shape).saturating_mul(shape.l() as u64)
}

/// Bytes of the sums of a part of a tile.
fn part_bytes(n: u64) -> u64 {
    let floats = u64::from(NVFP4_TCGEN05_ROWS) * n.next_multiple_of(NVFP4_TCGEN05_QUAD.into());
    floats * size_of::<f32>() as u64
}

/// Checks that steps can be counted in 31 bits, for every config.
fn takes_steps(job: &Job<'_>) -> Result<(), Refusal> {
    let steps = (job.shape.k() as u64).div_ceil(STEPS[0].into());
    match all_tiles(job.shape).saturating_mul(steps) <= i32::MAX as u64 {
        true => Ok(()),
        false => Err(Refusal::Rows),
    }
}

/// How steps are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deal {
    /// Steps of a tile.
    steps: u64,
    /// Steps that are dealt together.
    unit: u64,
    ctas: u64,
    /// Units of each CTA; the first `more` CTAs have one more.
    each: u64,
    more: u64,
}

impl Deal {
    /// Whether some tile is shared.
    fn shares(&self) -> bool {
        let whole = self.steps / self.unit;
        self.more != 0 && whole > 1 || !self.each.is_multiple_of(whole)
    }

    /// Steps of the CTA that has most.
    fn most(&self) -> u64 {
        (self.each + u64::from(self.more != 0)) * self.unit
    }
}

impl Tcgen05Config {
    /// Pieces of 256 elements of a step.
    fn pieces(&self) -> u32 {
        self.step / NVFP4_TCGEN05_PIECE_ELEMENTS
    }

    /// How steps are dealt, for a legal `step`.
    fn deal(&self, shape: &Shape) -> Deal {
        let steps = (shape.k() as u64).div_ceil(self.step.into());
        let tiles = all_tiles(shape);
        let (unit, units) = match self.divided {
            true => (1, tiles * steps),
            false => (steps, tiles),
        };
        let ctas = u64::from(self.ctas).clamp(1, units);
        Deal {
            steps,
            unit,
            ctas,
            each: units / ctas,
            more: units % ctas,
        }
    }

    /// Columns of tensor memory that a CTA uses, with `rows` rows of the N operand: for sums, and in every stage for
    /// both operands' scales.
    fn columns(&self, rows: u32) -> u32 {
        let atoms = self.pieces() * NVFP4_TCGEN05_PIECE_ATOMS;
        SUMS * rows + self.stages * 2 * atoms * NVFP4_TCGEN05_ATOM_COLUMNS
    }

    /// Bytes of dynamic shared memory: the stages, and bytes that align the first stage.
    fn dynamic_bytes(&self, rows: u32) -> u32 {
        let piece = NVFP4_TCGEN05_STAGE_PIECE_BYTES + rows * NVFP4_TCGEN05_PIECE_BYTES;
        self.stages * self.pieces() * piece + NVFP4_TCGEN05_PATTERN_BYTES
            - NVFP4_TCGEN05_SHARED_ALIGN
    }

    /// Bytes of shared memory of a CTA, in the pass that takes most.
    fn shared_bytes(&self, job: &Job<'_>) -> u64 {
        u64::from(self.dynamic_bytes(most_rows(job)) + NVFP4_TCGEN05_STATIC_BYTES)
    }

    /// CTAs of a legal config for which an SM has shared and tensor memory.
    fn fit(&self, job: &Job<'_>) -> u64 {
        let shared = with_room(self.shared_bytes(job), job.gpu);
        let columns = self.columns(most_rows(job)).next_power_of_two();
        shared.min((NVFP4_TCGEN05_MAX_COLUMNS / columns).into())
    }

    fn needed_workspace(&self, job: &Job<'_>) -> u64 {
        let deal = self.deal(job.shape);
        if !deal.shares() {
            return 0;
        }
        // A CTA leaves sums of two tiles at most: of the tile that it begins in, and of the tile that it ends in. The
        // last CTA ends with a tile.
        let n = job.vector_rows().min(MOST_VECTORS.into());
        RawWorkspace::COUNTER_BYTES + (2 * deal.ctas - 1) * part_bytes(n)
    }

    /// This config with the most stages with which `fit` CTAs fit an SM, but no more stages than a CTA has steps.
    fn with_stages(self, fit: u64, job: &Job<'_>) -> Option<Self> {
        let most = self.deal(job.shape).most();
        let most = most.clamp(LEAST_STAGES.into(), MOST_STAGES.into()) as u32;
        let with = |stages| Self { stages, ..self };
        let mut all = (LEAST_STAGES..=most).rev().map(with);
        all.find(|config| config.check(job).is_ok() && config.fit(job) >= fit)
    }

    /// This config with room for another launch's CTA beside its own, if enough is in flight then; else with as many
    /// stages as fit.
    fn with_room(self, job: &Job<'_>) -> Option<Self> {
        let beside = self.with_stages(2, job);
        let all = self.with_stages(1, job);
        match (beside, all) {
            (Some(beside), Some(all))
                if beside.bytes_in_flight(job) >= BYTES_IN_FLIGHT.min(all.bytes_in_flight(job)) =>
            {
                Some(beside)
            }
            _ => all,
        }
    }

    /// A config with a CTA for each multiprocessor, as far as there is work.
    fn of_step(step: u32, divided: bool, job: &Job<'_>) -> Option<Self> {
        let config = Self {
            step,
            stages: LEAST_STAGES,
            ctas: u32::MAX,
            divided,
        };
        let deal = config.deal(job.shape);
        // Each CTA has two steps at least, if tiles are shared: else adding the parts takes longer than computing them.
        let most = match divided {
            true => deal.ctas.div_ceil(2),
            false => deal.ctas,
        };
        let all = MOST_CTAS.min(job.gpu.multiprocessors.into());
        let ctas = most.clamp(1, all.max(1)) as u32;
        Self { ctas, ..config }.with_room(job)
    }

    /// The time of the CTA that has most to do, in steps of 256 elements. The config is legal.
    fn cost(&self, job: &Job<'_>) -> u64 {
        let deal = self.deal(job.shape);
        let sharing = if deal.shares() { SHARING } else { 0 };
        deal.most() * u64::from(self.pieces()) + sharing
    }

    /// The configs that are weighed against each other: tiles shared and not, with steps of both lengths.
    fn divisions(job: &Job<'_>) -> impl Iterator<Item = Self> {
        let both = |step| [true, false].map(|divided| Self::of_step(step, divided, job));
        STEPS.into_iter().flat_map(both).flatten()
    }

    fn maps(call: &Call, pass: &Pass) -> Vec<nvfp4_tensor_map> {
        vec![
            weights_map(call, NVFP4_TCGEN05_ROWS),
            vectors_map(call, pass, pass.n as u32),
        ]
    }
}

impl KernelConfig for Tcgen05Config {
    const MOST_VECTORS: u32 = MOST_VECTORS;
    const WHY: &'static str = "with 3 vectors and more, CUDA cores run out of issue slots before memory does; matrix \
                               instructions read weights once for up to 128";
    const TAKES_MOST: bool = true;

    fn share_of_one(_: &Shape, _: &Operands) -> f64 {
        SHARE
    }

    fn cost(_: &Job<'_>) -> Cost {
        Cost::Whole
    }

    fn available(job: &Job<'_>) -> Result<(), Refusal> {
        let found = job.gpu.compute_capability;
        if found.0 != 10 {
            let needed = "10.x";
            return Err(Refusal::ComputeCapability { found, needed });
        }
        job.image(UNIT)?;
        job.nvfp4()?;
        for (layout, operand) in [
            (job.operands.weight_layout, "weights' scales"),
            (job.operands.vector_layout, "vectors' scales"),
        ] {
            if layout != ScaleLayout::Tiled128x4 {
                return Err(Refusal::ScaleLayout { operand });
            }
        }
        job.row_length(32, "a multiple of 32")?;
        job.aligned_16()?;
        takes_steps(job)?;
        maps_batches(job)
    }

    fn takes_digits(job: &Job<'_>) -> Result<(), Refusal> {
        job.digits_fit(MOST_VECTORS)
    }

    /// The division of least `cost`, of those that the workspace is large enough for: the CTA that has most to do then
    /// has least. If a larger workspace would save more than a quarter of that cost, the rule asks for it: it refuses,
    /// and the refusal says how large. Nothing of this rule was measured.
    fn default_for(job: &Job<'_>) -> Result<Self, Refusal> {
        let least = |job: &Job<'_>| Self::divisions(job).min_by_key(|config| config.cost(job));
        match least(job) {
            Some(config) => {
                let operands = job.operands.with_workspace(u64::MAX);
                let with_more = Job {
                    operands: &operands,
                    ..*job
                };
                match least(&with_more) {
                    Some(better) if 4 * better.cost(job) < 3 * config.cost(job) => {
                        better.check(job).map(|()| better)
                    }
                    _ => Ok(config),
                }
            }
            None => {
                let smallest = Self {
                    step: STEPS[0],
                    stages: LEAST_STAGES,
                    ctas: 1,
                    divided: false,
                };
                smallest.check(job).map(|()| smallest)
            }
        }
    }

    /// All divisions, each with fewer stages and more, and with two CTAs an SM.
    fn candidates(job: &Job<'_>) -> Vec<Self> {
        let Ok(default) = Self::default_for(job) else {
            return Vec::new();
        };
        let mut configs = vec![default];
        for config in Self::divisions(job) {
            let stages = config.stages;
            let stages = [stages, stages.saturating_sub(1), stages / 2, stages + 1];
            configs.extend(stages.map(|stages| Self { stages, ..config }));
            configs.extend(config.with_stages(1, job));
            let two = Self {
                ctas: config.ctas.saturating_mul(2),
                ..config
            };
            configs.extend(two.with_stages(2, job));
        }
        distinct(configs, |config| config.check(job).is_ok())
    }

    fn check(&self, job: &Job<'_>) -> Result<(), Refusal> {
        let Self {
            step, stages, ctas, ..
        } = *self;
        field("step", step, "256 or 512", STEPS.contains(&step))?;
        let known = (LEAST_STAGES..=MOST_STAGES).contains(&stages);
        field("stages", stages, "2 to 12", known)?;
        shared_memory(self.shared_bytes(job), job.gpu)?;
        let columns = self.columns(most_rows(job));
        field(
            "stages",
            stages,
            "no more than tensor memory has columns for the scales of",
            columns <= NVFP4_TCGEN05_MAX_COLUMNS,
        )?;
        let at_once = u64::from(job.gpu.multiprocessors).saturating_mul(self.fit(job));
        field(
            "ctas",
            ctas,
            "1 to the number that the GPU has room for at once, and to 512",
            (1..=at_once.min(MOST_CTAS)).contains(&ctas.into()),
        )?;
        let (needed, given) = (self.needed_workspace(job), job.operands.workspace);
        match needed <= given {
            true => Ok(()),
            false => Err(Refusal::Workspace { needed, given }),
        }
    }

    /// `ASSUMED_ROUNDINGS` for each instruction of a part of a tile, which is all of the tile at most; and one rounding
    /// for each part.
    fn roundings(&self, shape: &Shape, _: Activation) -> u32 {
        let parts = match self.divided {
            true => u64::from(self.ctas).min(atoms(shape)),
            false => 0,
        };
        let all = atoms(shape) * u64::from(ASSUMED_ROUNDINGS) + parts + u64::from(ALPHAS);
        all.min(u32::MAX.into()) as u32
    }

    fn plan(&self, call: &Call, job: &Job<'_>) -> Plan {
        let shape = &call.shape;
        let deal = self.deal(shape);
        let atoms = atoms(shape) as u32;
        let shares = deal.shares();
        let mut plan = Plan::new();
        for pass in call.passes(MOST_VECTORS as usize) {
            let (rows, entry) = compiled(pass.n as u64);
            let parameters = nvfp4_tcgen05_params {
                m: shape.m() as i32,
                n: pass.n,
                tiles: tiles(shape) as u32,
                atoms,
                last_scales: shape.blocks() as u32 - (atoms - 1) * NVFP4_ATOM_BLOCKS,
                steps: deal.steps as u32,
                pieces: self.pieces(),
                stages: self.stages,
                unit: deal.unit as u32,
                each: deal.each as u32,
                more: deal.more as u32,
                dependent: job.dependent().into(),
                tmem_columns: self.columns(rows).next_power_of_two(),
                digits: job.operands.digits as u32,
                weights: pass.weights,
                vectors: pass.vectors,
                // The kernel uses neither address if no tile is shared.
                arrivals: if shares { call.workspace.address } else { 0 },
                partial: match shares {
                    true => call.workspace.address + RawWorkspace::COUNTER_BYTES,
                    false => 0,
                },
                epilogue: pass.epilogue,
                ..nvfp4_tcgen05_params::default()
            };
            plan.push(Launch {
                entry,
                unit: UNIT,
                grid: [deal.ctas as u32, 1, 1],
                threads: NVFP4_TCGEN05_THREADS,
                dynamic_shared: self.dynamic_bytes(rows),
                static_shared: NVFP4_TCGEN05_STATIC_BYTES,
                dependent: job.dependent(),
                maps: Self::maps(call, &pass),
                parameters: Parameters::of(&parameters),
                ..Launch::default()
            });
        }
        plan
    }

    fn workspace_bytes(&self, job: &Job<'_>) -> u64 {
        match STEPS.contains(&self.step) {
            true => self.needed_workspace(job),
            false => 0,
        }
    }

    fn bytes_in_flight(&self, _: &Job<'_>) -> u64 {
        // Codes, and a byte of scales for 16 of them.
        let elements = u64::from(NVFP4_TCGEN05_ROWS) * u64::from(self.step);
        u64::from(self.stages).saturating_mul(elements / 2 + elements / 16)
    }

    /// One warp issues the instructions, each of which multiplies 64 elements of all rows.
    fn main_loop(&self, job: &Job<'_>) -> MainLoop {
        let rows = most_rows(job);
        MainLoop {
            lane_weights: NVFP4_TCGEN05_ROWS * NVFP4_TCGEN05_ATOM_ELEMENTS / NVFP4_WARP,
            vectors: rows,
            products: Products::Matrix,
            tensor_columns: self.columns(rows).next_power_of_two(),
        }
    }
}

#[cfg(test)]
mod tests;
