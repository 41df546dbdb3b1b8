//! The kernel whose rows come in bulk copies, into a ring in shared memory: `gemv_ring`.

use serde::{Deserialize, Serialize};

use super::ALPHAS;
use super::distinct::distinct;
use crate::shape::Shape;

/// The cut of the ring kernel. A CTA takes its rows four at a time: a unit. As many warps as a row takes are
/// a group, and groups take units in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingConfig {
    /// Chunks of 32 elements that a thread has of a row: 1 or 2.
    pub chunks: u32,
    /// Groups of a CTA: together they have 16 warps at most.
    pub groups: u32,
    /// Rows of a stage, for which a group waits at once: 1, 2 or 4.
    pub rows: u32,
    /// Units in the ring for each group: 1 to 8.
    pub depth: u32,
    /// Rows, in the order of their scales, that stay in one CTA: 1 or 4.
    pub granule: u32,
    /// L1 keeps block scales: in the 128x4 layout two units share what it fetches at once. Rings that take most of
    /// an SM's shared memory leave L1 too small for it.
    #[serde(default)]
    pub cached: bool,
    /// CTAs that share the rows of all batches: no more than there are granules.
    pub ctas: u32,
    /// Programmatic dependent launch, from compute capability 9.0 on: weights are read before the kernels before
    /// this one have ended. [What that asks of the caller](crate::Config#programmatic-dependent-launch).
    pub dependent: bool,
}

/// What a configuration depends on besides the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingTarget {
    /// The weights' scales are in the 128x4 layout.
    pub tiled: bool,
    /// Streaming multiprocessors of the device.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a CTA can have.
    pub shared_bytes: u32,
}

/// What K must be a multiple of: scales of a row are copied 16 bytes at once.
pub(crate) const RING_STEP: usize = 256;
/// Rows of a unit: `kUnitRows` in `gemv_ring.cuh`.
const UNIT_ROWS: u64 = 4;
/// Elements of a warp's chunk.
const WARP_CHUNK: usize = 32 * 32;
/// `kMaxWarps`.
const MAX_WARPS: u32 = 16;
/// `kScaleSlots` times `kScaleBytes`: scales of a warp on their way, for each chunk.
const SCALE_BYTES: u64 = 3 * 256;
/// `kBarBytes`.
const BAR_BYTES: u64 = 16;
const ROWS: [u32; 3] = [1, 2, 4];
const DEPTHS: std::ops::RangeInclusive<u32> = 1..=8;
/// Bytes of codes that the ring had better hold: measured on an H200, docs/notes/tuning.md.
const RING_BYTES: u64 = 64 << 10;
/// The same where launches follow each other with programmatic dependent launch: more, since it fills while
/// the vector is awaited. Two CTAs with short rows still fit an SM, one of each launch.
const CHAINED_RING_BYTES: u64 = 128 << 10;
const CHAINED_SHORT_RING_BYTES: u64 = 96 << 10;
/// K of a short row, at most.
const SHORT: usize = 7167;

impl RingConfig {
    /// The default for a problem on a device, if there is a legal one: the cut that was fastest or nearly
    /// so for problems measured on an H200, with a smaller ring where shared memory is short, and more
    /// CTAs than SMs where a CTA's sums would not fit.
    pub fn for_problem(shape: &Shape, target: &RingTarget) -> Option<Self> {
        if !Self::takes(shape, target.tiled) {
            return None;
        }
        let granule = if target.tiled { 4 } else { 1 };
        let rows = match shape.k() {
            ..4096 => 4,
            4096..8192 => 2,
            _ => 1,
        };
        [2, 1].into_iter().find_map(|chunks| {
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
                        ctas: ctas(shape, target, granule, per_sm),
                        dependent: false,
                    };
                    config.is_legal(shape, target).then_some(config)
                })
            })
        })
    }

    /// The cut for launches that follow each other with [programmatic dependent
    /// launch](crate::Config#programmatic-dependent-launch), as layers of a model can: the default's, with a
    /// deeper ring where the device has room.
    pub fn for_chain(shape: &Shape, target: &RingTarget) -> Option<Self> {
        let default = Self {
            dependent: true,
            ..Self::for_problem(shape, target)?
        };
        let ring = match shape.k() {
            ..=SHORT => CHAINED_SHORT_RING_BYTES,
            _ => CHAINED_RING_BYTES,
        };
        let turn = unit_bytes(shape) * u64::from(default.groups);
        let deepest = (ring / turn).clamp(default.depth.into(), (*DEPTHS.end()).into()) as u32;
        (default.depth..=deepest)
            .rev()
            .map(|depth| Self {
                depth,
                cached: false,
                ..default
            })
            .find(|cut| cut.is_legal(shape, target))
    }

    /// Whether the kernel takes problems of this shape and layout at all.
    pub(crate) fn takes(shape: &Shape, tiled: bool) -> bool {
        let whole = if tiled { 128 } else { UNIT_ROWS as usize };
        !shape.is_empty()
            && shape.n() == 1
            && shape.k().is_multiple_of(RING_STEP)
            && (shape.l() == 1 || shape.m().is_multiple_of(whole))
            && row_warps(shape, 2) <= MAX_WARPS
    }

    /// Cuts worth measuring, the default first. Programmatic dependent launch is no matter of speed
    /// alone, and is left out.
    pub fn candidates(shape: &Shape, target: &RingTarget) -> Vec<Self> {
        // What is in flight hides the latency of memory; more does nothing.
        let rings = RING_BYTES * 3 / 5..=RING_BYTES * 5 / 2;
        match Self::for_problem(shape, target) {
            Some(default) => Self::alternatives(default, 4, rings, shape, target),
            None => Vec::new(),
        }
    }

    /// Cuts worth measuring in launches that follow each other with programmatic dependent launch,
    /// [`for_chain`](Self::for_chain)'s first.
    pub fn chained_candidates(shape: &Shape, target: &RingTarget) -> Vec<Self> {
        let rings = RING_BYTES * 3 / 4..=RING_BYTES * 13 / 4;
        match Self::for_chain(shape, target) {
            Some(default) => Self::alternatives(default, 6, rings, shape, target),
            None => Vec::new(),
        }
    }

    /// `default`, and other cuts, of which up to `deepest` units of a group, and so many bytes of codes in all,
    /// are in the ring.
    fn alternatives(
        default: Self,
        deepest: u32,
        rings: std::ops::RangeInclusive<u64>,
        shape: &Shape,
        target: &RingTarget,
    ) -> Vec<Self> {
        let mut cuts = vec![default];
        for chunks in [2, 1] {
            let most = MAX_WARPS / row_warps(shape, chunks).clamp(1, MAX_WARPS);
            for groups in [most, most.div_ceil(2), most.div_ceil(4)] {
                for rows in ROWS {
                    for depth in 1..=deepest {
                        let ring = u64::from(groups * depth) * unit_bytes(shape);
                        if !rings.contains(&ring) {
                            continue;
                        }
                        for &granule in if target.tiled { &[4, 1][..] } else { &[1] } {
                            cuts.push(Self {
                                chunks,
                                groups,
                                rows,
                                depth,
                                granule,
                                ctas: ctas(shape, target, granule, 1),
                                ..default
                            });
                        }
                    }
                }
            }
        }
        // Two CTAs an SM, each with half of the warps.
        let two = cuts
            .clone()
            .into_iter()
            .filter(|cut| cut.groups > 1)
            .map(|cut| Self {
                groups: cut.groups / 2,
                ctas: ctas(shape, target, cut.granule, 2),
                ..cut
            });
        cuts.extend(two.collect::<Vec<_>>());
        // With the small rings of isolated launches, L1 is large enough.
        if target.tiled && !default.cached {
            let cached = |cut: &Self| Self {
                cached: true,
                ..*cut
            };
            cuts.extend(cuts.iter().map(cached).collect::<Vec<_>>());
        }
        distinct(cuts, |cut| cut.is_legal(shape, target))
    }

    /// The kernel has code for this, and the device room.
    pub fn is_legal(&self, shape: &Shape, target: &RingTarget) -> bool {
        Self::takes(shape, target.tiled)
            && [1, 2].contains(&self.chunks)
            && self.groups >= 1
            && self.groups.saturating_mul(row_warps(shape, self.chunks)) <= MAX_WARPS
            && ROWS.contains(&self.rows)
            && DEPTHS.contains(&self.depth)
            && [1, 4].contains(&self.granule)
            && self.ctas >= 1
            && u64::from(self.ctas) <= places(shape, target.tiled).div_ceil(self.granule.into())
            && places_are_counted(shape, target.tiled)
            && self.shared_bytes(shape, target.tiled) <= u64::from(target.shared_bytes)
    }

    /// Successive f32 roundings of any term: a thread adds two blocks of each chunk, each by one fused
    /// operation, then come five additions over the lanes, and one for each warp that shares the row. Blocks
    /// and the product of two block scales are exact.
    pub fn roundings(&self, shape: &Shape) -> u32 {
        // Chunks that no kernel has count as the most that one has.
        let chunks = self.chunks.clamp(1, 2);
        2 * chunks + 5 + row_warps(shape, chunks) + ALPHAS
    }

    /// Bytes of shared memory of a CTA: `lay_out` in `launch/gemv_ring.cu`.
    fn shared_bytes(&self, shape: &Shape, tiled: bool) -> u64 {
        let row_warps = u64::from(row_warps(shape, self.chunks));
        let groups = u64::from(self.groups);
        let units = groups * u64::from(self.depth);
        let granules = places(shape, tiled).div_ceil(self.granule.into());
        let most = granules.div_ceil(self.ctas.into()) * u64::from(self.granule);
        let pitch = (most.div_ceil(UNIT_ROWS) + 1) * UNIT_ROWS;
        let codes = units * unit_bytes(shape);
        let scales = groups * row_warps * u64::from(self.chunks) * SCALE_BYTES;
        let bars = units * (UNIT_ROWS / u64::from(self.rows)) * BAR_BYTES;
        codes + scales + bars + row_warps * pitch * 4
    }
}

/// Bytes of a unit's codes.
fn unit_bytes(shape: &Shape) -> u64 {
    UNIT_ROWS * shape.row_code_bytes() as u64
}

/// So many CTAs for each SM, or as many as there are granules for.
fn ctas(shape: &Shape, target: &RingTarget, granule: u32, per_sm: u64) -> u32 {
    let granules = places(shape, target.tiled) / u64::from(granule);
    (u64::from(target.multiprocessors.max(1)) * per_sm).clamp(1, granules) as u32
}

/// Warps that share a row.
fn row_warps(shape: &Shape, chunks: u32) -> u32 {
    u32::try_from(shape.k().div_ceil(WARP_CHUNK * chunks.max(1) as usize)).unwrap_or(u32::MAX)
}

/// Places of all batches, which rows take in the order of their scales; the last ones may be empty.
fn places(shape: &Shape, tiled: bool) -> u64 {
    let rows = shape.m() as u64 * shape.l() as u64;
    if tiled {
        rows.next_multiple_of(128)
    } else {
        rows
    }
}

/// The kernel counts places in 32 bits, and finds a row's batch by multiplying with 2^32 / M, rounded up: exact
/// while what the rounding adds, times the row, stays below 2^32.
fn places_are_counted(shape: &Shape, tiled: bool) -> bool {
    let (m, places) = (shape.m() as u64, places(shape, tiled));
    let added = (1_u64 << 32).div_ceil(m) * m - (1 << 32);
    places < 1 << 31 && (shape.l() == 1 || added * places < 1 << 32)
}

#[cfg(test)]
mod tests;
