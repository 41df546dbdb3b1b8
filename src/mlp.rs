//! The MLP of a decoder layer: gate and up, the computation between, and down.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::linear::Linear;
use crate::output::Output;
use crate::tensor::Vectors;
use crate::types::Activation;

/// The MLP of a decoder layer in host memory: `down · (silu(gate · x) * (up · x))`. Results between the layers are f32.
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
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Elements that a thread computes at once.
const AT_ONCE: usize = 4096;

impl Mlp {
    /// An MLP of three layers, each with its bias if it has one.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`] for layers that do not fit each other.
    pub fn new(gate: Linear, up: Linear, down: Linear) -> Result<Self> {
        let fits = |dimension, found: usize, of, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(Error::LayersMismatch {
                dimension,
                found,
                of,
                expected,
            }),
        };
        fits("up's M", up.rows(), "gate's M", gate.rows())?;
        fits("up's K", up.k(), "gate's K", gate.k())?;
        fits("down's K", down.k(), "gate's M", gate.rows())?;
        Ok(Self { gate, up, down })
    }

    /// Computes `n` vectors `[n][K]` into results `[n][M of down]`: as [`Linear::forward`].
    ///
    /// # Errors
    /// As [`Linear::forward`]'s.
    pub fn forward<'a>(&'a self, x: &Vectors<'_>, n: usize, y: Output<'a>) -> Result<()> {
        let between = self.gate.shape(n)?.outputs();
        // Before anything is computed: an output that does not fit is refused at once.
        y.resolve(&self.down.shape(n)?, 1)?;
        self.gate.pool().with_floats(2 * between, |floats| {
            let (gate, up) = floats.split_at_mut(between);
            self.gate.forward(x, n, Output::of(gate))?;
            self.up.forward(x, n, Output::of(up))?;
            let some = |(gate, up): (&mut [f32], &[f32])| {
                for (gate, up) in gate.iter_mut().zip(up) {
                    *gate = silu(*gate) * up;
                }
            };
            let parts = gate.par_chunks_mut(AT_ONCE).zip(up.par_chunks(AT_ONCE));
            parts.for_each(some);
            self.down.forward(&Vectors::of(gate), n, y)
        })
    }

    /// As [`Linear::prepare`], for all three layers.
    ///
    /// # Errors
    /// As [`Linear::prepare`]'s.
    pub fn prepare(&self, n: usize, activation: Activation) -> Result<()> {
        self.gate.prepare(n, activation)?;
        self.up.prepare(n, activation)?;
        self.down.prepare(n, Activation::F32)?;
        let between = 2 * self.gate.shape(n)?.outputs();
        self.gate.pool().with_floats(between, |_| Ok(()))
    }

    /// Elements of a vector.
    pub fn k(&self) -> usize {
        self.gate.k()
    }

    /// Elements of a result.
    pub fn rows(&self) -> usize {
        self.down.rows()
    }
}

/// `x / (1 + exp(-x))`, the activation between the layers of an MLP.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
