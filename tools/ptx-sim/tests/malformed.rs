//! Malformed PTX and hostile specifications end in errors: never a panic, never a hang.

use std::path::Path;

use proptest::prelude::*;
use ptx_sim::launch::LaunchSpec;
use ptx_sim::{Launch, Module, Options, Sim};

const VALID: &str = r#".version 9.0
.target sm_100a
.address_size 64
.const .align 4 .u32 c[3] = {1, 2, 30};
.global .align 4 .b32 g[2] = {0, 500};
.visible .entry k(.param .u64 p, .param .align 8 .b8 q[16]) .maxntid 64, 1, 1
{
 .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .b64 %d<5>;
 .shared .align 4 .b8 s[256];
 .local .align 8 .b8 l[16];
 .loc 1 5 3
 ld.param.u64 %d1, [p];
 ld.param.v2.u32 {%r1, %r2}, [q+8];
 mov.u32 %r3, %tid.x;
 { .reg .f16 lo, hi; mov.b32 {lo, hi}, %r3; cvt.f32.f16 %f1, lo; }
 fma.rn.ftz.f32 %f2, %f1, 0f3F800000, %f1;
 setp.lt.and.u32 %p1|%p2, %r3, 7, %p3;
 @%p1 bra L1;
 bfe.u32 %r4, %r3, 3, 5;
 prmt.b32 %r5, %r4, %r3, 0x5410;
 shfl.sync.bfly.b32 %r6|%p3, %r3, 1, 31, 0xffffffff;
L1: bar.sync 0;
 atom.shared.add.u32 %r7, [s+4], 1;
 st.local.v2.u32 [l+8], {%r3, %r4};
 @!%p2 st.global.b32 [%d1+-4], %r6;
 tcgen05.fence::after_thread_sync;
 ret;
}
"#;

const SPEC: &str = r#"{"grid":[1,1,1],"block":[32,1,1],"cluster":[1,1,1],"shared":16,
"buffers":{"x":{"size":64,"contents":{"fill":1}},"y":{"contents":{"f32":[1,2]},"dump":"y"},"z":{"contents":{"hex":"00ff"}}},
"params":[{"buffer":"x"},{"struct":{"size":16,"fields":[{"offset":8,"value":{"u32":5}},{"offset":0,"value":{"buffer_at":{"buffer":"x","offset":4}}}]}}]}"#;

/// Parses, decodes and runs whatever comes, with a small budget.
fn survive(ptx: &str) {
    let Ok(m) = Module::parse(ptx) else { return };
    ptx_sim::inventory::inventory(&m);
    let names: Vec<String> = m.entries().map(str::to_string).collect();
    for name in names {
        let mut sim = Sim::new(m.clone());
        let Ok(program) = sim.program(&name) else {
            continue;
        };
        let mut launch = Launch::new(&name, [2, 1, 1], [40, 1, 1]);
        launch.params = program
            .params
            .iter()
            .map(|p| vec![0x70; p.size as usize])
            .collect();
        let options = Options {
            budget: 20_000,
            ..Options::default()
        };
        let _ = sim.run_program(&program, &launch, &options, None);
    }
}

#[test]
fn the_valid_sources_are_valid() {
    let m = Module::parse(VALID).unwrap();
    Sim::new(m.clone()).program("k").unwrap();
    let spec = LaunchSpec::parse(SPEC).unwrap();
    let p = spec.prepare(m, "k", Path::new(".")).unwrap();
    assert_eq!(p.launch.params[1][8..12], [5, 0, 0, 0]);
    let x = p.buffers["x"].address + 4;
    assert_eq!(p.launch.params[1][..8], x.to_le_bytes());
}

#[test]
fn hostile_specifications() {
    for s in [
        r#"{"grid":[1,1],"block":[1,1,1]}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"what":1}"#,
        r#"{"grid":[1,1,1],"block":[1,1,-1]}"#,
    ] {
        assert!(LaunchSpec::parse(s).is_err(), "{s}");
    }
    for s in [
        r#"{"grid":[1,1,1],"block":[1,1,1],"params":[{"buffer":"none"}]}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"buffers":{"x":{}}}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"buffers":{"x":{"size":99999999999999}}}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"buffers":{"x":{"size":1,"contents":{"hex":"0011"}}}}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"buffers":{"x":{"contents":{"hex":"0é"}}}}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"buffers":{"x":{"contents":{"file":"/no/such"}}}}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"params":[{"struct":{"size":4,"fields":[{"offset":18446744073709551615,"value":{"u32":1}}]}}]}"#,
        r#"{"grid":[1,1,1],"block":[1,1,1],"params":[{"struct":{"size":99999999999,"fields":[]}}]}"#,
    ] {
        let m = Module::parse(VALID).unwrap();
        let spec = LaunchSpec::parse(s).unwrap();
        assert!(spec.prepare(m, "k", Path::new(".")).is_err(), "{s}");
    }
}

/// Words to put where they do not belong.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "{", "}", ";", ",", "[", "]", "%r1", "%p1", "%d1", "0xffffffffffffffff", "-1", ".b128", ".v4", ".reg",
    "4294967295", "<", ">", "bra L1;", "L1:", "!", "@", "|", "_", "+", "generic(", ".align 3", "s", "ret;",
    "%tid.x", ".f16x2", "ld.shared.v4.u32 {%r1,%r2,%r3,%r4}, [s];", "bar.sync 1, 64;", "brx.idx %r1, T;",
    "%clock64", "\u{1F600}", "\0", "\"", "/*", ".pred",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_text(s in "\\PC{0,200}") {
        survive(&s);
        let _ = LaunchSpec::parse(&s);
    }

    #[test]
    fn arbitrary_bodies(s in "[a-z0-9%.{}\\[\\];, @!|_:+-]{0,120}") {
        survive(&format!(".version 9.0\n.target sm_90a\n.entry k() {{ {s} }}"));
    }

    #[test]
    fn words_replaced(edits in prop::collection::vec((any::<prop::sample::Index>(), 0..WORDS.len(), 0..3usize), 1..4)) {
        let mut tokens: Vec<&str> = VALID.split(' ').collect();
        for (at, word, how) in edits {
            let i = at.index(tokens.len());
            match how {
                0 => tokens[i] = WORDS[word],
                1 => tokens.insert(i, WORDS[word]),
                _ => { tokens.remove(i); }
            }
        }
        survive(&tokens.join(" "));
    }

    #[test]
    fn lines_moved_and_digits_changed(
        moves in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3usize), 0..6),
        digits in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 0..3),
    ) {
        // Most of these sources still decode, so the interpreter has to cope.
        let mut lines: Vec<&str> = VALID.lines().collect();
        let first = lines.iter().position(|l| l.contains("ld.param.u64")).unwrap();
        for (from, to, how) in moves {
            let n = lines.len() - 1 - first;
            let (from, to) = (first + from.index(n), first + to.index(n));
            match how {
                0 => lines.swap(from, to),
                1 if !lines[from].starts_with("L1") => {
                    let line = lines[from];
                    lines.insert(to, line);
                }
                _ => {
                    lines.remove(from);
                }
            }
        }
        let mut bytes = lines.join("\n").into_bytes();
        let at: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i].is_ascii_digit()).collect();
        for (i, d) in digits {
            bytes[at[i.index(at.len())]] = d;
        }
        survive(std::str::from_utf8(&bytes).unwrap());
    }

    #[test]
    fn bytes_replaced(edits in prop::collection::vec((any::<prop::sample::Index>(), 32u8..127), 1..5)) {
        let mut bytes = VALID.as_bytes().to_vec();
        for (at, b) in &edits {
            let i = at.index(bytes.len());
            bytes[i] = *b;
        }
        survive(std::str::from_utf8(&bytes).unwrap());
        let mut bytes = SPEC.as_bytes().to_vec();
        for (at, b) in &edits {
            let i = at.index(bytes.len());
            bytes[i] = *b;
        }
        if let Ok(spec) = LaunchSpec::parse(std::str::from_utf8(&bytes).unwrap()) {
            let _ = spec.prepare(Module::parse(VALID).unwrap(), "k", Path::new("/nonexistent"));
        }
    }
}
