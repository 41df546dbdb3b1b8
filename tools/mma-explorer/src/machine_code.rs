//! The machine code of instructions, read from the disassembly of kernels that have one instruction each.

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};

use nvfp4_gemv_targets::places;
use sass::{Function, Functions};
use serde::Serialize;

use crate::arch::Arch;
use crate::cache::Cache;
use crate::nvrtc::{Compiled, NAMES, Nvrtc, NvrtcError, Stage};
use crate::source;
use crate::variants::{Emission, Family, Variant};

/// The machine code of one PTX instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Emitted {
    /// The matrix instructions, with all modifiers, and how often each stands there.
    pub instructions: BTreeMap<String, u32>,
    /// Whether that is the instruction that was asked for.
    pub emission: Emission,
    /// Instructions of the whole kernel, which also loads and stores: what an emulation adds shows here.
    pub total: usize,
}

/// Why machine code could not be read.
#[derive(Debug, thiserror::Error)]
pub enum MachineCodeError {
    /// There was none to read, as the source could not be compiled.
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
    /// There is no disassembler.
    #[error("cuobjdump and nvdisasm are not there")]
    Missing,
    /// The disassembler failed.
    #[error(transparent)]
    Disassembler(#[from] anyhow::Error),
    /// The disassembler's input could not be written.
    #[error("cannot write a temporary file")]
    File(#[from] std::io::Error),
    /// The machine code lacks the part that was looked for.
    #[error("the machine code has no {0}")]
    Nothing(String),
}

impl MachineCodeError {
    /// Advice about the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Nvrtc(error) => error.hint(&NAMES),
            Self::Missing => Some(
                "`cargo xtask toolchain --nvrtc` installs them where this program looks; a CUDA installation has them, \
                 too, in CUDA_HOME/bin"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// The path of cuobjdump, where nvdisasm stands beside it.
///
/// # Errors
/// [`MachineCodeError::Missing`].
pub fn disassembler() -> Result<PathBuf, MachineCodeError> {
    tool("cuobjdump").ok_or(MachineCodeError::Missing)
}

/// The kernels of a cubin.
///
/// # Errors
/// Where the disassembler is missing or fails.
pub fn functions(compiled: &Compiled) -> Result<Vec<Function>, MachineCodeError> {
    let mut functions = Functions::new();
    with_file(compiled, |cuobjdump, file| {
        sass::read(cuobjdump, file, &mut functions)
    })?;
    Ok(functions.into_values().collect())
}

/// The disassembly as text.
///
/// # Errors
/// As [`functions`].
pub fn text(compiled: &Compiled) -> Result<String, MachineCodeError> {
    with_file(compiled, sass::text)
}

fn with_file<T>(
    compiled: &Compiled,
    run: impl FnOnce(&Path, &Path) -> anyhow::Result<T>,
) -> Result<T, MachineCodeError> {
    let cuobjdump = disassembler()?;
    let mut file = tempfile::Builder::new().suffix(".cubin").tempfile()?;
    file.write_all(&compiled.cubin)?;
    file.flush()?;
    Ok(run(&cuobjdump, file.path())?)
}

/// The machine code of each of these variants for an architecture: all in one compilation.
///
/// # Errors
/// Where NVRTC or the disassembler is missing or fails.
pub fn survey(
    cache: &Cache,
    nvrtc: &Nvrtc,
    arch: Arch,
    variants: &[Variant],
) -> Result<Vec<Emitted>, MachineCodeError> {
    if variants.is_empty() {
        return Ok(Vec::new());
    }
    let (compiled, _) = cache.compile(
        nvrtc,
        &source::survey(variants),
        arch,
        &source::options(),
        Stage::Cubin,
    )?;
    let functions = functions(&compiled)?;
    let of = |(place, variant)| {
        let symbol = source::kernel_of_one(place);
        let one = functions.iter().find(|function| function.symbol == symbol);
        let missing = || MachineCodeError::Nothing(format!("kernel {symbol}"));
        emitted(variant, one.ok_or_else(missing)?)
    };
    variants.iter().enumerate().map(of).collect()
}

/// Whether an opcode is that of a matrix instruction: HMMA, IMMA, ..., HGMMA, UTCHMMA.
pub fn is_matrix_instruction(opcode: &str) -> bool {
    let name = opcode.split('.').next().unwrap_or("");
    name.ends_with("MMA")
}

/// The matrix instructions of a kernel, and how often each stands in its code.
pub fn matrix_instructions(function: &Function) -> BTreeMap<String, u32> {
    let all = function.opcodes.iter();
    let all = all.filter(|(opcode, _)| is_matrix_instruction(opcode));
    all.map(|(opcode, count)| (opcode.clone(), *count))
        .collect()
}

/// The machine code of a variant, from a kernel of [`crate::source::survey`].
///
/// # Errors
/// Where the kernel has no matrix instruction.
pub fn emitted(variant: &Variant, one: &Function) -> Result<Emitted, MachineCodeError> {
    let instructions = matrix_instructions(one);
    if instructions.is_empty() {
        return Err(MachineCodeError::Nothing("matrix instruction".into()));
    }
    // A native `mma.sync` has the variant's sizes for a modifier: HMMA.16816 for m16n8k16. Other families have the
    // sizes in another form or not at all, and have no larger shape that could stand for one.
    let sizes = format!("{}{}{}", variant.shape.m, variant.shape.n, variant.shape.k);
    let emission = match instructions.iter().next() {
        Some((opcode, 1)) if instructions.len() == 1 => {
            match variant.family() != Family::Mma
                || opcode.split('.').any(|modifier| modifier == sizes)
            {
                true => Emission::Native,
                false => Emission::Widened,
            }
        }
        _ => Emission::Emulated,
    };
    Ok(Emitted {
        instructions,
        emission,
        total: one.code.len(),
    })
}

/// The disassembler: beside where CUDA's tools are installed, or in PATH. As for NVRTC, not around this program.
fn tool(name: &str) -> Option<PathBuf> {
    let target = NAMES
        .target
        .map(Path::new)
        .filter(|target| target.is_absolute());
    let installed = target.into_iter().flat_map(|target| {
        let toolchain = target.join(places::TOOLCHAIN);
        [places::NVRTC, places::CUDA, places::INSPECT]
            .map(|folder| toolchain.join(folder).join(places::HOME).join("bin"))
    });
    let homes = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os);
    let homes = homes.map(|home| Path::new(&home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let found = |folder: &PathBuf| folder.join(name).is_file() && folder.join("nvdisasm").is_file();
    let all = homes.chain(env::split_paths(&path)).chain(installed);
    let all: Vec<PathBuf> = all.chain([PathBuf::from("/usr/local/cuda/bin")]).collect();
    all.into_iter().find(found).map(|folder| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants;

    fn one(opcodes: &[(&str, u32)]) -> Function {
        let opcodes = opcodes
            .iter()
            .map(|(name, count)| (name.to_string(), *count))
            .collect();
        Function {
            opcodes,
            ..Function::default()
        }
    }

    #[test]
    fn what_was_emitted_is_told_apart() {
        let emission = |name: &str, opcodes: &[(&str, u32)]| {
            let variant = variants::find(name).unwrap();
            emitted(&variant, &one(opcodes)).map(|emitted| emitted.emission)
        };
        let fp8 = "mma.m16n8k32.f32.e4m3.e4m3";
        let native = [("QMMA.16832.F32.E4M3.E4M3", 1), ("LDG.E", 10)];
        assert_eq!(emission(fp8, &native).unwrap(), Emission::Native);
        let emulated = [("HMMA.16816.F32", 2), ("F2FP.F16.E4M3.UNPACK_B", 12)];
        assert_eq!(emission(fp8, &emulated).unwrap(), Emission::Emulated);
        let wide = [("IMMA.16816.S8.S8", 1)];
        assert_eq!(
            emission("mma.m8n8k16.s32.s8.s8", &wide).unwrap(),
            Emission::Widened
        );
        assert!(emission(fp8, &[("FFMA", 3)]).is_err());
        assert!(is_matrix_instruction("UTCQMMA") && !is_matrix_instruction("FMUL"));
    }
}
