//! `cargo xtask tables`: the built-in tables of measurements as Rust, so that a build needs no JSON reader.
//!
//! A table is measured and committed as JSON, `src/dispatch/measured/h200.json`. `tests/tables.rs`
//! compares it with what is made here.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::workspace::Workspace;

/// Names of the files, without `.json` and `.rs`.
const TABLES: [&str; 1] = ["src/dispatch/measured/h200"];

pub(crate) fn command(workspace: &Workspace) -> Result<()> {
    for table in TABLES {
        let (json, rust) = (format!("{table}.json"), format!("{table}.rs"));
        let file = workspace.root().join(&json);
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let value = serde_json::from_str(&text).with_context(|| json.clone())?;
        let name = json.rsplit('/').next().unwrap_or(&json);
        let module = module(name, &value).with_context(|| format!("{json}: another format"))?;
        let file = workspace.root().join(&rust);
        fs::write(&file, module).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("wrote {rust}");
    }
    Ok(())
}

/// A Rust module with a table; `None` if it is not the JSON of one. Its fields have the names that the JSON has.
fn module(name: &str, table: &Value) -> Option<String> {
    let mut text = format!(
        "//! Generated from {name}: cargo xtask tables.\n\n\
         use super::wire::{{File, WireEntry}};\n\
         use super::{{Chained, GpuModel, Timed}};\n\
         use crate::kernel::*;\n\
         use std::borrow::Cow;\n\n\
         pub(super) fn file() -> File {{\n    File {{\n"
    );
    for (field, value) in table.as_object()? {
        let value = match (&**field, value) {
            ("gpu", gpu) => {
                let [major, minor] = &gpu["compute_capability"].as_array()?[..] else {
                    return None;
                };
                format!(
                    "GpuModel {{ name: {}.into(), compute_capability: ({major}, {minor}), multiprocessors: {} }}",
                    gpu["name"], gpu["multiprocessors"]
                )
            }
            ("entries", _) => "ENTRIES.into()".to_owned(),
            (_, text) => format!("{:?}.into()", text.as_str()?),
        };
        text.push_str(&format!("        {field}: {value},\n"));
    }
    text.push_str("    }\n}\n\nstatic ENTRIES: &[WireEntry] = &[\n");
    for entry in table["entries"].as_array()? {
        text.push_str(&format!("    {},\n", structure("WireEntry", entry)?));
    }
    text.push_str("];\n");
    Some(text)
}

fn structure(name: &str, value: &Value) -> Option<String> {
    let fields: Option<Vec<String>> = fields(value.as_object()?).collect();
    Some(format!("{name} {{ {} }}", fields?.join(", ")))
}

fn fields(object: &Map<String, Value>) -> impl Iterator<Item = Option<String>> {
    object
        .iter()
        .map(|(field, value)| Some(format!("{field}: {}", literal(field, value)?)))
}

/// The value of a field in Rust.
fn literal(field: &str, value: &Value) -> Option<String> {
    Some(match (field, value) {
        ("kernels", Value::Array(kernels)) => {
            let timed: Option<Vec<String>> = kernels
                .iter()
                .map(|kernel| structure("Timed", kernel))
                .collect();
            format!("Cow::Borrowed(&[{}])", timed?.join(", "))
        }
        ("config", config) => {
            // `{"ring": {...}}`: the kernel's name, and its config's fields.
            let (kernel, config) = config.as_object()?.iter().next()?;
            let mut kernel = kernel.clone();
            kernel.get_mut(..1)?.make_ascii_uppercase();
            let config = structure(&format!("{kernel}Config"), config)?;
            format!("Config::{kernel}({config})")
        }
        ("chained", Value::Null) => "None".into(),
        ("chained", chained) => format!("Some({})", structure("Chained", chained)?),
        (_, Value::String(text)) => format!("Cow::Borrowed({text:?})"),
        (_, Value::Number(number)) if number.is_f64() => format!("{:?}", number.as_f64()?),
        (_, plain) => plain.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_rust() {
        let json = r#"{"gpu": {"name": "A", "compute_capability": [9, 0], "multiprocessors": 2}, "driver": "13.0",
            "entries": [{"m": 1, "activation": "f16", "aligned": true, "kernels": [
                {"config": {"tcgen05": {"stages": 4}}, "seconds": 1.5e-5, "chained": null},
                {"config": {"ring": {"cached": false}}, "seconds": 2.0,
                    "chained": {"config": {"ring": {"cached": true}}, "seconds": 1.0}}]}]}"#;
        let module = module("a.json", &serde_json::from_str(json).unwrap()).unwrap();
        for part in [
            r#"gpu: GpuModel { name: "A".into(), compute_capability: (9, 0), multiprocessors: 2 },"#,
            r#"driver: "13.0".into(),"#,
            r#"activation: Cow::Borrowed("f16")"#,
            "aligned: true",
            "Timed { chained: None, config: Config::Tcgen05(Tcgen05Config { stages: 4 }), seconds: 1.5e-5 }",
            "chained: Some(Chained { config: Config::Ring(RingConfig { cached: true }), seconds: 1.0 })",
        ] {
            assert!(module.contains(part), "{part}: {module}");
        }
    }
}
