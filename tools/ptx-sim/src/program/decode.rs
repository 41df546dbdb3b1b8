//! From a parsed instruction to an [`Op`]: operands, modifiers, and the choice of family.

use super::build::{Builder, GRID_WORKSPACE, RETURN, Sym, literal};
use super::special::{EXPLICIT_CLUSTER, FALSE, TRUE, special};
use super::{Addr, Alu, Dst, Op, PredSrc, Special, Src};
use crate::ast::{Instr, Operand, Ty};
use crate::memory::Space;
use crate::ops;

/// The error of a decoder is its message; the builder adds line and text.
pub(crate) type R<T> = Result<T, String>;

/// The modifiers of an instruction; each must be taken by someone.
#[derive(Debug)]
pub(crate) struct Mods<'a> {
    items: Vec<(&'a str, bool)>,
}

impl<'a> Mods<'a> {
    /// Takes a modifier if it is there.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        for (m, used) in &mut self.items {
            if *m == name && !*used {
                *used = true;
                return true;
            }
        }
        false
    }

    /// Takes the first of several modifiers that is there.
    pub(crate) fn one_of(&mut self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().find(|n| self.take(n)).copied()
    }

    /// Takes the first modifier that `f` knows.
    pub(crate) fn find<T>(&mut self, f: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        for (m, used) in &mut self.items {
            if !*used && let Some(t) = f(m) {
                *used = true;
                return Some(t);
            }
        }
        None
    }

    /// Takes the next type in order.
    pub(crate) fn ty(&mut self) -> R<Ty> {
        self.find(Ty::parse)
            .ok_or_else(|| "a type is missing or not modelled".into())
    }

    /// An error if anything is left.
    pub(crate) fn finish(&self) -> R<()> {
        let left: Vec<_> = self
            .items
            .iter()
            .filter(|m| !m.1)
            .map(|m| format!(".{}", m.0))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{} is not modelled here", left.join(" ")))
        }
    }
}

/// An instruction being decoded.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) b: &'a mut Builder,
    scope: usize,
    pub(crate) ins: &'a Instr,
    pub(crate) mods: Mods<'a>,
}

impl<'a> Cx<'a> {
    pub(crate) fn new(b: &'a mut Builder, scope: usize, ins: &'a Instr) -> Self {
        let items = ins.mods.iter().map(|m| (m.as_str(), false)).collect();
        Self {
            b,
            scope,
            ins,
            mods: Mods { items },
        }
    }

    pub(crate) fn count(&self, allowed: &[usize]) -> R<usize> {
        let n = self.ins.operands.len();
        if allowed.contains(&n) {
            Ok(n)
        } else {
            Err(format!("{n} operands where {allowed:?} are expected"))
        }
    }

    pub(crate) fn operand(&self, i: usize) -> R<&'a Operand> {
        self.ins
            .operands
            .get(i)
            .ok_or_else(|| format!("operand {} is missing", i + 1))
    }

    /// A vector of `n` elements; one may stand without braces.
    pub(crate) fn vector(&self, i: usize, n: usize) -> R<&'a [Operand]> {
        match self.operand(i)? {
            Operand::Vector(v) if v.len() == n => Ok(v),
            o if n == 1 && !matches!(o, Operand::Vector(_)) => Ok(std::slice::from_ref(o)),
            o => Err(format!(
                "{n} registers are expected as operand {}, not {o}",
                i + 1
            )),
        }
    }

    pub(crate) fn guard(&mut self) -> R<Option<PredSrc>> {
        let Some(g) = &self.ins.guard else {
            return Ok(None);
        };
        match self.b.lookup(self.scope, &g.name) {
            Some(Sym::Pred(slot)) => Ok(Some(PredSrc {
                slot,
                negated: g.negated,
            })),
            _ => Err(format!("`{}` is not a predicate", g.name)),
        }
    }

    pub(crate) fn src(&mut self, i: usize, ty: Ty) -> R<Src> {
        let o = self.operand(i)?;
        self.src_of(o, ty)
    }

    /// A source; of 128 bits, the first of a register's two halves.
    pub(crate) fn src_of(&mut self, o: &Operand, ty: Ty) -> R<Src> {
        if ty == Ty::B128 && self.reg_ty(o) != Some(Ty::B128) {
            return Err(format!("{o} is not a register of 128 bits"));
        }
        if let Some(bits) = literal(o, ty) {
            return Ok(self.b.constant(bits));
        }
        let (name, offset) = match o {
            Operand::Name(n) => (n, 0),
            Operand::NameOffset(n, off) => (n, *off),
            other => return Err(format!("{other} cannot be a source of type {ty}")),
        };
        if name == "WARP_SZ" && offset == 0 {
            return Ok(self.b.constant(32));
        }
        match self.b.lookup(self.scope, name) {
            Some(Sym::Reg { slot, ty: have }) if offset == 0 => {
                if have.bits() < ty.bits() {
                    return Err(format!(
                        "`{name}` has {} bits, {} are needed",
                        have.bits(),
                        ty.bits()
                    ));
                }
                Ok(Src(slot))
            }
            Some(Sym::Dynamic) => {
                let at = self.b.program.dynamic_shared as i64 + offset;
                let at = u32::try_from(at).map_err(|_| "address out of range")?;
                Ok(self.b.special(Special::SharedAddress(at)))
            }
            Some(Sym::Var(Space::Shared, a)) => {
                let at = u32::try_from(a as i64 + offset).map_err(|_| "address out of range")?;
                Ok(self.b.special(Special::SharedAddress(at)))
            }
            Some(Sym::Var(_, a)) => Ok(self.b.constant(a.wrapping_add_signed(offset))),
            Some(_) => Err(format!("`{name}` cannot be a source of type {ty}")),
            None if matches!(name.as_str(), "%envreg1" | "%envreg2") => {
                match self.b.lookup(self.scope, GRID_WORKSPACE) {
                    Some(Sym::Var(_, a)) if name == "%envreg2" => {
                        Ok(self.b.constant(a & 0xffff_ffff))
                    }
                    Some(Sym::Var(_, a)) => Ok(self.b.constant(a >> 32)),
                    _ => Err(format!("`{name}` is not modelled")),
                }
            }
            None => match special(name) {
                Some(s) if offset == 0 => Ok(self.b.special(s)),
                _ if name.starts_with('%') => {
                    Err(format!("register `{name}` is not declared or not modelled"))
                }
                _ => Err(format!("`{name}` is not declared")),
            },
        }
    }

    pub(crate) fn dst(&mut self, i: usize, ty: Ty) -> R<Dst> {
        let o = self.operand(i)?;
        self.dst_of(o, ty)?
            .ok_or_else(|| "`_` cannot be the result here".into())
    }

    pub(crate) fn dst_of(&mut self, o: &Operand, ty: Ty) -> R<Option<Dst>> {
        let name = match o {
            Operand::Sink => return Ok(None),
            Operand::Name(n) => n,
            other => return Err(format!("{other} cannot be a result")),
        };
        match self.b.lookup(self.scope, name) {
            Some(Sym::Reg { slot, ty: have }) => {
                if have.bits() < ty.bits() {
                    return Err(format!(
                        "`{name}` has {} bits, {} are needed",
                        have.bits(),
                        ty.bits()
                    ));
                }
                Ok(Some(Dst(slot)))
            }
            _ => Err(format!("`{name}` is not a register")),
        }
    }

    /// Declared type of a register operand.
    pub(crate) fn reg_ty(&mut self, o: &Operand) -> Option<Ty> {
        let Operand::Name(n) = o else { return None };
        match self.b.lookup(self.scope, n)? {
            Sym::Reg { ty, .. } => Some(ty),
            _ => None,
        }
    }

    pub(crate) fn pred(&mut self, i: usize) -> R<PredSrc> {
        let o = self.operand(i)?;
        let (name, negated) = match o {
            Operand::Name(n) => (n, false),
            Operand::Not(n) => (n, true),
            Operand::Int(v) => {
                return Ok(PredSrc {
                    slot: if *v == 0 { FALSE } else { TRUE },
                    negated: false,
                });
            }
            other => return Err(format!("{other} is not a predicate")),
        };
        match self.b.lookup(self.scope, name) {
            Some(Sym::Pred(slot)) => Ok(PredSrc { slot, negated }),
            None if name == "%is_explicit_cluster" => Ok(PredSrc {
                slot: EXPLICIT_CLUSTER,
                negated,
            }),
            _ => Err(format!("`{name}` is not a predicate")),
        }
    }

    /// A predicate to write; `None` for `_`.
    pub(crate) fn pred_dst_of(&mut self, o: &Operand) -> R<Option<u32>> {
        let name = match o {
            Operand::Sink => return Ok(None),
            Operand::Name(n) => n,
            other => return Err(format!("{other} cannot be a result")),
        };
        match self.b.lookup(self.scope, name) {
            Some(Sym::Pred(slot)) => Ok(Some(slot)),
            _ => Err(format!("`{name}` is not a predicate")),
        }
    }

    pub(crate) fn pred_dst(&mut self, i: usize) -> R<u32> {
        let o = self.operand(i)?;
        self.pred_dst_of(o)?
            .ok_or_else(|| "`_` cannot be the result here".into())
    }

    pub(crate) fn label(&self, i: usize) -> R<u32> {
        match self.operand(i)? {
            Operand::Name(n) => self
                .b
                .label(self.scope, n)
                .ok_or_else(|| format!("label `{n}` is not defined")),
            other => Err(format!("{other} is not a label")),
        }
    }

    /// Where `ret` goes in a function that was called.
    pub(crate) fn back(&self) -> Option<u32> {
        self.b.label(self.scope, RETURN)
    }

    /// The address in local memory of a variable that a call names.
    pub(crate) fn given(&mut self, o: &Operand) -> R<u64> {
        let symbol = match o {
            Operand::Name(n) => self.b.lookup(self.scope, n),
            _ => None,
        };
        match symbol {
            Some(Sym::Var(Space::Local, at)) => Ok(at),
            _ => Err(format!("{o} is no variable of .param")),
        }
    }

    pub(crate) fn table(&mut self, i: usize) -> R<Vec<u32>> {
        match self.operand(i)? {
            Operand::Name(n) => self.b.table(self.scope, n),
            other => Err(format!("{other} is not a list of labels")),
        }
    }

    /// A memory operand.
    pub(crate) fn addr(&mut self, i: usize, mut space: Option<Space>, own: bool) -> R<Addr> {
        let Operand::Address { base, offset, rest } = self.operand(i)? else {
            return Err("an address in brackets is expected".into());
        };
        if !rest.is_empty() {
            return Err("an address of one part is expected".into());
        }
        let narrow = match self.reg_ty(base) {
            Some(t) if t.bits() == 32 => true,
            Some(t) if t.bits() == 64 => false,
            Some(_) => return Err("an address register has 32 or 64 bits".into()),
            None => false,
        };
        if narrow
            && !matches!(
                space,
                Some(Space::Shared | Space::Local | Space::Const | Space::Param)
            )
        {
            return Err("a global or generic address has 64 bits".into());
        }
        let ty = if narrow { Ty::B32 } else { Ty::B64 };
        // A variable named here lies in its own space, whatever the instruction says.
        if let Operand::Name(n) = &**base {
            let lies_in = match self.b.lookup(self.scope, n) {
                Some(Sym::Var(s, _)) => Some(s),
                Some(Sym::Dynamic) => Some(Space::Shared),
                _ => None,
            };
            // The parameters of a call are local memory.
            if (space, lies_in) == (Some(Space::Param), Some(Space::Local)) {
                space = lies_in;
            }
            if let Some(s) = lies_in.filter(|s| space != Some(*s)) {
                return Err(format!("`{n}` lies in {} memory", s.name()));
            }
        }
        Ok(Addr {
            space,
            own,
            base: self.src_of(base, ty)?,
            offset: *offset,
            narrow,
        })
    }

    /// Takes a state space modifier. `None` is generic.
    pub(crate) fn space(&mut self) -> (Option<Space>, bool) {
        for (name, space, own) in [
            ("global", Space::Global, false),
            ("shared", Space::Shared, true),
            ("shared::cta", Space::Shared, true),
            ("shared::cluster", Space::Shared, false),
            ("local", Space::Local, false),
            ("param", Space::Param, false),
            ("param::entry", Space::Param, false),
            ("param::func", Space::Param, false),
            ("const", Space::Const, false),
        ] {
            if self.mods.take(name) {
                return (Some(space), own);
            }
        }
        (None, false)
    }

    /// Arithmetic with a result of `d` and sources of the given types.
    pub(crate) fn alu(&mut self, f: Alu, d: Ty, sources: &[Ty]) -> R<Op> {
        self.mods.finish()?;
        self.count(&[sources.len() + 1])?;
        let d = self.dst(0, d)?;
        let mut s = [Src(Src::CONST); 3];
        for (i, ty) in sources.iter().enumerate() {
            s[i] = self.src(i + 1, *ty)?;
        }
        if sources.len() < 3 {
            let zero = self.b.constant(0);
            s[sources.len()..].fill(zero);
        }
        Ok(Op::Alu {
            f,
            d,
            s,
            n: sources.len() as u8,
        })
    }
}

/// Decodes by family; the first that knows the opcode decides.
pub(crate) fn op(cx: &mut Cx<'_>) -> R<Op> {
    type Family = fn(&mut Cx<'_>) -> R<Option<Op>>;
    let families: [Family; 22] = [
        ops::bitfield::decode,
        ops::approx::decode,
        ops::int::decode,
        ops::float::decode,
        ops::half::decode,
        ops::convert::decode,
        ops::bits::decode,
        ops::predicate::decode,
        ops::set::decode,
        ops::memory::decode,
        ops::mbarrier::decode,
        ops::transfer::decode,
        ops::control::decode,
        ops::warp::decode,
        ops::tcgen05::decode,
        ops::launch_control::decode,
        ops::matrix::decode,
        ops::mma::decode,
        ops::wgmma::decode,
        ops::wmma::decode,
        ops::call::decode,
        ops::unmodelled::decode,
    ];
    for f in families {
        if let Some(op) = f(cx)? {
            return Ok(op);
        }
    }
    Err(format!("opcode `{}` is not known", cx.ins.opcode))
}

/// The value of an integer literal operand.
pub(crate) fn immediate(o: &Operand) -> Option<u64> {
    match o {
        Operand::Int(v) => Some(*v),
        _ => None,
    }
}
