//! The message when a mapped file goes away.
//!
//! Large tensor files are mapped. If a mapped file becomes shorter while it is used, or its disk fails, the system
//! sends the signal SIGBUS, whose default is to end the program without a word. The program ends in the handler; a
//! temporary file that has a name stays then, and one without a name goes away as always.

#[cfg(target_os = "linux")]
pub(crate) use linux::report;

/// Nothing: other systems send the signal for other reasons as well.
#[cfg(not(target_os = "linux"))]
pub(crate) fn report() {}

#[cfg(target_os = "linux")]
mod linux {
    use std::ptr::null_mut;

    /// In one piece, because nothing may be put together in a signal handler. It says "probably", because the
    /// handler does not know which addresses belong to input files.
    const MESSAGE: &[u8] =
        b"error: probably an input file became shorter, or could no longer be read, while it was \
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
        // SAFETY: the system passes a valid `siginfo_t` to a handler with SA_SIGINFO. `signal`, `raise`,
        // `write` and `_exit` may be called in a handler (signal-safety(7)), and the message lives for ever.
        unsafe {
            if (*info).si_code != libc::BUS_ADRERR {
                // No page that is missing, or another process has sent the signal: what happens without a
                // handler. The signal is blocked until this returns, and ends the program then.
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
                return;
            }
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(FAILED);
        }
    }
}
