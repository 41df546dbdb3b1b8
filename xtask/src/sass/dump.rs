//! Reads kernels out of object files with cuobjdump.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::process;
use crate::sass::catalogue::Catalogue;
use crate::sass::estimate::Estimate;
use crate::sass::figures::{Figures, reserved_in_usage};
use crate::sass::gpu::Gpu;
use crate::sass::instruction::Instruction;

/// One kernel as compiled for one architecture.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Kernel {
    /// The name of its entry point.
    pub(crate) symbol: String,
    /// Without its prefix: 90a.
    pub(crate) arch: String,
    pub(crate) registers: u32,
    /// Bytes: spilled registers, and arrays that are not in registers.
    pub(crate) stack: u32,
    pub(crate) local: u32,
    pub(crate) shared: u32,
    /// How often each opcode stands in the code.
    pub(crate) opcodes: BTreeMap<String, u32>,
    #[serde(skip)]
    pub(crate) code: Vec<Instruction>,
    /// What the code and the crate say together, on the architecture's GPU.
    pub(crate) figures: Option<Figures>,
    /// No measurement.
    pub(crate) estimate: Option<Estimate>,
}

impl Kernel {
    pub(crate) fn instructions(&self) -> u32 {
        self.opcodes.values().sum()
    }

    /// Without what the system reserves.
    pub(crate) fn static_shared(&self) -> u32 {
        self.shared.saturating_sub(reserved_in_usage(&self.arch))
    }

    /// Once all of the code is there.
    pub(crate) fn examine(&mut self, catalogue: &Catalogue) {
        let facts = catalogue.facts(&self.arch, &self.symbol);
        self.figures = facts.and_then(|facts| Figures::of(self, facts));
        self.estimate = self.figures.as_ref().and_then(|figures| {
            let gpu = Gpu::of_arch(&self.arch)?;
            Estimate::of(figures, gpu)
        });
    }
}

/// Keyed by architecture and symbol.
pub(crate) type Kernels = BTreeMap<(String, String), Kernel>;

/// Adds the kernels of one file.
pub(crate) fn read(cuobjdump: &Path, file: &Path, kernels: &mut Kernels) -> Result<()> {
    let mut usage = Usage::default();
    lines(cuobjdump, "-res-usage", file, |line| {
        usage.line(line, kernels)
    })?;
    let mut code = Code::default();
    lines(cuobjdump, "-sass", file, |line| code.line(line, kernels))
}

/// Runs cuobjdump and hands over its output line by line: it can be large.
fn lines(cuobjdump: &Path, what: &str, file: &Path, mut each: impl FnMut(&str)) -> Result<()> {
    let mut command = Command::new(cuobjdump);
    // cuobjdump runs nvdisasm, and finds it in PATH.
    if let Some(bin) = cuobjdump.parent() {
        command.env("PATH", crate::cargo::path_with(bin)?);
    }
    command.arg(what).arg(file).stdout(Stdio::piped());
    let line = process::line(&command);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            each(&text.with_context(|| format!("reading from `{line}`"))?);
        }
    }
    let status = child.wait().with_context(|| format!("`{line}`"))?;
    if !status.success() {
        bail!("{status} from `{line}`");
    }
    Ok(())
}

fn entry<'a>(kernels: &'a mut Kernels, arch: &str, symbol: &str) -> &'a mut Kernel {
    let key = (arch.to_owned(), symbol.to_owned());
    kernels.entry(key).or_insert_with(|| Kernel {
        symbol: symbol.to_owned(),
        arch: arch.to_owned(),
        ..Kernel::default()
    })
}

/// Reads `cuobjdump -res-usage`.
#[derive(Debug, Default)]
struct Usage {
    arch: String,
    symbol: String,
}

impl Usage {
    fn line(&mut self, line: &str, kernels: &mut Kernels) {
        let line = line.trim();
        if let Some(arch) = line.strip_prefix("arch = sm_") {
            self.arch = arch.to_owned();
        } else if let Some(name) = line.strip_prefix("Function ") {
            self.symbol = name.trim_end_matches(':').to_owned();
        } else if line.starts_with("REG:") && !self.symbol.is_empty() {
            let kernel = entry(kernels, &self.arch, &self.symbol);
            for field in line.split_whitespace() {
                let Some((name, value)) = field.split_once(':') else {
                    continue;
                };
                let value = value.parse().unwrap_or(0);
                match name {
                    "REG" => kernel.registers = value,
                    "STACK" => kernel.stack = value,
                    "LOCAL" => kernel.local = value,
                    "SHARED" => kernel.shared = value,
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
    fn line(&mut self, line: &str, kernels: &mut Kernels) {
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
            let kernel = entry(kernels, &self.arch, &self.symbol);
            *kernel
                .opcodes
                .entry(instruction.opcode.clone())
                .or_default() += 1;
            kernel.code.push(instruction);
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
        let mut kernels = Kernels::new();
        let mut usage = Usage::default();
        text.lines().for_each(|line| usage.line(line, &mut kernels));
        assert_eq!(kernels.len(), 2);
        let kernel = &kernels[&("90a".into(), "_Z4gemvv".into())];
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
        let mut kernels = Kernels::new();
        let mut code = Code::default();
        text.lines().for_each(|line| code.line(line, &mut kernels));
        let kernel = &kernels[&("100f".into(), "gemv".into())];
        let opcodes: Vec<(&str, u32)> = kernel
            .opcodes
            .iter()
            .map(|(name, &count)| (name.as_str(), count))
            .collect();
        assert_eq!(
            opcodes,
            [("EXIT", 2), ("LDC", 1), ("LDG.E.128.CONSTANT", 1)]
        );
        assert_eq!(kernel.instructions(), 4);
    }
}
