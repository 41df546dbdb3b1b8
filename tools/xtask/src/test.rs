//! `cargo xtask test`: all tests, with what they load; those that could not run are counted by their reasons at the
//! end.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::cargo::Cargo;
use crate::process;
use crate::toolchain::{self, EXPLORER_NVRTC, LIBRARY_NCCL, LIBRARY_NVRTC};
use crate::workspace::Workspace;

/// Features of a library that carries no machine code, and compiles kernels at run time.
pub(crate) const JIT_FEATURES: [&str; 2] = ["--features", "jit,checkpoint,tune"];

/// A build of the repository with that library. Of the whole of it: for fewer packages, most dependencies would have
/// fewer features than for all tests, and be compiled again.
pub(crate) const WITHOUT_MACHINE_CODE: [&str; 4] = [
    "--workspace",
    "--no-default-features",
    "--features",
    "nvfp4-gemv-cli/jit",
];

pub(crate) fn command(workspace: &Workspace, arguments: &[OsString]) -> Result<()> {
    let toolchain = toolchain::ensure(workspace)?;
    let told = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    for note in without(&loaded(workspace), told) {
        eprintln!("note: {note}");
    }
    // The variables change what every call of the library does: documentation's examples are tests, too.
    let cargo = Cargo::new(workspace)
        .with_toolchain(&toolchain)
        .without_env("NVFP4_GEMV_PATH")
        .without_env("NVFP4_GEMV_TUNED");
    let cargo = toolchain::test_environment(workspace)
        .into_iter()
        .fold(cargo, |cargo, (name, value)| cargo.env(name, value));
    let mut ignored = Ignored::default();
    let result = run_all(&cargo, arguments, &mut ignored);
    // Who reads no more still gets the result.
    let _ = write!(io::stdout(), "{ignored}");
    result
}

/// Arguments that say how tests run, not which.
const HOW: [&str; 7] = [
    "--no-fail-fast",
    "--quiet",
    "-q",
    "--verbose",
    "-v",
    "--locked",
    "--offline",
];

/// Cargo's arguments, run after run.
fn runs(arguments: &[OsString]) -> Vec<Vec<OsString>> {
    let says_how = |argument: &OsString| HOW.iter().any(|how| argument == how);
    // Other arguments ask for some of the workspace's tests.
    let all = arguments.iter().all(says_how);
    // Tests that only a library without machine code has, and what they share with the other one.
    let small = ["--lib", "--bin", "nvfp4-gemv", "--test", "no_nvrtc"];
    let trials = ["--test", "jit_on_a_gpu", "--test", "kernels", "--", "jit::"];
    let run = |of: &[&str], tests: &[&str]| {
        let [test, of, tests] =
            [&["test"], of, tests].map(|part| part.iter().map(OsString::from).collect::<Vec<_>>());
        [test, of, arguments.to_vec(), tests].concat()
    };
    let mut runs = vec![run(&["--workspace"], &[])];
    if all {
        runs.extend([&small[..], &trials].map(|tests| run(&WITHOUT_MACHINE_CODE, tests)));
    }
    runs
}

fn run_all(cargo: &Cargo, arguments: &[OsString], ignored: &mut Ignored) -> Result<()> {
    let goes_on = arguments.iter().any(|argument| argument == HOW[0]);
    let mut result = Ok(());
    for run in runs(arguments) {
        if result.is_ok() || goes_on {
            let of_run = ignored.run(&mut cargo.command(run), &mut io::stdout());
            result = result.and(of_run);
        }
    }
    result
}

/// A library that tests load.
struct Library<'a> {
    name: &'static str,
    /// The variables that name its folder.
    variables: &'static [&'static str],
    install: Box<dyn Fn() -> Result<()> + 'a>,
}

fn loaded(workspace: &Workspace) -> [Library<'_>; 2] {
    [
        Library {
            name: "NVRTC",
            variables: &[LIBRARY_NVRTC, EXPLORER_NVRTC],
            install: Box::new(|| toolchain::install_nvrtc(workspace).map(drop)),
        },
        Library {
            name: "NCCL",
            variables: &[LIBRARY_NCCL],
            install: Box::new(|| toolchain::install_nccl(workspace).map(drop)),
        },
    ]
}

/// Installs what nobody has named, and returns what could not be had: the tests that load it are ignored then.
fn without(libraries: &[Library<'_>], told: impl Fn(&str) -> bool) -> Vec<String> {
    let missing = |library: &Library<'_>| {
        if library.variables.iter().all(|name| told(name)) {
            return None;
        }
        let error = (library.install)().err()?;
        Some(format!("tests are run without {}: {error:#}", library.name))
    };
    libraries.iter().filter_map(missing).collect()
}

/// Tests that were ignored, by their reasons.
#[derive(Debug, Default)]
struct Ignored {
    reasons: BTreeMap<String, usize>,
}

/// The reason of tests that give none.
const ON_REQUEST: &str = "run on request only: cargo test ... -- --ignored";

/// Bytes that no test prints.
const END: &[u8] = b"\0cargo has ended\0\n";

impl Ignored {
    /// Runs `cargo test`. Its output is passed on, without the reasons.
    ///
    /// A process that a test leaves behind may hold the pipe open. So the end of the pipe is not waited for. [`END`] is
    /// waited for instead, which is written when cargo has ended: behind all that cargo has printed.
    fn run(&mut self, command: &mut Command, to: &mut impl Write) -> Result<()> {
        let line = process::line(command);
        let (printed, mut to_pipe) = io::pipe()?;
        let child = command.stdout(to_pipe.try_clone()?).spawn();
        let mut child = child.with_context(|| format!("running `{line}`"))?;
        let (passed_on, status) = thread::scope(|scope| {
            let ended = scope.spawn(move || {
                let status = child.wait();
                // If nobody reads any more, the end need not be written.
                let _ = to_pipe.write_all(END);
                status
            });
            let passed_on = self.pass_on(printed, to);
            (passed_on, ended.join())
        });
        let status = match status {
            Ok(status) => status.with_context(|| format!("running `{line}`"))?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        passed_on.with_context(|| format!("passing on what `{line}` prints"))?;
        if !status.success() {
            bail!("{status} from `{line}`");
        }
        Ok(())
    }

    fn pass_on(&mut self, from: impl Read, to: &mut impl Write) -> io::Result<()> {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line)? != 0 {
            if let Some(unfinished) = line.strip_suffix(END) {
                to.write_all(unfinished)?;
                return to.flush();
            }
            match std::str::from_utf8(&line).ok().and_then(of_ignored) {
                Some((shown, reason)) => {
                    writeln!(to, "{shown}")?;
                    *self.reasons.entry(reason.to_owned()).or_default() += 1;
                }
                None => to.write_all(&line)?,
            }
            to.flush()?;
            line.clear();
        }
        Ok(())
    }
}

/// The line without its reason, and the reason, if it says that a test was ignored. Rust's own harness writes
/// `test name ... ignored, reason`, libtest-mimic `test name ... ignored (reason)`.
fn of_ignored(line: &str) -> Option<(&str, &str)> {
    const IGNORED: &str = " ... ignored";
    let line = line.trim_end();
    let end = line.starts_with("test ").then(|| line.find(IGNORED))?? + IGNORED.len();
    let (shown, rest) = line.split_at(end);
    let in_parentheses = || rest.strip_prefix(" (")?.strip_suffix(')');
    match rest {
        "" => Some((shown, ON_REQUEST)),
        _ => Some((shown, rest.strip_prefix(", ").or_else(in_parentheses)?)),
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: usize = self.reasons.values().sum();
        if all == 0 {
            return Ok(());
        }
        writeln!(f, "\nignored tests: {all}")?;
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        for (reason, count) in reasons {
            writeln!(f, "{count:6}  {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn arguments_that_say_how_leave_no_test_out() {
        let of =
            |arguments: &[&str]| runs(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&[]).len(), 3);
        let how = of(&["--no-fail-fast", "-q"]);
        assert_eq!(how.len(), 3);
        for run in how {
            let tests = run.iter().position(|argument| argument == "--");
            let at = run.iter().position(|argument| argument == "--no-fail-fast");
            assert!(at.unwrap() < tests.unwrap_or(run.len()), "{run:?}");
        }
        assert_eq!(
            of(&["-p", "ptx-sim"]),
            [["test", "--workspace", "-p", "ptx-sim"]]
        );
    }

    #[test]
    fn ignored_tests_are_counted_by_reason_and_told_once() {
        let printed = "
running 6 tests
test plain ... ok
test matmul::sm_80::a ... ignored (NVRTC is not there: /usr/lib (no such file); PATH)
test matmul::sm_80::b ... ignored (NVRTC is not there: /usr/lib (no such file); PATH)
test [long] sim::all ... ignored
test needs_time ... ignored, takes minutes
test src/lib.rs - call (line 7) ... ignored
test says_it ... FAILED
note: a test that prints test x ... ignored (really)

test result: FAILED. 1 passed; 1 failed; 5 ignored; 0 measured; 0 filtered out\n";
        let printed = [printed.as_bytes(), b"no text \xff\n"].concat();
        let mut ignored = Ignored::default();
        let mut shown = Vec::new();
        ignored.pass_on(&printed[..], &mut shown).unwrap();
        let shown = String::from_utf8_lossy(&shown);
        assert!(!shown.contains("NVRTC") && !shown.contains("minutes"));
        for line in [
            "test plain ... ok",
            "test matmul::sm_80::b ... ignored",
            "test [long] sim::all ... ignored",
            "test says_it ... FAILED",
            "note: a test that prints test x ... ignored (really)",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
        assert!(shown.ends_with("no text \u{fffd}\n"));
        assert_eq!(
            ignored.to_string(),
            format!(
                "\nignored tests: 5\n     2  NVRTC is not there: /usr/lib (no such file); PATH\n     \
                 2  {ON_REQUEST}\n     1  takes minutes\n"
            )
        );
        assert_eq!(Ignored::default().to_string(), "");
    }

    #[cfg(unix)]
    #[test]
    fn what_a_test_leaves_behind_is_not_waited_for() {
        // The process goes when this test does, and until then has the standard output.
        let (waits_for, _until) = io::pipe().unwrap();
        let script = "exec 3<&0; cat <&3 & echo 'test a ... ignored, why'; printf unfinished";
        let (mut ignored, mut shown) = (Ignored::default(), Vec::new());
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]).stdin(waits_for);
        ignored.run(command, &mut shown).unwrap();
        assert_eq!(shown, b"test a ... ignored\nunfinished");
        assert_eq!(ignored.reasons, BTreeMap::from([("why".to_owned(), 1)]));
        let failed = ignored.run(Command::new("sh").args(["-c", "exit 3"]), &mut shown);
        assert!(failed.unwrap_err().to_string().contains("exit status: 3"));
    }

    #[test]
    fn what_tests_load_is_installed_unless_it_is_named() {
        let installed = RefCell::new(Vec::new());
        let record = &installed;
        let library = |name, variables, error: Option<&'static str>| Library {
            name,
            variables,
            install: Box::new(move || {
                record.borrow_mut().push(name);
                error.map_or(Ok(()), |error| Err(anyhow!(error)))
            }),
        };
        let libraries = [
            library("named", &["A", "B"], None),
            library("named to one", &["A", "C"], None),
            library("out of reach", &["D"], Some("no network")),
        ];
        let notes = without(&libraries, |name| ["A", "B"].contains(&name));
        assert_eq!(notes, ["tests are run without out of reach: no network"]);
        drop(libraries);
        assert_eq!(installed.into_inner(), ["named to one", "out of reach"]);
    }
}
