//! Instruction families: each file decodes its instructions' modifiers and holds their semantics.

pub(crate) mod approx;
pub(crate) mod bitfield;
pub(crate) mod bits;
pub(crate) mod call;
pub(crate) mod control;
pub(crate) mod convert;
mod double;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod int;
pub(crate) mod launch_control;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod mma;
mod pack;
pub(crate) mod predicate;
pub(crate) mod set;
pub(crate) mod tcgen05;
pub(crate) mod transfer;
pub(crate) mod unmodelled;
pub(crate) mod warp;
pub(crate) mod wgmma;
pub(crate) mod wmma;

use crate::ast::{Instr, Ty};

/// The first type among an instruction's modifiers.
pub(crate) fn first_type(i: &Instr) -> Option<Ty> {
    i.mods.iter().find_map(|m| Ty::parse(m))
}

/// Sign-extends the low `bits` bits.
pub(crate) fn sext(v: u64, bits: u32) -> i64 {
    let s = 64 - bits.clamp(1, 64);
    ((v << s) as i64) >> s
}

/// Keeps the low `bits` bits.
pub(crate) fn zext(v: u64, bits: u32) -> u64 {
    if bits >= 64 { v } else { v & ((1 << bits) - 1) }
}

/// Decodes one instruction and evaluates it on one lane's values, for unit tests of the families.
#[cfg(test)]
pub(crate) mod testing {
    use crate::ast::Module;
    use crate::models::approx::Approximations;
    use crate::program::{Alu, Op, Program};

    /// Demands of each opcode, bits and sources, as [`eval`] takes them, this result.
    macro_rules! gives {
        ($($opcode:literal $bits:literal $sources:tt => $want:expr;)*) => {
            $(assert_eq!($crate::ops::testing::eval($opcode, $bits, &$sources), $want, $opcode);)*
        };
    }
    pub(crate) use gives;

    /// Result of `opcode` whose sources are immediates cut to 64 bits, written to a register of
    /// `bits` bits. Sources are passed in 64-bit registers, which every instruction may read.
    pub(crate) fn eval(opcode: &str, bits: u32, sources: &[u64]) -> u64 {
        let program =
            decode(opcode, bits, sources.len()).unwrap_or_else(|e| panic!("{opcode}: {e}"));
        let f = match &program.code[0].op {
            Op::Alu { f, .. } => f.clone(),
            Op::Approx { f, .. } => {
                let f = *f;
                Alu::of2(move |a, b| f.of(Approximations::Nearest, a, b))
            }
            _ => panic!("{opcode} is not arithmetic"),
        };
        let s = |i: usize| sources.get(i).copied().unwrap_or(0);
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        f.scalar(s(0), s(1), s(2)) & mask
    }

    pub(crate) fn decode(
        opcode: &str,
        bits: u32,
        n: usize,
    ) -> Result<Program, crate::error::SimError> {
        let args: Vec<_> = (0..n).map(|i| format!(", %s{i}")).collect();
        let src = format!(
            ".version 9.0\n.target sm_100a\n.entry k() {{ .reg .b64 %s<4>; .reg .b{bits} %d;\n\
             {opcode} %d{}; }}",
            args.concat()
        );
        Program::new(&Module::parse(&src).unwrap(), "k")
    }
}
