//! The GPU MODE `nvfp4_gemv` problem: its shapes, its data rule, its tolerance.
//!
//! Source: gpu-mode/reference-kernels, `problems/nvidia/nvfp4_gemv/reference.py` and `task.yml`.

use nvfp4_gemv::Shape;

use super::Problem;

/// M, K, L of one of the contest's problems; N is 1.
pub type ContestShape = (usize, usize, usize);

/// The contest's test shapes (M, K, L). The contest lists 256x7168 twice.
pub const CONTEST_TESTS: [ContestShape; 9] = [
    (128, 256, 1),
    (128, 1536, 1),
    (128, 3072, 1),
    (256, 7168, 1),
    (2432, 4608, 2),
    (384, 7168, 2),
    (512, 512, 2),
    (512, 4096, 2),
    (512, 1536, 2),
];

/// The shapes (M, K, L) that the contest ranks by.
pub const CONTEST_BENCHMARKS: [ContestShape; 3] =
    [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)];

/// How far the contest lets a result lie from `expected`: rtol = atol = 1e-3.
pub fn contest_tolerance(expected: f64) -> f64 {
    1e-3 + 1e-3 * expected.abs()
}

impl Problem {
    /// The contest's data rule: bytes of codes are 0 to 3. So odd elements are 0 and even ones 0, 0.5, 1 or 1.5; scales
    /// are 0, 1 or 2. (Not its random sequence, which is PyTorch's.)
    ///
    /// Weak data: no sign, no large code, no fine scale. [`Problem::full_range`] has them all.
    pub fn contest(shape: Shape, seed: u64) -> Self {
        const SCALES: [u8; 3] = [0x00, 0x38, 0x40];
        Self::fill_rows(
            shape,
            seed,
            |rng, codes| {
                rng.fill(codes);
                codes.iter_mut().for_each(|byte| *byte &= 3);
            },
            |rng, scales| scales.fill_with(|| SCALES[rng.usize(..3)]),
        )
    }
}
