//! The matmul kernel's tiles, and its launch as plain data.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::arch::Arch;
use crate::variants::{Family, Variant};

/// How the kernel divides its work. Written `128x128x64/64x32/3/8`: block, warp, stages, group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Tiles {
    /// Rows of D that a CTA computes.
    pub block_m: u32,
    /// Columns of D that a CTA computes.
    pub block_n: u32,
    /// Bytes of K of a step: 32, 64, 128 or 256.
    pub block_k: u32,
    /// Rows of D that a warp computes.
    pub warp_m: u32,
    /// Columns of D that a warp computes.
    pub warp_n: u32,
    /// Steps in shared memory.
    pub stages: u32,
    /// Rows of tiles that CTAs walk column by column.
    pub group: u32,
}

/// Why tiles do not suit an instruction or an architecture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TilesError {
    /// The text is not of the form.
    #[error("{0:?} is not of the form BLOCK_MxBLOCK_NxBLOCK_K/WARP_MxWARP_N/STAGES/GROUP, such as {default}", default = Tiles::default())]
    Form(String),
    /// There is no kernel for the family.
    #[error("there is no matmul kernel for {0} instructions yet")]
    Family(&'static str),
    /// A size is not a multiple of another one.
    #[error("{what} of {size} is no multiple of {of}")]
    Multiple {
        /// Which one.
        what: &'static str,
        /// What it is.
        size: u32,
        /// What it must be a multiple of.
        of: u32,
    },
    /// A size is out of its limits.
    #[error("{what} of {size} is not among {allowed}")]
    Range {
        /// Which one.
        what: &'static str,
        /// What it is.
        size: u64,
        /// What is possible.
        allowed: String,
    },
    /// The stages do not fit.
    #[error(
        "the stages take {bytes} bytes of shared memory, and a CTA has at most {limit} on sm_{arch}"
    )]
    Shared {
        /// What they take.
        bytes: u32,
        /// What there is.
        limit: u32,
        /// On which architecture.
        arch: Arch,
    },
}

impl Default for Tiles {
    fn default() -> Self {
        Self {
            block_m: 128,
            block_n: 128,
            block_k: 64,
            warp_m: 64,
            warp_n: 32,
            stages: 3,
            group: 8,
        }
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
        } = self;
        write!(
            f,
            "{block_m}x{block_n}x{block_k}/{warp_m}x{warp_n}/{stages}/{group}"
        )
    }
}

impl FromStr for Tiles {
    type Err = TilesError;

    fn from_str(text: &str) -> Result<Self, TilesError> {
        let parse = || {
            let numbers: Option<Vec<u32>> = text
                .split(['x', '/'])
                .map(|number| number.parse().ok())
                .collect();
            let &[block_m, block_n, block_k, warp_m, warp_n, stages, group] = numbers?.as_slice()
            else {
                return None;
            };
            let tiles = Self {
                block_m,
                block_n,
                block_k,
                warp_m,
                warp_n,
                stages,
                group,
            };
            (tiles.to_string() == text).then_some(tiles)
        };
        parse().ok_or_else(|| TilesError::Form(text.into()))
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
    /// Small tiles that a variant takes: two warps, with several instructions in each direction.
    pub fn smallest(variant: &Variant) -> Self {
        let warp_m = 2 * variant.shape.m;
        Self {
            block_m: warp_m,
            block_n: 32,
            block_k: 64,
            warp_m,
            warp_n: 16,
            stages: 3,
            group: 2,
        }
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(&self) -> u32 {
        self.stages
            .saturating_mul(self.block_m.saturating_add(self.block_n))
            .saturating_mul(self.block_k)
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        32 * (self.block_m / self.warp_m) * (self.block_n / self.warp_n)
    }

    /// Whether the kernel exists with these tiles.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self, variant: &Variant, arch: Arch) -> Result<(), TilesError> {
        if variant.family() != Family::Mma {
            return Err(TilesError::Family(variant.family().name()));
        }
        let range = |what, size: u32, allowed: std::ops::RangeInclusive<u32>| {
            if allowed.contains(&size) {
                return Ok(());
            }
            let allowed = format!("{} to {}", allowed.start(), allowed.end());
            Err(TilesError::Range {
                what,
                size: size.into(),
                allowed,
            })
        };
        range("block M", self.block_m, 8..=512)?;
        range("block N", self.block_n, 8..=512)?;
        range("warp M", self.warp_m, 8..=512)?;
        range("warp N", self.warp_n, 8..=512)?;
        range("stages", self.stages, 2..=16)?;
        range("group", self.group, 1..=1024)?;
        if ![32, 64, 128, 256].contains(&self.block_k) {
            let allowed = "32, 64, 128, 256 bytes".into();
            return Err(TilesError::Range {
                what: "block K",
                size: self.block_k.into(),
                allowed,
            });
        }
        let multiple = |what, size: u32, of: u32| match size % of {
            0 => Ok(()),
            _ => Err(TilesError::Multiple { what, size, of }),
        };
        multiple("warp M", self.warp_m, variant.shape.m)?;
        multiple("warp N", self.warp_n, variant.shape.n)?;
        multiple("block M", self.block_m, self.warp_m)?;
        multiple("block N", self.block_n, self.warp_n)?;
        let threads = self.threads();
        if threads > 1024 {
            let allowed = "up to 1024".into();
            return Err(TilesError::Range {
                what: "threads",
                size: threads.into(),
                allowed,
            });
        }
        let (bytes, limit) = (self.shared(), shared_limit(arch));
        if bytes > limit {
            return Err(TilesError::Shared { bytes, limit, arch });
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

/// A launch of the kernel `matmul`, whose parameters are D, A, B, M, N and the bytes of a row of A.
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
}

impl Plan {
    /// The launch for a problem; the tiles must have passed [`Tiles::check`].
    ///
    /// # Errors
    /// A K whose rows are no multiple of 16 bytes, and more CTAs than a grid has.
    pub fn new(variant: &Variant, tiles: &Tiles, problem: Problem) -> Result<Self, TilesError> {
        let bits = u64::from(problem.k) * u64::from(variant.container_bits(variant.a));
        let of = 128 / variant.container_bits(variant.a);
        if problem.k == 0 || bits % 128 != 0 {
            return Err(TilesError::Multiple {
                what: "K",
                size: problem.k,
                of,
            });
        }
        let ctas = u64::from(problem.m.div_ceil(tiles.block_m))
            * u64::from(problem.n.div_ceil(tiles.block_n));
        let grid = u32::try_from(ctas)
            .ok()
            .filter(|grid| (1..=i32::MAX as u32).contains(grid));
        let Some(grid) = grid else {
            let allowed = "1 to 2147483647".into();
            return Err(TilesError::Range {
                what: "number of CTAs",
                size: ctas,
                allowed,
            });
        };
        Ok(Self {
            grid,
            threads: tiles.threads(),
            shared: tiles.shared(),
            row_bytes: bits / 8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants;

    #[test]
    fn tiles_are_read_and_written() {
        let text = "128x256x64/64x64/4/8";
        assert_eq!(text.parse::<Tiles>().unwrap().to_string(), text);
        for text in [
            "",
            "128x128x64",
            "128x128x64/64x32/3/8/1",
            "128/128x64x64x32x3x8",
            "128x128x64/64x32/3/-8",
        ] {
            assert!(text.parse::<Tiles>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let variant = variants::find("mma.m16n8k16.f32.f16.f16").unwrap();
        let why = |tiles: &str, arch: &str| {
            let tiles: Tiles = tiles.parse().unwrap();
            tiles
                .check(&variant, arch.parse().unwrap())
                .unwrap_err()
                .to_string()
        };
        assert!(
            Tiles::default()
                .check(&variant, "80".parse().unwrap())
                .is_ok()
        );
        assert_eq!(
            why("128x128x64/64x33/3/8", "80"),
            "warp N of 33 is no multiple of 8"
        );
        assert_eq!(
            why("128x128x64/48x32/3/8", "80"),
            "block M of 128 is no multiple of 48"
        );
        assert_eq!(
            why("128x128x48/64x32/3/8", "80"),
            "block K of 48 is not among 32, 64, 128, 256 bytes"
        );
        assert_eq!(
            why("128x128x64/64x32/1/8", "80"),
            "stages of 1 is not among 2 to 16"
        );
        assert_eq!(
            why("512x512x64/16x8/2/8", "90a"),
            "threads of 65536 is not among up to 1024"
        );
        assert!(
            why("128x128x128/64x32/4/8", "89")
                .contains("131072 bytes of shared memory, and a CTA has at most 101376")
        );
        assert!(
            "128x128x128/64x32/4/8"
                .parse::<Tiles>()
                .unwrap()
                .check(&variant, "80".parse().unwrap())
                .is_ok()
        );
        let wgmma = variants::find("wgmma.m64n256k16.f32.f16.f16").unwrap();
        let refused = Tiles::default()
            .check(&wgmma, "90a".parse().unwrap())
            .unwrap_err();
        assert_eq!(refused, TilesError::Family("wgmma"));
    }

    #[test]
    fn plans_cover_the_problem() {
        let variant = variants::find("mma.m16n8k64.s32.s4.u4").unwrap();
        let plan = |m, n, k| Plan::new(&variant, &Tiles::default(), Problem { m, n, k });
        let plan_of = plan(129, 128, 96).unwrap();
        assert_eq!(
            (plan_of.grid, plan_of.threads, plan_of.row_bytes),
            (2, 256, 48)
        );
        assert_eq!(
            plan(1, 1, 48).unwrap_err().to_string(),
            "K of 48 is no multiple of 32"
        );
        assert!(plan(0, 1, 32).is_err() && plan(1, 1, 0).is_err());
        assert!(plan(u32::MAX, u32::MAX, 32).is_err());
    }
}
