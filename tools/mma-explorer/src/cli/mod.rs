//! The commands, a file each, and what they share.

pub(crate) mod check;
pub(crate) mod compile;
pub(crate) mod info;
pub(crate) mod list;
mod measuring;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sweep;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use mma_explorer::arch::Arch;
use mma_explorer::cache::Origin;
use mma_explorer::device::DeviceError;
use mma_explorer::machine_code::MachineCodeError;
use mma_explorer::nvrtc::{NAMES, NvrtcError};
use mma_explorer::variants::{self, Variant};
use nvfp4_gemv_documents::table::Table;
use serde_json::{Value, json};

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Report {
    /// Text for people, with a newline at the end.
    pub(crate) text: String,
    /// JSON for scripts.
    pub(crate) json: Value,
    /// Whether all checks passed; decides the exit code.
    pub(crate) passed: bool,
}

impl Report {
    /// A report of a command that checks nothing.
    pub(crate) fn new(text: String, json: Value) -> Self {
        Self {
            text,
            json,
            passed: true,
        }
    }

    /// An error with its causes: on stderr for people, and as a JSON object for scripts.
    pub(crate) fn error(error: &anyhow::Error, as_json: bool) -> Self {
        let message = format!("{error:#}");
        let hint = hint(error);
        if !as_json {
            eprintln!("error: {message}");
            if let Some(hint) = &hint {
                eprintln!("hint: {hint}");
            }
        }
        Self {
            text: String::new(),
            json: json!({ "error": message, "hint": hint }),
            passed: false,
        }
    }
}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<NvrtcError>() {
            return error.hint(&NAMES);
        }
        if let Some(error) = cause.downcast_ref::<DeviceError>() {
            return error.hint().map(str::to_string);
        }
        cause.downcast_ref().and_then(MachineCodeError::hint)
    })
}

/// Which variants a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// Variants whose name has all of these parts, such as `f16` or `mma.m16n8k32.f32`; without any, all of them
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

impl Filter {
    /// The variants that the filter selects, in the table's order.
    pub(crate) fn select(&self) -> Result<Vec<Variant>> {
        let selected: Vec<Variant> = variants::all()
            .into_iter()
            .filter(|variant| has_parts(&variant.name(), &self.parts))
            .collect();
        if selected.is_empty() {
            bail!(
                "no variant's name has all of {}: `mma-explorer list` has the names",
                self.parts.join(" ")
            );
        }
        Ok(selected)
    }
}

/// Whether a dotted name has each of these dotted parts, as whole words.
fn has_parts(name: &str, parts: &[String]) -> bool {
    let name = format!(".{name}.");
    parts.iter().all(|part| name.contains(&format!(".{part}.")))
}

/// How long a compilation took, for people.
pub(crate) fn took(origin: Origin) -> String {
    match origin {
        Origin::Compiled(time) => format!("compiled in {}", milliseconds(time)),
        Origin::Cached(time) => format!("from the cache in {}", milliseconds(time)),
    }
}

/// The origin of compiled code and its time, as JSON.
pub(crate) fn took_json(origin: Origin) -> Value {
    let (cached, time) = match origin {
        Origin::Compiled(time) => (false, time),
        Origin::Cached(time) => (true, time),
    };
    json!({ "cached": cached, "seconds": time.as_secs_f64() })
}

pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// The fields that all commands print of a variant.
pub(crate) fn variant_json(variant: &Variant, arch: Option<Arch>) -> Value {
    let mut value = json!({
        "name": variant.name(),
        "family": variant.family(),
        "shape": variant.shape,
        "a": variant.a,
        "b": variant.b,
        "accumulator": variant.accumulator,
        "scale": variant.scale(),
    });
    if let Some(arch) = arch {
        value["arch"] = json!(arch.to_string());
        value["machine"] = json!(variant.machine(arch));
        value["missing"] = json!(variant.missing(arch));
    }
    value
}

/// One line that is written over, on a terminal only.
pub(crate) fn progress(done: usize, all: usize, name: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let line = if done < all {
            format!("{}/{all} {name}", done + 1)
        } else {
            String::new()
        };
        let _ = write!(err, "\r\x1b[K{line}");
        let _ = err.flush();
    }
}

/// Lines of columns of words.
pub(crate) fn table<S: Into<String>>(
    head: impl IntoIterator<Item = S>,
    rows: &[Vec<String>],
) -> String {
    let mut table = Table::new(head);
    rows.iter().for_each(|row| table.row(row.clone()));
    table.aligned(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_words() {
        let has = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
            has_parts("mma.m16n8k16.f32.f16.f16", &parts)
        };
        assert!(has(&[]) && has(&["f16"]) && has(&["mma.m16n8k16", "f16.f16"]));
        assert!(!has(&["f1"]) && !has(&["mma", "bf16"]) && !has(&["f16.f32"]));
    }

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".into(), "bb".into(), "c d".into()],
            vec!["aaaa".into(), "b".into(), String::new()],
        ];
        assert_eq!(
            table(["x", "y", "z"], &rows),
            "x     y   z\na     bb  c d\naaaa  b\n"
        );
    }
}
