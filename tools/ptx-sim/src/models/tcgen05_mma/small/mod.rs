//! Products of small integers, on processors that add several products of bytes at once.
//!
//! Tests mostly multiply small integers, because all sums of them are exact. Where all values of both operands are
//! multiples of powers of two by at most 127, they fit bytes, and integer sums say the same as sums in f32.
//!
//! Two kinds of processors have such instructions ([`Level`]). One kind adds four products in 32 bits. The other kind
//! adds two in 16 bits, so values must be smaller there.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(test)]
mod tests;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vnni;

use super::super::idesc::Accumulator;
use super::Mma;
use super::inner::{self, ROWS, Units, Whole};
use tiles::Tiles;

/// Values of a group: bytes that lie in a word of 32 bits.
const GROUP: usize = 4;

/// Columns of a tile.
const COLUMNS: usize = 16;

/// The largest magnitude of a byte's value.
const MOST: f32 = 127.0;

/// Integers up to this are exact in f32.
const EXACT: u32 = 1 << 24;

/// A processor's instructions for products of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Four products of bytes are added in 32 bits: AVX512-VNNI.
    Four,
    /// Two are added in 16 bits: AVX2.
    Two,
}

impl Level {
    /// The best that this processor has.
    fn best() -> Option<Self> {
        [Level::Four, Level::Two]
            .into_iter()
            .find(|l| l.available())
    }

    #[cfg(target_arch = "x86_64")]
    fn available(self) -> bool {
        match self {
            Level::Four => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Level::Two => is_x86_feature_detected!("avx2"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn available(self) -> bool {
        false
    }

    /// The largest sum of magnitudes of products that it holds.
    fn most(self) -> u32 {
        match self {
            Level::Four => EXACT,
            // Half of it is what A's bytes are more than its values. A pair is a half of a group.
            Level::Two => 0x7fff,
        }
    }
}

/// A product whose operands are bytes.
#[derive(Debug)]
pub(super) struct Small {
    level: Level,
    /// Values of A in units of its power of two, each with a number added, so that none is negative.
    a: Tiles<ROWS>,
    /// Values of B in units of its power of two.
    b: Tiles<COLUMNS>,
    /// By tile of B: the numbers by which sums are too large because A's bytes are more than its values.
    offsets: Vec<[u32; COLUMNS]>,
    /// The product of both powers of two.
    unit: f32,
    /// No sum has more units than this.
    most: u32,
}

/// A product of a chain: [`ROWS`] rows of it, and whether it is added onto what is there.
pub(super) struct Link<'a> {
    /// By group.
    a: &'a [[u32; ROWS]],
    product: &'a Small,
    accumulate: bool,
}

/// Whether this processor has what it takes, and the MMA adds onto f32 without scale.
pub(super) fn takes(mma: &Mma) -> bool {
    let plain = mma.idesc.d == Accumulator::F32 && mma.scale_input_d == 0;
    plain && mma.disable_lanes == [0; 8] && Level::best().is_some()
}

/// An operand whose values are small multiples of a power of two, row by row.
#[derive(Debug)]
pub(super) struct Integers {
    /// The operand's values in units of that power, as bytes with a sign.
    bytes: Vec<u8>,
    /// The power of two.
    unit: f32,
    /// The largest magnitude, in units.
    most: f32,
}

impl Integers {
    fn of(values: &[f32]) -> Option<Self> {
        let Units { unit, most } = inner::units(values)?;
        (most <= MOST).then(|| {
            let mut bytes = vec![0; values.len()];
            inner::bytes_of(values, 1.0 / unit, &mut bytes);
            Self { bytes, unit, most }
        })
    }

    /// The integers of little-endian f16 whose values are integers already.
    pub(super) fn of_f16(values: &[u8]) -> Option<Self> {
        let mut bytes = vec![0; values.len() / 2];
        let mut found = Whole::default();
        inner::f16_integers(values, &mut bytes, &mut found);
        let most = f32::from(found.most);
        (found.all && most <= MOST).then_some(Self {
            bytes,
            unit: 1.0,
            most,
        })
    }

    /// The operand's bytes with a number added to each.
    fn more(&self, more: u8) -> Vec<u8> {
        self.bytes.iter().map(|b| b.wrapping_add(more)).collect()
    }
}

impl Small {
    /// The product of A `[m][k]` and B `[n][k]`, if their values are small and all sums exact in f32.
    pub(super) fn of(a: &[f32], b: &[f32], k: usize) -> Option<Self> {
        Self::at(Level::best()?, a, b, k)
    }

    /// The product of operands that are small integers, if the sums are exact.
    pub(super) fn of_integers(a: &Integers, b: &Integers, k: usize) -> Option<Self> {
        Self::new(Level::best()?, a, b, k)
    }

    fn at(level: Level, a: &[f32], b: &[f32], k: usize) -> Option<Self> {
        Self::new(level, &Integers::of(a)?, &Integers::of(b)?, k)
    }

    fn new(level: Level, a: &Integers, b: &Integers, k: usize) -> Option<Self> {
        // Sums are so many units at most, which f32 holds.
        let most = a.most * b.most * k as f32;
        let unit = a.unit * b.unit;
        let exact = most <= level.most() as f32 && unit.is_normal() && (most * unit).is_finite();
        // A's bytes have no sign.
        let more = match level {
            Level::Four => 128,
            Level::Two => a.most as u8,
        };
        (exact && k.is_multiple_of(GROUP)).then(|| {
            let b = Tiles::of(&b.bytes, k / GROUP);
            Self {
                level,
                a: Tiles::of(&a.more(more), k / GROUP),
                offsets: offsets(level, &b, more),
                b,
                unit,
                most: most as u32,
            }
        })
    }

    /// [`ROWS`] rows from one on, a multiple of that, as a link of a chain.
    pub(super) fn link(&self, first: usize, accumulate: bool) -> Option<Link<'_>> {
        Some(Link {
            a: self.a.all().nth(first / ROWS)?,
            product: self,
            accumulate,
        })
    }
}

/// The numbers by which sums of products with B are too large where A's bytes are larger by `more` than its values.
fn offsets(level: Level, b: &Tiles<COLUMNS>, more: u8) -> Vec<[u32; COLUMNS]> {
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the processor has what the function is compiled for.
        Level::Four if level.available() => return unsafe { vnni::offsets(b, more) },
        // SAFETY: as above.
        Level::Two if level.available() => return unsafe { avx2::offsets(b, more) },
        _ => {}
    }
    let _ = (level, b, more);
    Vec::new()
}

/// Adds products onto [`ROWS`] rows of f32 in turn, as [`inner::chain_f32`] does: to the same bits, unless a cell is a
/// negative zero.
pub(super) fn chain(links: &[Link<'_>], n: usize, cells: &mut [u32], pitch: usize) {
    #[cfg(target_arch = "x86_64")]
    match links.first().map(|l| l.product.level) {
        // SAFETY: there are products of a level only on a processor that has it, which is what the function is compiled
        // for.
        Some(Level::Four) if Level::Four.available() => unsafe {
            vnni::chain(links, n, cells, pitch);
        },
        // SAFETY: as above.
        Some(Level::Two) if Level::Two.available() => unsafe {
            avx2::chain(links, n, cells, pitch);
        },
        _ => {}
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (links, n, cells, pitch);
}

/// The runs of a chain.
#[cfg(target_arch = "x86_64")]
fn runs<'l, 'a>(links: &'l [Link<'a>]) -> Vec<&'l [Link<'a>]> {
    let mut runs = Vec::new();
    let (mut rest, mut known) = (links, None);
    while !rest.is_empty() {
        let count;
        (count, known) = run(rest, known);
        runs.push(&rest[..count]);
        rest = &rest[count..];
    }
    runs
}

/// The first links of a chain that can be added up as integers before anything is rounded. Returns their number, and
/// what is known behind them of the cells: that they are at most so many units. `known` says the same of the cells
/// before.
#[cfg(target_arch = "x86_64")]
fn run(links: &[Link<'_>], known: Option<(f32, u32)>) -> (usize, Option<(f32, u32)>) {
    let Some(first) = links.first() else {
        return (0, known);
    };
    let (level, unit) = (first.product.level, first.product.unit);
    let before = match known {
        _ if !first.accumulate => Some(0),
        Some((of, most)) if of == unit => Some(most),
        _ => None,
    };
    // Onto other cells, one sum at a time is rounded.
    let Some(before) = before.filter(|b| b + first.product.most <= EXACT) else {
        return (1, None);
    };
    let (mut count, mut most) = (1, first.product.most);
    for l in &links[1..] {
        let more = most + l.product.most;
        let joins = l.accumulate && l.product.unit == unit;
        if !joins || more > level.most() || before + more > EXACT {
            break;
        }
        (count, most) = (count + 1, more);
    }
    (count, Some((unit, before + most)))
}
