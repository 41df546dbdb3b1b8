//! Launch specifications: JSON that says how to run a kernel, so that no Rust need be written.

mod buffers;
mod spec;
mod tensor_map;

pub use spec::{BufferSpec, Contents, Field, LaunchSpec, ParamSpec, Scalar, StructSpec};
pub use tensor_map::TensorMapSpec;

use std::collections::BTreeMap;
use std::path::Path;

use crate::ast::Module;
use crate::error::SimError;
use crate::sim::{Buffer, Launch, Sim};

/// A specification brought to life.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The module with its buffers filled.
    pub sim: Sim,
    /// The launch.
    pub launch: Launch,
    /// Buffers by name.
    pub buffers: BTreeMap<String, Buffer>,
}

impl LaunchSpec {
    /// Parses JSON. Unknown fields are errors.
    pub fn parse(json: &str) -> Result<Self, SimError> {
        serde_json::from_str(json).map_err(|e| SimError::Launch(format!("specification: {e}")))
    }

    /// Allocates and fills the buffers and lays the parameters out. Paths are relative to `base`.
    pub fn prepare(&self, module: Module, kernel: &str, base: &Path) -> Result<Prepared, SimError> {
        let mut sim = Sim::new(module);
        let mut buffers = BTreeMap::new();
        for (name, b) in &self.buffers {
            buffers.insert(name.clone(), buffers::allocate(&mut sim, name, b, base)?);
        }
        let mut launch = Launch {
            kernel: kernel.to_string(),
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            shared: self.shared,
            ..Launch::default()
        };
        for p in &self.params {
            launch = match p {
                ParamSpec::TensorMap { tensor_map } => {
                    launch.tensor_map(tensor_map.encode(&buffers)?)
                }
                other => launch.bytes(&other.bytes(&buffers)?),
            };
        }
        Ok(Prepared {
            sim,
            launch,
            buffers,
        })
    }

    /// Writes the buffers that ask for it into `dir`.
    pub fn dump(&self, p: &Prepared, dir: &Path) -> Result<(), SimError> {
        for (name, spec) in &self.buffers {
            let (Some(file), Some(b)) = (&spec.dump, p.buffers.get(name)) else {
                continue;
            };
            let path = dir.join(file);
            std::fs::write(&path, p.sim.download(*b)).map_err(|e| SimError::Io {
                path: path.display().to_string(),
                message: e.to_string(),
            })?;
        }
        Ok(())
    }
}
