//! Tonight against the baseline, path by path and problem by problem.
//!
//! What is compared is the time as a multiple of the ceiling's of the same round: what slows both down
//! cancels. A path got slower where all of this holds:
//! - the ratio of the medians exceeds the threshold: the least effect that matters, or four standard
//!   deviations of what the start of a machine changes, if that is more;
//! - the bootstrap's 99% interval of that ratio lies above 1;
//! - a second run, of another process, says the same (`confirmed_by`).
//!
//! False alarms: of 500 comparisons without any change, the interval alone would flag two or three a night,
//! since it knows the noise of rounds and not that of starts. Four standard deviations of starts are
//! exceeded by chance in one of 30 000 comparisons, so in one of 60 nights or fewer; and noise of rounds that
//! passes must happen to the same path on the same problem twice in a row. So intervals need no correction
//! for their number, which would cost the sight of small regressions.

use std::collections::BTreeSet;
use std::f64::consts::FRAC_PI_2;

use anyhow::{Result, bail};

use super::baseline::{Baseline, Shares, shares_of};
use crate::bench::document::Document;
use crate::bench::statistics::{Interval, bootstrap, median, resampled_median};

/// What counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The least part by which a time must grow.
    pub(super) threshold: f64,
}

/// How sure an interval is.
const LEVEL: f64 = 0.99;
const RESAMPLES: usize = 1000;
/// Standard deviations between sessions that are no news.
const DEVIATIONS: f64 = 4.0;
/// The standard deviation between sessions, as a part, where the baseline has one session only and cannot
/// say it.
const ASSUMED_SPREAD: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Slower,
    /// Slower in the first run and not in the second.
    Unconfirmed,
    Faster,
    Same,
}

/// One path on one problem.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) change: Change,
    /// Time now / time before, both as multiples of their ceilings.
    pub(super) ratio: f64,
    /// Only where the ratio is beyond the threshold.
    pub(super) interval: Option<Interval>,
    /// As a part, 0.03 say.
    pub(super) threshold: f64,
    /// Medians of the shares of the ceiling.
    pub(super) before: f64,
    pub(super) now: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) entries: Vec<Entry>,
    /// In the baseline's newest session, and not measured now.
    pub(super) missing: Vec<String>,
    /// Measured now, and in no session.
    pub(super) new: Vec<String>,
    pub(super) sessions: usize,
    /// The standard deviation between sessions that is typical, as a part.
    pub(super) spread: f64,
}

impl Comparison {
    pub(super) fn new(baseline: &Baseline, document: &Document, rules: Rules) -> Result<Self> {
        baseline.check(document)?;
        let now = shares_of(document);
        let sessions: Vec<&Shares> = baseline.sessions.iter().map(|s| &s.shares).collect();
        let typical = typical_spread(&sessions);
        let mut entries = Vec::new();
        let mut new = Vec::new();
        for (key, now) in &now {
            let before: Vec<&[f64]> = sessions
                .iter()
                .filter_map(|shares| Some(&shares.get(key)?[..]))
                .collect();
            match &before[..] {
                [] => new.push(key.clone()),
                before => entries.push(Entry::new(key, before, now, typical, rules)),
            }
        }
        if entries.is_empty() {
            bail!("nothing that was measured is in the baseline");
        }
        // Of another suite, something is always missing.
        let newest = sessions.last().filter(|_| baseline.suite == document.suite);
        let missing = newest.into_iter().flat_map(|shares| shares.keys());
        let missing = missing.filter(|key| !now.contains_key(*key)).cloned();
        Ok(Self {
            missing: missing.collect(),
            entries,
            new,
            sessions: sessions.len(),
            spread: typical,
        })
    }

    pub(super) fn regressions(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|entry| entry.change == Change::Slower)
    }

    /// Keeps only the regressions that a second run has too.
    pub(super) fn confirmed_by(mut self, second: &Self) -> Self {
        let confirmed: BTreeSet<&str> = second.regressions().map(|entry| &*entry.key).collect();
        for entry in &mut self.entries {
            if entry.change == Change::Slower && !confirmed.contains(&*entry.key) {
                entry.change = Change::Unconfirmed;
            }
        }
        self
    }

    pub(super) fn passed(&self) -> bool {
        self.regressions().next().is_none() && self.missing.is_empty()
    }
}

impl Entry {
    fn new(key: &str, sessions: &[&[f64]], now: &[f64], typical: f64, rules: Rules) -> Self {
        let medians: Vec<f64> = sessions.iter().map(|shares| median(shares)).collect();
        let (before, share) = (median(&medians), median(now));
        // Shares fall as times grow.
        let ratio = before / share;
        // Three sessions hardly know the spread of one path; the others know more. Unless it stands out.
        let own = match medians.len() {
            3.. => spread(&medians).filter(|own| *own > 2.0 * typical),
            _ => None,
        };
        let between = own.unwrap_or(typical);
        // Of tonight's start, and of the median of the sessions': pi / 2 times the mean's variance.
        let between = between * (1.0 + FRAC_PI_2 / medians.len() as f64).sqrt();
        let threshold = rules.threshold.max(DEVIATIONS * between);
        let beyond = ratio > 1.0 + threshold || ratio < 1.0 / (1.0 + threshold);
        let interval = beyond.then(|| {
            bootstrap(LEVEL, RESAMPLES, |rng| {
                // Which sessions the baseline has is chance as well.
                let medians: Vec<f64> = sessions
                    .iter()
                    .filter_map(|_| Some(resampled_median(rng.choice(sessions)?, rng)))
                    .collect();
                median(&medians) / resampled_median(now, rng)
            })
        });
        let change = match interval {
            Some(interval) if interval.low > 1.0 => Change::Slower,
            Some(interval) if interval.high < 1.0 => Change::Faster,
            _ => Change::Same,
        };
        Self {
            key: key.to_owned(),
            change,
            ratio,
            interval,
            threshold,
            before,
            now: share,
        }
    }
}

/// What the start of a machine changes: the standard deviation of a path's medians between sessions, as a
/// part of their mean. The middle one of all paths and problems: an unsteady one must not hide the others.
fn typical_spread(sessions: &[&Shares]) -> f64 {
    let keys = sessions.last().into_iter().flat_map(|newest| newest.keys());
    let spreads = keys.filter_map(|key| {
        let shares = sessions.iter().filter_map(|shares| shares.get(key));
        spread(&shares.map(|shares| median(shares)).collect::<Vec<_>>())
    });
    let spreads: Vec<f64> = spreads.collect();
    match &spreads[..] {
        [] => ASSUMED_SPREAD,
        spreads => median(spreads),
    }
}

/// The relative standard deviation, corrected so that half of all estimates are above the truth: those of
/// few values tend to be too small (Wilson and Hilferty). Nothing of one value.
fn spread(values: &[f64]) -> Option<f64> {
    let degrees = values.len().checked_sub(1).filter(|degrees| *degrees > 0)? as f64;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values
        .iter()
        .map(|value| (value / mean - 1.0).powi(2))
        .sum();
    let correction = (1.0 - 2.0 / (9.0 * degrees)).powi(3);
    Some((squares / degrees / correction).sqrt())
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::bench::testing::{case, document, measured};

    const RULES: Rules = Rules { threshold: 0.03 };

    /// A run of 40 problems on a machine whose start changed each path by about `start` and each
    /// round by about `noise`, both as parts; and everything by `slower`.
    fn run(seed: u64, start: f64, noise: f64, slower: impl Fn(usize) -> f64) -> Document {
        let mut rng = Rng::with_seed(seed);
        // About normal, with a standard deviation of 1.
        let mut normal = move || (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        let mut run = document();
        run.cases = (0..40)
            .map(|i| {
                let mut path = measured("cuda-core", "isolated", 12.0, true);
                let us = 12.0 * (1.0 + start * normal()) * slower(i);
                let mut case = case(1, "nvfp4", vec![]);
                case.m = 128 * (i + 1);
                case.ceiling.samples_us = vec![10.0; 21];
                path.samples_us = (0..21).map(|_| us * (1.0 + noise * normal())).collect();
                case.paths.push(path);
                case
            })
            .collect();
        run
    }

    fn baseline(sessions: u64, start: f64, noise: f64) -> Baseline {
        let mut baseline = Baseline::new(&document());
        for seed in 0..sessions {
            baseline.add(&run(seed, start, noise, |_| 1.0)).unwrap();
        }
        baseline
    }

    fn compare(baseline: &Baseline, run: &Document) -> Comparison {
        Comparison::new(baseline, run, RULES).unwrap()
    }

    #[test]
    fn a_slower_path_is_caught_and_only_that() {
        let baseline = baseline(3, 0.005, 0.01);
        let tonight = run(10, 0.005, 0.01, |i| if i == 7 { 1.1 } else { 1.0 });
        let comparison = compare(&baseline, &tonight);
        let [slower] = &comparison.regressions().collect::<Vec<_>>()[..] else {
            panic!("{comparison:?}");
        };
        assert_eq!(slower.key, "1024x7168x8 n=1 nvfp4 128x4 cuda-core");
        assert!((slower.ratio - 1.1).abs() < 0.03, "{slower:?}");
        let interval = slower.interval.unwrap();
        assert!(interval.low < slower.ratio && slower.ratio < interval.high);
        assert!(!comparison.passed());
        // Confirmed by another process that sees it, and not by one that does not.
        let again = compare(
            &baseline,
            &run(11, 0.005, 0.01, |i| if i == 7 { 1.1 } else { 1.0 }),
        );
        assert!(!comparison.clone().confirmed_by(&again).passed());
        let fine = compare(&baseline, &run(12, 0.005, 0.01, |_| 1.0));
        let unconfirmed = comparison.confirmed_by(&fine);
        assert!(unconfirmed.passed());
        assert!(
            unconfirmed
                .entries
                .iter()
                .any(|e| e.change == Change::Unconfirmed)
        );
    }

    /// 100 nights without a change, 4000 comparisons: the first run of hardly any night may look slower.
    #[test]
    fn noise_is_not_flagged() {
        let baseline = baseline(3, 0.01, 0.02);
        let nights = (0..100).filter(|night| {
            let tonight = run(100 + night, 0.01, 0.02, |_| 1.0);
            compare(&baseline, &tonight).regressions().next().is_some()
        });
        let nights = nights.count();
        assert!(nights <= 5, "{nights}");
    }

    #[test]
    fn what_starts_change_widens_the_threshold() {
        let slower = |i: usize| if i == 7 { 1.06 } else { 1.0 };
        let steady = compare(&baseline(5, 0.002, 0.01), &run(10, 0.0, 0.01, slower));
        assert_eq!(steady.regressions().count(), 1);
        let unsteady = compare(&baseline(5, 0.04, 0.01), &run(10, 0.0, 0.01, slower));
        assert_eq!(unsteady.regressions().count(), 0);
        assert!(unsteady.spread > 0.03 && steady.spread < 0.005);
        let one = compare(&baseline(1, 0.0, 0.01), &run(10, 0.0, 0.01, |_| 1.0));
        assert_eq!((one.sessions, one.spread), (1, ASSUMED_SPREAD));
    }

    /// A path whose starts differ by far more than the others' gets a threshold of its own.
    #[test]
    fn an_unsteady_path_does_not_hide_the_others() {
        let mut baseline = baseline(3, 0.002, 0.01);
        let unsteady = "1024x7168x8 n=1 nvfp4 128x4 cuda-core";
        for (session, factor) in baseline.sessions.iter_mut().zip([0.85, 1.0, 1.15]) {
            let shares = session.shares.get_mut(unsteady).unwrap();
            shares.iter_mut().for_each(|share| *share *= factor);
        }
        let slower = |i: usize| if i == 7 || i == 8 { 1.1 } else { 1.0 };
        let comparison = compare(&baseline, &run(10, 0.002, 0.01, slower));
        let keys: Vec<&str> = comparison.regressions().map(|entry| &*entry.key).collect();
        assert_eq!(
            keys,
            ["1152x7168x8 n=1 nvfp4 128x4 cuda-core"],
            "{comparison:?}"
        );
    }

    #[test]
    fn an_improvement_is_reported_and_passes() {
        let tonight = run(10, 0.005, 0.01, |i| if i < 3 { 0.8 } else { 1.0 });
        let comparison = compare(&baseline(3, 0.005, 0.01), &tonight);
        let faster = comparison
            .entries
            .iter()
            .filter(|e| e.change == Change::Faster);
        assert_eq!(faster.count(), 3);
        assert!(comparison.passed());
    }

    #[test]
    fn what_is_missing_fails_and_what_is_new_does_not() {
        let mut baseline = baseline(1, 0.0, 0.01);
        let mut tonight = run(10, 0.0, 0.01, |_| 1.0);
        tonight.cases.pop();
        let mut added = measured("tensor-core", "isolated", 9.0, false);
        added.samples_us = vec![9.0; 21];
        tonight.cases[0].paths.push(added);
        let comparison = compare(&baseline, &tonight);
        assert_eq!(
            comparison.missing,
            ["5120x7168x8 n=1 nvfp4 128x4 cuda-core"]
        );
        assert_eq!(comparison.new, ["128x7168x8 n=1 nvfp4 128x4 tensor-core"]);
        assert!(!comparison.passed());
        baseline.suite = "quick".into();
        assert!(compare(&baseline, &tonight).missing.is_empty());
    }

    #[test]
    fn another_gpu_is_refused() {
        let mut tonight = run(10, 0.0, 0.01, |_| 1.0);
        tonight.device.name = "NVIDIA B200".into();
        let error = Comparison::new(&baseline(1, 0.0, 0.01), &tonight, RULES).unwrap_err();
        assert!(error.to_string().contains("this is NVIDIA B200"), "{error}");
        tonight.device.name = document().device.name;
        tonight.cases.truncate(1);
        tonight.cases[0].m = 1;
        let error = Comparison::new(&baseline(1, 0.0, 0.01), &tonight, RULES).unwrap_err();
        assert!(error.to_string().contains("is in the baseline"), "{error}");
    }
}
