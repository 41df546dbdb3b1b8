//! A whole NVFP4 tile: `conformance/kernels/mma_tile.cu`, with inputs whose product is exact.

use ptx_sim::models::tensor_map::{DataType, TensorMap};
use ptx_sim::{Buffer, Launch, Module, Options, Program, Report, Sim, SimError};

use super::Random;

const PTX: &str = include_str!("../../../conformance/ptx/mma_tile.ptx");
const M: usize = 128;
const N: usize = 64;
const K: usize = 4096;
/// Rows, columns, and the length of the sums.
pub(super) const SHAPE: (usize, usize, usize) = (M, N, K);
/// Three stages, and room to align them.
const SHARED: u32 = 3 * 28672 + 1024;

/// Twice the value of each E2M1 code without its sign.
const DOUBLED: [i64; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
/// UE4M3 codes and their values: even, so that every term is an integer.
const SCALES: [(u8, i64); 4] = [(0x40, 2), (0x48, 4), (0x4c, 6), (0x50, 8)];

/// A matrix of 128 or fewer rows: elements in pairs, scales in atoms of 128 rows, and twice the
/// scaled values.
struct Operand {
    codes: Vec<u8>,
    scales: Vec<u8>,
    doubled: Vec<i64>,
}

impl Operand {
    fn draw(rng: &mut Random, rows: usize) -> Self {
        let blocks = K / 16;
        let mut codes = vec![0; rows * K / 2];
        let mut scales = vec![SCALES[0].0; 128 * blocks];
        let mut doubled = Vec::with_capacity(rows * K);
        for row in 0..rows {
            for block in 0..blocks {
                let (code, scale) = SCALES[rng.next() as usize % SCALES.len()];
                let at = block / 4 * 512 + row % 32 * 16 + row / 32 * 4 + block % 4;
                scales[at] = code;
                let mut bits = rng.next();
                for k in block * 16..(block + 1) * 16 {
                    let e = (bits & 15) as u8;
                    bits >>= 4;
                    codes[(row * K + k) / 2] |= e << (4 * (k % 2));
                    let v = DOUBLED[usize::from(e & 7)] * scale;
                    doubled.push(if e & 8 == 0 { v } else { -v });
                }
            }
        }
        Self {
            codes,
            scales,
            doubled,
        }
    }
}

/// Everything before the launch, or after it.
pub(super) struct Tile {
    sim: Sim,
    program: Program,
    launch: Launch,
    out: Buffer,
    w: Operand,
    x: Operand,
}

fn map(b: Buffer, rows: usize) -> Result<TensorMap, SimError> {
    let row = K as u64 / 2;
    super::rows(
        b,
        DataType::Uint8,
        [row, rows as u64],
        row,
        [128, rows as u32],
    )
}

impl Tile {
    pub(super) fn new() -> Result<Self, SimError> {
        let mut rng = Random(1);
        let (w, x) = (Operand::draw(&mut rng, M), Operand::draw(&mut rng, N));
        let mut sim = Sim::new(Module::parse(PTX)?);
        let program = sim.program("mma_tile")?;
        let w_map = map(sim.upload("w", &w.codes)?, M)?;
        let x_map = map(sim.upload("x", &x.codes)?, N)?;
        let sfw = sim.upload("sfw", &w.scales)?;
        let sfx = sim.upload("sfx", &x.scales)?;
        let out = sim.alloc("d", M * N * 4)?;
        let mut launch = Launch::new("mma_tile", [1, 1, 1], [192, 1, 1])
            .tensor_map(w_map)
            .tensor_map(x_map)
            .buffer(sfw)
            .buffer(sfx)
            .buffer(out)
            .u32(K as u32);
        launch.shared = SHARED;
        Ok(Self {
            sim,
            program,
            launch,
            out,
            w,
            x,
        })
    }

    pub(super) fn run(mut self) -> Result<(Self, Report), SimError> {
        let options = Options::default();
        let report = self
            .sim
            .run_program(&self.program, &self.launch, &options, None)?;
        Ok((self, report))
    }

    /// Every term is an integer and every partial sum far below 2^24, so f32 holds the result.
    pub(super) fn verify(&self) -> Result<(), SimError> {
        let got = self.sim.download(self.out);
        for (m, w) in self.w.doubled.chunks_exact(K).enumerate() {
            for (n, x) in self.x.doubled.chunks_exact(K).enumerate() {
                let sum: i64 = w.iter().zip(x).map(|(a, b)| a * b).sum();
                let want = (sum / 4) as f32;
                let at = (m * N + n) * 4;
                if got.get(at..at + 4) != Some(&want.to_le_bytes()[..]) {
                    return Err(SimError::Launch(format!(
                        "element ({m}, {n}) of the tile is not {want}"
                    )));
                }
            }
        }
        Ok(())
    }
}
