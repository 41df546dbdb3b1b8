//! Hashes that identify the kernels: files of measured times name them, and so does the record of what ran on a GPU.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders that decide what runs on a GPU: kernels, their launch plans, the choice, and who launches.
const ON_A_GPU: [&str; 4] = ["csrc", "src/dispatch", "src/kernel", "src/raw"];

/// The folders whose sources run on a GPU, each with a hash.
pub(crate) fn on_a_gpu(root: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let hashed = |folder| Ok((folder, hash(&root.join(folder))?));
    ON_A_GPU.into_iter().map(hashed).collect()
}

/// A hash of every file under a folder, names and contents: FNV-1a, 64 bits. It tells versions apart, and is
/// no protection against anybody.
pub(crate) fn hash(folder: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in &files {
        let name = file.strip_prefix(folder).unwrap_or(file).to_string_lossy();
        add(name.as_bytes());
        add(&fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(format!("{hash:016x}"))
}

/// The sources of a run-time compiler, as Rust: a list of names with texts. It has the files that a kernel's file
/// includes, by the names that stand in its `#include`, and the kernels' files themselves.
///
/// Names are those that a file of `kernels` uses. Files of other folders use the same, since none includes a neighbour
/// by its bare name. Files of `nvrtc` take the place of headers that NVRTC does not have.
pub(crate) fn embedded(csrc: &Path) -> Result<String, String> {
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
