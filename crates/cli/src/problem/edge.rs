//! Data at the edges of the formats and of the indexing.

use std::fmt;

use clap::ValueEnum;
use nvfp4_gemv::Shape;

use super::Problem;
use super::generate::taming_alpha;

/// The special property of a problem of [`Problem::edge_case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
#[non_exhaustive]
pub enum EdgeCase {
    /// All codes zero, arbitrary scales.
    Zeros,
    /// All weights -0.
    NegativeZeros,
    /// All scales zero, arbitrary codes.
    ZeroScales,
    /// Every code 6, every scale 448: the largest sum there is.
    MaxPositive,
    /// Weights -6, vectors 6, every scale 448.
    MaxNegative,
    /// Blocks of +6 and -6 take turns and cancel; in the last block something small is left.
    Cancellation,
    /// Signs alternate from element to element: each nibble counts with its own sign.
    AlternatingSigns,
    /// All scales subnormal.
    SubnormalScales,
    /// The largest scale next to the smallest.
    WideScales,
    /// Only element 0 of each row is not zero.
    FirstElement,
    /// Only element K-1 of each row is not zero.
    LastElement,
    /// Only one block of each row is not zero, another one in each row.
    OneBlock,
    /// Only the last row of each batch is not zero.
    LastRow,
    /// Every scale code in turn, with every element code in turn.
    Sweep,
}

impl EdgeCase {
    /// All of them, in the order in which they are declared.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }
}

/// The name: `max-positive`.
impl fmt::Display for EdgeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_possible_value() {
            Some(value) => f.pad(value.get_name()),
            None => Err(fmt::Error),
        }
    }
}

/// The largest scale (448) and the smallest (2^-9).
const MAX_SCALE: u8 = 0x7e;
const MIN_SCALE: u8 = 0x01;

impl Problem {
    /// A problem that is special in one way, as [`EdgeCase`] says; what is not special is drawn
    /// from the full range. Every result is finite in f16.
    pub fn edge_case(shape: Shape, case: EdgeCase, seed: u64) -> Self {
        let mut p = Self::full_range(shape, seed);
        let (row_bytes, blocks) = (shape.row_code_bytes(), shape.blocks());
        match case {
            EdgeCase::Zeros => p.a.fill(0),
            EdgeCase::NegativeZeros => p.a.fill(0x88),
            EdgeCase::ZeroScales => p.sfa.fill(0),
            EdgeCase::MaxPositive | EdgeCase::MaxNegative => {
                let positive = case == EdgeCase::MaxPositive;
                p.a.fill(if positive { 0x77 } else { 0xff });
                p.b.fill(0x77);
                p.sfa.fill(MAX_SCALE);
                p.sfb.fill(MAX_SCALE);
                p.alpha = Some(vec![taming_alpha(shape.k())]);
            }
            EdgeCase::Cancellation => {
                for row in p.a.chunks_exact_mut(row_bytes) {
                    for (block, codes) in row.chunks_exact_mut(8).enumerate() {
                        codes.fill(if block % 2 == 0 { 0x77 } else { 0xff });
                    }
                }
                p.b.fill(0x77);
                p.sfa.fill(MAX_SCALE);
                p.sfb.fill(MAX_SCALE);
                let last_blocks = p.sfa.iter_mut().skip(blocks - 1).step_by(blocks);
                last_blocks.for_each(|s| *s = MIN_SCALE);
            }
            EdgeCase::AlternatingSigns => {
                // 6, -6, 6, -6 against 6, 6, 6, 4: (36 - 36) + (36 - 24) = 12 for every four.
                p.a.fill(0xf7);
                p.b.chunks_exact_mut(2)
                    .for_each(|pair| pair.copy_from_slice(&[0x77, 0x67]));
            }
            EdgeCase::SubnormalScales => {
                let subnormal = |s: &mut u8| *s = *s % 7 + 1;
                p.sfa.iter_mut().for_each(subnormal);
                p.sfb.iter_mut().for_each(subnormal);
                // The largest sum is (7/512 · 6)² · K; leave it as it is.
                p.alpha = None;
            }
            EdgeCase::WideScales => {
                let wide = |s: &mut u8| *s = if *s & 1 == 0 { MAX_SCALE } else { MIN_SCALE };
                p.sfa.iter_mut().for_each(wide);
                p.sfb.iter_mut().for_each(wide);
            }
            EdgeCase::FirstElement | EdgeCase::LastElement => {
                // The byte, its nibble, and the bit of that which makes it not zero.
                let (at, nibble, set) = match case {
                    EdgeCase::FirstElement => (0, 0x0f, 0x01),
                    _ => (row_bytes - 1, 0xf0, 0x10),
                };
                for row in p.a.chunks_exact_mut(row_bytes) {
                    let element = row[at] & nibble | set;
                    row.fill(0);
                    row[at] = element;
                }
                p.alpha = Some(vec![taming_alpha(16)]);
            }
            EdgeCase::OneBlock => {
                for (i, row) in p.a.chunks_exact_mut(row_bytes).enumerate() {
                    for (block, codes) in row.chunks_exact_mut(8).enumerate() {
                        if block != i % blocks {
                            codes.fill(0);
                        }
                    }
                }
                p.alpha = Some(vec![taming_alpha(16)]);
            }
            EdgeCase::LastRow => {
                if shape.m() > 0 {
                    for batch in p.a.chunks_exact_mut(shape.m() * row_bytes) {
                        batch[..(shape.m() - 1) * row_bytes].fill(0);
                    }
                }
            }
            EdgeCase::Sweep => {
                let code = |i: usize| (i % 16) as u8;
                for (i, byte) in p.a.iter_mut().enumerate() {
                    // The step of 3 per row keeps a code from always meeting the same element.
                    let at = 2 * i + 3 * (i / row_bytes);
                    *byte = code(at) | code(at + 1) << 4;
                }
                for (i, scale) in p.sfa.iter_mut().enumerate() {
                    *scale = (i % 0x7f) as u8;
                }
            }
        }
        p
    }
}
