//! A step is a process with a watchdog: when its time is over it is killed, with all that it started.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// The step ended with status 0.
    Passed,
    /// The step ended with another status, which the text says.
    Failed(String),
    /// The step was killed.
    OutOfTime,
    /// The step was killed, and is still there: a driver holds it. Nothing on this machine can be trusted after that.
    Unkillable,
    /// The step was not started, and why.
    Skipped(String),
}

impl End {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "FAILED",
            Self::OutOfTime => "OUT OF TIME",
            Self::Unkillable => "UNKILLABLE",
            Self::Skipped(_) => "skipped",
        }
    }

    pub(super) fn why(&self) -> &str {
        match self {
            Self::Failed(why) | Self::Skipped(why) => why,
            Self::OutOfTime => "killed when its time was over",
            Self::Unkillable => {
                "killed when its time was over, and still there: the machine needs a restart"
            }
            Self::Passed => "",
        }
    }
}

/// How often a process is looked after.
const LOOK: Duration = Duration::from_millis(20);

/// How often one that was killed is looked after, before it counts as unkillable.
const LOOKS_AFTER_KILL: u32 = 1500;

/// Runs a command. All that it prints goes to `log`, which is made anew; where `output` is given, what it prints for
/// others goes there. `over` says when its time is over.
pub(super) fn run(
    command: &mut Command,
    log: &Path,
    output: Option<&Path>,
    mut over: impl FnMut() -> bool,
) -> Result<End> {
    let create = |file: &Path| {
        File::create(file).with_context(|| format!("cannot write {}", file.display()))
    };
    let errors = create(log)?;
    let printed = match output {
        Some(file) => create(file)?,
        None => errors.try_clone()?,
    };
    command.stdin(Stdio::null()).stdout(printed).stderr(errors);
    // A group of its own, so that a kill reaches what it starts, and Ctrl-C does not reach it before us.
    command.process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) => {
            let program = command.get_program().to_string_lossy().into_owned();
            return Ok(End::Failed(format!("cannot start {program:?}: {why}")));
        }
    };
    loop {
        if let Some(status) = child.try_wait()? {
            // Processes that the step left behind would be on the GPU beside the next step.
            kill_group(&child);
            return Ok(ended(status));
        }
        if over() {
            return killed(&mut child);
        }
        std::thread::sleep(LOOK);
    }
}

fn ended(status: ExitStatus) -> End {
    match status.success() {
        true => End::Passed,
        false => End::Failed(status.to_string()),
    }
}

fn killed(child: &mut Child) -> Result<End> {
    kill_group(child);
    for _ in 0..LOOKS_AFTER_KILL {
        if child.try_wait()?.is_some() {
            return Ok(End::OutOfTime);
        }
        std::thread::sleep(LOOK);
    }
    Ok(End::Unkillable)
}

fn kill_group(child: &Child) {
    let Ok(group) = libc::pid_t::try_from(child.id()) else {
        return;
    };
    // SAFETY: takes two integers, no memory. The group is the child's own, made by `process_group(0)`. Its number is
    // not used for another group while the child or a process that it left is in it. A group without processes is an
    // error that changes nothing.
    unsafe {
        libc::kill(-group, libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn ends_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (log, out) = (folder.path().join("log"), folder.path().join("out"));
        let never = || false;
        let end = run(
            &mut shell("echo said; echo wrong >&2"),
            &log,
            Some(&out),
            never,
        )
        .unwrap();
        assert_eq!(end, End::Passed);
        assert_eq!(fs::read_to_string(&out).unwrap(), "said\n");
        assert_eq!(fs::read_to_string(&log).unwrap(), "wrong\n");
        let end = run(&mut shell("echo both; exit 3"), &log, None, never).unwrap();
        assert_eq!(end, End::Failed("exit status: 3".into()));
        assert_eq!(fs::read_to_string(&log).unwrap(), "both\n");
        let end = run(&mut Command::new("no-such-program"), &log, None, never).unwrap();
        assert!(matches!(end, End::Failed(why) if why.contains("no-such-program")));
    }

    /// Whether a process is there, and not merely its status.
    fn runs(pid: &str) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        status.is_ok_and(|text| !text.contains(") Z "))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_never_ends_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!(
            "sleep 100000 & echo $! > {0}.part; mv {0}.part {0}; wait",
            pids.display()
        );
        let log = folder.path().join("log");
        // The step's time is over when it has started the processes to kill, however long that takes.
        let end = run(&mut shell(&script), &log, None, || pids.exists()).unwrap();
        assert_eq!(end, End::OutOfTime);
        let pid = fs::read_to_string(&pids).unwrap();
        while runs(&pid) {
            std::thread::yield_now();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_step_leaves_behind_is_killed_too() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!("sleep 100000 & echo $! > {}", pids.display());
        let log = folder.path().join("log");
        assert_eq!(
            run(&mut shell(&script), &log, None, || false).unwrap(),
            End::Passed
        );
        let pid = fs::read_to_string(&pids).unwrap();
        while runs(&pid) {
            std::thread::yield_now();
        }
    }
}
