//! What is said when a mapped file goes away.
//!
//! Large tensor files are mapped. Where one becomes shorter while it is used, or its disk fails, the system
//! sends the signal SIGBUS, whose default is to end the program without a word.

#[cfg(target_os = "linux")]
pub(crate) use linux::report;

/// Nothing: other systems send the signal for other reasons as well.
#[cfg(not(target_os = "linux"))]
pub(crate) fn report() {}

#[cfg(target_os = "linux")]
mod linux {
    use std::ptr::null_mut;

    /// In one piece, because nothing may be put together in a signal handler.
    const MESSAGE: &[u8] =
        b"error: an input file became shorter, or could no longer be read, while it was \
        in use (SIGBUS); nothing was computed from what is missing\n\
        hint: use a copy that nobody writes to\n";

    /// The exit code of every error.
    const FAILED: libc::c_int = 1;

    /// From now on, the signal prints an error and ends the program with the exit code of one.
    pub(crate) fn report() {
        // SAFETY: an all-zero `sigaction` is a valid one: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_signal;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is initialised, and its handler calls only what a signal handler may. It fails
        // for no signal that exists; without the handler, the program would end as it did before.
        unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) };
    }

    extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid `siginfo_t` to a handler with SA_SIGINFO. `signal`, `write` and
        // `_exit` may be called in a handler (signal-safety(7)), and the message lives for ever.
        unsafe {
            if (*info).si_code != libc::BUS_ADRERR {
                // No page that is missing: the instruction is repeated, and the default ends the program.
                libc::signal(signal, libc::SIG_DFL);
                return;
            }
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(FAILED);
        }
    }
}
