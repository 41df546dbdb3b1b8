//! A kernel's statements with numbers, and edits that replace some of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::text::render;
use crate::ast::{Function, Guard, Instr, Operand, Stmt, Ty};

/// Registers that mutants may use, declared in every mutated kernel.
pub(super) const SCRATCH: &[(Ty, &str)] = &[
    (Ty::B16, "%planted16_"),
    (Ty::B32, "%planted32_"),
    (Ty::B64, "%planted64_"),
    (Ty::Pred, "%plantedp_"),
];
const SCRATCH_COUNT: u32 = 4;

/// Statements by number, in the order of the source, blocks before the statements inside of them.
pub(super) type Edit = BTreeMap<usize, Vec<Stmt>>;

/// A list of statements that run one after the other: a body or a block.
pub(super) type Line<'a> = Vec<(usize, &'a Stmt)>;

/// A kernel taken apart.
pub(super) struct Body<'a> {
    /// Every instruction with its number.
    pub(super) instructions: Vec<(usize, &'a Instr)>,
    /// Every list of statements.
    pub(super) lines: Vec<Line<'a>>,
    /// Predicates that decide whether a loop goes on.
    pub(super) loop_guards: HashSet<&'a str>,
    types: HashMap<&'a str, Ty>,
}

impl<'a> Body<'a> {
    pub(super) fn new(f: &'a Function) -> Self {
        let mut b = Self {
            instructions: Vec::new(),
            lines: Vec::new(),
            loop_guards: HashSet::new(),
            types: HashMap::new(),
        };
        let mut seen = Vec::new();
        b.walk(f.body.as_deref().unwrap_or_default(), &mut 0, &mut seen);
        b
    }

    fn walk(&mut self, list: &'a [Stmt], next: &mut usize, seen: &mut Vec<&'a str>) {
        let mut line = Line::new();
        let mut last_guard = None;
        for s in list {
            let at = *next;
            *next += 1;
            line.push((at, s));
            match s {
                Stmt::Label(name, _) => seen.push(name),
                Stmt::Reg(ty, names, _) => {
                    self.types
                        .extend(names.iter().map(|(n, _)| (n.as_str(), *ty)));
                }
                Stmt::Instr(i) => {
                    self.instructions.push((at, i));
                    let back = i.opcode == "bra"
                        && matches!(i.operands.last(), Some(Operand::Name(to)) if seen.contains(&to.as_str()));
                    // `@p bra start`, or `@p bra end; bra start`.
                    let decides = match &i.guard {
                        None => last_guard,
                        Some(g) => Some(g.name.as_str()),
                    };
                    if let (true, Some(p)) = (back, decides) {
                        self.loop_guards.insert(p);
                    }
                    last_guard = (i.opcode == "bra")
                        .then(|| i.guard.as_ref().map(|g| g.name.as_str()))
                        .flatten();
                }
                Stmt::Block(inner) => self.walk(inner, next, seen),
                _ => {}
            }
        }
        self.lines.push(line);
    }

    /// The type of a register; `%r7` may be declared as `%r<203>`.
    pub(super) fn register(&self, name: &str) -> Option<Ty> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        self.types
            .get(name)
            .or_else(|| self.types.get(prefix))
            .copied()
    }
}

/// The function with some statements replaced.
pub(super) fn apply(f: &mut Function, edit: &Edit) {
    fn rebuild(list: Vec<Stmt>, next: &mut usize, edit: &Edit) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(list.len());
        for s in list {
            let at = *next;
            *next += 1;
            match (edit.get(&at), s) {
                (Some(new), old) => {
                    *next += inner_size(&old);
                    out.extend(new.iter().cloned());
                }
                (None, Stmt::Block(inner)) => out.push(Stmt::Block(rebuild(inner, next, edit))),
                (None, other) => out.push(other),
            }
        }
        out
    }
    let Some(body) = f.body.take() else { return };
    let mut new: Vec<Stmt> = SCRATCH
        .iter()
        .map(|(ty, name)| Stmt::Reg(*ty, vec![(name.to_string(), Some(SCRATCH_COUNT))], f.line))
        .collect();
    new.extend(rebuild(body.to_vec(), &mut 0, edit));
    f.body = Some(new.into());
}

fn inner_size(s: &Stmt) -> usize {
    match s {
        Stmt::Block(inner) => inner.iter().map(|s| 1 + inner_size(s)).sum(),
        _ => 0,
    }
}

/// A new instruction in the place of `like`.
pub(super) fn instr(like: &Instr, opcode: &str, operands: Vec<Operand>) -> Instr {
    let mut parts = opcode.split('.').map(str::to_string);
    let mut i = Instr {
        guard: None,
        opcode: parts.next().unwrap_or_default(),
        mods: parts.collect(),
        operands,
        line: like.line,
        text: String::new(),
    };
    i.text = render(&i);
    i
}

/// The instruction with another text after a change.
pub(super) fn changed(mut i: Instr) -> Stmt {
    i.text = render(&i);
    Stmt::Instr(i)
}

pub(super) fn guard(name: &str, negated: bool) -> Option<Guard> {
    Some(Guard {
        name: name.into(),
        negated,
    })
}

pub(super) fn name(n: &str) -> Operand {
    Operand::Name(n.into())
}

/// `mods` as one string with dots, for looking things up.
pub(super) fn has(i: &Instr, modifier: &str) -> bool {
    i.mods.iter().any(|m| m == modifier)
}
