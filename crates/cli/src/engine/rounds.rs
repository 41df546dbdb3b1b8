//! Rounds, in which several ways to do the same work take turns: any other change on the machine meets all ways alike.

use std::time::Duration;

use anyhow::Context;
use half::{bf16, f16};
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::{
    Activation, FloatType, GlobalScale, Kernel, Operands, Result, ScaleLayout, Shape,
};
use nvfp4_gemv_documents::alternate::{WARM_UP, alternate};
use nvfp4_gemv_documents::document::{Sustained, Turn};

use super::{Ask, Engine, InputScale, Inputs, memory};

/// A problem whose speed matters and whose numbers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) activation: Activation,
    /// Layout of all block scales.
    pub(crate) layout: ScaleLayout,
    pub(crate) output: FloatType,
    /// Whether batches select their matrix, by what ids.
    pub(crate) select: Option<Ids>,
}

/// Ids of matrices, in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ids {
    /// There before the launch before: a chained launch reads its weights while that still runs
    Early,
    /// Written by the launch before: a chained launch waits for it first
    Late,
}

impl Ids {
    pub(crate) const ALL: [Self; 2] = [Self::Early, Self::Late];

    /// The name in documents.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Early => "early",
            Self::Late => "late",
        }
    }
}

impl Case {
    /// The operands for a question to the dispatch. Engines give as much workspace as kernels ask for.
    pub(crate) fn dispatch(&self) -> Operands {
        Operands {
            select: self.select.is_some(),
            matrices: self.select.map_or(0, |_| self.shape.l()),
            distinct: self.select.is_some(),
            ..Operands::new(self.activation, self.layout).with_workspace(u64::MAX)
        }
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

/// One way to do a case's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Reads as many bytes as the weights have, and nothing else, with this kernel of a GPU or as the CPU does: the
    /// fastest of them is the ceiling.
    Read(Option<ReadConfig>),
    /// Computes.
    Gemv {
        ask: Ask,
        /// Additional work, in percent of the weights' bytes: for rehearsals, to be noticed.
        slow_percent: u32,
    },
    /// Lets cuBLAS compute, from f16 weights of the same shape and f16 vectors.
    Cublas,
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
    /// Copies of `bytes` of weights that rotate over `cold_bytes`, of which caches can hold less than one turn:
    /// `cold_copies`. No more than a graph can be made of.
    pub(super) fn copies(cold_bytes: usize, bytes: usize, cold_copies: usize) -> usize {
        const MOST: usize = 4096;
        match cold_bytes {
            0 => 1,
            cold => cold.div_ceil(bytes.max(1)).max(cold_copies).min(MOST),
        }
    }
}

/// One of the ways that take turns.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) work: Work,
    /// The GPU's kernel.
    pub(crate) kernel: Option<Kernel>,
    /// The kernel's config; empty where there is none.
    pub(crate) config: String,
    pub(crate) extent: Extent,
}

/// The size of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes of the weights that one launch reads.
    pub(crate) bytes: usize,
    /// The bytes of weights that the launches rotate over.
    pub(crate) rotated_bytes: usize,
    /// Launches that make one turn. For a [`Chain`](super::Chain): decoder layers.
    pub(crate) launches: usize,
}

/// The ways that take turns.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    /// The ways in the order asked for, without chained ones where the device cannot chain.
    pub(crate) ways: Vec<Way>,
    /// The extent of all ways that read the case's own weights.
    pub(crate) extent: Extent,
}

/// A case whose operands are in memory and whose ways are ready to run.
pub(crate) trait Ways {
    /// The ways that are ready to run.
    fn ready(&self) -> &Ready;

    fn ways(&self) -> &[Way] {
        &self.ready().ways
    }

    fn rotated_bytes(&self) -> usize {
        self.ready().extent.rotated_bytes
    }

    fn launches(&self) -> usize {
        self.ready().extent.launches
    }

    /// Measures one way cold: after a pause, and again after a longer one where the device's power
    /// limit had lowered its clock.
    fn turn(&mut self, way: usize) -> Result<Turn>;

    /// Repeats one way for so long, and measures the last half of it.
    fn sustain(&mut self, way: usize, time: Duration) -> Result<Sustained>;
}

/// The times of all ways.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    pub(crate) ways: Vec<Way>,
    /// For each way its turns, one a round.
    pub(crate) turns: Vec<Vec<Turn>>,
    pub(crate) launches: usize,
    pub(crate) rotated_bytes: usize,
}

impl Rounds {
    /// Each way and its seconds a launch, one value a round.
    pub(crate) fn series(&self) -> Vec<(&Way, Vec<f64>)> {
        let all = self.ways.iter().zip(&self.turns);
        all.map(|(way, turns)| {
            let seconds = turns.iter().map(|turn| turn.us * 1e-6);
            (way, seconds.collect())
        })
        .collect()
    }
}

/// Lets `works` take turns for the plan's rounds.
pub(crate) fn rounds(
    engine: &dyn Engine,
    case: &Case,
    works: &[Work],
    plan: &Plan,
) -> anyhow::Result<Rounds> {
    let mut all = None;
    engine.with_ways(case, works, plan, &mut |ways| {
        let turns = alternate(ways.ways().len(), WARM_UP, plan.rounds, |way| {
            ways.turn(way)
        })?;
        all = Some(Rounds {
            ways: ways.ways().to_vec(),
            turns,
            launches: ways.launches(),
            rotated_bytes: ways.rotated_bytes(),
        });
        Ok(())
    })?;
    all.context("the engine did not let the ways take turns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_cold_and_not_too_many() {
        assert_eq!(Plan::copies(0, 1 << 20, 200), 1);
        assert_eq!(Plan::copies(512 << 20, 132 << 20, 2), 4);
        assert_eq!(Plan::copies(512 << 20, 1 << 20, 1001), 1001);
        assert_eq!(Plan::copies(512 << 20, 4 << 20, 26), 128);
        assert_eq!(Plan::copies(512 << 20, 9, 1 << 24), 4096);
    }
}
