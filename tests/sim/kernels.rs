//! One architecture's kernels from one source file, run in the simulator and judged.

use std::fmt::Debug;

use ptx_sim::{Launch, Module, Options, Program, Report, SimError};

use super::executed::Executed;
use super::loaded::Loaded;
use super::ptx;
use super::tiled::launch::Comparison;

/// A cut of a problem in the simulator's memory.
pub(crate) trait Launched {
    /// The problem.
    fn loaded(&self) -> &Loaded<'_>;

    /// How it is cut, for messages.
    fn cut(&self) -> &dyn Debug;

    /// The launches of one call, with their entries.
    fn launches(&self) -> Vec<(Launch, String)>;

    /// The most f32 roundings that a term passes through.
    fn roundings(&self) -> u32;

    /// Runs one launch.
    fn launch(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, SimError> {
        self.loaded().launch(program, launch, options)
    }

    /// The first element that is not what the problem asks for.
    fn difference(&self, comparison: Comparison) -> Option<String> {
        self.loaded().difference(comparison, self.roundings())
    }
}

pub(crate) struct Kernels {
    pub(crate) module: Module,
    pub(crate) executed: Executed,
}

impl Kernels {
    /// Nothing where there is no nvcc.
    pub(crate) fn new(kernel: &str, arch: &str) -> Option<Self> {
        Some(Self {
            module: ptx::compile(kernel, arch)?,
            executed: Executed::default(),
        })
    }

    /// Runs a call, which must give what it should.
    pub(crate) fn run(&mut self, call: &impl Launched, data: Comparison, options: &Options) {
        let context = || {
            let Loaded {
                operands, extras, ..
            } = call.loaded();
            let (activation, shape) = (operands.activation, operands.problem.shape);
            format!(
                "{activation} {shape:?}, {:?}, {extras:?}, {options:?}",
                call.cut()
            )
        };
        for (launch, entry) in call.launches() {
            let (program, counters) = self.executed.kernel(&self.module, &entry);
            let report = call
                .launch(program, &launch, options)
                .unwrap_or_else(|error| panic!("{entry}, {}: {error}", context()));
            counters.merge(&report.coverage.counters);
        }
        if let Some(difference) = call.difference(data) {
            panic!("{}: {difference}", context());
        }
    }
}
