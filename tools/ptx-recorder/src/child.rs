//! The program that is recorded, and signals that end this process. Such a signal ends the program first, and then this
//! process goes on to remove its folder.
//!
//! Both are in one process group, and signals to the group reach the program without this process. Two signals would
//! not be harmless if the program got them again from here: that of a terminal at Ctrl-C, which programs count, and one
//! that is taken for a second request. So neither is sent on.

use std::io;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

/// A signal that comes so long after the first asks again. Before that it may be the same request, to this process and
/// to its group (`timeout`).
const AGAIN: Duration = Duration::from_secs(1);

/// Signals that end a process, kept from ending this one.
pub(crate) struct Ending {
    signals: SignalsInfo<WithRawSiginfo>,
}

impl Ending {
    /// Keeps all of these signals. Signals that were ignored when this process started (`nohup`) stay ignored.
    pub(crate) fn new() -> io::Result<Self> {
        let mut kept = vec![SIGHUP, SIGINT, SIGQUIT, SIGTERM];
        kept.retain(|signal| !is_ignored(*signal));
        kept.push(SIGCHLD);
        let signals = SignalsInfo::new(kept)?;
        Ok(Self { signals })
    }

    /// Runs a program to its end. Signals are sent on to it; one that comes [`AGAIN`] when it is still there kills it.
    pub(crate) fn run(mut self, command: &mut Command) -> io::Result<ExitStatus> {
        let mut child = command.spawn()?;
        let mut told = None;
        // Only this thread waits for the program: until it has, nobody else gets its number.
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let pending = self.signals.wait();
            let now = Instant::now();
            for info in pending {
                if info.si_signo == SIGCHLD || is_of_terminal(&info) {
                    continue;
                }
                let sent = match now.saturating_duration_since(*told.get_or_insert(now)) < AGAIN {
                    true => info.si_signo,
                    false => SIGKILL,
                };
                if child.try_wait()?.is_none() {
                    // SAFETY: the call takes two numbers, of which the first is a child's that was not waited for.
                    unsafe { libc::kill(child.id() as libc::pid_t, sent) };
                }
            }
        }
    }
}

/// Whether the kernel sent it, for a key that was pressed: then the program has got it as well.
fn is_of_terminal(info: &libc::siginfo_t) -> bool {
    info.si_code == libc::SI_KERNEL && [SIGINT, SIGQUIT].contains(&info.si_signo)
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a structure of integers and perhaps a function pointer in an Option, for which zero is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action nothing is changed, and `now` may be written to.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}
