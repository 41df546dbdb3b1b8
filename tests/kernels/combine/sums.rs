//! Test data of sums of experts, and their sums on the host.

use half::{bf16, f16};
use nvfp4_gemv::FloatType;

/// Results `[n][slots][m]` of experts, their weights and ids, and what is added.
#[derive(Debug)]
pub(crate) struct Data {
    size: (usize, usize, usize),
    output: FloatType,
    pub(crate) inputs: Vec<f32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) ids: Vec<i32>,
    pub(crate) residual: Vec<f32>,
    /// Added to each element of a result; there is none for every second seed.
    pub(crate) bias: Vec<f32>,
}

/// The nearest number of a type.
fn rounded(value: f32, element: FloatType) -> f32 {
    match element {
        FloatType::F16 => f16::from_f32(value).to_f32(),
        FloatType::Bf16 => bf16::from_f32(value).to_f32(),
        FloatType::F32 => value,
    }
}

impl Data {
    /// Data for (m, n, slots). Some slots have no expert: their results and weights are NaN. An expert that there is
    /// may have an infinite result.
    pub(crate) fn new(
        size: (usize, usize, usize),
        element: FloatType,
        output: FloatType,
        seed: u64,
    ) -> Self {
        let (m, n, slots) = size;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut of = |count, element| {
            let values = (0..count).map(|_| rounded(rng.f32() * 8.0 - 4.0, element));
            values.collect::<Vec<f32>>()
        };
        let mut inputs = of(n * slots * m, element);
        let mut weights = of(n * slots, FloatType::F32);
        let residual = of(n * m, output);
        let bias = of(if seed.is_multiple_of(2) { m } else { 0 }, FloatType::F32);
        let least = if seed.is_multiple_of(3) { 0 } else { -1 };
        let ids: Vec<i32> = (0..n * slots).map(|_| rng.i32(least..3)).collect();
        for (slot, _) in ids.iter().enumerate().filter(|(_, id)| **id == -1) {
            inputs[slot * m..][..m].fill(f32::NAN);
            weights[slot] = f32::NAN;
        }
        if let Some(slot) = ids.iter().rposition(|&id| id == 2) {
            inputs[slot * m] = f32::INFINITY;
        }
        Self {
            size,
            output,
            inputs,
            weights,
            ids,
            residual,
            bias,
        }
    }

    /// `[n][m]`, rounded to the output's type.
    pub(crate) fn sums(&self) -> Vec<f32> {
        let (m, n, slots) = self.size;
        let sum = |at: usize| {
            let (token, row) = (at / m, at % m);
            let counts = (token * slots..(token + 1) * slots).filter(|&slot| self.ids[slot] != -1);
            let sum = counts.fold(0.0f32, |sum, slot| {
                self.weights[slot].mul_add(self.inputs[slot * m + row], sum)
            });
            let bias = self.bias.get(row).copied().unwrap_or(-0.0);
            rounded(sum + (bias + self.residual[at]), self.output)
        };
        (0..n * m).map(sum).collect()
    }
}
