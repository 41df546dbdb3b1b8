//! A whole matrix multiplication: `conformance/kernels/mma_matmul.cu`, with inputs whose product is exact.

use half::f16;
use ptx_sim::models::tensor_map::{DataType, TensorMap};
use ptx_sim::{Buffer, HazardChecks, Launch, Module, Options, Program, Report, Sim, SimError};

use super::{Random, rows};

const PTX: &str = include_str!("../../../conformance/ptx/mma_matmul.ptx");
/// Rows, columns, and the length of the sums.
pub(super) const SIZE: usize = 1024;
/// Rows and columns of a CTA.
const TILE: usize = 128;
/// Elements of K in a stage.
const STAGE_K: usize = 64;
/// Four stages, and room to align them.
const SHARED: u32 = 4 * 32768 + 1024;

/// An operand: integers from -4 to 4.
fn draw(rng: &mut Random) -> Vec<i16> {
    (0..SIZE * SIZE)
        .map(|_| (rng.next() % 9) as i16 - 4)
        .collect()
}

/// Everything before the launch, or after it.
pub(super) struct Matmul {
    sim: Sim,
    program: Program,
    launch: Launch,
    out: Buffer,
    a: Vec<i16>,
    b: Vec<i16>,
}

fn map(b: Buffer) -> Result<TensorMap, SimError> {
    let of_box = [STAGE_K as u32, TILE as u32];
    rows(
        b,
        DataType::Float16,
        [SIZE as u64; 2],
        2 * SIZE as u64,
        of_box,
    )
}

fn upload(sim: &mut Sim, name: &str, values: &[i16]) -> Result<Buffer, SimError> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|v| f16::from_f32(f32::from(*v)).to_le_bytes())
        .collect();
    sim.upload(name, &bytes)
}

impl Matmul {
    pub(super) fn new() -> Result<Self, SimError> {
        let mut rng = Random(2);
        let (a, b) = (draw(&mut rng), draw(&mut rng));
        let mut sim = Sim::new(Module::parse(PTX)?);
        let program = sim.program("mma_matmul")?;
        let a_map = map(upload(&mut sim, "a", &a)?)?;
        let b_map = map(upload(&mut sim, "b", &b)?)?;
        let out = sim.alloc("d", SIZE * SIZE * 4)?;
        let tiles = (SIZE / TILE) as u32;
        let mut launch = Launch::new("mma_matmul", [tiles, tiles, 1], [192, 1, 1])
            .tensor_map(a_map)
            .tensor_map(b_map)
            .buffer(out)
            .u32(SIZE as u32)
            .u32(SIZE as u32);
        launch.shared = SHARED;
        Ok(Self {
            sim,
            program,
            launch,
            out,
            a,
            b,
        })
    }

    /// Runs the kernel on inputs that are the same for every run; the output of the run before is forgotten.
    pub(super) fn run(&mut self, hazards: bool) -> Result<Report, SimError> {
        let options = Options {
            hazards: match hazards {
                true => HazardChecks::Error,
                false => HazardChecks::Off,
            },
            ..Options::default()
        };
        self.sim.poison(self.out);
        self.sim
            .run_program(&self.program, &self.launch, &options, None)
    }

    /// Every partial sum is an integer below 2^24, so f32 holds the result.
    pub(super) fn verify(&self) -> Result<(), SimError> {
        let got = self.sim.download(self.out);
        for (m, a) in self.a.chunks_exact(SIZE).enumerate() {
            for (n, b) in self.b.chunks_exact(SIZE).enumerate() {
                let sum: i32 = a
                    .iter()
                    .zip(b)
                    .map(|(a, b)| i32::from(*a) * i32::from(*b))
                    .sum();
                let at = (m * SIZE + n) * 4;
                if got.get(at..at + 4) != Some(&(sum as f32).to_le_bytes()[..]) {
                    return Err(SimError::Launch(format!(
                        "element ({m}, {n}) of the matrix product is not {sum}"
                    )));
                }
            }
        }
        Ok(())
    }
}
