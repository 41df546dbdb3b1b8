//! One operand of an instruction with another value: literals change in place, registers through a
//! scratch register in front of the instruction.

use super::Plan;
use super::body::{Body, changed, instr};
use super::kind::Kind;
use crate::ast::{Instr, Operand, Stmt, Ty};

/// Change of the value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tweak {
    Add(i64),
    Xor(u64),
    Half,
    Twice,
}

impl Tweak {
    fn on(self, v: u64) -> u64 {
        match self {
            Tweak::Add(n) => v.wrapping_add(n as u64),
            Tweak::Xor(n) => v ^ n,
            Tweak::Half => v / 2,
            Tweak::Twice => v.wrapping_mul(2),
        }
    }

    /// Opcode and second operand for a register of some bits.
    fn instruction(self, bits: u32) -> (String, Operand) {
        match self {
            Tweak::Add(n) => (format!("add.s{bits}"), Operand::Int(n as u64)),
            Tweak::Xor(n) => (format!("xor.b{bits}"), Operand::Int(n)),
            Tweak::Half => (format!("shr.u{bits}"), Operand::Int(1)),
            Tweak::Twice => (format!("shl.b{bits}"), Operand::Int(1)),
        }
    }
}

/// The operand that is changed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Select {
    /// By number; of an address its base.
    Index(usize),
    /// Tensor coordinate of an address operand.
    Coordinate(usize, usize),
}

pub(super) fn index(n: usize) -> Select {
    Select::Index(n)
}

pub(super) fn base(n: usize) -> Select {
    Select::Index(n)
}

impl Select {
    fn of(self, i: &mut Instr) -> Option<&mut Operand> {
        match self {
            Select::Index(n) => i.operands.get_mut(n),
            Select::Coordinate(n, k) => match i.operands.get_mut(n)? {
                Operand::Address { rest, .. } => match rest.first_mut()? {
                    Operand::Vector(all) => all.get_mut(k),
                    _ => None,
                },
                _ => None,
            },
        }
    }
}

/// The statements that replace `i`; `None` if the operand is of no kind that can change.
pub(super) fn tweaked(
    body: &Body<'_>,
    i: &Instr,
    select: Select,
    tweak: Tweak,
) -> Option<Vec<Stmt>> {
    let mut new = i.clone();
    let o = select.of(&mut new)?;
    let target = match o {
        // An offset does for sums.
        Operand::Address { offset, .. } if matches!(tweak, Tweak::Add(_)) => {
            *offset = tweak.on(*offset as u64) as i64;
            return Some(vec![changed(new)]);
        }
        Operand::Address { base, .. } => &mut **base,
        other => other,
    };
    match target {
        Operand::Int(v) => {
            let changed_to = tweak.on(*v);
            if changed_to == *v {
                return None;
            }
            *v = changed_to;
            Some(vec![changed(new)])
        }
        Operand::Name(register) => {
            let bits = match body.register(register)? {
                Ty::Pred => return None,
                ty => ty.bits(),
            };
            let scratch = match bits {
                16 => "%planted16_0",
                32 => "%planted32_0",
                64 => "%planted64_0",
                _ => return None,
            };
            let (opcode, by) = tweak.instruction(bits);
            let from = std::mem::replace(target, Operand::Name(scratch.into()));
            let to = Operand::Name(scratch.into());
            let change = instr(i, &opcode, vec![to, from, by]);
            Some(vec![Stmt::Instr(change), changed(new)])
        }
        _ => None,
    }
}

impl Plan<'_> {
    /// A fault of one operand, if it is one that can change.
    pub(super) fn tweak(
        &mut self,
        kind: Kind,
        at: usize,
        i: &Instr,
        detail: &str,
        select: Select,
        tweak: Tweak,
    ) {
        if let Some(new) = tweaked(self.body, i, select, tweak) {
            self.one(kind, at, i, detail, new);
        }
    }
}
