//! The MLP of a decoder layer: gate and up, the computation between, and down.

#[cfg(feature = "device")]
mod device;

#[cfg(feature = "device")]
pub use device::{MlpBuffers, MlpOnDevice};

use crate::check::fits;
use crate::cpu::{Pool, Threads};
use crate::error::Result;
use crate::gate::Gate;
use crate::linear::Linear;
use crate::output::Output;
use crate::shape::Shape;
use crate::tensor::Vectors;
use crate::types::{Activation, RowOrder};

/// The MLP of a decoder layer in host memory: `down · (silu(gate · x) * (up · x))`, or another [`Gate`] between. Results
/// between the layers are f32.
///
/// ```
/// use nvfp4_gemv::{Linear, Mlp, Output, Vectors};
/// let layer = |rows, k| Linear::from_dense(&vec![1.0f32; rows * k], rows, k);
/// let mlp = Mlp::new(layer(64, 32)?, layer(64, 32)?, layer(32, 64)?)?;
/// let (x, mut y) = ([0.0f32; 2 * 32], [1.0f32; 2 * 32]);
/// mlp.forward(&Vectors::of(&x), 2, Output::of(&mut y))?;
/// assert_eq!(y, [0.0; 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    gate_up: GateUp,
    gate: Gate,
    down: Linear,
}

#[derive(Clone, Debug)]
enum GateUp {
    Apart {
        gate: Linear,
        up: Linear,
    },
    /// One layer, with the rows of both in an order.
    Joined(Linear, RowOrder),
}

impl Mlp {
    /// An MLP of three layers, each with its bias if it has one, with [`Gate::Silu`] between.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`](crate::Error::LayersMismatch) for layers that do not fit each other.
    pub fn new(gate: Linear, up: Linear, down: Linear) -> Result<Self> {
        fits("up's M", up.rows(), "gate's M", gate.rows())?;
        fits("up's K", up.k(), "gate's K", gate.k())?;
        fits("down's K", down.k(), "gate's M", gate.rows())?;
        Ok(Self::of(GateUp::Apart { gate, up }, down))
    }

    /// An MLP whose gate and up are one layer, with the rows of both in this order, with [`Gate::Silu`] between.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`](crate::Error::LayersMismatch) for layers that do not fit each other.
    pub fn joined(gate_up: Linear, order: RowOrder, down: Linear) -> Result<Self> {
        let twice = down.k().saturating_mul(2);
        fits("gate and up's M", gate_up.rows(), "twice down's K", twice)?;
        Ok(Self::of(GateUp::Joined(gate_up, order), down))
    }

    fn of(gate_up: GateUp, down: Linear) -> Self {
        Self {
            gate_up,
            gate: Gate::Silu,
            down,
        }
    }

    /// This MLP with another gate than [`Gate::Silu`].
    ///
    /// # Errors
    /// [`Error::Factor`](crate::Error::Factor) for a gate's number that is not positive and finite.
    pub fn with_gate(self, gate: Gate) -> Result<Self> {
        gate.check()?;
        Ok(Self { gate, ..self })
    }

    /// Computes `n` vectors `[n][K]` into results `[n][M of down]`: as [`Linear::forward`].
    ///
    /// # Errors
    /// As [`Linear::forward`]'s.
    pub fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> Result<()> {
        // Before anything is computed: an output that does not fit is refused at once.
        y.resolve(&self.down.shape(n)?, 1)?;
        let floats = n * self.floats();
        (self.pool()).with_floats(floats, |floats| self.forward_with(floats, x, n, y))
    }

    /// Numbers that a vector needs between the layers: the results of gate and up, and what the gate makes of them.
    pub(crate) fn floats(&self) -> usize {
        3 * self.down.k()
    }

    /// With memory for the numbers between the layers, of any value; the output is known to fit.
    pub(crate) fn forward_with<'a>(
        &'a self,
        floats: &mut [f32],
        x: &Vectors<'_>,
        n: usize,
        y: Output<'a>,
    ) -> Result<()> {
        let (each, all) = (self.down.k(), n * self.down.k());
        let (sums, between) = floats.split_at_mut(2 * all);
        match &self.gate_up {
            GateUp::Apart { gate, up } => {
                let (gates, ups) = sums.split_at_mut(all);
                gate.forward(x, n, Output::of(gates))?;
                up.forward(x, n, Output::of(ups))?;
                let (gates, ups) = (&*gates, &*ups);
                activate(between, each, |v, i, elements| {
                    let at = v * each + i..v * each + i + elements.len();
                    let pairs = gates[at.clone()].iter().zip(&ups[at]);
                    gated(self.gate, elements, pairs);
                });
            }
            GateUp::Joined(layer, order) => {
                layer.forward(x, n, Output::of(sums))?;
                let sums = &*sums;
                activate(between, each, |v, i, elements| {
                    let sums = &sums[2 * v * each..][..2 * each];
                    match order {
                        RowOrder::Stacked => {
                            let (gates, ups) = sums.split_at(each);
                            gated(self.gate, elements, gates[i..].iter().zip(&ups[i..]));
                        }
                        RowOrder::Interleaved => {
                            let pairs = sums[2 * i..].as_chunks::<2>().0.iter();
                            gated(self.gate, elements, pairs.map(|[gate, up]| (gate, up)));
                        }
                    }
                });
            }
        }
        self.down.forward(&Vectors::of(between), n, y)
    }

    /// As [`Linear::prepare`], for all layers.
    ///
    /// # Errors
    /// As [`Linear::prepare`]'s.
    pub fn prepare(&self, n: usize, activation: Activation) -> Result<()> {
        self.prepare_layers(1, n, activation)?;
        self.pool().with_floats(n * self.floats(), |_| Ok(()))
    }

    /// Prepares the layers for so many calls at once.
    pub(crate) fn prepare_layers(
        &self,
        at_once: usize,
        n: usize,
        activation: Activation,
    ) -> Result<()> {
        match &self.gate_up {
            GateUp::Apart { gate, up } => {
                gate.prepare_for(at_once, n, activation)?;
                up.prepare_for(at_once, n, activation)?;
            }
            GateUp::Joined(layer, _) => layer.prepare_for(at_once, n, activation)?,
        }
        self.down.prepare_for(at_once, n, Activation::F32)
    }

    /// The shape of a call of the last layer with `n` vectors.
    pub(crate) fn shape(&self, n: usize) -> Result<Shape> {
        self.down.shape(n)
    }

    /// The layers whose rows, stacked, are those of gate and up, and the order of the rows.
    #[cfg(feature = "device")]
    pub(crate) fn gate_up(&self) -> (Vec<&Linear>, RowOrder) {
        match &self.gate_up {
            GateUp::Apart { gate, up } => (vec![gate, up], RowOrder::Stacked),
            GateUp::Joined(layer, order) => (vec![layer], *order),
        }
    }

    /// The last layer.
    #[cfg(feature = "device")]
    pub(crate) fn down(&self) -> &Linear {
        &self.down
    }

    /// Its layers: gate and up, apart or as one, and down.
    pub fn layers(&self) -> impl Iterator<Item = &Linear> {
        let first = match &self.gate_up {
            GateUp::Apart { gate, up } => [Some(gate), Some(up)],
            GateUp::Joined(layer, _) => [Some(layer), None],
        };
        first.into_iter().flatten().chain([&self.down])
    }

    /// The step between the layers.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The pool that results between layers come from.
    pub(crate) fn pool(&self) -> &Pool {
        self.down.pool()
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        match &self.gate_up {
            GateUp::Apart { gate: layer, .. } | GateUp::Joined(layer, _) => layer.k(),
        }
    }

    /// Elements of a result.
    pub fn rows(&self) -> usize {
        self.down.rows()
    }
}

/// Makes the vectors between the layers, of so many elements each: `make(v, i, elements)` those of vector v from i on.
fn activate(between: &mut [f32], each: usize, make: impl Fn(usize, usize, &mut [f32]) + Sync) {
    let threads = Threads::current();
    threads.for_each_chunk(
        between,
        threads.elements_at_once(),
        |mut at, mut elements| {
            // Elements of one vector, then those of the next one.
            while !elements.is_empty() {
                let (v, first) = (at / each, at % each);
                let (of_vector, rest) = elements.split_at_mut(elements.len().min(each - first));
                at += of_vector.len();
                make(v, first, of_vector);
                elements = rest;
            }
        },
    );
}

/// The gate of pairs of results. A loop for each gate, of which the compiler makes vector code.
fn gated<'a>(gate: Gate, elements: &mut [f32], pairs: impl Iterator<Item = (&'a f32, &'a f32)>) {
    let all = elements.iter_mut().zip(pairs);
    match gate {
        Gate::Silu => all.for_each(|(to, (g, u))| *to = Gate::Silu.of(*g, *u)),
        other => all.for_each(|(to, (g, u))| *to = other.of(*g, *u)),
    }
}
