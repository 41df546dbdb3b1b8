//! Files that need not be there, and files that are written whole or not at all.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use nvfp4_gemv_files::output::Destination;

/// The text of a file, or nothing where there is none.
pub(crate) fn read_if_there(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
    }
}

/// Writes a file, or replaces one in one step: nobody ever finds half of it, and two writers do not mix. A
/// replaced file's mode is kept, and a link stays a link. A target that is no regular file, such as a pipe or a device,
/// is written in place.
pub(crate) fn whole(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let to = Destination::new(file).replace(true);
    let written = to.write(content.as_ref());
    written.with_context(|| format!("writing {}", file.display()))
}

/// A word for the name of a file: the letters and digits of a text, in words with a hyphen between them.
pub(crate) fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        whole(&at("file"), "one").unwrap();
        fs::set_permissions(at("file"), Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        whole(&at("link"), "two").unwrap();
        assert_eq!(read_if_there(&at("file")).unwrap().unwrap(), "two");
        assert!(read_if_there(&at("gone")).unwrap().is_none());
        assert!(read_if_there(folder.path()).is_err());
        assert!(at("link").symlink_metadata().unwrap().is_symlink());
        let mode = fs::metadata(at("file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(whole(folder.path(), "three").is_err());
        assert!(whole(&at("gone/file"), "four").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
