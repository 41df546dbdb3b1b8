//! Tonight's program against the last good one, result by result: both ran on the same GPU in the same night, taking
//! turns (`paired.rs`).
//!
//! A result is the time of a path on a problem. Every round gives a ratio: tonight's time / the last good program's. A
//! result got slower where all of this holds:
//! - the median of the rounds' ratios exceeds 1 by more than the threshold, the least effect that matters;
//! - the 99% interval of that median lies above 1;
//! - two more measurements say the same, each with both programs started anew (`confirmed_by`). Where in memory a
//!   process lies changes some results by percents, and in one of the two the other program starts first.
//!
//! A sustained result is one ratio of means over seconds. It got slower where that ratio exceeds 1 by more than its own
//! threshold, in all three measurements.

use std::collections::{BTreeMap, BTreeSet};

use nvfp4_gemv_documents::document::{Case, Document, Measured};
use nvfp4_gemv_documents::statistics::{Interval, median, median_interval};

use super::paired::Night;
use crate::bench::view::{key, label};

/// The limits of the comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The least part by which a time must grow.
    pub(super) threshold: f64,
}

/// The least part by which a sustained time, which has no rounds, must grow.
const SUSTAINED_THRESHOLD: f64 = 0.05;

/// The end of a sustained result's key.
const SUSTAINED: &str = " sustained";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Slower,
    /// Slower at first and not when it was measured again.
    Unconfirmed,
    Faster,
    Same,
}

/// One path on one problem.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// Path, mode and type of vectors, of cold results.
    pub(super) group: Option<String>,
    pub(super) change: Change,
    /// Tonight's time / the last good program's.
    pub(super) ratio: f64,
    /// The ratio's interval, only of cold results whose ratio is beyond the threshold.
    pub(super) interval: Option<Interval>,
    /// Microseconds a launch.
    pub(super) before_us: f64,
    pub(super) now_us: f64,
    /// Joules for each GB of weights, of sustained results, where the board counts energy.
    pub(super) joules_per_gb: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) entries: Vec<Entry>,
    /// The last good program has it, and tonight's has not.
    pub(super) missing: Vec<String>,
    /// Tonight's program has it, and the last good one has not.
    pub(super) new: Vec<String>,
}

impl Comparison {
    /// The comparison; nothing where there was no last good program.
    pub(super) fn new(night: &Night, rules: Rules) -> Option<Self> {
        let before = results(night.before.as_ref()?);
        let now = results(&night.tonight);
        let mut entries = Vec::new();
        let mut new = Vec::new();
        for (key, (case, now)) in &now {
            match before.get(key) {
                None => new.push(key.clone()),
                Some((_, before)) => {
                    let group = format!("{}, {}", label(now), case.activation);
                    entries.push(Entry::cold(key, group, before, now, rules));
                    entries.extend(Entry::sustained(key, before, now));
                }
            }
        }
        Some(Self {
            entries,
            missing: night.missing.clone(),
            new,
        })
    }

    pub(super) fn regressions(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|entry| entry.change == Change::Slower)
    }

    /// The results to measure once more: keys without what says that they were sustained.
    pub(super) fn doubtful(&self) -> BTreeSet<String> {
        let keys = self.regressions().map(|entry| &*entry.key);
        keys.map(|key| key.strip_suffix(SUSTAINED).unwrap_or(key).to_owned())
            .collect()
    }

    /// Keeps only the regressions that another measurement has too. One that it did not measure stays.
    pub(super) fn confirmed_by(mut self, again: &Self) -> Self {
        let again: BTreeMap<&str, Change> = again
            .entries
            .iter()
            .map(|entry| (&*entry.key, entry.change))
            .collect();
        for entry in &mut self.entries {
            let differs = again
                .get(&*entry.key)
                .is_some_and(|again| *again != Change::Slower);
            if entry.change == Change::Slower && differs {
                entry.change = Change::Unconfirmed;
            }
        }
        self
    }

    pub(super) fn passed(&self) -> bool {
        self.regressions().next().is_none() && self.missing.is_empty()
    }

    /// The geometric mean of the ratios of each group of cold results, and how many there are.
    pub(super) fn means(&self) -> Vec<(&str, usize, f64)> {
        let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for entry in &self.entries {
            if let Some(group) = &entry.group {
                groups.entry(group).or_default().push(entry.ratio.ln());
            }
        }
        let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        let groups = groups.into_iter();
        groups
            .map(|(name, logs)| (name, logs.len(), mean(&logs)))
            .collect()
    }
}

/// Every result of a document, by key.
pub(super) fn results(document: &Document) -> BTreeMap<String, (&Case, &Measured)> {
    let all = document.cases.iter();
    all.flat_map(|case| {
        case.paths
            .iter()
            .map(move |path| (key(case, path), (case, path)))
    })
    .collect()
}

impl Entry {
    fn cold(key: &str, group: String, before: &Measured, now: &Measured, rules: Rules) -> Self {
        let rounds = now.samples_us.iter().zip(&before.samples_us);
        let ratios: Vec<f64> = rounds.map(|(now, before)| now / before).collect();
        let ratio = median(&ratios);
        let beyond = ratio > 1.0 + rules.threshold || ratio < 1.0 / (1.0 + rules.threshold);
        let interval = beyond.then(|| median_interval(&ratios));
        let change = match interval {
            Some(interval) if interval.low > 1.0 => Change::Slower,
            Some(interval) if interval.high < 1.0 => Change::Faster,
            _ => Change::Same,
        };
        Self {
            key: key.to_owned(),
            group: Some(group),
            change,
            ratio,
            interval,
            before_us: before.median_us,
            now_us: now.median_us,
            joules_per_gb: None,
        }
    }

    /// The sustained result's entry; nothing where it was not sustained on both sides.
    fn sustained(key: &str, before: &Measured, now: &Measured) -> Option<Self> {
        let before = before.board.sustained.as_ref()?;
        let now = now.board.sustained.as_ref()?;
        let ratio = now.mean_us / before.mean_us;
        let change = match ratio {
            ratio if ratio > 1.0 + SUSTAINED_THRESHOLD => Change::Slower,
            ratio if ratio < 1.0 / (1.0 + SUSTAINED_THRESHOLD) => Change::Faster,
            _ => Change::Same,
        };
        Some(Self {
            key: format!("{key}{SUSTAINED}"),
            group: None,
            change,
            ratio,
            interval: None,
            before_us: before.mean_us,
            now_us: now.mean_us,
            joules_per_gb: before.joules_per_gb.zip(now.joules_per_gb),
        })
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::bench::testing::{case, document, measured};
    use nvfp4_gemv_documents::document::{Sustained, Turn};

    const RULES: Rules = Rules { threshold: 0.03 };

    /// A night of 40 problems on a GPU whose speed wanders by 20% from round to round, for both programs alike.
    /// Each process's start changes each result by about `start`, each turn by about `noise`, as parts; tonight's
    /// program takes `slower` times as long.
    fn night(seed: u64, start: f64, noise: f64, slower: impl Fn(usize) -> f64) -> Night {
        let mut rng = Rng::with_seed(seed);
        let (mut tonight, mut before) = (document(), document());
        for document in [&mut tonight, &mut before] {
            document.cases.clear();
        }
        for i in 0..40 {
            // About normal, with a standard deviation of 1.
            let mut normal = || (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
            let times = [slower(i), 1.0].map(|factor| 12.0 * factor * (1.0 + start * normal()));
            let mut turns = [Vec::new(), Vec::new()];
            for round in 0..11 {
                let state = 1.0 + 0.2 * f64::from(round % 3);
                for (turns, us) in turns.iter_mut().zip(times) {
                    turns.push(Turn {
                        us: us * state * (1.0 + noise * normal()),
                        sm_mhz: Some(1980.0),
                        watts: None,
                        held_back: false,
                    });
                }
            }
            for (document, turns) in [&mut tonight, &mut before].into_iter().zip(turns) {
                let path = measured("cuda-core", "isolated", 12.0, true);
                let mut case = case(1, "nvfp4", vec![path]);
                case.m = 128 * (i + 1);
                case.complete(&[turns.clone(), turns]);
                document.cases.push(case);
            }
        }
        Night {
            tonight,
            before: Some(before),
            missing: Vec::new(),
        }
    }

    fn compare(night: &Night) -> Comparison {
        Comparison::new(night, RULES).unwrap()
    }

    #[test]
    fn a_kernel_slower_by_5_percent_is_caught_and_only_that() {
        let slower = |i: usize| if i == 7 { 1.05 } else { 1.0 };
        let comparison = compare(&night(10, 0.002, 0.005, slower));
        let [found] = &comparison.regressions().collect::<Vec<_>>()[..] else {
            panic!("{comparison:?}");
        };
        assert_eq!(found.key, "1024x7168x8 n=1 nvfp4 128x4 cuda-core");
        assert!((found.ratio - 1.05).abs() < 0.015, "{found:?}");
        let interval = found.interval.unwrap();
        assert!(interval.low < found.ratio && found.ratio < interval.high);
        assert_eq!(comparison.doubtful(), [found.key.clone()].into());
        // Confirmed by another measurement that sees it, and not by one that does not.
        let again = compare(&night(11, 0.002, 0.005, slower));
        assert!(!comparison.clone().confirmed_by(&again).passed());
        let fine = compare(&night(12, 0.002, 0.005, |_| 1.0));
        let unconfirmed = comparison.confirmed_by(&fine);
        assert!(unconfirmed.passed());
        let changes = unconfirmed.entries.iter().map(|entry| entry.change);
        assert_eq!(changes.filter(|c| *c == Change::Unconfirmed).count(), 1);
    }

    /// 50 nights without a change, 2000 comparisons, on processes whose starts differ by a percent (standard
    /// deviation): hardly any night may fail after its confirmations.
    #[test]
    fn noise_is_not_flagged() {
        let failed = (0..50).filter(|at| {
            let measure = |again: u64| compare(&night(1000 * at + again, 0.01, 0.01, |_| 1.0));
            let confirmed = measure(0).confirmed_by(&measure(1));
            !confirmed.confirmed_by(&measure(2)).passed()
        });
        assert_eq!(failed.count(), 0);
    }

    #[test]
    fn an_improvement_is_reported_and_passes() {
        let comparison = compare(&night(10, 0.002, 0.005, |i| if i < 3 { 0.8 } else { 1.0 }));
        let changes = comparison.entries.iter().map(|entry| entry.change);
        assert_eq!(changes.filter(|c| *c == Change::Faster).count(), 3);
        assert!(comparison.passed());
    }

    #[test]
    fn what_is_missing_fails_and_what_is_new_does_not() {
        let mut night = night(10, 0.0, 0.005, |_| 1.0);
        night.before.as_mut().unwrap().cases.pop();
        let comparison = compare(&night);
        assert_eq!(comparison.new, ["5120x7168x8 n=1 nvfp4 128x4 cuda-core"]);
        assert!(comparison.passed());
        night.missing.push("64x64 n=1 nvfp4 128x4 cuda-core".into());
        assert!(!compare(&night).passed());
        night.before = None;
        assert!(Comparison::new(&night, RULES).is_none());
    }

    #[test]
    fn sustained_results_have_their_own_threshold() {
        let mut night = night(10, 0.0, 0.005, |_| 1.0);
        let set = |document: &mut Document, i: usize, us: f64| {
            let energy = Some((700.0, 1.7e-10));
            let sustained = Sustained::new(5.0, us * 1e-6, 1e12, energy, None);
            document.cases[i].paths[0].board.sustained = Some(sustained);
        };
        let before = night.before.as_mut().unwrap();
        for (i, us) in [(0, 10.4), (1, 10.6), (2, 9.0)] {
            set(&mut night.tonight, i, us);
            set(before, i, 10.0);
        }
        set(before, 3, 10.0);
        let comparison = compare(&night);
        let of = |m: usize| {
            let key = format!("{m}x7168x8 n=1 nvfp4 128x4 cuda-core sustained");
            comparison.entries.iter().find(|entry| entry.key == key)
        };
        let changes = [128, 256, 384].map(|m| of(m).unwrap().change);
        assert_eq!(changes, [Change::Same, Change::Slower, Change::Faster]);
        assert!(of(512).is_none());
        let joules = of(128).unwrap().joules_per_gb.unwrap();
        assert_eq!(joules, (0.17, 0.17));
        let doubtful = "256x7168x8 n=1 nvfp4 128x4 cuda-core".to_owned();
        assert_eq!(comparison.doubtful(), [doubtful].into());
    }
}
