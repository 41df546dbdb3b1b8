//! Runs mutants until a trial notices them.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::mutant::{Kernel, Mutant, Planted};
use crate::error::SimError;
use crate::report::{Report, ViolationKind};
use crate::sched::{Policy, Timing};
use crate::sim::Options;

/// A run that ended by itself.
#[derive(Debug)]
pub struct Ran {
    /// The simulator's report.
    pub report: Report,
    /// Fault of the result, if there is any.
    pub wrong: Option<String>,
}

/// Launches a kernel and looks at its results.
pub type Check<'a> = dyn Fn(&Planted, &Options) -> Result<Ran, SimError> + Send + Sync + 'a;

/// One run that mutants are put through.
pub struct Trial<'a> {
    /// Name of the trial, for reports.
    pub name: String,
    /// Options of the run.
    pub options: Options,
    /// The launch, and the check of its results.
    pub check: &'a Check<'a>,
}

impl fmt::Debug for Trial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Trial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (policy, timing) = (self.options.policy, self.options.timing);
        write!(f, "{} {policy} {timing}", self.name)
    }
}

named! {
    /// The check that noticed a fault, in the order of reports.
    Noticed {
        /// Nothing ordered two accesses.
        Hazard "hazard",
        /// The results differ.
        WrongResult "wrong bits",
        /// Nothing could run any more.
        Deadlock "deadlock",
        /// A read of bytes that nothing wrote.
        Uninitialised "uninitialised",
        /// An access out of bounds, misaligned, or to read-only memory.
        Address "address",
        /// Any other rule of the ISA.
        Rule "rule",
        /// The kernel no longer decodes, the launch is refused, or something unmodelled is reached.
        Refused "refused",
        /// The mutant went on for much longer than the sound kernel.
        Budget "too long",
    }
}

impl Noticed {
    fn of(e: &SimError) -> Self {
        use ViolationKind as V;
        match e {
            SimError::Violation(v) => match v.kind {
                V::Hazard | V::BarrierInit => Noticed::Hazard,
                V::Uninitialised => Noticed::Uninitialised,
                V::OutOfBounds | V::Misaligned | V::ReadOnly => Noticed::Address,
                V::Synchronisation | V::Trap | V::Assertion | V::Other => Noticed::Rule,
            },
            SimError::Deadlock(_) => Noticed::Deadlock,
            SimError::Budget { .. } => Noticed::Budget,
            _ => Noticed::Refused,
        }
    }
}

/// Outcome of a mutant.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A trial noticed it.
    Caught {
        /// The check that noticed the fault.
        by: Noticed,
        /// The number of the trial; 0 if it did not come to one.
        trial: usize,
        /// The message.
        message: String,
    },
    /// All trials ended with the right results.
    Survived,
    /// No trial of the sound kernel executes the instruction.
    Unreached,
    /// The simulator itself failed, which is a fault of it.
    Panicked(String),
}

/// A mutant and how it fared.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The mutant.
    pub mutant: Mutant,
    /// Outcome of the mutant.
    pub outcome: Outcome,
}

/// Why the trials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The sound kernel does not pass.
    #[error("{trial}: the kernel fails without a planted fault: {error}")]
    Fails {
        /// The trial.
        trial: String,
        /// Why.
        error: SimError,
    },
    /// The sound kernel is wrong.
    #[error("{trial}: the kernel is wrong without a planted fault: {what}")]
    Wrong {
        /// The trial.
        trial: String,
        /// Description of the fault.
        what: String,
    },
}

/// Policies and timings that differ most first, then more seeds of the random ones.
pub fn schedules(seeds: u64) -> Vec<(Policy, Timing)> {
    use Policy::{Fair, Random, Starve};
    let mut out = vec![
        (Fair, Timing::Eager),
        (Starve(0), Timing::Lazy),
        (Random(1), Timing::Random),
        (Fair, Timing::Lazy),
        (Starve(1), Timing::Eager),
    ];
    for s in 2..2 + seeds {
        out.extend([
            (Random(s), Timing::Eager),
            (Starve(s), Timing::Random),
            (Random(s), Timing::Lazy),
        ]);
    }
    out
}

/// A trial that the sound kernel passes.
pub(super) struct Passed<'t, 'a> {
    trial: &'t Trial<'a>,
    /// Instructions that the sound kernel needs.
    pub(super) cost: u64,
    /// The lines of the kernel that it executes.
    lines: BTreeSet<u32>,
}

impl Passed<'_, '_> {
    /// Much more instructions than any schedule adds.
    fn budget(&self) -> u64 {
        self.cost.saturating_mul(3) + 100_000
    }
}

/// Puts the sound kernel through trials.
pub(super) fn pass<'t, 'a>(
    kernel: &Kernel,
    trials: &'t [Trial<'a>],
) -> Result<Vec<Passed<'t, 'a>>, TrialError> {
    let fails = |t: &Trial<'_>, error| TrialError::Fails {
        trial: t.to_string(),
        error,
    };
    let mut all = Vec::new();
    for trial in trials {
        let planted = kernel.sound().map_err(|e| fails(trial, e))?;
        let ran = (trial.check)(&planted, &trial.options).map_err(|e| fails(trial, e))?;
        if let Some(what) = ran.wrong {
            return Err(TrialError::Wrong {
                trial: trial.to_string(),
                what,
            });
        }
        let executed = &ran.report.coverage.counters.executed;
        let lines = planted.program().code.iter().zip(executed);
        all.push(Passed {
            trial,
            cost: ran.report.thread_instructions,
            lines: lines
                .filter(|(_, n)| **n > 0)
                .map(|(i, _)| i.line)
                .collect(),
        });
    }
    Ok(all)
}

/// Puts every mutant through the trials, in their order, up to the one that notices it.
pub fn campaign(
    kernel: &Kernel,
    mutants: Vec<Mutant>,
    trials: &[Trial<'_>],
    threads: usize,
    progress: &(dyn Fn(usize, &Finding) + Sync),
) -> Result<Vec<Finding>, TrialError> {
    let trials = pass(kernel, trials)?;
    Ok(fates(kernel, mutants, &trials, threads, progress))
}

/// Runs mutants through trials that the sound kernel passes.
pub(super) fn fates(
    kernel: &Kernel,
    mutants: Vec<Mutant>,
    trials: &[Passed<'_, '_>],
    threads: usize,
    progress: &(dyn Fn(usize, &Finding) + Sync),
) -> Vec<Finding> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(mutants.len()));
    std::thread::scope(|s| {
        // One that has nothing to do is not started.
        for _ in 0..threads.min(mutants.len()).max(1) {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(mutant) = mutants.get(n) else { break };
                    let finding = Finding {
                        mutant: mutant.clone(),
                        outcome: fate(kernel, mutant, trials),
                    };
                    progress(n, &finding);
                    if let Ok(mut d) = done.lock() {
                        d.push((n, finding));
                    }
                }
            });
        }
    });
    let mut all = done.into_inner().unwrap_or_else(|e| e.into_inner());
    all.sort_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, f)| f).collect()
}

fn fate(kernel: &Kernel, m: &Mutant, trials: &[Passed<'_, '_>]) -> Outcome {
    if m.line > 0 && !trials.iter().any(|t| t.lines.contains(&m.line)) {
        return Outcome::Unreached;
    }
    let caught = |trial, e: &SimError| Outcome::Caught {
        by: Noticed::of(e),
        trial,
        message: e.to_string(),
    };
    let planted = match kernel.plant(m) {
        Ok(p) => p,
        Err(e) => return caught(0, &e),
    };
    for (n, t) in trials.iter().enumerate() {
        let options = Options {
            budget: t.budget(),
            ..t.trial.options.clone()
        };
        match catch_unwind(AssertUnwindSafe(|| (t.trial.check)(&planted, &options))) {
            Ok(Ok(Ran { wrong: None, .. })) => {}
            Ok(Ok(Ran {
                wrong: Some(message),
                ..
            })) => {
                return Outcome::Caught {
                    by: Noticed::WrongResult,
                    trial: n,
                    message,
                };
            }
            Ok(Err(e)) => return caught(n, &e),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or(panic.downcast_ref::<&str>().copied());
                return Outcome::Panicked(text.unwrap_or("?").to_string());
            }
        }
    }
    Outcome::Survived
}
