//! Fills the buffers of a specification.

use std::path::Path;

use super::spec::{BufferSpec, Contents, hex};
use crate::error::SimError;
use crate::files;
use crate::sim::{Buffer, Sim};

pub(super) fn allocate(
    sim: &mut Sim,
    name: &str,
    spec: &BufferSpec,
    base: &Path,
) -> Result<Buffer, SimError> {
    let refuse = |m: &str| SimError::Launch(format!("buffer {name}: {m}"));
    // Before anything of that size is made or read.
    if let Some(size) = spec.size {
        sim.check_buffer(name, size as u64)?;
    }
    let data = match &spec.contents {
        None => None,
        Some(Contents::Fill(v)) => Some(vec![
            *v;
            spec.size
                .ok_or_else(|| refuse("a fill needs a size"))?
        ]),
        Some(Contents::File(f)) => Some(files::read(&base.join(f), sim.free_memory())?),
        Some(Contents::Safetensors { file, tensor }) => {
            Some(read_tensor(&base.join(file), tensor, sim.free_memory())?)
        }
        Some(Contents::Hex(s)) => Some(hex(s)?),
        Some(Contents::F32(v)) => Some(v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Some(Contents::I32(v)) => Some(v.iter().flat_map(|x| x.to_le_bytes()).collect()),
    };
    let have = data.as_ref().map(Vec::len);
    let size = spec
        .size
        .or(have)
        .ok_or_else(|| refuse("it has neither size nor contents"))?;
    if have.is_some_and(|n| n > size) {
        return Err(refuse("its contents are larger than its size"));
    }
    let b = sim.alloc(name, size)?;
    // Bytes beyond the contents stay poisoned.
    if let Some(data) = data {
        sim.write(b, 0, &data)?;
    }
    Ok(b)
}

fn read_tensor(path: &Path, tensor: &str, limit: u64) -> Result<Vec<u8>, SimError> {
    let data = files::read(path, limit)?;
    let fail = |message: String| SimError::Io {
        path: path.display().to_string(),
        message,
    };
    let file = safetensors::SafeTensors::deserialize(&data).map_err(|e| fail(e.to_string()))?;
    let view = file.tensor(tensor).map_err(|e| fail(e.to_string()))?;
    Ok(view.data().to_vec())
}
