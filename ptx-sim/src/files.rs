//! Files from and to outside. What is read is a regular file of limited size, so that a pipe, a device or
//! an endless file neither hangs the program nor fills its memory. What is written does not replace
//! anything unasked, and never anything but a regular file.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;

use crate::error::SimError;

/// Most bytes of a text: PTX, a launch specification, a trace, a list of survivors. Its tokens take many
/// times as much memory.
pub const MAX_TEXT: u64 = 32 << 20;

/// What happens to a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is an error.
    Refuse,
    /// A regular file gets the new contents; it stays the same file, with its permissions.
    Replace,
}

fn error(path: &Path, message: impl Into<String>) -> SimError {
    SimError::Io {
        path: path.display().to_string(),
        message: message.into(),
    }
}

/// Opens without waiting for the other end of a pipe.
fn options() -> OpenOptions {
    let options = OpenOptions::new();
    #[cfg(unix)]
    let options = {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = options;
        options.custom_flags(libc::O_NONBLOCK);
        options
    };
    options
}

/// How many bytes a regular file says that it has.
fn regular(path: &Path, file: &File) -> Result<u64, SimError> {
    let kind = file.metadata().map_err(|e| error(path, e.to_string()))?;
    if kind.is_file() {
        return Ok(kind.len());
    }
    Err(error(path, "not a regular file"))
}

/// Reads a regular file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, SimError> {
    let io = |e: std::io::Error| error(path, e.to_string());
    let file = options().read(true).open(path).map_err(io)?;
    let says = regular(path, &file)?;
    let too_large = || error(path, format!("the file has more than {limit} bytes"));
    if says > limit {
        return Err(too_large());
    }
    // What the file says of its size need not be true: files of /proc say 0, and files grow.
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Reads a text of at most [`MAX_TEXT`] bytes.
pub fn read_text(path: &Path) -> Result<String, SimError> {
    let bytes = read(path, MAX_TEXT)?;
    String::from_utf8(bytes).map_err(|e| error(path, e.to_string()))
}

/// Whether [`create`] would refuse a path because of what is there now, or because it is one of the
/// files that are read. For before long work.
pub fn check_output(path: &Path, existing: Existing, inputs: &[&Path]) -> Result<(), SimError> {
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(error(path, e.to_string())),
    };
    if existing == Existing::Refuse {
        return Err(error(path, EXISTS));
    }
    if !there.is_file() {
        return Err(error(path, "not a regular file: it is not replaced"));
    }
    match inputs
        .iter()
        .any(|i| same_file::is_same_file(path, i).unwrap_or(false))
    {
        true => Err(error(path, "this file is read: it is not replaced")),
        false => Ok(()),
    }
}

const EXISTS: &str = "the file exists; --force replaces it";

/// Opens a file to write, as [`Existing`] says.
pub fn create(path: &Path, existing: Existing) -> Result<File, SimError> {
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AlreadyExists => error(path, EXISTS),
        _ => error(path, e.to_string()),
    };
    let mut options = options();
    options.write(true);
    if existing == Existing::Refuse {
        return options.create_new(true).open(path).map_err(io);
    }
    check_output(path, existing, &[])?;
    // Nothing is lost before it is known what was opened.
    let file = options
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io)?;
    regular(path, &file)?;
    file.set_len(0).map_err(io)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("ptx-sim-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn sizes_are_limited_and_directories_refused() {
        let dir = directory("read");
        let file = dir.join("f");
        std::fs::write(&file, [1, 2, 3]).unwrap();
        assert_eq!(read(&file, 3).unwrap(), [1, 2, 3]);
        let e = read(&file, 2).unwrap_err().to_string();
        assert!(e.contains("more than 2 bytes"), "{e}");
        let e = read(&dir, 3).unwrap_err().to_string();
        assert!(e.contains("not a regular file"), "{e}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn replacing_is_asked_for() {
        use std::io::Write;
        let dir = directory("write");
        let file = dir.join("f");
        let mut new = create(&file, Existing::Refuse).unwrap();
        new.write_all(b"first").unwrap();
        assert!(create(&file, Existing::Refuse).is_err());
        assert!(check_output(&file, Existing::Refuse, &[]).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"first");
        assert!(check_output(&file, Existing::Replace, &[&file]).is_err());
        check_output(&file, Existing::Replace, &[]).unwrap();
        create(&file, Existing::Replace)
            .unwrap()
            .write_all(b"2")
            .unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"2");
        assert!(create(&dir, Existing::Replace).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
