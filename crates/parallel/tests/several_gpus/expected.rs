//! The exact result of a [`Work`], and how far the ranks' results may lie from it.

use anyhow::{Result, ensure};
use nvfp4_gemv::reference::{self, error_bound, sum_error_bound};
use nvfp4_gemv::{DenseVectors, Strides, Vectors, Weights};
use nvfp4_gemv_parallel::shard::{Sharding, Split};

use super::rank::{Computed, Number, WIDE, Work};

/// Vectors that the layer down reads: gate's exact results, in the vectors' type, and how far computed results may lie
/// from them.
struct Middle<T> {
    values: Vec<T>,
    /// Rounded up.
    off: Vec<f32>,
}

impl<T: Number> Middle<T> {
    fn new(work: &Work, gate: &Weights<'_>, roundings: u32) -> Result<Self> {
        let x = work.vectors::<T>();
        let vectors = T::vectors_on_host(DenseVectors::new(&x[..]));
        let exact = reference::gemv(&work.shape(gate.shape())?, gate, &vectors)?;
        let values: Vec<T> = exact.y.iter().map(|&y| T::of(y as f32)).collect();
        let of = exact.y.iter().zip(&exact.magnitude).zip(&values);
        let off = of.map(|((&y, &magnitude), &value)| {
            let computed = error_bound(y, magnitude, roundings, T::TYPE);
            let rounded = (y - f64::from(value.to_f32())).abs();
            ((computed + rounded) as f32).next_up()
        });
        Ok(Self {
            off: off.collect(),
            values,
        })
    }
}

/// Demands that the ranks' result is within the bound of the exact result. A rank's summand is off by the roundings of
/// its own sums, and by gate's errors times down's weights. Then the ranks' summands are added.
pub(crate) fn check<T: Number>(work: &Work, ranks: usize, computed: &Computed) -> Result<()> {
    let [gate, down] = work.weights()?;
    let [of_gate, of_down] = computed.roundings;
    let middle = Middle::<T>::new(work, &gate, of_gate)?;
    let mut parts = vec![Vec::with_capacity(ranks); computed.y.len()];
    let sharding = Sharding::of(&down, Split::K, ranks)?;
    for rank in 0..ranks {
        let shard = sharding.shard(&down, rank)?;
        let (shape, weights) = (work.shape(shard.shape())?, shard.weights()?);
        let first = sharding.range(rank)?.start;
        let row = WIDE;
        let strides = Strides {
            row,
            batch: work.n * row,
        };
        let mine = DenseVectors::new(&middle.values[first..]).with_strides(strides);
        let exact = reference::gemv(&shape, &weights, &T::vectors_on_host(mine))?;
        let off = DenseVectors::new(&middle.off[first..]).with_strides(strides);
        let off = reference::gemv(&shape, &weights, &Vectors::F32(off))?.magnitude;
        ensure!(exact.y.len() == parts.len(), "another number of results");
        for (at, parts) in parts.iter_mut().enumerate() {
            let (y, off) = (exact.y[at], off[at]);
            let own = error_bound(y.abs() + off, exact.magnitude[at] + off, of_down, T::TYPE);
            parts.push((y, own + off));
        }
    }
    for (at, (&y, parts)) in computed.y.iter().zip(&parts).enumerate() {
        let exact: f64 = parts.iter().map(|(y, _)| y).sum();
        let bound = sum_error_bound(parts, T::TYPE);
        // A bound that is infinite would show nothing.
        ensure!(bound < 1.0, "{at}: the bound is {bound}");
        let off = (f64::from(y) - exact).abs();
        ensure!(
            off <= bound,
            "{ranks} ranks, n = {}: {at} is {y}, off by {off} of {bound}",
            work.n
        );
    }
    Ok(())
}
