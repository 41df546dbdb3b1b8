//! Launch specifications with expected results of the kernel, and random contents.

use std::path::Path;

use ptx_sim::launch::{BufferType, LaunchSpec};
use ptx_sim::{Module, Options, SimError};
use serde_json::{Value, json};

/// d[m][n] = the sum over k of a[m][k] * b[n][k] in f32: a CTA a row, a thread a column.
const PTX: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n\
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 d, .param .u32 k) {\n\
 .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .f32 %f<4>;\n\
 ld.param.u64 %q1, [a]; ld.param.u64 %q2, [b]; ld.param.u64 %q3, [d]; ld.param.u32 %r1, [k];\n\
 mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %ntid.x;\n\
 mad.lo.u32 %r5, %r2, %r4, %r3; mul.wide.u32 %q4, %r5, 4; add.s64 %q3, %q3, %q4;\n\
 mul.lo.u32 %r6, %r2, %r1; mul.wide.u32 %q5, %r6, 4; add.s64 %q1, %q1, %q5;\n\
 mul.lo.u32 %r7, %r3, %r1; mul.wide.u32 %q6, %r7, 4; add.s64 %q2, %q2, %q6;\n\
 mov.f32 %f1, 0f00000000; mov.u32 %r8, 0;\n\
NEXT: ld.global.f32 %f2, [%q1]; ld.global.f32 %f3, [%q2]; fma.rn.f32 %f1, %f2, %f3, %f1;\n\
 add.s64 %q1, %q1, 4; add.s64 %q2, %q2, 4; add.u32 %r8, %r8, 1;\n\
 setp.lt.u32 %p, %r8, %r1; @%p bra NEXT;\n st.global.f32 [%q3], %f1;\n ret;\n}\n";

const M: u32 = 5;
const N: u32 = 8;
const K: u32 = 16;

fn operand(seed: u64, rows: u32, values: Value) -> Value {
    json!({"contents": {"random": {"type": "f32", "count": rows * K, "seed": seed, "values": values}}})
}

fn spec(values: Value, expect: Value) -> Value {
    json!({
        "grid": [M, 1, 1], "block": [N, 1, 1],
        "buffers": {
            "a": operand(1, M, values.clone()),
            "b": operand(2, N, values),
            "d": {"size": M * N * 4, "expect": expect},
        },
        "params": [{"buffer": "a"}, {"buffer": "b"}, {"buffer": "d"}, {"u32": K}],
    })
}

fn matmul(alpha: f64) -> Value {
    json!({"matmul": {"m": M, "n": N, "k": K, "alpha": alpha,
        "a": {"buffer": "a", "type": "f32"}, "b": {"buffer": "b", "type": "f32"}}})
}

/// Runs a specification and compares; the output's values.
fn run(spec: &Value) -> Result<Vec<f64>, SimError> {
    run_below(Path::new("."), spec)
}

/// Runs a specification with files below a folder, and compares; the output's values.
fn run_below(base: &Path, spec: &Value) -> Result<Vec<f64>, SimError> {
    let spec = LaunchSpec::parse(&spec.to_string())?;
    let mut p = spec.prepare(Module::parse(PTX)?, "k", base)?;
    let expectations = spec.expectations(&p, base)?;
    p.sim.run(&p.launch, &Options::default())?;
    expectations.iter().try_for_each(|e| e.check(&p.sim))?;
    Ok(BufferType::F32.read(p.sim.download(p.buffers["d"])))
}

fn integers() -> Value {
    json!({"integers": [-9, 9]})
}

#[test]
fn a_product_is_computed_from_the_inputs() {
    let exact = json!({"type": "f32", "values": matmul(1.0)});
    let d = run(&spec(integers(), exact)).unwrap();
    assert!(d.iter().any(|v| *v != 0.0) && d.iter().all(|v| v.fract() == 0.0));
    // Expected numbers that are given, not computed: one of them is wrong.
    let numbers = |d: &[f64]| json!({"type": "f32", "values": {"numbers": d}});
    run(&spec(integers(), numbers(&d))).unwrap();
    let mut wrong = d.clone();
    wrong[11] += 1.0;
    let e = run(&spec(integers(), numbers(&wrong))).unwrap_err();
    let SimError::Mismatch(m) = &e else {
        panic!("{e}")
    };
    let found = (
        m.buffer.as_str(),
        m.index,
        m.want,
        m.got,
        m.wrong,
        m.of,
        m.worst,
    );
    assert_eq!(found, ("d", 11, wrong[11], d[11], 1, (M * N) as usize, 1.0));
    assert!(e.to_string().contains("element 11"), "{e}");
}

/// Codes of two-bit significands, scales of four bits, as bytes that a counter gives.
fn bytes(count: usize, factor: usize, most: usize) -> Vec<u8> {
    (0..count).map(|i| (i * factor % most) as u8).collect()
}

fn hex(bytes: &[u8]) -> Value {
    let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    json!({"contents": {"hex": text}})
}

/// Linear scales in the 128x4 layout, with `fill` where there are none: by its definition, in the order of its bytes.
fn tiled(linear: &[u8], blocks: usize, fill: u8) -> Vec<u8> {
    let mut all = Vec::new();
    for rows in (0..linear.len() / blocks).step_by(128) {
        for first in (0..blocks).step_by(4) {
            for lane in 0..32 {
                for quarter in 0..4 {
                    for block in first..first + 4 {
                        let row = rows + quarter * 32 + lane;
                        let scale = linear.get(row * blocks + block).copied();
                        all.push(scale.filter(|_| block < blocks).unwrap_or(fill));
                    }
                }
            }
        }
    }
    all
}

/// 150 rows of A are more than a tile. 72 elements are five blocks, in two tiles; the last block has eight.
const ROWS: usize = 150;
const LONG: usize = 72;
const BLOCKS: usize = 5;

/// A product of NVFP4 operands that the kernel gets decoded: codes and scales are in buffers of their own.
fn scaled(of_a: Value, of_b: Value) -> Value {
    let [a, b] = [(ROWS, 7, 5), (N as usize, 11, 3)].map(|(rows, codes, scales)| {
        let codes = bytes(rows * LONG / 2, codes, 256);
        let scales: Vec<u8> = bytes(rows * BLOCKS, scales, 16)
            .iter()
            .map(|s| s + 0x30)
            .collect();
        let of_row = |i: usize| i / LONG * BLOCKS + i % LONG / 16;
        let values = BufferType::E2m1.read(&codes).into_iter().enumerate();
        let values: Vec<f64> = values
            .map(|(i, v)| v * BufferType::Ue4m3.value(scales[of_row(i)].into()))
            .collect();
        (codes, scales, values)
    });
    let f32s = |values: &[f64]| json!({"contents": {"f32": values}});
    json!({
        "grid": [ROWS, 1, 1], "block": [N, 1, 1],
        "buffers": {
            "a": f32s(&a.2), "b": f32s(&b.2),
            "codes_a": hex(&a.0), "codes_b": hex(&b.0),
            "linear_a": hex(&a.1), "linear_b": hex(&b.1),
            // Scales of no row or block are NaN.
            "tiled_a": hex(&tiled(&a.1, BLOCKS, 0x7f)), "tiled_b": hex(&tiled(&b.1, BLOCKS, 0x7f)),
            "d": {"size": ROWS * N as usize * 4, "expect": {"type": "f32", "relative": 1e-6, "absolute": 1e-3,
                "values": {"matmul": {"m": ROWS, "n": N, "k": LONG,
                    "a": {"buffer": "codes_a", "type": "e2m1", "scales": of_a},
                    "b": {"buffer": "codes_b", "type": "e2m1", "scales": of_b}}}}},
        },
        "params": [{"buffer": "a"}, {"buffer": "b"}, {"buffer": "d"}, {"u32": LONG}],
    })
}

#[test]
fn operands_with_block_scales() {
    let of = |buffer: &str, layout: &str| json!({"buffer": buffer, "type": "ue4m3", "block": 16, "layout": layout});
    let d = run(&scaled(of("linear_a", "linear"), of("tiled_b", "128x4"))).unwrap();
    assert!(d.iter().any(|v| *v != 0.0));
    run(&scaled(of("tiled_a", "128x4"), of("linear_b", "linear"))).unwrap();
    // Linear where nothing is said.
    let unsaid = json!({"buffer": "linear_a", "type": "ue4m3", "block": 16});
    run(&scaled(unsaid.clone(), of("tiled_b", "128x4"))).unwrap();
    let fails = |of_a: Value, text: &str| {
        let e = run(&scaled(of_a, of("linear_b", "linear")))
            .unwrap_err()
            .to_string();
        assert!(e.contains(text), "{e}");
    };
    // Other scales, others' blocks, another layout: not the kernel's product.
    fails(of("linear_b", "linear"), "no scale of row 8, block 0");
    fails(of("linear_a", "128x4"), "has no scale of row");
    fails(of("tiled_a", "linear"), "differ");
    let with = |name: &str, value: Value| {
        let mut scales = unsaid.clone();
        scales[name] = value;
        scales
    };
    fails(with("block", json!(32)), "differ");
    fails(with("block", json!(0)), "one element or more");
    fails(
        with("type", json!("f16")),
        "scales are bytes, and F16 is not",
    );
    fails(with("buffer", json!("c")), "there is no buffer `c`");
    fails(with("layout", json!("4x128")), "4x128");
    let mut poisoned = scaled(unsaid.clone(), of("linear_b", "linear"));
    poisoned["buffers"]["linear_a"] = json!({"size": ROWS * BLOCKS});
    let e = run(&poisoned).unwrap_err().to_string();
    assert!(
        e.contains("the scale of row 0, block 0 in buffer `linear_a` was never written"),
        "{e}"
    );
}

#[test]
fn tolerances() {
    let with = |alpha: f64, relative: f64, absolute: f64| {
        let values = matmul(alpha);
        let e =
            json!({"type": "f32", "relative": relative, "absolute": absolute, "values": values});
        run(&spec(integers(), e))
    };
    assert!(with(1.001, 0.0, 0.0).is_err());
    assert!(with(1.001, 0.01, 0.0).is_ok());
    assert!(with(1.001, 0.0, 81.0 * f64::from(K) * 0.001).is_ok());
    assert!(with(2.0, 0.01, 0.0).is_err());
}

#[test]
fn bytes_that_nothing_wrote_are_no_result() {
    let mut s = spec(integers(), json!({"type": "f32", "values": matmul(1.0)}));
    s["grid"] = json!([M - 1, 1, 1]);
    let first = ((M - 1) * N) as usize;
    let unwritten =
        |e: &SimError| matches!(e, SimError::Unwritten { index, .. } if *index == first);
    let e = run(&s).unwrap_err();
    assert!(
        unwritten(&e) && e.to_string().contains("never written"),
        "{e}"
    );
    // Bytes that nothing wrote read as zeros, and are no zeros.
    s["buffers"]["a"]["contents"] = json!({"fill": 0});
    s["buffers"]["a"]["size"] = json!(M * K * 4);
    assert!(unwritten(&run(&s).unwrap_err()));
    s["grid"] = json!([M, 1, 1]);
    run(&s).unwrap();
    // There is no product of such bytes, either.
    s["buffers"]["a"] = json!({"size": M * K * 4});
    let e = run(&s).unwrap_err().to_string();
    assert!(e.contains("some of buffer `a` was never written"), "{e}");
}

#[test]
fn nothing_is_near_infinity() {
    let numbers = |value: f64| {
        // JSON has no infinities: a product overflows to them.
        let mut s = spec(json!({"integers": [1, 1]}), Value::Null);
        s["buffers"]["d"]["expect"] =
            json!({"type": "f32", "relative": 0.5, "absolute": 1, "values": matmul(value)});
        run(&s)
    };
    numbers(1.0).unwrap();
    let e = numbers(1e308).unwrap_err();
    assert!(
        matches!(&e, SimError::Mismatch(m) if m.want == f64::INFINITY && m.got == 16.0),
        "{e}"
    );
}

#[test]
fn other_elements_than_the_buffer_has() {
    let refused = |expect: Value, text: &str| {
        let e = run(&spec(integers(), expect)).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
    };
    for count in [0, 1, 39, 41] {
        let values = json!({"numbers": vec![0.0; count]});
        let text = format!("{count} of F32 are not the 160 bytes");
        refused(json!({"type": "f32", "values": values}), &text);
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("launch_expect");
    std::fs::create_dir_all(&dir).unwrap();
    for size in [0, 159] {
        let file = size.to_string();
        std::fs::write(dir.join(&file), vec![0; size]).unwrap();
        let text = format!("has {size} bytes, the buffer 160");
        let expect = json!({"type": "f32", "values": {"file": file}});
        let e = run_below(&dir, &spec(integers(), expect)).unwrap_err();
        assert!(e.to_string().contains(&text), "{e}");
    }
    for name in ["absolute", "relative"] {
        let text = format!("{name} is -1: no tolerance");
        refused(
            json!({"type": "f32", name: -1, "values": matmul(1.0)}),
            &text,
        );
    }
    // Sizes are refused before a product is computed.
    let mut huge = matmul(1.0);
    for n in ["m", "n", "k"] {
        huge["matmul"][n] = json!(u64::MAX);
    }
    refused(
        json!({"type": "f32", "values": huge}),
        "are not the 160 bytes",
    );
    let mut none = matmul(1.0);
    none["matmul"]["k"] = json!(0);
    refused(json!({"type": "f32", "values": none}), "products");
}

#[test]
fn random_contents_have_their_type_and_seed() {
    let bytes = |spec: Value| -> Result<Vec<u8>, SimError> {
        let s = json!({"grid": [1, 1, 1], "block": [1, 1, 1], "buffers": {"x": {"contents": {"random": spec}}}});
        let s = LaunchSpec::parse(&s.to_string())?;
        let p = s.prepare(Module::parse(PTX)?, "k", Path::new("."))?;
        Ok(p.sim.download(p.buffers["x"]).to_vec())
    };
    let of = |t: &str, seed: u64, values: Value| {
        bytes(json!({"type": t, "count": 1000, "seed": seed, "values": values}))
    };
    let types = [
        ("f64", BufferType::F64, 8000),
        ("f32", BufferType::F32, 4000),
        ("f16", BufferType::F16, 2000),
        ("bf16", BufferType::Bf16, 2000),
        ("e4m3", BufferType::E4m3, 1000),
        ("e5m2", BufferType::E5m2, 1000),
        ("e2m1", BufferType::E2m1, 500),
        ("ue4m3", BufferType::Ue4m3, 1000),
        ("i8", BufferType::I8, 1000),
        ("u32", BufferType::U32, 4000),
        ("i32", BufferType::I32, 4000),
    ];
    for (name, element, size) in types {
        let small = of(name, 1, json!({"integers": [0, 2]})).unwrap();
        assert_eq!(small.len(), size, "{name}");
        let values = element.read(&small);
        for wanted in [0.0, 1.0, 2.0] {
            assert!(values.contains(&wanted), "{name}");
        }
        assert!(values.iter().all(|v| [0.0, 1.0, 2.0].contains(v)), "{name}");
        let full = of(name, 1, json!("full")).unwrap();
        assert!(element.read(&full).iter().all(|v| v.is_finite()), "{name}");
        assert_eq!(of(name, 1, json!("full")).unwrap(), full, "{name}");
        assert_ne!(of(name, 2, json!("full")).unwrap(), full, "{name}");
    }
    let e = of("e2m1", 1, json!({"integers": [0, 5]}))
        .unwrap_err()
        .to_string();
    assert!(e.contains("E2m1 has no 5"), "{e}");
    let e = of("f32", 1, json!({"integers": [3, 2]}))
        .unwrap_err()
        .to_string();
    assert!(e.contains("from 3 to 2"), "{e}");
    let odd = json!({"type": "e2m1", "count": 3, "values": "full"});
    assert!(bytes(odd).unwrap_err().to_string().contains("whole bytes"));
    let huge = json!({"type": "f64", "count": 1u64 << 60, "values": "full"});
    assert!(bytes(huge).is_err());
}

#[test]
fn expectations_that_make_no_sense() {
    let refused = |expect: Value, text: &str| {
        let e = run(&spec(integers(), expect)).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
    };
    let mut other = matmul(1.0);
    other["matmul"]["a"]["buffer"] = json!("c");
    refused(
        json!({"type": "f32", "values": other}),
        "there is no buffer `c`",
    );
    let mut large = matmul(1.0);
    large["matmul"]["k"] = json!(17);
    refused(
        json!({"type": "f32", "values": large}),
        "is no 5 x 17 of F32",
    );
    refused(
        json!({"type": "f64", "values": matmul(1.0)}),
        "are not the 160 bytes",
    );
    refused(json!({"type": "f7", "values": matmul(1.0)}), "f7");
    let file = json!({"type": "f32", "values": {"file": "no/such/file"}});
    refused(file, "no/such/file");
}
