//! The program that is recorded, and signals that end this one: they end that one first, and then this process goes on
//! to remove its folder.

use std::io;
use std::process::{Command, ExitStatus};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals that end a process, kept from ending this one.
pub(crate) struct Ending {
    signals: Signals,
}

impl Ending {
    /// Those that were ignored when this process started (`nohup`) stay ignored.
    pub(crate) fn new() -> io::Result<Self> {
        let mut kept = vec![SIGHUP, SIGINT, SIGQUIT, SIGTERM];
        kept.retain(|signal| !is_ignored(*signal));
        kept.push(SIGCHLD);
        let signals = Signals::new(kept)?;
        Ok(Self { signals })
    }

    /// Runs a program to its end. A signal is sent on to it; one that comes when it is still there kills it.
    pub(crate) fn run(mut self, command: &mut Command) -> io::Result<ExitStatus> {
        let mut child = command.spawn()?;
        let mut was_told = false;
        // Only this thread waits for the program: until it has, nobody else gets its number.
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            for signal in self.signals.wait() {
                if signal == SIGCHLD {
                    continue;
                }
                let sent = if was_told { SIGKILL } else { signal };
                was_told = true;
                if child.try_wait()?.is_none() {
                    // SAFETY: the call takes two numbers, of which the first is a child's that was not waited for.
                    unsafe { libc::kill(child.id() as libc::pid_t, sent) };
                }
            }
        }
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a structure of integers and perhaps a function pointer in an Option, for which zero is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action nothing is changed, and `now` may be written to.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}
