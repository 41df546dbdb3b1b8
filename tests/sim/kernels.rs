//! One architecture's kernels from one source file, run in the simulator and judged.

use ptx_sim::{Launch, Module, Options, Program, Report, SimError};

use super::executed::Executed;
use super::ptx;
use super::tiled::launch::Comparison;

/// A problem in the simulator's memory, with a way to launch it.
pub(crate) trait Launched {
    /// The launches of one call, with their entries.
    fn launches(&self) -> Vec<(Launch, String)>;

    /// Runs one launch.
    fn launch(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, SimError>;

    /// The first element that is not what the problem asks for.
    fn difference(&self, comparison: Comparison) -> Option<String>;
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

    /// Runs a call, which must give what it should. `context` says which call.
    pub(crate) fn run(
        &mut self,
        call: &impl Launched,
        data: Comparison,
        options: &Options,
        context: impl Fn() -> String,
    ) {
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
