//! Files of measurements, version 4: JSON Lines. The first line is the machine; each line behind it is a problem.

use serde::{Deserialize, Serialize};
use serde_json::StreamDeserializer;
use serde_json::de::StrRead;

use super::{Entry, Machine, Measurements, Timed};
use crate::operands::{Alignment, Operands};
use crate::shape::{Dims, Shape};
use crate::types::{Activation, ScaleLayout};

/// The format of this version. Another one is refused.
const FORMAT: &str = "nvfp4-gemv/tuned/4";

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    #[serde(flatten)]
    machine: Machine,
    from: String,
}

/// Any other line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    m: usize,
    k: usize,
    l: usize,
    n: usize,
    activation: String,
    weight_layout: String,
    vector_layout: String,
    aligned: bool,
    ceiling_seconds: f64,
    kernels: Vec<Timed>,
}

/// The table that a file says, if its format is this one and every entry is sound.
pub(super) fn parse(text: &str) -> Result<Measurements, String> {
    let (head, mut lines) = begin(text)?;
    let mut table = Measurements::new(head.machine, head.from);
    while let Some(line) = lines.next() {
        // Where a line is no JSON, or has other fields, the error itself names the line.
        let line = line.map_err(|error| error.to_string())?;
        let at = |why| {
            format!(
                "line {}: {why}",
                text[..lines.byte_offset()].lines().count()
            )
        };
        let entry = read(line).map_err(at)?;
        if table.find(&entry.shape, &entry.operands).is_some() {
            return Err(at(format!("{} is there twice", entry.shape)));
        }
        table.insert(entry);
    }
    Ok(table)
}

/// The machine of a file, whatever its entries say: other versions may have kernels and fields that this one has not.
#[cfg(feature = "tune")]
pub(super) fn parse_machine(text: &str) -> Result<Machine, String> {
    Ok(begin(text)?.0.machine)
}

/// The first line, and the others, which are not read yet.
fn begin(text: &str) -> Result<(Head, StreamDeserializer<'_, StrRead<'_>, Line>), String> {
    /// The format alone, which is looked at first: files of another format may have other fields.
    #[derive(Deserialize)]
    struct Format {
        format: String,
    }
    let json = || serde_json::Deserializer::from_str(text);
    let Format { format } = Format::deserialize(&mut json()).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!(
            "its format is {format:?}, this version reads {FORMAT:?}"
        ));
    }
    let mut json = json();
    let head = Head::deserialize(&mut json).map_err(|error| error.to_string())?;
    Ok((head, json.into_iter()))
}

fn read(line: Line) -> Result<Entry, String> {
    let shape = Shape::new(Dims {
        m: line.m,
        n: line.n,
        k: line.k,
        l: line.l,
    })
    .map_err(|error| error.to_string())?;
    if shape.is_empty() {
        return Err(format!("there is nothing to compute of {shape:#}"));
    }
    let seconds = |what: &str, value: f64| match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(format!("{what} of {value} seconds")),
    };
    let mut kernels = line.kernels;
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
            activation: Activation::from_name(&line.activation)
                .ok_or_else(|| none_of(&line.activation, &Activation::ALL))?,
            weight_layout: layout(&line.weight_layout)?,
            vector_layout: layout(&line.vector_layout)?,
            alignment: match line.aligned {
                true => Alignment::BEST,
                false => Alignment::LEAST,
            },
            digits: 1,
            workspace: 0,
            select: false,
            matrices: 0,
            distinct: false,
            late: false,
            on_read: false,
        },
        ceiling_seconds: seconds("a ceiling", line.ceiling_seconds)?,
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
        let read = read(line(entry)).map(drop);
        read.map_err(|why| format!("entry {i}, {}: {why}", entry.shape))
    })
}

fn line(entry: &Entry) -> Line {
    Line {
        m: entry.shape.m(),
        k: entry.shape.k(),
        l: entry.shape.l(),
        n: entry.shape.n(),
        activation: entry.operands.activation.name().into(),
        weight_layout: entry.operands.weight_layout.name().into(),
        vector_layout: entry.operands.vector_layout.name().into(),
        aligned: entry.operands.alignment.is_16(),
        ceiling_seconds: entry.ceiling_seconds,
        kernels: entry.kernels.clone(),
    }
}

pub(super) fn write(table: &Measurements) -> String {
    let mut text = json(&Head {
        format: FORMAT.into(),
        machine: table.machine.clone(),
        from: table.from.clone(),
    });
    for entry in &table.entries {
        text += &json(&line(entry));
    }
    text
}

fn json(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("a line is strings and numbers") + "\n"
}
