//! Losses of choices, summed up.

use std::collections::BTreeMap;

use nvfp4_gemv::Kernel;
use serde_json::{Value, json};

use crate::report::{Table, count};

/// The loss of the choice on a problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// The kernel that was chosen.
    pub(super) kernel: Kernel,
    /// The part of the best time that it takes more.
    pub(super) part: f64,
    /// Whether a built-in table has the problem.
    pub(super) in_table: bool,
}

/// Losses that a summary counts.
const LIMITS: [f64; 2] = [0.03, 0.10];

/// A group of problems, summed up.
struct Group {
    problems: usize,
    /// Problems beyond each of the limits.
    beyond: [usize; 2],
    mean: f64,
    worst: f64,
}

impl Group {
    fn of(all: impl Iterator<Item = f64>) -> Self {
        let all: Vec<f64> = all.collect();
        Self {
            problems: all.len(),
            beyond: LIMITS.map(|limit| all.iter().filter(|lost| **lost > limit).count()),
            mean: all.iter().sum::<f64>() / all.len().max(1) as f64,
            worst: all.iter().copied().fold(0.0, f64::max),
        }
    }

    fn row(&self, name: &str) -> Vec<String> {
        let percent = |part: f64| format!("{:.1}%", 100.0 * part);
        let share = |of: usize| percent(of as f64 / self.problems.max(1) as f64);
        let [some, much] = self.beyond;
        let numbers = [
            share(some),
            share(much),
            percent(self.mean),
            percent(self.worst),
        ];
        let mut row = vec![name.into(), self.problems.to_string()];
        row.extend(numbers);
        row
    }

    fn json(&self) -> Value {
        let [some, much] = self.beyond;
        json!({
            "problems": self.problems,
            "beyond_3_percent": some,
            "beyond_10_percent": much,
            "mean_lost": self.mean,
            "worst_lost": self.worst,
        })
    }
}

/// All problems, those that no table has, and those of each kernel that was chosen, as a table and JSON.
pub(super) fn summary(all: &[Lost]) -> (String, Value) {
    let of = |keep: &dyn Fn(&Lost) -> bool| {
        let kept = all.iter().filter(|lost| keep(lost));
        Group::of(kept.map(|lost| lost.part))
    };
    let mut groups = vec![
        ("all".to_string(), of(&|_| true)),
        ("in no table".to_string(), of(&|lost| !lost.in_table)),
    ];
    for kernel in Kernel::ALL {
        let group = of(&|lost| lost.kernel == *kernel);
        if group.problems > 0 {
            groups.push((kernel.to_string(), group));
        }
    }
    let mut table = Table::new("chosen|problems|over 3%|over 10%|mean|worst".split('|'));
    for (name, group) in &groups {
        table.row(group.row(name));
    }
    let json: BTreeMap<&str, Value> = groups
        .iter()
        .map(|(name, group)| (name.as_str(), group.json()))
        .collect();
    let text = format!(
        "\nlost to the best that was found, of {}:\n{table}",
        count(all.len(), "problem")
    );
    (text, json!(json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_what_is_beyond_the_limits() {
        let lost = |kernel, part, in_table| Lost {
            kernel,
            part,
            in_table,
        };
        let all = [
            lost(Kernel::Ring, 0.0, true),
            lost(Kernel::Ring, 0.03, false),
            lost(Kernel::Stream, 0.05, false),
            lost(Kernel::Stream, 0.2, false),
        ];
        let (text, json) = summary(&all);
        let group = |name: &str, problems, some, much| {
            assert_eq!(json[name]["problems"], problems, "{name}");
            assert_eq!(json[name]["beyond_3_percent"], some, "{name}");
            assert_eq!(json[name]["beyond_10_percent"], much, "{name}");
        };
        group("all", 4, 2, 1);
        group("in no table", 3, 2, 1);
        group("ring", 2, 0, 0);
        group("stream", 2, 2, 1);
        assert_eq!(json["stream"]["worst_lost"], 0.2);
        assert!(json.get("packed").is_none());
        assert!(text.contains("50.0%") && text.contains("20.0%"), "{text}");
        // Nothing was measured: no division by nothing.
        assert!(summary(&[]).0.contains("0.0%"));
    }
}
