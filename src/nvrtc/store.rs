//! A folder of files that were made of other things, each named by a hash of all that it was made of.
//!
//! A file is one line of JSON, which says how long its two parts are and what they hash to, and the parts. It appears
//! whole, by a rename. One that is damaged counts as none, and is replaced.
//!
//! The package of the simulations names this file by its path, and keeps nvcc's PTX in such a folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a file holds: a text, and bytes, which may be none.
pub(crate) type Parts = (String, Vec<u8>);

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    ptx: usize,
    cubin: usize,
    sha256: String,
}

impl Store {
    /// In a folder, which is made when something is kept.
    pub(crate) fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a file holds. None where it is missing or damaged.
    pub(crate) fn read(&self, name: &str) -> Option<Parts> {
        let bytes = fs::read(self.folder.join(name)).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        let body = &bytes[end + 1..];
        let length = head.ptx.checked_add(head.cubin)?;
        if length != body.len() || hex(&Sha256::digest(body)) != head.sha256 {
            return None;
        }
        let (text, binary) = body.split_at(head.ptx);
        Some((String::from_utf8(text.to_vec()).ok()?, binary.to_vec()))
    }

    /// Makes a file, or replaces it.
    pub(crate) fn write(&self, name: &str, text: &str, binary: &[u8]) -> std::io::Result<()> {
        let body = [text.as_bytes(), binary].concat();
        let head = Head {
            ptx: text.len(),
            cubin: binary.len(),
            sha256: hex(&Sha256::digest(&body)),
        };
        fs::create_dir_all(&self.folder)?;
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
        partial.write_all(&body)?;
        partial.persist(self.folder.join(name))?;
        Ok(())
    }
}

/// Of everything that a file is made of. Each part is preceded by its length, so that no two lists of parts hash the
/// same text.
pub(crate) fn key<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
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
