//! The parsed module, before names are resolved.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

named! {
    /// Fundamental, packed and alternate types, as modifiers and in declarations.
    #[allow(missing_docs)]
    Ty {
        B8 "b8",
        B16 "b16",
        B32 "b32",
        B64 "b64",
        B128 "b128",
        U8 "u8",
        U16 "u16",
        U32 "u32",
        U64 "u64",
        S8 "s8",
        S16 "s16",
        S32 "s32",
        S64 "s64",
        F16 "f16",
        F16x2 "f16x2",
        Bf16 "bf16",
        Bf16x2 "bf16x2",
        F32 "f32",
        F32x2 "f32x2",
        F64 "f64",
        Tf32 "tf32",
        E4m3x2 "e4m3x2",
        E5m2x2 "e5m2x2",
        E2m1x2 "e2m1x2",
        U16x2 "u16x2",
        S16x2 "s16x2",
        Pred "pred",
    }
}

impl Ty {
    /// Size in bits; a predicate counts as 1.
    pub fn bits(self) -> u32 {
        use Ty::*;
        match self {
            Pred => 1,
            B8 | U8 | S8 | E2m1x2 => 8,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 => 16,
            B32 | U32 | S32 | F32 | F16x2 | Bf16x2 | Tf32 | U16x2 | S16x2 => 32,
            B64 | U64 | S64 | F64 | F32x2 => 64,
            B128 => 128,
        }
    }

    /// Size in bytes.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether narrower values are sign-extended.
    pub fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    /// Whether it is a signed or unsigned integer.
    pub fn is_int(self) -> bool {
        use Ty::*;
        matches!(self, U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
    }
}

named! {
    /// State space of a declaration.
    #[allow(missing_docs)]
    DeclSpace {
        Global "global",
        Const "const",
        Shared "shared",
        Local "local",
        Param "param",
    }
}

/// One element of an initialiser.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Integer or float bits, cut to the element's size.
    Bits(Operand),
    /// Address of another variable, plus an offset; `true` for `generic(...)`.
    Address(String, i64, bool),
}

/// A variable: `.shared .align 16 .b8 name[64] = {...}`.
#[derive(Debug, Clone, PartialEq)]
pub struct VarDecl {
    /// State space of the variable.
    pub space: DeclSpace,
    /// Element type.
    pub ty: Ty,
    /// `.v2` and `.v4` multiply the element.
    pub vector: u32,
    /// Alignment in bytes.
    pub align: u32,
    /// Name of the variable.
    pub name: String,
    /// Elements in all; `None` for `name[]`.
    pub count: Option<u64>,
    /// Initial values, flattened.
    pub init: Vec<Init>,
    /// Declared `.extern`.
    pub external: bool,
    /// Source line.
    pub line: u32,
}

impl VarDecl {
    /// Size in bytes, 0 for an array without a size.
    pub fn bytes(&self) -> u64 {
        u64::from(self.ty.bytes() * self.vector).saturating_mul(self.count.unwrap_or(0))
    }
}

/// An operand of an instruction.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Register, variable, label or special register.
    Name(String),
    /// `name+offset`.
    NameOffset(String, i64),
    /// `!name`.
    Not(String),
    /// Integer, as two's complement.
    Int(u64),
    /// Bits of an f32.
    F32(u32),
    /// Bits of an f64.
    F64(u64),
    /// `{a, b, ...}`.
    Vector(Vec<Operand>),
    /// `[base+offset]`, or `[base+offset, rest...]` of tensor copies.
    Address {
        /// Register, variable or integer.
        base: Box<Operand>,
        /// Constant offset.
        offset: i64,
        /// Further operands inside the brackets.
        rest: Vec<Operand>,
    },
    /// `d|p`.
    Pair(Box<Operand>, Box<Operand>),
    /// `_`, a result that is not wanted.
    Sink,
    /// `( ... )` lists of calls.
    List(Vec<Operand>),
}

impl Operand {
    /// Calls `f` with each name in it.
    fn names<'a>(&'a self, f: &mut impl FnMut(&'a str)) {
        match self {
            Operand::Name(n) | Operand::NameOffset(n, _) | Operand::Not(n) => f(n),
            Operand::Vector(all) | Operand::List(all) => all.iter().for_each(|o| o.names(f)),
            Operand::Address { base, rest, .. } => {
                base.names(f);
                rest.iter().for_each(|o| o.names(f));
            }
            Operand::Pair(a, b) => {
                a.names(f);
                b.names(f);
            }
            Operand::Int(_) | Operand::F32(_) | Operand::F64(_) | Operand::Sink => {}
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[Operand]| {
            all.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match self {
            Operand::Name(n) => f.write_str(n),
            Operand::NameOffset(n, by) => write!(f, "{n}{by:+}"),
            Operand::Not(n) => write!(f, "!{n}"),
            Operand::Int(v) => write!(f, "{}", *v as i64),
            Operand::F32(bits) => write!(f, "0f{bits:08X}"),
            Operand::F64(bits) => write!(f, "0d{bits:016X}"),
            Operand::Vector(all) => write!(f, "{{{}}}", list(all)),
            Operand::Address {
                base,
                offset: 0,
                rest,
            } if rest.is_empty() => write!(f, "[{base}]"),
            Operand::Address { base, offset, rest } if rest.is_empty() => {
                write!(f, "[{base}{offset:+}]")
            }
            Operand::Address { base, rest, .. } => write!(f, "[{base}, {}]", list(rest)),
            Operand::Pair(a, b) => write!(f, "{a}|{b}"),
            Operand::Sink => f.write_str("_"),
            Operand::List(all) => write!(f, "({})", list(all)),
        }
    }
}

/// A predicate in front of an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub name: String,
    /// `@!p`.
    pub negated: bool,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq)]
pub struct Instr {
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// The opcode without modifiers: `ld`.
    pub opcode: String,
    /// The modifiers in order: `global`, `v4`, `u32`.
    pub mods: Vec<String>,
    /// The operands in order.
    pub operands: Vec<Operand>,
    /// Source line.
    pub line: u32,
    /// The source text, white space normalised.
    pub text: String,
}

impl Instr {
    /// Opcode with modifiers.
    pub fn full_opcode(&self) -> String {
        let mut s = self.opcode.clone();
        for m in &self.mods {
            s.push('.');
            s.push_str(m);
        }
        s
    }

    /// The function that a `call` names, and the variables of its result and its parameters.
    pub(crate) fn callee(&self) -> Option<(&str, Vec<&Operand>)> {
        let (result, rest) = match self.operands.as_slice() {
            [Operand::List(result), rest @ ..] => (result.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (name, parameters) = match rest {
            [Operand::Name(name)] => (name, &[][..]),
            [Operand::Name(name), Operand::List(parameters), ..] => (name, parameters.as_slice()),
            _ => return None,
        };
        Some((name, result.iter().chain(parameters).collect()))
    }
}

/// A position in the kernel's own source, from `.loc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loc {
    /// Index of a `.file` directive.
    pub file: u32,
    /// Line in that file.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// A statement of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Stmt {
    /// `name:`
    Label(String, u32),
    /// Registers: type, then (name, Some(n)) for `name<n>`.
    Reg(Ty, Vec<(String, Option<u32>)>, u32),
    /// A variable of the body.
    Var(VarDecl),
    /// An instruction.
    Instr(Instr),
    /// `{ ... }`.
    Block(Vec<Stmt>),
    /// `.loc`, and where the function of that position was inlined.
    Loc(Loc, Option<Loc>),
    /// `name: .branchtargets a, b;`
    BranchTargets(String, Vec<String>, u32),
}

/// `.entry` or `.func`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// `.entry`, so it can be launched.
    pub entry: bool,
    /// Parameters in order.
    pub params: Vec<VarDecl>,
    /// The result of a function that has one.
    pub result: Option<VarDecl>,
    /// `.reqntid`.
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`.
    pub maxntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub cluster: Option<[u32; 3]>,
    /// `.explicitcluster`.
    pub explicit_cluster: bool,
    /// `.maxclusterrank`.
    pub max_cluster_rank: Option<u32>,
    /// The statements; `None` for a declaration. Shared, so that a module is cheap to copy.
    pub body: Option<Arc<[Stmt]>>,
    /// Source line.
    pub line: u32,
}

/// A parsed PTX source.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Module {
    /// `.version`, as major and minor.
    pub version: (u32, u32),
    /// `.target`, all of its words.
    pub target: Vec<String>,
    /// Variables of the module.
    pub vars: Vec<VarDecl>,
    /// Kernels and functions.
    pub functions: Vec<Function>,
    /// `.file` directives.
    pub files: Vec<(u32, String)>,
    /// Whether anything reads `%envreg2`: the address of what CTAs of a cooperative launch meet at.
    pub grid_workspace: bool,
}

impl Module {
    /// Parses a PTX source.
    pub fn parse(src: &str) -> Result<Self, crate::error::ParseError> {
        crate::parser::parse(src)
    }

    /// Whether it runs on Hopper only: `.target sm_90a`.
    pub fn is_for_hopper(&self) -> bool {
        self.target.iter().any(|t| t == "sm_90a")
    }

    /// The kernel of that name.
    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.functions
            .iter()
            .find(|f| f.entry && f.name == name && f.body.is_some())
    }

    /// Names of all kernels.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.functions
            .iter()
            .filter(|f| f.entry && f.body.is_some())
            .map(|f| f.name.as_str())
    }

    /// Names in the instructions of a function, and of those that it calls.
    pub(crate) fn names_in<'a>(&'a self, function: &'a Function) -> HashSet<&'a str> {
        let bodies_of = LazyCell::new(|| -> HashMap<&str, &[Stmt]> {
            let of = |f: &'a Function| Some((f.name.as_str(), f.body.as_deref()?));
            self.functions.iter().filter_map(of).collect()
        });
        let (mut names, mut called) = (HashSet::new(), HashSet::new());
        let mut bodies = vec![function.body.as_deref().unwrap_or_default()];
        while let Some(body) = bodies.pop() {
            for s in body {
                match s {
                    Stmt::Block(inner) => bodies.push(inner),
                    Stmt::Instr(i) => i.operands.iter().for_each(|o| {
                        o.names(&mut |name| {
                            names.insert(name);
                            if i.opcode == "call" && called.insert(name) {
                                bodies.extend(bodies_of.get(name).copied());
                            }
                        });
                    }),
                    _ => {}
                }
            }
        }
        names
    }

    /// The path a `.loc` names.
    pub fn file(&self, index: u32) -> Option<&str> {
        self.files
            .iter()
            .find(|(i, _)| *i == index)
            .map(|(_, s)| s.as_str())
    }
}
