//! Files of tuned configs: read with suspicion, written whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use nvfp4_gemv_files::input::{self, InputError};
use nvfp4_gemv_files::output::Destination;

use super::TuneError;
use crate::dispatch::measured::{GpuModel, Machine, Measurements};

/// Limit: more than any file of tuned configs has.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a file that was made on `machine`. Where it was made is compared before the rest is read: a file of another
/// version may name a kernel that is gone. Such a file is stale, not corrupt.
///
/// # Errors
/// [`TuneError::Corrupt`], [`TuneError::Foreign`], [`TuneError::Stale`], [`TuneError::Io`].
pub(super) fn load(path: &Path, machine: &Machine) -> Result<Measurements, TuneError> {
    let text = text(path)?;
    let found = Machine::from_json_lines(&text).map_err(|reason| corrupt(path, reason))?;
    if found.gpu != machine.gpu {
        return Err(TuneError::Foreign {
            path: path.into(),
            found: describe(&found.gpu),
            expected: describe(&machine.gpu),
        });
    }
    for (what, found, expected) in [
        ("driver CUDA", found.driver, &machine.driver),
        ("nvfp4-gemv", found.crate_version, &machine.crate_version),
        ("kernels", found.kernels, &machine.kernels),
    ] {
        if found != *expected {
            return Err(TuneError::Stale {
                path: path.into(),
                what,
                found,
                expected: expected.clone(),
            });
        }
    }
    parse(path, &text)
}

/// Reads a file of any machine.
pub(super) fn read(path: &Path) -> Result<Measurements, TuneError> {
    parse(path, &text(path)?)
}

fn parse(path: &Path, text: &str) -> Result<Measurements, TuneError> {
    Measurements::from_json_lines(text).map_err(|reason| corrupt(path, reason))
}

fn corrupt(path: &Path, reason: String) -> TuneError {
    TuneError::Corrupt {
        path: path.into(),
        reason,
    }
}

fn text(path: &Path) -> Result<String, TuneError> {
    let bytes = input::read(path, MOST_BYTES).map_err(|error| match error {
        InputError::Io(source) => TuneError::Io {
            path: path.into(),
            source,
        },
        InputError::NotRegular(found) => TuneError::NotRegular {
            path: path.into(),
            found,
        },
        InputError::TooLarge { most } => TuneError::TooLarge {
            path: path.into(),
            most,
        },
    })?;
    String::from_utf8(bytes).map_err(|_| corrupt(path, "it is not text".into()))
}

fn describe(gpu: &GpuModel) -> String {
    let (major, minor) = gpu.compute_capability;
    format!(
        "{} (compute capability {major}.{minor}, {} SMs)",
        gpu.name, gpu.multiprocessors
    )
}

/// Whether a file could be written, or added to, now.
pub(super) fn check_writable(path: &Path) -> Result<(), TuneError> {
    let io = io_at(path);
    // Refuses what is no file, before it is opened.
    destination(path, true).check().map_err(&io)?;
    match open(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(error)),
        _ => Ok(()),
    }
}

/// Files alone, since others are added to: what a pipe took cannot be read again.
fn destination(path: &Path, replace: bool) -> Destination {
    Destination::new(path).replace(replace).only_files()
}

fn write(path: &Path, table: &Measurements, replace: bool) -> io::Result<()> {
    destination(path, replace).write(table.to_json_lines().as_bytes())
}

/// Writes a file, whatever is there already.
pub(super) fn overwrite(path: &Path, table: &Measurements) -> Result<(), TuneError> {
    write(path, table, true).map_err(io_at(path))
}

/// Writes what `merge` makes of a file: of what it holds now, or of `None` where there is no file. Other
/// processes and threads that call this meanwhile wait, so that nobody's change is lost; readers need not wait.
///
/// There is no file beside it for a lock. The lock is on the very file that will be replaced. Whoever gets the lock has
/// to see whether the path still leads to that file, and starts anew if somebody has replaced it. Where there is no
/// file, the first one to publish a new one wins, and the others start anew.
pub(super) fn update(
    path: &Path,
    machine: &Machine,
    merge: impl Fn(Option<Measurements>) -> Measurements,
) -> Result<Measurements, TuneError> {
    /// Somebody else has been first as often as this: that is no program which saves what it measured.
    const MOST_TRIES: usize = 1000;
    let io = io_at(path);
    // Refuses what is no file, before it is opened.
    destination(path, true).check().map_err(&io)?;
    for _ in 0..MOST_TRIES {
        let locked = match lock(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(io(error)),
            Ok(None) => continue,
            Ok(locked) => locked,
        };
        let now = match &locked {
            Some(_) => Some(load(path, machine)?),
            None => None,
        };
        let merged = merge(now);
        match write(path, &merged, locked.is_some()) {
            Ok(()) => return Ok(merged),
            Err(error) if locked.is_none() && error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io(error)),
        }
    }
    Err(io(io::Error::other(format!(
        "the file keeps being replaced: {MOST_TRIES} times before something could be added"
    ))))
}

/// A file to lock: some file systems only lock what is open for writing.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// The file that a path leads to, locked until it is dropped; `None` if it has been replaced meanwhile.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    loop {
        match file.lock() {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Better without a lock than not at all.
            Err(error) if has_no_locks(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(is_still_at(&file, path)?.then_some(file))
}

/// Whether the reason is that there are no locks here; a network file system's server may have none.
fn has_no_locks(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::ENOLCK) {
        return true;
    }
    error.kind() == ErrorKind::Unsupported
}

#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (locked, now) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((locked.dev(), locked.ino()) == (now.dev(), now.ino()))
}

/// Elsewhere an open file cannot be replaced.
#[cfg(not(unix))]
fn is_still_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> TuneError {
    let path = path.to_owned();
    move |source| TuneError::Io {
        path: path.clone(),
        source,
    }
}
