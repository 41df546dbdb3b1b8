//! The record of runs on GPUs, and whether the sources are still those that ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, bail};
use nvfp4_gemv_documents::gpu_record::{PATH, Record, Run};
use nvfp4_gemv_targets::sources;

use crate::workspace::Workspace;

/// Suites that a record must have: those that every change of a kernel asks for.
const SUITES: [&str; 2] = ["kernels calls", "kernels gpu"];

/// Prints each run of the record, and what has changed since. A changed tree is no failure, since most machines have no
/// GPU to run the suites again; a run with failed tests is one.
pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let file = workspace.root().join(PATH);
    let text = fs::read_to_string(&file).with_context(|| format!("reading {PATH}"))?;
    let record = Record::from_json(&text)
        .map_err(anyhow::Error::msg)
        .context(PATH)?;
    let here = sources::on_a_gpu(workspace.root()).map_err(anyhow::Error::msg)?;
    for run in &record.runs {
        eprintln!("{}", line(run, &here));
    }
    let problems = problems(&record);
    if !problems.is_empty() {
        bail!("{PATH}: {}", problems.join("; "));
    }
    Ok(())
}

/// A run in words, and how the tree differs from what it was of.
fn line(run: &Run, here: &[(&str, String)]) -> String {
    let driver = run.driver.as_deref().unwrap_or("unknown");
    let gpus = gpus(&run.gpus);
    let mut line = format!(
        "{}: {} passed, {} failed, {} ignored on {gpus}, driver {driver}, {}: ",
        run.suite(),
        run.passed,
        run.failed,
        run.ignored,
        run.date_utc
    );
    let changed = changed(&run.sources, here);
    line += &match changed.is_empty() {
        true => "of these sources".to_owned(),
        false => format!("changed since: {}", changed.join(", ")),
    };
    line
}

/// `2 x NVIDIA H200`.
fn gpus(names: &[String]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let words = counts.into_iter().map(|(name, count)| match count {
        1 => name.to_owned(),
        _ => format!("{count} x {name}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Folders whose hash is another one than the run's.
fn changed<'a>(of_run: &BTreeMap<String, String>, here: &[(&'a str, String)]) -> Vec<&'a str> {
    let differs =
        |(folder, hash): &(&'a str, String)| (of_run.get(*folder) != Some(hash)).then_some(*folder);
    here.iter().filter_map(differs).collect()
}

/// Whether each test that failed is named, and was run again by a run in which none failed. That run asked for the
/// test, is later, and has the same sources and as many GPUs of the same names.
fn settled(run: &Run, all: &[Run]) -> bool {
    let same = |other: &&Run| {
        (&other.program, &other.gpus, &other.sources) == (&run.program, &run.gpus, &run.sources)
            && other.date_utc > run.date_utc
            && (other.failed, other.passed > 0) == (0, true)
    };
    let again = |name: &String| {
        let mut later = all.iter().filter(same);
        later.any(|other| {
            other
                .arguments
                .iter()
                .all(|filter| name.contains(filter.as_str()))
        })
    };
    let names = BTreeSet::from_iter(&run.failures);
    names.len() as u64 == run.failed && names.into_iter().all(again)
}

/// Problems that make a record unreliable.
fn problems(record: &Record) -> Vec<String> {
    let failed = record.runs.iter();
    let failed = failed.filter(|run| run.failed > 0 && !settled(run, &record.runs));
    let failed = failed.map(|run| {
        let gpus = gpus(&run.gpus);
        format!("{} of {} failed on {gpus}", run.failed, run.suite())
    });
    let missing = SUITES
        .into_iter()
        .filter(|suite| !record.runs.iter().any(|run| run.suite() == *suite))
        .map(|suite| format!("no run of {suite}"));
    failed.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(argument: &str, failed: u64) -> Run {
        Run {
            program: "kernels".into(),
            arguments: vec![argument.into()],
            gpus: vec!["NVIDIA H200".into(); 2],
            driver: Some("580.159.04".into()),
            date_utc: "2026-11-26T15:00:00Z".into(),
            passed: 119,
            failed,
            failures: Vec::new(),
            ignored: 31,
            sources: [("csrc", "1"), ("src/raw", "2")]
                .map(|(folder, hash)| (folder.to_owned(), hash.to_owned()))
                .into(),
        }
    }

    #[test]
    fn a_changed_folder_is_named() {
        let here = |csrc: &str, raw: &str| [("csrc", csrc.to_owned()), ("src/raw", raw.to_owned())];
        assert_eq!(
            line(&run("gpu", 0), &here("1", "2")),
            "kernels gpu: 119 passed, 0 failed, 31 ignored on 2 x NVIDIA H200, driver 580.159.04, \
             2026-11-26T15:00:00Z: of these sources"
        );
        let changed = line(&run("gpu", 0), &here("1", "3"));
        assert!(changed.ends_with(": changed since: src/raw"), "{changed}");
        // A folder that the run does not name was not there.
        let more = [("csrc", "1".to_owned()), ("src/new", "4".to_owned())];
        assert!(line(&run("gpu", 0), &more).ends_with(": changed since: src/new"));
    }

    #[test]
    fn failed_tests_and_missing_suites_are_problems() {
        let mut record = Record::default();
        record.runs.push(run("gpu", 2));
        assert_eq!(
            problems(&record),
            [
                "2 of kernels gpu failed on 2 x NVIDIA H200",
                "no run of kernels calls"
            ]
        );
        record.runs = vec![run("gpu", 0), run("calls", 0)];
        assert!(problems(&record).is_empty());
    }

    #[test]
    fn failed_tests_that_are_named_and_run_again_are_settled() {
        let mut record = Record::default();
        let mut failed = run("gpu", 1);
        failed.failures = vec!["mma::gpu::odd_shapes".into()];
        let mut again = run("odd_shapes", 0);
        again.date_utc = "2026-11-26T16:00:00Z".into();
        record.runs = vec![failed, run("calls", 0), again];
        assert!(problems(&record).is_empty());
        for change in [
            (|runs| runs[0].failed = 2) as fn(&mut [Run]),
            |runs| runs[0].failures[0] = "mma::gpu::edge_cases".into(),
            |runs| runs[2].failed = 1,
            |runs| runs[2].passed = 0,
            |runs| runs[2].date_utc = "2026-11-26T14:00:00Z".into(),
            |runs| runs[2].sources = [("csrc".into(), "2".into())].into(),
            |runs| runs[2].gpus = vec!["NVIDIA H100".into()],
        ] {
            let mut record = record.clone();
            change(&mut record.runs);
            assert!(!problems(&record).is_empty());
        }
    }

    #[test]
    fn the_tree_has_all_folders_that_are_hashed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let here = sources::on_a_gpu(&root).unwrap();
        assert!(here.iter().any(|(folder, _)| *folder == "csrc"));
        assert!(here.iter().all(|(_, hash)| hash.len() == 16));
    }
}
