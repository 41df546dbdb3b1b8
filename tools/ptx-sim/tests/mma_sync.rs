//! `mma.sync`: fragments by the ISA's formulas, sums worked out by hand.

#[path = "common/float.rs"]
mod float;

use float::float;
use half::{bf16, f16};
use ptx_sim::models::wmma::{Fragment, Matrix, Shape};
use ptx_sim::{Launch, Module, Options, Sim};

/// An instruction's form, by its name.
struct Form(&'static str);

impl Form {
    /// Types of D, A, B and C.
    fn types(&self) -> Vec<&'static str> {
        let words = self.0.split('.').skip(3);
        let types = words.filter(|word| *word != "satfinite" && !word.starts_with("kind"));
        types.take(4).collect()
    }

    fn k(&self) -> usize {
        let (_, k) = self.0.split_once("n8k").unwrap();
        k.split_once('.').unwrap().0.parse().unwrap()
    }

    /// Bits of an element of A and B.
    fn bits(&self) -> usize {
        match self.types()[1] {
            "b1" => 1,
            "s4" | "u4" => 4,
            "f16" | "bf16" => 16,
            "tf32" => 32,
            _ => 8,
        }
    }

    fn f16_result(&self) -> bool {
        self.types()[0] == "f16"
    }

    /// Registers of A, B and C.
    fn registers(&self) -> [usize; 3] {
        let words = |elements: usize| elements * self.bits() / 32 / 32;
        let c = if self.f16_result() { 1 } else { 2 };
        [
            words(self.rows() * self.k()),
            words(8 * self.k()),
            c * self.rows() / 8,
        ]
    }

    /// Rows of A and D.
    fn rows(&self) -> usize {
        if self.0.starts_with("m8") { 8 } else { 16 }
    }

    /// Row and column of element `i` of A, by the group (`lane / 4`) and the thread in group (`lane % 4`). The ISA's
    /// formulas for all shapes say this: a register holds neighbours of a row, the next one those of eight rows below,
    /// the next two those of the other half of K.
    fn a(&self, group: usize, thread: usize, i: usize) -> (usize, usize) {
        let n = 32 / self.bits();
        let register = i / n;
        (
            group + register % 2 * 8,
            (register / 2 * 4 + thread) * n + i % n,
        )
    }

    /// Row of element `i` of B, whose column is the group.
    fn b(&self, thread: usize, i: usize) -> usize {
        let n = 32 / self.bits();
        (i / n * 4 + thread) * n + i % n
    }
}

fn list(first: usize, n: usize) -> String {
    let names: Vec<_> = (first..first + n).map(|i| format!("%r{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Words of each lane's fragments through one instruction.
fn run(form: &Form, words: &[Vec<u32>; 3]) -> Vec<u32> {
    let [na, nb, nc] = form.registers();
    let n = [na, nb, nc];
    let mut body = String::new();
    let mut next = 0;
    let mut operands = Vec::new();
    for (buffer, n) in n.iter().enumerate() {
        body += &format!(
            "ld.param.u64 %d1, [p{buffer}]; mad.wide.u32 %d1, %t, {}, %d1;\n",
            4 * n
        );
        for i in 0..*n {
            body += &format!("ld.global.u32 %r{}, [%d1+{}];\n", next + i, 4 * i);
        }
        operands.push(list(next, *n));
        next += n;
    }
    body += &format!(
        "mma.sync.aligned.{} {}, {};\n",
        form.0,
        list(next, nc),
        operands.join(", ")
    );
    body += &format!(
        "ld.param.u64 %d1, [p3]; mad.wide.u32 %d1, %t, {}, %d1;\n",
        4 * nc
    );
    for i in 0..nc {
        body += &format!("st.global.u32 [%d1+{}], %r{};\n", 4 * i, next + i);
    }
    let ptx = format!(
        ".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 p0, \
         .param .u64 p1, .param .u64 p2, .param .u64 p3) {{\n.reg .b32 %r<20>; .reg .b32 %t; \
         .reg .b64 %d<2>;\nmov.u32 %t, %tid.x;\n{body}ret;\n}}\n"
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let mut launch = Launch::new("k", [1; 3], [32, 1, 1]);
    for (i, w) in words.iter().enumerate() {
        let bytes: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
        launch = launch.buffer(sim.upload(&format!("in{i}"), &bytes).unwrap());
    }
    let out = sim.alloc("out", 32 * nc * 4).unwrap();
    sim.run(&launch.buffer(out), &Options::default()).unwrap();
    let bytes = sim.download(out).chunks_exact(4);
    bytes
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect()
}

/// Packs one lane's elements into its words.
fn pack(words: &mut [u32], bits: usize, i: usize, code: u32) {
    let (word, at) = (i * bits / 32, i * bits % 32);
    words[word] |= code << at;
}

/// Fragments of matrices given by their elements' codes.
fn fragments(
    f: &Form,
    a: &dyn Fn(usize, usize) -> u32,
    b: &dyn Fn(usize, usize) -> u32,
    c: &dyn Fn(usize, usize) -> u32,
) -> [Vec<u32>; 3] {
    let n = f.registers();
    let mut out = n.map(|n| vec![0; 32 * n]);
    for lane in 0..32 {
        let (group, thread) = (lane / 4, lane % 4);
        let [wa, wb, wc] = &mut out;
        for i in 0..n[0] * 32 / f.bits() {
            let (row, col) = f.a(group, thread, i);
            pack(&mut wa[lane * n[0]..][..n[0]], f.bits(), i, a(row, col));
        }
        for i in 0..n[1] * 32 / f.bits() {
            let row = f.b(thread, i);
            pack(&mut wb[lane * n[1]..][..n[1]], f.bits(), i, b(row, group));
        }
        let bits = if f.f16_result() { 16 } else { 32 };
        for i in 0..f.rows() / 4 {
            let (row, col) = place(lane, i);
            pack(&mut wc[lane * n[2]..][..n[2]], bits, i, c(row, col));
        }
    }
    out
}

/// Row and column of element `i` of a lane's C or D.
fn place(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 { lane / 4 } else { lane / 4 + 8 };
    (row, lane % 4 * 2 + (i & 1))
}

fn result(f: &Form, out: &[u32], lane: usize, i: usize) -> u32 {
    if f.f16_result() {
        out[lane * 2 + i / 2] >> (16 * (i % 2)) & 0xffff
    } else {
        out[lane * f.registers()[2] + i]
    }
}

/// 9.7.14.5.3 to 9.7.14.5.13.
const FORMS: [Form; 16] = [
    Form("m16n8k8.row.col.f32.f16.f16.f32"),
    Form("m16n8k16.row.col.f32.bf16.bf16.f32"),
    Form("m16n8k4.row.col.f32.tf32.tf32.f32"),
    Form("m16n8k8.row.col.f32.tf32.tf32.f32"),
    Form("m16n8k32.row.col.f16.e4m3.e5m2.f16"),
    Form("m16n8k16.row.col.s32.s8.u8.s32"),
    Form("m16n8k32.row.col.s32.u4.s4.s32"),
    Form("m16n8k64.row.col.s32.s4.s4.s32"),
    Form("m8n8k16.row.col.s32.u8.s8.s32"),
    Form("m8n8k32.row.col.s32.s4.u4.s32"),
    Form("m8n8k128.row.col.s32.b1.b1.s32.and.popc"),
    Form("m16n8k128.row.col.s32.b1.b1.s32.xor.popc"),
    Form("m16n8k256.row.col.s32.b1.b1.s32.and.popc"),
    Form("m16n8k256.row.col.s32.b1.b1.s32.xor.popc"),
    Form("m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32"),
    Form("m16n8k32.row.col.kind::f8f6f4.f16.e2m3.e4m3.f16"),
];

/// The code of a small integer.
fn code(ty: &str, v: i32) -> u32 {
    let search = |exponent, mantissa| -> u32 {
        let is = |code: &u8| float(*code, exponent, mantissa) == f64::from(v);
        (0..=255).find(is).unwrap().into()
    };
    match ty {
        "f32" | "tf32" => (v as f32).to_bits(),
        "f16" => f16::from_f32(v as f32).to_bits().into(),
        "bf16" => bf16::from_f32(v as f32).to_bits().into(),
        "e4m3" => search(4, 3),
        "e5m2" => search(5, 2),
        "e3m2" => search(3, 2),
        "e2m3" => search(2, 3),
        // The code stands in the middle of its byte.
        "e2m1" => search(2, 1) << 2,
        "b1" => v as u32,
        "s8" | "u8" => (v as u32) & 0xff,
        "s4" | "u4" => (v as u32) & 0xf,
        _ => v as u32,
    }
}

#[test]
fn every_element_is_in_its_place() {
    for f in &FORMS {
        let [d, ta, tb, _] = f.types()[..] else {
            panic!("{}", f.0)
        };
        // Within four bits of either sign, and two of E5M2; no two rows or columns alike.
        let value = |ty: &str, x: usize, y: usize| -> i32 {
            let v = (x * 37 + y * 101 + x * y * 13 + 5) * 40503 / 256 % 4;
            if ty == "b1" {
                (v % 2) as i32
            } else if ty.starts_with('u') {
                v as i32
            } else {
                v as i32 - 2
            }
        };
        let a = |m: usize, k: usize| value(ta, m, k);
        let b = |k: usize, n: usize| value(tb, n + 3, k);
        let c = |m: usize, n: usize| (m * 8 + n) as i32 - 60;
        let words = fragments(
            f,
            &|m, k| code(ta, a(m, k)),
            &|k, n| code(tb, b(k, n)),
            &|m, n| code(d, c(m, n)),
        );
        let out = run(f, &words);
        for lane in 0..32 {
            for i in 0..f.rows() / 4 {
                let (m, n) = place(lane, i);
                let product = |k: usize| match f.0.contains("xor") {
                    true => a(m, k) ^ b(k, n),
                    false => a(m, k) * b(k, n),
                };
                let sum: i32 = (0..f.k()).map(product).sum::<i32>() + c(m, n);
                let want = code(d, sum);
                let got = result(f, &out, lane, i);
                assert_eq!(got, want, "{} ({m}, {n})", f.0);
            }
        }
    }
}

/// The one value of D when every row of A is `a`, every column of B is `b`, and C is `c`.
fn same_everywhere(f: &Form, a: &[u32], b: &[u32], c: u32) -> u32 {
    let at = |v: &[u32], k: usize| v.get(k).copied().unwrap_or(0);
    let words = fragments(f, &|_, k| at(a, k), &|k, _| at(b, k), &|_, _| c);
    let out = run(f, &words);
    let first = result(f, &out, 0, 0);
    for lane in 0..32 {
        assert!((0..4).all(|i| result(f, &out, lane, i) == first));
    }
    first
}

#[test]
fn sums_are_cut_below_the_largest_term() {
    let f = &FORMS[0];
    let p = |e: i32| u32::from(f16::from_f64(2f64.powi(e)).to_bits());
    let sum = |a: &[u32], b: &[u32], c: f32| same_everywhere(f, a, b, c.to_bits());
    let one = 1f32.to_bits();
    // Against 1, what is below 2^-25 is lost term by term, and the sum is cut to 24 bits.
    assert_eq!(sum(&[p(-14); 8], &[p(-12); 8], 1.0), one);
    assert_eq!(sum(&[p(-13); 3], &[p(-12); 3], 1.0), one);
    assert_eq!(sum(&[p(-13); 4], &[p(-12); 4], 1.0), one + 1);
    assert_eq!(sum(&[p(-13); 1], &[p(-12) | 0x8000; 1], 1.0), one - 1);
    // Without the 1 the same products are the largest terms, and count.
    assert_eq!(
        sum(&[p(-14); 8], &[p(-12); 8], 0.0),
        2f32.powi(-23).to_bits()
    );
    // The exponents of the factors decide, not the product's: 1.5 * 1.5 goes by 2^0. So 2^-25 still counts beside it,
    // and eight of them are the last place of 2.25.
    let f = &FORMS[1];
    let p = |x: f64| u32::from(bf16::from_f64(x).to_bits());
    let mut a = [p(2f64.powi(-12)); 9];
    let mut b = [p(2f64.powi(-13)); 9];
    (a[0], b[0]) = (p(1.5), p(1.5));
    let got = same_everywhere(f, &a, &b, 0);
    assert_eq!(got, 2.25f32.to_bits() + 1);
    assert_eq!(same_everywhere(f, &a[..8], &b[..8], 0), 2.25f32.to_bits());
}

#[test]
fn halves_round_to_nearest() {
    let f = &Form("m16n8k8.row.col.f16.f16.f16.f16");
    let p = |e: i32| u32::from(f16::from_f64(2f64.powi(e)).to_bits());
    let one = p(0);
    assert_eq!(same_everywhere(f, &[p(-6)], &[p(-5)], one), one);
    assert_eq!(
        same_everywhere(f, &[p(-6), p(-13)], &[p(-5), p(-12)], one),
        one + 1
    );
    assert_eq!(same_everywhere(f, &[p(15)], &[p(1)], one), 0x7c00);
}

#[test]
fn special_values() {
    let f = &FORMS[1];
    let v = |x: f32| u32::from(bf16::from_f32(x).to_bits());
    let sum = |a: &[u32], b: &[u32], c: f32| same_everywhere(f, a, b, c.to_bits());
    let (inf, nan) = (f32::INFINITY, 0x7fff_ffff);
    assert_eq!(sum(&[v(inf)], &[v(0.0)], 1.0), nan);
    assert_eq!(sum(&[v(inf)], &[v(-2.0)], 1.0), f32::NEG_INFINITY.to_bits());
    assert_eq!(sum(&[v(inf)], &[v(-2.0)], inf), nan);
    assert_eq!(sum(&[v(f32::NAN)], &[v(1.0)], 0.0), nan);
    assert_eq!(sum(&[v(2f32.powi(127))], &[v(2.0)], 0.0), inf.to_bits());
    assert_eq!(sum(&[], &[], -0.0), 0);
    // E4M3 has no infinity: its largest exponent holds numbers.
    let f = &Form("m16n8k32.row.col.f32.e4m3.e4m3.f32");
    assert_eq!(same_everywhere(f, &[0x7e], &[0x38], 0), 448f32.to_bits());
    assert_eq!(same_everywhere(f, &[0x7f], &[0x38], 0), nan);
}

#[test]
fn integers_wrap_or_saturate() {
    let wraps = &FORMS[5];
    let saturates = &Form("m16n8k16.row.col.satfinite.s32.s8.u8.s32");
    let (a, b) = ([0x7f], [0x02]);
    let c = i32::MAX as u32 - 1;
    assert_eq!(same_everywhere(wraps, &a, &b, c), c.wrapping_add(254));
    assert_eq!(same_everywhere(saturates, &a, &b, c), i32::MAX as u32);
    // -128 * 255.
    let low = i32::MIN as u32 + 5;
    assert_eq!(
        same_everywhere(saturates, &[0x80], &[0xff], low),
        i32::MIN as u32
    );
    assert_eq!(
        same_everywhere(saturates, &[0x80], &[0xff], 0),
        -32640i32 as u32
    );
}

/// The text of an instruction that is not executed, or the error of one that is not defined.
fn refused(form: &str, registers: [usize; 3]) -> String {
    let [a, b, c] = registers.map(|n| list(0, n));
    let ptx = format!(
        ".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry k() {{\n.reg .b32 %r<20>;\n\
         mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;\n\
         mma.sync.aligned.{form} {c}, {a}, {b}, {c};\nret;\n}}\n"
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let launch = Launch::new("k", [1; 3], [32, 1, 1]);
    let error = sim.run(&launch, &Options::default()).unwrap_err();
    error.to_string()
}

#[test]
fn what_the_isa_does_not_define_is_refused() {
    for (form, registers) in [
        // Single bits have no product, and other types have nothing else.
        ("m16n8k256.row.col.s32.b1.b1.s32", [4, 2, 4]),
        ("m16n8k32.row.col.s32.s8.s8.s32.and.popc", [4, 2, 4]),
        (
            "m16n8k256.row.col.satfinite.s32.b1.b1.s32.and.popc",
            [4, 2, 4],
        ),
        // FP6 and FP4 need the kind, and the kind K = 32.
        ("m16n8k32.row.col.f32.e2m1.e2m1.f32", [4, 2, 4]),
        ("m16n8k16.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32", [2, 1, 4]),
        ("m16n8k32.row.col.kind::f8f6f4.s32.s8.s8.s32", [4, 2, 4]),
        ("m8n8k64.row.col.s32.s4.s4.s32", [2, 2, 2]),
    ] {
        let error = refused(form, registers);
        assert!(error.contains("is not defined"), "{form}: {error}");
    }
    let error = refused("m16n8k256.row.col.s32.b1.b1.s32.and", [4, 2, 4]);
    assert!(error.contains(".popc is missing"), "{error}");
}

/// An instruction with block scales. A, B and C are these codes everywhere, and only the scales differ between
/// elements: lane `l` has `scales(l)` of A and of B.
fn scaled(
    form: &str,
    a: u32,
    b: &dyn Fn(usize) -> [u32; 2],
    selectors: [&str; 2],
    scales: &dyn Fn(usize) -> [u32; 2],
) -> Result<Vec<f32>, String> {
    let [of_a, of_b] = selectors;
    // As nvcc emits it: selectors in registers, scales in braces.
    let [scales_a, scales_b] = match of_a.contains("%h") {
        true => ["{%r10}", "{%r11}"],
        false => ["%r10", "%r11"],
    };
    let ptx = format!(
        ".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry k(.param .u64 p0, .param .u64 p1) {{\n\
         .reg .b32 %r<20>; .reg .b32 %t; .reg .b64 %d<3>; .reg .b16 %h<4>;\nmov.u32 %t, %tid.x;\n\
         mov.u16 %h0, 0; mov.u16 %h1, 1; mov.u16 %h2, 2; mov.u16 %h3, 3;\n\
         ld.param.u64 %d0, [p0]; mad.wide.u32 %d0, %t, 16, %d0;\n\
         ld.param.u64 %d1, [p1]; mad.wide.u32 %d1, %t, 16, %d1;\n\
         ld.global.u32 %r10, [%d0]; ld.global.u32 %r11, [%d0+4];\n\
         ld.global.u32 %r1, [%d0+8]; ld.global.u32 %r3, [%d0+12];\n\
         mov.u32 %r0, {a}; mov.u32 %r2, 0;\n\
         mma.sync.aligned.{form} {{%r4, %r5, %r6, %r7}}, {{%r0, %r0, %r0, %r0}}, {{%r1, %r3}}, \
         {{%r2, %r2, %r2, %r2}}, {scales_a}, {of_a}, {scales_b}, {of_b};\n\
         st.global.u32 [%d1], %r4; st.global.u32 [%d1+4], %r5; st.global.u32 [%d1+8], %r6; st.global.u32 [%d1+12], %r7;\n\
         ret;\n}}\n"
    );
    let mut sim = Sim::new(Module::parse(&ptx).unwrap());
    let input: Vec<u8> = (0..32)
        .flat_map(|lane| [scales(lane), b(lane)].concat())
        .flat_map(u32::to_le_bytes)
        .collect();
    let input = sim.upload("scales", &input).unwrap();
    let out = sim.alloc("out", 32 * 16).unwrap();
    let launch = Launch::new("k", [1; 3], [32, 1, 1])
        .buffer(input)
        .buffer(out);
    sim.run(&launch, &Options::default())
        .map_err(|e| e.to_string())?;
    let words = sim.download(out).chunks_exact(4);
    Ok(words
        .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
        .collect())
}

/// Twos everywhere in E2M1: of 4 bits, and in the middle of a byte.
const FP4_TWOS: u32 = 0x4444_4444;
const FP4_TWOS_IN_BYTES: u32 = 0x1010_1010;

/// 9.7.14.3: which lane gives the scales of which row and column, by the selectors, and which byte those of which part
/// of K. All other lanes and bytes have NaNs.
#[test]
fn scales_come_from_the_selected_lanes_and_bytes() {
    let row_scale = |row: usize, part: usize| 120 + (row * 3 + part * 5) % 8;
    let column_scale = |column: usize, part: usize| 125 + (column + part * 2) % 4;
    let forms = [
        (
            "m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
            1,
            32,
        ),
        (
            "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e2m1.f32.ue8m0",
            1,
            32,
        ),
        (
            "m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
            2,
            64,
        ),
        (
            "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
            2,
            64,
        ),
        (
            "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0",
            4,
            64,
        ),
    ];
    for (form, vector, k) in forms {
        for byte in (0..4).step_by(vector) {
            for (thread_a, thread_b) in [(0, 0), (1, 1), (0, 2), (1, 3)] {
                let scales = |lane: usize| {
                    let mut of = [[0xffu8; 4]; 2];
                    let quad = lane % 4;
                    for part in 0..vector {
                        if quad / 2 == thread_a {
                            of[0][byte + part] = row_scale(lane / 4 + 8 * (quad % 2), part) as u8;
                        }
                        if quad == thread_b {
                            of[1][byte + part] = column_scale(lane / 4, part) as u8;
                        }
                    }
                    of.map(u32::from_le_bytes)
                };
                let twos = if k == 32 { FP4_TWOS_IN_BYTES } else { FP4_TWOS };
                let prefix = if thread_b > 1 { "%h" } else { "" };
                let selectors = [thread_a, thread_b]
                    .map(|thread| format!("{{{prefix}{byte}, {prefix}{thread}}}"));
                let selectors = [selectors[0].as_str(), selectors[1].as_str()];
                // All of K together, and each part of K alone. B has 64 elements of 4 bits along K. Lane t of four has
                // elements 8t to 8t + 7 in its first register, and those 32 further on in the second one.
                for only in (0..vector).map(Some).chain([None]) {
                    let b = |lane: usize| {
                        [0, 1].map(|register| {
                            let part = (32 * register + lane % 4 * 8) * vector / 64;
                            let is_there = only.is_none_or(|only| only == part);
                            if is_there { twos } else { 0 }
                        })
                    };
                    let out = scaled(form, twos, &b, selectors, &scales).unwrap();
                    for lane in 0..32 {
                        for i in 0..4 {
                            let (row, column) = place(lane, i);
                            let power = |part| row_scale(row, part) + column_scale(column, part);
                            let part = |part| 4.0 * 2f32.powi(power(part) as i32 - 254);
                            let there =
                                (0..vector).filter(|part| only.is_none_or(|only| only == *part));
                            let sum: f32 = there.map(part).sum::<f32>() * (k / vector) as f32;
                            assert_eq!(
                                out[lane * 4 + i],
                                sum,
                                "{form} {selectors:?} ({row}, {column})"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn scales_of_e4m3_multiply_exactly() {
    let form = "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    let of = |a: [u8; 4], b: [u8; 4]| {
        let scales = |_| [u32::from_le_bytes(a), u32::from_le_bytes(b)];
        scaled(
            form,
            FP4_TWOS,
            &|_| [FP4_TWOS; 2],
            ["{0, 0}", "{0, 0}"],
            &scales,
        )
    };
    // 1, 1.125, 448, 2^-9 by 1.875, 2, 1, 16: of 16 products of 4 each.
    let sum = 64.0 * (1.875 + 2.25 + 448.0 + 2f32.powi(-5));
    let out = of([0x38, 0x39, 0x7e, 0x01], [0x3f, 0x40, 0x38, 0x58]).unwrap();
    assert!(out.iter().all(|x| *x == sum), "{out:?}");
    assert!(of([0x7f, 0, 0, 0], [0; 4]).unwrap()[0].is_nan());
    assert!(
        of([0x38; 4], [0x38, 0x38, 0xb8, 0x38])
            .unwrap_err()
            .contains("top bit")
    );
}

#[test]
fn scalings_that_the_isa_does_not_define_are_refused() {
    let one = |_| [0x7f7f_7f7f; 2];
    let error = |form: &str, a: &str, b: &str| {
        scaled(form, FP4_TWOS, &|_| [FP4_TWOS; 2], [a, b], &one).unwrap_err()
    };
    let of = |words: &str| format!("m16n8k64.row.col.{words}.f32.e2m1.e2m1.f32");
    let nvf4 = of("kind::mxf4nvf4.block_scale.scale_vec::4X");
    for (form, a, b) in [
        (nvf4.clone() + ".ue4m3", "{1, 0}", "{0, 0}"),
        (nvf4.clone() + ".ue4m3", "{0, 2}", "{0, 0}"),
        (nvf4.clone() + ".ue4m3", "{0, 0}", "{0, 4}"),
        (of("kind::mxf4.block_scale") + ".ue4m3", "{0, 0}", "{0, 0}"),
        (
            of("kind::mxf4.block_scale.scale_vec::4X") + ".ue8m0",
            "{0, 0}",
            "{0, 0}",
        ),
        (
            of("kind::mxf8f6f4.block_scale") + ".ue8m0",
            "{0, 0}",
            "{0, 0}",
        ),
    ] {
        let error = error(&form, a, b);
        assert!(error.contains("is not defined"), "{form} {a} {b}: {error}");
    }
    let missing = error(
        &(of("kind::mxf4nvf4.block_scale") + ".ue4m3"),
        "{0, 0}",
        "{0, 0}",
    );
    assert!(missing.contains(".scale_vec_size is missing"), "{missing}");
    let lanes = error(&(nvf4 + ".ue4m3"), "{%t, 0}", "{0, 0}");
    assert!(lanes.contains("different selectors of scales"), "{lanes}");
}

/// An integer in memory as a type has it.
fn bytes_of(ty: &str, v: i32) -> Vec<u8> {
    match ty {
        "f16" => half::f16::from_f32(v as f32).to_le_bytes().into(),
        "bf16" => half::bf16::from_f32(v as f32).to_le_bytes().into(),
        "f32" | "tf32" => (v as f32).to_le_bytes().into(),
        "s8" => vec![v as u8],
        _ => v.to_le_bytes().into(),
    }
}

/// `wmma` from memory to memory: D = A B + C for integers, in all layouts.
#[test]
fn whole_matrices_of_a_warp() {
    let shapes = [(16, 16, 16), (32, 8, 16), (8, 32, 16), (16, 16, 8)];
    let types = [
        ["f16", "f32", "f32"],
        ["f16", "f16", "f16"],
        ["f16", "f16", "f32"],
        ["bf16", "f32", "f32"],
        ["s8", "s32", "s32"],
        ["tf32", "f32", "f32"],
    ];
    let all = shapes.into_iter().flat_map(|s| types.map(|t| (s, t)));
    for ((m, n, k), [ty, of_c, of_d]) in
        all.filter(|((.., k), [ty, ..])| (*k == 8) == (*ty == "tf32"))
    {
        // The last product names other layouts than the loads did: D is another one.
        for [la, lb, lc, swap] in [
            ["row", "col", "row", ""],
            ["col", "row", "col", ""],
            ["row", "col", "row", "swap"],
        ] {
            let [ma, mb] = if swap.is_empty() { [la, lb] } else { [lb, la] };
            let shape = Shape { m, n, k };
            let list = |matrix, name: &str, ty| {
                let registers = Fragment::of(matrix, shape, ty).unwrap().registers;
                let names: Vec<_> = (0..registers).map(|i| format!("%{name}{i}")).collect();
                format!("{{{}}}", names.join(", "))
            };
            let (a, b) = (list(Matrix::A, "a", ty), list(Matrix::B, "b", ty));
            let (c, d) = (list(Matrix::C, "c", of_c), list(Matrix::D, "d", of_d));
            let (form, multiplied) = (
                format!("m{m}n{n}k{k}"),
                match ty {
                    "f16" => format!("{of_d}.{of_c}"),
                    _ => format!("{of_d}.{ty}.{ty}.{of_c}"),
                },
            );
            let ptx = format!(
                ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p0, .param .u64 p1, \
                 .param .u64 p2, .param .u64 p3) {{\n.reg .b32 %a<9>; .reg .b32 %b<9>; .reg .b32 %c<9>; .reg .b32 %d<9>;\n\
                 .reg .b64 %p<4>;\nld.param.u64 %p0, [p0]; ld.param.u64 %p1, [p1]; ld.param.u64 %p2, [p2];\n\
                 ld.param.u64 %p3, [p3];\nwmma.load.a.sync.aligned.{la}.{form}.global.{ty} {a}, [%p0];\n\
                 wmma.load.b.sync.aligned.{lb}.{form}.{ty} {b}, [%p1], 48;\n\
                 wmma.load.c.sync.aligned.{lc}.{form}.{of_c} {c}, [%p2];\n\
                 wmma.mma.sync.aligned.{ma}.{mb}.{form}.{multiplied} {d}, {a}, {b}, {c};\n\
                 wmma.store.d.sync.aligned.{lc}.{form}.{of_d} [%p3], {d};\nret;\n}}\n"
            );
            let value =
                |r: usize, c: usize, seed: usize| ((r * 7 + c * 5 + seed + r * c) % 9) as i32 - 4;
            // A matrix with so many elements from line to line.
            let image = |ty: &str,
                         (rows, columns): (usize, usize),
                         layout: &str,
                         stride: Option<usize>,
                         seed| {
                let by_rows = layout == "row";
                let (lines, length) = if by_rows {
                    (rows, columns)
                } else {
                    (columns, rows)
                };
                let cells = (0..lines)
                    .flat_map(move |l| (0..stride.unwrap_or(length)).map(move |i| (l, i)));
                let cell = |(l, i): (usize, usize)| match (i < length, by_rows) {
                    (false, _) => bytes_of(ty, 99),
                    (_, true) => bytes_of(ty, value(l, i, seed)),
                    (_, false) => bytes_of(ty, value(i, l, seed)),
                };
                cells.flat_map(cell).collect::<Vec<u8>>()
            };
            let mut sim = Sim::new(Module::parse(&ptx).unwrap());
            let mut launch = Launch::new("k", [1; 3], [32, 1, 1]);
            for bytes in [
                image(ty, (m, k), la, None, 1),
                image(ty, (k, n), lb, Some(48), 2),
                image(of_c, (m, n), lc, None, 3),
            ] {
                launch = launch.buffer(sim.upload("x", &bytes).unwrap());
            }
            let size = bytes_of(of_d, 0).len();
            let out = sim.alloc("d", m * n * size).unwrap();
            sim.run(&launch.buffer(out), &Options::default())
                .unwrap_or_else(|e| panic!("{e}\n{ptx}"));
            let mut right = true;
            for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
                let sum: i32 = (0..k).map(|i| value(r, i, 1) * value(i, c, 2)).sum();
                let at = if lc == "row" { r * n + c } else { c * m + r };
                let got = &sim.download(out)[at * size..][..size];
                right &= got == bytes_of(of_d, sum + value(r, c, 3));
            }
            assert_eq!(right, swap.is_empty(), "{form} {ty} {la} {lb} {ma} {mb}");
        }
    }
}
