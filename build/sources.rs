//! Which kernels these are: files of measured times name them.

use std::fs;
use std::path::{Path, PathBuf};

/// A hash of every file under `csrc`, names and contents: FNV-1a, 64 bits. It tells versions apart, and is
/// no protection against anybody.
pub(crate) fn hash(csrc: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    collect(csrc, &mut files)?;
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in &files {
        let name = file.strip_prefix(csrc).unwrap_or(file).to_string_lossy();
        add(name.as_bytes());
        add(&fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(format!("{hash:016x}"))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
