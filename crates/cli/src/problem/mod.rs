//! Whole problems that own their data: generated to find mistakes, or read from a file to replay
//! one.
//!
//! Every generator is deterministic: the same shape and seed give the same bytes on every machine.
//!
//! ```
//! use nvfp4_gemv::{Options, Output, ScaleLayout, Shape, gemv};
//! use nvfp4_gemv_cli::problem::Problem;
//! let problem = Problem::full_range(Shape::matrix(128, 256)?, 1);
//! let (w, x) = (problem.weights(ScaleLayout::Linear)?, problem.vectors(ScaleLayout::Linear)?);
//! let mut y = vec![0.0; problem.shape.outputs()];
//! gemv(&problem.shape, &w.view()?, &x.view(), Output::of(&mut y), &Options::new())?;
//! let truth = problem.reference()?;
//! assert!((f64::from(y[0]) - truth.y[0]).abs() <= 1e-5 * truth.magnitude[0]);
//! # Ok::<(), nvfp4_gemv::Error>(())
//! ```

mod contest;
mod edge;
mod generate;
mod io;

use std::borrow::Cow;

pub use contest::{CONTEST_BENCHMARKS, CONTEST_TESTS, ContestShape, contest_tolerance};
pub use edge::EdgeCase;

use nvfp4_gemv::reference::{self, Reference};
use nvfp4_gemv::{
    Dims, Error, GlobalScale, Nvfp4Vectors, Result, ScaleLayout, Shape, Strides, VectorScale,
    Vectors, Weights, convert_scales,
};

/// NVFP4 weights and vectors, and perhaps the result they must give.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The dimensions that all lengths below follow from.
    pub shape: Shape,
    /// Weight codes `[L][M][K/2]`, the even element in the low nibble.
    pub a: Vec<u8>,
    /// Weight scales, E4M3, linear `[L][M][K/16]`.
    pub sfa: Vec<u8>,
    /// Vector codes `[L][N][K/2]`.
    pub b: Vec<u8>,
    /// Vector scales, E4M3, linear `[L][N][K/16]`.
    pub sfb: Vec<u8>,
    /// Factors of the result: one number, or one for each of the M rows. Another length is an error where it is used.
    pub alpha: Option<Vec<f32>>,
    /// The expected result `[L][N][M]`.
    pub c: Option<Vec<f64>>,
}

/// How far a result may lie from the one that is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// Not at all.
    Exact,
    /// As far as [`contest_tolerance`] says.
    Contest,
    /// As far as a bound that follows from the operands and the kernel's roundings.
    #[default]
    Derived,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Contest, Self::Derived];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Contest => "contest",
            Self::Derived => "derived",
        }
    }

    /// The rule of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

impl Problem {
    /// The weights with their scales in `layout`; owns the scales if they had to be converted.
    ///
    /// # Errors
    /// Fields whose lengths contradict the shape.
    pub fn weights(&self, layout: ScaleLayout) -> Result<WeightData<'_>> {
        let (m, k, l) = (self.shape.m(), self.shape.k(), self.shape.l());
        Ok(WeightData {
            shape: self.shape,
            codes: &self.a,
            scales: in_layout(&self.sfa, layout, m, k, l)?,
            layout,
            alpha: self.alpha.as_deref(),
        })
    }

    /// The vectors with their scales in `layout`; owns the scales if they had to be converted.
    ///
    /// # Errors
    /// Fields whose lengths contradict the shape.
    pub fn vectors(&self, layout: ScaleLayout) -> Result<VectorData<'_>> {
        let (n, k, l) = (self.shape.n(), self.shape.k(), self.shape.l());
        Ok(VectorData {
            codes: Cow::Borrowed(&self.b),
            scales: in_layout(&self.sfb, layout, n, k, l)?,
            layout,
            code_strides: None,
            scale_strides: None,
        })
    }

    /// The vectors as the contest passes them: rows 0..N of 128, or of the next multiple of 128. The other rows are
    /// arbitrary bytes, some of which are no valid scales, so that a kernel that reads them is found out.
    ///
    /// # Errors
    /// Fields whose lengths contradict the shape; rows that are too many for one.
    pub fn padded_vectors(&self, layout: ScaleLayout, seed: u64) -> Result<VectorData<'_>> {
        let (n, k, l) = (self.shape.n(), self.shape.k(), self.shape.l());
        let all = n.next_multiple_of(128);
        // All sizes below are those of a shape's operands.
        Shape::new(Dims { m: all, n: 1, k, l })?;
        let blocks = self.shape.blocks();
        for (operand, field, row) in [
            ("vector codes", &self.b, k / 2),
            ("vector scales", &self.sfb, blocks),
        ] {
            let (got, needed) = (field.len(), l * n * row);
            if got < needed {
                return Err(Error::BufferTooShort {
                    operand,
                    unit: "bytes",
                    needed,
                    got,
                    hint: String::new(),
                });
            }
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut pad = |rows: &[u8], row: usize| {
            let mut padded = vec![0; l * all * row];
            rng.fill(&mut padded);
            for batch in 0..l {
                padded[batch * all * row..][..n * row]
                    .copy_from_slice(&rows[batch * n * row..][..n * row]);
            }
            padded
        };
        let codes = pad(&self.b, k / 2);
        let scales = pad(&self.sfb, blocks);
        let strides = |row| Strides {
            row,
            batch: all * row,
        };
        let scale_strides = match layout {
            ScaleLayout::Linear => strides(blocks),
            ScaleLayout::Tiled128x4 => Strides {
                row: 0,
                batch: layout.bytes(all, blocks),
            },
        };
        let scales = in_layout(&scales, layout, all, k, l)?.into_owned();
        Ok(VectorData {
            codes: Cow::Owned(codes),
            scales: Cow::Owned(scales),
            layout,
            code_strides: Some(strides(k / 2)),
            scale_strides: Some(scale_strides),
        })
    }

    /// The vectors `[L][N][K]` as plain numbers, for paths with 16 or 32-bit activations. Every
    /// one is exact in f16, bf16 and f32: E2M1 has 2 significant bits, E4M3 has 4.
    ///
    /// # Errors
    /// Fields whose lengths contradict the shape.
    pub fn decoded_vectors(&self) -> Result<Vec<f32>> {
        let data = self.vectors(ScaleLayout::Linear)?;
        let x = reference::decode_vectors(&self.shape, &data.view())?;
        Ok(x.into_iter().map(|x| x as f32).collect())
    }

    /// The true result, computed in f64.
    ///
    /// # Errors
    /// Fields that contradict the shape, or content that a GEMV refuses.
    pub fn reference(&self) -> Result<Reference> {
        reference::gemv(
            &self.shape,
            &self.weights(ScaleLayout::Linear)?.view()?,
            &self.vectors(ScaleLayout::Linear)?.view(),
        )
    }

    /// Gives every row an alpha of its own, positive or negative, of magnitude 0.5 to 2 times
    /// the common one.
    #[must_use]
    pub fn with_row_alpha(mut self, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let common = match self.alpha.as_deref() {
            Some(&[alpha]) => alpha,
            _ => 1.0,
        };
        let alpha = (0..self.shape.m())
            .map(|_| common * (0.5 + 1.5 * rng.f32()) * if rng.bool() { 1.0 } else { -1.0 })
            .collect();
        self.alpha = Some(alpha);
        self
    }
}

/// The scales in `layout`: as they are where they are linear already.
fn in_layout(
    linear: &[u8],
    layout: ScaleLayout,
    rows: usize,
    k: usize,
    batches: usize,
) -> Result<Cow<'_, [u8]>> {
    match layout {
        ScaleLayout::Linear => Ok(Cow::Borrowed(linear)),
        ScaleLayout::Tiled128x4 => {
            convert_scales(linear, ScaleLayout::Linear, layout, rows, k, batches).map(Cow::Owned)
        }
    }
}

/// The source that a view of a problem's weights borrows from.
#[derive(Clone, Debug)]
pub struct WeightData<'a> {
    shape: Shape,
    /// Codes `[L][M][K/2]`.
    pub codes: &'a [u8],
    /// Scales in [`layout`](Self::layout).
    pub scales: Cow<'a, [u8]>,
    /// The layout of the scales.
    pub layout: ScaleLayout,
    /// One factor, or one for each row.
    pub alpha: Option<&'a [f32]>,
}

impl WeightData<'_> {
    /// The one factor for all rows.
    pub fn global(&self) -> GlobalScale {
        match self.alpha {
            Some(&[alpha]) if self.row_alpha().is_none() => GlobalScale::Multiplier(alpha),
            _ => GlobalScale::ONE,
        }
    }

    /// The factors of the rows, where each has its own. Unlike the common one, they may be
    /// negative or zero, so a single row's counts as its own.
    pub fn row_alpha(&self) -> Option<&[f32]> {
        self.alpha.filter(|alpha| alpha.len() == self.shape.m())
    }

    /// The validated view.
    ///
    /// # Errors
    /// Refusals of [`Weights::new`] and [`Weights::with_row_alpha`]; [`Error::AlphaLength`].
    pub fn view(&self) -> Result<Weights<'_>> {
        let rows = self.shape.m();
        let got = self.alpha.map_or(1, <[f32]>::len);
        if got != 1 && got != rows {
            return Err(Error::AlphaLength { got, rows });
        }
        let (scales, layout) = (&self.scales, self.layout);
        let weights = Weights::new(&self.shape, self.codes, scales, layout, self.global())?;
        match self.row_alpha() {
            Some(alpha) => weights.with_row_alpha(alpha),
            None => Ok(weights),
        }
    }
}

/// The source that a view of a problem's vectors borrows from.
#[derive(Clone, Debug)]
pub struct VectorData<'a> {
    /// Codes `[L][N][K/2]`, or as the strides say.
    pub codes: Cow<'a, [u8]>,
    /// Scales in [`layout`](Self::layout).
    pub scales: Cow<'a, [u8]>,
    /// The layout of the scales.
    pub layout: ScaleLayout,
    /// Strides of the codes in bytes, where they are not densely packed.
    pub code_strides: Option<Strides>,
    /// Strides of the scales in bytes, where they are not densely packed.
    pub scale_strides: Option<Strides>,
}

impl VectorData<'_> {
    /// The view. It is validated when it is used.
    pub fn view(&self) -> Vectors<'_> {
        let mut vectors = Nvfp4Vectors::new(
            &*self.codes,
            &*self.scales,
            self.layout,
            VectorScale::Shared(GlobalScale::ONE),
        );
        if let Some(strides) = self.code_strides {
            vectors = vectors.with_code_strides(strides);
        }
        if let Some(strides) = self.scale_strides {
            vectors = vectors.with_scale_strides(strides);
        }
        Vectors::Nvfp4(vectors)
    }
}
