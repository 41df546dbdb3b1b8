//! `cargo xtask tables`: the built-in tables of measurements as Rust, so that a build needs no JSON reader.
//!
//! A table is measured and committed as JSON, `src/dispatch/measured/h200.json`. `tests/tables.rs`
//! compares it with what is made here. It may come from somebody else's machine and becomes source text, so names in
//! it are names, and all else are numbers, truth values and quoted texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::workspace::Workspace;

/// Where the tables are.
const FOLDER: &str = "src/dispatch/measured";

/// The table that tests look at: the first.
const FIRST: &str = "h200";

pub(crate) fn command(workspace: &Workspace) -> Result<()> {
    let tables = tables(workspace.root())?;
    for (path, text) in generated(&tables)? {
        let file = workspace.root().join(&path);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// The tables by their names, as JSON.
fn tables(root: &Path) -> Result<BTreeMap<String, String>> {
    let folder = root.join(FOLDER);
    let mut tables = BTreeMap::new();
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let file = entry?.path();
        let name = file.file_stem().and_then(|name| name.to_str());
        let (Some(name), Some("json")) = (name, file.extension().and_then(|kind| kind.to_str()))
        else {
            continue;
        };
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        tables.insert(name.to_owned(), text);
    }
    Ok(tables)
}

/// The files that another table makes: itself, and what is generated of all of them. Paths are below `root`.
pub(crate) fn with(root: &Path, name: &str, json: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut tables = tables(root)?;
    // A module cannot begin with a digit.
    let name = match name.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("gpu_{name}"),
        false => name.to_owned(),
    };
    let mut files = vec![(
        Path::new(FOLDER).join(format!("{name}.json")),
        json.to_owned(),
    )];
    tables.insert(name, json.to_owned());
    files.extend(generated(&tables)?);
    Ok(files)
}

/// A module for each table, and the list of them.
fn generated(tables: &BTreeMap<String, String>) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for (name, text) in tables {
        let json = format!("{name}.json");
        let value = serde_json::from_str(text).with_context(|| json.clone())?;
        let module = module(&json, &value).with_context(|| format!("{json}: another format"))?;
        files.push((Path::new(FOLDER).join(format!("{name}.rs")), module));
    }
    let mut names: Vec<&String> = tables.keys().collect();
    names.sort_by_key(|name| (*name != FIRST, *name));
    files.push((Path::new(FOLDER).join("builtin.rs"), list(&names)));
    Ok(files)
}

/// The module that knows all tables.
fn list(names: &[&String]) -> String {
    let mut text = String::from(
        "//! Generated from the tables beside this file: cargo xtask tables.\n\n\
         use super::wire::{self, File};\n\
         use super::{Chained, GpuModel, Timed};\n\n",
    );
    for name in names {
        text += &format!(
            "#[path = \"{name}.rs\"]\n#[rustfmt::skip] // a line a problem\nmod {name};\n"
        );
    }
    let files: Vec<String> = names.iter().map(|name| format!("{name}::file()")).collect();
    let files = files.join(", ");
    text + &format!("\npub(super) fn files() -> Vec<File> {{\n    vec![{files}]\n}}\n")
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
                let (major, minor) = (major.as_u64()?, minor.as_u64()?);
                format!(
                    "GpuModel {{ name: {:?}.into(), compute_capability: ({major}, {minor}), multiprocessors: {} }}",
                    gpu["name"].as_str()?,
                    gpu["multiprocessors"].as_u64()?
                )
            }
            ("entries", _) => "ENTRIES.into()".to_owned(),
            (_, text) => format!("{:?}.into()", text.as_str()?),
        };
        text.push_str(&format!("        {}: {value},\n", word(field)?));
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
        .map(|(field, value)| Some(format!("{}: {}", word(field)?, literal(field, value)?)))
}

/// A name that can stand in source text.
fn word(name: &str) -> Option<&str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(fits)).then_some(name)
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
            let mut kernel = word(kernel)?.to_owned();
            kernel.get_mut(..1)?.make_ascii_uppercase();
            let config = structure(&format!("{kernel}Config"), config)?;
            format!("Config::{kernel}({config})")
        }
        ("chained", Value::Null) => "None".into(),
        ("chained", chained) => format!("Some({})", structure("Chained", chained)?),
        (_, Value::String(text)) => format!("Cow::Borrowed({text:?})"),
        (_, Value::Number(number)) if number.is_f64() => format!("{:?}", number.as_f64()?),
        (_, Value::Number(_) | Value::Bool(_)) => value.to_string(),
        _ => return None,
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

    #[test]
    fn a_table_cannot_bring_source_text() {
        let table = |field: &str| {
            format!(
                r#"{{"gpu": {{"name": "A\"\u0007", "compute_capability": [9, 0], "multiprocessors": 2}}, {field}
                "entries": [{{"m": 1}}]}}"#
            )
        };
        let of = |text: &str| module("a.json", &serde_json::from_str(text).unwrap());
        assert!(
            of(&table(""))
                .unwrap()
                .contains(r#"name: "A\"\u{7}".into()"#)
        );
        for field in [
            r#""x: 1 } fn f() {": "a","#,
            r#""": "a","#,
            r#""1": "a","#,
            r#""driver": {"a": 1},"#,
        ] {
            assert!(of(&table(field)).is_none(), "{field}");
        }
        for entry in [
            r#"{"m;": 1}"#,
            r#"{"m": [1]}"#,
            r#"{"m": {"k": 1}}"#,
            r#"{"config": {"a b": {}}}"#,
        ] {
            let text = table("").replace(r#"{"m": 1}"#, entry);
            assert!(of(&text).is_none(), "{entry}");
        }
    }

    #[test]
    fn another_table_is_listed_behind_the_first() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        let json = r#"{"gpu": {"name": "A", "compute_capability": [9, 0], "multiprocessors": 2}, "entries": []}"#;
        fs::write(folder.join("h200.json"), json).unwrap();
        let files = with(root.path(), "5000-x".replace('-', "_").as_str(), json).unwrap();
        let of = |name: &str| {
            let path = Path::new(FOLDER).join(name);
            &files.iter().find(|(at, _)| *at == path).expect(name).1
        };
        assert_eq!(of("gpu_5000_x.json"), json);
        assert!(of("gpu_5000_x.rs").contains("ENTRIES"));
        assert!(of("builtin.rs").contains("vec![h200::file(), gpu_5000_x::file()]"));
        assert!(!folder.join("gpu_5000_x.json").exists());
    }
}
