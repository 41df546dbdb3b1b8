//! Which opcodes a module uses, and which of them are not executed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ast::{Instr, Module, Stmt};
use crate::program::{Op, Program};

/// An opcode with all of its modifiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// As in the source.
    pub opcode: String,
    /// Uses in the module.
    pub count: usize,
    /// Line of the first use.
    pub first_line: u32,
    /// Why it is not executed, if it is not.
    pub unmodelled: Option<String>,
}

/// What a module uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// Its opcodes.
    pub opcodes: Vec<Entry>,
    /// What keeps a kernel from running and is not an instruction. The kernel's opcodes are then
    /// counted, but nobody has looked whether all of them are executed.
    pub problems: Vec<String>,
}

/// Lists a module's opcodes.
pub fn inventory(module: &Module) -> Inventory {
    let mut all = BTreeMap::new();
    let mut problems = Vec::new();
    for f in &module.functions {
        collect(f.body.as_deref().unwrap_or_default(), &mut all);
        if !f.entry && f.body.is_some() {
            problems.push(format!(
                "line {}: function {} cannot be called: calls are not modelled",
                f.line, f.name
            ));
        }
    }
    // What a kernel's decoder says, kernel by kernel, with the failing instructions taken out one
    // after another: an error names one line only.
    for name in module.entries().map(str::to_string).collect::<Vec<_>>() {
        let mut m = module.clone();
        loop {
            match Program::new(&m, &name) {
                Ok(p) => {
                    for i in &p.code {
                        if let Op::Unmodelled { reason } = &i.op {
                            mark(&mut all, i.line, &i.text, reason);
                        }
                    }
                    break;
                }
                Err(crate::SimError::Decode(e)) => {
                    let known = mark(&mut all, e.line, &e.text, &e.message);
                    if !known || !remove(&mut m, &name, e.line, &e.text) {
                        problems.push(format!("{name}: {e}"));
                        break;
                    }
                }
                Err(e) => {
                    problems.push(format!("{name}: {e}"));
                    break;
                }
            }
        }
    }
    Inventory {
        opcodes: all.into_values().map(|(e, _)| e).collect(),
        problems,
    }
}

type All = BTreeMap<String, (Entry, Vec<(u32, String)>)>;

fn collect(body: &[Stmt], all: &mut All) {
    for s in body {
        match s {
            Stmt::Block(b) => collect(b, all),
            Stmt::Instr(i) => {
                let (e, uses) = all.entry(i.full_opcode()).or_insert_with(|| {
                    let e = Entry {
                        opcode: i.full_opcode(),
                        count: 0,
                        first_line: i.line,
                        unmodelled: None,
                    };
                    (e, Vec::new())
                });
                e.count += 1;
                uses.push((i.line, i.text.clone()));
            }
            _ => {}
        }
    }
}

fn mark(all: &mut All, line: u32, text: &str, reason: &str) -> bool {
    let at = (line, text.to_string());
    for (e, uses) in all.values_mut() {
        if uses.contains(&at) {
            e.unmodelled.get_or_insert_with(|| reason.to_string());
            return true;
        }
    }
    false
}

/// Takes every instruction with the opcode of the failing one out of a kernel.
fn remove(m: &mut Module, kernel: &str, line: u32, text: &str) -> bool {
    let Some(f) = m.functions.iter_mut().find(|f| f.name == kernel) else {
        return false;
    };
    let Some(body) = &mut f.body else {
        return false;
    };
    let mut opcode = None;
    find(body, line, text, &mut opcode);
    match opcode {
        Some(o) => {
            strip(body, &o);
            true
        }
        None => false,
    }
}

fn find(body: &[Stmt], line: u32, text: &str, out: &mut Option<String>) {
    for s in body {
        match s {
            Stmt::Block(b) => find(b, line, text, out),
            Stmt::Instr(i) if i.line == line && i.text == text => *out = Some(i.full_opcode()),
            _ => {}
        }
    }
}

fn strip(body: &mut Vec<Stmt>, opcode: &str) {
    body.retain(|s| !matches!(s, Stmt::Instr(i) if Instr::full_opcode(i) == opcode));
    for s in body {
        if let Stmt::Block(b) = s {
            strip(b, opcode);
        }
    }
}
