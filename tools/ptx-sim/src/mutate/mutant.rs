//! A planted fault, and the kernel it is planted in.

use std::collections::HashMap;
use std::fmt;

use super::body::{Body, Edit, apply};
use super::host::HostFault;
use super::kind::Kind;
use super::text::normalise;
use super::{drops, moves, operands, scalar};
use crate::ast::{Function, Instr, Module, Stmt};
use crate::error::SimError;
use crate::program::Program;
use crate::sim::Launch;

/// Place of the fault.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Kernel(Edit),
    Host(HostFault),
}

/// One fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Mutant {
    /// Kind of the fault.
    pub kind: Kind,
    /// Detail of the fault, if a kind has several for one instruction.
    pub detail: String,
    /// Line of the instruction in the PTX; 0 for faults of the host.
    pub line: u32,
    /// The instruction before the change.
    pub text: String,
    /// Number among the faults that are otherwise named the same.
    pub ordinal: usize,
    change: Change,
}

impl Mutant {
    pub(super) fn new(kind: Kind, line: u32, text: String, detail: String, change: Change) -> Self {
        Self {
            kind,
            detail,
            line,
            text,
            ordinal: 0,
            change,
        }
    }

    /// A name that stays when lines and registers change: kind, detail, number, instruction.
    pub fn id(&self) -> String {
        format!("{}#{}", self.stem(), self.ordinal)
    }

    /// Whether it is in a share of one in `of`, chosen by name.
    pub fn is_in_share(&self, of: u64) -> bool {
        let hash = self.id().bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash >> 32).is_multiple_of(of)
    }

    fn stem(&self) -> String {
        let mut s = self.kind.name().to_string();
        if !self.detail.is_empty() {
            s += &format!(" ({})", self.detail);
        }
        if !self.text.is_empty() {
            s += &format!(" `{}`", normalise(&self.text));
        }
        s
    }

    /// Text that stands in the mutated kernel in the place of the instruction.
    pub fn replacement(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Change::Kernel(edit) = &self.change {
            for s in edit.values().flatten() {
                let mut all = Vec::new();
                super::class::instructions(s, &mut all);
                out.extend(all.iter().map(|i| i.text.clone()));
            }
        }
        out
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        write!(f, "{}", self.kind)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        if !self.text.is_empty() {
            write!(f, " `{}`", self.text)?;
        }
        Ok(())
    }
}

/// The kernel's body, and the faults that the planners add.
pub(super) struct Plan<'a> {
    pub(super) body: &'a Body<'a>,
    found: Vec<Mutant>,
}

impl Plan<'_> {
    /// A fault that replaces one instruction.
    pub(super) fn one(&mut self, kind: Kind, at: usize, i: &Instr, detail: &str, new: Vec<Stmt>) {
        self.add(kind, i, detail.to_string(), Edit::from([(at, new)]));
    }

    pub(super) fn add(&mut self, kind: Kind, like: &Instr, detail: String, edit: Edit) {
        self.found.push(Mutant::new(
            kind,
            like.line,
            like.text.clone(),
            detail,
            Change::Kernel(edit),
        ));
    }
}

/// A kernel alone with what it uses of its module, so that it is cheap to copy.
#[derive(Debug, Clone)]
pub struct Kernel {
    module: Module,
    entry: String,
}

impl Kernel {
    /// Takes a kernel out of its module.
    pub fn new(module: &Module, entry: &str) -> Result<Self, SimError> {
        // Decoding it tells what is wrong with it, and names the module's kernels.
        Program::new(module, entry)?;
        let names = module.entry(entry).map(|f| module.names_in(f));
        let called = |f: &Function| names.as_ref().is_some_and(|n| n.contains(f.name.as_str()));
        let mut module = module.clone();
        module
            .functions
            .retain(|f| if f.entry { f.name == entry } else { called(f) });
        Ok(Self {
            module,
            entry: entry.into(),
        })
    }

    /// Name of the kernel.
    pub fn name(&self) -> &str {
        &self.entry
    }

    /// The module with this kernel alone.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The faults that can be planted in it, always the same ones in the same order.
    pub fn mutants(&self) -> Vec<Mutant> {
        let Some(f) = self.module.entry(&self.entry) else {
            return Vec::new();
        };
        let body = Body::new(f);
        let mut plan = Plan {
            body: &body,
            found: Vec::new(),
        };
        for (at, i) in &body.instructions {
            drops::plan(&mut plan, *at, i);
            operands::plan(&mut plan, *at, i);
            scalar::plan(&mut plan, *at, i);
        }
        for line in &body.lines {
            moves::plan(&mut plan, line);
        }
        let mut all = plan.found;
        number(&mut all);
        all
    }

    /// The kernel without a fault.
    pub fn sound(&self) -> Result<Planted, SimError> {
        Ok(Planted {
            program: Program::new(&self.module, &self.entry)?,
            host: None,
        })
    }

    /// The kernel with a fault.
    pub fn plant(&self, m: &Mutant) -> Result<Planted, SimError> {
        let edit = match &m.change {
            Change::Host(h) => {
                return Ok(Planted {
                    host: Some(h.clone()),
                    ..self.sound()?
                });
            }
            Change::Kernel(edit) => edit,
        };
        let mut module = self.module.clone();
        if let Some(f) = module.functions.first_mut() {
            apply(f, edit);
        }
        Ok(Planted {
            program: Program::new(&module, &self.entry)?,
            host: None,
        })
    }
}

/// Tells apart faults that have the same name.
pub(super) fn number(all: &mut [Mutant]) {
    let mut count: HashMap<String, usize> = HashMap::new();
    for m in all {
        let n = count.entry(m.stem()).or_default();
        m.ordinal = *n;
        *n += 1;
    }
}

/// A kernel with, or without, a fault, ready to run.
#[derive(Debug, Clone)]
pub struct Planted {
    program: Program,
    host: Option<HostFault>,
}

impl Planted {
    /// The kernel to run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The launch to make; an error where the driver would refuse the fault.
    pub fn launch(&self, l: Launch) -> Result<Launch, SimError> {
        match &self.host {
            Some(h) => h.apply(l),
            None => Ok(l),
        }
    }
}
