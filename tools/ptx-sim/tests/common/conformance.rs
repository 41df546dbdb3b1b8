//! Launches of the kernels of `conformance/`: specifications with inputs from a seed, and the exact product as what D
//! must be.
//!
//! Inputs are small integers and halves, and scales whose products are small integers: every sum of magnitudes stays
//! below 2^24 units, so that an f32 result is exact in any order.

use std::path::Path;

use ptx_sim::launch::{BufferType, Expectation, LaunchSpec};
use ptx_sim::sched::split_mix;
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError};
use serde_json::{Value, json};

pub(crate) fn module(entry: &str) -> Module {
    let path = format!("{}/conformance/ptx/{entry}.ptx", env!("CARGO_MANIFEST_DIR"));
    Module::parse(&std::fs::read_to_string(&path).expect(&path)).expect(entry)
}

/// A launch of a kernel.
pub(crate) struct Case {
    pub(crate) name: String,
    entry: &'static str,
    spec: Value,
}

/// A case in the simulator's memory.
pub(crate) struct Loaded {
    pub(crate) sim: Sim,
    pub(crate) launch: Launch,
    pub(crate) out: Buffer,
    expected: Vec<Expectation>,
}

impl Loaded {
    pub(crate) fn new(module: &Module, case: &Case) -> Self {
        let spec = LaunchSpec::parse(&case.spec.to_string()).expect("a specification");
        let prepared = spec.prepare(module.clone(), case.entry, Path::new("."));
        let prepared = prepared.expect(case.entry);
        let expected = spec.expectations(&prepared, Path::new("."));
        Self {
            expected: expected.expect("a product"),
            out: prepared.buffers["d"],
            sim: prepared.sim,
            launch: prepared.launch,
        }
    }

    /// Runs a program; says what is wrong with its output.
    pub(crate) fn run(
        &self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<(Report, Option<String>), SimError> {
        let mut sim = self.sim.clone();
        let report = sim.run_program(program, launch, options, None)?;
        let mut expected = self.expected.iter();
        let wrong = expected.find_map(|e| e.check(&sim).err());
        let wrong = wrong.map(|error| error.to_string());
        // Sums of terms of both signs are +0.
        let negative = || sim.words(self.out).contains(&(-0f32).to_bits());
        let wrong = wrong.or_else(|| negative().then(|| "a zero is negative".into()));
        Ok((report, wrong))
    }
}

/// A buffer of random elements.
fn random(element: &str, count: usize, seed: u64, values: Value) -> Value {
    json!({"contents": {"random": {"type": element, "count": count, "seed": seed, "values": values}}})
}

fn hex(bytes: impl IntoIterator<Item = u8>) -> Value {
    let text: String = bytes.into_iter().map(|b| format!("{b:02x}")).collect();
    json!({"contents": {"hex": text}})
}

/// Scales of a matrix in the 128x4 layout, each for so many elements of a row. Exponents of a block of K move from one
/// operand to the other: many occur, and products of two stay small integers.
fn scales(seed: u64, operand: usize, rows: usize, blocks: usize, nvfp4: bool) -> Value {
    let most = if nvfp4 { 5 } else { 20 };
    let shift = |block: usize| {
        let mut state = seed << 32 | block as u64;
        (split_mix(&mut state) % (2 * most + 1)) as i32 - most as i32
    };
    let direction = [1, -1][operand];
    let mut state = seed * 2 + operand as u64 + 1000;
    let all = (0..rows * blocks).map(|at| {
        let shift = direction * shift(at / 512 % (blocks / 4) * 4 + at % 4);
        let drawn = split_mix(&mut state);
        match nvfp4 {
            // Two to fourteen: a product of two scales is a multiple of four.
            true => {
                let scale = f64::from(2 * (1 + drawn as u32 % 7)) * 2f64.powi(shift);
                BufferType::Ue4m3
                    .pattern(scale)
                    .expect("three bits and an exponent") as u8
            }
            false => (127 + (drawn % 4) as i32 + shift) as u8,
        }
    });
    hex(all)
}

/// A product of operands that are `[rows][k]`, in buffers of their names.
fn product(
    [m, n, k]: [usize; 3],
    operands: [(&str, &str); 2],
    scaled: Option<(&str, usize)>,
) -> Value {
    let [a, b] = [("sfa", operands[0]), ("sfb", operands[1])].map(|(scales, (buffer, element))| {
        let mut operand = json!({"buffer": buffer, "type": element});
        if let Some((element, block)) = scaled {
            operand["scales"] =
                json!({"buffer": scales, "type": element, "block": block, "layout": "128x4"});
        }
        operand
    });
    let values = json!({"matmul": {"m": m, "n": n, "k": k, "a": a, "b": b}});
    json!({"size": 4 * m * n, "expect": {"type": "f32", "values": values}})
}

/// A case of a kernel whose operands are pointers, a CTA for every 128 rows.
fn pointers(
    entry: &'static str,
    seed: u64,
    [m, n, k]: [usize; 3],
    [a, b]: [(&str, Value); 2],
    scaled: Option<(&str, usize)>,
) -> Case {
    let ctas = m / 128;
    let mut spec = json!({
        "grid": [ctas, 1, 1], "block": [128, 1, 1], "cluster": [ctas, 1, 1],
        "buffers": {
            "a": random(a.0, m * k, 2 * seed, a.1),
            "b": random(b.0, n * k, 2 * seed + 1, b.1),
            "d": product([m, n, k], [("a", a.0), ("b", b.0)], scaled),
        },
        "params": [{"buffer": "a"}, {"buffer": "b"}, {"buffer": "d"}],
    });
    if let Some((element, block)) = scaled {
        for (operand, name) in ["sfa", "sfb"].into_iter().enumerate() {
            let all = scales(seed, operand, 128, k / block, element == "ue4m3");
            spec["buffers"][name] = all;
        }
        spec["params"] = json!(["a", "b", "sfa", "sfb", "d"].map(|of| json!({"buffer": of})));
    }
    Case {
        name: entry.into(),
        entry,
        spec,
    }
}

fn integers(most: i32) -> Value {
    json!({"integers": [-most, most]})
}

pub(crate) fn mma_bf16(seed: u64) -> Case {
    let bf16 = || ("bf16", integers(120));
    pointers("mma_bf16", seed, [128, 16, 64], [bf16(), bf16()], None)
}

pub(crate) fn mma_two_cta(seed: u64) -> Case {
    let bf16 = || ("bf16", integers(120));
    pointers("mma_two_cta", seed, [256, 64, 64], [bf16(), bf16()], None)
}

pub(crate) fn mma_mxf4nvf4(seed: u64) -> Case {
    let e2m1 = || ("e2m1", json!("full"));
    let scaled = Some(("ue4m3", 16));
    pointers(
        "mma_mxf4nvf4",
        seed,
        [128, 16, 256],
        [e2m1(), e2m1()],
        scaled,
    )
}

pub(crate) fn mma_mxf8f6f4(seed: u64) -> Case {
    let operands = [("e4m3", integers(15)), ("e5m2", integers(8))];
    pointers(
        "mma_mxf8f6f4",
        seed,
        [128, 16, 128],
        operands,
        Some(("ue8m0", 32)),
    )
}

/// `row_blocks` CTAs of 128 rows, `n` <= 16 vectors, `k` a multiple of 256.
pub(crate) fn mma_pipelined(seed: u64, row_blocks: usize, n: usize, k: usize) -> Case {
    let (m, mut state) = (row_blocks * 128, seed);
    let x: Vec<u8> = (0..n * k / 2)
        .map(|_| split_mix(&mut state) as u8)
        .collect();
    // Rows past the last are the zeros that TMA fills in.
    let with_zeros = x.iter().copied().chain(vec![0; (16 - n) * k / 2]);
    let map = |buffer: &str, rows: usize, of_box: usize| {
        json!({"tensor_map": {"buffer": buffer, "type": "UINT8", "dims": [k / 2, rows], "strides": [k / 2],
            "box": [128, of_box], "swizzle": "128B"}})
    };
    let spec = json!({
        "grid": [row_blocks, 1, 1], "block": [192, 1, 1], "cluster": [1, 1, 1], "shared": 3 * 22528 + 1024,
        "buffers": {
            "w": random("e2m1", m * k, seed + 100, json!("full")),
            "x": hex(x.iter().copied()),
            "all of x": hex(with_zeros),
            "sfa": scales(seed, 0, m, k / 16, true),
            "sfb": scales(seed, 1, 128, k / 16, true),
            "d": product([m, 16, k], [("w", "e2m1"), ("all of x", "e2m1")], Some(("ue4m3", 16))),
        },
        "params": [
            map("w", m, 128), map("x", n, 16), {"buffer": "sfa"}, {"buffer": "sfb"}, {"buffer": "d"}, {"u32": k},
        ],
    });
    Case {
        name: format!("mma_pipelined_m{m}_n{n}_k{k}"),
        entry: "mma_pipelined",
        spec,
    }
}
