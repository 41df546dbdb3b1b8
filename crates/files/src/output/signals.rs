//! Signals that end a program which writes files.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::temporary::names;

/// Makes the signals that end this process (HUP, INT, QUIT, TERM) remove its temporary files first; those that
/// were ignored when it started (`nohup`) stay ignored. A write beyond the limit of file sizes
/// (`ulimit -f`) becomes an error, instead of ending the process by the signal XFSZ.
///
/// This is for programs, and they call it once: a library has no say in a process's signals.
///
/// # Errors
/// Errors of the system where it has no more file descriptors or threads.
pub fn remove_temporaries_on_signals() -> io::Result<()> {
    // A handler that does nothing is enough: the write then returns an error.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut fatal = vec![SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    fatal.retain(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(fatal)?;
    let end = move || {
        for signal in signals.forever() {
            // Held to the end: no other thread makes another file.
            let names = names();
            for name in &*names {
                // The file may have got its real name just now.
                let _ = fs::remove_file(name);
            }
            // The signal's number is one of the above, which all have a default.
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(end)?;
    Ok(())
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a structure of integers and perhaps a function pointer in an Option, for which zero is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action nothing is changed, and `now` may be written to.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}
