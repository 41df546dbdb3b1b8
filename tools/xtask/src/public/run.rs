//! Runs a program in the simulator, and says what became of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde::Serialize;

use super::cases::Kernel;
use crate::process;

/// How strict a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    Hardware,
    Strict,
    /// The hardware profile without hazard checks: are the numbers right?
    Unchecked,
}

impl Mode {
    pub(super) const ALL: [Mode; 3] = [Mode::Hardware, Mode::Strict, Mode::Unchecked];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Hardware => "hardware",
            Mode::Strict => "strict",
            Mode::Unchecked => "unchecked",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Mode::Hardware => &["--profile", "hardware"],
            Mode::Strict => &["--profile", "strict"],
            Mode::Unchecked => &["--profile", "hardware", "--hazards", "off"],
        }
    }

    /// The schedules of its runs.
    fn schedules(self) -> &'static [Schedule] {
        match self {
            Mode::Hardware => &SCHEDULES,
            Mode::Strict => &SCHEDULES[..3],
            Mode::Unchecked => &SCHEDULES[..2],
        }
    }
}

/// How warps take turns, and when asynchronous operations complete.
type Schedule = (&'static str, &'static str);

/// The first is the recorder's own.
pub(super) const SCHEDULES: [Schedule; 5] = [
    ("fair", "eager"),
    ("fair", "lazy"),
    ("random:1", "random"),
    ("random:2", "lazy"),
    ("starve:1", "random"),
];

/// Schedules for a planted fault that [`SCHEDULES`] do not notice. Each warp of a CTA, of up to eight, is the one that
/// only gets a turn when no other can go on.
const STARVED: [&str; 8] = [
    "starve:0", "starve:1", "starve:2", "starve:3", "starve:4", "starve:5", "starve:6", "starve:7",
];

/// Thread-instructions of a launch: more than twenty times what any of the kernels takes.
const BUDGET: &str = "200000000";

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Right,
    /// The simulator's error.
    Error(String),
    /// Output of the program's own check.
    Wrong(String),
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub(super) mode: Mode,
    pub(super) policy: &'static str,
    pub(super) timing: &'static str,
    pub(super) outcome: Outcome,
    /// Relaxations that the kernel relied on.
    pub(super) notes: Vec<String>,
}

pub(super) struct Runner {
    recorder: PathBuf,
}

impl Runner {
    pub(super) fn new(recorder: PathBuf) -> Self {
        Self { recorder }
    }

    /// All schedules of a mode.
    pub(super) fn all(&self, program: &Path, kernel: &Kernel, mode: Mode) -> Result<Vec<Run>> {
        let schedules = mode.schedules().iter();
        schedules
            .map(|s| self.run(program, kernel, mode, *s, None))
            .collect()
    }

    /// The first schedule that notices a planted fault.
    pub(super) fn planted(
        &self,
        program: &Path,
        kernel: &Kernel,
        fault: &str,
    ) -> Result<Option<Run>> {
        for schedule in SCHEDULES
            .into_iter()
            .chain(STARVED.map(|policy| (policy, "eager")))
        {
            let run = self.run(program, kernel, Mode::Hardware, schedule, Some(fault))?;
            if run.outcome != Outcome::Right {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    fn run(
        &self,
        program: &Path,
        kernel: &Kernel,
        mode: Mode,
        (policy, timing): Schedule,
        fault: Option<&str>,
    ) -> Result<Run> {
        let mut command = Command::new(&self.recorder);
        command.args(mode.options());
        command.args(["--policy", policy, "--timing", timing, "--budget", BUDGET]);
        if let Some(sms) = kernel.sms {
            command.args(["--sms", &sms.to_string()]);
        }
        if let Some(fault) = fault {
            command.args(["--fault", fault]);
        }
        command
            .arg("--")
            .arg(program)
            .args(kernel.arguments.split_whitespace());
        let output = process::output(&mut command)?;
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        let right = output.status.success() && out.contains(&kernel.says);
        let outcome = match (error(&err), right) {
            (Some(e), _) => Outcome::Error(e),
            (None, true) => Outcome::Right,
            (None, false) => Outcome::Wrong(last(&out, &err)),
        };
        Ok(Run {
            mode,
            policy,
            timing,
            outcome,
            notes: notes(&err),
        })
    }
}

/// The simulator's first error, with the line that it points to, without what differs from one place to another.
fn error(err: &str) -> Option<String> {
    let ours = |l: &&str| l.starts_with("ptx-record: ");
    let mut lines = err.lines().filter(ours);
    let first = lines.find(|l| l.contains(": error: ") || l.contains("has no fault"))?;
    let text = first
        .rsplit_once(": error: ")
        .map_or(first, |(_, text)| text);
    let rest = lines.take(12).map(|l| l.trim_start_matches("ptx-record:"));
    let rest: Vec<&str> = rest.collect();
    Some(format!("{text}\n{}", rest.join("\n")))
}

/// The last line of a program: its own check, or how it ended.
fn last(out: &str, err: &str) -> String {
    let said = |l: &&str| !l.trim().is_empty();
    let line = out.lines().rfind(said).or(err.lines().rfind(said));
    line.unwrap_or("nothing was said").to_string()
}

/// Names of the relaxations in the notes.
fn notes(err: &str) -> Vec<String> {
    let mut names: Vec<String> = err
        .lines()
        .filter_map(|l| l.split_once(": note, at ")?.1.split_once(": "))
        .filter_map(|(_, note)| Some(note.split_once(" (")?.0.to_string()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Differences from what is expected of runs: right everywhere, or one of these errors somewhere and nothing else
/// anywhere.
pub(super) fn differences(mode: Mode, expected: &[String], runs: &[Run]) -> Vec<String> {
    let matches = |text: &str| expected.iter().any(|e| text.contains(e.as_str()));
    let mut all = Vec::new();
    let mut shown = false;
    for r in runs {
        match &r.outcome {
            Outcome::Right => {}
            Outcome::Error(text) | Outcome::Wrong(text) if matches(text) => shown = true,
            Outcome::Error(text) | Outcome::Wrong(text) => {
                let text: String = text.chars().take(600).collect();
                let (policy, timing) = (r.policy, r.timing);
                all.push(format!(
                    "{} with {policy} and {timing}: {text}",
                    mode.name()
                ));
            }
        }
    }
    if !expected.is_empty() && !shown {
        all.push(format!("{}: no schedule shows {expected:?}", mode.name()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(outcome: Outcome) -> Run {
        Run {
            mode: Mode::Hardware,
            policy: "fair",
            timing: "eager",
            outcome,
            notes: Vec::new(),
        }
    }

    #[test]
    fn what_is_expected_must_show_and_nothing_else() {
        let error = || run(Outcome::Error("deadlock: every warp waits".into()));
        let right = || run(Outcome::Right);
        let of = |expected: &[&str], runs: &[Run]| {
            let expected: Vec<String> = expected.iter().map(|e| e.to_string()).collect();
            differences(Mode::Hardware, &expected, runs).len()
        };
        assert_eq!(of(&[], &[right(), right()]), 0);
        assert_eq!(of(&[], &[right(), error()]), 1);
        assert_eq!(of(&["deadlock"], &[right(), error()]), 0);
        assert_eq!(of(&["deadlock"], &[right(), right()]), 1);
        assert_eq!(of(&["freed"], &[right(), error()]), 2);
    }

    #[test]
    fn errors_and_notes_are_found() {
        let err = "ptx-record: launch 1: k<a, b>: note, at 2 instructions: peer-columns (a CTA of): x\n\
                   ptx-record: launch 1: k<a, b>: error: columns 0..8 freed here\nptx-record:   at line 3\nother\n";
        assert_eq!(notes(err), ["peer-columns"]);
        assert_eq!(error(err).unwrap(), "columns 0..8 freed here\n   at line 3");
        assert_eq!(error("other: error: no\n"), None);
    }
}
