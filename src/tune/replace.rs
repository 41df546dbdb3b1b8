//! Writes a file in one step: whoever reads it meanwhile finds the earlier content, or the whole new content.
//!
//! The content goes to a temporary file in the same folder, which then takes the file's name. Until then the name
//! stands for what it did before. A symbolic link stays one: the file that it leads to is replaced. A new file has the
//! rights that the umask leaves; one that replaces another has its mode, and its owner and group as far as the system
//! allows.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use nvfp4_gemv_files::printable;
use tempfile::NamedTempFile;

/// The place that a file is written to.
struct Place {
    /// The path without symbolic links at its end.
    path: PathBuf,
    /// The file that will be replaced, if there is one.
    existing: Option<Metadata>,
}

/// Whether a file could be written now. Leaves nothing.
///
/// # Errors
/// A path to something that is no regular file is refused: a pipe, a device, a directory. So is a path in a folder that
/// is not there, and whatever the system refuses.
pub(super) fn check(path: &Path) -> io::Result<()> {
    Place::of(path)?.temporary().map(drop)
}

/// Writes a file, and replaces one that is there if `replace` says so.
///
/// # Errors
/// As [`check`]; [`ErrorKind::AlreadyExists`] for a file that may not be replaced.
pub(super) fn write(path: &Path, content: &str, replace: bool) -> io::Result<()> {
    let place = Place::of(path)?;
    let mut file = place.temporary()?;
    file.write_all(content.as_bytes())?;
    if let Some(existing) = &place.existing {
        take_rights(file.as_file(), existing)?;
    }
    // On the disk before it has a name: a power cut cannot leave an empty file under it.
    file.as_file().sync_all()?;
    let named = match replace {
        true => file.persist(&place.path),
        false => file.persist_noclobber(&place.path),
    };
    named.map(drop).map_err(|error| error.error)
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let names_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if path.file_name().is_none() || names_folder {
            let why = "this names a directory; name the file to write";
            return Err(io::Error::new(ErrorKind::IsADirectory, why));
        }
        // A file that another process replaces meanwhile is two files; a link of /proc stays one.
        const TRIES: usize = 16;
        let tries = (0..TRIES).map(|_| Self::through_links(path));
        let mut found = tries.filter_map(Result::transpose);
        found.next().unwrap_or_else(|| {
            let why = "this leads to an open file; name the file itself";
            Err(io::Error::new(ErrorKind::InvalidInput, why))
        })
    }

    /// The place at the end of all links; `None` where another file was there than the system finds through them. A
    /// link of /proc leads to an open file, whatever has the name that it shows.
    fn through_links(path: &Path) -> io::Result<Option<Self>> {
        // The answer of the system through all links comes first: the system may not let this process follow them.
        let found = metadata(path)?;
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            let why = "this is not a regular file";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let path = end_of_links(path)?;
        let existing = metadata(&path)?;
        let same = is_same(found.as_ref(), existing.as_ref());
        Ok(same.then_some(Self { path, existing }))
    }

    /// A new file in the folder.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        let folder = folder_of(&self.path);
        if !folder.is_dir() {
            let why = format!("there is no directory {}", printable::path(folder));
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".nvfp4-gemv-").suffix(".tmp");
        #[cfg(unix)]
        let rights = {
            use std::os::unix::fs::PermissionsExt;
            // Its owner's alone until it gets the rights of the file that it replaces.
            let mode = if self.existing.is_some() {
                0o600
            } else {
                0o666
            };
            fs::Permissions::from_mode(mode)
        };
        #[cfg(unix)]
        builder.permissions(rights);
        builder.tempfile_in(folder)
    }
}

/// Gives a file the mode, and where possible the owner and group, of the one that it replaces.
#[cfg(unix)]
fn take_rights(file: &File, replaced: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let mut mode = replaced.mode() & 0o777;
    let own = file.metadata()?;
    let (uid, gid) = (replaced.uid(), replaced.gid());
    if (own.uid(), own.gid()) != (uid, gid)
        && fchown(file, Some(uid), Some(gid)).is_err()
        && own.gid() != gid
        && fchown(file, None, Some(gid)).is_err()
    {
        // The group's rights would go to another group: nobody gets them.
        mode &= 0o707;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn take_rights(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Whether two are one file, or no file both times.
fn is_same(one: Option<&Metadata>, other: Option<&Metadata>) -> bool {
    #[cfg(unix)]
    if let (Some(one), Some(other)) = (one, other) {
        use std::os::unix::fs::MetadataExt;
        return (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    one.is_some() == other.is_some()
}

/// Metadata of the file at a path, through symbolic links.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The path to which the last part of a path leads, through symbolic links, whether or not something is there.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => return Ok(path), // no link
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// The folder that a path's last part is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_keeps_its_mode_and_a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (file, link) = (at("file"), at("link"));
        // The link leads to nothing yet: the file is made there.
        symlink("file", &link).unwrap();
        write(&link, "new", false).unwrap();
        fs::write(at("plain"), "").unwrap();
        assert_eq!(mode(&file), mode(&at("plain")), "what the umask leaves");
        for other in [0o640, 0o600, 0o604] {
            fs::set_permissions(&file, fs::Permissions::from_mode(other)).unwrap();
            write(&link, "newer", true).unwrap();
            assert_eq!(mode(&file), other);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_may_not_be_replaced_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "old").unwrap();
        let error = write(&file, "new", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        for (refused, kind) in [
            (folder.path().to_owned(), ErrorKind::InvalidInput),
            (folder.path().join("no/file"), ErrorKind::NotFound),
            (folder.path().join("new/"), ErrorKind::IsADirectory),
            ("/dev/null".into(), ErrorKind::InvalidInput),
        ] {
            assert_eq!(check(&refused).unwrap_err().kind(), kind, "{refused:?}");
            let error = write(&refused, "new", true).unwrap_err();
            assert_eq!(error.kind(), kind, "{refused:?}");
        }
        // A file that is open and has no name, or whose name is another file's by now.
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let gone = tempfile::tempfile().unwrap();
            let opened = File::open(&file).unwrap();
            fs::remove_file(&file).unwrap();
            fs::write(&file, "old").unwrap();
            for open in [gone, opened] {
                let link = format!("/proc/self/fd/{}", open.as_raw_fd());
                let error = write(Path::new(&link), "new", true).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
        }
        check(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
