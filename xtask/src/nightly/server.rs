//! A program that measures turn by turn, as it is asked to: `nvfp4-gemv bench --serve`.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::document::{Case, Sustained, Turn};
use crate::bench::program::Program;
use crate::bench::protocol::{Hello, PROTOCOL, Problem, Reply, Request};
use crate::process;

/// A running program that has introduced itself. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    pipe: Pipe,
    pub(super) hello: Hello,
}

/// A running program, and the lines to and from it.
#[derive(Debug)]
struct Pipe {
    child: Child,
    /// `None` only while it is being dropped.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// As a user would type it, for errors.
    line: String,
}

impl Server {
    /// Starts the program with the options of `bench`.
    pub(super) fn start(program: &Program, args: &[OsString]) -> Result<Self> {
        let mut command = program.command();
        command.args(program.bench_arguments(args)).arg("--serve");
        let line = process::line(&command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `{line}`"))?;
        let requests = child.stdin.take();
        let replies = child.stdout.take().context("a child without an output")?;
        let mut pipe = Pipe {
            child,
            requests,
            replies: BufReader::new(replies),
            line,
        };
        match pipe.hear()? {
            Reply::Hello(hello) if hello.protocol == PROTOCOL => Ok(Self {
                pipe,
                hello: *hello,
            }),
            Reply::Hello(hello) => bail!(
                "`{}` speaks {}, and this xtask {PROTOCOL}",
                pipe.line,
                hello.protocol
            ),
            other => Err(pipe.unexpected(&other)),
        }
    }

    /// The case, in which only what is measured is missing; or why the program cannot measure it.
    pub(super) fn open(&mut self, problem: &Problem) -> Result<Result<Case, String>> {
        match self.pipe.ask(&Request::Open(problem.clone()))? {
            Reply::Opened(case) => Ok(Ok(*case)),
            Reply::Failed(why) => Ok(Err(why)),
            other => Err(self.pipe.unexpected(&other)),
        }
    }

    /// One turn of a way of the open problem.
    pub(super) fn turn(&mut self, way: usize) -> Result<Turn> {
        match self.pipe.ask(&Request::Turn(way))? {
            Reply::Turned(turn) if turn.us.is_finite() && turn.us > 0.0 => Ok(turn),
            other => Err(self.pipe.unexpected(&other)),
        }
    }

    pub(super) fn sustain(&mut self, way: usize, seconds: f64) -> Result<Sustained> {
        match self.pipe.ask(&Request::Sustain { way, seconds })? {
            Reply::Sustained(sustained) if sustained.mean_us > 0.0 => Ok(sustained),
            other => Err(self.pipe.unexpected(&other)),
        }
    }
}

impl Pipe {
    fn ask(&mut self, request: &Request) -> Result<Reply> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let requests = self.requests.as_mut().context("the program was ended")?;
        let said = requests.write_all(line.as_bytes());
        match said.and_then(|()| requests.flush()) {
            Ok(()) => self.hear(),
            // What it printed last, or its exit status, says more than a broken pipe.
            Err(_) => self.hear().and_then(|reply| Err(self.unexpected(&reply))),
        }
    }

    fn hear(&mut self) -> Result<Reply> {
        let mut text = String::new();
        let read = self.replies.read_line(&mut text);
        if read.with_context(|| format!("reading from `{}`", self.line))? == 0 {
            let status = self.child.wait()?;
            bail!("`{}` ended: {status}", self.line);
        }
        match serde_json::from_str(&text) {
            Ok(reply) => Ok(reply),
            Err(why) => {
                // With --json, errors are objects.
                let error: Option<Value> = serde_json::from_str(&text).ok();
                match error.as_ref().and_then(|value| value["error"].as_str()) {
                    Some(error) => bail!("`{}`: {error}", self.line),
                    None => bail!("`{}` said {:?}: {why}", self.line, text.trim_end()),
                }
            }
        }
    }

    fn unexpected(&self, reply: &Reply) -> anyhow::Error {
        match reply {
            Reply::Failed(why) => anyhow::anyhow!("`{}`: {why}", self.line),
            other => anyhow::anyhow!(
                "`{}` gave an answer to another question: {other:?}",
                self.line
            ),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The end of its input ends it; it is waited for, so that its device memory is free again.
        drop(self.requests.take());
        if self.child.wait().is_err() {
            let _ = self.child.kill();
        }
    }
}
