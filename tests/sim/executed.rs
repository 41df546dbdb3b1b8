//! Decoded kernels, and what of them all runs together have executed.

use std::collections::HashMap;

use ptx_sim::coverage::Counters;
use ptx_sim::{Module, Program};

/// The kernels of a module that have run.
#[derive(Default)]
pub(crate) struct Executed(HashMap<String, (Program, Counters)>);

impl Executed {
    /// The kernel `entry`, to be run, and its counters, to be added to.
    pub(crate) fn kernel(&mut self, module: &Module, entry: &str) -> &mut (Program, Counters) {
        self.0.entry(entry.to_string()).or_insert_with(|| {
            let program = Program::new(module, entry).expect(entry);
            (program, Counters::default())
        })
    }

    /// What no run has executed, a line each.
    pub(crate) fn unexecuted(&self) -> String {
        let mut lines = String::new();
        for (entry, (program, counters)) in &self.0 {
            let c = counters.summary(program);
            for (what, sites) in [
                ("never executed", &c.never_executed),
                ("never taken", &c.never_taken),
                ("always taken", &c.always_taken),
            ] {
                for s in sites {
                    lines += &format!("{entry}: {what}: {s}\n");
                }
            }
        }
        lines
    }
}
