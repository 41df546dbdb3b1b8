//! A file that has no name, or a temporary one, until it is complete.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempPath;

/// A file before it gets its name.
#[derive(Debug)]
pub(super) enum Temporary {
    /// A file without a name or a folder, which the system removes when it is closed.
    #[cfg(target_os = "linux")]
    Unnamed,
    /// A file with a temporary name beside the real one.
    Named(Name),
}

impl Temporary {
    /// A new file in a folder. If it will replace a file, nobody may do more with it from the start.
    pub(super) fn new(folder: &Path, replaces: Option<&Metadata>) -> io::Result<(File, Self)> {
        if !folder.is_dir() {
            let why = format!("there is no directory {}", crate::printable::path(folder));
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        let rights = match replaces {
            Some(_) => Rights::Owner,
            None => Rights::Umask,
        };
        // A file without a name cannot be had because there are none, or for a reason that holds for files with a name
        // too. `named` then reports that reason.
        #[cfg(target_os = "linux")]
        let made = unnamed::create(folder, rights)
            .map(|file| (file, Self::Unnamed))
            .or_else(|_| Self::named(folder, rights));
        #[cfg(not(target_os = "linux"))]
        let made = Self::named(folder, rights);
        let (file, temporary) = made?;
        if let Some(replaces) = replaces {
            take_rights(&file, replaces)?;
        }
        Ok((file, temporary))
    }

    pub(super) fn named(folder: &Path, rights: Rights) -> io::Result<(File, Self)> {
        let create = |path: &Path| rights.options().create_new(true).open(path);
        let (file, name) = Name::new(folder, create)?;
        Ok((file, Self::Named(name)))
    }

    /// Gives the file its name.
    pub(super) fn publish(self, file: &File, path: &Path, replace: bool) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed => unnamed::publish(file, path, replace),
            Self::Named(name) => {
                let _ = file;
                name.exchange_for(path, replace)
            }
        }
    }
}

/// Who may do what with a file from the moment in which it is made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rights {
    /// The rights that the umask leaves.
    Umask,
    /// Only the owner may read and write it: it takes the rights of the file that it replaces, and those may
    /// give nobody else any.
    Owner,
}

impl Rights {
    /// How to open a new file to write to.
    fn options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(
            &mut options,
            match self {
                Self::Umask => 0o666,
                Self::Owner => 0o600,
            },
        );
        options
    }
}

/// Gives a file the mode, and where possible the owner, of the one that it replaces.
#[cfg(unix)]
pub(super) fn take_rights(file: &File, replaced: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let mut mode = replaced.mode() & 0o777;
    let own = file.metadata()?;
    let (uid, gid) = (replaced.uid(), replaced.gid());
    if (own.uid(), own.gid()) != (uid, gid)
        && fchown(file, Some(uid), Some(gid)).is_err()
        && own.gid() != gid
        && fchown(file, None, Some(gid)).is_err()
    {
        // The rights of a group would go to another group: it gets those of everybody.
        mode = (mode & 0o707) | ((mode & 0o007) << 3);
    }
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
pub(super) fn take_rights(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// The folder that a path's last part is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The temporary names that are in use.
static NAMES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

pub(super) fn names() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    // The set is whole at every moment.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary name of a file. Dropped, both are gone.
#[derive(Debug)]
pub(super) struct Name {
    path: Option<TempPath>,
    key: PathBuf,
}

impl Name {
    /// A name that is in nobody's use; `make` makes the file there, and fails with
    /// [`ErrorKind::AlreadyExists`] if something is there.
    fn new<T>(
        folder: &Path,
        mut make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(T, Self)> {
        // Held until the name is in the set: who removes all names then waits for this one.
        let mut names = names();
        let (made, path) = tempfile::Builder::new()
            .prefix(".nvfp4-gemv-")
            .suffix(".tmp")
            .make_in(folder, |path| make(path))?
            .into_parts();
        let key = path.to_path_buf();
        names.insert(key.clone());
        let path = Some(path);
        Ok((made, Self { path, key }))
    }

    /// Gives the file another name.
    fn exchange_for(mut self, path: &Path, replace: bool) -> io::Result<()> {
        let Some(own) = self.path.take() else {
            return Ok(()); // it is there from `new` on
        };
        if replace {
            return own.persist(path).map_err(|e| e.error);
        }
        own.persist_noclobber(path)
            .map_err(|e| match e.error.kind() {
                ErrorKind::AlreadyExists => super::already_exists(),
                _ => e.error,
            })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        drop(self.path.take());
        names().remove(&self.key);
    }
}

/// Files without a name.
#[cfg(target_os = "linux")]
pub(super) mod unnamed {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::{AtFlags, CWD, OFlags, linkat};

    use super::*;

    pub(in super::super) fn create(folder: &Path, rights: Rights) -> io::Result<File> {
        let file = rights
            .options()
            .custom_flags(OFlags::TMPFILE.bits().cast_signed())
            .open(folder)?;
        // Without /proc it could never get a name.
        std::fs::symlink_metadata(path_of(&file))?;
        Ok(file)
    }

    /// A path that leads to an open file.
    fn path_of(file: &File) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    }

    fn link(file: &File, path: &Path) -> io::Result<()> {
        Ok(linkat(
            CWD,
            path_of(file),
            CWD,
            path,
            AtFlags::SYMLINK_FOLLOW,
        )?)
    }

    pub(super) fn publish(file: &File, path: &Path, replace: bool) -> io::Result<()> {
        match link(file, path) {
            // Btrfs does nothing when a file without a name is to be synced.
            Ok(()) => file.sync_all(),
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            Err(_) if !replace => Err(super::super::already_exists()),
            Err(_) => {
                let ((), name) = Name::new(folder_of(path), |path| link(file, path))?;
                file.sync_all()?;
                name.exchange_for(path, true)
            }
        }
    }
}
