//! Problems with a known answer for the CUDA-core kernels.

use half::{bf16, f16};
use ptx_sim::softfloat::{E2M1, E4M3};
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError};

use super::gemv::{self, Params, layout};

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

/// In the order of `nvfp4::Activation`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Activation {
    Nvfp4,
    F16,
    Bf16,
    F32,
}

pub(crate) struct Case {
    pub(crate) activation: Activation,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) batches: usize,
    pub(crate) blocks_per_load: usize,
    pub(crate) warps: usize,
    pub(crate) k_split: usize,
    pub(crate) tiled: bool,
    /// CTAs that share a batch's rows, for the integer-dot kernel; `None` for the direct one.
    pub(crate) ctas: Option<usize>,
    /// Powers of two as scales and small integers as values: every sum is exact in f32.
    pub(crate) exact: bool,
    /// f16 results rather than f32.
    pub(crate) half: bool,
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

struct Memory {
    sim: Sim,
    params: Vec<u8>,
    output: Buffer,
    reference: Vec<f64>,
    magnitude: Vec<f64>,
    /// Of the kernel with four blocks a load: its very bits.
    ordered: Option<Vec<f32>>,
}

/// A dot product of whole blocks as `gemv_nvfp4_wide` orders it, from each block's exact sum and the product
/// of its scales.
fn in_wide_order(blocks: &[(f32, f32)], k_split: usize) -> f32 {
    let parts = (0..k_split).map(|part| {
        let mut lanes = [0f32; 32];
        for span in blocks.chunks(128).skip(part).step_by(k_split) {
            for (lane, own) in span.chunks(4).enumerate() {
                for &(sum, scale) in own {
                    lanes[lane] = sum.mul_add(scale, lanes[lane]);
                }
            }
        }
        for offset in [16, 8, 4, 2, 1] {
            lanes = std::array::from_fn(|i| lanes[i] + lanes[i ^ offset]);
        }
        lanes[0]
    });
    parts.fold(0.0, |y, part| y + part)
}

fn memory(module: &Module, c: &Case) -> Memory {
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
    let mut ordered = (c.blocks_per_load == 4).then(Vec::new);
    for b in 0..c.batches {
        for n in 0..c.n {
            for m in 0..c.m {
                let (mut sum, mut size) = (0.0, 0.0);
                let mut in_blocks = vec![(0f32, 0f32); blocks];
                for k in 0..c.k {
                    let (wi, xi) = ((b * c.m + m) * c.k + k, (b * c.n + n) * c.k + k);
                    let mut p = E2M1.to_f64(weights[wi].into()) * x[xi];
                    let mut scale = E4M3.to_f64(w_scales[wi / BLOCK].into());
                    if c.activation == Activation::Nvfp4 {
                        scale *= E4M3.to_f64(x_scales[xi / BLOCK].into());
                    }
                    let block = &mut in_blocks[k / BLOCK];
                    *block = (block.0 + p as f32, scale as f32);
                    p *= scale;
                    sum += p;
                    size += p.abs();
                }
                reference.push(sum * f64::from(alpha));
                magnitude.push(size * f64::from(alpha));
                if let Some(ordered) = &mut ordered {
                    ordered.push(in_wide_order(&in_blocks, c.k_split) * alpha);
                }
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
    let output = sim
        .alloc("output", c.batches * c.m * c.n * if c.half { 2 } else { 4 })
        .unwrap();

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
        output_type: if c.half { 0 } else { 2 },
        ..Params::default()
    };
    Memory {
        sim,
        params: params.bytes(),
        output,
        reference,
        magnitude,
        ordered,
    }
}

impl Case {
    /// The kernel's name.
    pub(crate) fn kernel(&self) -> String {
        let direct = self.ctas.is_none().then_some(self.activation as u32);
        gemv::kernel(direct, self.n, self.blocks_per_load)
    }
}

/// A case in the simulator's memory, and its launch.
pub(crate) struct Problem {
    sim: Sim,
    pub(crate) launch: Launch,
    output: Buffer,
    reference: Vec<f64>,
    magnitude: Vec<f64>,
    ordered: Option<Vec<f32>>,
    exact: bool,
    half: bool,
}

impl Problem {
    pub(crate) fn new(module: &Module, c: &Case) -> Self {
        let m = memory(module, c);
        let ctas = c
            .ctas
            .unwrap_or_else(|| c.tiles().div_ceil(c.warps / c.k_split));
        let grid = [ctas as u32, c.batches as u32, 1];
        let mut launch =
            Launch::new(&c.kernel(), grid, [c.warps as u32 * 32, 1, 1]).bytes(&m.params);
        if c.ctas.is_some() {
            let most = c.tiles().div_ceil(ctas);
            launch.shared =
                gemv::shared_bytes(c.n, c.k / BLOCK, most, c.k_split, c.blocks_per_load);
        }
        Self {
            sim: m.sim,
            launch,
            output: m.output,
            reference: m.reference,
            magnitude: m.magnitude,
            ordered: m.ordered,
            exact: c.exact,
            half: c.half,
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
        let mut wrong =
            (!sim.fully_written(self.output)).then(|| "output is not fully written".into());
        let size = if self.half { 2 } else { 4 };
        for (i, bytes) in sim.download(self.output).chunks_exact(size).enumerate() {
            let (got, want) = match *bytes {
                [a, b, c, d] => (f32::from_le_bytes([a, b, c, d]).into(), self.reference[i]),
                _ => (
                    f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
                    f16::from_f64(self.reference[i]).to_f64(),
                ),
            };
            let bound = if self.exact {
                0.0
            } else {
                self.magnitude[i] * 1e-5
            };
            // Not a number is not within any bound.
            let mut right = (got - want).abs() <= bound;
            if let Some(ordered) = self.ordered.as_ref().filter(|_| !self.half) {
                right &= got == f64::from(ordered[i]);
            }
            if !right {
                wrong = Some(format!("element {i}: {got} is not {want}"));
                break;
            }
        }
        Ok((report, wrong))
    }
}
