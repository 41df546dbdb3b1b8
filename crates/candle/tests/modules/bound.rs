//! True products of dequantised weights in f64, with how far a computation may be off.

use candle_core::{DType, Device, Tensor};
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::reference::{decode_row, error_bound};
use nvfp4_gemv::{Activation, FloatType, Linear};

/// Half a unit in the last place of f32, relative.
pub(crate) const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// A number, and the most that what was computed in its place may differ from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    pub(crate) value: f64,
    pub(crate) off: f64,
}

impl Near {
    pub(crate) fn exactly(value: f64) -> Self {
        Self { value, off: 0.0 }
    }

    /// The largest that what was computed may be.
    pub(crate) fn most(self) -> f64 {
        self.value.abs() + self.off
    }
}

/// Whose arithmetic it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// The library's on this CPU, of vectors and into results of these types.
    Ours(Activation, FloatType),
    /// A matrix product of candle's in f32, whose order of sums is not known, of weights that were rounded to f32.
    Candles,
}

/// A layer's weights in f64.
pub(crate) fn weights(layer: &Linear) -> Vec<Vec<f64>> {
    let weights = layer.weights();
    let rows = 0..layer.rows();
    rows.map(|row| decode_row(&weights, 0, row)).collect()
}

/// The dense layer of candle's with a layer's weights in f32.
pub(crate) fn dense(layer: &Linear) -> candle_nn::Linear {
    let values: Vec<f32> = weights(layer).iter().flatten().map(|&w| w as f32).collect();
    let of =
        |values: Vec<f32>, shape: &[usize]| Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    let bias = layer.bias().map(|bias| of(bias.to_vec(), &[layer.rows()]));
    candle_nn::Linear::new(of(values, &[layer.rows(), layer.k()]), bias)
}

/// A layer's results of `n` vectors that are near the true ones.
pub(crate) fn forward(layer: &Linear, xs: &[Near], whose: Whose) -> Vec<Near> {
    let (k, n) = (layer.k(), xs.len() / layer.k());
    let (roundings, element) = match whose {
        Whose::Ours(activation, element) => {
            let shape = layer.shape(n).unwrap();
            (
                Implementation::best().roundings(&shape, activation),
                element,
            )
        }
        // Of a weight, of a product, of K - 1 additions, and of the bias.
        Whose::Candles => (k as u32 + 2, FloatType::F32),
    };
    let rows = weights(layer);
    let mut results = Vec::new();
    for x in xs.chunks_exact(k) {
        for (row, weights) in rows.iter().enumerate() {
            let bias = layer.bias().map_or(0.0, |bias| f64::from(bias[row]));
            let terms = || weights.iter().zip(x);
            let value = bias + terms().map(|(w, x)| w * x.value).sum::<f64>();
            let carried: f64 = terms().map(|(w, x)| w.abs() * x.off).sum();
            let magnitude = bias.abs() + terms().map(|(w, x)| w.abs() * x.most()).sum::<f64>();
            let largest = value.abs() + carried;
            results.push(Near {
                value,
                // The bias is one more rounding.
                off: carried + error_bound(largest, magnitude, roundings + 1, element),
            });
        }
    }
    results
}

/// `silu(gate) * up`, computed in f32.
pub(crate) fn silu_and_multiply(gate: Near, up: Near) -> Near {
    let silu = gate.value / (1.0 + (-gate.value).exp());
    // silu's derivative is nowhere above 1.1. exp within 4 units, an addition and a division make less than 8.
    let carried = 1.1 * gate.off;
    let silu = Near {
        value: silu,
        off: carried + 8.0 * UNIT * (silu.abs() + carried) + 1e-30,
    };
    let off = silu.off * up.most() + silu.value.abs() * up.off;
    let value = silu.value * up.value;
    Near {
        value,
        off: off + UNIT * (value.abs() + off) + 1e-30,
    }
}

/// An MLP's results of vectors, with f32 between the layers.
pub(crate) fn mlp([gate, up, down]: &[Linear; 3], xs: &[Near], whose: Whose) -> Vec<Near> {
    let (first, second) = match whose {
        Whose::Ours(activation, element) => (
            Whose::Ours(activation, FloatType::F32),
            Whose::Ours(Activation::F32, element),
        ),
        Whose::Candles => (whose, whose),
    };
    let gate = forward(gate, xs, first);
    let up = forward(up, xs, first);
    let between = gate.into_iter().zip(up);
    let between: Vec<Near> = between.map(|(g, u)| silu_and_multiply(g, u)).collect();
    forward(down, &between, second)
}

/// A tensor's numbers.
pub(crate) fn numbers(of: &Tensor) -> Vec<f64> {
    let of = of.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    of.to_vec1().unwrap()
}

pub(crate) fn exactly(of: &Tensor) -> Vec<Near> {
    numbers(of).into_iter().map(Near::exactly).collect()
}

/// The share of numbers that are further from those that they should be near than they may be.
pub(crate) fn share_outside(found: &Tensor, expected: &[Near]) -> f64 {
    let found = numbers(found);
    assert_eq!(found.len(), expected.len());
    let outside = |&(found, near): &(f64, &Near)| {
        // NaN is not inside.
        let is_inside = (found - near.value).abs() <= near.off;
        !is_inside
    };
    let pairs = || found.iter().copied().zip(expected);
    pairs().filter(outside).count() as f64 / found.len().max(1) as f64
}

/// Both compute the same: each is near the true results, and so they are near each other.
pub(crate) fn assert_near(ours: &Tensor, our_bound: &[Near], candles: &Tensor, its_bound: &[Near]) {
    assert_eq!(ours.dims(), candles.dims());
    assert_eq!(share_outside(ours, our_bound), 0.0, "ours");
    assert_eq!(share_outside(candles, its_bound), 0.0, "candle's");
    let bounds = our_bound.iter().zip(its_bound);
    for ((a, b), (ours, its)) in numbers(ours).iter().zip(numbers(candles)).zip(bounds) {
        assert!((a - b).abs() <= ours.off + its.off, "{a} {b}");
    }
}
