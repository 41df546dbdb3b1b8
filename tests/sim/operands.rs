//! Problems for vectors of every type that the stream kernel takes, and their answers.

use half::{bf16, f16};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::reference::{self, Reference};
use nvfp4_gemv::{Activation, ScaleLayout, Shape, Vectors};

/// Weights in `problem`, and vectors: the problem's own, or dense ones.
pub(crate) struct Operands {
    pub(crate) problem: Problem,
    pub(crate) activation: Activation,
    /// Dense vectors, [L][N][K]; empty for NVFP4 ones.
    pub(crate) dense: Vec<u8>,
    pub(crate) truth: Reference,
}

impl Operands {
    /// Integers: every product and every sum is exact, in any order.
    pub(crate) fn integers(shape: Shape, activation: Activation, seed: u64) -> Self {
        let problem = Problem::integers(shape, seed);
        let x = problem.decoded_vectors().unwrap();
        Self::new(problem, activation, &x)
    }

    /// All codes and scales; dense vectors have normal numbers of magnitudes from 2^-14 to 2^7, and
    /// zeros.
    pub(crate) fn full_range(shape: Shape, activation: Activation, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut number = || {
            let magnitude = (1.0 + rng.f32()) * (rng.i32(-14..7) as f32).exp2();
            let sign = if rng.bool() { 1.0 } else { -1.0 };
            if rng.u8(..32) == 0 {
                0.0
            } else {
                sign * magnitude
            }
        };
        let x: Vec<f32> = (0..shape.vector_elements()).map(|_| number()).collect();
        Self::new(Problem::full_range(shape, seed), activation, &x)
    }

    /// All codes and scales; of each dense vector one element in 200, of any exponent that f32 sums have room for, and
    /// zeros: no large element hides what becomes of a small one.
    pub(crate) fn sparse_bf16(shape: Shape, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut number = || {
            let bits = rng.u16(..2) << 15 | rng.u16(..230) << 7 | rng.u16(..128);
            let kept = if rng.u32(..200) == 0 { bits } else { 0 };
            bf16::from_bits(kept).to_f32()
        };
        let x: Vec<f32> = (0..shape.vector_elements()).map(|_| number()).collect();
        let mut problem = Problem::full_range(shape, seed);
        problem.alpha = None;
        Self::new(problem, Activation::Bf16, &x)
    }

    /// With a factor a row that is a power of two.
    pub(crate) fn with_row_alpha(mut self) -> Self {
        let m = self.problem.shape.m();
        let shared = self.problem.alpha.take().map_or(1.0, |alpha| alpha[0]);
        let rows = (0..m).map(|row| [1.0, -2.0, 0.5][row % 3] * shared);
        self.problem.alpha = Some(rows.collect());
        self.answer()
    }

    fn new(problem: Problem, activation: Activation, x: &[f32]) -> Self {
        let dense = match activation {
            Activation::Nvfp4 => Vec::new(),
            Activation::F16 => x
                .iter()
                .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                .collect(),
            Activation::Bf16 => x
                .iter()
                .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
                .collect(),
            other => panic!("the stream kernel does not take {other:?}"),
        };
        let truth = Reference {
            y: Vec::new(),
            magnitude: Vec::new(),
        };
        Self {
            problem,
            activation,
            dense,
            truth,
        }
        .answer()
    }

    fn answer(mut self) -> Self {
        let pairs = || self.dense.chunks_exact(2).map(|b| [b[0], b[1]]);
        let weights = self.problem.weights(ScaleLayout::Linear).unwrap();
        let of = |vectors: &Vectors<'_>| {
            reference::gemv(&self.problem.shape, &weights.view().unwrap(), vectors).unwrap()
        };
        self.truth = match self.activation {
            Activation::Nvfp4 => self.problem.reference().unwrap(),
            Activation::F16 => of(&Vectors::f16(
                &pairs().map(f16::from_le_bytes).collect::<Vec<_>>(),
            )),
            _ => of(&Vectors::bf16(
                &pairs().map(bf16::from_le_bytes).collect::<Vec<_>>(),
            )),
        };
        self
    }
}
