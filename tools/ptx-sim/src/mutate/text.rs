//! Instructions back to text.

use std::fmt::Write as _;

use crate::ast::{Instr, Operand};

/// The PTX of an instruction, without its semicolon.
pub(super) fn render(i: &Instr) -> String {
    let mut s = String::new();
    if let Some(g) = &i.guard {
        let _ = write!(s, "@{}{} ", if g.negated { "!" } else { "" }, g.name);
    }
    s += &i.full_opcode();
    for (n, o) in i.operands.iter().enumerate() {
        s += if n == 0 { " " } else { ", " };
        operand(o, &mut s);
    }
    s
}

fn list(all: &[Operand], s: &mut String) {
    for (n, o) in all.iter().enumerate() {
        if n > 0 {
            *s += ", ";
        }
        operand(o, s);
    }
}

fn offset(v: i64, s: &mut String) {
    if v != 0 {
        let _ = write!(s, "{v:+}");
    }
}

fn operand(o: &Operand, s: &mut String) {
    // Writing to a string does not fail.
    match o {
        Operand::Name(n) => *s += n,
        Operand::NameOffset(n, v) => {
            *s += n;
            offset(*v, s);
        }
        Operand::Not(n) => {
            *s += "!";
            *s += n;
        }
        Operand::Int(v) => {
            let _ = write!(s, "{}", *v as i64);
        }
        Operand::F32(v) => {
            let _ = write!(s, "0f{v:08X}");
        }
        Operand::F64(v) => {
            let _ = write!(s, "0d{v:016X}");
        }
        Operand::Vector(all) => {
            *s += "{";
            list(all, s);
            *s += "}";
        }
        Operand::List(all) => {
            *s += "(";
            list(all, s);
            *s += ")";
        }
        Operand::Address {
            base,
            offset: v,
            rest,
        } => {
            *s += "[";
            operand(base, s);
            offset(*v, s);
            for r in rest {
                *s += ", ";
                operand(r, s);
            }
            *s += "]";
        }
        Operand::Pair(a, b) => {
            operand(a, s);
            *s += "|";
            operand(b, s);
        }
        Operand::Sink => *s += "_",
    }
}

/// The text with the numbers of registers and labels left out, so that it survives another run of
/// the compiler.
pub(super) fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['%', '$']) {
        let (before, word) = rest.split_at(at);
        let end = word[1..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')))
            .map_or(word.len(), |n| n + 1);
        out += before;
        out += word[..end].trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        rest = &word[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ast::{Module, Stmt};

    #[test]
    fn text_parses_back() {
        for text in [
            "@!%p1 st.global.v2.u32 [%rd1+4], {%r1, -7}",
            "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, \
             {%r2, 0}], [bar-8]",
            "elect.sync _|p, 4294967295",
            "fma.rn.f32 %f1, %f2, 0f3F800000, 0d3FF0000000000000",
        ] {
            let src = format!(
                ".version 9.0\n.target sm_100a\n.address_size 64\n.entry k() {{ {text}; }}"
            );
            let m = Module::parse(&src).unwrap();
            let Some([Stmt::Instr(i)]) = m.functions[0].body.as_deref() else {
                panic!("one instruction");
            };
            assert_eq!(render(i), text);
        }
    }

    #[test]
    fn numbers_of_registers_do_not_matter() {
        assert_eq!(
            normalise("@%p12 bra $L__BB0_16 x [%rd7+4], %tid.x"),
            "@%p bra $L__BB x [%rd+4], %tid.x"
        );
    }
}
