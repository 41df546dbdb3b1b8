//! What a night's comparison says: a sentence, and a table of what and how much.

use std::collections::BTreeMap;
use std::path::Path;

use super::baseline::key;
use super::compare::{Change, Comparison, Entry};
use crate::bench::document::Document;
use crate::bench::page::Finding;
use crate::bench::table::Table;
use crate::bench::view::{label, percent};

/// Rows of the table in a terminal.
const MOST_ROWS: usize = 30;

#[derive(Debug)]
pub(super) enum Outcome {
    NoBaseline,
    Compared(Comparison),
}

impl Outcome {
    pub(super) fn passed(&self) -> bool {
        match self {
            Self::NoBaseline => true,
            Self::Compared(comparison) => comparison.passed(),
        }
    }

    /// In the history.
    pub(super) fn verdict(&self) -> &'static str {
        match self {
            Self::NoBaseline => "no baseline",
            Self::Compared(comparison) if comparison.passed() => "ok",
            Self::Compared(_) => "slower",
        }
    }

    pub(super) fn sentence(&self, document: &Document, file: &Path) -> String {
        let name = &document.device.name;
        let Self::Compared(comparison) = self else {
            return format!(
                "There is no baseline for {name}: nothing was compared. `cargo xtask nightly \
                 --update-baseline` makes {}; run it after three starts of the machine or more, and commit it.",
                file.display()
            );
        };
        let count = |change| {
            comparison
                .entries
                .iter()
                .filter(|e| e.change == change)
                .count()
        };
        let (slower, missing) = (count(Change::Slower), comparison.missing.len());
        let mut sentence = if slower + missing == 0 {
            "Nothing got slower".to_owned()
        } else {
            format!("{slower} got slower, {missing} are no longer measured")
        };
        sentence.push_str(&format!(
            " of {} results, compared with {} of {name}",
            comparison.entries.len() + missing,
            plural(comparison.sessions, "session"),
        ));
        for (number, what) in [
            (count(Change::Faster), "got faster"),
            (
                count(Change::Unconfirmed),
                "looked slower, but not in a second run",
            ),
            (comparison.new.len(), "new, with nothing to compare with"),
        ] {
            if number > 0 {
                sentence.push_str(&format!("; {number} {what}"));
            }
        }
        let spread = 100.0 * comparison.spread;
        sentence.push_str(&match comparison.sessions {
            1 => format!(". One session cannot say how starts differ: {spread:.1}% is assumed."),
            _ => format!(". Sessions differ by {spread:.1}% (standard deviation)."),
        });
        sentence
    }

    /// What changed, the worst first; no more rows than `most`.
    pub(super) fn table(&self, most: usize) -> Table {
        let mut table = Table::new([
            "result",
            "verdict",
            "time",
            "99% interval",
            "threshold",
            "share before",
            "share now",
        ]);
        let Self::Compared(comparison) = self else {
            return table;
        };
        for key in comparison.missing.iter().take(most) {
            let mut row = vec![key.clone(), "missing".into()];
            row.resize(7, String::new());
            table.row(row);
        }
        let changed = comparison
            .entries
            .iter()
            .filter(|entry| entry.change != Change::Same);
        let mut changed: Vec<&Entry> = changed.collect();
        changed.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        for entry in changed.into_iter().take(most) {
            let verdict = match entry.change {
                Change::Slower => "SLOWER",
                Change::Unconfirmed => "unconfirmed",
                Change::Faster => "faster",
                Change::Same => "same",
            };
            let interval = entry.interval.map_or(String::new(), |interval| {
                format!("{} to {}", change(interval.low), change(interval.high))
            });
            table.row(vec![
                entry.key.clone(),
                verdict.into(),
                change(entry.ratio),
                interval,
                format!("{:.1}%", 100.0 * entry.threshold),
                percent(entry.before),
                percent(entry.now),
            ]);
        }
        table
    }

    /// What happened to each path on average: a drift that no single problem's threshold shows.
    pub(super) fn overall(&self, document: &Document) -> Table {
        let mut table = Table::new(["path", "vectors", "problems", "time on average"]);
        let Self::Compared(comparison) = self else {
            return table;
        };
        let ratios: BTreeMap<&str, f64> = comparison
            .entries
            .iter()
            .map(|entry| (&*entry.key, entry.ratio))
            .collect();
        let mut groups: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
        for case in &document.cases {
            for path in &case.paths {
                if let Some(ratio) = ratios.get(&*key(case, path)) {
                    let group = (label(path), &*case.activation);
                    groups.entry(group).or_default().push(ratio.ln());
                }
            }
        }
        for ((path, activation), logs) in groups {
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            table.row(vec![
                path,
                activation.into(),
                logs.len().to_string(),
                change(mean),
            ]);
        }
        table
    }

    /// For a page and for `nightly.md`: everything.
    pub(super) fn finding(&self, document: &Document, file: &Path) -> Finding {
        let tables = [self.table(usize::MAX), self.overall(document)];
        Finding {
            text: self.sentence(document, file),
            good: self.passed(),
            tables: tables
                .into_iter()
                .filter(|table| !table.is_empty())
                .collect(),
        }
    }

    /// For the terminal, which the worst must not scroll out of.
    pub(super) fn text(&self, document: &Document, file: &Path) -> String {
        let mut text = format!("{}\n", self.sentence(document, file));
        for (path, by) in &document.slowed_percent {
            text.push_str(&format!("(a rehearsal: {path} was slowed down by {by}%)\n"));
        }
        let table = self.table(MOST_ROWS);
        if !table.is_empty() {
            text.push_str(&format!("\n{}\n", table.markdown()));
        }
        let more = self.table(usize::MAX).len().saturating_sub(table.len());
        if more > 0 {
            text.push_str(&format!("and {more} more\n"));
        }
        let overall = self.overall(document);
        if !overall.is_empty() {
            text.push_str(&format!("\n{}\n", overall.markdown()));
        }
        text
    }
}

/// `+10.2%` for a ratio of 1.102.
fn change(ratio: f64) -> String {
    format!("{:+.1}%", 100.0 * (ratio - 1.0))
}

fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::baseline::Baseline;
    use super::super::compare::Rules;
    use super::*;
    use crate::bench::testing::document;

    #[test]
    fn a_regression_is_named_with_its_size() {
        let mut baseline = Baseline::new(&document());
        baseline.add(&document()).unwrap();
        let mut tonight = document();
        for us in &mut tonight.cases[1].paths[1].samples_us {
            *us *= 1.25;
        }
        tonight.cases.pop();
        tonight.slowed_percent.insert("cuda-core-tma".into(), 25);
        let rules = Rules { threshold: 0.03 };
        let outcome = Outcome::Compared(Comparison::new(&baseline, &tonight, rules).unwrap());
        assert!(!outcome.passed());
        assert_eq!(outcome.verdict(), "slower");
        let text = outcome.text(&tonight, Path::new("b.json"));
        for part in [
            "1 got slower, 1 are no longer measured of 6 results",
            "compared with 1 session of Test GPU",
            "(a rehearsal: cuda-core-tma was slowed down by 25%)",
            "| 4096x7168x8 n=4 nvfp4 128x4 cuda-core-tma | SLOWER | +25.0% |",
            "| 4096x7168x8 n=1 bf16 128x4 cuda-core | missing |",
            "| 67% | 53% |",
            // The geometric mean of 1 and 1.25.
            "| cuda-core-tma | nvfp4 | 2 | +11.8% |",
            "| cuda-core | nvfp4 | 2 | +0.0% |",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_night_without_a_baseline_says_what_to_do() {
        let text = Outcome::NoBaseline.text(&document(), Path::new("b.json"));
        assert!(text.contains("no baseline for Test GPU"), "{text}");
        assert!(
            text.contains("--update-baseline") && text.contains("b.json"),
            "{text}"
        );
        assert!(Outcome::NoBaseline.passed());
    }
}
