//! Files from and to outside. Only regular files of limited size are read, so that a pipe, a device or an endless file
//! neither hangs the program nor fills its memory. A written file does not replace anything unasked, and never anything
//! but a regular file.
//!
//! Names that stand in a launch specification are a stranger's. They are opened below a folder: relative, without `..`,
//! and through no symbolic link, also where somebody makes one meanwhile.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::{Component, Path};

use crate::error::SimError;

/// Most bytes of a text: PTX, a launch specification, a trace, a list of survivors. Its tokens take many
/// times as much memory.
pub const MAX_TEXT: u64 = 32 << 20;

/// Treatment of a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// The file is an error.
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
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        options
    };
    options
}

/// The number of bytes that a regular file says it has.
fn regular(path: &Path, file: &File) -> Result<u64, SimError> {
    let kind = file.metadata().map_err(|e| error(path, e.to_string()))?;
    if kind.is_file() {
        return Ok(kind.len());
    }
    Err(error(path, "not a regular file"))
}

/// Reads a regular file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, SimError> {
    let file = options().read(true).open(path);
    up_to(path, file.map_err(|e| error(path, e.to_string()))?, limit)
}

fn up_to(path: &Path, file: File, limit: u64) -> Result<Vec<u8>, SimError> {
    let io = |e: std::io::Error| error(path, e.to_string());
    let says = regular(path, &file)?;
    let too_large = || error(path, format!("the file has more than {limit} bytes"));
    if says > limit {
        return Err(too_large());
    }
    // The size that a file says need not be true: files of /proc say 0, and files grow.
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

/// Whether [`create`] would refuse a path: because of a file that is there now, or because the path is one of the files
/// that are read. To be called before long work.
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
    emptied(path, file)
}

fn emptied(path: &Path, file: File) -> Result<File, SimError> {
    regular(path, &file)?;
    file.set_len(0).map_err(|e| error(path, e.to_string()))?;
    Ok(file)
}

/// [`read`] of a file below a folder, by a name from elsewhere.
pub fn read_below(folder: &Path, name: &Path, limit: u64) -> Result<Vec<u8>, SimError> {
    let path = folder.join(name);
    let file = below::open(folder, name, None)?;
    up_to(&path, file, limit)
}

/// [`check_output`] of a file below a folder, by a name from elsewhere.
pub fn check_output_below(
    folder: &Path,
    name: &Path,
    existing: Existing,
    inputs: &[&Path],
) -> Result<(), SimError> {
    match below::is_there(folder, name)? {
        true => check_output(&folder.join(name), existing, inputs),
        false => Ok(()),
    }
}

/// [`create`] of a file below a folder that is there, by a name from elsewhere. Makes the folders that the name has.
pub fn create_below(folder: &Path, name: &Path, existing: Existing) -> Result<File, SimError> {
    let file = below::open(folder, name, Some(existing))?;
    match existing {
        Existing::Refuse => Ok(file),
        Existing::Replace => emptied(&folder.join(name), file),
    }
}

const OUTSIDE: &str = "is not a plain relative path: it must stay below its folder";
const LINK: &str = "is a symbolic link, or lies behind one: names in a specification follow none";

/// The parts of a name that stays below its folder.
fn parts<'a>(path: &Path, name: &'a Path) -> Result<Vec<&'a Path>, SimError> {
    let part = |part| match part {
        Component::Normal(part) => Some(Ok(Path::new(part))),
        Component::CurDir => None,
        _ => Some(Err(error(path, OUTSIDE))),
    };
    let parts: Vec<_> = name
        .components()
        .filter_map(part)
        .collect::<Result<_, _>>()?;
    match parts.is_empty() {
        true => Err(error(path, OUTSIDE)),
        false => Ok(parts),
    }
}

/// Each part of a name is opened in the folder that was opened before it, so that nobody can exchange one for a link.
#[cfg(unix)]
mod below {
    use std::os::fd::OwnedFd;

    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, statat};
    use rustix::io::Errno;

    use super::*;

    /// Folders are only gone through, for which it need not be allowed to list them.
    #[cfg(target_os = "linux")]
    const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

    /// Rights that [`File`] gives a new file and a new folder: the umask takes some of them away.
    const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
    const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

    /// Opens a file to read, or to write as `existing` says.
    pub(super) fn open(
        folder: &Path,
        name: &Path,
        existing: Option<Existing>,
    ) -> Result<File, SimError> {
        let path = folder.join(name);
        let parts = parts(&path, name)?;
        let at = folder_of(folder, &path, &parts, existing.is_some())?;
        let last = parts[parts.len() - 1];
        let how = match existing {
            None => OFlags::RDONLY,
            Some(Existing::Refuse) => OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            Some(Existing::Replace) => OFlags::WRONLY | OFlags::CREATE,
        };
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match openat(&at, last, flags, FILE_MODE) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::EXIST) if existing == Some(Existing::Refuse) => Err(error(&path, EXISTS)),
            Err(why) => Err(refusal(&path, &at, last, why)),
        }
    }

    /// Whether anything has the name. A link on the way makes the question an error.
    pub(super) fn is_there(folder: &Path, name: &Path) -> Result<bool, SimError> {
        let path = folder.join(name);
        let parts = parts(&path, name)?;
        if !or_here(folder).exists() {
            return Ok(false);
        }
        // The last folder, as far as there is one.
        for end in 1..parts.len() {
            let at = folder_of(folder, &path, &parts[..end], false)?;
            match statat(&at, parts[end - 1], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if is_link(there.st_mode) => return Err(error(&path, LINK)),
                Ok(_) => {}
                Err(Errno::NOENT) => return Ok(false),
                Err(why) => return Err(refusal(&path, &at, parts[end - 1], why)),
            }
        }
        let at = folder_of(folder, &path, &parts, false)?;
        match statat(&at, parts[parts.len() - 1], AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if is_link(there.st_mode) => Err(error(&path, LINK)),
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(why) => Err(error(&path, why.to_string())),
        }
    }

    /// The folder that the last part is in.
    fn folder_of(
        folder: &Path,
        path: &Path,
        parts: &[&Path],
        make: bool,
    ) -> Result<OwnedFd, SimError> {
        let at = openat(CWD, or_here(folder), FOLDER, Mode::empty());
        let mut at = at.map_err(|why| error(folder, why.to_string()))?;
        for part in &parts[..parts.len() - 1] {
            if make {
                match mkdirat(&at, *part, FOLDER_MODE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(why) => return Err(error(path, why.to_string())),
                }
            }
            at = match openat(&at, *part, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(next) => next,
                Err(why) => return Err(refusal(path, &at, part, why)),
            };
        }
        Ok(at)
    }

    /// Names are joined to an empty path as to that of the current folder, but an empty path leads nowhere.
    fn or_here(folder: &Path) -> &Path {
        match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        }
    }

    /// Systems have several errors for a link that is not followed.
    fn refusal(path: &Path, at: &OwnedFd, part: &Path, why: Errno) -> SimError {
        match statat(at, part, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if is_link(there.st_mode) => error(path, LINK),
            _ => error(path, why.to_string()),
        }
    }

    fn is_link(mode: rustix::fs::RawMode) -> bool {
        FileType::from_raw_mode(mode) == FileType::Symlink
    }
}

/// For systems on which files cannot be opened in an open folder: links are looked for first.
#[cfg(not(unix))]
mod below {
    use super::*;

    pub(super) fn open(
        folder: &Path,
        name: &Path,
        existing: Option<Existing>,
    ) -> Result<File, SimError> {
        is_there(folder, name)?;
        let path = folder.join(name);
        let io = |e: std::io::Error| error(&path, e.to_string());
        let Some(existing) = existing else {
            return options().read(true).open(&path).map_err(io);
        };
        std::fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(io)?;
        create(&path, existing)
    }

    pub(super) fn is_there(folder: &Path, name: &Path) -> Result<bool, SimError> {
        let path = folder.join(name);
        let mut at = folder.to_path_buf();
        for part in parts(&path, name)? {
            at.push(part);
            match std::fs::symlink_metadata(&at) {
                Ok(there) if there.is_symlink() => return Err(error(&path, LINK)),
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
                Err(e) => return Err(error(&path, e.to_string())),
            }
        }
        Ok(true)
    }
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

    #[test]
    fn an_empty_folder_is_the_current_one() {
        // Tests are run in the package's folder.
        let name = Path::new("Cargo.toml");
        let refused = |folder: &str, existing| {
            let checked = check_output_below(Path::new(folder), name, existing, &[name]);
            checked.unwrap_err().to_string()
        };
        for folder in ["", "."] {
            let e = refused(folder, Existing::Replace);
            assert!(e.contains("this file is read"), "{e}");
            let e = refused(folder, Existing::Refuse);
            assert!(e.contains(EXISTS), "{e}");
        }
        read_below(Path::new(""), name, MAX_TEXT).unwrap();
    }
}
