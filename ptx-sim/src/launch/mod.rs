//! Launch specifications: JSON that says how to run a kernel, so that no Rust need be written.

mod buffers;
mod param;
mod spec;
mod tensor_map;

pub use param::ParamSpec;
pub use spec::{BufferSpec, Contents, Field, LaunchSpec, Scalar, StructSpec};
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
    /// Parses JSON. Unknown fields are errors; an error names the path to its field.
    pub fn parse(json: &str) -> Result<Self, SimError> {
        let fail = |e: String| SimError::Launch(format!("specification: {e}"));
        let mut json = serde_json::Deserializer::from_str(json);
        let spec = serde_path_to_error::deserialize(&mut json).map_err(|e| fail(e.to_string()))?;
        json.end().map_err(|e| fail(e.to_string()))?;
        Ok(spec)
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
            dependent: self.dependent,
            ..Launch::default()
        };
        for (i, p) in self.params.iter().enumerate() {
            let at = |e: SimError| match e {
                SimError::Launch(m) => SimError::Launch(format!("params[{i}]: {m}")),
                e => e,
            };
            launch = match p {
                ParamSpec::TensorMap { tensor_map } => {
                    launch.tensor_map(tensor_map.encode(&buffers).map_err(at)?)
                }
                other => launch.bytes(&other.bytes(&buffers).map_err(at)?),
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
