//! The matmul kernels' tiles, and their launches as plain data.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::arch::Arch;
use crate::blackwell::{self, ALL_COLUMNS, Room, Scales};
use crate::variants::{Family, LANES, Variant};

/// Sizes into which the kernel divides its work. Written `128x128x64/64x32/3/8`: block, warp, stages, group; and `/2`
/// where two CTAs are a cluster, `/bulk` where bulk copies are used. The warp's sizes are a warpgroup's where the
/// instruction is `wgmma`. For `tcgen05.mma` they are one instruction's, whose 256 rows are those of a pair of CTAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Tiles {
    /// Rows of D that a CTA computes.
    pub block_m: u32,
    /// Columns of D that a CTA computes.
    pub block_n: u32,
    /// Bytes of K of a step: 64 or 128; of `wgmma` and `tcgen05` 128.
    pub block_k: u32,
    /// Rows of D that a warp, or warpgroup, computes.
    pub warp_m: u32,
    /// Columns of D that a warp, or warpgroup, computes.
    pub warp_n: u32,
    /// Steps in shared memory.
    pub stages: u32,
    /// Rows of tiles that CTAs walk column by column.
    pub group: u32,
    /// CTAs that share B: 1, or of `wgmma` and `tcgen05` 1 or 2.
    pub cluster: u32,
    /// Whether A and B of `mma.sync` come to shared memory by bulk copies, which exist from sm_90 on, and not by copies
    /// of each thread. False for `wgmma` and `tcgen05`, which always use bulk copies.
    pub bulk: bool,
}

/// Why tiles do not suit an instruction or an architecture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TilesError(String);

/// Tiles that are known to be of the form.
fn fixed(text: &str) -> Tiles {
    text.parse().expect("of the form")
}

/// An error of a size that is out of its limits.
pub(crate) fn out_of_range(
    what: &str,
    size: impl Into<u64>,
    allowed: impl fmt::Display,
) -> TilesError {
    let size = size.into();
    TilesError(format!("{what} of {size} is not among {allowed}"))
}

fn no_multiple(what: &str, size: u32, of: u32) -> TilesError {
    TilesError(format!("{what} of {size} is no multiple of {of}"))
}

impl Default for Tiles {
    fn default() -> Self {
        fixed("128x128x64/64x32/3/8")
    }
}

impl fmt::Display for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            block_m,
            block_n,
            block_k,
            warp_m,
            warp_n,
            stages,
            group,
            cluster,
            bulk,
        } = self;
        write!(
            f,
            "{block_m}x{block_n}x{block_k}/{warp_m}x{warp_n}/{stages}/{group}"
        )?;
        if *cluster != 1 {
            write!(f, "/{cluster}")?;
        }
        match bulk {
            true => write!(f, "/bulk"),
            false => Ok(()),
        }
    }
}

impl FromStr for Tiles {
    type Err = TilesError;

    fn from_str(text: &str) -> Result<Self, TilesError> {
        let parse = || {
            let (sizes, bulk) = match text.strip_suffix("/bulk") {
                Some(sizes) => (sizes, true),
                None => (text, false),
            };
            let mut numbers = sizes.split(['x', '/']).map(|number| number.parse().ok());
            let mut next = || numbers.next().flatten();
            let tiles = Self {
                block_m: next()?,
                block_n: next()?,
                block_k: next()?,
                warp_m: next()?,
                warp_n: next()?,
                stages: next()?,
                group: next()?,
                cluster: next().unwrap_or(1),
                bulk,
            };
            (tiles.to_string() == text).then_some(tiles)
        };
        parse().ok_or_else(|| {
            let form =
                "BLOCK_MxBLOCK_NxBLOCK_K/WARP_MxWARP_N/STAGES/GROUP, .../CLUSTER or .../bulk";
            TilesError(format!(
                "{text:?} is not of the form {form}, such as {}",
                Self::default()
            ))
        })
    }
}

/// Bytes of shared memory that a CTA may have: CUDA C++ Programming Guide, table of technical specifications.
fn shared_limit(arch: Arch) -> u32 {
    let kib = match arch.number {
        80 | 87 => 163,
        90 | 100..=119 => 227,
        _ => 99,
    };
    kib * 1024
}

impl Tiles {
    /// Tiles that a variant takes and that are fast for many of its problems.
    pub fn usual(variant: &Variant) -> Self {
        match variant.family() {
            Family::Mma => Self::default(),
            Family::Wgmma => fixed("128x256x128/64x256/4/8/2"),
            Family::Tcgen05 => fixed("128x256x128/128x256/4/8"),
        }
    }

    /// Small tiles that a variant takes: two warps, with several instructions in each direction; of `wgmma` two
    /// warpgroups.
    pub fn smallest(variant: &Variant) -> Self {
        match (variant.family(), 2 * variant.shape.m) {
            (Family::Mma, m) => fixed(&format!("{m}x32x64/{m}x16/3/2")),
            (Family::Wgmma, _) => fixed("128x32x128/64x32/2/2"),
            // It is not sure how scales of fewer columns of B have to be given.
            (Family::Tcgen05, _) if variant.scale().is_some() => fixed("128x64x128/128x64/2/2"),
            (Family::Tcgen05, _) => fixed("128x32x128/128x32/2/2"),
        }
    }

    /// Whether A and B are described to bulk copies by maps.
    fn has_maps(&self, variant: &Variant) -> bool {
        self.bulk || variant.family() != Family::Mma
    }

    /// Bytes of dynamic shared memory: the stages, and two barriers of each where there are bulk copies. For `tcgen05`
    /// see [`Room`].
    pub fn shared(&self, variant: &Variant) -> u32 {
        if variant.family() == Family::Tcgen05 {
            return Room::new(variant, self).shared;
        }
        let barriers = if self.has_maps(variant) { 16 } else { 0 };
        let stage = self.block_m.saturating_add(self.block_n);
        let stage = stage.saturating_mul(self.block_k).saturating_add(barriers);
        self.stages.saturating_mul(stage)
    }

    /// Threads of a CTA. `wgmma` has one warp more, which copies. `tcgen05` has four warps that write, one that copies,
    /// and one that multiplies.
    pub fn threads(&self, variant: &Variant) -> u32 {
        let parts = (self.block_m / self.warp_m) * (self.block_n / self.warp_n);
        let more = match variant.family() {
            Family::Mma => 0,
            Family::Wgmma => 32,
            Family::Tcgen05 => return 192,
        };
        variant.threads().saturating_mul(parts).saturating_add(more)
    }

    /// Whether the kernel exists with these tiles.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self, variant: &Variant, arch: Arch) -> Result<(), TilesError> {
        let family = variant.family();
        let range = |what, size: u32, allowed: std::ops::RangeInclusive<u32>| {
            if allowed.contains(&size) {
                return Ok(());
            }
            let allowed = format!("{} to {}", allowed.start(), allowed.end());
            Err(out_of_range(what, size, allowed))
        };
        range("block M", self.block_m, 8..=512)?;
        range("block N", self.block_n, 8..=512)?;
        range("warp M", self.warp_m, 8..=512)?;
        range("warp N", self.warp_n, 8..=512)?;
        let fewest = if self.has_maps(variant) { 2 } else { 3 };
        range("stages", self.stages, fewest..=16)?;
        range("group", self.group, 1..=1024)?;
        let (clusters, steps): (u32, &[u32]) = match family {
            Family::Mma => (1, &[64, 128]),
            Family::Wgmma | Family::Tcgen05 => (2, &[128]),
        };
        range("cluster", self.cluster, 1..=clusters)?;
        if !steps.contains(&self.block_k) {
            let steps: Vec<String> = steps.iter().map(u32::to_string).collect();
            let allowed = format!("{} bytes", steps.join(", "));
            return Err(out_of_range("block K", self.block_k, allowed));
        }
        let multiple = |what, size: u32, of: u32| match size % of {
            0 => Ok(()),
            _ => Err(no_multiple(what, size, of)),
        };
        multiple("warp M", self.warp_m, variant.shape.m)?;
        match family {
            Family::Wgmma => {
                // N of one instruction; a copy has up to 256 rows, and ends with a pattern of eight.
                range("warp N", self.warp_n, 8..=256)?;
                let whole = variant.a.is_integer() && self.warp_n > 32;
                multiple("warp N", self.warp_n, if whole { 16 } else { 8 })?;
                range("block M", self.block_m, 64..=256)?;
                range("rows of a copy of B", self.block_n / self.cluster, 8..=256)?;
                multiple("block N", self.block_n, 8 * self.cluster)?;
            }
            Family::Mma => multiple("warp N", self.warp_n, variant.shape.n)?,
            Family::Tcgen05 => {
                // 256 rows of an instruction are a pair's.
                if self.warp_m == 2 * LANES && self.cluster == 1 {
                    return Err(TilesError(
                        "warp M of 256 is two CTAs', a pair's: write /2 behind the group".into(),
                    ));
                }
                range("warp M", self.warp_m, LANES..=LANES * self.cluster)?;
                range("block M", self.block_m, LANES..=2 * LANES)?;
                multiple("block M", self.block_m, LANES)?;
                range("warp N", self.warp_n, 32..=256)?;
                if self.block_n != self.warp_n {
                    return Err(TilesError("block N and warp N differ: of tcgen05 a CTA's columns are one instruction's".into()));
                }
                // Sums are written 32 columns at a time; 64 or 128 columns of B have scales that lie together.
                let scaled = variant.scale().is_some();
                let at_once = match (scaled, self.warp_n > 64) {
                    (false, _) => 32,
                    (true, false) => 64,
                    (true, true) => LANES,
                };
                multiple("warp N", self.warp_n, at_once)?;
            }
        }
        if family != Family::Tcgen05 {
            multiple("block M", self.block_m, self.warp_m)?;
        }
        if self.bulk && family != Family::Mma {
            return Err(TilesError("/bulk is of mma.sync: wgmma and tcgen05 have bulk copies always, and are written without it".into()));
        }
        if self.bulk {
            if arch.number < 90 {
                return Err(TilesError(format!(
                    "bulk copies exist from sm_90 on, and not on sm_{arch}"
                )));
            }
            range("block M", self.block_m, 8..=256)?;
            range("block N", self.block_n, 8..=256)?;
        }
        multiple("block N", self.block_n, self.warp_n)?;
        let threads = self.threads(variant);
        if threads > 1024 {
            return Err(out_of_range("threads", threads, "up to 1024"));
        }
        let (sums, most) = match family {
            Family::Wgmma => {
                // A quarter of the multiprocessor has 16384 registers for its warps, and the producer is one of the
                // warps. About 24 registers of a thread hold no sums.
                let warps = (threads / 32).div_ceil(4);
                let most = (16384 / 32 / warps).min(255) - 24;
                (self.warp_m * self.warp_n / 128, most)
            }
            Family::Mma => {
                // Beside the sums are at least two groups of A and two slices of B.
                let fragments = 2 * 4 + 2 * self.warp_n / 8 * variant.registers()[1];
                let most = (65536 / threads / 8 * 8).min(255);
                let others = (fragments + 16).min(most - 1);
                (self.warp_m * self.warp_n / 32, most - others)
            }
            Family::Tcgen05 => {
                let columns = Room::new(variant, self).used_columns;
                let what = "number of columns of tensor memory";
                range(what, columns, 1..=ALL_COLUMNS)?;
                (0, 0)
            }
        };
        if family != Family::Tcgen05 {
            let sums = sums * variant.accumulator.bits() / 32;
            range("registers of sums", sums, 1..=most)?;
        }
        let (bytes, limit) = (self.shared(variant), shared_limit(arch));
        if bytes > limit {
            let needed = format!("the stages take {bytes} bytes of shared memory");
            return Err(TilesError(format!(
                "{needed}, and a CTA has at most {limit} on sm_{arch}"
            )));
        }
        Ok(())
    }
}

/// The size of a problem: D has M rows and N columns, and sums of K products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct Problem {
    pub m: u32,
    pub n: u32,
    pub k: u32,
}

/// A matrix as bulk copies take it: rows of bytes, in boxes of so many bytes of so many rows. Bytes beyond the matrix
/// are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// Rows of the matrix.
    pub rows: u32,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Rows of a box.
    pub box_rows: u32,
    /// Bytes of a row of a box: where it is swizzled 64 or 128.
    pub box_bytes: u32,
    /// Whether boxes get the swizzle of as many bytes; or else their rows follow each other as they are.
    pub swizzled: bool,
}

/// How a launch gives A and B to the kernel `matmul`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// By address. The parameters are D, A, B, M, N and the bytes of a row as 64 bits.
    Addresses,
    /// By maps. The parameters are D, A's map, B's map, M, N and the steps along K. Where there is an instruction
    /// descriptor, it and the maps of the scales of A and B follow, or A's and B's maps again where the instruction has
    /// no scales.
    Maps {
        /// Map of A.
        a: Map,
        /// Map of B.
        b: Map,
        /// Boxes that a row has.
        steps: u32,
        /// The instruction descriptor, for `tcgen05`.
        instruction: Option<u32>,
        /// Maps of the scales of A and of B, for `tcgen05` with block scales.
        scales: Option<[Map; 2]>,
    },
}

/// A launch of the kernel `matmul`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// CTAs.
    pub grid: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Bytes of a row of A, and of a column of B.
    pub row_bytes: u64,
    /// CTAs of a cluster, as the kernel itself says.
    pub cluster: u32,
    /// A and B.
    pub operands: Operands,
}

impl Plan {
    /// The launch for a problem; the tiles must have passed [`Tiles::check`]. Kernels that compute several tiles get as
    /// many CTAs as there are `multiprocessors`.
    ///
    /// # Errors
    /// A size of zero, a K whose rows are no multiple of 16 bytes, more CTAs than a grid has, and more scales than a
    /// map counts.
    pub fn new(
        variant: &Variant,
        tiles: &Tiles,
        problem: Problem,
        multiprocessors: u32,
    ) -> Result<Self, TilesError> {
        for (what, size) in [("M", problem.m), ("N", problem.n), ("K", problem.k)] {
            if size == 0 {
                let allowed = format!("1 to {}", u32::MAX);
                return Err(out_of_range(what, size, allowed));
            }
        }
        let bits = u64::from(problem.k) * u64::from(variant.container_bits(variant.a));
        let of = 128 / variant.container_bits(variant.a);
        if bits % 128 != 0 {
            return Err(no_multiple("K", problem.k, of));
        }
        let together = tiles.block_m * tiles.cluster;
        let clusters =
            u64::from(problem.m.div_ceil(together)) * u64::from(problem.n.div_ceil(tiles.block_n));
        let ctas = clusters * u64::from(tiles.cluster);
        let grid = u32::try_from(ctas)
            .ok()
            .filter(|grid| (1..=i32::MAX as u32).contains(grid));
        let Some(grid) = grid else {
            return Err(out_of_range("number of CTAs", ctas, "1 to 2147483647"));
        };
        let row_bytes = bits / 8;
        let map = |rows, box_rows| Map {
            rows,
            row_bytes,
            box_rows,
            box_bytes: tiles.block_k,
            swizzled: true,
        };
        let (grid, operands) = match tiles.has_maps(variant) {
            true => {
                let resident = multiprocessors / tiles.cluster * tiles.cluster;
                let maps = Operands::Maps {
                    a: map(problem.m, tiles.block_m),
                    b: map(problem.n, tiles.block_n / tiles.cluster),
                    steps: row_bytes.div_ceil(tiles.block_k.into()) as u32,
                    instruction: blackwell::instruction(
                        &variant.with_n(tiles.warp_n).with_m(tiles.warp_m),
                    ),
                    scales: match Scales::of(variant, problem) {
                        Some([of_a, of_b]) => Some([of_a.map()?, of_b.map()?]),
                        None => None,
                    },
                };
                (grid.min(resident.max(tiles.cluster)), maps)
            }
            false => (grid, Operands::Addresses),
        };
        Ok(Self {
            grid,
            threads: tiles.threads(variant),
            shared: tiles.shared(variant),
            row_bytes,
            cluster: tiles.cluster,
            operands,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants;

    #[test]
    fn tiles_are_read_and_written() {
        for text in [
            "128x256x64/64x64/4/8",
            "128x256x128/64x256/4/8/2",
            "192x256x128/96x64/4/8/bulk",
        ] {
            assert_eq!(text.parse::<Tiles>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "128x128x64",
            "128x128x64/64x32/3/8/1",
            "128/128x64x64x32x3x8",
            "128x128x64/64x32/3/-8",
            "128x128x64/64x32/3/8/bulk/2",
            "128x128x64/64x32/3/8/",
        ] {
            assert!(text.parse::<Tiles>().is_err(), "{text}");
        }
    }

    /// Whether tiles suit a variant on an architecture; or else the error's text.
    fn check(name: &str, arch: &str, tiles: &str) -> Result<(), String> {
        let tiles: Tiles = tiles.parse().unwrap();
        let checked = tiles.check(&variants::find(name).unwrap(), arch.parse().unwrap());
        checked.map_err(|error| error.to_string())
    }

    /// Rows of this form: tiles, and the error behind two spaces.
    fn refused(name: &str, arch: &str, rows: &str) {
        for row in rows.trim().lines() {
            let (tiles, why) = row.trim().split_once("  ").unwrap();
            assert_eq!(check(name, arch, tiles).unwrap_err(), why, "{tiles}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let f16 = "mma.m16n8k16.f32.f16.f16";
        assert_eq!(check(f16, "80", &Tiles::default().to_string()), Ok(()));
        assert_eq!(check(f16, "80", "128x128x128/64x32/4/8"), Ok(()));
        let rows = "
            128x128x64/64x33/3/8  warp N of 33 is no multiple of 8
            128x128x64/48x32/3/8  block M of 128 is no multiple of 48
            128x128x48/64x32/3/8  block K of 48 is not among 64, 128 bytes
            128x128x64/64x32/1/8  stages of 1 is not among 3 to 16
            128x128x64/64x32/3/8/2  cluster of 2 is not among 1 to 1";
        refused(f16, "80", rows);
        let threads = "512x512x64/16x8/3/8  threads of 65536 is not among up to 1024";
        refused(f16, "90a", threads);
        let shared =
            "the stages take 131072 bytes of shared memory, and a CTA has at most 101376 on sm_89";
        refused(f16, "89", &format!("128x128x128/64x32/4/8  {shared}"));
    }

    #[test]
    fn tiles_of_tensor_memory() {
        let (f16, nvfp4) = (
            "tcgen05.m128n256k16.f16.f32.f16.f16",
            "tcgen05.m128n256k64.mxf4nvf4.f32.e2m1.e2m1.ue4m3",
        );
        for tiles in [
            "128x256x128/128x256/4/8",
            "256x128x128/128x128/4/8/2",
            "128x64x128/128x64/8/1",
            "128x256x128/256x256/4/8/2",
            "256x128x128/256x128/3/8/2",
        ] {
            assert_eq!(check(f16, "100a", tiles), Ok(()), "{tiles}");
            assert_eq!(check(nvfp4, "100a", tiles), Ok(()), "{tiles}");
        }
        assert_eq!(check(f16, "100a", "128x32x128/128x32/2/1"), Ok(()));
        assert_eq!(check(f16, "100a", "256x256x128/128x256/3/8"), Ok(()));
        let of_f16 = "
            128x128x64/64x32/3/8  block K of 64 is not among 128 bytes
            128x128x128/64x128/3/8  warp M of 64 is no multiple of 128
            128x256x128/256x256/4/8  warp M of 256 is two CTAs', a pair's: write /2 behind the group
            384x64x128/128x64/2/8  block M of 384 is not among 128 to 256
            128x256x128/128x128/3/8  block N and warp N differ: of tcgen05 a CTA's columns are one instruction's
            128x48x128/128x48/2/8  warp N of 48 is no multiple of 32
            128x512x128/128x512/2/8  warp N of 512 is not among 32 to 256
            128x256x128/128x256/5/8  the stages take 245888 bytes of shared memory, and a CTA has at most 232448 on sm_100a";
        refused(f16, "100a", of_f16);
        let bulk = "/bulk is of mma.sync: wgmma and tcgen05 have bulk copies always, and are written without it";
        refused(
            f16,
            "100a",
            &format!("128x256x128/128x256/4/8/bulk  {bulk}"),
        );
        // Two rows of 256 columns each leave no room for scales.
        let of_nvfp4 = "
            128x192x128/128x192/2/8  warp N of 192 is no multiple of 128
            256x256x128/128x256/2/8  number of columns of tensor memory of 640 is not among 1 to 512";
        refused(nvfp4, "100a", of_nvfp4);
    }

    #[test]
    fn tiles_of_warpgroups() {
        let f16 = "wgmma.m64n256k16.f32.f16.f16";
        assert_eq!(check(f16, "90a", "128x256x128/64x256/4/8/2"), Ok(()));
        assert_eq!(check(f16, "90a", "64x24x128/64x24/2/1"), Ok(()));
        let rows = "
            128x256x64/64x256/4/8  block K of 64 is not among 128 bytes
            128x256x128/64x256/4/8/4  cluster of 4 is not among 1 to 2
            128x256x128/32x256/4/8  warp M of 32 is no multiple of 64
            128x512x128/64x256/2/8  rows of a copy of B of 512 is not among 8 to 256
            64x24x128/64x24/2/1/2  block N of 24 is no multiple of 16
            256x192x128/128x192/2/8  registers of sums of 192 is not among 1 to 146
            128x256x128/64x256/5/8  the stages take 245840 bytes of shared memory, and a CTA has at most 232448 on sm_90a";
        refused(f16, "90a", rows);
        let in_half = "wgmma.m64n256k16.f16.f16.f16";
        assert_eq!(check(in_half, "90a", "256x192x128/128x192/2/8"), Ok(()));
        let integers = "64x40x128/64x40/2/1  warp N of 40 is no multiple of 16";
        refused("wgmma.m64n256k32.s32.s8.s8", "90a", integers);
    }

    /// A plan has as many CTAs as fit at once, in whole clusters, and maps of what the kernel copies.
    #[test]
    fn plans_of_warpgroups() {
        let variant = variants::find("wgmma.m64n256k16.f32.f16.f16").unwrap();
        let tiles = Tiles::usual(&variant);
        let plan = |m, n, sms| Plan::new(&variant, &tiles, Problem { m, n, k: 72 }, sms).unwrap();
        assert_eq!(plan(1000, 8192, 133).grid, 132);
        let small = plan(129, 257, 132);
        assert_eq!((small.grid, small.threads, small.cluster), (4, 288, 2));
        assert_eq!(small.shared, 4 * (384 * 128 + 16));
        let Operands::Maps { a, b, steps, .. } = small.operands else {
            panic!("{small:?}")
        };
        assert_eq!(
            (a.rows, a.box_rows, b.rows, b.box_rows),
            (129, 128, 257, 128)
        );
        assert_eq!((a.row_bytes, steps), (144, 2));
    }

    #[test]
    fn plans_cover_the_problem() {
        let variant = variants::find("mma.m16n8k64.s32.s4.u4").unwrap();
        let plan = |m, n, k| Plan::new(&variant, &Tiles::default(), Problem { m, n, k }, 1);
        let plan_of = plan(129, 128, 96).unwrap();
        assert_eq!(
            (plan_of.grid, plan_of.threads, plan_of.row_bytes),
            (2, 256, 48)
        );
        assert_eq!(
            plan(1, 1, 48).unwrap_err().to_string(),
            "K of 48 is no multiple of 32"
        );
        for (m, n, k, what) in [(0, 1, 32, "M"), (1, 0, 32, "N"), (1, 1, 0, "K")] {
            assert_eq!(
                plan(m, n, k).unwrap_err().to_string(),
                format!("{what} of 0 is not among 1 to 4294967295")
            );
        }
        assert!(plan(u32::MAX, u32::MAX, 32).is_err());
    }
}
