//! The streams that the program was started with. A result may go to standard output, under whatever name: then nothing
//! else may. Which file a stream is says the file itself, not the name that leads there.

use std::fs::Metadata;
#[cfg(unix)]
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stream that a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standard {
    Output,
    Error,
}

/// Whether standard output holds a result. A static, as the process has one standard output.
static HOLDS_RESULT: AtomicBool = AtomicBool::new(false);

/// Whether a result goes to standard output, so that a report must go elsewhere. [`Destination::check`] and
/// [`Destination::create`] see to that.
///
/// [`Destination::check`]: super::Destination::check
/// [`Destination::create`]: super::Destination::create
pub fn stdout_holds_result() -> bool {
    HOLDS_RESULT.load(Ordering::Relaxed)
}

pub(super) fn stdout_gets_result() {
    HOLDS_RESULT.store(true, Ordering::Relaxed);
}

/// The standard stream that this file is. A file that is both counts as standard error: messages cannot go elsewhere.
#[cfg(unix)]
pub(super) fn which(file: &Metadata) -> Option<Standard> {
    use rustix::fs::fstat;
    let is = |stream: rustix::io::Result<_>| stream.is_ok_and(|stream| is_same(file, &stream));
    match () {
        () if is_null(file) => None,
        () if is(fstat(io::stderr())) => Some(Standard::Error),
        () if is(fstat(io::stdout())) => Some(Standard::Output),
        () => None,
    }
}

#[cfg(not(unix))]
pub(super) fn which(_: &Metadata) -> Option<Standard> {
    None
}

#[cfg(unix)]
#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // not on every system
fn is_same(file: &Metadata, stream: &rustix::fs::Stat) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use rustix::fs::FileType;

    let is_device = FileType::from_raw_mode(stream.st_mode) == FileType::CharacterDevice;
    match file.file_type().is_char_device() {
        // A device may have several names that are no links.
        true => is_device && file.rdev() == stream.st_rdev as u64,
        false => (file.dev(), file.ino()) == (stream.st_dev as u64, stream.st_ino as u64),
    }
}

/// Whether this is `/dev/null`, where no output mixes with any other.
#[cfg(unix)]
fn is_null(file: &Metadata) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    file.file_type().is_char_device() && null.is_ok_and(|null| null == file.rdev())
}

/// Whether standard output was closed when the process started. Rust opens `/dev/null` in its place before `main`: so
/// it is looked at before that.
#[cfg(feature = "program")]
pub fn stdout_was_closed() -> bool {
    #[cfg(target_os = "linux")]
    return start::CLOSED.load(Ordering::Relaxed);
    #[cfg(not(target_os = "linux"))]
    return false;
}

#[cfg(all(target_os = "linux", feature = "program"))]
mod start {
    use super::{AtomicBool, Ordering};

    pub(super) static CLOSED: AtomicBool = AtomicBool::new(false);

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
}
