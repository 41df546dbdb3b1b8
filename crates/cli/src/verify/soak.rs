//! `verify --soak`: what passed is computed again and again for minutes, and must keep its bits.
//!
//! A fault that shows once in a million launches, or when the device is hot, shows here; and a kernel that hangs does
//! so under a watchdog's eyes.

use std::time::{Duration, Instant};

use nvfp4_gemv::Result;
use serde_json::{Value, json};

use super::cases::Variant;
use crate::engine::Ask;

/// A result that passed.
#[derive(Debug)]
pub(super) struct Kept {
    /// The number of the group.
    pub(super) group: usize,
    pub(super) variant: Variant,
    pub(super) ask: Ask,
    /// Its bytes.
    pub(super) y: Vec<u8>,
}

/// Longest time for which one result is computed without a look at it.
const LONGEST: Duration = Duration::from_secs(2);

/// The rounds that should fit, so that cases take turns.
const ROUNDS: u32 = 4;

/// The counts of a soak.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Soak {
    /// Launches, and how often a result was looked at.
    pub(super) launches: usize,
    pub(super) looks: usize,
    /// Rounds over all cases that were completed.
    pub(super) rounds: usize,
    /// The case of each result that was not the first one's to the bit, or why a launch failed.
    pub(super) failures: Vec<String>,
}

/// Computes what was kept by turns until the time is over; everything once at least. `again` computes one of them for
/// a while, and returns the number of launches and the last result. An error ends it: a device that has failed once
/// is of no more use.
pub(super) fn soak(
    kept: &[Kept],
    time: Duration,
    name: impl Fn(&Kept) -> String,
    mut again: impl FnMut(&Kept, Duration) -> Result<(usize, Vec<u8>)>,
) -> Soak {
    let mut soak = Soak::default();
    let turns = u32::try_from(kept.len()).unwrap_or(u32::MAX);
    let turn = LONGEST.min(time / turns.saturating_mul(ROUNDS).max(1));
    let start = Instant::now();
    while !kept.is_empty() && (soak.rounds == 0 || start.elapsed() < time) {
        for case in kept {
            if soak.rounds > 0 && start.elapsed() >= time {
                return soak;
            }
            match again(case, turn) {
                Err(why) => {
                    let launches = soak.launches;
                    let failure = format!("{}, after {launches} launches: {why}", name(case));
                    soak.failures.push(failure);
                    return soak;
                }
                Ok((launches, y)) => {
                    soak.launches += launches;
                    soak.looks += 1;
                    if y != case.y {
                        soak.failures.push(format!(
                            "{}, after {} launches: {} of {} bytes are others than those that passed",
                            name(case),
                            soak.launches,
                            differing(&y, &case.y),
                            case.y.len()
                        ));
                    }
                }
            }
        }
        soak.rounds += 1;
    }
    soak
}

fn differing(a: &[u8], b: &[u8]) -> usize {
    let beside = a.iter().zip(b).filter(|(a, b)| a != b).count();
    beside + a.len().abs_diff(b.len())
}

impl Soak {
    /// Whether something ran, and nothing was wrong.
    pub(super) fn passed(&self) -> bool {
        self.launches > 0 && self.failures.is_empty()
    }

    pub(super) fn text(&self, cases: usize) -> String {
        let mut text = format!(
            "soak: {} launches of {cases} cases in {} rounds, {} results looked at, {} failures\n",
            self.launches,
            self.rounds,
            self.looks,
            self.failures.len()
        );
        for failure in &self.failures {
            text.push_str(&format!("FAILED soak {failure}\n"));
        }
        if self.launches == 0 {
            text.push_str("FAILED soak: nothing passed that could be computed again\n");
        }
        text
    }

    pub(super) fn json(&self, cases: usize, minutes: f64) -> Value {
        json!({
            "minutes": minutes, "cases": cases, "launches": self.launches, "rounds": self.rounds,
            "results": self.looks, "failures": self.failures, "passed": self.passed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv::{Activation, Error, FloatType, ScaleLayout};

    use super::*;

    fn kept(count: usize) -> Vec<Kept> {
        let one = |group| Kept {
            group,
            variant: Variant {
                layout: ScaleLayout::Linear,
                activation: Activation::Nvfp4,
                output: FloatType::F16,
            },
            ask: Ask::ANY,
            y: vec![group as u8; 4],
        };
        (0..count).map(one).collect()
    }

    fn name(case: &Kept) -> String {
        format!("case {}", case.group)
    }

    #[test]
    fn every_case_is_computed_even_without_time() {
        let mut seen = Vec::new();
        let found = soak(&kept(3), Duration::ZERO, name, |case, _| {
            seen.push(case.group);
            Ok((7, case.y.clone()))
        });
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!((found.launches, found.looks, found.rounds), (21, 3, 1));
        assert!(found.passed());
    }

    /// One bit, in one launch of many.
    #[test]
    fn another_bit_is_a_failure_that_names_its_case() {
        let found = soak(&kept(2), Duration::ZERO, name, |case, _| {
            let mut y = case.y.clone();
            y[3] ^= u8::from(case.group == 1);
            Ok((1, y))
        });
        assert!(!found.passed());
        assert_eq!(
            found.failures,
            ["case 1, after 2 launches: 1 of 4 bytes are others than those that passed"]
        );
    }

    #[test]
    fn an_error_ends_it() {
        let mut calls = 0;
        let found = soak(&kept(2), Duration::from_secs(3600), name, |_, _| {
            calls += 1;
            Err(Error::NoKernels)
        });
        assert_eq!((calls, found.failures.len()), (1, 1));
        assert!(!found.passed());
    }

    /// A soak of nothing says nothing about the device.
    #[test]
    fn nothing_to_compute_is_a_failure() {
        let found = soak(&[], Duration::from_secs(3600), name, |_, _| {
            panic!("there is no case")
        });
        assert!(!found.passed());
        assert!(found.text(0).contains("nothing passed"));
    }
}
