//! `wgmma`: products of integers that every order of summation gets right, in every layout, under
//! every schedule; and each mistake in the use of it.

mod common;

use common::options::all_options;
use half::{bf16, f16};
use ptx_sim::{Launch, Module, Options, Profile, Sim, SimError, SumRule, Timing};

const K: usize = 16;
const M: usize = 64;
/// Bytes of shared memory for each operand.
const IMAGE: usize = 32768;

/// A layout of the ISA's table "Canonical Layouts".
#[derive(Debug, Clone, Copy, PartialEq)]
struct Layout {
    /// Bytes of the swizzle, or 16 for none.
    span: usize,
    /// M or N is contiguous and not K.
    transposed: bool,
    /// Byte offsets of the descriptor.
    leading: usize,
    stride: usize,
}

/// K-major rows of 128 bytes.
const ROWS: Layout = Layout {
    span: 128,
    transposed: false,
    leading: 0,
    stride: 1024,
};

impl Layout {
    /// Offset of the element (`row`, `k`) in a matrix that starts at a multiple of 1024.
    fn place(&self, row: usize, k: usize) -> usize {
        let (s, l) = (self.stride, self.leading);
        let offset = match (self.transposed, self.span) {
            (false, 16) => row % 8 * 16 + row / 8 * s + k % 8 * 2 + k / 8 * l,
            (false, span) => row % 8 * span + row / 8 * s + k * 2,
            (true, 16) => row % 8 * 2 + row / 8 * s + k % 8 * 16 + k / 8 * l,
            (true, span) => {
                let wide = span / 2;
                row % wide * 2 + row / wide * l + k % 8 * span + k / 8 * s
            }
        };
        let lines = self.span / 16 - 1;
        offset ^ (offset >> 7 & lines) << 4
    }

    /// The upper half of its descriptor, and the leading offset.
    fn descriptor(&self) -> u64 {
        let mode = match self.span {
            16 => 0,
            128 => 1,
            64 => 2,
            _ => 3,
        };
        (self.leading as u64 >> 4) << 16 | (self.stride as u64 >> 4) << 32 | mode << 62
    }

    /// All layouts, with offsets that leave no gaps for so many rows and 16 of K, or some.
    fn all() -> Vec<Layout> {
        let mut all = Vec::new();
        for span in [16, 32, 64, 128] {
            for transposed in [false, true] {
                let (leading, stride) = match (transposed, span) {
                    (false, 16) => (4096, 128),
                    (false, _) => (0, 8 * span),
                    (true, 16) => (128, 256),
                    (true, _) => (2 * 8 * span, 8 * span),
                };
                all.push(Layout {
                    span,
                    transposed,
                    leading,
                    stride,
                });
            }
        }
        all
    }
}

/// Small integers without a pattern.
fn value(row: usize, k: usize, seed: usize) -> i32 {
    let mix = ((row * 31 + k * 17 + seed * 101 + row * k * 7) * 40503) >> 7;
    (mix % 9) as i32 - 4
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Type {
    F16,
    Bf16,
}

impl Type {
    fn bits(self, v: i32) -> u16 {
        match self {
            Type::F16 => f16::from_f32(v as f32).to_bits(),
            Type::Bf16 => bf16::from_f32(v as f32).to_bits(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Type::F16 => "f16",
            Type::Bf16 => "bf16",
        }
    }
}

/// One product: the instruction's form and its immediates.
#[derive(Debug, Clone, Copy)]
struct Form {
    n: usize,
    ty: Type,
    f16_sums: bool,
    /// Layout of A in shared memory; `None`: A is in registers.
    a: Option<Layout>,
    b: Layout,
    accumulate: bool,
    negate: [bool; 2],
}

const PLAIN: Form = Form {
    n: 16,
    ty: Type::F16,
    f16_sums: false,
    a: None,
    b: ROWS,
    accumulate: true,
    negate: [false; 2],
};

impl Form {
    /// Registers of D.
    fn sums(&self) -> usize {
        self.n / if self.f16_sums { 4 } else { 2 }
    }

    fn mma(&self) -> String {
        let list = |p: &str, n| {
            let names: Vec<_> = (0..n).map(|i| format!("%{p}{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let a = match self.a {
            None => list("a", 4),
            Some(_) => "%da".into(),
        };
        let sign = |n: bool| if n { -1 } else { 1 };
        let mut immediates = format!("{}, {}", sign(self.negate[0]), sign(self.negate[1]));
        if let Some(a) = self.a {
            immediates += &format!(", {}", u8::from(a.transposed));
        }
        format!(
            "wgmma.mma_async.sync.aligned.m64n{}k16.{}.{ty}.{ty} {}, {a}, %db, %p7, {immediates}, {};",
            self.n,
            if self.f16_sums { "f16" } else { "f32" },
            list("x", self.sums()),
            u8::from(self.b.transposed),
            ty = self.ty.name(),
        )
    }

    /// The kernel. A comment behind each line that tests replace.
    fn ptx(&self) -> String {
        let mut loads = String::new();
        let mut stores = String::new();
        for i in 0..4 {
            loads += &format!("ld.global.u32 %a{i}, [%pa+{}];\n", 4 * i);
        }
        for i in 0..self.sums() {
            loads += &format!("ld.global.u32 %x{i}, [%pd+{}];\n", 4 * i);
            stores += &format!("st.global.u32 [%po+{}], %x{i};\n", 4 * i);
        }
        format!(
            ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 ia, .param .u64 ib, \
             .param .u64 ra, .param .u64 rd, .param .u64 out, .param .u32 keep) {{\n\
             .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b32 %t; .reg .b32 %w; .reg .b32 %a<8>; .reg .b32 %x<130>;\n\
             .reg .b32 %y<130>; .reg .b64 %d<9>; .reg .b64 %pa; .reg .b64 %pd; .reg .b64 %po; .reg .b64 %da; .reg .b64 %db;\n\
             .shared .align 1024 .b8 sa[{IMAGE}]; .shared .align 1024 .b8 sb[{IMAGE}];\n\
             mov.u32 %t, %tid.x;\n shr.u32 %w, %t, 5;\n ld.param.u64 %d1, [ia];\n ld.param.u64 %d2, [ib];\n\
             ld.param.u32 %r1, [keep];\n setp.ne.u32 %p7, %r1, 0;\n\
             mul.wide.u32 %d3, %t, 16;\n add.u64 %d1, %d1, %d3;\n add.u64 %d2, %d2, %d3;\n\
             mov.u32 %r2, sa;\n mov.u32 %r3, sb;\n shl.b32 %r4, %t, 4;\n add.u32 %r5, %r2, %r4;\n add.u32 %r6, %r3, %r4;\n\
             mov.u32 %r7, 0;\n\
             COPY:\n ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d1];\n st.shared.v4.u32 [%r5], {{%r8, %r9, %r10, %r11}};\n\
             ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d2];\n st.shared.v4.u32 [%r6], {{%r8, %r9, %r10, %r11}};\n\
             add.u64 %d1, %d1, 2048;\n add.u64 %d2, %d2, 2048;\n add.u32 %r5, %r5, 2048;\n add.u32 %r6, %r6, 2048;\n\
             add.u32 %r7, %r7, 2048;\n setp.lt.u32 %p1, %r7, {IMAGE};\n @%p1 bra COPY;\n\
             fence.proxy.async.shared::cta; //proxy\n bar.sync 0; //copied\n\
             ld.param.u64 %pa, [ra];\n mul.wide.u32 %d3, %t, 16;\n add.u64 %pa, %pa, %d3;\n\
             mul.wide.u32 %d3, %t, {bytes};\n ld.param.u64 %pd, [rd];\n add.u64 %pd, %pd, %d3;\n\
             ld.param.u64 %po, [out];\n add.u64 %po, %po, %d3;\n{loads}\
             shr.u32 %r2, %r2, 4;\n cvt.u64.u32 %da, %r2;\n or.b64 %da, %da, {a:#x};\n\
             shr.u32 %r3, %r3, 4;\n cvt.u64.u32 %db, %r3;\n or.b64 %db, %db, {b:#x};\n\
             //before\n wgmma.fence.sync.aligned; //fence\n //fenced\n {mma} //mma\n //issued\n\
             wgmma.commit_group.sync.aligned; //commit\n //committed\n wgmma.wait_group.sync.aligned 0; //wait\n //waited\n\
             {stores} ret;\n}}\n",
            bytes = 4 * self.sums(),
            a = self.a.unwrap_or(ROWS).descriptor(),
            b = self.b.descriptor(),
            mma = self.mma(),
        )
    }

    /// Every element in its place and NaNs everywhere else.
    fn image(&self, layout: Layout, rows: usize, seed: usize) -> Vec<u8> {
        let mut image = vec![0xff; IMAGE];
        for row in 0..rows {
            for k in 0..K {
                let at = layout.place(row, k);
                let bits = self.ty.bits(value(row, k, seed));
                image[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
        }
        image
    }

    /// Words of A that a thread holds: figure "WGMMA .m64nNk16 register fragment layout for matrix A".
    fn a_words(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for t in 0..128 {
            for i in 0..8 {
                let (warp, lane) = (t / 32, t % 32);
                let row = 16 * warp + lane / 4 + if matches!(i, 0 | 1 | 4 | 5) { 0 } else { 8 };
                let k = lane % 4 * 2 + i % 2 + if i < 4 { 0 } else { 8 };
                out.extend(self.ty.bits(value(row, k, 1)).to_le_bytes());
            }
        }
        out
    }

    /// Words of D of every thread: figure "... for accumulator matrix D".
    fn d_words(&self, element: impl Fn(usize, usize) -> i32) -> Vec<u8> {
        let mut out = Vec::new();
        for t in 0..128 {
            for i in 0..self.n / 2 {
                let (warp, lane) = (t / 32, t % 32);
                let row = 16 * warp + lane / 4 + if i % 4 < 2 { 0 } else { 8 };
                let column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                let v = element(row, column) as f32;
                match self.f16_sums {
                    true => out.extend(f16::from_f32(v).to_le_bytes()),
                    false => out.extend(v.to_le_bytes()),
                }
            }
        }
        out
    }

    /// `rounds` times the product on the first D.
    fn want(&self, rounds: i32) -> Vec<u8> {
        self.d_words(|m, n| {
            let signs = self.negate[0] != self.negate[1];
            let sum: i32 = (0..K).map(|k| value(m, k, 1) * value(n, k, 2)).sum();
            let product = if signs { -sum } else { sum };
            match self.accumulate {
                true => rounds * product + value(m, n, 3),
                false => product,
            }
        })
    }
}

fn run_as(form: &Form, ptx: &str, threads: u32, options: &Options) -> Result<Vec<u8>, SimError> {
    let mut sim = Sim::new(Module::parse(ptx)?);
    let a = form.image(form.a.unwrap_or(ROWS), M, 1);
    let b = form.image(form.b, form.n, 2);
    let d = form.d_words(|m, n| value(m, n, 3));
    let mut launch = Launch::new("k", [1; 3], [threads, 1, 1]);
    for (name, bytes) in [("a", a), ("b", b), ("ra", form.a_words()), ("rd", d)] {
        launch = launch.buffer(sim.upload(name, &bytes)?);
    }
    let out = sim.alloc("out", 128 * 4 * form.sums())?;
    let launch = launch.buffer(out).u32(u32::from(form.accumulate));
    sim.run(&launch, options)?;
    Ok(sim.download(out).to_vec())
}

fn edited(form: &Form, edits: &[(&str, &str)]) -> String {
    let mut ptx = form.ptx();
    for (from, to) in edits {
        assert!(ptx.contains(from), "{from}");
        ptx = ptx.replacen(from, to, 1);
    }
    ptx
}

fn strict() -> Vec<Options> {
    let mut all = all_options();
    all.retain(|o| o.profile == Profile::Strict);
    all
}

/// Demands the right result of the kernel as it is.
fn right(form: &Form) {
    let got = run_as(form, &form.ptx(), 128, &Options::default());
    let got = got.unwrap_or_else(|e| panic!("{form:?}: {e}"));
    assert!(got == form.want(1), "{form:?}");
}

#[track_caller]
fn gives(form: &Form, edits: &[(&str, &str)], rounds: i32) {
    let ptx = edited(form, edits);
    for o in all_options() {
        let got =
            run_as(form, &ptx, 128, &o).unwrap_or_else(|e| panic!("{form:?} with {o:?}: {e}"));
        assert!(got == form.want(rounds), "{form:?} with {o:?}");
    }
}

/// Demands a report whatever the schedule, with a message that says this.
#[track_caller]
fn reported(edits: &[(&str, &str)], message: &str) {
    reported_in(&PLAIN, edits, message, all_options());
}

#[track_caller]
fn reported_in(form: &Form, edits: &[(&str, &str)], message: &str, options: Vec<Options>) {
    refused_as(form, &edited(form, edits), 128, &[message], options);
}

/// Demands a report of so many threads, with a message that says one of these.
#[track_caller]
fn refused_as(form: &Form, ptx: &str, threads: u32, messages: &[&str], options: Vec<Options>) {
    for o in options {
        match run_as(form, ptx, threads, &o).map_err(|e| e.to_string()) {
            Ok(_) => panic!("not reported with {o:?}: {ptx}"),
            Err(e) => assert!(messages.iter().any(|m| e.contains(m)), "with {o:?}: {e}"),
        }
    }
}

const FENCE: &str = " wgmma.fence.sync.aligned; //fence\n";
const COMMIT: &str = "wgmma.commit_group.sync.aligned; //commit\n";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0; //wait\n";
const PROXY: &str = "fence.proxy.async.shared::cta; //proxy\n";

#[test]
fn every_size_and_type() {
    for n in (8..=256).step_by(8) {
        let ty = if n % 16 == 0 { Type::F16 } else { Type::Bf16 };
        let form = Form { n, ty, ..PLAIN };
        right(&form);
        right(&Form {
            ty: Type::F16,
            f16_sums: true,
            ..form
        });
    }
}

#[test]
fn every_layout() {
    for b in Layout::all() {
        let form = Form { n: 64, b, ..PLAIN };
        right(&form);
        right(&Form {
            a: Some(b),
            b: ROWS,
            ..form
        });
    }
}

/// A matrix whose pattern starts at another line than a multiple of it: the base offset says at which.
#[test]
fn base_offsets() {
    for (span, lines) in [(128, 8), (64, 4), (32, 2)] {
        let b = Layout {
            span,
            transposed: false,
            leading: 0,
            stride: 8 * span,
        };
        let form = Form { b, ..PLAIN };
        for line in 1..lines {
            let edit = |base: usize| {
                // The image is copied so many lines further on, and the descriptor says so.
                let moved = format!("add.u32 %r6, %r3, %r4;\nadd.u32 %r6, %r6, {};", 128 * line);
                let descriptor = format!(
                    "add.u64 %db, %db, {};\nor.b64 %db, %db, {:#x};\n//before",
                    8 * line,
                    base << 49
                );
                let edits = [
                    ("add.u32 %r6, %r3, %r4;", moved.as_str()),
                    ("//before", descriptor.as_str()),
                    (".b8 sb[32768]", ".b8 sb[34816]"),
                ];
                run_as(&form, &edited(&form, &edits), 128, &Options::default()).expect("runs")
            };
            assert!(edit(line) == form.want(1), "{span} bytes, line {line}");
            assert!(edit(0) != form.want(1), "{span} bytes, line {line}");
        }
    }
}

#[test]
fn immediates_and_schedules() {
    for (i, negate) in [[false, false], [true, false], [false, true], [true, true]]
        .into_iter()
        .enumerate()
    {
        let form = Form {
            negate,
            accumulate: i % 2 == 0,
            a: (i > 1).then_some(ROWS),
            ..PLAIN
        };
        gives(&form, &[], 1);
    }
}

#[test]
fn one_accumulator_in_order() {
    let twice = format!("{} {COMMIT}", PLAIN.mma());
    gives(&PLAIN, &[("//issued", &PLAIN.mma())], 2);
    gives(&PLAIN, &[("//committed", &twice)], 2);
    // The order of two groups on one accumulator holds without a wait between them.
    let pending = format!("{twice}wgmma.wait_group.sync.aligned 1;\n");
    gives(&PLAIN, &[("//committed", &pending)], 2);
}

#[test]
fn a_slice_further_along_k() {
    // The second 16 of K lie 32 bytes on in the same rows: there are NaNs there.
    let next = format!("add.u64 %db, %db, 2;\n{}", PLAIN.mma());
    let ptx = edited(&PLAIN, &[("//issued", &next)]);
    let got = run_as(&PLAIN, &ptx, 128, &Options::default()).expect("runs");
    let nan = f32::from_le_bytes([got[0], got[1], got[2], got[3]]);
    assert!(nan.is_nan());
}

#[test]
fn a_missing_fence() {
    reported(&[(FENCE, "")], "without a wgmma.fence");
    let since = "accessed since the last wgmma.fence";
    for access in [
        "mov.b32 %x3, 0;\n",
        "mov.b32 %r19, %x3;\n",
        "mov.b32 %a2, 0;\n",
        "mov.b32 %r19, %a2;\n",
    ] {
        // ptxas orders them itself, so this is by the letter only.
        reported_in(&PLAIN, &[("//fenced", access)], since, strict());
        let ptx = edited(&PLAIN, &[("//fenced", access)]);
        let hardware = Options {
            profile: Profile::Hardware,
            ..Options::default()
        };
        assert!(run_as(&PLAIN, &ptx, 128, &hardware).is_ok());
    }
    // Each access wants a fence of its own.
    let again = format!(
        "add.f32 %x0, %x0, 0f00000000;\n{} {COMMIT}{WAIT}",
        PLAIN.mma()
    );
    reported_in(&PLAIN, &[("//waited", &again)], since, strict());
    let fenced = again.replace("wgmma.mma", "wgmma.fence.sync.aligned;\nwgmma.mma");
    gives(&PLAIN, &[("//waited", &fenced)], 2);
    // Without an access to the registers in between, none.
    let chained = format!("{} {COMMIT}{WAIT}", PLAIN.mma());
    gives(&PLAIN, &[("//waited", &chained)], 2);
}

#[test]
fn another_shape_on_the_accumulator() {
    let other = Form { n: 8, ..PLAIN };
    reported(&[("//issued", &other.mma())], "of another shape");
    let later = format!("{} {COMMIT}{WAIT}", other.mma());
    reported(
        &[("//waited", &later)],
        "accessed since the last wgmma.fence",
    );
    let moved = PLAIN.mma().replace("%x0, %x1,", "%x1, %x0,");
    reported(&[("//issued", &moved)], "with other registers");
    let as_a = PLAIN
        .mma()
        .replace("%a0", "%x0")
        .replace("{%x0, %x1, %x2", "{%y0, %y1, %y2");
    let as_a = as_a.replace("%x3, %x4, %x5, %x6, %x7", "%y3, %y4, %y5, %y6, %y7");
    reported(&[("//issued", &as_a)], "a register of A is the accumulator");
    let as_d = PLAIN
        .mma()
        .replace("%x7", "%a1")
        .replace("{%a0, %a1,", "{%a4, %a5,");
    reported(&[("//issued", &as_d)], "a register of the accumulator is A");
}

#[test]
fn registers_before_the_wait() {
    let early = "before a wgmma.wait_group";
    for access in [
        "mov.b32 %r19, %x7;\n",
        "mov.b32 %x7, 0;\n",
        "mov.b32 %r19, %a3;\n",
        "mov.b32 %a3, 0;\n",
    ] {
        reported(&[("//issued", access)], early);
        reported(&[("//committed", access)], early);
        gives(
            &PLAIN,
            &[("//waited", &access.replace("%x7, 0", "%x8, 0"))],
            1,
        );
    }
    reported(&[(WAIT, "")], early);
    reported(&[(COMMIT, "")], early);
    reported(&[("aligned 0; //wait", "aligned 1; //wait")], early);
    // Other registers are free.
    gives(
        &PLAIN,
        &[("//issued", "mov.b32 %y7, 0;\nmov.b32 %a4, %a5;\n")],
        1,
    );
}

#[test]
fn the_wrong_group() {
    let second = PLAIN.mma().replace("%x", "%y");
    let two = |keep: usize, read: &str| {
        let zero: String = (0..8).map(|i| format!("mov.b32 %y{i}, 0;\n")).collect();
        let before = format!("{zero}//before\n");
        let more = format!(
            "{second} {COMMIT}wgmma.wait_group.sync.aligned {keep};\nmov.b32 %r19, %{read}0;\n"
        );
        [("//before", before), ("//committed", more)]
    };
    let check = |keep, read: &str, right: bool| {
        let edits = two(keep, read);
        let edits: Vec<(&str, &str)> = edits.iter().map(|(a, b)| (*a, b.as_str())).collect();
        match right {
            true => gives(&PLAIN, &edits, 1),
            false => reported(&edits, "before a wgmma.wait_group"),
        }
    };
    check(1, "x", true);
    check(1, "y", false);
    check(2, "x", false);
    check(0, "y", true);
}

#[test]
fn shared_operands() {
    reported(&[(PROXY, "")], "fence.proxy.async is missing");
    reported_in(
        &PLAIN,
        &[("bar.sync 0; //copied", "")],
        "nothing orders the two",
        strict(),
    );
    // The row of B that thread 0 overwrites.
    let write = "st.shared.u32 [sb+0], 0;\n";
    reported(&[("//issued", write)], "in flight");
    reported(&[("//committed", write)], "in flight");
    // One's own wait tells nothing of the other warps.
    let one = "setp.eq.u32 %p2, %t, 0;\n@%p2 st.shared.u32 [sb+0], 0;\n";
    let ptx = edited(&PLAIN, &[("//waited", one)]);
    refused_as(
        &PLAIN,
        &ptx,
        128,
        &["not waited for", "in flight"],
        strict(),
    );
    let barrier = format!("bar.sync 0;\n{one}");
    gives(&PLAIN, &[("//waited", &barrier)], 1);
    // A in shared memory is watched, too.
    let form = Form {
        a: Some(ROWS),
        ..PLAIN
    };
    reported_in(
        &form,
        &[("//issued", "st.shared.u32 [sa+0], 0;\n")],
        "in flight",
        all_options(),
    );
}

#[test]
fn descriptors() {
    let plus = |by: u64| format!("add.u64 %db, %db, {by};\n//before");
    let xor = |bits: u64| format!("xor.b64 %db, %db, {bits:#x};\n//before");
    for reserved in [14, 15, 30, 31, 46, 48, 52, 61] {
        reported(&[("//before", &xor(1 << reserved))], "reserved bits");
    }
    reported(&[("//before", &plus(7))], "leave it");
    // Beyond shared memory.
    reported(&[("//before", &xor(0x3000))], "not initialised");
    let lanes = "cvt.u64.u32 %d8, %t;\nadd.u64 %db, %db, %d8;\n//before";
    reported(&[("//before", lanes)], "different descriptors of B");
    let warps = "shl.b32 %r19, %w, 1;\ncvt.u64.u32 %d8, %r19;\nadd.u64 %db, %db, %d8;\n//before";
    reported(&[("//before", warps)], "different descriptors");
}

#[test]
fn warpgroups() {
    // Warps 1 to 4 of five, and three warps only.
    let ptx = edited(
        &PLAIN,
        &[
            (
                "mov.u32 %t, %tid.x;",
                "mov.u32 %t, %tid.x;\nsetp.lt.u32 %p2, %t, 32;\n@%p2 bra END;\nsub.u32 %t, %t, 32;",
            ),
            (" ret;", "END: ret;"),
        ],
    );
    let ptx = ptx.replace("bar.sync 0;", "bar.sync 0, 128;");
    let alone = "is in no warpgroup";
    let says = [alone, "has ended", "has not executed", "pending"];
    refused_as(&PLAIN, &ptx, 160, &says, all_options());
    let says = [alone, "not initialised"];
    refused_as(&PLAIN, &PLAIN.ptx(), 96, &says, all_options());
    // One warp takes another way.
    let apart = format!(
        "setp.eq.u32 %p2, %w, 2;\n@%p2 bra OTHER;\n{}\nbra ON;\nOTHER:\n{}\nON:",
        PLAIN.mma(),
        PLAIN.mma()
    );
    let same = "must execute the same wgmma instructions";
    reported(&[("//issued", &apart)], same);
    let skips = format!(
        "setp.eq.u32 %p2, %w, 2;\n@%p2 bra ON;\n{}\nON:",
        PLAIN.mma()
    );
    reported(&[("//issued", &skips)], same);
    // One lane does.
    let lane = "setp.eq.u32 %p2, %t, 5;\n@%p2 bra END;\n//before";
    reported(
        &[("//before", lane), (" ret;", "END: ret;")],
        "all 32 lanes",
    );
    let scale = "setp.eq.u32 %p7, %t, 5;\n//before";
    reported(&[("//before", scale)], "different scale-d");
}

#[test]
fn a_warp_that_does_not_wait() {
    reported(&[(WAIT, "ret;\n")], "has not waited for");
}

#[test]
fn forms_that_are_refused() {
    let decoded = |from: &str, to: &str| {
        let ptx = edited(&PLAIN, &[(from, to)]);
        run_as(&PLAIN, &ptx, 128, &Options::default())
            .expect_err(to)
            .to_string()
    };
    for (from, to, why) in [
        ("sm_90a", "sm_100a", "sm_90a"),
        ("m64n16k16", "m64n12k16", "multiple of 8"),
        ("m64n16k16", "m64n264k16", "multiple of 8"),
        ("m64n16k16", "m128n16k16", "m64nNkK"),
        ("f32.f16.f16", "f32.f16.bf16", "one type"),
        ("f32.f16.f16", "f16.bf16.bf16", "f32 only"),
        ("f32.f16.f16", "f16.f16.f16", "4 registers"),
        ("f32.f16.f16", "f32.tf32.tf32", "m64nNk8"),
        ("f32.f16.f16", "f32.e4m3.e5m2", "m64nNk32"),
        ("f32.f16.f16", "f32.s8.s8", "integers in s32"),
        (
            "m64n16k16.f32.f16.f16",
            "m64n40k32.s32.s8.u8",
            "N of integers",
        ),
        ("m64n16k16.f32.f16.f16", "m64n16k256.s32.b1.b1", ".and.popc"),
        ("m64n16k16.f32.f16.f16", "m64n16k32.f32.e4m3.e4m3", "6"),
        ("mma_async.sync", "mma_async.sp.sync", "sparse"),
        ("%p7, 1, 1, 0", "%p7, 2, 1, 0", "imm-scale"),
        ("%p7, 1, 1, 0", "%p7, 1, 1, 2", "imm-trans"),
        ("%p7, 1, 1, 0", "%p7, 1, 1, 0, 0", "7"),
        ("%x0, %x1,", "%x0, %x0,", "twice"),
        ("%x0, %x1,", "%x0, %a0,", "both accumulator and A"),
        (
            "wait_group.sync.aligned 0",
            "wait_group.sync.aligned %r1",
            "constant",
        ),
    ] {
        let e = decoded(from, to);
        assert!(e.contains(why), "{to}: {e}");
    }
}

/// SumRule that are not exact go through the same rule as those of `mma.sync`: see `models/mma_number`.
#[test]
fn a_sum_is_cut_as_those_of_mma_sync() {
    // 2048 + 2^-14 is beyond 25 bits below the exponent of 2048 * 1, and 2^-15 of it is cut.
    use ptx_sim::models::wgmma::{A, Accumulator, Element, Shape};
    let ones = |k: u32| if k == 0 { 0x6800u16 } else { 0x0400 };
    let shared = |address: u32| {
        let k = address % 128 / 2;
        let row = address / 128;
        let swizzled = (k * 2) ^ (row % 8) << 4;
        Some(ones(swizzled / 2).to_le_bytes()[(address % 2) as usize])
    };
    let one = 0x3c00u64 << 16 | 0x3c00;
    let a = [[one; 32]; 4];
    let shape = Shape::new(8, Element::F16, Element::F16, Accumulator::F32).expect("a shape");
    let rule = shape.rule(SumRule::Own).unwrap();
    let d = product(shape, false, false).run(0, A::Registers(&a), &[[0; 32]; 4], &shared, rule);
    let d = d.expect("runs");
    // Fifteen times 2^-14 do not reach f32's last place of 2048, which is 2^-12, one by one; together
    // they are more than three of them.
    let sum = f32::from_bits(d[0][0] as u32);
    assert_eq!(sum, 2048.0 + 3.0 / 4096.0);
}

/// A product with B in rows of 128 bytes.
fn product(
    shape: ptx_sim::models::wgmma::Shape,
    accumulate: bool,
    saturate: bool,
) -> ptx_sim::models::wgmma::Product {
    use ptx_sim::models::wgmma::{Product, SharedMatrix};
    Product {
        shape,
        b: SharedMatrix::b(&shape, ROWS.descriptor(), false).expect("a matrix"),
        negate_a: false,
        negate_b: false,
        accumulate,
        saturate,
    }
}

/// Columns and rows whose bytes are all the same: what an element of D becomes.
fn sum_of_equal_bytes(
    types: [ptx_sim::models::wgmma::Element; 2],
    accumulator: ptx_sim::models::wgmma::Accumulator,
    [a, b]: [u8; 2],
    old: u32,
    saturate: bool,
) -> u32 {
    use ptx_sim::models::wgmma::{A, Shape};
    let shape = Shape::new(8, types[0], types[1], accumulator).expect("a shape");
    let a = [[u64::from(u32::from_le_bytes([a; 4])); 32]; 4];
    let old = [[u64::from(old); 32]; 4];
    let rule = shape.rule(SumRule::Own).unwrap();
    let shared = |_: u32| Some(b);
    let d = product(shape, true, saturate).run(0, A::Registers(&a), &old, &shared, rule);
    let d = d.expect("runs");
    assert!(d.iter().flatten().all(|sum| *sum == d[0][0]));
    d[0][0] as u32
}

/// Types that other instructions have, and sums that a type does not have, are refused by name.
#[test]
fn types_of_other_instructions_are_refused() {
    use ptx_sim::models::wgmma::{Accumulator, Element, Shape};
    let why = |name: &str, sums| {
        let element = Element::parse(name).expect("a type");
        Shape::new(8, element, element, sums).map_err(|error| error.to_string())
    };
    for (name, sums) in [("s4", Accumulator::S32), ("e2m1", Accumulator::F32)] {
        let error = why(name, sums).unwrap_err();
        assert!(error.starts_with("wgmma does not multiply"), "{error}");
    }
    assert!(why("s8", Accumulator::F32).is_err());
    assert!(why("s8", Accumulator::S32).is_ok());
}

#[test]
fn bytes_and_bits_are_added_exactly() {
    use ptx_sim::models::wgmma::{Accumulator::S32, Element};
    let sum = |types, bytes, old: i32, saturate| {
        sum_of_equal_bytes(types, S32, bytes, old as u32, saturate) as i32
    };
    let (s8, u8, b1) = (Element::S8, Element::U8, Element::B1);
    assert_eq!(sum([s8, u8], [0xff, 2], 7, false), 7 - 64);
    assert_eq!(sum([u8, s8], [0xff, 0xfe], 0, false), 32 * 255 * -2);
    assert_eq!(sum([s8, s8], [0xff, 2], i32::MIN, false), i32::MAX - 63);
    assert_eq!(sum([s8, s8], [0xff, 2], i32::MIN, true), i32::MIN);
    assert_eq!(sum([b1, b1], [0x0f, 0x3c], 1, false), 1 + 32 * 2);
}

/// Recorded widths: 13 bits below the largest exponent, and 13 bits of the sum.
#[test]
fn sums_of_fp8_have_few_bits() {
    use ptx_sim::models::wgmma::{Accumulator, Element};
    let one_and_one = |old: f32| {
        let types = [Element::E4m3, Element::E5m2];
        // E4M3's 1, and E5M2's.
        let sum = sum_of_equal_bytes(types, Accumulator::F32, [0x38, 0x3c], old.to_bits(), false);
        f32::from_bits(sum)
    };
    assert_eq!(one_and_one(8191.0), 8223.0);
    // 2^14 + 3 is cut to a multiple of 2, and so is each 1: to nothing.
    assert_eq!(one_and_one(16387.0), 16386.0);
}

#[test]
fn everything_is_listed_and_executed() {
    let ptx = PLAIN.ptx();
    let list = ptx_sim::inventory::inventory(&Module::parse(&ptx).expect("parses"));
    assert!(list.problems.is_empty(), "{:?}", list.problems);
    assert!(list.opcodes.iter().all(|e| e.unmodelled.is_none()));
    let listed = list
        .opcodes
        .iter()
        .filter(|e| e.opcode.starts_with("wgmma."));
    assert_eq!(listed.count(), 4);
    let other = ptx.replace("mma_async.sync", "mma_async.sp.sync");
    let list = ptx_sim::inventory::inventory(&Module::parse(&other).expect("parses"));
    let named = list.opcodes.iter().filter_map(|e| e.unmodelled.as_deref());
    assert_eq!(
        named.collect::<Vec<_>>(),
        ["wgmma.mma_async with a sparse A is not modelled"]
    );
}

#[test]
fn a_timeline() {
    use ptx_sim::trace::draw::{DrawOptions, draw};
    use ptx_sim::trace::{Kind, TrackKind};
    let twice = edited(&PLAIN, &[("//issued", &PLAIN.mma())]);
    let mut sim = Sim::new(Module::parse(&twice).expect("parses"));
    let program = sim.program("k").expect("a kernel");
    let mut launch = Launch::new("k", [1; 3], [128, 1, 1]);
    let inputs = [
        PLAIN.image(ROWS, M, 1),
        PLAIN.image(ROWS, PLAIN.n, 2),
        PLAIN.a_words(),
        PLAIN.d_words(|_, _| 0),
    ];
    for bytes in inputs {
        launch = launch.buffer(sim.upload("in", &bytes).expect("room"));
    }
    let out = sim.alloc("out", 128 * 4 * PLAIN.sums()).expect("room");
    let launch = launch.buffer(out).u32(1);
    let options = Options {
        timing: Timing::Lazy,
        ..Options::default()
    };
    let (result, trace) = sim.run_traced(&program, &launch, &options, 10_000);
    result.expect("runs");
    let mine = trace.slices.iter().filter(|s| s.kind == Kind::Wgmma);
    let mine: Vec<_> = mine.collect();
    // Four warps' quarters of two instructions.
    assert_eq!(mine.len(), 8);
    for s in &mine {
        assert_eq!(trace.tracks[s.track].kind, TrackKind::Wgmma);
        assert!(s.name.starts_with("wgmma 64x16 of warp "), "{}", s.name);
        assert!(s.end > s.start);
    }
    let waits = trace.slices.iter().filter(|s| s.kind == Kind::Wait);
    let waits = waits.filter(|s| s.name == "wgmma.wait_group 0").count();
    assert_eq!(waits, 4);
    let picture = draw(&trace, &DrawOptions::default()).expect("a picture");
    assert!(picture.contains("wgmma operations in flight"));
}

#[test]
fn what_would_be_remembered_for_ever() {
    let plainly =
        |edits: &[(&str, &str)]| run_as(&PLAIN, &edited(&PLAIN, edits), 128, &Options::default());
    let refused = |edits: &[(&str, &str)], why: &str| {
        let e = plainly(edits).expect_err(why).to_string();
        assert!(e.contains(why), "{e}");
    };
    let endless = format!("AGAIN: {}\nbra AGAIN;\n", PLAIN.mma());
    refused(
        &[("//issued", &endless)],
        "4096 wgmma.mma_async of a warp were not waited for",
    );
    let alone = "setp.ne.u32 %p2, %w, 0;\n@%p2 bra OTHERS;\n\
                 AGAIN: wgmma.commit_group.sync.aligned;\nbra AGAIN;\nOTHERS: bar.sync 1;\n//before";
    refused(&[("//before", alone)], "65536 wgmma instructions ahead");
    // Groups without operations are nothing to wait for.
    let commits = format!(
        "mov.u32 %r19, 0;\nAGAIN: {COMMIT}add.u32 %r19, %r19, 1;\n\
         setp.lt.u32 %p2, %r19, 3000;\n@%p2 bra AGAIN;\n//before"
    );
    let got = plainly(&[("//before", &commits)]);
    assert!(got.expect("runs") == PLAIN.want(1));
}
