//! Adds findings up.

use std::collections::BTreeMap;
use std::fmt;

use super::kind::Kind;
use super::known::Known;
use super::run::{Finding, Noticed, Outcome};
use crate::demangle::demangled;

/// Outcomes of the mutants of a kernel.
#[derive(Debug, Clone, Default)]
pub struct Score {
    /// The kernel.
    pub kernel: String,
    /// Mutants whose instruction some trial executes.
    pub mutants: usize,
    /// Mutants caught, by the check that noticed them.
    pub caught: BTreeMap<Noticed, usize>,
    /// Survivors that a list explains.
    pub equivalent: usize,
    /// Survivors that a list calls holes of the simulator.
    pub holes: usize,
    /// Other survivors.
    pub survived: usize,
    /// Mutants that make the simulator panic.
    pub panicked: usize,
    /// Mutants of instructions that no trial executes.
    pub unreached: usize,
    /// For each kind: mutants, caught, survivors explained, other survivors.
    pub kinds: BTreeMap<Kind, [usize; 4]>,
}

impl Score {
    /// Counts findings; survivors are looked up in the list.
    pub fn new(kernel: &str, findings: &[Finding], known: &Known) -> Self {
        let mut s = Self {
            kernel: kernel.into(),
            ..Self::default()
        };
        for f in findings {
            if f.outcome == Outcome::Unreached {
                s.unreached += 1;
                continue;
            }
            s.mutants += 1;
            let k = s.kinds.entry(f.mutant.kind).or_default();
            k[0] += 1;
            match &f.outcome {
                Outcome::Caught { by, .. } => {
                    *s.caught.entry(*by).or_default() += 1;
                    k[1] += 1;
                }
                Outcome::Panicked(_) => s.panicked += 1,
                _ => match known.of(kernel, &f.mutant).next() {
                    Some(n) if known.entries[n].hole => {
                        s.holes += 1;
                        k[2] += 1;
                    }
                    Some(_) => {
                        s.equivalent += 1;
                        k[2] += 1;
                    }
                    None => {
                        s.survived += 1;
                        k[3] += 1;
                    }
                },
            }
        }
        s
    }

    /// Mutants that something noticed.
    pub fn total_caught(&self) -> usize {
        self.caught.values().sum()
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.caught.iter().map(|(by, n)| format!("{n} {by}"));
        let by: Vec<String> = by.collect();
        write!(
            f,
            "{}: {} mutants, {} caught ({})",
            demangled(&self.kernel),
            self.mutants,
            self.total_caught(),
            by.join(", ")
        )?;
        for (n, what) in [
            (self.equivalent, "equivalent"),
            (self.holes, "holes"),
            (self.survived, "survived"),
            (self.panicked, "panicked"),
            (self.unreached, "not reached"),
        ] {
            if n > 0 {
                write!(f, ", {n} {what}")?;
            }
        }
        Ok(())
    }
}
