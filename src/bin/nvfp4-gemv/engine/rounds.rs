//! What alternates: several ways to do the same work take turns in rounds, so that whatever else
//! changes on the machine meets all of them alike.

use half::{bf16, f16};
use nvfp4_gemv::{Activation, FloatType, GlobalScale, Path, Result, ScaleLayout, Shape, path};

use super::{InputScale, Inputs, memory};

/// A problem whose speed matters and whose numbers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) activation: Activation,
    /// Of all block scales.
    pub(crate) layout: ScaleLayout,
    pub(crate) output: FloatType,
}

impl Case {
    /// What the dispatch asks about it.
    pub(crate) fn dispatch(&self) -> path::Operands {
        path::Operands::new(self.activation, self.layout)
    }

    /// Bytes that the vectors and the result take in host memory, at most.
    pub(super) fn operand_bytes(&self) -> Option<usize> {
        const WIDEST: usize = size_of::<f32>();
        memory::sum(&[
            (self.shape.vector_elements(), WIDEST),
            // Scales in the 128x4 layout are padded to 128 rows.
            (
                ScaleLayout::Tiled128x4.bytes(self.shape.n(), self.shape.blocks()),
                self.shape.l(),
            ),
            (self.shape.outputs(), WIDEST),
        ])
    }

    /// Vectors between -1 and 1, or of random codes and scales.
    pub(crate) fn inputs(&self) -> Inputs {
        let mut rng = fastrand::Rng::with_seed(2);
        let shape = &self.shape;
        let count = shape.vector_elements();
        let mut value = || rng.f32() * 2.0 - 1.0;
        match self.activation {
            Activation::F16 => Inputs::F16((0..count).map(|_| f16::from_f32(value())).collect()),
            Activation::Bf16 => Inputs::Bf16((0..count).map(|_| bf16::from_f32(value())).collect()),
            Activation::F32 => Inputs::F32((0..count).map(|_| value()).collect()),
            Activation::Nvfp4 => Inputs::Nvfp4 {
                codes: (0..count / 2).map(|_| rng.u8(..)).collect(),
                scales: (0..self.layout.bytes(shape.n(), shape.blocks()) * shape.l())
                    .map(|_| scale(rng.u8(..)))
                    .collect(),
                layout: self.layout,
                global: InputScale::Shared(GlobalScale::ONE),
            },
        }
    }
}

/// A finite scale that is not negative, from any byte.
pub(crate) fn scale(byte: u8) -> u8 {
    byte % 0x7f
}

/// Whether a launch waits for the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It starts when the one before has ended.
    Isolated,
    /// Programmatic dependent launch: it reads its weights while the one before still runs.
    Chained,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::Chained => "chained",
        }
    }
}

/// One way to do a case's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Reads as many bytes as the weights have, and nothing else: the ceiling.
    Read,
    /// Computes.
    Gemv {
        path: Path,
        mode: Mode,
        /// Additional work, in percent of the weights' bytes: for rehearsals, to be noticed.
        slow_percent: u32,
    },
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Take turns over copies of the weights that make up this many bytes together, and more than
    /// caches hold. 0: always the same weights.
    pub(crate) cold_bytes: usize,
}

impl Plan {
    /// Copies of `bytes` of weights, of which caches can hold less than one turn: `cold_copies`.
    /// No more than a graph can be made of.
    pub(crate) fn copies(&self, bytes: usize, cold_copies: usize) -> usize {
        Self::copies_of(self.cold_bytes, bytes, cold_copies)
    }

    /// The same for other bytes to rotate over.
    pub(super) fn copies_of(cold_bytes: usize, bytes: usize, cold_copies: usize) -> usize {
        const MOST: usize = 4096;
        match cold_bytes {
            0 => 1,
            cold => cold.div_ceil(bytes.max(1)).max(cold_copies).min(MOST),
        }
    }
}

/// What one way took.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) work: Work,
    /// How the path cut the problem; empty for the ceiling.
    pub(crate) config: String,
    /// Of one launch, one value a round.
    pub(crate) seconds: Vec<f64>,
}

/// What all ways took.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    /// In the order asked for; without those that chain and cannot.
    pub(crate) series: Vec<Series>,
    pub(crate) rotated_bytes: usize,
    pub(crate) launches: usize,
}

/// Rounds whose times are thrown away.
const WARM_UP: usize = 2;

/// Lets all ways take turns: forwards in one round, backwards in the next, so that a drift meets the
/// first and the last alike. `seconds` measures the way of an index.
pub(super) fn alternate(
    ways: usize,
    rounds: usize,
    mut seconds: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut all = vec![Vec::with_capacity(rounds); ways];
    for round in 0..WARM_UP + rounds {
        for at in 0..ways {
            let way = if round % 2 == 0 { at } else { ways - 1 - at };
            let seconds = seconds(way)?;
            if round >= WARM_UP {
                all[way].push(seconds);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_take_turns_and_a_drift_cancels() {
        let mut order = Vec::new();
        let mut clock = 0.0;
        let all = alternate(2, 4, |way| {
            order.push(way);
            clock += 1.0;
            Ok(clock)
        })
        .unwrap();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(all[0].len(), 4);
        assert_eq!(all[0].iter().sum::<f64>(), all[1].iter().sum::<f64>());
    }

    #[test]
    fn copies_are_cold_and_not_too_many() {
        let plan = |cold_bytes| Plan {
            rounds: 1,
            cold_bytes,
        };
        assert_eq!(plan(0).copies(1 << 20, 200), 1);
        assert_eq!(plan(512 << 20).copies(132 << 20, 2), 4);
        assert_eq!(plan(512 << 20).copies(1 << 20, 1001), 1001);
        assert_eq!(plan(512 << 20).copies(4 << 20, 26), 128);
        assert_eq!(plan(512 << 20).copies(9, 1 << 24), 4096);
    }
}
