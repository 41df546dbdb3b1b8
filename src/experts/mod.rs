//! Experts of a mixture: MLPs, of which each vector has a few.

#[cfg(feature = "checkpoint")]
mod checkpoint;
#[cfg(feature = "device")]
mod device;
mod gathered;

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

#[cfg(feature = "device")]
pub use device::{ExpertsBuffers, ExpertsOnDevice};

use self::gathered::Gathered;
use crate::check;
use crate::cpu::{self, Threads, reserve, resize, shared, with};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::mlp::Mlp;
use crate::output::Output;
use crate::shape::Shape;
use crate::tensor::{NO_MATRIX, Vectors};
use crate::types::Activation;

/// The experts of a mixture-of-experts layer in host memory: [`Mlp`]s of one size, of which a router chooses a few for
/// each vector. `y = Σ_s weight[s] · expert[id[s]](x)`, over a vector's slots s.
///
/// An expert reads its weights once for all vectors that have it, and experts are computed at once. A shared expert
/// is an [`Mlp`] of its own: it writes the output first, and the experts are [added](Output::accumulating) to it.
///
/// ```
/// use nvfp4_gemv::{Experts, Linear, Mlp, Output, Vectors};
/// let layer = |value, rows, k| Linear::from_dense(&vec![value; rows * k], rows, k);
/// let expert = |value| Ok::<_, Box<dyn std::error::Error>>(Mlp::new(
///     layer(1.0f32, 16, 32)?, layer(value, 16, 32)?, layer(1.0, 32, 16)?)?);
/// let experts = Experts::new([expert(1.0)?, expert(2.0)?, expert(4.0)?])?;
/// // Two vectors with two slots each. The second vector has one expert only.
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
    /// As many as calls ran at once.
    scratch: Arc<Mutex<Vec<Scratch>>>,
}

/// Experts that are computed at once: as many as rayon has threads. Workers compute one after the other.
fn at_once() -> usize {
    match Threads::current() {
        Threads::Rayon => rayon::current_num_threads(),
        Threads::Workers(_) => 1,
    }
}

static SCRATCH: Mutex<Weak<Mutex<Vec<Scratch>>>> = Mutex::new(Weak::new());

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
        Ok(Self {
            experts,
            scratch: shared(&SCRATCH),
        })
    }

    /// Computes `n` vectors `[n][K]`, f16, bf16, f32 or NVFP4, into results `[n][M]`. `ids[n][slots]` are the experts
    /// that each vector has, in any order, and `weights[n][slots]` what their results are multiplied by. The id -1
    /// stands for no expert. Results are summed in f64 in the order of the slots. The output has every element written
    /// or, on an error, none.
    ///
    /// # Errors
    /// As [`Mlp::forward`]'s. [`Error::Expert`] for the id of an expert that does not exist. Another number of weights
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
            Vectors::Nvfp4(x) if x.digits != 1 => {
                return Err(Error::Digits {
                    digits: x.digits,
                    takes: "experts take vectors of one",
                });
            }
            Vectors::Nvfp4(x) => drop(x.resolve_and_scan(&shape)?),
            Vectors::F16(x) => drop(x.resolve(&shape)?),
            Vectors::Bf16(x) => drop(x.resolve(&shape)?),
            Vectors::F32(x) => drop(x.resolve(&shape)?),
        }
        // As many for each vector; where there are no vectors, one may be there.
        let each = ids.len().div_ceil(n.max(1));
        check::len("ids of experts", "elements", ids.len(), n * each)?;
        check::len("weights of experts", "elements", weights.len(), ids.len())?;

        let (ids, weights) = (&ids[..n * each], &weights[..n * each]);

        with(&self.scratch, |scratch| {
            let Scratch {
                slots,
                places,
                vectors,
                between,
                results,
            } = scratch;
            // The slots s of vector v are those with s / each = v.
            slots.clear();
            reserve(slots, ids.len())?;
            for (slot, &id) in ids.iter().enumerate() {
                match usize::try_from(id) {
                    Ok(expert) if expert < self.experts.len() => slots.push(slot),
                    _ if id == NO_MATRIX => {}
                    _ => {
                        return Err(Error::Expert {
                            vector: slot / each,
                            slot: slot % each,
                            id,
                            experts: self.experts.len(),
                        });
                    }
                }
            }
            slots.sort_unstable_by_key(|&slot| (ids[slot], slot));
            let slots = &*slots;
            resize(places, ids.len(), None)?;
            places.fill(None);
            for (place, &slot) in slots.iter().enumerate() {
                places[slot] = Some(place);
            }
            vectors.gather(x, &shape, slots.iter().map(|slot| slot / each))?;
            // As many results as a call with a vector for each slot.
            let count = first.shape(slots.len())?.outputs();
            resize(results, count, 0.0)?;
            let floats = self.floats();
            resize(between, slots.len() * floats, 0.0)?;

            let call = |at: usize, count, between: &mut [f32], results: &mut [f32]| {
                let expert = &self.experts[ids[slots[at]] as usize]; // checked above
                let (x, between) = (
                    vectors.some(x, &shape, at, count),
                    &mut between[..count * expert.floats()],
                );
                expert.forward_with(between, &x, count, Output::of(results))
            };
            let lists = at_once();
            let all = Slots {
                slots,
                ids,
                floats,
                m,
            };
            all.each_expert(0, between, &mut results[..count], lists, &call)?;

            cpu::write(&out, (y, layout), Some, |[_, vector, row]| {
                let own = vector * each..(vector + 1) * each;
                let terms = own.filter_map(|slot| {
                    let result = results[places[slot]? * m + row];
                    Some(f64::from(weights[slot]) * f64::from(result))
                });
                terms.sum()
            });
            Ok(())
        })
    }

    /// Makes memory for calls with `n` vectors of a type that have so many slots each, on the pool of threads that is
    /// current: as [`Mlp::prepare`]. A call allocates nothing from then on, unless a vector names an expert twice.
    ///
    /// # Errors
    /// As [`Mlp::prepare`]'s.
    pub fn prepare(&self, n: usize, each: usize, activation: Activation) -> Result<()> {
        let slots = n.saturating_mul(each);
        // Each thread begins an expert when it is done with the one before.
        let at_once = at_once().min(slots);
        for expert in self.experts.iter() {
            expert.prepare_layers(at_once, n, activation)?;
        }
        let shape = Shape::matrix(self.rows(), self.k())?;
        with(&self.scratch, |scratch| {
            reserve(&mut scratch.slots, slots)?;
            resize(&mut scratch.places, slots, None)?;
            scratch.vectors.reserve(&shape, activation, slots)?;
            resize(
                &mut scratch.between,
                slots.saturating_mul(self.floats()),
                0.0,
            )?;
            resize(&mut scratch.results, slots.saturating_mul(self.rows()), 0.0)
        })
    }

    /// These experts with another gate than theirs: as [`Mlp::with_gate`].
    ///
    /// # Errors
    /// As [`Mlp::with_gate`]'s.
    pub fn with_gate(self, gate: Gate) -> Result<Self> {
        let experts = self.experts.iter().cloned();
        let experts = experts
            .map(|expert| expert.with_gate(gate))
            .collect::<Result<_>>()?;
        Ok(Self { experts, ..self })
    }

    /// Numbers that a vector of any expert needs between its layers.
    fn floats(&self) -> usize {
        let most = self.experts.iter().map(Mlp::floats).max();
        most.unwrap_or(0)
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

/// The memory of a call beside its operands. Experts of all layers share it.
#[derive(Default)]
struct Scratch {
    /// The slots that have an expert, those of an expert together.
    slots: Vec<usize>,
    /// Where a slot stands in `slots`.
    places: Vec<Option<usize>>,
    vectors: Gathered,
    /// The memory of the experts between their layers.
    between: Vec<f32>,
    /// The results of `slots`.
    results: Vec<f32>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// Slots of one or several experts, those of an expert together.
#[derive(Clone, Copy)]
struct Slots<'a> {
    slots: &'a [usize],
    /// The experts of all slots.
    ids: &'a [i32],
    /// Numbers that a slot needs between an expert's layers.
    floats: usize,
    /// Elements of a result.
    m: usize,
}

impl Slots<'_> {
    /// Calls `f` for each expert, with the place of its first slot, their number, numbers between layers and results.
    /// `first` is the place of the first slot here. The experts are dealt to so many lists, which are worked through at
    /// once.
    fn each_expert(
        self,
        first: usize,
        between: &mut [f32],
        results: &mut [f32],
        lists: usize,
        f: &(impl Fn(usize, usize, &mut [f32], &mut [f32]) -> Result<()> + Sync),
    ) -> Result<()> {
        let Self {
            slots,
            ids,
            floats,
            m,
        } = self;
        let part = |slots| Self { slots, ..self };
        // Where the expert of the middle begins or, where that is here, where it ends.
        let middle = slots.get(slots.len() / 2).map(|&slot| ids[slot]);
        let at = match slots.partition_point(|&slot| Some(ids[slot]) < middle) {
            0 => slots.partition_point(|&slot| Some(ids[slot]) <= middle),
            at => at,
        };
        if lists > 1 && at < slots.len() {
            let ((left, right), half) = (slots.split_at(at), lists / 2);
            let (of_left, of_right) = results.split_at_mut(at * m);
            let (in_left, in_right) = between.split_at_mut(at * floats);
            let (left, right) = rayon::join(
                || part(left).each_expert(first, in_left, of_left, lists - half, f),
                || part(right).each_expert(first + at, in_right, of_right, half, f),
            );
            return left.and(right);
        }
        let (mut first, mut rest) = (first, results);
        for own in slots.chunk_by(|&a, &b| ids[a] == ids[b]) {
            let (results, others) = rest.split_at_mut(own.len() * m);
            f(first, own.len(), &mut *between, results)?;
            (first, rest) = (first + own.len(), others);
        }
        Ok(())
    }
}
