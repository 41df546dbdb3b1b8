//! The record of test programs' runs on GPUs: which suite, on which GPUs, how many tests passed, and of which sources.
//!
//! A test program that is started with `--record FILE` adds its run to that file, which the repository keeps as
//! `tests/recorded/gpu.json`. It needs nothing else on the machine: programs are built elsewhere and carried there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use libtest_mimic::Conclusion;
use nvfp4_gemv_documents::gpu_record::{Record, Run, driver_version};
use nvfp4_gemv_files::output::Destination;

use crate::Program;

/// The option that asks for a record.
const OPTION: &str = "--record";

/// Arguments of a test program: the file to record in, if any, and all other arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    file: Option<PathBuf>,
    others: Vec<String>,
}

impl Asked {
    /// Reads the program's arguments.
    ///
    /// # Errors
    /// `--record` without a file, or twice.
    pub(crate) fn of(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let (mut file, mut others) = (None, Vec::new());
        while let Some(argument) = arguments.next() {
            let to = match argument.strip_prefix(OPTION) {
                Some("") => Some(arguments.next().ok_or(format!("{OPTION} needs a file"))?),
                Some(rest) => rest.strip_prefix('=').map(str::to_owned),
                None => None,
            };
            match to {
                Some(to) if file.is_none() => file = Some(PathBuf::from(to)),
                Some(_) => return Err(format!("{OPTION} is there twice")),
                None => others.push(argument),
            }
        }
        Ok(Self { file, others })
    }

    /// All arguments but `--record`, the program's own name first.
    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    /// Records the run where that is asked for, and says so.
    ///
    /// # Errors
    /// Nothing ran on a GPU, or the file cannot be read or written: in words. Then the file is as it was.
    pub(crate) fn record(&self, program: &Program, ran: &Conclusion) -> Result<(), String> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let run = self.run(program, ran)?;
        let what = format!(
            "{}: {} passed, {} failed, {} ignored on {}",
            run.suite(),
            run.passed,
            run.failed,
            run.ignored,
            run.gpus.join(", ")
        );
        add(file, run).map_err(|why| format!("{}: {why}", file.display()))?;
        println!("recorded in {}: {what}", file.display());
        Ok(())
    }

    fn run(&self, program: &Program, ran: &Conclusion) -> Result<Run, String> {
        let gpus = (program.gpus)();
        if gpus.is_empty() {
            return Err("there is no GPU".into());
        }
        if ran.num_passed + ran.num_failed == 0 {
            return Err("no test ran".into());
        }
        let sources: Option<BTreeMap<_, _>> = program
            .sources
            .split_whitespace()
            .map(|one| one.split_once('='))
            .map(|one| one.map(|(folder, hash)| (folder.to_owned(), hash.to_owned())))
            .collect();
        let sources = sources.filter(|sources| !sources.is_empty());
        Ok(Run {
            program: program.name.into(),
            arguments: self.others.iter().skip(1).cloned().collect(),
            gpus,
            driver: driver_version(),
            date_utc: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            passed: ran.num_passed,
            failed: ran.num_failed,
            failures: Vec::new(),
            ignored: ran.num_ignored,
            sources: sources.ok_or("the program does not know its sources")?,
        })
    }
}

fn add(file: &Path, run: Run) -> Result<(), String> {
    let mut record = match std::fs::read_to_string(file) {
        Ok(text) => Record::from_json(&text)?,
        Err(error) if error.kind() == ErrorKind::NotFound => Record::default(),
        Err(error) => return Err(error.to_string()),
    };
    record.add(run);
    let to = Destination::new(file).replace(true);
    let written = to.write(record.to_json().as_bytes());
    written.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arguments: &[&str]) -> Result<Asked, String> {
        Asked::of(arguments.iter().map(|argument| (*argument).to_string()))
    }

    fn h200() -> Vec<String> {
        vec!["NVIDIA H200".into()]
    }

    fn h100() -> Vec<String> {
        vec!["NVIDIA H100".into()]
    }

    fn ran(gpus: fn() -> Vec<String>, num_passed: u64, num_failed: u64) -> (Program, Conclusion) {
        let program = Program {
            name: "kernels",
            gpus,
            sources: "csrc=1 src/kernel=2",
            one_by_one: false,
        };
        let conclusion = Conclusion {
            num_filtered_out: 0,
            num_passed,
            num_failed,
            num_ignored: 3,
            num_measured: 0,
        };
        (program, conclusion)
    }

    #[test]
    fn only_the_option_is_taken_from_the_arguments() {
        let plain = asked(&["kernels", "gpu", "--exact"]).unwrap();
        assert_eq!(plain.others(), ["kernels", "gpu", "--exact"]);
        assert_eq!(plain.file, None);
        for arguments in [
            &["kernels", "--record", "f", "gpu"][..],
            &["kernels", "gpu", "--record=f"],
        ] {
            let asked = asked(arguments).unwrap();
            assert_eq!(asked.others(), ["kernels", "gpu"]);
            assert_eq!(asked.file, Some("f".into()));
        }
        assert!(asked(&["kernels", "--record"]).is_err());
        assert!(asked(&["kernels", "--record", "f", "--record=g"]).is_err());
        // Another option that begins so is libtest's business.
        assert_eq!(asked(&["kernels", "--recorder"]).unwrap().others().len(), 2);
    }

    #[test]
    fn a_run_takes_the_place_of_the_last_one_on_such_a_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpu.json");
        let name = file.to_str().unwrap();
        let record = |suite: &str, (program, ran): (Program, Conclusion)| {
            let asked = asked(&["kernels", suite, "--record", name]).unwrap();
            asked.record(&program, &ran)
        };
        record("gpu", ran(h200, 5, 1)).unwrap();
        record("gpu", ran(h100, 4, 0)).unwrap();
        record("calls", ran(h200, 7, 0)).unwrap();
        record("gpu", ran(h200, 6, 0)).unwrap();
        let read = || Record::from_json(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let runs = read().runs;
        let counts = runs
            .iter()
            .map(|run| format!("{} {} {}", run.suite(), run.passed, run.failed));
        let want = ["kernels calls 7 0", "kernels gpu 4 0", "kernels gpu 6 0"];
        assert_eq!(counts.collect::<Vec<_>>(), want);
        assert_eq!(runs[0].sources["src/kernel"], "2");
        // A run that cannot be recorded changes nothing.
        let mut nowhere = ran(h200, 1, 0);
        nowhere.0.gpus = Vec::new;
        assert!(record("gpu", nowhere).unwrap_err().contains("no GPU"));
        let no_test = record("gpu", ran(h200, 0, 0));
        assert!(no_test.unwrap_err().contains("no test"));
        let mut unknown = ran(h200, 1, 0);
        unknown.0.sources = "";
        assert!(record("gpu", unknown).is_err());
        assert_eq!(read().runs, runs);
        std::fs::write(&file, "{}").unwrap();
        assert!(record("gpu", ran(h200, 1, 0)).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}");
    }
}
