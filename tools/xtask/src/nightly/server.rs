//! A program that measures turn by turn, as it is asked to: `nvfp4-gemv bench --serve`.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::{Case, Sustained, Turn};
use nvfp4_gemv_documents::protocol::{Hello, PROTOCOL, Problem, Reply, Request};
use serde_json::Value;

use crate::bench::program::Program;
use crate::process;

/// How long an answer may take: opening a problem fills gigabytes and may load kernels for the first time.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a program has to end by itself.
const GRACE: Duration = Duration::from_secs(20);

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
    /// The requests' pipe. This and `replies` are `None` only while the server is being dropped.
    requests: Option<ChildStdin>,
    replies: Option<Receiver<io::Result<String>>>,
    /// The command as a user would type it, for errors.
    line: String,
}

impl Server {
    /// Starts the program with the options of `bench`.
    pub(super) fn start(program: &Program, args: &[OsString]) -> Result<Self> {
        let mut command = program.command();
        command.args(program.bench_arguments(args));
        command.args(["--serve", "--json"]); // so that its own error is an object
        let line = process::line(&command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("starting `{line}`"))?;
        let requests = child.stdin.take();
        let replies = child.stdout.take().context("a child without an output")?;
        // One line at a time: a program that prints without end is not read without end.
        let (lines, replies_of) = mpsc::sync_channel(1);
        thread::spawn(move || {
            for line in BufReader::new(replies).lines() {
                if lines.send(line).is_err() {
                    break; // nobody listens any more
                }
            }
        });
        let mut pipe = Pipe {
            child,
            requests,
            replies: Some(replies_of),
            line,
        };
        match pipe.hear(PATIENCE)? {
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

    /// The case, in which only what is measured is missing.
    pub(super) fn open(&mut self, problem: &Problem) -> Result<Case> {
        let opened = self.pipe.ask(&Request::Open(problem.clone()), PATIENCE);
        let opened = opened.and_then(|reply| match reply {
            Reply::Opened(case) => Ok(*case),
            other => Err(self.pipe.unexpected(&other)),
        });
        opened.with_context(|| format!("opening {problem}"))
    }

    /// One turn of a way of the open problem.
    pub(super) fn turn(&mut self, way: usize) -> Result<Turn> {
        match self.pipe.ask(&Request::Turn(way), PATIENCE)? {
            Reply::Turned(turn) if turn.us.is_finite() && turn.us > 0.0 => Ok(turn),
            other => Err(self.pipe.unexpected(&other)),
        }
    }

    pub(super) fn sustain(&mut self, way: usize, seconds: f64) -> Result<Sustained> {
        let patience = PATIENCE + Duration::try_from_secs_f64(seconds)?;
        match self
            .pipe
            .ask(&Request::Sustain { way, seconds }, patience)?
        {
            Reply::Sustained(sustained) if sustained.mean_us > 0.0 => Ok(sustained),
            other => Err(self.pipe.unexpected(&other)),
        }
    }
}

impl Pipe {
    fn ask(&mut self, request: &Request, patience: Duration) -> Result<Reply> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let requests = self.requests.as_mut().context("the program was ended")?;
        let said = requests.write_all(line.as_bytes());
        match said.and_then(|()| requests.flush()) {
            Ok(()) => self.hear(patience),
            // The last line of the program, or its exit status, says more than a broken pipe.
            Err(_) => self
                .hear(patience)
                .and_then(|reply| Err(self.unexpected(&reply))),
        }
    }

    fn hear(&mut self, patience: Duration) -> Result<Reply> {
        let replies = self.replies.as_ref().context("the program was ended")?;
        let text = match replies.recv_timeout(patience) {
            Ok(line) => line.with_context(|| format!("reading from `{}`", self.line))?,
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "`{}` has said nothing for {} s",
                    self.line,
                    patience.as_secs()
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.end()?;
                bail!("`{}` ended: {status}", self.line);
            }
        };
        match serde_json::from_str(&text) {
            Ok(reply) => Ok(reply),
            Err(why) => {
                let error: Option<Value> = serde_json::from_str(&text).ok();
                match error.as_ref().and_then(|value| value["error"].as_str()) {
                    Some(error) => bail!("`{}`: {error}", self.line),
                    None => bail!("`{}` said {:?}: {why}", self.line, text.trim_end()),
                }
            }
        }
    }

    /// The end of its input ends the program, and with it its use of the device's memory. One that goes on all the
    /// same is ended.
    fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.requests.take());
        drop(self.replies.take());
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.kill()?;
        self.child.wait()
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
        // The program has said what it had to say.
        let _ = self.end();
    }
}
