//! Test programs of trials: tests that are ignored, with a reason, where the machine lacks what they need; and records of
//! runs on GPUs.
//!
//! - [`trials!`] and [`trial`] make trials of functions.
//! - [`Program::run`] runs them, and is the whole of such a program's `main`.

mod record;

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed};

pub use libtest_mimic::Trial;

use record::Asked;

/// Trials of functions, by their names. First stands what they need: a function that returns why it is missing.
#[macro_export]
macro_rules! trials {
    ($missing:expr; $($run:ident),+ $(,)?) => {
        vec![$($crate::trial(stringify!($run), $missing, $run)),+]
    };
}

/// A test program that runs trials.
#[derive(Clone, Debug)]
pub struct Program {
    /// The name in records.
    pub name: &'static str,
    /// Names of the machine's GPUs, asked for when all trials have ended. Without one no run is recorded.
    pub gpus: fn() -> Vec<String>,
    /// The sources that the program was compiled from: `folder=hash`, with blanks between.
    pub sources: &'static str,
    /// Whether trials run one after the other, on the same thread: all of them want the same GPU.
    pub one_by_one: bool,
}

/// How a trial ended: nothing, or a result whose error is printed.
pub trait Ended {
    /// # Errors
    /// The trial has failed.
    fn ended(self) -> Result<(), Failed>;
}

impl Ended for () {
    fn ended(self) -> Result<(), Failed> {
        Ok(())
    }
}

impl<E: Display> Ended for Result<(), E> {
    fn ended(self) -> Result<(), Failed> {
        self.map_err(|error| format!("{error:#}").into())
    }
}

/// A trial that is ignored where something is `missing`, for the reason that this returns. A panic or an error of `run`
/// fails it.
pub fn trial<E: Ended>(
    name: impl Into<String>,
    missing: impl FnOnce() -> Option<String> + Send + 'static,
    run: impl FnOnce() -> E + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::ignorable_test(name.clone(), move || {
        if let Some(why) = missing() {
            return Ok(Completion::ignored_with(why));
        }
        let start = Instant::now();
        run().ended()?;
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((start.elapsed(), name));
        Ok(Completion::Completed)
    })
}

/// What a trial needs that can run anywhere.
pub fn nothing() -> Option<String> {
    None
}

/// Runs the trials that the command line asks for, in a program whose runs nobody records.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Durations and names of the trials that passed.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

impl Program {
    /// Runs the trials that the command line asks for, and says which took longest. `--record FILE` adds the run to that
    /// record: a run that cannot be recorded has failed.
    pub fn run(self, trials: Vec<Trial>) -> ExitCode {
        let asked = match Asked::of(std::env::args()) {
            Ok(asked) => asked,
            Err(why) => {
                eprintln!("error: {why}");
                return ExitCode::FAILURE;
            }
        };
        let mut arguments = Arguments::from_iter(asked.others());
        if self.one_by_one {
            arguments.test_threads = Some(1);
        }
        let conclusion = libtest_mimic::run(&arguments, trials);
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.sort_by(|a, b| b.cmp(a));
        for (time, name) in times.iter().take(12).filter(|(time, _)| time.as_secs() > 1) {
            println!("{:6.1} s  {name}", time.as_secs_f64());
        }
        match asked.record(&self, &conclusion) {
            Ok(()) => conclusion.exit_code(),
            Err(why) => {
                eprintln!("error: nothing is recorded: {why}");
                ExitCode::FAILURE
            }
        }
    }
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
