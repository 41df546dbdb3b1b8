//! The safe call on host memory: check everything, choose, run.

use std::sync::Arc;

use crate::cpu::{self, Accuracy, Manner};
use crate::dispatch::{self, Choice, Options, Target};
use crate::error::Result;
use crate::operands::Operands;
use crate::output::Output;
use crate::shape::Shape;
use crate::tensor::{Vectors, Weights};
use crate::types::{Activation, ScaleLayout};

/// Computes `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]` of operands in host memory, on the CPU. The [`Choice`] that
/// it returns says so. [`Options`] that ask for a GPU's path are an error: operands are computed where they lie.
///
/// The output has every element written or, on an error, none.
///
/// Rows are spread over the threads of rayon's current pool, or over [`Workers`](crate::cpu::Workers). A child of `fork` has none of them: if its parent has
/// computed before, a call in the child waits for ever. So fork first; or run another program; or let the child compute
/// in a pool of its own, `rayon::ThreadPool::install`.
///
/// # Errors
/// Operands that contradict the shape; scales that are NaN or negative; options that contradict each other, or ask for
/// something that cannot run. Nothing is computed then.
///
/// ```
/// use nvfp4_gemv::{gemv, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights};
/// let shape = Shape::matrix(2, 16)?;
/// let codes = [0x22; 16]; // every element is 1.0
/// let scales = [0x38, 0x40]; // 1.0 for the first row, 2.0 for the second
/// let w = Weights::new(&shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::ONE)?;
/// let x = [1.0f32; 16];
/// let mut y = [0.0f32; 2];
/// let choice = gemv(&shape, &w, &Vectors::of(&x), Output::of(&mut y), &Options::new())?;
/// assert_eq!(y, [16.0, 32.0]);
/// println!("{}: {}", choice.path, choice.reason);
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn gemv(
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    output: Output<'_>,
    options: &Options<'_>,
) -> Result<Choice> {
    let prepared = PreparedGemv::new(shape, weights, options)?;
    prepared.run(vectors, output)?;
    Ok(prepared.choice)
}

/// A GEMV of host weights that was checked and dispatched once, for any number of vectors that come later.
///
/// Prepared calls of a process share memory for intermediate data, which is freed with the last of them. A call
/// allocates nothing where an earlier one of its shape, or [`reserve`](Self::reserve), has made the memory. The one
/// exception is rayon's queue, in which a call from a thread outside of rayon's pool makes room now and then.
///
/// ```
/// use nvfp4_gemv::{
///     GlobalScale, Options, Output, PreparedGemv, ScaleLayout, Shape, Vectors, Weights,
/// };
/// let shape = Shape::matrix(2, 16)?;
/// let w = Weights::new(
///     &shape, &[0x22; 16], &[0x38, 0x40], ScaleLayout::Linear, GlobalScale::ONE,
/// )?;
/// let gemv = PreparedGemv::new(&shape, &w, &Options::new())?;
/// for step in 0..3 {
///     let mut y = [0.0f32; 2];
///     gemv.run(&Vectors::of(&[step as f32; 16]), Output::of(&mut y))?;
///     assert_eq!(y, [16.0 * step as f32, 32.0 * step as f32]);
/// }
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PreparedGemv<'a, 'w> {
    shape: Shape,
    weights: &'a Weights<'w>,
    choice: Choice,
    manner: Manner,
    pool: Arc<cpu::Pool>,
}

impl<'a, 'w> PreparedGemv<'a, 'w> {
    /// Prepares [`gemv()`] with these weights, whose scales were looked at when they were made.
    ///
    /// # Errors
    /// As [`gemv()`]'s about weights and options.
    pub fn new(shape: &Shape, weights: &'a Weights<'w>, options: &Options<'_>) -> Result<Self> {
        let choice = choice_on_host(shape, weights.layout(), options)?;
        weights.check(shape)?;
        Ok(Self {
            shape: *shape,
            weights,
            choice,
            manner: Manner {
                accuracy: Accuracy::Exact,
                batch_invariant: options.is_batch_invariant(),
            },
            pool: cpu::Pool::shared(),
        })
    }

    /// These calls with vectors that need not be multiplied exactly.
    #[must_use]
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        let manner = Manner {
            accuracy,
            ..self.manner
        };
        Self { manner, ..self }
    }

    /// Makes memory for vectors of a type now, so that the first call allocates nothing either. Calls that run at the
    /// same time need a set of memory each; the first time that they do, they make it themselves.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn reserve(&self, activation: Activation) -> Result<()> {
        let weights = self.weights;
        let has_column_alpha = weights.column_alpha.is_some();
        let vectors = (activation, self.manner);
        (self.pool).reserve(1, &self.shape, weights.layout, vectors, has_column_alpha)
    }

    /// Computes it. The output has every element written or, on an error, none.
    ///
    /// # Errors
    /// Vectors or an output that contradict the shape; vectors' scales that are NaN or negative.
    pub fn run(&self, vectors: &Vectors<'_>, output: Output<'_>) -> Result<()> {
        let how = (&*self.pool, self.manner);
        cpu::gemv(&self.shape, self.weights, vectors, output, how)
    }

    /// The shape it was prepared for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The path that computes it, and the reason for the choice.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }
}

/// The choice for operands in host memory, where nothing depends on what the vectors are.
pub(crate) fn choice_on_host(
    shape: &Shape,
    layout: ScaleLayout,
    options: &Options<'_>,
) -> Result<Choice> {
    let operands = Operands::new(Activation::Nvfp4, layout);
    dispatch::select(shape, &operands, Target::Host, options)
}
