//! Experts of a mixture: MLPs, of which each vector has a few.

#[cfg(feature = "checkpoint")]
mod checkpoint;
#[cfg(feature = "device")]
mod device;

use std::sync::Arc;

#[cfg(feature = "device")]
pub use device::{ExpertsBuffers, ExpertsOnDevice};
use rayon::prelude::*;

use crate::check;
use crate::cpu;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::mlp::Mlp;
use crate::output::Output;
use crate::shape::Shape;
use crate::tensor::{DenseVectors, NO_MATRIX, Nvfp4Vectors, VectorScale, Vectors};
use crate::types::{Activation, ScaleLayout};

/// The experts of a mixture-of-experts layer in host memory: [`Mlp`]s of one size, of which a router chooses a few for
/// each vector. `y = Σ_s weight[s] · expert[id[s]](x)`, over a vector's choices s.
///
/// An expert reads its weights once for all vectors that chose it, and experts are computed at once. A shared expert
/// is an [`Mlp`] of its own: it writes the output first, and the experts are [added](Output::accumulating) to it.
///
/// ```
/// use nvfp4_gemv::{Experts, Linear, Mlp, Output, Vectors};
/// let layer = |value, rows, k| Linear::from_dense(&vec![value; rows * k], rows, k);
/// let expert = |value| Ok::<_, Box<dyn std::error::Error>>(Mlp::new(
///     layer(1.0f32, 16, 32)?, layer(value, 16, 32)?, layer(1.0, 32, 16)?)?);
/// let experts = Experts::new([expert(1.0)?, expert(2.0)?, expert(4.0)?])?;
/// // Two vectors with two choices each. The second vector has one expert only.
/// let (ids, weights) = ([2, 0, 1, -1], [0.5, 0.5, 1.0, 0.0]);
/// let (x, mut y) = ([1.0f32; 2 * 32], [0.0f32; 2 * 32]);
/// experts.forward(&Vectors::of(&x), 2, &ids, &weights, Output::of(&mut y))?;
/// assert_eq!(y[0], 16.0 * 32.0 * 32.0 * 2.5);
/// assert_eq!(y[32], 16.0 * 32.0 * 32.0 * 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Experts {
    experts: Arc<[Mlp]>,
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync + Clone + 'static>() {}
    is_send_and_sync::<Experts>();
};

impl Experts {
    /// Experts of one size.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`] for experts of several sizes, and for none.
    pub fn new(experts: impl Into<Arc<[Mlp]>>) -> Result<Self> {
        let experts = experts.into();
        let first = experts.first().ok_or(Error::LayersMismatch {
            dimension: "the number of experts",
            found: 0,
            of: "the least that a mixture has",
            expected: 1,
        })?;
        for expert in &experts[1..] {
            check::fits("an expert's K", expert.k(), "expert 0's K", first.k())?;
            check::fits("an expert's M", expert.rows(), "expert 0's M", first.rows())?;
        }
        Ok(Self { experts })
    }

    /// Computes `n` vectors `[n][K]`, f16, bf16, f32 or NVFP4, into results `[n][M]`. `ids[n][choices]` are the experts
    /// that each vector has, in any order, and `weights[n][choices]` what their results are multiplied by. The id -1
    /// stands for no expert. Results are summed in f64 in the order of the choices. The output has every element
    /// written or, on an error, none.
    ///
    /// # Errors
    /// As [`Mlp::forward`]'s. [`Error::Select`] for the id of an expert that does not exist. Another number of weights
    /// than of ids; ids that are not equally many for each vector.
    pub fn forward<'a>(
        &'a self,
        x: &Vectors<'_>,
        n: usize,
        ids: &[i32],
        weights: &[f32],
        y: Output<'a>,
    ) -> Result<()> {
        let first = &self.experts[0];
        let (out, m) = (first.shape(n)?, first.rows());
        let layout = y.resolve(&out, 1)?;
        let shape = Shape::new(crate::Dims {
            m,
            n,
            k: self.k(),
            l: 1,
        })?;
        match x {
            Vectors::Nvfp4(x) => drop(x.resolve_and_scan(&shape)?),
            Vectors::F16(x) => drop(x.resolve(&shape)?),
            Vectors::Bf16(x) => drop(x.resolve(&shape)?),
            Vectors::F32(x) => drop(x.resolve(&shape)?),
        }
        // As many for each vector; where there are no vectors, one may be there.
        let choices = ids.len().div_ceil(n.max(1));
        check::len("ids of experts", "elements", ids.len(), n * choices)?;
        check::len("weights of experts", "elements", weights.len(), ids.len())?;

        let (ids, weights) = (&ids[..n * choices], &weights[..n * choices]);

        // Slot s is choice s % choices of vector s / choices.
        let mut slots = Vec::with_capacity(ids.len());
        for (slot, &id) in ids.iter().enumerate() {
            match usize::try_from(id) {
                Ok(expert) if expert < self.experts.len() => slots.push(slot),
                _ if id == NO_MATRIX => {}
                _ => {
                    return Err(Error::Select {
                        batch: slot,
                        id,
                        matrices: self.experts.len(),
                    });
                }
            }
        }
        slots.sort_by_key(|&slot| ids[slot]);
        // As many results as a call with a vector for each slot.
        let results = first.shape(slots.len())?.outputs();
        first.pool().with_floats(results, |results| {
            let mut rest = &mut *results;
            let of_expert = |slots| {
                let (own, others) =
                    std::mem::take(&mut rest).split_at_mut(<[usize]>::len(slots) * m);
                rest = others;
                (slots, own)
            };
            let groups = slots.chunk_by(|&a, &b| ids[a] == ids[b]);
            let groups: Vec<_> = groups.map(of_expert).collect();
            groups.into_par_iter().try_for_each(|(slots, results)| {
                let expert = &self.experts[ids[slots[0]] as usize]; // checked above
                let vectors: Vec<usize> = slots.iter().map(|slot| slot / choices).collect();
                let call =
                    |x: &Vectors<'_>| expert.forward(x, vectors.len(), Output::of(&mut *results));
                with_some(x, &shape, &vectors, call)
            })?;

            let mut place = vec![None; ids.len()];
            for (at, &slot) in slots.iter().enumerate() {
                place[slot] = Some(at);
            }
            cpu::write(&out, (y, layout), |vector, row| {
                let own = vector * choices..(vector + 1) * choices;
                let terms = own.filter_map(|slot| {
                    let result = results[place[slot]? * m + row];
                    Some(f64::from(weights[slot]) * f64::from(result))
                });
                terms.sum()
            });
            Ok(())
        })
    }

    /// As [`Mlp::prepare`], for calls in which an expert has up to `n` vectors.
    ///
    /// # Errors
    /// As [`Mlp::prepare`]'s.
    pub fn prepare(&self, n: usize, activation: Activation) -> Result<()> {
        self.experts
            .iter()
            .try_for_each(|expert| expert.prepare(n, activation))
    }

    /// The experts.
    pub fn all(&self) -> &[Mlp] {
        &self.experts
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        self.experts[0].k()
    }

    /// Elements of a result, M.
    pub fn rows(&self) -> usize {
        self.experts[0].rows()
    }
}

/// Calls `f` with some of the vectors of a call that were checked, one after the other: with all of them as they are,
/// with others as copies.
fn with_some(
    x: &Vectors<'_>,
    shape: &Shape,
    vectors: &[usize],
    f: impl FnOnce(&Vectors<'_>) -> Result<()>,
) -> Result<()> {
    fn dense<T: Element>(
        x: &DenseVectors<'_, T>,
        shape: &Shape,
        vectors: &[usize],
    ) -> Result<Vec<T>> {
        Ok(rows(x.values, x.resolve(shape)?.row, shape.k(), vectors))
    }
    if vectors.iter().copied().eq(0..shape.n()) {
        return f(x);
    }
    match x {
        Vectors::F16(x) => f(&Vectors::of(&dense(x, shape, vectors)?)),
        Vectors::Bf16(x) => f(&Vectors::of(&dense(x, shape, vectors)?)),
        Vectors::F32(x) => f(&Vectors::of(&dense(x, shape, vectors)?)),
        Vectors::Nvfp4(x) => {
            let at = x.resolve(shape)?;
            let codes = rows(x.codes, at.codes.row, shape.row_code_bytes(), vectors);
            let blocks = vectors
                .iter()
                .flat_map(|&v| (0..shape.blocks()).map(move |block| (v, block)));
            let scale = |(v, block)| x.scales[at.scale_offset(x.layout, shape, 0, v, block)];
            let scales: Vec<u8> = blocks.map(scale).collect();
            let globals: Vec<f32>;
            let global = match x.global {
                VectorScale::Shared(global) => VectorScale::Shared(global),
                VectorScale::PerVector(all) => {
                    globals = vectors.iter().map(|&v| all[v]).collect();
                    VectorScale::PerVector(globals.as_slice())
                }
            };
            f(&Vectors::Nvfp4(Nvfp4Vectors::new(
                codes.as_slice(),
                scales.as_slice(),
                ScaleLayout::Linear,
                global,
            )))
        }
    }
}

/// Rows of so many elements, `step` apart, one after the other.
fn rows<T: Copy>(values: &[T], step: usize, len: usize, rows: &[usize]) -> Vec<T> {
    let row = |&row: &usize| &values[row * step..][..len];
    rows.iter().flat_map(row).copied().collect()
}
