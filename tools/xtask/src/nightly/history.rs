//! Night after night: a file of JSON objects, one a line, and what it looks like.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use nvfp4_gemv_documents::document::{Device, Document};
use serde::{Deserialize, Serialize};

use super::baseline::identity;
use crate::bench::svg::{Anchor, Svg, path_class};
use crate::bench::view::{distinct, label, percent, problem};

const SCHEMA: &str = "nvfp4-gemv/history/1";

/// One night.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    schema: String,
    pub(crate) date_utc: String,
    git_commit: Option<String>,
    host: Option<String>,
    /// The device, named as in a baseline.
    device: String,
    suite: String,
    /// `ok`, `slower`, or `nothing to compare with`.
    verdict: String,
    /// The commit of the last good program that took turns with tonight's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    against: Option<String>,
    /// A rehearsal: something was slowed down on purpose.
    slowed: bool,
    /// Results by problem and path: microseconds, and the share of the ceiling.
    results: BTreeMap<String, BTreeMap<String, (f64, f64)>>,
}

/// All nights, this one the last.
pub(super) fn append(
    file: &Path,
    document: &Document,
    verdict: &str,
    against: Option<String>,
) -> Result<Vec<Record>> {
    let mut records = read(file)?;
    let results = document.cases.iter().map(|case| {
        let paths = case.paths.iter();
        let paths = paths.map(|path| (label(path), (path.median_us, path.share_of_ceiling)));
        (problem(case), paths.collect())
    });
    let record = Record {
        schema: SCHEMA.into(),
        date_utc: document.date_utc.clone(),
        git_commit: document.git_commit.clone(),
        host: document.host.clone(),
        device: identity(&document.device),
        suite: document.suite.clone(),
        verdict: verdict.into(),
        against,
        slowed: !document.slowed_percent.is_empty(),
        results: results.collect(),
    };
    let writing = || format!("appending to {}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(writing)?;
    }
    let mut line = serde_json::to_string(&record)? + "\n";
    // A night that was interrupted while it wrote.
    if fs::read(file).is_ok_and(|bytes| bytes.last().is_some_and(|last| *last != b'\n')) {
        line.insert(0, '\n');
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(writing)?;
    records.push(record);
    Ok(records)
}

/// The nights of a file, which need not be there. Lines that are none are passed over: a damaged history
/// is no reason not to measure.
pub(crate) fn read(file: &Path) -> Result<Vec<Record>> {
    let text = crate::write::read_if_there(file)?.unwrap_or_default();
    let mut records = Vec::new();
    let file = file.display();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str::<Record>(line) {
            Ok(record) if record.schema == SCHEMA => records.push(record),
            _ => eprintln!("{file}:{number}: this is no night; passed over"),
        }
    }
    Ok(records)
}

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 28.0;

/// A plot for each problem with one NVFP4 vector and 128x4 scales, which every path can compute. It shows the share of
/// the ceiling of each path, night after night on this device.
pub(crate) fn draw(records: &[Record], device: &Device) -> Vec<String> {
    let device = identity(device);
    let nights = records.iter().filter(|r| r.device == device);
    let nights: Vec<&Record> = nights.collect();
    let problems = nights.iter().flat_map(|record| record.results.keys());
    let problems = distinct(problems.filter(|problem| problem.ends_with(" n=1 nvfp4 128x4")));
    problems
        .into_iter()
        .map(|problem| plot(&nights, problem))
        .collect()
}

fn plot(nights: &[&Record], problem: &str) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let last = nights.len().saturating_sub(1).max(1) as f64;
    let x = |night: usize| LEFT + (WIDTH - LEFT - RIGHT) * night as f64 / last;
    // Chained launches overlap, and may exceed the ceiling of single ones.
    let y = |share: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share.min(1.25) / 1.25;
    svg.text((LEFT, 14.0), Anchor::Start, "label", problem);
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.level((LEFT, WIDTH - RIGHT), y(share), &percent(share));
    }
    let day = |record: &Record| record.date_utc.chars().take(10).collect::<String>();
    if let [first, ..] = nights {
        svg.text((LEFT, HEIGHT - 8.0), Anchor::Start, "small", &day(first));
    }
    if let [_, .., last] = nights {
        let at = (WIDTH - RIGHT, HEIGHT - 8.0);
        svg.text(at, Anchor::End, "small", &day(last));
    }
    let labels = nights.iter().filter_map(|of| of.results.get(problem));
    for label in distinct(labels.flat_map(BTreeMap::keys)) {
        let (path, mode) = label.split_once(' ').unwrap_or((label, ""));
        let class = format!("{} {mode}", path_class(path));
        let values = nights.iter().enumerate().filter_map(|(night, record)| {
            let (us, share) = record.results.get(problem)?.get(label)?;
            Some((night, *record, *us, *share))
        });
        let values: Vec<_> = values.collect();
        // A rehearsal is a point beside the line.
        let line = values.iter().filter(|(_, record, ..)| !record.slowed);
        let line = line.map(|(night, _, _, share)| (x(*night), y(*share)));
        let line: Vec<_> = line.collect();
        svg.curve(&line, &format!("line {class}"));
        for (night, record, us, share) in values {
            let slowed = if record.slowed { " slowed" } else { "" };
            let title = format!(
                "{label}, {}{slowed}: {}, {us:.2} us, {}",
                record.date_utc,
                percent(share),
                record.verdict
            );
            let at = (x(night), y(share));
            svg.dot(at, &format!("fill {class}{slowed}"), &title);
        }
    }
    svg.finish(&format!("History of {problem}"))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A night of the test document's device.
    pub(crate) fn record(date: &str, share: f64) -> Record {
        let paths = [
            ("cuda-core".to_owned(), (10.0, share)),
            ("cuda-core chained".to_owned(), (9.0, 1.1 * share)),
        ];
        Record {
            schema: SCHEMA.into(),
            date_utc: date.into(),
            git_commit: None,
            host: None,
            device: "Test GPU <1>".into(),
            suite: "all".into(),
            verdict: "ok".into(),
            against: None,
            slowed: false,
            results: [("64x64 n=1 nvfp4 128x4".to_owned(), paths.into())].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::document;

    #[test]
    fn nights_are_appended_and_a_damaged_line_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/history.jsonl");
        let first = append(&file, &document(), "nothing to compare with", None).unwrap();
        assert_eq!(first.len(), 1);
        let mut half = fs::read_to_string(&file).unwrap();
        half.push_str("{\"schema\": \"nvfp4-gemv/hist");
        fs::write(&file, half).unwrap();
        let records = append(&file, &document(), "ok", Some("abc".into())).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(read(&file).unwrap(), records);
        assert_eq!(records[0].verdict, "nothing to compare with");
        assert_eq!(records[1].verdict, "ok");
        let (us, _) = records[1].results["4096x7168x8 n=1 nvfp4 128x4"]["tensor-core chained"];
        assert_eq!(us, 11.0);
    }

    #[test]
    fn plots_are_of_this_device_and_rehearsals_stand_aside() {
        let mut other = testing::record("2026-11-19", 0.5);
        other.device = "Test GPU <1> NVL".into();
        let mut slowed = testing::record("2026-11-22", 0.6);
        slowed.slowed = true;
        let nights = [
            other,
            testing::record("2026-11-20", 0.8),
            testing::record("2026-11-21", 0.8),
            slowed,
        ];
        let [plot] = &draw(&nights, &document().device)[..] else {
            panic!("one problem");
        };
        assert!(!plot.contains("2026-11-19"), "{plot}");
        assert_eq!(plot.matches(" slowed\"").count(), 2, "{plot}");
        let line = plot.lines().find(|line| line.starts_with("<polyline"));
        assert_eq!(line.unwrap().matches(',').count(), 2, "{plot}");
    }
}
