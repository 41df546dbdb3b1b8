//! What a file of measurements says, version 3: JSON, or, of a built-in table, the same as a Rust value.

use std::borrow::Cow;

use super::{Entry, GpuModel, Machine, Measurements, Timed};
use crate::operands::{Alignment, Operands};
use crate::shape::{Dims, Shape};
use crate::types::{Activation, ScaleLayout};

/// The format of this version. Another one is refused.
pub(super) const FORMAT: &str = "nvfp4-gemv/tuned/3";

#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub(super) struct File {
    pub(super) format: String,
    pub(super) gpu: GpuModel,
    pub(super) driver: String,
    pub(super) crate_version: String,
    pub(super) kernels: String,
    pub(super) from: String,
    pub(super) entries: Cow<'static, [WireEntry]>,
}

#[derive(Clone)]
#[cfg_attr(
    feature = "tune",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub(super) struct WireEntry {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) l: usize,
    pub(super) n: usize,
    pub(super) activation: Cow<'static, str>,
    pub(super) weight_layout: Cow<'static, str>,
    pub(super) vector_layout: Cow<'static, str>,
    pub(super) aligned: bool,
    pub(super) ceiling_seconds: f64,
    pub(super) kernels: Cow<'static, [Timed]>,
}

#[cfg(feature = "tune")]
pub(super) fn parse(text: &str) -> Result<Measurements, String> {
    check_format(&json::<Head>(text)?.format)?;
    read(json(text)?)
}

/// The machine of a file, whatever its entries say: other versions may have kernels and fields that this one has not.
#[cfg(feature = "tune")]
pub(super) fn parse_machine(text: &str) -> Result<Machine, String> {
    #[derive(serde::Deserialize)]
    struct Made {
        gpu: GpuModel,
        driver: String,
        crate_version: String,
        kernels: String,
    }
    check_format(&json::<Head>(text)?.format)?;
    let made: Made = json(text)?;
    Ok(Machine {
        gpu: made.gpu,
        driver: made.driver,
        crate_version: made.crate_version,
        kernels: made.kernels,
    })
}

/// What is looked at first: files of another format may have other fields.
#[cfg(feature = "tune")]
#[derive(serde::Deserialize)]
struct Head {
    format: String,
}

#[cfg(feature = "tune")]
fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn check_format(format: &str) -> Result<(), String> {
    match format == FORMAT {
        true => Ok(()),
        false => Err(format!(
            "its format is {format:?}, this version reads {FORMAT:?}"
        )),
    }
}

/// The table that a file says, if its format is this one and every entry is sound.
pub(super) fn read(file: File) -> Result<Measurements, String> {
    check_format(&file.format)?;
    let machine = Machine {
        gpu: file.gpu,
        driver: file.driver,
        crate_version: file.crate_version,
        kernels: file.kernels,
    };
    let mut table = Measurements::new(machine, file.from);
    for (i, entry) in file.entries.iter().enumerate() {
        let entry = read_entry(entry).map_err(|why| format!("entry {i}: {why}"))?;
        if table.find(&entry.shape, &entry.operands).is_some() {
            return Err(format!("entry {i}: {} is there twice", entry.shape));
        }
        table.insert(entry);
    }
    Ok(table)
}

fn read_entry(wire: &WireEntry) -> Result<Entry, String> {
    let shape = Shape::new(Dims {
        m: wire.m,
        n: wire.n,
        k: wire.k,
        l: wire.l,
    })
    .map_err(|error| error.to_string())?;
    if shape.is_empty() {
        return Err(format!("there is nothing to compute of {shape:#}"));
    }
    let seconds = |what: &str, value: f64| match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(format!("{what} of {value} seconds")),
    };
    let mut kernels = wire.kernels.to_vec();
    for (i, timed) in kernels.iter().enumerate() {
        let kernel = timed.kernel();
        if kernels[..i].iter().any(|other| other.kernel() == kernel) {
            return Err(format!("{kernel} is there twice"));
        }
        seconds(kernel.name(), timed.seconds)?;
        if let Some(chained) = timed.chained {
            if chained.config.kernel() != kernel {
                return Err(format!("a chained config of another kernel than {kernel}"));
            }
            seconds("a chained launch", chained.seconds)?;
        }
    }
    if kernels.is_empty() {
        return Err("no kernel".into());
    }
    kernels.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(Entry {
        shape,
        operands: Operands {
            activation: Activation::from_name(&wire.activation)
                .ok_or_else(|| none_of(&wire.activation, &Activation::ALL))?,
            weight_layout: layout(&wire.weight_layout)?,
            vector_layout: layout(&wire.vector_layout)?,
            alignment: match wire.aligned {
                true => Alignment::BEST,
                false => Alignment::LEAST,
            },
            workspace: 0,
        },
        ceiling_seconds: seconds("a ceiling", wire.ceiling_seconds)?,
        kernels,
    })
}

fn layout(name: &str) -> Result<ScaleLayout, String> {
    ScaleLayout::from_name(name).ok_or_else(|| none_of(name, &ScaleLayout::ALL))
}

fn none_of<T: ToString>(name: &str, all: &[T]) -> String {
    let names: Vec<String> = all.iter().map(T::to_string).collect();
    format!("{name:?} is none of {}", names.join(", "))
}

/// Whether every entry would be read again, by the reader's own rules.
#[cfg(feature = "tune")]
pub(super) fn check(table: &Measurements) -> Result<(), String> {
    table.entries.iter().enumerate().try_for_each(|(i, entry)| {
        let read = read_entry(&wire_entry(entry)).map(drop);
        read.map_err(|why| format!("entry {i}, {}: {why}", entry.shape))
    })
}

#[cfg(feature = "tune")]
fn wire_entry(entry: &Entry) -> WireEntry {
    WireEntry {
        m: entry.shape.m(),
        k: entry.shape.k(),
        l: entry.shape.l(),
        n: entry.shape.n(),
        activation: entry.operands.activation.name().into(),
        weight_layout: entry.operands.weight_layout.name().into(),
        vector_layout: entry.operands.vector_layout.name().into(),
        aligned: entry.operands.alignment.is_16(),
        ceiling_seconds: entry.ceiling_seconds,
        kernels: entry.kernels.clone().into(),
    }
}

#[cfg(feature = "tune")]
pub(super) fn write(table: &Measurements) -> String {
    let file = File {
        format: FORMAT.into(),
        gpu: table.machine.gpu.clone(),
        driver: table.machine.driver.clone(),
        crate_version: table.machine.crate_version.clone(),
        kernels: table.machine.kernels.clone(),
        from: table.from.clone(),
        entries: table.entries.iter().map(wire_entry).collect(),
    };
    let mut text = serde_json::to_string_pretty(&file).expect("strings and finite numbers");
    text.push('\n');
    text
}
