//! Functions that were not inlined, `printf` and `assert`, in the form that nvcc gives calls.

use ptx_sim::inventory::inventory;
use ptx_sim::report::ViolationKind;
use ptx_sim::{Launch, Module, Options, Report, Sim, SimError};

/// A module with functions, and a kernel `k(out)`: `%t` is the thread, `%w` the address of its word.
fn module(functions: &str, body: &str) -> Module {
    let ptx = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.file 1 \"a.cu\"\n\
         .global .align 1 .b8 text[32] = {{104, 105, 32, 37, 100, 32, 37, 53, 46, 50, 102, 32, 37, 115, 32, 37, 108, 108, 120, 10}};\n\
         .global .align 1 .b8 word[4] = {{97, 98, 99}};\n\
         .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
         .extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n\
         {functions}\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b32 %t; .reg .b64 %d<9>; .reg .b64 %w;\n\
         ld.param.u64 %d1, [p]; mov.u32 %t, %tid.x; mad.wide.u32 %w, %t, 4, %d1;\n{body}\nret;\n}}\n"
    );
    Module::parse(&ptx).unwrap()
}

fn run(m: Module) -> Result<(Vec<u32>, Report), SimError> {
    let mut sim = Sim::new(m);
    let out = sim.upload("out", &[0; 128])?;
    let launch = Launch::new("k", [1, 1, 1], [32, 1, 1]).buffer(out);
    let report = sim.run(&launch, &Options::default())?;
    Ok((sim.words(out), report))
}

fn results(m: Module) -> Vec<u32> {
    run(m).unwrap_or_else(|e| panic!("{e}")).0
}

/// A call of a function of one number, from `%r1` to `%r2`.
fn call(name: &str) -> String {
    format!(
        "{{ // callseq 1, 0\n.reg .b32 temp_param_reg;\n.param .b32 param0;\nst.param.b32 [param0+0], %r1;\n\
         .param .b32 retval0;\ncall.uni (retval0), \n{name}, \n(\nparam0\n);\nld.param.b32 %r2, [retval0+0];\n}}"
    )
}

/// Adds up the numbers below its argument; gives 7 for 1 at once.
const SUM: &str = ".func (.param .b32 result) sum(.param .b32 n)\n{\n\
    .reg .pred %p<3>; .reg .b32 %r<5>;\nld.param.u32 %r1, [n]; mov.u32 %r2, 0; mov.u32 %r3, 0;\n\
    setp.eq.u32 %p2, %r1, 1; st.param.b32 [result+0], 7; @%p2 ret;\n\
    L: setp.ge.u32 %p1, %r3, %r1; @%p1 bra E; add.u32 %r2, %r2, %r3; add.u32 %r3, %r3, 1; bra L;\n\
    E: st.param.b32 [result+0], %r2; ret;\n}\n";

/// Twice what `sum` gives.
fn twice() -> String {
    let body = format!(
        ".reg .b32 %r<4>; ld.param.u32 %r1, [n];\n{}\nadd.u32 %r2, %r2, %r2; st.param.b32 [result], %r2; ret;",
        call("sum")
    );
    format!("{SUM}.func (.param .b32 result) twice(.param .b32 n) .noreturn {{\n{body}\n}}\n")
}

fn sum(n: u32) -> u32 {
    if n == 1 {
        7
    } else {
        n * n.saturating_sub(1) / 2
    }
}

#[test]
fn functions_that_are_not_inlined_give_their_results() {
    let body = format!(
        "mov.u32 %r1, %t;\n{}\nmov.u32 %r3, %r2; setp.lt.u32 %p1, %t, 5; @%p1 bra S;\n{}\nadd.u32 %r3, %r3, %r2;\n\
         S: st.global.u32 [%w], %r3;",
        call("sum"),
        call("twice")
    );
    // Lanes leave the function at different places, and only some of them call the second one.
    let want: Vec<u32> = (0..32)
        .map(|n| sum(n) + if n < 5 { 0 } else { 2 * sum(n) })
        .collect();
    assert_eq!(results(module(&twice(), &body)), want);
}

#[test]
fn a_fault_in_a_function_names_where_it_was_called() {
    let f = ".func (.param .b32 result) f(.param .b32 n)\n{\n.reg .b32 %r<3>; .reg .b64 %d<2>;\n\
             mov.u64 %d1, 8;\n.loc 1 3 5\nld.global.u32 %r1, [%d1]; st.param.b32 [result], %r1; ret;\n}\n";
    let body = format!("mov.u32 %r1, 1;\n.loc 1 20 7\n{}", call("f"));
    let e = run(module(f, &body)).unwrap_err().to_string();
    assert!(e.contains("a.cu:3, inlined at a.cu:20"), "{e}");
}

/// A call of `vprintf` with the format `text` and what lies in `depot`.
const PRINT: &str = ".local .align 8 .b8 depot[32]; .reg .b64 %x<9>;\n\
    mov.u64 %x1, depot; cvta.local.u64 %x2, %x1; st.local.u32 [%x1], %r1; st.local.f64 [%x1+8], 0d3FF8000000000000;\n\
    mov.u64 %x3, word; cvta.global.u64 %x4, %x3; st.local.u64 [%x1+16], %x4; st.local.u64 [%x1+24], -1;\n\
    mov.u64 %x5, text; cvta.global.u64 %x6, %x5;\n\
    { .param .b64 param0; st.param.b64 [param0+0], %x6; .param .b64 param1; st.param.b64 [param1+0], %x2;\n\
    .param .b32 retval0; call.uni (retval0), vprintf, (param0, param1); ld.param.b32 %r2, [retval0+0]; }\n\
    st.global.u32 [%w], %r2;";

#[test]
fn printf_prints_what_c_would() {
    let body = format!("sub.u32 %r1, %t, 2; setp.gt.u32 %p1, %t, 1; @%p1 ret;\n{PRINT}");
    let (words, report) = run(module("", &body)).unwrap();
    let line = |n: i32| format!("hi {n}  1.50 abc ffffffffffffffff\n");
    assert_eq!(report.printed, line(-2) + &line(-1));
    assert_eq!((words[1], words[2], report.printed_dropped), (4, 0, 0));
    // A GPU keeps 1 MiB as well.
    let body = format!(
        "mov.u32 %r1, 0; mov.u32 %r3, 0;\nA: add.u32 %r3, %r3, 1; setp.gt.u32 %p1, %r3, 1200; @%p1 ret;\n{{ {PRINT} }} bra A;"
    );
    let (_, report) = run(module("", &body)).unwrap();
    let bytes = line(0).len() as u64;
    let kept = Report::MAX_PRINTED as u64 / bytes;
    assert_eq!(report.printed.len() as u64, kept * bytes);
    assert_eq!(report.printed_dropped, 1200 * 32 - kept);
}

fn assertion(guard: &str) -> String {
    format!(
        ".reg .b64 %x<4>; mov.u64 %x1, word; cvta.global.u64 %x2, %x1;\n{guard}\n\
         {{ .param .b64 param0; st.param.b64 [param0], %x2; .param .b64 param1; st.param.b64 [param1], %x2;\n\
         .param .b32 param2; st.param.b32 [param2], 12; .param .b64 param3; st.param.b64 [param3], %x2;\n\
         .param .b64 param4; st.param.b64 [param4], 1; call.uni __assertfail, (param0, param1, param2, param3, param4);\n\
         }}\nS: st.global.u32 [%w], 5;"
    )
}

#[test]
fn an_assertion_that_does_not_hold_ends_the_run() {
    assert_eq!(results(module("", &assertion("bra S;"))), [5; 32]);
    match run(module(
        "",
        &assertion("setp.ne.u32 %p1, %t, 3; @%p1 bra S;"),
    )) {
        Err(SimError::Violation(v)) => {
            assert_eq!(v.kind, ViolationKind::Assertion);
            assert_eq!(v.message, "assertion `abc` does not hold: abc:12, abc");
            assert_eq!(v.thread.unwrap().lane, 3);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_that_are_not_executed_end_the_run_where_they_are_reached() {
    let recursive = format!(
        ".func (.param .b32 result) again(.param .b32 n)\n{{\n.reg .b32 %r<3>; ld.param.u32 %r1, [n];\n{}\n\
         st.param.b32 [result], %r2; ret;\n}}\n",
        call("again")
    );
    let by_address = "{ .param .b32 param0; st.param.b32 [param0], %r1; .param .b32 retval0;\n\
         prototype_1 : .callprototype (.param .b32 _) _ (.param .b32 _);\n\
         call (retval0), %d1, (param0), prototype_1; }";
    for (functions, call, reason) in [
        (recursive.as_str(), call("again"), "`again` is called"),
        ("", call("malloc"), "`malloc` is called"),
        ("", by_address.to_string(), "calls by address"),
    ] {
        let with = |guard| format!("mov.u32 %r1, 3;\n{guard}\n{call}\nS: st.global.u32 [%w], 5;");
        assert_eq!(results(module(functions, &with("bra S;"))), [5; 32]);
        match run(module(functions, &with(""))) {
            Err(SimError::Unmodelled { reason: why, .. }) => assert!(why.contains(reason), "{why}"),
            other => panic!("{other:?}"),
        }
        let listed = inventory(&module(functions, &with("")));
        let mut reasons = listed
            .opcodes
            .iter()
            .filter_map(|o| o.unmodelled.as_deref());
        assert!(reasons.any(|why| why.contains(reason)), "{listed:?}");
    }
}

#[test]
fn calls_are_checked_and_limited() {
    let other_size = call("sum").replace(".param .b32 param0", ".param .b64 param0");
    for (call, reason) in [
        (other_size, "another size"),
        (call("sum").replace("param0\n)", ")"), "1 values for 2"),
    ] {
        let body = format!("mov.u32 %r1, 1;\n{call}");
        let e = run(module(SUM, &body)).unwrap_err().to_string();
        assert!(e.contains(reason), "{e}");
    }
    // Each function calls the one before it twice: 2^40 bodies in all.
    let mut functions = ".func f0()\n{\nret;\n}\n".to_string();
    for i in 1..40 {
        let one = format!("call f{};", i - 1);
        functions += &format!(".func f{i}()\n{{\n{one}\n{one}\nret;\n}}\n");
    }
    let e = run(module(&functions, "call f39;")).unwrap_err();
    assert!(e.to_string().contains("statements of functions"), "{e}");
}

#[test]
fn what_cooperative_groups_keep_in_reserved_shared_memory_is_memory_of_the_cta() {
    let body = ".reg .b32 %x<3>; mov.u32 %x1, %reserved_smem_offset_1;\n\
                mad.lo.u32 %x2, %t, 4, %x1; add.u32 %r1, %t, 9; st.shared.u32 [%x2+160], %r1;\n\
                ld.shared.u32 %r2, [%x2+160]; st.global.u32 [%w], %r2;";
    let want: Vec<u32> = (9..41).collect();
    assert_eq!(results(module("", body)), want);
}
