//! Resolves names: scopes of registers, variables and labels; lays variables out; decodes.

use std::collections::HashMap;
use std::sync::Arc;

use super::decode::{self, Cx};
use super::{Ins, MAX_PARAMETERS, Op, Param, Program, Special, Src, Variable, cfg};
use crate::ast::{DeclSpace, Function, Init, Instr, Loc, Module, Operand, Stmt, Ty, VarDecl};
use crate::demangle::demangled;
use crate::error::{DecodeError, SimError};
use crate::memory::Space;
use crate::memory::layout::{GLOBAL_VARS, SHARED_START, SMALL_START, generic_base};

/// More registers than any kernel has; refused so that a warp's registers stay affordable.
const MAX_REGISTERS: usize = 1 << 16;
/// Static variables of one space beyond this are refused.
const MAX_VARIABLES: u64 = 1 << 32;

/// The scope of a kernel's parameters: inside the module's.
const PARAMETERS: usize = 1;
/// Most labels that a kernel's `brx.idx` instructions name together: each of them keeps its own list.
const MAX_TARGETS: usize = 1 << 20;

/// Instructions with their scopes and positions in the kernel's own source.
type Flat<'a> = Vec<(&'a Instr, usize, Option<Arc<[Loc]>>)>;

/// Variable in global memory that `%envreg1` and `%envreg2` have the address of: its size and the barrier at which the
/// CTAs of a cooperative launch meet, as cooperative groups' headers have them.
pub(super) const GRID_WORKSPACE: &str = "%grid_workspace";

/// The shared memory that cooperative groups of several warps use: system software's, which every kernel has. Here a
/// kernel that reads its address has it as a variable, with as many bytes as cooperative groups' headers count on.
const RESERVED_SHARED: (&str, u64) = ("%reserved_smem_offset_1", 288);

/// The label behind the body of a function that is laid out in place of its call.
pub(super) const RETURN: &str = "%return";
/// Most functions that call each other.
const MAX_CALLS: usize = 64;
/// Most statements of called functions, each counted as often as it is laid out.
const MAX_CALLED: usize = 1 << 20;

/// Most positions of a chain that are kept.
const MAX_INLINED: usize = 16;

/// Positions in the source, each with those that its function was inlined at.
#[derive(Default)]
struct Chains {
    now: Option<Arc<[Loc]>>,
    by_position: HashMap<Loc, Arc<[Loc]>>,
    /// The position of the call, in a function that is called.
    outer: Option<Arc<[Loc]>>,
}

impl Chains {
    fn enter(&mut self, loc: Loc, inlined: Option<Loc>) {
        let behind = inlined.map(|at| match self.by_position.get(&at) {
            Some(chain) => chain.clone(),
            None => Arc::new([at]),
        });
        let behind = behind.iter().chain(&self.outer);
        let behind = behind.flat_map(|chain| chain.iter());
        let chain: Arc<[Loc]> = std::iter::once(&loc)
            .chain(behind)
            .take(MAX_INLINED)
            .copied()
            .collect();
        self.by_position.insert(loc, chain.clone());
        self.now = Some(chain);
    }
}

/// A kernel's statements as one list of instructions, which those of the functions that it calls are part of.
struct Flattening<'a> {
    module: &'a Module,
    flat: Flat<'a>,
    loc: Chains,
    /// Functions that are being laid out, each called by the one before it.
    open: Vec<&'a str>,
    /// Statements of called functions so far.
    called: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Sym {
    /// A register that no instruction has named yet.
    Declared(Ty),
    Reg {
        slot: u32,
        ty: Ty,
    },
    Pred(u32),
    /// A variable and its address in its space.
    Var(Space, u64),
    /// Dynamic shared memory: behind the static variables, wherever those end.
    Dynamic,
}

#[derive(Debug, Default)]
struct Scope {
    parent: Option<usize>,
    syms: HashMap<String, Sym>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
}

/// Everything that decoding an instruction may look up or add to.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) program: Program,
    scopes: Vec<Scope>,
    constants: HashMap<u64, u32>,
    /// The register of each special register in use.
    specials: HashMap<Special, u32>,
    /// Registers of the kernel that are declared, predicates apart.
    declared: usize,
    /// Labels that `brx.idx` instructions have named so far.
    targets: usize,
    next: HashMap<DeclSpace, u64>,
    initialisers: Vec<(DeclSpace, usize, VarDecl)>,
    /// Alignment of dynamic shared memory.
    dynamic: u64,
    /// Functions of the module that can be called, by their names.
    functions: HashMap<String, usize>,
    /// Whether the module is for Hopper only.
    pub(crate) hopper: bool,
}

fn fail<T>(line: u32, text: &str, message: impl Into<String>) -> Result<T, SimError> {
    Err(DecodeError {
        line,
        text: text.to_string(),
        message: message.into(),
    }
    .into())
}

/// Registers of 64 bits that a value of a type takes.
fn registers(ty: Ty) -> usize {
    if ty == Ty::B128 { 2 } else { 1 }
}

pub(super) fn build(module: &Module, kernel: &str) -> Result<Program, SimError> {
    let Some(f) = module.entry(kernel) else {
        let names: Vec<_> = module.entries().collect();
        return Err(SimError::Launch(format!(
            "there is no kernel `{kernel}`; the module has: {}",
            names.join(", ")
        )));
    };
    let names = module.names_in(f);
    let mut b = Builder::new(module, |name| names.contains(name))?;
    let flat = b.kernel(module, f)?;
    for (ins, scope, loc) in flat {
        let decoded = b.decode(ins, scope, loc)?;
        b.program.code.push(decoded);
    }
    // Falling off the end exits, as `ret` does.
    b.program.files = module.files.clone();
    if cfg::set_joins(&mut b.program.code).is_none() {
        return fail(
            f.line,
            &f.name,
            "its branches are too many to find where they meet again",
        );
    }
    Ok(b.program)
}

/// Decodes every instruction of every kernel, also those behind one that fails. Tells `refused` of each instruction
/// that is not executed and why. Returns the other faults that keep kernels from running, with the kernel's name where
/// the fault is one kernel's. The module's variables are laid out once, not once a kernel, so the time is proportional
/// to the source.
pub(crate) fn survey<'a>(
    module: &'a Module,
    mut refused: impl FnMut(&'a Instr, &str),
) -> Vec<(Option<&'a str>, SimError)> {
    let mut problems = Vec::new();
    let mut b = match Builder::new(module, |_| true) {
        Ok(b) => b,
        Err(e) => return vec![(None, e)],
    };
    let start = b.mark();
    for f in module
        .functions
        .iter()
        .filter(|f| f.entry && f.body.is_some())
    {
        let flat = match b.kernel(module, f) {
            Ok(flat) => flat,
            Err(e) => {
                problems.push((Some(f.name.as_str()), e));
                b.reset(&start);
                continue;
            }
        };
        for (ins, scope, loc) in flat {
            match b.decode(ins, scope, loc) {
                Ok(Ins {
                    op: Op::Unmodelled { reason },
                    ..
                }) => refused(ins, &reason),
                Ok(_) => {}
                Err(SimError::Decode(e)) => refused(ins, &e.message),
                Err(e) => problems.push((Some(f.name.as_str()), e)),
            }
        }
        b.reset(&start);
    }
    problems
}

/// State of a [`Builder`] that belongs to the module.
#[derive(Debug)]
struct Mark {
    next: HashMap<DeclSpace, u64>,
    dynamic: u64,
    global: usize,
    constant: usize,
    shared: usize,
}

impl Builder {
    /// With the variables of a module, in scope 0; of those in shared memory the ones that are used.
    fn new(module: &Module, used: impl Fn(&str) -> bool) -> Result<Self, SimError> {
        let mut b = Self {
            hopper: module.is_for_hopper(),
            ..Self::default()
        };
        for (at, f) in module.functions.iter().enumerate() {
            if !f.entry && f.body.is_some() {
                b.functions.insert(f.name.clone(), at);
            }
        }
        b.scopes.push(Scope::default());
        let there = |v: &&VarDecl| v.space != DeclSpace::Shared || used(&v.name);
        for v in module.vars.iter().filter(there) {
            b.variable(v, 0)?;
        }
        let system = |space, (name, bytes): (&str, u64)| VarDecl {
            space,
            ty: Ty::B8,
            vector: 1,
            align: 8,
            name: name.into(),
            count: Some(bytes),
            init: Vec::new(),
            external: false,
            line: 0,
        };
        if module.grid_workspace {
            b.variable(&system(DeclSpace::Global, (GRID_WORKSPACE, 8)), 0)?;
        }
        if used(RESERVED_SHARED.0) {
            b.variable(&system(DeclSpace::Shared, RESERVED_SHARED), 0)?;
        }
        b.initialise()?;
        Ok(b)
    }

    fn mark(&self) -> Mark {
        Mark {
            next: self.next.clone(),
            dynamic: self.dynamic,
            global: self.program.global.len(),
            constant: self.program.constant.len(),
            shared: self.program.shared.len(),
        }
    }

    /// Forgets the last kernel.
    fn reset(&mut self, mark: &Mark) {
        let mut program = std::mem::take(&mut self.program);
        program.global.truncate(mark.global);
        program.constant.truncate(mark.constant);
        program.shared.truncate(mark.shared);
        self.program.global = program.global;
        self.program.constant = program.constant;
        self.program.shared = program.shared;
        self.scopes.truncate(1);
        self.constants.clear();
        self.specials.clear();
        self.initialisers.clear();
        (self.declared, self.targets) = (0, 0);
        self.next.clone_from(&mark.next);
        self.dynamic = mark.dynamic;
    }

    /// Lays a kernel out: its parameters in scope 1, its body in scope 2 and those inside. Returns its
    /// instructions, which are still to be decoded.
    fn kernel<'a>(&mut self, module: &'a Module, f: &'a Function) -> Result<Flat<'a>, SimError> {
        self.program.kernel.clone_from(&f.name);
        self.program.preds = 3;
        self.program.reqntid = f.reqntid;
        self.program.maxntid = f.maxntid;
        self.program.cluster = f.cluster;
        self.program.max_cluster_rank = f.max_cluster_rank;
        self.program.explicit_cluster = f.explicit_cluster;
        self.scope(0);
        self.params(f)?;
        let body = self.scope(PARAMETERS);
        let mut to = Flattening {
            module,
            flat: Vec::new(),
            loc: Chains::default(),
            open: Vec::new(),
            called: 0,
        };
        self.flatten(f.body.as_deref().unwrap_or_default(), body, &mut to)?;
        self.layout_dynamic();
        self.initialise()?;
        Ok(to.flat)
    }

    /// Opens a scope inside another.
    fn scope(&mut self, parent: usize) -> usize {
        self.scopes.push(Scope {
            parent: Some(parent),
            ..Scope::default()
        });
        self.scopes.len() - 1
    }

    fn params(&mut self, f: &Function) -> Result<(), SimError> {
        let mut offset = 0u64;
        for p in &f.params {
            let size = p.bytes();
            offset = offset.next_multiple_of(u64::from(p.align));
            if size == 0 || size > MAX_PARAMETERS || offset > MAX_PARAMETERS - size {
                let message = format!("the parameters have 1 to {MAX_PARAMETERS} bytes in all");
                return fail(p.line, &p.name, message);
            }
            self.define(
                PARAMETERS,
                &p.name,
                Sym::Var(Space::Param, SMALL_START + offset),
                p.line,
            )?;
            self.program.params.push(Param {
                name: p.name.clone(),
                offset,
                size,
            });
            offset += size;
        }
        Ok(())
    }

    fn define(&mut self, scope: usize, name: &str, sym: Sym, line: u32) -> Result<(), SimError> {
        if self.scopes[scope]
            .syms
            .insert(name.to_string(), sym)
            .is_some()
        {
            return fail(line, name, "declared twice in one scope");
        }
        Ok(())
    }

    fn variable(&mut self, v: &VarDecl, scope: usize) -> Result<(), SimError> {
        let space = match v.space {
            DeclSpace::Global => Space::Global,
            DeclSpace::Const => Space::Const,
            DeclSpace::Shared => Space::Shared,
            // The parameters of a call lie in the stack of the function that calls.
            DeclSpace::Local | DeclSpace::Param => Space::Local,
        };
        let start = match v.space {
            DeclSpace::Global => GLOBAL_VARS,
            DeclSpace::Shared => SHARED_START,
            _ => SMALL_START,
        };
        let next = match v.space {
            DeclSpace::Param => DeclSpace::Local,
            declared => declared,
        };
        let next = self.next.entry(next).or_insert(start);
        if v.external || v.count.is_none() {
            if v.space != DeclSpace::Shared {
                return fail(
                    v.line,
                    &v.name,
                    "external variables other than shared are not modelled",
                );
            }
            // All of them share one start, behind the static variables.
            self.dynamic = self.dynamic.max(u64::from(v.align));
            return self.define(scope, &v.name, Sym::Dynamic, v.line);
        }
        let size = v.bytes();
        let address = next.next_multiple_of(u64::from(v.align));
        *next = address.saturating_add(size);
        if *next - start > MAX_VARIABLES || (space == Space::Shared && *next > 1 << 24) {
            return fail(v.line, &v.name, "variables are too large");
        }
        let list = match space {
            Space::Global => &mut self.program.global,
            Space::Const => &mut self.program.constant,
            Space::Shared => &mut self.program.shared,
            _ => &mut self.program.local,
        };
        list.push(Variable {
            // The name is for messages: symbols are found by `index`.
            name: demangled(&v.name),
            address,
            size,
            init: None,
        });
        let index = list.len() - 1;
        if !v.init.is_empty() || matches!(v.space, DeclSpace::Global | DeclSpace::Const) {
            self.initialisers.push((v.space, index, v.clone()));
        }
        self.define(scope, &v.name, Sym::Var(space, address), v.line)
    }

    fn layout_dynamic(&mut self) {
        let end = self
            .next
            .get(&DeclSpace::Shared)
            .copied()
            .unwrap_or(SHARED_START);
        self.program.dynamic_shared = end.next_multiple_of(self.dynamic.max(16));
    }

    /// Initial bytes, as far as an initialiser gives them; the rest of global and constant variables
    /// is zero.
    fn initialise(&mut self) -> Result<(), SimError> {
        for (space, index, v) in std::mem::take(&mut self.initialisers) {
            let element = v.ty.bytes() as usize;
            let mut bytes = vec![0u8; v.init.len() * element];
            if bytes.len() as u64 > v.bytes() {
                return fail(v.line, &v.name, "more initial values than elements");
            }
            if !matches!(v.space, DeclSpace::Global | DeclSpace::Const) {
                return fail(
                    v.line,
                    &v.name,
                    "only global and constant variables can be initialised",
                );
            }
            for (i, init) in v.init.iter().enumerate() {
                let value = match init {
                    Init::Bits(o) => match literal(o, v.ty) {
                        Some(x) => x,
                        None => {
                            return fail(v.line, &v.name, "initial value does not fit the type");
                        }
                    },
                    Init::Address(name, offset, generic) => match self.lookup(0, name) {
                        Some(Sym::Var(s, a)) => {
                            let base = if *generic { generic_base(s) } else { 0 };
                            (a + base).wrapping_add_signed(*offset)
                        }
                        _ => return fail(v.line, name, "not a variable"),
                    },
                };
                let n = element.min(8);
                bytes[i * element..i * element + n].copy_from_slice(&value.to_le_bytes()[..n]);
            }
            let list = if space == DeclSpace::Global {
                &mut self.program.global
            } else {
                &mut self.program.constant
            };
            list[index].init = Some(bytes);
        }
        Ok(())
    }

    fn flatten<'a>(
        &mut self,
        body: &'a [Stmt],
        scope: usize,
        to: &mut Flattening<'a>,
    ) -> Result<(), SimError> {
        for s in body {
            to.called += usize::from(!to.open.is_empty());
            match s {
                Stmt::Instr(i) if i.opcode == "call" && self.call(i, scope, to)? => {}
                Stmt::Instr(i) => to.flat.push((i, scope, to.loc.now.clone())),
                Stmt::Loc(l, inlined) => to.loc.enter(*l, *inlined),
                Stmt::Label(name, line) => {
                    let pc = to.flat.len() as u32;
                    if self.scopes[scope].labels.insert(name.clone(), pc).is_some() {
                        return fail(*line, name, "label is defined twice");
                    }
                }
                Stmt::BranchTargets(name, targets, _) => {
                    self.scopes[scope]
                        .tables
                        .insert(name.clone(), targets.clone());
                }
                Stmt::Reg(ty, names, line) => {
                    for (name, count) in names {
                        match count {
                            None => self.register(scope, name, *ty, *line)?,
                            Some(n) => {
                                for i in 0..*n {
                                    self.register(scope, &format!("{name}{i}"), *ty, *line)?;
                                }
                            }
                        }
                    }
                }
                Stmt::Var(v)
                    if !to.open.is_empty()
                        && !matches!(v.space, DeclSpace::Local | DeclSpace::Param) =>
                {
                    let message = "a variable of a function that is called, other than .local, is not modelled";
                    return fail(v.line, &v.name, message);
                }
                Stmt::Var(v) => self.variable(v, scope)?,
                Stmt::Block(inner) => {
                    let new = self.scope(scope);
                    self.flatten(inner, new, to)?;
                }
            }
        }
        Ok(())
    }

    /// Lays out the body of a function in place of an instruction that calls it, in scopes of its own: its parameters
    /// are the variables that the call names. False if the call names no function of the module, or one that is being
    /// laid out: decoding says then what is not executed.
    fn call<'a>(
        &mut self,
        i: &'a Instr,
        scope: usize,
        to: &mut Flattening<'a>,
    ) -> Result<bool, SimError> {
        let Some((name, given)) = i.callee() else {
            return Ok(false);
        };
        let called = self.functions.get(name).map(|at| &to.module.functions[*at]);
        let Some((f, body)) = called.and_then(|f| Some((f, f.body.as_deref()?))) else {
            return Ok(false);
        };
        if i.guard.is_some() || to.open.contains(&name) || to.open.len() == MAX_CALLS {
            return Ok(false);
        }
        to.called += 1;
        if to.called > MAX_CALLED {
            let message = format!("more than {MAX_CALLED} statements of functions that are called");
            return fail(i.line, &i.text, message);
        }
        let taken: Vec<&VarDecl> = f.result.iter().chain(&f.params).collect();
        if taken.len() != given.len() {
            let message = format!("{} values for {} of {name}", given.len(), taken.len());
            return fail(i.line, &i.text, message);
        }
        let outside = self.scope(0);
        for (v, o) in taken.into_iter().zip(given) {
            let symbol = match o {
                Operand::Name(n) => self.lookup(scope, n),
                _ => None,
            };
            let Some(symbol @ Sym::Var(Space::Local, at)) = symbol else {
                return fail(i.line, &i.text, format!("{o} is no variable of .param"));
            };
            let local = &self.program.local;
            let there = local.binary_search_by_key(&at, |v| v.address);
            if there.is_ok_and(|there| local[there].size != v.bytes()) {
                let message = format!("{o} has another size than {}", v.name);
                return fail(i.line, &i.text, message);
            }
            self.define(outside, &v.name, symbol, v.line)?;
        }
        let inside = self.scope(outside);
        let outer = to.loc.now.clone();
        let of_function = Chains {
            now: outer.clone(),
            outer,
            ..Chains::default()
        };
        let of_caller = std::mem::replace(&mut to.loc, of_function);
        to.open.push(name);
        self.flatten(body, inside, to)?;
        to.open.pop();
        to.loc = of_caller;
        let labels = &mut self.scopes[outside].labels;
        labels.insert(RETURN.into(), to.flat.len() as u32);
        Ok(true)
    }

    fn register(&mut self, scope: usize, name: &str, ty: Ty, line: u32) -> Result<(), SimError> {
        let sym = if ty == Ty::Pred {
            self.program.preds += 1;
            if self.program.preds > MAX_REGISTERS {
                return fail(line, name, "too many registers");
            }
            Sym::Pred(self.program.preds as u32 - 1)
        } else {
            self.declared += registers(ty);
            if self.declared > MAX_REGISTERS {
                return fail(line, name, "too many registers");
            }
            Sym::Declared(ty)
        };
        self.define(scope, name, sym, line)
    }

    fn decode(
        &mut self,
        ins: &Instr,
        scope: usize,
        loc: Option<Arc<[Loc]>>,
    ) -> Result<Ins, SimError> {
        let mut cx = Cx::new(self, scope, ins);
        let decoded = cx
            .guard()
            .and_then(|guard| Ok((guard, decode::op(&mut cx)?)));
        match decoded {
            Ok((guard, op)) => Ok(Ins {
                op,
                guard,
                join: None,
                line: ins.line,
                text: ins.text.clone(),
                loc,
            }),
            Err(message) => fail(ins.line, &ins.text, message),
        }
    }

    /// The symbol that a name means. A register gets its slot here: compilers declare twice as many as they use.
    pub(crate) fn lookup(&mut self, scope: usize, name: &str) -> Option<Sym> {
        let mut at = scope;
        while !self.scopes[at].syms.contains_key(name) {
            at = self.scopes[at].parent?;
        }
        let sym = self.scopes[at].syms.get_mut(name)?;
        if let Sym::Declared(ty) = *sym {
            let masks = &mut self.program.reg_masks;
            let slot = masks.len() as u32;
            let mask = u64::MAX >> (64 - ty.bits().min(64));
            masks.extend(std::iter::repeat_n(mask, registers(ty)));
            *sym = Sym::Reg { slot, ty };
        }
        Some(*sym)
    }

    pub(crate) fn label(&self, scope: usize, name: &str) -> Option<u32> {
        let mut at = Some(scope);
        while let Some(i) = at {
            if let Some(s) = self.scopes[i].labels.get(name) {
                return Some(*s);
            }
            at = self.scopes[i].parent;
        }
        None
    }

    /// The instructions that a list of labels names.
    pub(crate) fn table(&mut self, scope: usize, name: &str) -> Result<Vec<u32>, String> {
        let mut at = Some(scope);
        while let Some(i) = at {
            if let Some(t) = self.scopes[i].tables.get(name) {
                self.targets += t.len();
                if self.targets > MAX_TARGETS {
                    return Err(format!(
                        "more than {MAX_TARGETS} branch targets in a kernel"
                    ));
                }
                let labels: Option<Vec<u32>> = t.iter().map(|l| self.label(scope, l)).collect();
                return labels.ok_or_else(|| format!("`{name}` names a label that is not defined"));
            }
            at = self.scopes[i].parent;
        }
        Err(format!("`{name}` is not a list of labels"))
    }

    /// A register that always holds `v`.
    pub(crate) fn constant(&mut self, v: u64) -> Src {
        let consts = &mut self.program.consts;
        let i = *self.constants.entry(v).or_insert_with(|| {
            consts.push([v; 32]);
            consts.len() as u32 - 1
        });
        Src(i | Src::CONST)
    }

    /// The register that holds a special register.
    pub(crate) fn special(&mut self, s: Special) -> Src {
        if let Some(slot) = self.specials.get(&s) {
            return Src(*slot);
        }
        let slot = self.program.reg_masks.len() as u32;
        self.program.reg_masks.push(u64::MAX);
        self.program.specials.push((s, slot));
        self.specials.insert(s, slot);
        Src(slot)
    }
}

/// The bits of a literal as a value of a type, if it can be one.
pub(crate) fn literal(o: &Operand, ty: Ty) -> Option<u64> {
    let bits = match (o, ty) {
        (Operand::Int(v), Ty::F32) => u64::from((*v as i64 as f32).to_bits()),
        (Operand::Int(v), Ty::F64) => (*v as i64 as f64).to_bits(),
        (Operand::Int(v), _) => *v,
        (Operand::F32(b), Ty::F64) => f64::from(f32::from_bits(*b)).to_bits(),
        (Operand::F32(b), t) if t.bits() == 32 => u64::from(*b),
        (Operand::F64(b), Ty::F32) => u64::from((f64::from_bits(*b) as f32).to_bits()),
        (Operand::F64(b), t) if t.bits() == 64 => *b,
        _ => return None,
    };
    Some(if ty.bits() >= 64 {
        bits
    } else {
        bits & ((1 << ty.bits()) - 1)
    })
}
