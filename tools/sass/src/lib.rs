//! Reads kernels out of object files and cubins: their resources, and their machine code (SASS) one instruction at a
//! time. `cuobjdump` disassembles; this package runs it and reads what it prints.

mod instruction;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub use instruction::Instruction;

/// One kernel as compiled for one architecture.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Function {
    /// The name of its entry point.
    pub symbol: String,
    /// Without its prefix: 90a.
    pub arch: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes: spilled registers, and arrays that are not in registers.
    pub stack: u32,
    /// Bytes of local memory of a thread.
    pub local: u32,
    /// Bytes of static shared memory of a CTA, with what the system reserves.
    pub shared: u32,
    /// How often each opcode, with its modifiers, stands in the code.
    pub opcodes: BTreeMap<String, u32>,
    /// The code.
    #[serde(skip)]
    pub code: Vec<Instruction>,
}

/// Keyed by architecture and symbol.
pub type Functions = BTreeMap<(String, String), Function>;

/// Adds the kernels of one file.
///
/// # Errors
/// Where `cuobjdump` cannot be run on it.
pub fn read(cuobjdump: &Path, file: &Path, functions: &mut Functions) -> Result<()> {
    let mut usage = Usage::default();
    lines(cuobjdump, "-res-usage", file, |line| {
        usage.line(line, functions)
    })?;
    let mut code = Code::default();
    lines(cuobjdump, "-sass", file, |line| code.line(line, functions))
}

/// The disassembly of a file as text.
///
/// # Errors
/// Where `cuobjdump` cannot be run on it.
pub fn text(cuobjdump: &Path, file: &Path) -> Result<String> {
    let mut text = String::new();
    lines(cuobjdump, "-sass", file, |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    Ok(text)
}

/// Runs cuobjdump and hands over its output line by line: it can be large.
fn lines(cuobjdump: &Path, what: &str, file: &Path, mut each: impl FnMut(&str)) -> Result<()> {
    let mut command = Command::new(cuobjdump);
    // cuobjdump runs nvdisasm, and finds it in PATH.
    if let Some(path) = cuobjdump.parent().and_then(path_with) {
        command.env("PATH", path);
    }
    command.arg(what).arg(file).stdout(Stdio::piped());
    let line = format!("{} {what} {}", cuobjdump.display(), file.display());
    let child = command.spawn();
    let mut child = child.with_context(|| format!("cannot start `{line}`"))?;
    let reading = || format!("reading from `{line}`");
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            each(&text.with_context(reading)?);
        }
    }
    // The program's errors are on stderr.
    let status = child.wait().with_context(reading)?;
    ensure!(status.success(), "{status} from `{line}`");
    Ok(())
}

/// PATH with a directory before all others; `None` where its name cannot stand there.
fn path_with(first: &Path) -> Option<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(PathBuf::from(first)).chain(env::split_paths(&path));
    env::join_paths(all).ok()
}

fn entry<'a>(functions: &'a mut Functions, arch: &str, symbol: &str) -> &'a mut Function {
    let key = (arch.to_owned(), symbol.to_owned());
    functions.entry(key).or_insert_with(|| Function {
        symbol: symbol.to_owned(),
        arch: arch.to_owned(),
        ..Function::default()
    })
}

/// Reads `cuobjdump -res-usage`.
#[derive(Debug, Default)]
struct Usage {
    arch: String,
    symbol: String,
}

impl Usage {
    fn line(&mut self, line: &str, functions: &mut Functions) {
        let line = line.trim();
        if let Some(arch) = line.strip_prefix("arch = sm_") {
            self.arch = arch.to_owned();
        } else if let Some(name) = line.strip_prefix("Function ") {
            self.symbol = name.trim_end_matches(':').to_owned();
        } else if line.starts_with("REG:") && !self.symbol.is_empty() {
            let function = entry(functions, &self.arch, &self.symbol);
            for field in line.split_whitespace() {
                let Some((name, value)) = field.split_once(':') else {
                    continue;
                };
                let value = value.parse().unwrap_or(0);
                match name {
                    "REG" => function.registers = value,
                    "STACK" => function.stack = value,
                    "LOCAL" => function.local = value,
                    "SHARED" => function.shared = value,
                    _ => {}
                }
            }
            self.symbol.clear();
        }
    }
}

/// Reads `cuobjdump -sass`.
#[derive(Debug, Default)]
struct Code {
    arch: String,
    symbol: String,
}

impl Code {
    fn line(&mut self, line: &str, functions: &mut Functions) {
        let line = line.trim();
        // "code for sm_100" follows, also where it is for 100f.
        if let Some(arch) = line.strip_prefix("arch = sm_") {
            self.arch = arch.to_owned();
            self.symbol.clear();
        } else if let Some(name) = line.strip_prefix("Function : ") {
            self.symbol = name.to_owned();
        } else if let Some(instruction) = Instruction::parse(line)
            && !self.symbol.is_empty()
        {
            let function = entry(functions, &self.arch, &self.symbol);
            *function
                .opcodes
                .entry(instruction.opcode.clone())
                .or_default() += 1;
            function.code.push(instruction);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_resource_usage() {
        let text = "\
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function _Z4gemvv:
  REG:40 STACK:8 SHARED:1024 LOCAL:16 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function other:
  REG:10 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:544
";
        let mut functions = Functions::new();
        let mut usage = Usage::default();
        text.lines()
            .for_each(|line| usage.line(line, &mut functions));
        assert_eq!(functions.len(), 2);
        let kernel = &functions[&("90a".into(), "_Z4gemvv".into())];
        let numbers = (kernel.registers, kernel.stack, kernel.shared, kernel.local);
        assert_eq!(numbers, (40, 8, 1024, 16));
    }

    #[test]
    fn reads_code() {
        let text = "\
arch = sm_100f
code version = [1,8]

\tcode for sm_100
\t.target\tsm_100

\t\tFunction : gemv
\t.headerflags\t@\"EF_CUDA_SM80\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ; /* 0x0000000000077919 */
        /*0020*/               @P1 EXIT ;                           /* 0x000000000000794d */
        /*0030*/                   EXIT;                            /* 0x000000000000794d */
";
        let mut functions = Functions::new();
        let mut code = Code::default();
        text.lines()
            .for_each(|line| code.line(line, &mut functions));
        let kernel = &functions[&("100f".into(), "gemv".into())];
        let opcodes: Vec<(&str, u32)> = kernel
            .opcodes
            .iter()
            .map(|(name, &count)| (name.as_str(), count))
            .collect();
        assert_eq!(
            opcodes,
            [("EXIT", 2), ("LDC", 1), ("LDG.E.128.CONSTANT", 1)]
        );
        assert_eq!(kernel.code.len(), 4);
    }
}
