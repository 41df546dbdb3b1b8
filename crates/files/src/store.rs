//! A folder of files that were made of other things, each named by a hash of all that it was made of.
//!
//! A file is one line of JSON, and two parts. The line says how long the parts are, and has a hash of them, of their
//! lengths and of the file's name. A file appears whole, by a rename. One that is damaged, or has another name than it
//! was made for, counts as none and is replaced. So does what is not a regular file, which is not read. The hash is no
//! proof against somebody who writes to the folder on purpose: [`Store::private`] uses none that others may write to.

use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::input;

/// Limit: more than any file has. A kernel's machine code has a few hundred kB.
const MOST_BYTES: u64 = 256 << 20;

/// Contents of a file: a text, and bytes, which may be none.
pub type Parts = (String, Vec<u8>);

/// The folder.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    private: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    ptx: usize,
    cubin: usize,
    sha256: String,
}

impl Head {
    /// The head of a file of this name, with these parts.
    fn of(name: &str, text: &[u8], binary: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [name.as_bytes(), text, binary] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self {
            ptx: text.len(),
            cubin: binary.len(),
            sha256: hex(&hash.finalize()),
        }
    }
}

impl Store {
    /// A store in a folder, which is made when something is kept.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            private: false,
        }
    }

    /// In a folder that nobody has named: used only where it is this user's, and nobody else may write to it.
    pub fn private(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            private: true,
        }
    }

    /// Why the folder is not used, if it is not. One that is not there yet will be made.
    pub fn refused(&self) -> Option<&'static str> {
        match fs::metadata(&self.folder) {
            Ok(there) if self.private => whose(&there),
            _ => None,
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The contents of a file. None where the file is missing or damaged.
    pub fn read(&self, name: &str) -> Option<Parts> {
        if self.refused().is_some() {
            return None;
        }
        let bytes = input::read(&self.folder.join(name), MOST_BYTES).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        let body = &bytes[end + 1..];
        let length = head.ptx.checked_add(head.cubin)?;
        if length != body.len() {
            return None;
        }
        let (text, binary) = body.split_at(head.ptx);
        if Head::of(name, text, binary).sha256 != head.sha256 {
            return None;
        }
        Some((String::from_utf8(text.to_vec()).ok()?, binary.to_vec()))
    }

    /// Makes a file, or replaces it.
    pub fn write(&self, name: &str, text: &str, binary: &[u8]) -> std::io::Result<()> {
        let head = Head::of(name, text.as_bytes(), binary);
        self.make()?;
        if let Some(why) = self.refused() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file: what the umask leaves. A folder may be several users'.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut partial = builder.tempfile_in(&self.folder)?;
        serde_json::to_writer(&mut partial, &head)?;
        partial.write_all(b"\n")?;
        partial.write_all(text.as_bytes())?;
        partial.write_all(binary)?;
        partial.persist(self.folder.join(name))?;
        Ok(())
    }

    fn make(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        if self.private {
            // Whatever the umask is: a group may write to what it leaves.
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        }
        builder.create(&self.folder)
    }
}

/// Why a folder is not this user's alone.
#[cfg(unix)]
fn whose(folder: &Metadata) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: the call has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    why_not_private(folder.uid(), folder.mode(), user)
}

#[cfg(not(unix))]
fn whose(_: &Metadata) -> Option<&'static str> {
    None
}

/// Whoever is root may write anywhere, and need not be kept out.
#[cfg(unix)]
fn why_not_private(owner: u32, mode: u32, user: u32) -> Option<&'static str> {
    match mode & 0o022 {
        _ if owner != user && owner != 0 => Some("it is another user's"),
        0 => None,
        _ => Some("others may write to it"),
    }
}

/// A hash of everything that a file is made of. Each part is preceded by its length, so that no two lists of parts hash
/// the same text.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_count_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("below"));
        let file = store.folder().join("x.kernel");
        let kept: Parts = ("// ptx\n".into(), vec![0, 10, 255]);
        assert_eq!(store.read("x.kernel"), None);
        store.write("x.kernel", &kept.0, &kept.1).unwrap();
        assert_eq!(store.read("x.kernel"), Some(kept.clone()));
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(store.read("x.kernel"), None);
        let mut other = whole.clone();
        *other.last_mut().unwrap() ^= 1;
        fs::write(&file, &other).unwrap();
        assert_eq!(store.read("x.kernel"), None);
        fs::write(&file, b"").unwrap();
        assert_eq!(store.read("x.kernel"), None);
        store.write("x.kernel", &kept.0, &kept.1).unwrap();
        assert_eq!(store.read("x.kernel"), Some(kept));
        let left = fs::read_dir(store.folder()).unwrap().count();
        assert_eq!(left, 1, "no partial file stays");
    }

    /// A whole file is a damaged one under another name, and where its parts are cut elsewhere.
    #[test]
    fn a_file_is_that_of_its_name_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path());
        let at = |name: &str| folder.path().join(name);
        store.write("x.kernel", "// ptx", b"cubin").unwrap();
        fs::copy(at("x.kernel"), at("y.kernel")).unwrap();
        assert_eq!(store.read("y.kernel"), None);
        let text = fs::read_to_string(at("x.kernel")).unwrap();
        let moved = text.replace(r#""ptx":6,"cubin":5"#, r#""ptx":0,"cubin":11"#);
        assert_ne!(text, moved);
        fs::write(at("x.kernel"), moved).unwrap();
        assert_eq!(store.read("x.kernel"), None);
        // As files were that knew nothing of their names: whole, and empty.
        let empty = hex(&Sha256::digest(b""));
        fs::write(
            at("x.kernel"),
            format!("{{\"ptx\":0,\"cubin\":0,\"sha256\":\"{empty}\"}}\n"),
        )
        .unwrap();
        assert_eq!(store.read("x.kernel"), None);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_not_waited_for_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path());
        let at = |name: &str| folder.path().join(name);
        let made = std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status();
        assert!(made.unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        let endless = fs::File::create(at("endless")).unwrap();
        endless.set_len(1 << 40).unwrap();
        for name in ["pipe", "zero", "endless"] {
            assert_eq!(store.read(name), None, "{name}");
            store.write(name, "text", b"binary").unwrap();
            assert_eq!(
                store.read(name),
                Some(("text".into(), b"binary".into())),
                "{name}"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_to_is_not_used_unasked() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("cache");
        let (named, unasked) = (Store::at(&place), Store::private(&place));
        let mode = |mode| fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        unasked.write("x", "text", b"").unwrap();
        assert_eq!(
            fs::metadata(&place).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert!(unasked.read("x").is_some());
        for shared in [0o770, 0o707, 0o777] {
            mode(shared);
            assert_eq!(unasked.refused(), Some("others may write to it"));
            assert_eq!(unasked.read("x"), None);
            unasked.write("y", "text", b"").unwrap_err();
            assert!(named.read("x").is_some(), "it was asked for");
        }
        mode(0o755);
        assert!(unasked.read("x").is_some());
        let [user, root, other] = [1000, 0, 1001];
        assert_eq!(why_not_private(user, 0o755, user), None);
        assert_eq!(why_not_private(root, 0o755, user), None);
        for user in [user, root] {
            assert_eq!(
                why_not_private(other, 0o700, user),
                Some("it is another user's")
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn files_have_the_rights_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path());
        store.write("x.kernel", "// ptx\n", &[1]).unwrap();
        fs::write(folder.path().join("any"), "").unwrap();
        let mode = |name: &str| {
            let metadata = fs::metadata(folder.path().join(name)).unwrap();
            metadata.permissions().mode()
        };
        assert_eq!(mode("x.kernel"), mode("any"));
    }
}
