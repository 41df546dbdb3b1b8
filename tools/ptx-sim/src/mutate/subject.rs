//! A kernel with launches, for tests that demand a perfect score.

use std::collections::BTreeSet;
use std::fmt;

use super::host::host_mutants;
use super::known::Known;
use super::mutant::{Kernel, Mutant};
use super::run::{Check, Finding, Outcome, Trial, TrialError, fates, pass};
use crate::sched::{Policy, Timing};
use crate::sim::{Launch, Options};

/// Rounds of time limits that mutants may run into: few, because many wait for ever.
const TIMEOUTS: u32 = 50;

/// A kernel with everything that its faults are put through.
pub struct Subject {
    /// Name of the kernel, as in the list of known survivors.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Launch that faults of the host are made of; `None` for none.
    pub host: Option<Launch>,
    /// Launches that check their results, by name.
    pub launches: Vec<(String, Box<Check<'static>>)>,
    /// Policies and timings, those that notice most first. [`super::schedules`] has some.
    pub schedules: Vec<(Policy, Timing)>,
    /// Selects the mutants that are run.
    pub pick: Box<dyn Fn(&Mutant) -> bool + Sync>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} launches", self.name, self.launches.len())
    }
}

impl Subject {
    /// Runs the mutants. Mutants in the list should survive, and survivors cost most: they go through
    /// `listed_schedules` of the schedules only.
    pub fn run(
        &self,
        known: &Known,
        listed_schedules: usize,
        threads: usize,
    ) -> Result<Vec<Finding>, TrialError> {
        let mut mutants = self.mutants();
        mutants.retain(|mutant| (self.pick)(mutant));
        let mut trials = Vec::new();
        for (policy, timing) in &self.schedules {
            for (name, check) in &self.launches {
                trials.push(Trial {
                    name: name.clone(),
                    options: Options {
                        policy: *policy,
                        timing: *timing,
                        timeouts: TIMEOUTS,
                        ..Options::default()
                    },
                    check,
                });
            }
        }
        let (listed, others): (Vec<_>, Vec<_>) = mutants
            .into_iter()
            .partition(|m| known.of(&self.name, m).next().is_some());
        let mut trials = pass(&self.kernel, &trials)?;
        // Most faults show in every launch, and then the cheapest of a schedule is enough.
        for of_schedule in trials.chunks_mut(self.launches.len().max(1)) {
            of_schedule.sort_by_key(|t| t.cost);
        }
        let some = listed_schedules.saturating_mul(self.launches.len());
        let some = &trials[..some.min(trials.len())];
        let mut out = fates(&self.kernel, others, &trials, threads, &|_, _| {});
        out.extend(fates(&self.kernel, listed, some, threads, &|_, _| {}));
        Ok(out)
    }

    /// All faults, picked or not.
    pub fn mutants(&self) -> Vec<Mutant> {
        let mut mutants = self.kernel.mutants();
        mutants.extend(self.host.iter().flat_map(host_mutants));
        mutants
    }

    /// Findings that differ from the list: survivors without an argument, entries that are caught or that match none of
    /// the kernel's faults, and panics.
    pub fn disagreements(&self, findings: &[Finding], known: &Known) -> Vec<String> {
        let mut out = Vec::new();
        for f in findings {
            let entries: Vec<usize> = known.of(&self.name, &f.mutant).collect();
            let id = format!("{}: {} (line {})", self.name, f.mutant.id(), f.mutant.line);
            match &f.outcome {
                Outcome::Unreached => {}
                Outcome::Panicked(m) => out.push(format!("panics the simulator: {id}: {m}")),
                Outcome::Survived if entries.is_empty() => out.push(format!("survives: {id}")),
                Outcome::Survived => {}
                Outcome::Caught { message, .. } => {
                    for n in entries.into_iter().filter(|n| !known.entries[*n].compiled) {
                        let line = known.entries[n].line;
                        let why = message.lines().next().unwrap_or_default();
                        out.push(format!("caught, but listed in line {line}: {id}: {why}"));
                    }
                }
            }
        }
        let all = self.mutants();
        let matched: BTreeSet<usize> = all.iter().flat_map(|m| known.of(&self.name, m)).collect();
        for (n, e) in known.entries.iter().enumerate() {
            if e.kernel == self.name && !matched.contains(&n) {
                out.push(format!(
                    "line {}: there is no mutant `{}`",
                    e.line, e.pattern
                ));
            }
        }
        out
    }
}
