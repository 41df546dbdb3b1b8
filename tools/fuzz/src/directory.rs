//! Directories of checkpoints as one input: JSON that says what is in them.
//!
//! An object has an entry for each name. The bytes of a name are its characters' numbers, so that it need not be UTF-8.
//! An entry is one of these objects:
//!
//! | key | is |
//! |---|---|
//! | `json` | a file of this value |
//! | `text` | a file of this text |
//! | `tensors` | a safetensors file with this header; `bytes` of data |
//! | `gguf` | a GGUF file: `entries` by key, and a list of `tensors` with `name`, `shape`, `type` and `bytes` |
//! | `link` | a symbolic link that leads there |
//! | `folder` | a folder of such entries |
//!
//! Of a file `cut` says how many bytes are missing at its end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};

use serde_json::{Map, Value};

/// Limits: entries of a folder, folders in each other, bytes of data of a file or of a tensor.
const MOST_ENTRIES: usize = 24;
const DEEPEST: usize = 3;
const MOST_BYTES: u64 = 1 << 16;

/// The data of all tensors: as block scales 1, as F32 a usable global scale.
const DATA: u8 = 0x38;

/// Makes a directory anew.
///
/// # Errors
/// Errors of the system. An entry whose name is none, or is there already, is left out.
pub fn make(directory: &Path, entries: &Map<String, Value>) -> io::Result<()> {
    if directory.symlink_metadata().is_ok() {
        fs::remove_dir_all(directory)?;
    }
    fill(directory, entries, DEEPEST)
}

fn fill(directory: &Path, entries: &Map<String, Value>, deepest: usize) -> io::Result<()> {
    fs::create_dir(directory)?;
    for (name, of) in entries.iter().take(MOST_ENTRIES) {
        let Some(path) = file_name(name).map(|name| directory.join(name)) else {
            continue;
        };
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match (of.get("link"), of.get("folder").and_then(Value::as_object)) {
            (Some(Value::String(target)), _) if is_safe(target) => symlink(target, path)?,
            (_, Some(inside)) if deepest > 0 => fill(&path, inside, deepest - 1)?,
            _ => fs::write(path, content(of))?,
        }
    }
    Ok(())
}

/// A name that leads nowhere else than into its directory.
fn file_name(name: &str) -> Option<OsString> {
    let bytes: Result<Vec<u8>, _> = name.chars().map(|c| u8::try_from(u32::from(c))).collect();
    let bytes = bytes.ok()?;
    let is_name = !matches!(&bytes[..], b"" | b"." | b"..") && bytes.len() < 256;
    (is_name && !bytes.iter().any(|c| matches!(c, b'/' | 0))).then(|| OsString::from_vec(bytes))
}

/// Whether a link may lead there: what is opened is only read, and devices that wait for somebody are left alone.
fn is_safe(target: &str) -> bool {
    let is_relative = Path::new(target).components().all(|part| {
        matches!(
            part,
            Component::Normal(_) | Component::ParentDir | Component::CurDir
        )
    });
    let is_link = !target.is_empty() && target.len() < 4096 && !target.contains('\0');
    is_link && (is_relative || matches!(target, "/dev/zero" | "/dev/null"))
}

/// The bytes of a file.
fn content(of: &Value) -> Vec<u8> {
    let mut bytes = if let Some(value) = of.get("json") {
        value.to_string().into_bytes()
    } else if let Some(header) = of.get("tensors") {
        let header = header.to_string().into_bytes();
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], &header, &data(of)].concat()
    } else if let Some(file) = of.get("gguf") {
        gguf(file)
    } else {
        text(of.get("text")).into()
    };
    let cut = usize::try_from(number(of.get("cut"))).unwrap_or(usize::MAX);
    bytes.truncate(bytes.len().saturating_sub(cut));
    bytes
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn number(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_u64).unwrap_or_default()
}

fn data(of: &Value) -> Vec<u8> {
    vec![DATA; number(of.get("bytes")).min(MOST_BYTES) as usize]
}

/// A GGUF file, version 3, whose tensors' data follow each other.
fn gguf(file: &Value) -> Vec<u8> {
    const ALIGNMENT: usize = 32;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let entries = file.get("entries").and_then(Value::as_object);
    let entries: Vec<_> = entries.into_iter().flatten().collect();
    let tensors = file.get("tensors").and_then(Value::as_array);
    let tensors: Vec<_> = tensors.into_iter().flatten().take(MOST_ENTRIES).collect();
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        out.extend(string(key));
        match value {
            Value::String(text) => out.extend([&8u32.to_le_bytes(), &string(text)[..]].concat()),
            Value::Bool(yes) => out.extend([7, 0, 0, 0, u8::from(*yes)]),
            Value::Number(n) if !n.is_u64() => {
                let value = n.as_f64().unwrap_or_default().to_le_bytes();
                out.extend([&12u32.to_le_bytes(), &value[..]].concat());
            }
            value => {
                let value = number(Some(value)).to_le_bytes();
                out.extend([&10u32.to_le_bytes(), &value[..]].concat());
            }
        }
    }
    let mut all = Vec::new();
    for tensor in tensors {
        let shape = tensor.get("shape").and_then(Value::as_array);
        let shape: Vec<_> = shape.into_iter().flatten().rev().collect();
        out.extend(string(text(tensor.get("name"))));
        out.extend((shape.len() as u32).to_le_bytes());
        let sizes = shape.into_iter().map(|size| number(Some(size)));
        out.extend(sizes.flat_map(u64::to_le_bytes));
        out.extend((number(tensor.get("type")) as u32).to_le_bytes());
        out.extend((all.len() as u64).to_le_bytes());
        all.extend(data(tensor));
        all.resize(all.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(all);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A search that does not begin with directories that open finds nothing behind the first check.
    #[test]
    fn the_corpus_has_directories_that_open_and_others() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/directory");
        let scratch = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(corpus).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let entries = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let directory = scratch.path().join("d");
            make(&directory, &entries).unwrap();
            let opened = nvfp4_gemv::checkpoint::AnyCheckpoint::open(&directory);
            assert_eq!(
                opened.is_ok(),
                !name.starts_with("not-"),
                "{name}: {opened:?}"
            );
        }
    }

    #[test]
    fn nothing_is_made_elsewhere() {
        let scratch = tempfile::tempdir().unwrap();
        let (directory, victim) = (scratch.path().join("d"), scratch.path().join("victim"));
        let entries = json!({
            "../victim": { "text": "x" }, "..": { "text": "x" }, "": { "text": "x" },
            "a": { "link": "../victim" }, "b": { "link": "/etc/passwd" }, "é": { "text": "x" },
        });
        for _ in 0..2 {
            make(&directory, entries.as_object().unwrap()).unwrap();
            assert!(!victim.exists());
            let read = fs::read_dir(&directory).unwrap();
            let mut names: Vec<_> = read.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(
                names,
                [&b"a"[..], b"b", b"\xe9"].map(|n| OsString::from_vec(n.into()))
            );
            assert!(directory.join("b").symlink_metadata().unwrap().is_file());
        }
    }
}
