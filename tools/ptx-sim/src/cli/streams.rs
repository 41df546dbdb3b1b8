//! Standard output and standard error. A result that could not be printed is an error, which is told once, at the end;
//! a reader that has seen enough and closed the pipe is none.

use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// Why standard output takes no more.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line.
pub(crate) fn line(text: &str) {
    note(writeln!(io::stdout(), "{text}"));
}

/// Says a line on standard error, of whose failure nothing can be told.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Flushes the streams, and returns the error that kept results from being printed.
pub(crate) fn finish() -> Result<(), String> {
    note(io::stdout().flush());
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    match failed.take() {
        Some(why) => Err(why.to_string()),
        None if start::was_closed() => Err("it was closed when this program started".into()),
        None => Ok(()),
    }
}

/// Remembers what kept something from being printed.
pub(crate) fn note(printed: io::Result<()>) {
    let Err(why) = printed else { return };
    if why.kind() != ErrorKind::BrokenPipe {
        let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert(why);
    }
}

/// Rust opens `/dev/null` in the place of a standard output that is closed, before `main`: so it is looked at before
/// that.
#[cfg(target_os = "linux")]
mod start {
    use std::sync::atomic::{AtomicBool, Ordering};

    static CLOSED: AtomicBool = AtomicBool::new(false);

    // SAFETY: the section holds pointers to functions of this type, which the system's loader calls once each. This one
    // calls nothing that needs Rust's runtime.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static LOOK: extern "C" fn() = look;

    extern "C" fn look() {
        // SAFETY: asks for the flags of a descriptor; of one that is not there, that is an error and no more.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        CLOSED.store(flags == -1, Ordering::Relaxed);
    }

    pub(super) fn was_closed() -> bool {
        CLOSED.load(Ordering::Relaxed)
    }
}

#[cfg(not(target_os = "linux"))]
mod start {
    pub(super) fn was_closed() -> bool {
        false
    }
}
