//! The one way in which these programs open a file that somebody names.
//!
//! A path may lead to anything. Opening a named pipe waits until somebody writes to it, opening some devices does
//! something, and reading `/dev/zero` never ends. So the type is looked at first, and the file is opened without
//! waiting. Then the type is looked at again on the opened file, which nobody can exchange. Files that are read whole
//! have a limit.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Why a file is not read.
#[derive(Debug)]
pub enum InputError {
    /// The system's reason.
    Io(io::Error),
    /// The path leads to something else than a file; the text says to what.
    NotRegular(&'static str),
    /// The file has more bytes than such a file can have.
    TooLarge {
        /// The most bytes.
        most: u64,
    },
}

impl From<io::Error> for InputError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Opens a regular file, and says what the system knows of it. Never waits.
pub fn open(path: &Path) -> Result<(File, Metadata), InputError> {
    check(&std::fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Means nothing for a regular file, and does not wait where a pipe has taken its place.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata))
}

/// Reads a regular file whole, if it has no more than `most` bytes.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, InputError> {
    let (file, metadata) = open(path)?;
    let bytes = match metadata.len() {
        length if length > most => None,
        _ => up_to(&file, most)?,
    };
    bytes.ok_or(InputError::TooLarge { most })
}

/// All bytes of a file, or `None` if there are more than `most`: what the system says of the length may be
/// wrong (/proc), or no longer true.
pub fn up_to(file: &File, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

fn check(metadata: &Metadata) -> Result<(), InputError> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(InputError::NotRegular(what(metadata.file_type()))),
    }
}

fn what(of: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if of.is_fifo() {
            return "a pipe";
        }
        if of.is_socket() {
            return "a socket";
        }
        if of.is_char_device() || of.is_block_device() {
            return "a device";
        }
    }
    if of.is_dir() {
        "a directory"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_up_to_the_limit_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        let error = read(&path, 3);
        assert!(matches!(error, Err(InputError::TooLarge { most: 3 })));
        let missing = read(&folder.path().join("g"), 3);
        assert!(matches!(missing, Err(InputError::Io(e)) if e.kind() == io::ErrorKind::NotFound));
    }

    /// Files of /proc say that they have 0 bytes.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_length_is_not_believed() {
        let error = read(Path::new("/proc/self/maps"), 8);
        assert!(matches!(error, Err(InputError::TooLarge { most: 8 })));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        for (path, expected) in [
            (&*pipe, "a pipe"),
            (&*link, "a pipe"),
            (Path::new("/dev/null"), "a device"),
            (folder.path(), "a directory"),
        ] {
            let error = open(path).map(drop);
            assert!(
                matches!(error, Err(InputError::NotRegular(what)) if what == expected),
                "{error:?}"
            );
        }
    }
}
