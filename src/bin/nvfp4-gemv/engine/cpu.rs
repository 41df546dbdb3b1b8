//! The CPU as an engine.

use std::hint::black_box;
use std::time::Instant;

use nvfp4_gemv::cpu::{Implementation, streaming_read_bandwidth};
use nvfp4_gemv::{Output, Path, Result, Shape, Target, Vectors, Weights, gemv_on_path};

use super::{Budget, Engine, Operands, Outcome, Timing, Values, forced_reason};

/// The CPU, with the widest instructions it has and rayon's threads.
#[derive(Debug)]
pub(crate) struct Cpu {
    /// Why an automatic choice came here.
    reason: Option<String>,
}

impl Cpu {
    pub(crate) fn new(reason: Option<String>) -> Self {
        Self { reason }
    }
}

/// One GEMV into `y`.
fn compute(
    forced: Option<Path>,
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    y: &mut Values,
) -> Result<()> {
    let output = match y {
        Values::F16(y) => Output::f16(y),
        Values::Bf16(y) => Output::bf16(y),
        Values::F32(y) => Output::f32(y),
    };
    gemv_on_path(forced, shape, weights, vectors, output).map(drop)
}

impl Engine for Cpu {
    fn device(&self) -> String {
        format!(
            "CPU, {} threads, {}",
            rayon::current_num_threads(),
            Implementation::best()
        )
    }

    fn target(&self) -> Target {
        Target::Host
    }

    fn compute(&self, operands: &Operands<'_>, forced: Option<Path>) -> Result<Outcome> {
        let mut y = Values::poisoned(operands.output, operands.shape.outputs());
        let weights = operands.weights()?;
        let x = operands.x.view();
        compute(forced, &operands.shape, &weights, &x, &mut y)?;
        Ok(Outcome {
            y,
            path: Path::Cpu,
            reason: self.reason.clone().unwrap_or_else(forced_reason),
            roundings: Implementation::best().roundings(&operands.shape, x.activation()),
        })
    }

    fn time(
        &self,
        operands: &Operands<'_>,
        forced: Option<Path>,
        budget: Budget,
    ) -> Result<Timing> {
        let shape = &operands.shape;
        let x = operands.x.view();
        let copies = budget
            .cold_bytes
            .div_ceil(shape.weight_bytes().max(1))
            .max(1);
        let copies: Vec<Operands<'_>> = vec![operands.clone().into_copy(); copies];
        let weights: Vec<Weights<'_>> = copies
            .iter()
            .map(Operands::weights)
            .collect::<Result<_>>()?;
        let mut y = Values::poisoned(operands.output, shape.outputs());
        // One round over all copies warms up: pages, threads, clocks.
        for weights in &weights {
            compute(forced, shape, weights, &x, &mut y)?;
        }
        let start = Instant::now();
        let mut seconds = Vec::new();
        while seconds.len() < budget.runs.max(1) || start.elapsed() < budget.time {
            let weights = &weights[seconds.len() % weights.len()];
            let before = Instant::now();
            compute(forced, shape, weights, &x, &mut y)?;
            seconds.push(before.elapsed().as_secs_f64());
            black_box(&y);
        }
        Ok(Timing::of(seconds, shape.weight_bytes() * weights.len()))
    }

    fn read_ceiling(&self, _bytes: usize, rotated: usize) -> Result<f64> {
        Ok(streaming_read_bandwidth(
            rotated,
            rayon::current_num_threads(),
        ))
    }

    fn paths(&self) -> &'static [Path] {
        &[Path::Cpu]
    }
}

impl Operands<'_> {
    /// The same, with weights of its own, so that a clone is a copy in memory.
    fn into_copy(self) -> Self {
        Self {
            codes: self.codes.into_owned().into(),
            scales: self.scales.into_owned().into(),
            ..self
        }
    }
}
