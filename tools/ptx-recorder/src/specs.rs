//! Writes a launch down: a specification that `ptx-sim run` executes, the module's PTX, and buffers' bytes as files.
//!
//! A specification has the buffers that the launch can reach. These are buffers that an address in a parameter or a
//! variable, or a tensor map there, leads to. An address in the first `SCANNED` bytes of such a buffer leads to
//! further ones. Buffers keep their addresses, so that pointers inside of them stay true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use ptx_sim::models::tensor_map::TensorMap;
use ptx_sim::{Buffer, DEFAULT_MEMORY, Launch, Options, Program, Sim};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::recorder::Recorder;
use crate::settings::Settings;

/// Bytes at the start of each buffer that are looked through for addresses.
pub(crate) const SCANNED: usize = 64 << 10;

/// A name that specifications begin with.
const PREFIX: &str = "launch-";

fn named(path: &Path, e: impl std::fmt::Display) -> String {
    format!("{}: {e}", path.display())
}

/// Whether a directory has specifications. Specifications of another run must not get mixed with this run's.
pub fn are_in(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = entries.map(|e| e.file_name());
    names.any(|n| n.to_string_lossy().starts_with(PREFIX))
}

/// A file that appears whole or not at all, unless there is one of that name. Says whether there was none.
fn create(path: &Path, bytes: &[u8]) -> Result<bool, String> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut partial = tempfile::NamedTempFile::new_in(dir).map_err(|e| named(dir, e))?;
    partial.write_all(bytes).map_err(|e| named(path, e))?;
    match partial.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(e) if e.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(named(path, e)),
    }
}

/// Keeps bytes in a file that is named by them; returns its name. Equal bytes are kept once.
fn keep(dir: &Path, bytes: &[u8], extension: &str) -> Result<String, String> {
    let hash = Sha256::digest(bytes);
    let name = format!("{}.{extension}", hex(&hash[..16]));
    if !dir.join(&name).exists() {
        create(&dir.join(&name), bytes)?;
    }
    Ok(name)
}

/// Keeps a specification under the first free number from a launch's own on: processes that the program starts have
/// launches of the same numbers. Returns its name.
fn keep_specification(dir: &Path, number: u64, text: &str) -> Result<String, String> {
    let mut free = number;
    loop {
        let name = format!("{PREFIX}{free:04}.json");
        if create(&dir.join(&name), text.as_bytes())? {
            return Ok(name);
        }
        free += 1;
    }
}

/// Adds a line to the commands, whole: other processes may add theirs.
fn add_command(dir: &Path, line: &str) -> Result<(), String> {
    let path = dir.join("commands.txt");
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).append(true).open(&path);
    let written = file.and_then(|mut f| f.write_all(line.as_bytes()));
    written.map_err(|e| named(&path, e))
}

/// A buffer that a launch may reach.
#[derive(Debug, Clone)]
struct Known {
    name: String,
    buffer: Buffer,
}

/// All buffers, and which of them a launch reaches.
struct Reach {
    all: BTreeMap<u64, Known>,
    reached: BTreeSet<u64>,
}

impl Reach {
    fn at(&self, address: u64) -> Option<&Known> {
        let (base, known) = self.all.range(..=address).next_back()?;
        // The address behind the last byte is an end pointer.
        (address - base <= known.buffer.size as u64).then_some(known)
    }

    /// Takes the buffers that addresses and tensor maps in these bytes lead to.
    fn scan(&mut self, bytes: &[u8]) {
        let words = bytes.chunks_exact(8).map(|w| {
            let mut word = [0; 8];
            word.copy_from_slice(w);
            u64::from_le_bytes(word)
        });
        // The first words of a tensor map are its address.
        let found = words.filter_map(|w| self.at(w)).map(|k| k.buffer.address);
        let found: Vec<u64> = found.collect();
        self.reached.extend(found);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn tensor_map(reach: &Reach, map: &TensorMap) -> Option<Value> {
    let a = map.args();
    let known = reach.at(a.global_address)?;
    Some(json!({"tensor_map": {
        "buffer": known.name,
        "offset": a.global_address - known.buffer.address,
        "type": a.data_type as u32,
        "dims": a.global_dim,
        "strides": a.global_strides,
        "box": a.box_dim,
        "elem_strides": a.element_strides,
        "interleave": a.interleave as u32,
        "swizzle": a.swizzle as u32,
        "l2_promotion": a.l2_promotion as u32,
        "oob_fill": a.oob_fill as u32,
    }}))
}

/// The value of a parameter: tensor maps and addresses by the names of their buffers, the rest in hexadecimal.
fn parameter(reach: &Reach, bytes: &[u8]) -> Value {
    let mut fields: Vec<(usize, usize, Value)> = Vec::new();
    for (_, at, map) in TensorMap::find(&[bytes.to_vec()]) {
        if let Some(value) = tensor_map(reach, &map) {
            fields.push((at, TensorMap::BYTES, value));
        }
    }
    let maps: Vec<usize> = fields.iter().map(|f| f.0).collect();
    let in_map = |at: usize| {
        maps.iter()
            .any(|m| (*m..*m + TensorMap::BYTES).contains(&at))
    };
    let mut plain: Option<usize> = None;
    let mut at = 0;
    let mut hexes = Vec::new();
    while at < bytes.len() {
        let word = bytes[at..].first_chunk().map(|w| u64::from_le_bytes(*w));
        let known = word
            .filter(|_| !in_map(at))
            .and_then(|w| Some((w, reach.at(w)?)));
        if known.is_some() || in_map(at) {
            hexes.extend(plain.take().map(|start| (start, at)));
        } else {
            plain = plain.or(Some(at));
        }
        if let Some((word, known)) = known {
            let offset = word - known.buffer.address;
            let value = match offset {
                0 => json!({"buffer": known.name}),
                _ => json!({"buffer_at": {"buffer": known.name, "offset": offset}}),
            };
            fields.push((at, 8, value));
        }
        at += 8;
    }
    hexes.extend(plain.map(|start| (start, bytes.len())));
    for (start, end) in hexes {
        let part = &bytes[start..end];
        // Bytes that no field of a structure covers are zero.
        if part.len() < bytes.len() && part.iter().all(|b| *b == 0) {
            continue;
        }
        let value = match part.len() {
            4 if bytes.len() == 4 => {
                json!({"u32": u32::from_le_bytes([part[0], part[1], part[2], part[3]])})
            }
            _ => json!({"hex": hex(part)}),
        };
        fields.push((start, end - start, value));
    }
    fields.sort_by_key(|f| f.0);
    if let [(0, size, value)] = fields.as_slice()
        && *size == bytes.len()
    {
        return value.clone();
    }
    let fields: Vec<Value> = fields
        .into_iter()
        .map(|(offset, _, value)| json!({"offset": offset, "value": value}))
        .collect();
    json!({"struct": {"size": bytes.len(), "fields": fields}})
}

/// Contents of a buffer: its bytes up to the last one that was written. Bytes before that one count as written.
fn contents(sim: &Sim, b: Buffer, dir: &Path) -> Result<Option<String>, String> {
    let bytes = sim.download(b);
    let written = |n: usize| sim.written(b, 0, n);
    let first = if written(b.size) {
        b.size
    } else {
        // The longest prefix that was written.
        let (mut low, mut high) = (0, b.size);
        while low + 1 < high {
            let middle = low.midpoint(high);
            match written(middle) {
                true => low = middle,
                false => high = middle,
            }
        }
        let rest = (low..b.size).rev().find(|i| sim.written(b, *i, 1));
        rest.map_or(low, |last| last + 1)
    };
    if first == 0 {
        return Ok(None);
    }
    keep(dir, &bytes[..first], "bin").map(Some)
}

/// Options of `ptx-sim run` that make it as tolerant as this run, and the GPU the same.
fn options(r: &Recorder, resident: usize) -> String {
    let s = &r.settings;
    let mut all = format!(" --profile {} --sms {}", s.profile, s.sms);
    if let Some(budget) = s.budget {
        all += &format!(" --budget {budget}");
    }
    for name in &s.allow {
        all += &format!(" --allow {name}");
    }
    if s.hazards != Settings::default().hazards {
        all += &format!(" --hazards {}", s.hazards);
    }
    if s.approximations != Settings::default().approximations {
        all += &format!(" --approximations {}", s.approximations);
    }
    if resident != Options::default().resident {
        all += &format!(" --resident {resident}");
    }
    if s.warn_uninitialised {
        all += " --warn-uninitialised";
    }
    // The usual limit is for one launch, whose CTAs need some of it.
    let (limit, free) = r.memory.sizes();
    if limit - free > DEFAULT_MEMORY / 2 {
        all += &format!(" --memory {}", limit >> 20);
    }
    all
}

/// Writes a launch into a directory; returns its specification's path.
pub(crate) fn write(
    r: &mut Recorder,
    dir: &Path,
    number: u64,
    module: usize,
    program: &Program,
    launch: &Launch,
    resident: usize,
) -> Result<PathBuf, String> {
    fs::create_dir_all(dir).map_err(|e| named(dir, e))?;
    let all = r.memory.allocations().map(|a| {
        let (name, buffer) = (a.name.clone(), a.buffer);
        (buffer.address, Known { name, buffer })
    });
    let mut reach = Reach {
        all: all.collect(),
        reached: BTreeSet::new(),
    };
    for p in &launch.params {
        reach.scan(p);
    }
    let ready = r.module(module).map_err(|e| e.message)?;
    let ptx = keep(dir, ready.ptx.text.as_bytes(), "ptx")?;
    let names: Vec<String> = Sim::symbols(program).map(String::from).collect();
    let mut variables = serde_json::Map::new();
    for name in names {
        let bytes = ready.sim.read_symbol(program, &name);
        let bytes = bytes.map_err(|e| e.to_string())?;
        reach.scan(&bytes);
        let file = keep(dir, &bytes, "bin")?;
        variables.insert(name, json!({"file": file}));
    }
    let direct: Vec<u64> = reach.reached.iter().copied().collect();
    for address in direct {
        let buffer = reach.all[&address].buffer;
        let bytes = r.memory.sim.download(buffer);
        reach.scan(&bytes[..bytes.len().min(SCANNED)]);
    }
    let mut buffers = serde_json::Map::new();
    for address in &reach.reached {
        let known = &reach.all[address];
        let mut value = json!({"size": known.buffer.size, "address": address});
        if let Some(file) = contents(&r.memory.sim, known.buffer, dir)? {
            value["contents"] = json!({"file": file});
        }
        buffers.insert(known.name.clone(), value);
    }
    let params: Vec<Value> = launch.params.iter().map(|p| parameter(&reach, p)).collect();
    let mut spec = json!({
        "grid": launch.grid,
        "block": launch.block,
        "shared": launch.shared,
        "dependent": launch.dependent,
        "buffers": buffers,
        "variables": variables,
        "params": params,
    });
    if let Some(cluster) = launch.cluster {
        spec["cluster"] = json!(cluster);
    }
    let text = serde_json::to_string_pretty(&spec).map_err(|e| e.to_string())?;
    let name = keep_specification(dir, number, &(text + "\n"))?;
    let line = format!(
        "ptx-sim run --ptx {ptx} --launch {name} --entry '{}'{}\n",
        launch.kernel,
        options(r, resident)
    );
    add_command(dir, &line)?;
    Ok(dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(!are_in(dir));
        let names = ["a", "b", "c"].map(|text| keep_specification(dir, 2, text).unwrap());
        assert_eq!(
            names,
            ["launch-0002.json", "launch-0003.json", "launch-0004.json"]
        );
        assert_eq!(fs::read_to_string(dir.join(&names[0])).unwrap(), "a");
        assert!(are_in(dir));
        let (one, same) = (
            keep(dir, b"x", "bin").unwrap(),
            keep(dir, b"x", "bin").unwrap(),
        );
        assert_eq!(one, same);
        assert_ne!(one, keep(dir, b"y", "bin").unwrap());
        add_command(dir, "1\n").unwrap();
        add_command(dir, "2\n").unwrap();
        assert_eq!(
            fs::read_to_string(dir.join("commands.txt")).unwrap(),
            "1\n2\n"
        );
        // No partial file is left.
        assert_eq!(fs::read_dir(dir).unwrap().count(), 6);
    }
}
