//! A process that nobody waits for without a bound.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// A child process, killed when this value is dropped. Its output is read as it comes, so that no pipe fills.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn()?;
        let stdout = child.stdout.take().context("it is piped")?;
        let mut stderr = child.stderr.take().context("it is piped")?;
        let (send, lines) = channel();
        spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.try_for_each(|line| send.send(line))
        });
        let errors = spawn(move || {
            let mut said = Vec::new();
            let _ = stderr.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        Ok(Self {
            child,
            lines,
            errors: Some(errors),
        })
    }

    /// Waits until the process has printed this line. NCCL may print other lines before.
    pub(crate) fn await_line(&mut self, expected: &str, within: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            let left = within.saturating_sub(begin.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) if line == expected => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("{expected:?} did not come in time"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("a rank ended before {expected:?}: {}", self.errors())
                }
            }
        }
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits until the process has ended. A process that does not end is killed, and that is an error.
    pub(crate) fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begin.elapsed() >= within {
                self.kill()?;
                self.child.wait()?;
                bail!("it hangs, and was killed: {}", self.errors());
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// The lines that the process printed, when it has ended well.
    pub(crate) fn output(mut self, within: Duration) -> Result<Vec<String>> {
        let status = self.wait(within)?;
        if !status.success() {
            return Err(anyhow!("{status}: {}", self.errors()));
        }
        Ok(self.lines.iter().collect())
    }

    /// The error output of a process, which is killed first.
    pub(crate) fn errors(&mut self) -> String {
        let _ = self.child.kill();
        let said = self.errors.take().and_then(|errors| errors.join().ok());
        said.unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Also where a test has failed: nobody is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
