//! Calls that are planned as parts of a chain, and run at the same time as the launches around them.

use std::sync::Arc;

use nvfp4_gemv::kernel::{Config, plan};
use nvfp4_gemv_simulate::ptx::Entry;
use ptx_sim::{Launch, Multiprocessors, Options, SimError};

use super::operands::{Case, Operands};
use super::ptx;
use super::schedules::few;
use super::sim::{Loaded, Simulator, launches};

/// What a kernel waits with for the grid before.
pub(crate) const WAIT: &str = "griddepcontrol.wait;";

/// A launch with its code.
pub(crate) type Ready = (Arc<Entry>, Launch);

/// A call in memory, planned as one of a chain.
#[derive(Clone)]
pub(crate) struct Chained {
    loaded: Loaded,
    pub(crate) planned: Vec<plan::Launch>,
    roundings: u32,
    pub(crate) on: Multiprocessors,
    pub(crate) context: String,
    arch: &'static str,
}

impl Chained {
    pub(crate) fn new(simulator: &Simulator, case: &Case, config: Config) -> Self {
        let mut loaded = Loaded::new(&Arc::new(Operands::new(case)), simulator.arch);
        let plan = loaded.plan(config, &simulator.gpu, true);
        Self {
            loaded,
            planned: plan
                .launches()
                .iter()
                .flat_map(plan::Launch::parts)
                .collect(),
            roundings: config.roundings(&case.shape, case.activation),
            on: Multiprocessors::default(),
            context: format!("{config:?}, {case:?}"),
            arch: simulator.arch,
        }
    }

    pub(crate) fn shared(&self) -> u32 {
        let all = self.planned.iter().map(|launch| launch.dynamic_shared);
        all.max().unwrap_or(0)
    }

    /// The launches, of code that `edit` has changed.
    pub(crate) fn ready(&self, edit: impl Fn(&str) -> String) -> Vec<Ready> {
        let of = |planned: &plan::Launch| {
            let text = edit(&ptx::unit(planned.unit, self.arch));
            let entry = Arc::new(Entry::new(&text, planned.entry));
            let launches = launches(planned).expect("a valid launch").into_iter();
            launches.map(move |launch| (entry.clone(), launch))
        };
        self.planned.iter().flat_map(of).collect()
    }

    /// A kernel of that name and text, in one warp: it takes the addresses of the vectors and of their scales, the former
    /// twice where they have none.
    pub(crate) fn writer(&self, text: &str) -> Ready {
        let of = |name| self.loaded.memory.addresses.get(name);
        let vectors = of("vectors").expect("every call has vectors");
        let scales = of("vector scales").unwrap_or(vectors);
        let launch = Launch::new("writer", [1, 1, 1], [32, 1, 1])
            .bytes(&vectors.to_le_bytes())
            .bytes(&scales.to_le_bytes());
        (Arc::new(Entry::new(text, "writer")), launch)
    }

    /// Runs launches at the same time. The result must be right if they end.
    pub(crate) fn run(&self, all: &[Ready], options: &Options) -> Result<(), SimError> {
        let mut loaded = self.loaded.clone();
        let all: Vec<_> = all.iter().map(|(e, l)| (&e.program, l)).collect();
        loaded.memory.overlapped(&all, options, self.on)?;
        assert_eq!(loaded.difference(self.roundings), None, "{}", self.context);
        Ok(())
    }

    /// It runs to its end, whatever the schedule.
    pub(crate) fn demand_right(&self, all: &[Ready], seed: u64) {
        for options in few(seed) {
            let ran = self.run(all, &options);
            ran.unwrap_or_else(|error| panic!("{error}: {}, {options:?}", self.context));
        }
    }
}
