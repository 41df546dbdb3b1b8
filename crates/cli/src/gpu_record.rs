//! The record of test programs' runs on GPUs: which suite, on which GPUs, how many tests passed, and of which sources.
//!
//! A test program that is started with `--record FILE` adds its run to that file, which the repository keeps as
//! `tests/recorded/gpu.json`. It needs nothing else on the machine: programs are built elsewhere and carried there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use nvfp4_gemv_documents::gpu_record::{Record, Run};
use nvfp4_gemv_files::output::Destination;

/// The option that asks for a record.
const OPTION: &str = "--record";

/// Arguments of a test program: the file to record in, if any, and all other arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    file: Option<PathBuf>,
    others: Vec<String>,
}

/// A run: the test program, its GPUs and sources, and counts of its tests.
#[derive(Clone, Debug)]
pub struct Ran<'a> {
    /// The test program's name.
    pub program: &'a str,
    /// Names of the devices; none where there is no GPU.
    pub gpus: Vec<String>,
    /// The program's sources as its build says them: `folder=hash`, with blanks between.
    pub sources: &'a str,
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Asked {
    /// Reads the arguments of this program, or says what is wrong with them and how to exit.
    ///
    /// # Errors
    /// As [`Asked::of`]'s, which are printed.
    pub fn of_program() -> Result<Self, ExitCode> {
        Self::of(std::env::args()).map_err(|why| {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        })
    }

    /// Reads the program's arguments.
    ///
    /// # Errors
    /// `--record` without a file, or twice.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
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
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// Records the run where that is asked for, and says so.
    ///
    /// # Errors
    /// Nothing ran on a GPU, or the file cannot be read or written: in words. Then the file is as it was.
    pub fn record(&self, ran: Ran<'_>) -> Result<(), String> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let run = self.run(ran)?;
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

    /// Records a run, and returns the program's exit code: a run that cannot be recorded has failed.
    pub fn end(&self, ran: Ran<'_>, of_tests: ExitCode) -> ExitCode {
        match self.record(ran) {
            Ok(()) => of_tests,
            Err(why) => {
                eprintln!("error: nothing is recorded: {why}");
                ExitCode::FAILURE
            }
        }
    }

    fn run(&self, ran: Ran<'_>) -> Result<Run, String> {
        if ran.gpus.is_empty() {
            return Err("there is no GPU".into());
        }
        if ran.passed + ran.failed == 0 {
            return Err("no test ran".into());
        }
        let sources: Option<BTreeMap<_, _>> = ran
            .sources
            .split_whitespace()
            .map(|one| one.split_once('='))
            .map(|one| one.map(|(folder, hash)| (folder.to_owned(), hash.to_owned())))
            .collect();
        let sources = sources.filter(|sources| !sources.is_empty());
        Ok(Run {
            program: ran.program.into(),
            arguments: self.others.iter().skip(1).cloned().collect(),
            gpus: ran.gpus,
            driver: driver_version(),
            date_utc: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            passed: ran.passed,
            failed: ran.failed,
            failures: Vec::new(),
            ignored: ran.ignored,
            sources: sources.ok_or("the program does not know its sources")?,
        })
    }
}

/// The NVIDIA driver's own version, where Linux's kernel module says it.
pub fn driver_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        parts.clone().count() >= 2 && parts.all(|part| part.parse::<u32>().is_ok())
    };
    text.split_whitespace().find(is_version).map(str::to_owned)
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

    fn ran(gpu: &str, passed: u64, failed: u64) -> Ran<'_> {
        Ran {
            program: "kernels",
            gpus: vec![gpu.to_string()],
            sources: "csrc=1 src/kernel=2",
            passed,
            failed,
            ignored: 3,
        }
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
        let record = |suite: &str, ran| {
            asked(&["kernels", suite, "--record", name])
                .unwrap()
                .record(ran)
        };
        record("gpu", ran("NVIDIA H200", 5, 1)).unwrap();
        record("gpu", ran("NVIDIA H100", 4, 0)).unwrap();
        record("calls", ran("NVIDIA H200", 7, 0)).unwrap();
        record("gpu", ran("NVIDIA H200", 6, 0)).unwrap();
        let read = || Record::from_json(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let runs = read().runs;
        let counts = runs
            .iter()
            .map(|run| format!("{} {} {}", run.suite(), run.passed, run.failed));
        let want = ["kernels calls 7 0", "kernels gpu 4 0", "kernels gpu 6 0"];
        assert_eq!(counts.collect::<Vec<_>>(), want);
        assert_eq!(runs[0].sources["src/kernel"], "2");
        // A run that cannot be recorded changes nothing.
        let nowhere = Ran {
            gpus: Vec::new(),
            ..ran("", 1, 0)
        };
        assert!(record("gpu", nowhere).unwrap_err().contains("no GPU"));
        let no_test = record("gpu", ran("NVIDIA H200", 0, 0));
        assert!(no_test.unwrap_err().contains("no test"));
        let unknown = Ran {
            sources: "",
            ..ran("NVIDIA H200", 1, 0)
        };
        assert!(record("gpu", unknown).is_err());
        assert_eq!(read().runs, runs);
        std::fs::write(&file, "{}").unwrap();
        assert!(record("gpu", ran("NVIDIA H200", 1, 0)).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}");
    }
}
