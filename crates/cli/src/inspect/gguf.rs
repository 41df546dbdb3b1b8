//! `inspect` of a GGUF file.

use std::collections::BTreeMap;

use nvfp4_gemv::checkpoint::{Gguf, GgufElement, GgufTensor};
use nvfp4_gemv_files::printable;
use serde_json::{Value, json};

use super::pattern;
use crate::report::{Report, Table, bytes, count};

pub(super) fn show(file: &Gguf, each: bool, as_json: bool) -> Report {
    let mut kinds: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for tensor in file.tensors() {
        let (number, bytes) = kinds.entry(tensor.element().to_string()).or_default();
        *number += 1;
        *bytes += tensor.bytes().len();
    }
    let all_bytes = kinds.values().map(|(_, bytes)| bytes).sum();
    let text = match as_json {
        true => String::new(),
        false => text(file, &kinds, all_bytes, each),
    };
    let kinds = kinds.iter().map(|(kind, (number, bytes))| {
        (kind.clone(), json!({ "tensors": number, "bytes": bytes }))
    });
    let json = json!({
        "path": file.path().display().to_string(),
        "files": file.files().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "format": "GGUF",
        "architecture": file.architecture(),
        "bytes": all_bytes,
        "kinds": kinds.collect::<serde_json::Map<_, _>>(),
        "tensors": file.tensors().map(|tensor| to_json(&tensor)).collect::<Vec<_>>(),
    });
    Report::new(text, json)
}

fn to_json(tensor: &GgufTensor<'_>) -> Value {
    json!({
        "name": tensor.name(),
        "stored_name": tensor.stored_name(),
        "kind": tensor.element().to_string(),
        "is_read": is_read(tensor),
        "shape": tensor.shape(),
        "bytes": tensor.bytes().len(),
    })
}

fn is_read(tensor: &GgufTensor<'_>) -> bool {
    !matches!(tensor.element(), GgufElement::Other(_))
}

fn text(
    file: &Gguf,
    kinds: &BTreeMap<String, (usize, usize)>,
    all_bytes: usize,
    each: bool,
) -> String {
    let architecture = file.architecture().unwrap_or("none");
    let mut text = format!(
        "{}: GGUF, architecture {}, {}, {}\n",
        printable::path(file.path()),
        printable::text(architecture),
        count(file.tensors().len(), "tensor"),
        bytes(all_bytes)
    );
    let mut lines: BTreeMap<[String; 4], (usize, usize)> = BTreeMap::new();
    for tensor in file.tensors() {
        let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        let line = [
            pattern(tensor.name(), each),
            tensor.element().to_string() + if is_read(&tensor) { "" } else { " (not read)" },
            shape.join("x"),
            pattern(tensor.stored_name(), each),
        ];
        let (number, bytes) = lines.entry(line).or_default();
        *number += 1;
        *bytes += tensor.bytes().len();
    }
    let mut table = Table::new(["\ntensor", "n", "kind", "shape", "bytes", "in the file"]);
    for ([name, kind, shape, stored], (number, of_line)) in &lines {
        table.row([
            printable::text(name).to_string(),
            number.to_string(),
            kind.clone(),
            shape.clone(),
            bytes(*of_line),
            printable::text(stored).to_string(),
        ]);
    }
    if !lines.is_empty() {
        text.push_str(&table.to_string());
    }
    text.push('\n');
    for (kind, (number, of_kind)) in kinds {
        let (number, of_kind) = (count(*number, "tensor"), bytes(*of_kind));
        text.push_str(&format!("{kind}: {number}, {of_kind}\n"));
    }
    text
}
