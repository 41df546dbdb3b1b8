//! One line on stderr about long runs, where a person sees it.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs shorter than this are not talked about.
const QUIET: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(250);

/// Ends, and clears its line, when it is dropped.
pub(super) struct Progress {
    sender: Option<mpsc::Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self {
                sender: None,
                thread: None,
            };
        }
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            let mut line = String::new();
            let mut shown = false;
            loop {
                match receiver.recv_timeout(TICK) {
                    Ok(text) => line = text,
                    Err(RecvTimeoutError::Timeout) if started.elapsed() > QUIET => {
                        let seconds = started.elapsed().as_secs();
                        let mut stderr = std::io::stderr();
                        let _ = write!(stderr, "\r\x1b[K{line}, {seconds} s");
                        shown = true;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            if shown {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        });
        Self {
            sender: Some(sender),
            thread: Some(thread),
        }
    }

    /// Shows the activity that goes on now.
    pub(super) fn say(&self, text: impl FnOnce() -> String) {
        if let Some(s) = &self.sender {
            let _ = s.send(text());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
