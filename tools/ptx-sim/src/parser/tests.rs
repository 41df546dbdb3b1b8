use super::parse;
use crate::ast::{Operand, Stmt, Ty};

const HEAD: &str = ".version 9.0\n.target sm_100a\n.address_size 64\n";

#[test]
fn scoped_blocks_guards_and_vectors() {
    let src = format!(
        "{HEAD}.visible .entry k(.param .u64 .ptr .global .align 16 p, .param .b8 q[12])\n\
         .reqntid 128, 1, 1\n.reqnctapercluster 2, 1, 1 .explicitcluster\n{{\n\
         .reg .pred %p<3>; .reg .b32 %r<9>;\n\
         {{ .reg .f16 low,high; mov.b32 {{low,high}}, %r1; @!%p1 bra L; }}\n\
         L: elect.sync _|%p2, -1;\n ld.global.L2::cache_hint.v2.b32 {{%r1, _}}, [%r2+-8], %r3;\n\
         .loc 1 7 3, function_name $L__info_string0, inlined_at 1 2 3\n ret; }}"
    );
    let m = parse(&src).unwrap();
    let f = m.entry("k").unwrap();
    assert_eq!(f.reqntid, Some([128, 1, 1]));
    assert_eq!(f.cluster, Some([2, 1, 1]));
    assert!(f.explicit_cluster);
    assert_eq!(f.params[1].bytes(), 12);
    let body = f.body.as_ref().unwrap();
    let Stmt::Block(inner) = &body[2] else {
        panic!("{body:?}")
    };
    assert!(matches!(&inner[0], Stmt::Reg(Ty::F16, names, _) if names.len() == 2));
    let Stmt::Instr(ld) = &body[5] else {
        panic!("{body:?}")
    };
    assert_eq!(ld.full_opcode(), "ld.global.L2::cache_hint.v2.b32");
    assert!(matches!(
        &ld.operands[1],
        Operand::Address { offset: -8, .. }
    ));
    assert_eq!(ld.line, 11);
}

#[test]
fn initialisers() {
    let src = format!(
        "{HEAD}.const .align 4 .u32 t[4] = {{1, 2, -3, 0x10}};\n\
         .global .u64 a = generic(t)+4;\n.extern .shared .align 128 .b8 dyn[];\n"
    );
    let m = parse(&src).unwrap();
    assert_eq!(m.vars.len(), 3);
    assert_eq!(m.vars[0].init.len(), 4);
    assert!(m.vars[2].external && m.vars[2].count.is_none());
}

#[test]
fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
    let src = format!("{HEAD}.entry k() {{ {} ", "{".repeat(100_000));
    assert!(parse(&src).is_err());
    for operand in ["{", "a|{"] {
        let src = format!("{HEAD}.entry k() {{ mov.b32 {} ", operand.repeat(100_000));
        assert!(parse(&src).is_err());
    }
}

#[test]
fn a_label_behind_an_inlined_position() {
    let src = format!(
        "{HEAD}.entry k() {{\n.loc 3 41 5, function_name $L__info_string3, inlined_at 1 64 13\n\
         $L__BB0_1:\n.loc 1 2 3, function_name $L__info_string0+8, inlined_at 1 2 3\nret; }}"
    );
    let m = parse(&src).unwrap();
    let body = m.functions[0].body.as_deref().unwrap();
    assert!(matches!(&body[1], Stmt::Label(name, _) if name == "$L__BB0_1"));
    assert_eq!(body.len(), 4);
}
