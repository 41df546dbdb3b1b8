//! The kernel that streams rows through a ring of stages in shared memory: `gemv_ring`.

use serde::{Deserialize, Serialize};

use super::ALPHAS;
use super::distinct::distinct;
use crate::shape::Shape;
use crate::tensor::Activation;

/// The cut of the ring kernel. A stage holds 16 rows of a chunk of K, `slices` times 256 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingConfig {
    /// Slices of 256 elements of K that a stage holds, a warp each; divides K / 256.
    pub slices: u32,
    /// Groups of so many warps, which take stages in turn.
    pub groups: u32,
    /// Stages in flight: a multiple of `groups`, at most 32.
    pub stages: u32,
    /// CTAs that share the rows of all batches: no more than there are rows, or fours of rows where the
    /// weights' scales are in the 128x4 layout.
    pub ctas: u32,
    /// Programmatic dependent launch: the weights are read before the kernel before this one in the
    /// stream has ended. That kernel must not write them, nor their scales.
    pub dependent: bool,
}

/// What a configuration depends on besides the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingTarget {
    /// The vectors' element type.
    pub activation: Activation,
    /// The weights' scales are in the 128x4 layout.
    pub tiled: bool,
    /// Streaming multiprocessors of the device.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a CTA can have.
    pub shared_bytes: u32,
}

/// Elements of a slice of K.
pub(crate) const SLICE: usize = 256;
/// Blocks of a slice: `kSliceBlocks` in `gemv_ring.cuh`.
const SLICE_BLOCKS: u64 = 16;
/// Rows of a stage: `kTileRows`.
const ROWS: u64 = 16;
/// `kMaxStages`.
const MOST_STAGES: u32 = 32;
/// `kMaxVectors` in `cuda_core.cuh`, of a pass over the weights.
const MOST_VECTORS: usize = 8;
/// `kZeroBytes`.
const ZERO_BYTES: u64 = 128;
/// `sizeof(Barriers)`.
const BARRIER_BYTES: u64 = 2 * MOST_STAGES as u64 * 8;
/// `kWindowBytes` in `launch/gemv_ring.cu`.
const WINDOW_BYTES: u64 = 24 << 10;
/// Shared memory that every CTA takes beside what it asks for.
const RESERVED: u64 = 1024;

impl RingConfig {
    /// The default for a problem on a device, if there is a legal one: the cut that was fastest in
    /// sweeps on an H200 for a problem like this, with fewer stages and then fewer slices where shared
    /// memory is short.
    pub fn for_problem(shape: &Shape, target: &RingTarget) -> Option<Self> {
        if !shape.k().is_multiple_of(SLICE) || shape.is_empty() {
            return None;
        }
        let wanted = wanted(shape, target);
        let units = units(shape, target.tiled);
        // A CTA keeps the vectors of all its batches: where those are too many, more CTAs than SMs.
        let ctas = [u64::from(target.multiprocessors), shape.l() as u64, units];
        for ctas in ctas.map(|ctas| ctas.clamp(1, units)) {
            let with = |slices, groups, stages| Self {
                slices,
                groups,
                stages,
                ctas: ctas as u32,
                dependent: false,
            };
            let fewer_stages = (1..=wanted.stages / wanted.groups)
                .rev()
                .map(|each| with(wanted.slices, wanted.groups, each * wanted.groups));
            let fewer_slices = divisors(shape, wanted.slices)
                .flat_map(|slices| [3, 2, 1].map(|stages| with(slices, 1, stages)));
            let legal = |config: &Self| config.is_legal(shape, target);
            if let Some(config) = fewer_stages.chain(fewer_slices).find(legal) {
                return Some(config);
            }
        }
        None
    }

    /// Whether any configuration is legal: the smallest one.
    pub(crate) fn any_is_legal(shape: &Shape, target: &RingTarget) -> bool {
        let smallest = Self {
            slices: 1,
            groups: 1,
            stages: 1,
            ctas: u32::try_from(units(shape, target.tiled)).unwrap_or(u32::MAX),
            dependent: false,
        };
        smallest.is_legal(shape, target)
    }

    /// Cuts worth measuring, the default first. Programmatic dependent launch is no matter of speed
    /// alone, and is left out.
    pub fn candidates(shape: &Shape, target: &RingTarget) -> Vec<Self> {
        let Some(default) = Self::for_problem(shape, target) else {
            return Vec::new();
        };
        let mut cuts = vec![default];
        let units = units(shape, target.tiled);
        let ctas = |per_sm: u32| u64::from(target.multiprocessors * per_sm).clamp(1, units) as u32;
        let most = most_warps(shape);
        for slices in [1, 2, 4, 7, 8, 14, 16] {
            for groups in [1, 2, 3, 4, 6, 8, 12, 16] {
                if !(6..=most).contains(&(slices * groups)) {
                    continue;
                }
                for kilobytes in [32, 64, 96, 128, 190] {
                    let fit = (kilobytes << 10) / stage_bytes(slices, target.tiled);
                    let each = (fit as u32).min(MOST_STAGES) / groups;
                    let cut = Self {
                        slices,
                        groups,
                        stages: groups * each.max(1),
                        ctas: ctas(1),
                        dependent: false,
                    };
                    cuts.push(cut);
                    let two = Self {
                        ctas: ctas(2),
                        ..cut
                    };
                    let two_fit = |bytes: u64| {
                        2 * (bytes + RESERVED) <= u64::from(target.shared_bytes) + RESERVED
                    };
                    if slices * groups <= 12 && two.shared_bytes(shape, target).is_some_and(two_fit)
                    {
                        cuts.push(two);
                    }
                }
            }
        }
        distinct(cuts, |cut| cut.is_legal(shape, target))
    }

    /// The kernel has code for this, and the device room.
    pub fn is_legal(&self, shape: &Shape, target: &RingTarget) -> bool {
        let row_slices = shape.k() / SLICE;
        target.activation != Activation::F32
            && shape.k().is_multiple_of(SLICE)
            && (1..=MOST_STAGES).contains(&self.slices)
            && row_slices.is_multiple_of(self.slices as usize)
            && (1..=MOST_STAGES).contains(&self.groups)
            && self.slices * self.groups <= most_warps(shape)
            && (self.groups..=MOST_STAGES).contains(&self.stages)
            && self.stages.is_multiple_of(self.groups)
            && self.ctas >= 1
            && self.ctas as u64 <= units(shape, target.tiled)
            // The kernel counts them in 32 bits.
            && places(shape, target.tiled).saturating_mul(shape.l() as u64) < 1 << 31
            && self
                .shared_bytes(shape, target)
                .is_some_and(|bytes| bytes <= u64::from(target.shared_bytes))
    }

    /// Successive f32 roundings of any term.
    ///
    /// A lane adds four blocks of each stage that its group takes of a tile, then come two additions over
    /// lanes and one for each warp. The factor that ends the sum is a power of two, and exact.
    ///
    /// NVFP4 blocks are exact. Those of f16 and bf16 vectors are four matrix instructions in a chain,
    /// each of which counts for six (`MATRIX_ROUNDINGS` in this file derives it). The product with the block's scale is rounded
    /// together with the addition, by one fused operation.
    pub fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let chunks = (shape.k() / SLICE) as u32 / self.slices;
        let in_lane = 4 * chunks.div_ceil(self.groups);
        let across_lanes = 2;
        let across_warps = self.slices * self.groups;
        let block = match activation {
            Activation::Nvfp4 => 0,
            _ => 4 * MATRIX_ROUNDINGS,
        };
        block + in_lane + across_lanes + across_warps + ALPHAS
    }

    /// Bytes of shared memory of a CTA: `lay_out` in `launch/gemv_ring.cu`, and the barriers. Nothing
    /// where they are beyond counting.
    fn shared_bytes(&self, shape: &Shape, target: &RingTarget) -> Option<u64> {
        let vectors = pass_vectors(shape.n());
        let blocks = shape.blocks() as u64;
        let batches = shape.l() as u64;
        let places = places(shape, target.tiled);
        let most = units(shape, target.tiled).div_ceil(self.ctas.into()) * unit(target.tiled);
        let tiles = most.div_ceil(ROWS) + u64::from(batches > 1);
        let tile_bytes = u64::from(self.groups * self.slices) * ROWS * vectors * 4;
        let window = tiles.min(WINDOW_BYTES / tile_bytes).max(1);
        let x_batches = batches.min((most + places - 2) / places + 1);
        let x_block_bytes = match target.activation {
            Activation::Nvfp4 => 16 + 4, // and the scale as a float
            _ => 32,
        };
        let x = x_batches
            .checked_mul(vectors)?
            .checked_mul(blocks)?
            .checked_mul(x_block_bytes)?;
        let stages = u64::from(self.stages) * stage_bytes(self.slices, target.tiled);
        x.checked_add(BARRIER_BYTES + stages + ZERO_BYTES + window * tile_bytes)
    }
}

/// f32 roundings that one `mma.sync.m16n8k16` of f16 or bf16 into f32 counts for, where four products
/// of an element of the result are not zero.
///
/// The ISA leaves the rounding of the sum open. An H200 was recorded (`ptx-sim/docs/semantics.md`, "Warp
/// matrices") to cut every term, products and accumulator alike, toward zero at 2^-25 of the largest
/// exponent E, to add the rest exactly, and to cut the sum to f32. Let u = 2^-24, and S the sum of the
/// terms' magnitudes.
///
/// - Of five terms the largest loses nothing (a product has at most 13 bits, the accumulator 24), so the
///   cuts lose less than 4 * 2^(E-25) = 2^(E-23). A product's exponent is the sum of its factors'. That
///   is the product's own but for subnormal factors. The code 0.5, decoded to f16, may be one: then the
///   largest term is at least 2^(E-1), and the loss below 4 u S; else it is below 2 u S. Where the
///   largest exponent is that of a subnormal element of the vector, all terms are multiples of what would
///   be cut, and nothing is lost.
/// - Cutting the sum to f32 loses less than 2 u S.
///
/// Together less than 6 u S, which is what six roundings may lose. That leaves room for hardware that cuts
/// a bit earlier, at 2^-24, where codes are not subnormal: from compute capability 10.0 on they are decoded
/// by an instruction.
const MATRIX_ROUNDINGS: u32 = 6;

/// What a rule asks for, before it is known to fit.
struct Wanted {
    slices: u32,
    groups: u32,
    stages: u32,
}

/// The cut that was fastest in sweeps on an H200 for problems like this one.
fn wanted(shape: &Shape, target: &RingTarget) -> Wanted {
    let row_slices = shape.k() / SLICE;
    let rows_per_sm = shape.m() * shape.l() / target.multiprocessors.max(1) as usize;
    let nvfp4 = target.activation == Activation::Nvfp4;
    let (slices, groups, stages) = match pass_vectors(shape.n()) {
        1 | 2 if nvfp4 => {
            if row_slices.is_multiple_of(14) && !row_slices.is_multiple_of(8) {
                (14, 1, 3)
            } else if row_slices > 64 {
                (8, 2, 6)
            } else if row_slices >= 32 || row_slices == 0 {
                (8, 2, 4)
            } else if row_slices >= 16 && rows_per_sm < 64 {
                (4, 2, 8) // a start with small stages, where there is little to do
            } else {
                (8, 1, 3)
            }
        }
        1 | 2 if row_slices >= 32 => (16, 1, 3),
        8 => (4, 2, 4),
        _ => (8, 1, 3),
    };
    // Where K has no such slices: as many warps, in more groups.
    let found = divisors(shape, slices).next().unwrap_or(1);
    let more = (slices / found).min(8 / groups);
    Wanted {
        slices: found,
        groups: groups * more,
        stages: stages * more,
    }
}

/// Numbers of slices that divide a row's, from `most` down.
fn divisors(shape: &Shape, most: u32) -> impl Iterator<Item = u32> {
    let row_slices = shape.k() / SLICE;
    (1..=most)
        .rev()
        .filter(move |&slices| row_slices.is_multiple_of(slices as usize))
}

/// Vectors that the kernel of the largest pass is compiled for.
fn pass_vectors(n: usize) -> u64 {
    n.min(MOST_VECTORS).next_power_of_two() as u64
}

/// `max_consumers` in `gemv_ring.cuh`.
fn most_warps(shape: &Shape) -> u32 {
    if pass_vectors(shape.n()) <= 2 { 16 } else { 12 }
}

/// `stage_bytes` in `gemv_ring.cuh`.
fn stage_bytes(slices: u32, tiled: bool) -> u64 {
    let slices = u64::from(slices);
    let codes = ROWS * (slices * 128 + 16);
    let scales = match tiled {
        true => slices * (SLICE_BLOCKS / 4) * 96,
        false if slices % 8 == 7 => ROWS * (slices * SLICE_BLOCKS + 32),
        false => ROWS * (slices * SLICE_BLOCKS + 16),
    };
    codes + scales
}

/// Places of a batch, which rows take in the order of their scales; the last ones may be empty.
fn places(shape: &Shape, tiled: bool) -> u64 {
    let whole = match tiled {
        true => 128,
        false if shape.l() > 1 => ROWS,
        false => 1,
    };
    (shape.m() as u64).next_multiple_of(whole)
}

/// Places that a CTA takes together.
fn unit(tiled: bool) -> u64 {
    if tiled { 4 } else { 1 }
}

/// Of all batches.
fn units(shape: &Shape, tiled: bool) -> u64 {
    places(shape, tiled).saturating_mul(shape.l() as u64) / unit(tiled)
}

#[cfg(test)]
mod tests;
