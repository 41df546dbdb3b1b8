//! Files for parsers that take a path.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory of this process, where an input becomes a file. Targets keep one for all their inputs; it
/// stays behind when libFuzzer ends the process, which is why `cargo xtask fuzz` sets `TMPDIR`.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Default for Scratch {
    fn default() -> Self {
        let directory = tempfile::tempdir().expect("a fuzz target needs a temporary directory");
        Self { directory }
    }
}

impl Scratch {
    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file, or replaces it, and returns where it is.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        // ext4 writes a file to disk at once that was cut to nothing before, but not a new one.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).expect("a fuzz target writes into its temporary directory");
        path
    }
}
