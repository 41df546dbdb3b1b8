//! PTX of the kernels, compiled when it is first asked for, a unit at a time, and kept between processes.
//!
//! Functions that need nvcc panic where [`missing`] gives a reason, and where a kernel does not compile.

use std::collections::HashMap;
use std::env;
use std::hash::Hash;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nvfp4_gemv_files::store::Store;
use nvfp4_gemv_targets::nvcc::{self, Nvcc};
use nvfp4_gemv_targets::units::{UNITS, Unit};
use ptx_sim::mutate::Kernel;
use ptx_sim::{Module, Program};

use crate::compiler::{Compiler, VARIABLES, Wanted};

/// Every kind of code that is shipped, as nvcc names it without `compute_`.
pub const ALL: [&str; 3] = ["80", "90a", "100a"];
/// Architectures with mbarriers, bulk copies and clusters.
pub const HOPPER: [&str; 2] = ["90a", "100a"];
/// An architecture with tensor memory.
pub const BLACKWELL: &str = "100a";
/// An architecture with block-scaled matrix instructions of a warp.
pub const CONSUMER: &str = "120a";

fn found() -> &'static Result<Nvcc, String> {
    static FOUND: OnceLock<Result<Nvcc, String>> = OnceLock::new();
    FOUND.get_or_init(|| nvcc::find().map_err(|missing| missing.to_string()))
}

/// The release of the compiler, such as 13.0.
pub fn compiler() -> String {
    let nvcc = found().as_ref().expect("there is nvcc");
    nvcc.version.to_string()
}

/// Why nothing can be compiled.
pub fn missing() -> Option<String> {
    let missing = found().as_ref().err()?;
    let why = missing.lines().next().unwrap_or("no nvcc");
    Some(why.trim_end_matches(". Looked at:").into())
}

/// The value of a key, made once; others are made at the same time.
struct Once<K, V>(Mutex<Option<HashMap<K, Arc<OnceLock<V>>>>>);

impl<K: Eq + Hash, V: Clone> Once<K, V> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, key: K, make: impl FnOnce() -> V) -> V {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = all.get_or_insert_default().entry(key).or_default().clone();
        drop(all);
        cell.get_or_init(make).clone()
    }
}

/// The PTX of a unit's kernels for an architecture, one of [`of_arch`].
pub fn unit(name: &'static str, arch: &'static str) -> Arc<String> {
    static ALL: Once<(&str, &str), Arc<String>> = Once::new();
    let unit = UNITS.iter().find(|unit| unit.name == name);
    let unit = unit.unwrap_or_else(|| panic!("there is no unit {name}"));
    ALL.get((unit.name, arch), || {
        let source = format!("csrc/kernels/{}.cuh", unit.source);
        Arc::new(compile(unit.name, &source, unit.part, arch))
    })
}

/// The PTX of a file of this repository: its path from the root.
pub fn file(path: &str, arch: &'static str) -> Arc<String> {
    static ALL: Once<(String, &str), Arc<String>> = Once::new();
    ALL.get((path.to_string(), arch), || {
        let name = Path::new(path).file_stem().unwrap_or_default();
        Arc::new(compile(&name.to_string_lossy(), path, None, arch))
    })
}

/// Compiles a file of this repository, or takes what an earlier process made of it.
fn compile(name: &str, file: &str, define: Option<&str>, arch: &str) -> String {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| {
        let nvcc = found().as_ref().expect("there is nvcc");
        let value = |name| env::var(name).unwrap_or_default();
        Compiler {
            nvcc: nvcc.path.clone(),
            version: nvcc::says(&nvcc.path).expect("nvcc says its version"),
            environment: VARIABLES.map(value).to_vec(),
            root: crate::repository().to_path_buf(),
            kept: Store::at(crate::target().join("ptx")),
        }
    });
    compiler.compile(&Wanted {
        name,
        file,
        define,
        arch,
    })
}

/// A kernel, ready to run.
#[derive(Debug)]
pub struct Entry {
    /// Alone, to plant faults in.
    pub kernel: Kernel,
    /// Decoded.
    pub program: Program,
}

/// The kernel of that name.
pub fn entry(name: &str, arch: &'static str) -> Arc<Entry> {
    static ALL: Once<(String, &str), Arc<Entry>> = Once::new();
    ALL.get((name.to_string(), arch), || {
        let ptx = units(name, arch)
            .map(|of| unit(of.name, arch))
            .find(|ptx| entries(ptx).any(|entry| entry == name))
            .unwrap_or_else(|| panic!("no unit for {arch} has an entry {name}"));
        Arc::new(Entry::new(&ptx, name))
    })
}

impl Entry {
    /// The kernel `name` of a PTX text that may have others.
    pub fn new(ptx: &str, name: &str) -> Self {
        let module = alone(ptx, name);
        Self {
            kernel: Kernel::new(&module, name).expect(name),
            program: Program::new(&module, name).expect(name),
        }
    }
}

/// Parses one kernel of many: the others' bodies are most of the text. Shared memory of the whole module that the
/// kernel does not name is another's.
fn alone(ptx: &str, name: &str) -> Module {
    const HEAD: &str = ".visible .entry ";
    let mut parts = ptx.split(HEAD);
    let head = parts.next().expect("a head");
    let mut body = String::new();
    let mut after = "";
    for part in parts {
        if part.starts_with(&format!("{name}(")) {
            body = format!("{HEAD}{part}");
        }
        after = part;
    }
    // Files and sections stand behind the last one.
    if let Some(end) = after.rfind("\n}\n")
        && !body.ends_with(after)
    {
        body += &after[end + 3..];
    }
    let is_named = |line: &&str| {
        let variable = line
            .strip_prefix(".shared ")
            .and_then(|rest| rest.split('[').next());
        let variable = variable.and_then(|rest| rest.split(' ').next_back());
        variable.is_none_or(|variable| body.contains(variable))
    };
    let head: Vec<&str> = head.lines().filter(is_named).collect();
    let text = format!("{}\n{body}", head.join("\n"));
    Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The units that may have an entry, the likeliest first: each one before the right one is compiled in vain. An entry's
/// name begins with its unit's, or with the unit's source's; those of the helpers do not, but are no GEMV's either.
fn units(entry: &str, arch: &str) -> impl Iterator<Item = &'static Unit> {
    let mut units: Vec<&Unit> = existing(arch).collect();
    let is_gemv = |name: &str| name.starts_with("gemv_");
    units.sort_by_key(|unit| {
        (
            !entry.starts_with(unit.name),
            !entry.starts_with(unit.source),
            is_gemv(entry) != is_gemv(unit.name),
        )
    });
    units.into_iter()
}

fn existing(arch: &str) -> impl Iterator<Item = &'static Unit> {
    UNITS.iter().filter(move |unit| unit.exists_for(arch))
}

/// The names of the units that exist for an architecture.
pub fn of_arch(arch: &str) -> impl Iterator<Item = &'static str> {
    existing(arch).map(|unit| unit.name)
}

/// The names of a PTX text's entry points.
pub fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split(".visible .entry ")
        .skip(1)
        .filter_map(|rest| rest.split('(').next())
}
