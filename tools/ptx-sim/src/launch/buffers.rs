//! Fills the buffers of a specification.

use std::path::Path;

use super::spec::{BufferSpec, Contents, hex};
use crate::error::SimError;
use crate::files;
use crate::sim::{Buffer, Sim};

/// Bytes of contents; a fill needs `size`. `what` names the owner of the contents: a buffer or a variable, and its
/// name.
pub(super) fn bytes(
    sim: &Sim,
    what: &str,
    contents: &Contents,
    size: Option<usize>,
    base: &Path,
) -> Result<Vec<u8>, SimError> {
    let refuse = |m: &str| SimError::Launch(format!("{what}: {m}"));
    Ok(match contents {
        Contents::Fill(v) => vec![*v; size.ok_or_else(|| refuse("a fill needs a size"))?],
        Contents::File(f) => files::read_below(base, f, sim.free_memory())?,
        Contents::Safetensors { file, tensor } => {
            read_tensor(base, file, tensor, sim.free_memory())?
        }
        Contents::Hex(s) => hex(s)?,
        Contents::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Contents::Random(r) => {
            let size = r
                .size()
                .ok_or_else(|| refuse("its elements do not fill whole bytes"))?;
            sim.check_room(what, size as u64)?;
            r.bytes().map_err(|e| refuse(&e))?
        }
        Contents::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
    })
}

pub(super) fn allocate(
    sim: &mut Sim,
    name: &str,
    spec: &BufferSpec,
    base: &Path,
) -> Result<Buffer, SimError> {
    let what = format!("buffer {name}");
    let refuse = |m: &str| SimError::Launch(format!("{what}: {m}"));
    // Before anything of that size is made or read.
    if let Some(size) = spec.size {
        sim.check_room(&what, size as u64)?;
    }
    let data = match &spec.contents {
        None => None,
        Some(contents) => Some(bytes(sim, &what, contents, spec.size, base)?),
    };
    let have = data.as_ref().map(Vec::len);
    let size = spec
        .size
        .or(have)
        .ok_or_else(|| refuse("it has neither size nor contents"))?;
    if have.is_some_and(|n| n > size) {
        return Err(refuse("its contents are larger than its size"));
    }
    let b = match spec.address {
        Some(address) => sim.alloc_at(name, address, size)?,
        None => sim.alloc(name, size)?,
    };
    // Bytes beyond the contents stay poisoned.
    if let Some(data) = data {
        sim.write(b, 0, &data)?;
    }
    Ok(b)
}

fn read_tensor(base: &Path, file: &Path, tensor: &str, limit: u64) -> Result<Vec<u8>, SimError> {
    let data = files::read_below(base, file, limit)?;
    let fail = |message: String| SimError::Io {
        path: base.join(file).display().to_string(),
        message,
    };
    let file = safetensors::SafeTensors::deserialize(&data).map_err(|e| fail(e.to_string()))?;
    let view = file.tensor(tensor).map_err(|e| fail(e.to_string()))?;
    Ok(view.data().to_vec())
}
