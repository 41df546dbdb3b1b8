//! Opcodes that a module uses, and those among them that are not executed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ast::{Module, Stmt};
use crate::program::survey;

/// An opcode with all of its modifiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The opcode as in the source.
    pub opcode: String,
    /// Uses in the module.
    pub count: usize,
    /// Line of the first use.
    pub first_line: u32,
    /// Why it is not executed, if it is not.
    pub unmodelled: Option<String>,
}

/// Opcodes and problems of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// The module's opcodes.
    pub opcodes: Vec<Entry>,
    /// Problems other than instructions that keep a kernel from running. The kernel's opcodes are then counted, but
    /// nobody has looked whether all of them are executed.
    pub problems: Vec<String>,
}

/// Lists a module's opcodes.
pub fn inventory(module: &Module) -> Inventory {
    let mut all = BTreeMap::new();
    let mut problems = Vec::new();
    for f in &module.functions {
        collect(f.body.as_deref().unwrap_or_default(), &mut all);
    }
    let found = survey(module, |i, reason| {
        if let Some(e) = all.get_mut(&i.full_opcode()) {
            e.unmodelled.get_or_insert_with(|| reason.to_string());
        }
    });
    problems.extend(found.into_iter().map(|(kernel, e)| match kernel {
        Some(name) => format!("{name}: {e}"),
        None => e.to_string(),
    }));
    Inventory {
        opcodes: all.into_values().collect(),
        problems,
    }
}

type All = BTreeMap<String, Entry>;

fn collect(body: &[Stmt], all: &mut All) {
    for s in body {
        match s {
            Stmt::Block(b) => collect(b, all),
            Stmt::Instr(i) => {
                let opcode = i.full_opcode();
                let e = all.entry(opcode.clone()).or_insert_with(|| Entry {
                    opcode,
                    count: 0,
                    first_line: i.line,
                    unmodelled: None,
                });
                e.count += 1;
            }
            _ => {}
        }
    }
}
