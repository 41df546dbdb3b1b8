//! Hashes that identify the kernels: files of measured times name them, and so does the record of what ran on a GPU.

use std::fs;
use std::path::{Path, PathBuf};

/// The library's folders that decide what runs on a GPU: kernels, their launch plans, the choice, and who launches.
pub const FOLDERS: [&str; 4] = ["csrc", "src/dispatch", "src/kernel", "src/raw"];

/// The folders of the library whose sources run on a GPU, and the list of units, each with a hash.
pub fn on_a_gpu(root: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let hashed = |folder| Ok((folder, hash(&root.join(folder))?));
    let units = Ok(("units", hash_of([&include_bytes!("units.rs")[..]])));
    FOLDERS.into_iter().map(hashed).chain([units]).collect()
}

/// A hash of every file under a folder, names and contents.
pub fn hash(folder: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    let mut parts = Vec::new();
    for file in &files {
        let name = file.strip_prefix(folder).unwrap_or(file).to_string_lossy();
        parts.push(name.into_owned().into_bytes());
        parts.push(fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(hash_of(parts.iter().map(Vec::as_slice)))
}

/// FNV-1a, 64 bits. It tells versions apart, and is no protection against anybody.
fn hash_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let bytes = parts.into_iter().flatten();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The sources of a run-time compiler, as Rust: a list of names with texts. It has the files that a kernel's file
/// includes, by the names that stand in its `#include`, and the kernels' files themselves.
///
/// Names are those that a file of `kernels` uses. Files of other folders use the same, since none includes a neighbour
/// by its bare name. Files of `nvrtc` take the place of headers that NVRTC does not have.
pub fn embedded(csrc: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    collect(csrc, &mut files)?;
    files.sort();
    let mut list = String::from("[\n");
    for file in &files {
        let inside = file.strip_prefix(csrc).unwrap_or(file).to_string_lossy();
        let name = match inside.split_once('/') {
            Some(("kernels" | "nvrtc", name)) => name.to_owned(),
            _ if file.extension().is_some_and(|end| end == "cu") => continue, // for the host
            _ => format!("../{inside}"),
        };
        list.push_str(&format!(
            "({name:?}, include_str!({:?})),\n",
            file.display().to_string()
        ));
    }
    list.push(']');
    Ok(list)
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
