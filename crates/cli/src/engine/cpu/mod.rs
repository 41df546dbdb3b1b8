//! The CPU as an engine.

mod rounds;

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use nvfp4_gemv::cpu::{Accuracy, Implementation};
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::{Choice, GemvPath, Output, Result, Shape, Target, Vectors, Weights, gemv};

use self::rounds::Pool;
use super::{
    Ask, Budget, Case, Chain, Engine, Mixture, MixtureTimes, Operands, Outcome, Plan, SampleOf,
    Timing, Values, Ways, Work, document,
};
use crate::report::count;

/// The CPU, with the widest instructions it has and rayon's threads.
#[derive(Debug)]
pub(crate) struct Cpu {
    /// Why an automatic choice came here.
    reason: Option<String>,
    /// Made by the first rounds.
    pool: RefCell<Option<Pool>>,
}

impl Cpu {
    pub(crate) fn new(reason: Option<String>) -> Self {
        Self {
            reason,
            pool: RefCell::new(None),
        }
    }
}

/// One GEMV into `y`.
fn compute(
    ask: Ask,
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    y: &mut Values,
) -> Result<Choice> {
    let output = match y {
        Values::F16(y) => Output::of(y),
        Values::Bf16(y) => Output::of(y),
        Values::F32(y) => Output::of(y),
    };
    gemv(shape, weights, vectors, output, &ask.options())
}

impl Engine for Cpu {
    fn device(&self) -> String {
        format!(
            "CPU, {}, {}",
            count(rayon::current_num_threads(), "thread"),
            Implementation::best()
        )
    }

    fn why_not_gpu(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    fn target(&self) -> Target<'_> {
        Target::Host
    }

    fn compute(&self, operands: &Operands<'_>, ask: Ask) -> Result<Outcome> {
        let mut y = Values::poisoned(operands.output, operands.shape.outputs());
        let weights = operands.weights()?;
        let x = operands.x.view();
        let choice = compute(ask, &operands.shape, &weights, &x, &mut y)?;
        Ok(Outcome {
            y,
            path: choice.path,
            kernel: None,
            reason: match &self.reason {
                Some(reason) => reason.clone(),
                None => choice.reason.to_string(),
            },
            roundings: match ask.is_batch_invariant {
                false => Implementation::best().roundings(&operands.shape, x.activation()),
                true => Implementation::best().roundings_batch_invariant(
                    &operands.shape,
                    x.activation(),
                    Accuracy::Exact,
                ),
            },
        })
    }

    fn repeat(
        &self,
        operands: &Operands<'_>,
        ask: Ask,
        budget: Budget,
    ) -> Result<(Timing, Values)> {
        let shape = &operands.shape;
        let x = operands.x.view();
        let weights = operands.weights()?;
        let mut y = Values::poisoned(operands.output, shape.outputs());
        // Warms up: pages, threads, clocks.
        compute(ask, shape, &weights, &x, &mut y)?;
        let start = Instant::now();
        let mut seconds = Vec::new();
        while seconds.len() < budget.runs.max(1) || start.elapsed() < budget.time {
            let before = Instant::now();
            compute(ask, shape, &weights, &x, &mut y)?;
            seconds.push(before.elapsed().as_secs_f64());
            black_box(&y);
        }
        Ok((Timing::of(seconds, SampleOf::Call), y))
    }

    fn with_ways(
        &self,
        case: &Case,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let bytes = case.shape.weight_bytes();
        let copies = |cold| Plan::copies(cold, bytes, 1);
        self.prepare(&Chain::of(case), &copies, works, plan, drive)
    }

    fn with_chain(
        &self,
        chain: &Chain,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let layers = |cold| chain.layers(cold);
        self.prepare(chain, &layers, works, plan, drive)
    }

    fn mixture(&self, _: &Mixture, _: &Plan) -> anyhow::Result<MixtureTimes> {
        anyhow::bail!("mixtures of experts are measured on a GPU, and there is none")
    }

    fn cublas(&self) -> Result<String, String> {
        Err("it needs a GPU".into())
    }

    fn energy_notes(&self) -> Vec<String> {
        vec!["no watts, clock and energy: they are only read of a GPU".into()]
    }

    fn reads(&self) -> Vec<Option<ReadConfig>> {
        vec![None]
    }

    fn describe(&self) -> document::Device {
        document::Device {
            kind: "cpu".into(),
            name: cpu_name(),
            threads: Some(rayon::current_num_threads()),
            ..document::Device::default()
        }
    }

    fn paths(&self) -> &'static [GemvPath] {
        &[GemvPath::Cpu]
    }
}

/// The processor's product name, or its architecture.
fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.into())
}
