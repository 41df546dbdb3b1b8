//! The folder `.NAME.partial`, in which runs write a directory until it is complete. It is used only where a run made
//! it: what somebody else keeps under that name is neither written nor removed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use nvfp4_gemv::checkpoint::{CONFIG_FILE, INDEX_FILE, QUANT_CONFIG_FILE, name_matches};
use nvfp4_gemv_files::printable;

/// The file that a run holds while it writes.
const LOCK: &str = "lock";

/// What the lock holds: a run made the folder.
const MARK: &[u8] = b"nvfp4-gemv quantize --to\n";

/// The folder, held by this run.
pub(super) struct Partial {
    pub(super) path: PathBuf,
    lock: File,
}

impl Partial {
    /// Makes the folder beside `to`, or takes what an earlier run left. `others` are names of small files of the output.
    pub(super) fn take(to: &Path, others: &[String]) -> Result<Self> {
        let Some(name) = to.file_name() else {
            bail!(
                "{}: names no directory that could be made",
                printable::path(to)
            );
        };
        let parent = parent(to);
        fs::create_dir_all(parent).with_context(|| printable::path(parent).to_string())?;
        let path = parent.join(format!(".{}.partial", name.to_string_lossy()));
        let lock = match lock(&path) {
            Ok(lock) => lock,
            // The folder has its name meanwhile.
            Err(error) => return Err(refuse_existing(to).err().unwrap_or(error)),
        };
        let mut partial = Self { path, lock };
        // A program that held the lock before may have written the directory by now: then this one has made another to
        // lock in, or opened a lock that is no longer in one.
        if let Err(error) = refuse_existing(to) {
            let _ = fs::remove_file(partial.path.join(LOCK));
            let _ = fs::remove_dir(&partial.path);
            return Err(error);
        }
        partial.check(others)?;
        Ok(partial)
    }

    /// Refuses what no run leaves in its folder, and marks a new one.
    fn check(&mut self, others: &[String]) -> Result<()> {
        let mut mark = Vec::new();
        let most = MARK.len() as u64 + 1;
        (&self.lock).take(most).read_to_end(&mut mark)?;
        let names = names(&self.path)?;
        if mark != MARK {
            // A run was ended before it had written its mark.
            if !(names.is_empty() && MARK.starts_with(&mark)) {
                return Err(not_ours(&self.path));
            }
            self.lock.rewind()?;
            self.lock.write_all(MARK)?;
        }
        for name in names {
            let path = self.path.join(&name);
            let kind = path.symlink_metadata()?.file_type();
            let is_known = name
                .to_str()
                .is_some_and(|name| is_made(name) || others.iter().any(|other| other == name));
            let what = match (kind.is_file(), is_known) {
                (true, true) => continue,
                (true, false) => "a file that no run makes",
                _ if kind.is_dir() => "a folder",
                _ => "no regular file",
            };
            bail!(
                "{}: {what}, where there are only files that are being written; it has to go first",
                printable::path(&path)
            );
        }
        Ok(())
    }

    pub(super) fn kept_for_later(&self) -> String {
        format!(
            "nothing was written to the directory; the same command goes on from {}",
            printable::path(&self.path)
        )
    }

    /// Removes what is no part of the output: files of an earlier run with other arguments, and their notes.
    pub(super) fn clean(&self, wanted: &[&str]) -> Result<()> {
        for name in names(&self.path)? {
            let is_old = |name: &str| is_made(name) && !wanted.contains(&name);
            if name.to_str().is_some_and(is_old) {
                fs::remove_file(self.path.join(name))?;
            }
        }
        Ok(())
    }

    /// Gives the complete directory its name, while the lock keeps others out: a second program that comes late sees
    /// the directory.
    pub(super) fn publish(self, to: &Path) -> Result<()> {
        // A rename replaces an empty directory.
        refuse_existing(to)?;
        // Windows renames no directory with an open file.
        let lock = (!cfg!(windows)).then_some(self.lock);
        fs::rename(&self.path, to).with_context(|| printable::path(to).to_string())?;
        let _ = fs::remove_file(to.join(LOCK));
        drop(lock);
        if let Ok(parent) = File::open(parent(to)) {
            // The name is on disk; where a file system cannot promise that, it is there all the same.
            let _ = parent.sync_all();
        }
        Ok(())
    }
}

/// The note that a file is complete.
pub(super) fn done_name(file: &str) -> String {
    format!("{file}.done")
}

/// Whether runs make files of this name, small files of the input aside.
fn is_made(name: &str) -> bool {
    let file = name.strip_suffix(".done").unwrap_or(name);
    [CONFIG_FILE, QUANT_CONFIG_FILE, INDEX_FILE].contains(&name)
        || file == "model.safetensors"
        || name_matches("model-*-of-*.safetensors", file)
        // Where a file system has no files without names, as `nvfp4_gemv_files::output` says.
        || name.starts_with(".nvfp4-gemv-")
}

pub(super) fn refuse_existing(to: &Path) -> Result<()> {
    match to.symlink_metadata() {
        Ok(_) => Err(anyhow!(
            "{}: is there already; --to writes a new directory",
            printable::path(to)
        )),
        Err(_) => Ok(()),
    }
}

fn parent(to: &Path) -> &Path {
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn not_ours(path: &Path) -> anyhow::Error {
    anyhow!(
        "{}: no run of this program made it; it has to go first",
        printable::path(path)
    )
}

/// What is in the folder beside the lock.
fn names(path: &Path) -> Result<Vec<OsString>> {
    let read = || {
        fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    };
    let names: std::io::Result<Vec<_>> = read();
    let mut names = names.with_context(|| printable::path(path).to_string())?;
    names.retain(|name| name != LOCK);
    Ok(names)
}

/// Makes the folder where there is none, and locks the lock in it. Follows no link, and waits for nothing.
fn lock(path: &Path) -> Result<File> {
    let shown = || printable::path(path).to_string();
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(shown);
        }
        _ => {}
    }
    let folder = path.symlink_metadata().with_context(shown)?;
    if !folder.is_dir() {
        return Err(not_ours(path));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Who this program is to the file system is known by a file that it makes there.
        let own = tempfile::tempfile_in(path).and_then(|file| file.metadata());
        if own.with_context(shown)?.uid() != folder.uid() {
            return Err(not_ours(path));
        }
    }
    let file = path.join(LOCK);
    // In this order: a run makes the lock before anything else.
    if !names(path)?.is_empty() && file.symlink_metadata().is_err() {
        return Err(not_ours(path));
    }
    if file.symlink_metadata().is_ok_and(|of| !of.is_file()) {
        return Err(not_ours(&file));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let shown = || printable::path(&file).to_string();
    let lock = options.open(&file).with_context(shown)?;
    if !lock.metadata().with_context(shown)?.is_file() {
        return Err(not_ours(&file));
    }
    if lock.try_lock().is_err() {
        bail!(
            "{}: another program writes this directory",
            printable::path(path)
        );
    }
    Ok(lock)
}
