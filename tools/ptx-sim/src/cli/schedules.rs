//! The schedules to run.

use std::str::FromStr;

use clap::ValueEnum;
use ptx_sim::{Policy, Timing};

/// One policy, or all.
#[derive(Debug, Clone, Copy)]
pub(super) enum Policies {
    One(Policy),
    /// All of them, from this seed on.
    All(u64),
}

impl FromStr for Policies {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            None if s == "all" => Ok(Self::All(0)),
            Some(("all", seed)) => match seed.parse() {
                Ok(seed) => Ok(Self::All(seed)),
                Err(_) => Err(format!("`{seed}` is not a seed")),
            },
            _ => s
                .parse()
                .map(Self::One)
                .map_err(|e: String| format!("{e}, or all[:SEED]")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Timings {
    /// As soon as they may.
    Eager,
    /// Not before nothing else can run.
    Lazy,
    /// At any time and in any order.
    Random,
    /// Each of these in turn.
    All,
}

/// Every schedule once, seed by seed. Round robin has no seed, so more seeds are no more runs of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedules {
    pub(super) policies: Policies,
    pub(super) timings: Timings,
    pub(super) seeds: u64,
}

impl Schedules {
    fn timings(&self) -> &'static [Timing] {
        match self.timings {
            Timings::Eager => &[Timing::Eager],
            Timings::Lazy => &[Timing::Lazy],
            Timings::Random => &[Timing::Random],
            Timings::All => &[Timing::Eager, Timing::Lazy, Timing::Random],
        }
    }

    fn policies(&self, nth: u64) -> Vec<Policy> {
        let all = match self.policies {
            Policies::One(p) => {
                let first = match p {
                    Policy::Random(s) | Policy::Starve(s) => s,
                    Policy::Fair => 0,
                };
                vec![p.with_seed(first.wrapping_add(nth))]
            }
            Policies::All(first) => {
                let seed = first.wrapping_add(nth);
                vec![Policy::Fair, Policy::Random(seed), Policy::Starve(seed)]
            }
        };
        let again = |p: &Policy| nth > 0 && *p == Policy::Fair;
        all.into_iter().filter(|p| !again(p)).collect()
    }

    fn rounds(&self) -> u64 {
        match self.policies {
            Policies::One(Policy::Fair) => 1,
            _ => self.seeds.max(1),
        }
    }

    pub(super) fn count(&self) -> u64 {
        let later = match self.policies {
            Policies::All(_) => self.policies(1).len() as u64,
            Policies::One(_) => 1,
        };
        let runs = (self.rounds() - 1).saturating_mul(later);
        runs.saturating_add(self.policies(0).len() as u64)
            .saturating_mul(self.timings().len() as u64)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (Policy, Timing)> {
        (0..self.rounds()).flat_map(move |nth| {
            let timings = self.timings();
            self.policies(nth)
                .into_iter()
                .flat_map(move |p| timings.iter().map(move |t| (p, *t)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_robin_is_run_once() {
        let all = Schedules {
            policies: Policies::All(7),
            timings: Timings::All,
            seeds: 3,
        };
        let list: Vec<_> = all.iter().collect();
        assert_eq!(list.len() as u64, all.count());
        assert_eq!(list.len(), 3 * (3 + 2 + 2));
        let mut distinct: Vec<String> = list.iter().map(|(p, t)| format!("{p} {t}")).collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), list.len());
        assert!(list.contains(&(Policy::Starve(9), Timing::Lazy)));
    }

    #[test]
    fn seeds_count_up_from_the_policys() {
        let some = Schedules {
            policies: "random:5".parse().unwrap(),
            timings: Timings::Eager,
            seeds: 2,
        };
        let list: Vec<_> = some.iter().map(|s| s.0).collect();
        assert_eq!(list, [Policy::Random(5), Policy::Random(6)]);
        let fair = Schedules {
            policies: "fair".parse().unwrap(),
            seeds: u64::MAX,
            ..some
        };
        assert_eq!((fair.count(), fair.iter().count()), (1, 1));
        assert!("all:x".parse::<Policies>().is_err() && "any".parse::<Policies>().is_err());
    }
}
