//! A kernel ready to execute: names are slots, labels are indices, constants are registers, and
//! every instruction is an [`Op`] that was checked once.

mod build;
mod cfg;
pub(crate) mod decode;
mod launch_control;
mod mma;
mod modes;
mod op;
mod operand;
mod special;
mod tcgen05;
mod transfer;
mod wgmma;
mod wmma;

pub(crate) use build::survey;
pub use launch_control::LaunchControl;
pub use mma::{BlockScales, MmaSync};
pub use modes::*;
pub use op::*;
pub use operand::*;
pub(crate) use special::EXPLICIT_CLUSTER;
pub use tcgen05::{MmaA, MmaOperands, Tcgen05, TensorAddr};
pub use transfer::{Completion, Reduction, Transfer};
pub use wgmma::{Wgmma, WgmmaA, WgmmaMma};
pub use wmma::Wmma;

use std::sync::Arc;

use crate::ast::{Loc, Module};
use crate::error::SimError;
use crate::report::Site;

/// Most bytes of a kernel's parameters: PTX ISA, "Kernel Function Parameters".
pub(crate) const MAX_PARAMETERS: u64 = 32764;

/// A kernel parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name of the parameter.
    pub name: String,
    /// Offset in the parameter block.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A variable with its place in its space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Name of the variable.
    pub name: String,
    /// Address in its space; of shared memory the offset in the CTA.
    pub address: u64,
    /// Size in bytes; 0 for dynamic shared memory.
    pub size: u64,
    /// First bytes of a global or constant variable; the others are zero.
    pub init: Option<Vec<u8>>,
}

/// A decoded kernel.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Name of the kernel.
    pub kernel: String,
    /// Instructions.
    pub code: Vec<Ins>,
    /// Registers: the mask of each one's width.
    pub reg_masks: Vec<u64>,
    /// Constants, addressed by [`Src`] with its high bit set.
    pub consts: Vec<Lanes>,
    /// Predicate registers. The first is always true, the second always false, the
    /// third `%is_explicit_cluster`.
    pub preds: usize,
    /// Special registers in use and the register each is kept in.
    pub specials: Vec<(Special, u32)>,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Static shared variables.
    pub shared: Vec<Variable>,
    /// End of static shared memory and start of dynamic, as an offset in the CTA.
    pub dynamic_shared: u64,
    /// Local variables of each thread.
    pub local: Vec<Variable>,
    /// Constant variables.
    pub constant: Vec<Variable>,
    /// Global variables.
    pub global: Vec<Variable>,
    /// `.reqntid`.
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`.
    pub maxntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`.
    pub max_cluster_rank: Option<u32>,
    /// `.explicitcluster`.
    pub explicit_cluster: bool,
    /// `.file` directives.
    pub files: Vec<(u32, String)>,
}

/// An instruction of a [`Program`].
#[derive(Debug, Clone)]
pub struct Ins {
    /// The operation.
    pub op: Op,
    /// Under which predicate.
    pub guard: Option<PredSrc>,
    /// Instruction where diverged lanes meet again: the branch's immediate post-dominator.
    pub join: Option<u32>,
    /// Line of the PTX source.
    pub line: u32,
    /// The instruction's text.
    pub text: String,
    /// Position in the kernel's own source, and behind it those where its function was inlined.
    pub loc: Option<Arc<[Loc]>>,
}

impl Program {
    /// Decodes a kernel of a module.
    pub fn new(module: &Module, kernel: &str) -> Result<Self, SimError> {
        build::build(module, kernel)
    }

    /// Place of an instruction in the source.
    pub fn site(&self, pc: usize) -> Site {
        let Some(i) = self.code.get(pc) else {
            return Site::default();
        };
        Site {
            kernel: self.kernel.clone(),
            line: i.line,
            text: i.text.clone(),
            source: i.loc.as_ref().map(|chain| {
                let position = |l: &Loc| {
                    let file = self.files.iter().find(|(n, _)| *n == l.file);
                    format!("{}:{}", file.map_or("?", |(_, s)| s.as_str()), l.line)
                };
                let all: Vec<String> = chain.iter().map(position).collect();
                all.join(", inlined at ")
            }),
        }
    }

    /// Name of the variable that a shared address lies in, with the offset. `dynamic` is the launch's shared memory.
    pub fn shared_name(&self, at: u64, dynamic: u32) -> Option<String> {
        let holds = |v: &&Variable| (v.address..v.address + v.size).contains(&at);
        let dynamic = self.dynamic_shared..self.dynamic_shared + u64::from(dynamic);
        let (name, first) = match self.shared.iter().find(holds) {
            Some(v) => (v.name.as_str(), v.address),
            None if dynamic.contains(&at) => ("dynamic shared memory", dynamic.start),
            None => return None,
        };
        Some(format!("{name}+{}", at - first))
    }
}
