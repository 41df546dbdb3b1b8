//! The quantiser and the change of scale layouts, as nvcc compiles them, against the host's, bit for
//! bit. The hardware's conversions to E2M1 are on Blackwell only: here they run too.
//!
//! Needs nvcc (`NVCC`, or on the `PATH`); without it the tests say so and pass.

mod common;
#[path = "../../tests/quantize_data/mod.rs"]
mod quantize_data;

use common::nvcc::compile;
use half::{bf16, f16};
use nvfp4_gemv::quantize::quantize_vectors_or_nan;
use nvfp4_gemv::{ScaleLayout, VectorScale, convert_scales};
use ptx_sim::{Buffer, Launch, Module, Options, Policy, Sim};
use quantize_data::{Kind, Source, vectors};

const ARCHES: [&str; 3] = ["compute_80", "compute_90a", "compute_100a"];

/// Element types as the kernels' names and memory have them.
trait Simulated: Source {
    const LOAD: &'static str;
    fn memory(values: &[Self]) -> Vec<u8>;
}

macro_rules! simulated {
    ($type:ty, $load:literal) => {
        impl Simulated for $type {
            const LOAD: &'static str = $load;
            fn memory(values: &[Self]) -> Vec<u8> {
                values.iter().flat_map(|x| x.to_le_bytes()).collect()
            }
        }
    };
}

simulated!(f16, "7LoadF16");
simulated!(bf16, "8LoadBf16");
simulated!(f32, "7LoadF32");

/// A kernel's parameter structure.
struct Params(Vec<u8>);

impl Params {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn ints(&mut self, values: &[usize]) {
        for (i, v) in values.iter().enumerate() {
            self.put(4 * i, &(*v as i32).to_le_bytes());
        }
    }

    fn long(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }
}

/// Where global scales come from: `enum nvfp4_global`.
#[derive(Clone, Copy, Debug)]
enum Global<'a> {
    Computed,
    Shared(f32),
    PerVector(&'a [f32]),
}

/// N, K and L of vectors, and the CTAs that share one.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n: usize,
    k: usize,
    l: usize,
    ctas: usize,
    /// The grid's part along L; CTAs stride over the others.
    batches: usize,
}

const fn shape(n: usize, k: usize, l: usize, ctas: usize) -> Shape {
    Shape {
        n,
        k,
        l,
        ctas,
        batches: l,
    }
}

fn run(sim: &mut Sim, launch: &Launch, policy: Policy, written: &[Buffer]) {
    let options = Options {
        policy,
        ..Options::default()
    };
    let report = sim.run(launch, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    for &buffer in written {
        assert!(sim.fully_written(buffer), "an output is not fully written");
    }
}

fn check<T: Simulated>(
    module: &Module,
    shape: Shape,
    x: &[T],
    global: Global<'_>,
    layout: ScaleLayout,
    policy: Policy,
) {
    let Shape { n, k, l, .. } = shape;
    let (rows, blocks) = (n * l, k / 16);
    let given = match global {
        Global::Computed => None,
        Global::Shared(value) => Some(VectorScale::Shared(nvfp4_gemv::GlobalScale::Multiplier(
            value,
        ))),
        Global::PerVector(values) => Some(VectorScale::PerVector(values)),
    };
    let host = quantize_vectors_or_nan(x, rows, k, given).unwrap();

    let mut sim = Sim::new(module.clone());
    let memory = T::memory(x);
    let row_bytes = memory.len() / rows;
    let vectors = sim.upload("vectors", &memory).unwrap();
    let codes = sim.alloc("codes", rows * k / 2).unwrap();
    let scales = sim.alloc("scales", layout.bytes(n, blocks) * l).unwrap();
    let alpha = sim.alloc("alpha", rows * 4).unwrap();
    let mut p = Params(vec![0; 80]);
    let kind = match global {
        Global::Computed => 0,
        Global::Shared(value) => {
            p.put(16, &value.to_le_bytes());
            1
        }
        Global::PerVector(values) => {
            let globals = sim.upload("globals", &f32::memory(values)).unwrap();
            p.long(24, globals.address);
            2
        }
    };
    p.ints(&[n, l, blocks, kind]);
    p.long(32, vectors.address);
    p.long(40, row_bytes as u64);
    p.long(48, (row_bytes * n) as u64);
    p.long(56, codes.address);
    p.long(64, scales.address);
    p.long(72, alpha.address);
    let tiled = u8::from(layout == ScaleLayout::Tiled128x4);
    let kernel = format!(
        "_ZN5nvfp48quantizeINS_{}ELb{tiled}EEEvNS_14QuantizeParamsE",
        T::LOAD
    );
    let grid = [shape.ctas, n, shape.batches].map(|size| size as u32);
    let launch = Launch::new(&kernel, grid, [256, 1, 1]).bytes(&p.0);
    run(&mut sim, &launch, policy, &[codes, scales, alpha]);

    let linear = ScaleLayout::Linear;
    let want = convert_scales(&host.scales, linear, layout, n, k, l).unwrap();
    let globals: Vec<u8> = host.globals.iter().flat_map(|g| g.to_le_bytes()).collect();
    assert_eq!(sim.download(alpha), globals, "{kernel} {shape:?}");
    assert!(sim.download(scales) == want, "{kernel} {shape:?}: scales");
    assert!(
        sim.download(codes) == host.codes,
        "{kernel} {shape:?}: codes"
    );
}

fn same_bits<T: Simulated>() {
    let shapes = [
        shape(1, 16, 1, 1),
        shape(3, 48, 2, 1),
        shape(1, 4160, 1, 2),
        shape(16, 80, 1, 1),
        // A CTA that strides over its part.
        shape(1, 8240, 1, 1),
    ];
    for arch in ARCHES {
        let Some(ptx) = compile("quantize", arch) else {
            return;
        };
        assert_eq!(
            ptx.contains("cvt.rn.satfinite.e2m1x2.f32"),
            arch == "compute_100a"
        );
        assert_eq!(
            ptx.contains("cvt.rn.satfinite.e4m3x2.f32"),
            arch != "compute_80"
        );
        let module = Module::parse(&ptx).unwrap();
        for (seed, shape) in shapes.into_iter().enumerate() {
            for (i, kind) in Kind::ALL.into_iter().enumerate() {
                let x: Vec<T> = vectors(kind, shape.n * shape.l, shape.k, seed as u64);
                let layout = ScaleLayout::ALL[(seed + i) % 2];
                let policy = Policy::Random(seed as u64);
                check(&module, shape, &x, Global::Computed, layout, policy);
            }
        }
        for value in [0.37, 1e38, 1e-45] {
            let small = shape(2, 64, 1, 1);
            let x: Vec<T> = vectors(Kind::Zeros, 2, 64, 9);
            for layout in ScaleLayout::ALL {
                check(
                    &module,
                    small,
                    &x,
                    Global::Shared(value),
                    layout,
                    Policy::Fair,
                );
                let each = Global::PerVector(&[value, f32::NAN]);
                check(&module, small, &x, each, layout, Policy::Fair);
            }
        }
    }
}

#[test]
fn f16_vectors() {
    same_bits::<f16>();
}

#[test]
fn bf16_vectors() {
    same_bits::<bf16>();
}

#[test]
fn f32_vectors() {
    same_bits::<f32>();
}

/// Batches after each other in one CTA, whose warps may be a batch apart.
#[test]
fn many_batches() {
    for arch in ARCHES {
        let Some(ptx) = compile("quantize", arch) else {
            return;
        };
        let module = Module::parse(&ptx).unwrap();
        for seed in 0..8 {
            let shape = Shape {
                batches: 1,
                ..shape(1, 2048, 6, 1)
            };
            let x: Vec<f16> = vectors(Kind::Spread, 6, 2048, seed);
            let layout = ScaleLayout::ALL[seed as usize % 2];
            let policy = Policy::Random(seed);
            check(&module, shape, &x, Global::Computed, layout, policy);
        }
    }
}

#[test]
fn scales_change_layout_both_ways() {
    let (linear, tiled) = (ScaleLayout::Linear, ScaleLayout::Tiled128x4);
    for arch in ARCHES {
        let Some(ptx) = compile("relayout", arch) else {
            return;
        };
        let module = Module::parse(&ptx).unwrap();
        for (m, k, l) in [
            (1, 16, 2),
            (131, 80, 1),
            (129, 528, 2),
            (128, 1024, 1),
            (37, 576, 1),
        ] {
            let mut source = vec![0; linear.bytes(m, k / 16) * l];
            fastrand::Rng::with_seed(m as u64).fill(&mut source);
            let in_tiles = convert_scales(&source, linear, tiled, m, k, l).unwrap();
            for (to_tiled, from, want) in [(1, &source, &in_tiles), (0, &in_tiles, &source)] {
                // One CTA strides over all tiles; as many as tiles; more.
                for ctas in [1, 3, 9] {
                    let mut sim = Sim::new(module.clone());
                    let from = sim.upload("source", from).unwrap();
                    let out = sim.alloc("destination", want.len()).unwrap();
                    let mut p = Params(vec![0; 32]);
                    p.ints(&[m, l, k / 16]);
                    p.long(16, from.address);
                    p.long(24, out.address);
                    let kernel = format!("_ZN5nvfp48relayoutILb{to_tiled}EEEvNS_14RelayoutParamsE");
                    let launch = Launch::new(&kernel, [ctas, 1, 1], [256, 1, 1]).bytes(&p.0);
                    run(&mut sim, &launch, Policy::Random(7), &[out]);
                    assert!(sim.download(out) == want, "{kernel} {m} {k} {l}");
                }
            }
        }
    }
}
