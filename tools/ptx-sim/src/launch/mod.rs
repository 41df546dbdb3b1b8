//! Launch specifications: JSON that says how to run a kernel, so that no Rust need be written.

mod buffers;
mod element;
mod expect;
mod operand;
mod param;
mod random;
mod spec;
mod tensor_map;

pub use element::BufferType;
pub use expect::{ExpectSpec, Expectation, Expected, MatmulSpec};
pub use operand::{Operand, ScaleLayout, Scales};
pub use param::ParamSpec;
pub use random::{RandomSpec, Values};
pub use spec::{BufferSpec, Contents, Field, LaunchSpec, Scalar, StructSpec};
pub use tensor_map::TensorMapSpec;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use crate::ast::Module;
use crate::error::SimError;
use crate::files::{self, Existing};
use crate::program::Program;
use crate::report::Report;
use crate::sim::{Buffer, Launch, Multiprocessors, Options, Sim};

/// A specification brought to life.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The module with its buffers filled.
    pub sim: Sim,
    /// The launches before that one, in their order.
    pub before: Vec<Launch>,
    /// The launch.
    pub launch: Launch,
    /// Buffers by name.
    pub buffers: BTreeMap<String, Buffer>,
}

impl Prepared {
    /// Runs the launches before the launch.
    pub fn run_before(&mut self, options: &Options) -> Result<Vec<Report>, SimError> {
        let run = |launch| self.sim.run(launch, options);
        self.before.iter().map(run).collect()
    }
}

impl Prepared {
    /// Runs all launches, those that depend on the one before them together with it: [`Sim::run_overlapped`].
    pub fn run_overlapped(
        &mut self,
        options: &Options,
        on: Multiprocessors,
    ) -> Result<Vec<Report>, SimError> {
        let launches: Vec<&Launch> = self.before.iter().chain([&self.launch]).collect();
        let programs = launches.iter().map(|l| self.sim.program(&l.kernel));
        let programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
        let all: Vec<_> = programs.iter().zip(launches).collect();
        self.sim.run_overlapped(&all, options, on)
    }
}

impl LaunchSpec {
    /// Parses JSON. Unknown fields are errors; an error names the path to its field.
    pub fn parse(json: &str) -> Result<Self, SimError> {
        let fail = |e: String| SimError::Launch(format!("specification: {e}"));
        let mut json = serde_json::Deserializer::from_str(json);
        let spec = serde_path_to_error::deserialize(&mut json).map_err(|e| fail(e.to_string()))?;
        json.end().map_err(|e| fail(e.to_string()))?;
        Ok(spec)
    }

    /// Allocates and fills the buffers and lays the parameters out. Names of files are those of files below `base`:
    /// they lead neither out of it nor through symbolic links.
    pub fn prepare(&self, module: Module, kernel: &str, base: &Path) -> Result<Prepared, SimError> {
        self.prepare_in(Sim::new(module), kernel, base)
    }

    /// [`prepare`](Self::prepare) in a simulator that is there: [`Sim::with_memory`].
    pub fn prepare_in(
        &self,
        mut sim: Sim,
        kernel: &str,
        base: &Path,
    ) -> Result<Prepared, SimError> {
        self.check_dumps()?;
        let mut buffers = BTreeMap::new();
        // The others go where there is room.
        let fixed = |placed: bool| {
            let all = self.buffers.iter();
            all.filter(move |(_, b)| b.address.is_some() == placed)
        };
        for (name, b) in fixed(true).chain(fixed(false)) {
            buffers.insert(name.clone(), buffers::allocate(&mut sim, name, b, base)?);
        }
        if !self.variables.is_empty() {
            let program = sim.program(kernel)?;
            for (name, contents) in &self.variables {
                let what = format!("variable {name}");
                let bytes = buffers::bytes(&sim, &what, contents, None, base)?;
                sim.write_symbol(&program, name, 0, &bytes)?;
            }
        }
        let launch = self.launch(kernel, &buffers)?;
        let before = self.before.iter().enumerate().map(|(i, earlier)| {
            let launch = earlier.earlier(&buffers);
            launch.map_err(|e| spec::within(&format!("before[{i}]"), e))
        });
        let before = before.collect::<Result<_, _>>()?;
        Ok(Prepared {
            sim,
            before,
            launch,
            buffers,
        })
    }

    /// The files that buffers are filled from or compared with. Paths are relative to `base`.
    pub fn input_paths(&self, base: &Path) -> Vec<PathBuf> {
        let contents = self.buffers.values().filter_map(|b| b.contents.as_ref());
        let contents = contents.chain(self.variables.values());
        let contents = contents.filter_map(|c| match c {
            Contents::File(file) | Contents::Safetensors { file, .. } => Some(file),
            _ => None,
        });
        let expected = self.buffers.values().filter_map(|b| b.expect.as_ref());
        let expected = expected.filter_map(|e| match &e.values {
            Expected::File(file) => Some(file),
            _ => None,
        });
        contents.chain(expected).map(|f| base.join(f)).collect()
    }

    /// The files that [`dump`](Self::dump) writes into `dir`.
    pub fn dump_paths(&self, dir: &Path) -> Vec<PathBuf> {
        let names = self.buffers.values().filter_map(|b| b.dump.as_ref());
        names.map(|name| dir.join(name)).collect()
    }

    /// Names of dumps are data from elsewhere: they must not make us write outside of the output
    /// directory, nor one buffer over another.
    fn check_dumps(&self) -> Result<(), SimError> {
        let mut seen: BTreeMap<PathBuf, &str> = BTreeMap::new();
        for (buffer, spec) in &self.buffers {
            let Some(name) = &spec.dump else { continue };
            let refuse = |reason: String| SimError::DumpName {
                buffer: buffer.clone(),
                name: name.clone(),
                reason,
            };
            let plain = |c| matches!(c, Component::Normal(_));
            if name.as_os_str().is_empty() || !name.components().all(plain) {
                return Err(refuse(
                    "is not a plain relative path: it must stay inside the output directory".into(),
                ));
            }
            if let Some(first) = seen.insert(name.components().collect(), buffer) {
                return Err(refuse(format!("is also the dump of buffer {first:?}")));
            }
        }
        Ok(())
    }

    /// Whether [`dump`](Self::dump) would refuse a name: because of a file that is there now, or because the name is
    /// one of the files that are read. To be called before long work.
    pub fn check_dumps_in(
        &self,
        dir: &Path,
        existing: Existing,
        inputs: &[&Path],
    ) -> Result<(), SimError> {
        let mut names = self.buffers.values().filter_map(|b| b.dump.as_ref());
        names.try_for_each(|name| files::check_output_below(dir, name, existing, inputs))
    }

    /// Writes the buffers that ask for it into `dir`, and makes the directories inside that their names
    /// need. No name leads through a symbolic link.
    pub fn dump(&self, p: &Prepared, dir: &Path, existing: Existing) -> Result<(), SimError> {
        self.check_dumps()?;
        for (name, spec) in &self.buffers {
            let (Some(file), Some(b)) = (&spec.dump, p.buffers.get(name)) else {
                continue;
            };
            let mut out = files::create_below(dir, file, existing)?;
            let written = out.write_all(p.sim.download(*b));
            written.map_err(|e| SimError::Io {
                path: dir.join(file).display().to_string(),
                message: e.to_string(),
            })?;
        }
        Ok(())
    }
}
