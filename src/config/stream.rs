//! The kernel whose warps stream rows through queues of their own in shared memory: `gemv_stream`.

use serde::{Deserialize, Serialize};

use super::ALPHAS;
use super::distinct::distinct;
use crate::shape::Shape;
use crate::types::Activation;

/// The cut of the stream kernel. A CTA's rows, in tiles of 16, are steps of 256 elements of K; each warp
/// takes as many of them as the others, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Warps of a CTA: 1 to 16, or to 12 with more than two vectors in a pass.
    pub warps: u32,
    /// Steps that a warp's queue holds: 3, 4 or 6.
    pub stages: u32,
    /// Vectors of a pass over the weights, at most: 1, 2, 4 or 8. There are four passes at most.
    pub vectors: u32,
    /// Bytes of weights that L2 fetches at once: 128 or 256.
    pub fetch: u32,
    /// CTAs that share the rows of all batches: no more than there are rows, or fours of rows where the
    /// weights' scales are in the 128x4 layout.
    pub ctas: u32,
    /// Programmatic dependent launch, from compute capability 9.0 on: weights are read before the kernels before
    /// this one have ended. [What that asks of the caller](crate::Config#programmatic-dependent-launch).
    pub dependent: bool,
}

/// What a configuration depends on besides the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTarget {
    /// The vectors' element type.
    pub activation: Activation,
    /// The weights' scales are in the 128x4 layout.
    pub tiled: bool,
    /// Streaming multiprocessors of the device.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a CTA can have.
    pub shared_bytes: u32,
}

/// Elements of K of a step.
pub(crate) const STEP: usize = 256;
/// Rows of a tile: `kTileRows` in `stream_params.cuh`.
const ROWS: u64 = 16;
/// `kStageBytes`.
const STAGE_BYTES: u64 = 2048 + 256;
/// Passes over the weights that one call can make: `kMostLaunches` in `launch/prepared.cuh`.
const MOST_PASSES: usize = 4;
/// From how many bytes of weights on L2 had better fetch 256 at once: measured on an H200,
/// docs/notes/tuning.md.
const FAR_AHEAD_BYTES: usize = 100_000_000;
/// `sizeof(Parts)`.
const PARTS_BYTES: u64 = 4;
/// Weights of an SM that count as little: measured on an H200, docs/notes/tuning.md.
const SMALL_BYTES: u64 = 96 << 10;
/// Warps of a CTA.
const MOST_WARPS: u32 = 16;
/// Numbers of stages that the kernel knows how to wait for.
const STAGES: [u32; 3] = [3, 4, 6];
/// Numbers of vectors that it is compiled for, the most first.
const VECTORS: [u32; 4] = [8, 4, 2, 1];

impl StreamConfig {
    /// The default for a problem on a device, if there is a legal one: the cut that was fastest or nearly
    /// so for problems measured on an H200, with fewer warps where shared memory is short, and more
    /// CTAs than SMs where a CTA's sums or the vectors of all its batches would not fit.
    pub fn for_problem(shape: &Shape, target: &StreamTarget) -> Option<Self> {
        if !shape.k().is_multiple_of(STEP) || shape.is_empty() {
            return None;
        }
        let units = units(shape, target.tiled);
        let sms = u64::from(target.multiprocessors.max(1));
        let batches = shape.l() as u64;
        let ctas = [sms, 2 * sms, 4 * sms, 16 * sms, batches, 8 * batches, units];
        // Little work starts and ends sooner with fewer warps.
        let most = match shape.weight_bytes() as u64 / sms {
            ..SMALL_BYTES => 8,
            _ => 12,
        };
        let find = |fewest: u32| {
            VECTORS.into_iter().find_map(|vectors| {
                ctas.into_iter().find_map(|ctas| {
                    (fewest..=most).rev().find_map(|warps| {
                        let config = Self {
                            warps,
                            stages: 3,
                            vectors,
                            fetch: fetch(shape),
                            ctas: ctas.clamp(1, units) as u32,
                            dependent: false,
                        };
                        config.is_legal(shape, target).then_some(config)
                    })
                })
            })
        };
        // Fewer vectors a pass sooner than fewer warps.
        find(8).or_else(|| find(1))
    }

    /// Whether any configuration is legal: the smallest one.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) fn any_is_legal(shape: &Shape, target: &StreamTarget) -> bool {
        VECTORS.into_iter().any(|vectors| {
            let smallest = Self {
                warps: 1,
                stages: 3,
                vectors,
                fetch: 128,
                ctas: u32::try_from(units(shape, target.tiled)).unwrap_or(u32::MAX),
                dependent: false,
            };
            smallest.is_legal(shape, target)
        })
    }

    /// Cuts worth measuring, the default first. Programmatic dependent launch is no matter of speed
    /// alone, and is left out.
    pub fn candidates(shape: &Shape, target: &StreamTarget) -> Vec<Self> {
        let Some(default) = Self::for_problem(shape, target) else {
            return Vec::new();
        };
        let mut cuts = vec![default];
        let units = units(shape, target.tiled);
        for (warps, per_sm) in [(6, 2), (8, 1), (8, 2), (10, 1), (12, 1), (14, 1), (16, 1)] {
            for stages in STAGES {
                let ctas = (u64::from(target.multiprocessors) * per_sm).clamp(1, units);
                cuts.push(Self {
                    warps,
                    stages,
                    ctas: ctas as u32,
                    ..default
                });
            }
        }
        cuts.push(Self {
            fetch: 384 - default.fetch,
            ..default
        });
        cuts.extend(VECTORS.map(|vectors| Self { vectors, ..default }));
        distinct(cuts, |cut| cut.is_legal(shape, target))
    }

    /// The kernel has code for this, and the device room.
    pub fn is_legal(&self, shape: &Shape, target: &StreamTarget) -> bool {
        let steps = shape.blocks() as u64 / (STEP as u64 / 16);
        // The kernel counts places and steps in 32 bits, and divides the steps by multiplying.
        let counted = places(shape, target.tiled).saturating_mul(shape.l() as u64) < 1 << 31
            && self.ctas >= 1
            && (self.tiles(shape, target.tiled) * steps)
                .saturating_mul(steps.max(self.warps.into()))
                < 1 << 32;
        target.activation != Activation::F32
            && shape.k().is_multiple_of(STEP)
            && VECTORS.contains(&self.vectors)
            && shape.n().div_ceil(self.vectors as usize) <= MOST_PASSES
            && (1..=self.most_warps(shape)).contains(&self.warps)
            && STAGES.contains(&self.stages)
            && [128, 256].contains(&self.fetch)
            && counted
            && u64::from(self.ctas) <= units(shape, target.tiled)
            && self
                .shared_bytes(shape, target)
                .is_some_and(|bytes| bytes <= u64::from(target.shared_bytes))
    }

    /// Successive f32 roundings of any term, in the pass that has most.
    ///
    /// A warp adds what it makes of a step to its sum of a tile, and one addition for each warp that shares the
    /// tile follows. The factor that ends a sum is a power of two, and exact.
    ///
    /// One or two vectors: a lane adds four blocks a step, and two additions over lanes follow. NVFP4 blocks
    /// are exact. Those of f16 and bf16 vectors are four matrix instructions in a chain, each of which counts
    /// for six (`MATRIX_ROUNDINGS` in this file derives it). The product with the block's scale is rounded
    /// together with the addition, by one fused operation. A bf16 vector is summed in two parts, each element in
    /// one of them, and one more rounding adds the parts.
    ///
    /// More vectors, or two of bf16: weights are multiplied by their scales first, exactly. Eight matrix
    /// instructions in a chain (`scaled_matrix_roundings`) make half a step of all lanes.
    pub fn roundings(&self, shape: &Shape, activation: Activation) -> u32 {
        let steps = (shape.k() / STEP) as u32;
        let of_pass = |vectors| {
            if is_scaled(activation, vectors) {
                return 8 * scaled_matrix_roundings(activation) + 2 * steps;
            }
            let block = match activation {
                Activation::Nvfp4 => 0,
                _ => 4 * MATRIX_ROUNDINGS,
            };
            let parts = u32::from(activation == Activation::Bf16);
            block + 4 * steps + 2 + parts
        };
        let [first, last] = self.passes(shape).map(of_pass);
        // Warps that no kernel has count as the most that one has.
        first.max(last) + self.warps.min(MOST_WARPS) + ALPHAS
    }

    /// Vectors that the kernels of the first pass, which has most, and of the last one are compiled for.
    fn passes(&self, shape: &Shape) -> [u64; 2] {
        let (n, most) = (shape.n().max(1), self.vectors.max(1) as usize);
        [n.min(most), (n - 1) % most + 1].map(|vectors| vectors.next_power_of_two() as u64)
    }

    /// `max_warps` in `gemv_stream.cuh`.
    fn most_warps(&self, shape: &Shape) -> u32 {
        if self.passes(shape)[0] <= 2 {
            MOST_WARPS
        } else {
            12
        }
    }

    /// The most tiles of a CTA: one more where its first one is cut by the alignment.
    fn tiles(&self, shape: &Shape, tiled: bool) -> u64 {
        self.most_places(shape, tiled).div_ceil(ROWS) + u64::from(shape.l() > 1)
    }

    /// Of the CTA that has most.
    fn most_places(&self, shape: &Shape, tiled: bool) -> u64 {
        units(shape, tiled).div_ceil(self.ctas.max(1).into()) * unit(tiled)
    }

    /// Bytes of shared memory of a CTA: `lay_out` in `launch/gemv_stream.cu`. Nothing where they are
    /// beyond counting.
    fn shared_bytes(&self, shape: &Shape, target: &StreamTarget) -> Option<u64> {
        // The last pass may need more than the first: fewer vectors, but in another form.
        let bytes = self
            .passes(shape)
            .map(|vectors| self.pass_bytes(shape, target, vectors));
        bytes
            .into_iter()
            .try_fold(0, |most, bytes| Some(most.max(bytes?)))
    }

    fn pass_bytes(&self, shape: &Shape, target: &StreamTarget, vectors: u64) -> Option<u64> {
        let kept = Kept::new(target.activation, vectors);
        let blocks = shape.blocks() as u64;
        let batches = shape.l() as u64;
        let places = places(shape, target.tiled);
        let most = self.most_places(shape, target.tiled);
        let tiles = self.tiles(shape, target.tiled);
        let x_batches = batches.min((most + places - 2) / places + 1);
        let x = x_batches.checked_mul(
            kept.columns
                .checked_mul((blocks + 1) * kept.block_bytes)?
                .checked_add(blocks * kept.scale_bytes)?,
        )?;
        let queues = u64::from(self.warps * self.stages) * STAGE_BYTES;
        let sums = (u64::from(self.warps) + tiles) * ROWS * kept.columns * 4 + tiles * PARTS_BYTES;
        x.checked_add(queues + kept.zero_bytes + sums)
    }
}

/// Whether a kernel for so many vectors multiplies weights by their scales first: `scaled_from` in
/// `gemv_stream.cuh`.
fn is_scaled(activation: Activation, vectors: u64) -> bool {
    vectors >= if activation == Activation::Bf16 { 2 } else { 4 }
}

/// How the vectors of a pass lie in shared memory: `Products::Vectors` of the kernels.
struct Kept {
    /// Columns that the vectors take.
    columns: u64,
    /// Of a column's block.
    block_bytes: u64,
    /// Beside it, of a block of all vectors.
    scale_bytes: u64,
    /// Zeros that some lanes read instead.
    zero_bytes: u64,
}

impl Kept {
    fn new(activation: Activation, vectors: u64) -> Self {
        let (columns, block_bytes, scale_bytes, zero_blocks) = match activation {
            _ if is_scaled(activation, vectors) => (vectors, 32, 0, 0),
            Activation::Nvfp4 => (vectors, 16, 8 * vectors, 10),
            Activation::Bf16 => (2 * vectors, 32, 0, 10),
            _ => (vectors, 32, 0, 10),
        };
        Self {
            columns,
            block_bytes,
            scale_bytes,
            zero_bytes: zero_blocks * block_bytes,
        }
    }
}

/// f32 roundings that one `mma.sync.m16n8k16` of f16 or bf16 into f32 counts for, where four products
/// of an element of the result are not zero.
///
/// The ISA leaves the rounding of the sum open. An H200 was recorded (`ptx-sim/docs/semantics.md`, "Warp
/// matrices") to cut every term, products and accumulator alike, toward zero at 2^-25 of the largest
/// exponent E, to add the rest exactly, and to cut the sum to f32. Let u = 2^-24, and S the sum of the
/// terms' magnitudes. (Of a bf16 vector the codes are bf16 times 2^-126, 0.5 subnormal as in f16; what a
/// sum below f32's normal numbers would lose, no term has: `block_dot.cuh`.)
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

/// The same for weights times their scales, where sixteen products are not zero (`scaled_products.cuh`).
///
/// As above, but of 17 terms 16 may be cut: they lose less than 16 * 2^(E-25) = 2^(E-21). Assumed, as the
/// simulator does: a product with zero has no exponent, a subnormal factor that of the smallest normal number.
///
/// - A subnormal element of a vector is counted as the smallest normal one in S
///   ([`Reference::magnitude`](crate::reference::Reference)), and so the largest term is at least 2^E where weights
///   are normal, as in bf16: the cuts lose at most 8 u S. Cutting the sum loses less than 2 u S. Together 10.
/// - In f16, weights are kept times 2^-7, and below 2^-14 where the scale is below 2^-6: down to 2^-17, three
///   binades below what their exponent says. The largest term then is at least 2^(E-3), and the cuts lose at
///   most 64 u S: 66 in all. From compute capability 10.0 on they are kept as they are, and normal.
///
/// That was recorded on an H200 only. With room for hardware that cuts a bit earlier, at 2^-24: 18 and 130.
fn scaled_matrix_roundings(activation: Activation) -> u32 {
    match activation {
        Activation::Bf16 => 18,
        _ => 130,
    }
}

/// What L2 had better fetch at once.
fn fetch(shape: &Shape) -> u32 {
    match shape.weight_bytes() {
        ..FAR_AHEAD_BYTES => 128,
        _ => 256,
    }
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
