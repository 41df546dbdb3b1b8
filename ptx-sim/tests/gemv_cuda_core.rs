//! The project's CUDA-core kernels, as nvcc compiles them, against an f64 computation.
//!
//! Needs nvcc (`NVCC`, or on the `PATH`); without it the tests say so and pass.

mod gemv;

use gemv::{Params, compile, layout};
use half::{bf16, f16};
use ptx_sim::softfloat::{E2M1, E4M3};
use ptx_sim::{Buffer, Launch, Module, Options, Policy, Sim};

const ARCHES: [&str; 3] = ["compute_80", "compute_90a", "compute_100a"];
const BLOCK: usize = 16;

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Activation {
    Nvfp4,
    F16,
    Bf16,
    F32,
}

struct Case {
    activation: Activation,
    m: usize,
    n: usize,
    k: usize,
    batches: usize,
    blocks_per_load: usize,
    warps: usize,
    k_split: usize,
    tiled: bool,
    /// CTAs that share a batch's rows, for the integer-dot kernel; `None` for the direct one.
    ctas: Option<usize>,
    /// Powers of two as scales and small integers as values: every sum is exact in f32.
    exact: bool,
}

impl Case {
    /// Row tiles of a batch: `row_tiles` in `cuda_core.cuh`.
    fn tiles(&self) -> usize {
        let rows = if self.ctas.is_some() || self.n <= 2 {
            4
        } else {
            2
        };
        gemv::row_tiles(self.m, self.tiled, rows)
    }
}

/// Bytes of scales, given row and block, in either layout.
fn scale_bytes(
    rows: usize,
    blocks: usize,
    tiled: bool,
    scale: impl Fn(usize, usize) -> u8,
) -> Vec<u8> {
    if !tiled {
        return (0..rows * blocks)
            .map(|i| scale(i / blocks, i % blocks))
            .collect();
    }
    let atoms = blocks.div_ceil(4);
    let mut out = vec![0; rows.div_ceil(128) * atoms * 512];
    for r in 0..rows {
        for b in 0..blocks {
            let at = (r / 128 * atoms + b / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + b % 4;
            out[at] = scale(r, b);
        }
    }
    out
}

struct Problem {
    sim: Sim,
    params: Vec<u8>,
    output: Buffer,
    reference: Vec<f64>,
    magnitude: Vec<f64>,
}

fn problem(module: &Module, c: &Case) -> Problem {
    let mut r = Random(c.m as u64 * 31 + c.k as u64 + c.n as u64);
    let blocks = c.k / BLOCK;
    let mut code = || r.next(16) as u8;
    let weights: Vec<u8> = (0..c.batches * c.m * c.k).map(|_| code()).collect();
    let mut r = Random(99);
    let mut scale = |n: usize| -> Vec<u8> {
        (0..n)
            .map(|_| {
                if c.exact {
                    [0x30, 0x38, 0x40][r.next(3) as usize]
                } else {
                    1 + r.next(0x7d) as u8
                }
            })
            .collect()
    };
    let w_scales = scale(c.batches * c.m * blocks);
    let x_scales = scale(c.batches * c.n * blocks);
    let mut r = Random(7);
    // Vector elements as bytes and as numbers.
    let mut x_bytes = Vec::new();
    let mut x = Vec::new();
    let mut nibble = None;
    for _ in 0..c.batches * c.n * c.k {
        let v = if c.exact {
            r.next(9) as f32 - 4.0
        } else {
            r.next(20001) as f32 / 1000.0 - 10.0
        };
        match c.activation {
            Activation::Nvfp4 => {
                let code = r.next(16) as u8;
                x.push(E2M1.to_f64(code.into()));
                match nibble.take() {
                    None => nibble = Some(code),
                    Some(low) => x_bytes.push(low | code << 4),
                }
            }
            Activation::F16 => {
                x.push(f16::from_f32(v).to_f64());
                x_bytes.extend(f16::from_f32(v).to_le_bytes());
            }
            Activation::Bf16 => {
                x.push(bf16::from_f32(v).to_f64());
                x_bytes.extend(bf16::from_f32(v).to_le_bytes());
            }
            Activation::F32 => {
                x.push(v.into());
                x_bytes.extend(v.to_le_bytes());
            }
        }
    }
    let alpha = if c.exact { 0.5f32 } else { 0.37 };
    let (mut reference, mut magnitude) = (Vec::new(), Vec::new());
    for b in 0..c.batches {
        for n in 0..c.n {
            for m in 0..c.m {
                let (mut sum, mut size) = (0.0, 0.0);
                for k in 0..c.k {
                    let (wi, xi) = ((b * c.m + m) * c.k + k, (b * c.n + n) * c.k + k);
                    let mut p = E2M1.to_f64(weights[wi].into()) * x[xi];
                    p *= E4M3.to_f64(w_scales[wi / BLOCK].into());
                    if c.activation == Activation::Nvfp4 {
                        p *= E4M3.to_f64(x_scales[xi / BLOCK].into());
                    }
                    sum += p;
                    size += p.abs();
                }
                reference.push(sum * f64::from(alpha));
                magnitude.push(size * f64::from(alpha));
            }
        }
    }
    let mut sim = Sim::new(module.clone());
    let packed: Vec<u8> = weights.chunks(2).map(|p| p[0] | p[1] << 4).collect();
    let codes = sim.upload("codes", &packed).unwrap();
    let per_batch = |values: &[u8], rows: usize| -> Vec<u8> {
        values
            .chunks(rows * blocks)
            .flat_map(|v| scale_bytes(rows, blocks, c.tiled, |r, b| v[r * blocks + b]))
            .collect()
    };
    let scales = sim.upload("scales", &per_batch(&w_scales, c.m)).unwrap();
    let vectors = sim.upload("vectors", &x_bytes).unwrap();
    let x_scale_bytes = per_batch(&x_scales, c.n);
    let x_scale_batch = x_scale_bytes.len() / c.batches;
    let vector_scales = sim.upload("vector scales", &x_scale_bytes).unwrap();
    let output = sim.alloc("output", c.batches * c.m * c.n * 4).unwrap();

    let vector_row = x_bytes.len() / (c.batches * c.n);
    let scale_layout = layout(blocks, blocks, c.tiled);
    let params = Params {
        m: c.m,
        n: c.n,
        batches: c.batches,
        blocks,
        k_split: c.k_split,
        row_step: if c.tiled { 32 } else { 1 },
        tiles_per_cta: c.tiles() / c.ctas.unwrap_or(1),
        tiles_left: c.tiles() % c.ctas.unwrap_or(1),
        codes: codes.address,
        scales: scales.address,
        scale_layout,
        code_row: c.k / 2,
        vectors: vectors.address,
        vector_row,
        vector_batch: vector_row * c.n,
        vector_scales: vector_scales.address,
        vector_scale_layout: scale_layout,
        vector_scale_batch: x_scale_batch,
        alpha,
        output: output.address,
        output_batch: c.n * c.m,
        output_type: 2, // f32
        ..Params::default()
    };
    Problem {
        sim,
        params: params.bytes(),
        output,
        reference,
        magnitude,
    }
}

fn check(module: &Module, activation: u32, c: &Case, policy: Policy) {
    let vectors = c.n.next_power_of_two();
    let kernel = match c.ctas {
        None => format!("_ZN5nvfp414gemv_cuda_coreILi{activation}ELi{vectors}"),
        Some(_) => format!("_ZN5nvfp410gemv_nvfp4ILi{vectors}"),
    };
    let kernel = format!("{kernel}ELi{}EEEvNS_14CudaCoreParamsE", c.blocks_per_load);
    let mut p = problem(module, c);
    let ctas = c
        .ctas
        .unwrap_or_else(|| c.tiles().div_ceil(c.warps / c.k_split));
    let grid = [ctas as u32, c.batches as u32, 1];
    let mut launch = Launch::new(&kernel, grid, [c.warps as u32 * 32, 1, 1]).bytes(&p.params);
    if c.ctas.is_some() {
        // Vectors and their scales, partial sums: `int8::shared_bytes`.
        let blocks = c.k / BLOCK;
        let partial = c.tiles().div_ceil(ctas) * c.k_split * 4 * vectors * 4;
        launch.shared = (vectors * blocks * (16 + 4) + partial) as u32;
    }
    let options = Options {
        policy,
        ..Options::default()
    };
    p.sim
        .run(&launch, &options)
        .unwrap_or_else(|e| panic!("{kernel}: {e}"));
    assert!(
        p.sim.fully_written(p.output),
        "{kernel}: output is not fully written"
    );
    for (i, bytes) in p.sim.download(p.output).chunks(4).enumerate() {
        let got = f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
        let bound = if c.exact { 0.0 } else { p.magnitude[i] * 1e-5 };
        let error = (got - p.reference[i]).abs();
        assert!(
            error <= bound,
            "{kernel} element {i}: {got} is not {}",
            p.reference[i]
        );
    }
}

fn family(unit: &str, activation: Activation, number: u32, ctas: &[Option<usize>]) {
    for arch in ARCHES {
        let Some(ptx) = compile(unit, arch) else {
            return;
        };
        let module = Module::parse(&ptx).unwrap();
        for &ctas in ctas {
            for n in [1, 2, 3, 5] {
                for blocks_per_load in [1, 2] {
                    for tiled in [false, true] {
                        for exact in [true, false] {
                            let c = Case {
                                activation,
                                m: 13,
                                n,
                                k: if exact { 1056 } else { 288 },
                                batches: 1 + usize::from(exact && n == 1),
                                blocks_per_load,
                                warps: 4,
                                k_split: if exact { 2 } else { 1 },
                                tiled,
                                ctas,
                                exact,
                            };
                            let policy = if tiled {
                                Policy::Random(n as u64)
                            } else {
                                Policy::Fair
                            };
                            check(&module, number, &c, policy);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn nvfp4_vectors() {
    family("gemv_cuda_core_nvfp4", Activation::Nvfp4, 0, &[None]);
}

#[test]
fn f16_vectors() {
    family("gemv_cuda_core_f16", Activation::F16, 1, &[None]);
}

#[test]
fn bf16_vectors() {
    family("gemv_cuda_core_bf16", Activation::Bf16, 2, &[None]);
}

#[test]
fn f32_vectors() {
    family("gemv_cuda_core_f32", Activation::F32, 3, &[None]);
}

#[test]
fn nvfp4_vectors_with_integer_dot_products() {
    family("gemv_nvfp4", Activation::Nvfp4, 0, &[Some(1), Some(3)]);
}
