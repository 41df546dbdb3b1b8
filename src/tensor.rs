//! The operands: NVFP4 weights, vectors, outputs. All borrow their buffers, which are checked against the [`Shape`]
//! before anything runs.

use half::{bf16, f16};

use crate::check::{self, Batches};
use crate::element::{Element, Floats};
use crate::error::{Error, Result};
use crate::format::e4m3;
use crate::memory::{Buffer, Host, Memory};
use crate::shape::{Shape, Strides};
use crate::types::{Activation, ScaleLayout};

/// The FP32 scale of a whole tensor, and which way round it is meant.
///
/// ModelOpt stores a multiplier (`weight_scale_2`), compressed-tensors a divisor
/// (`weight_global_scale`). Confusing the two is off by a factor of 10^6 or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GlobalScale {
    /// `x = code · block_scale · value`
    Multiplier(f32),
    /// `x = code · block_scale / value`
    Divisor(f32),
}

impl GlobalScale {
    /// No global scale: a multiplier of 1.
    pub const ONE: Self = Self::Multiplier(1.0);

    /// The number as stored.
    pub const fn stored(self) -> f32 {
        match self {
            Self::Multiplier(value) | Self::Divisor(value) => value,
        }
    }

    /// The factor that stands for this scale, in f64, where a divisor's reciprocal loses nothing that f32 would hold.
    pub fn multiplier(self) -> f64 {
        match self {
            Self::Multiplier(value) => f64::from(value),
            Self::Divisor(value) => 1.0 / f64::from(value),
        }
    }

    /// The multiplier in f32, for the quantiser, which takes any that is positive and finite.
    #[doc(hidden)]
    pub fn as_multiplier(self, operand: &'static str) -> Result<f32> {
        let value = self.multiplier() as f32;
        positive(operand, self.stored())?;
        positive(operand, value)
    }

    /// The global scale of an operand: positive, finite and normal in f32, as stored and as a multiplier.
    pub(crate) fn check(self, operand: &'static str) -> Result<Self> {
        let value = self.stored();
        let usable = |value: f32| value > 0.0 && value.is_normal();
        if usable(value) && usable(self.multiplier() as f32) {
            Ok(self)
        } else {
            Err(Error::GlobalScale { operand, value })
        }
    }
}

/// A factor that is positive and finite.
fn positive(operand: &'static str, value: f32) -> Result<f32> {
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(Error::GlobalScale { operand, value })
    }
}

/// NVFP4 weights `[L][M][K]`: packed E2M1 codes `[L][M][K/2]`, E4M3 block scales, a global scale.
#[derive(Debug)]
pub struct Weights<'a, S: Memory = Host> {
    pub(crate) shape: Shape,
    pub(crate) codes: S::Slice<'a, u8>,
    pub(crate) scales: S::Slice<'a, u8>,
    pub(crate) layout: ScaleLayout,
    pub(crate) global: GlobalScale,
    pub(crate) row_alpha: Option<S::Slice<'a, f32>>,
    /// K factors, or K of each matrix, which vectors are multiplied by. Only host memory has them.
    pub(crate) column_alpha: Option<S::Slice<'a, f32>>,
    /// The matrix of each batch.
    pub(crate) select: Option<S::Slice<'a, i32>>,
    /// Whether the launch before a chained one may write `select`.
    #[cfg_attr(
        not(feature = "device"),
        allow(dead_code, reason = "ids on a device may be late")
    )]
    pub(crate) late: bool,
    /// Whether no two batches are expected to select the same matrix.
    #[cfg_attr(
        not(feature = "device"),
        allow(dead_code, reason = "ids on a device are not known")
    )]
    pub(crate) distinct: bool,
}

pub(crate) const WEIGHT_SCALES: &str = "weight scales";
/// The id of a batch without a matrix.
pub(crate) const NO_MATRIX: i32 = -1;

impl<'a, S: Memory> Weights<'a, S> {
    /// Lengths and the global scale are checked; the content of the scales is not.
    fn with_checked_lengths(
        shape: &Shape,
        codes: S::Slice<'a, u8>,
        scales: S::Slice<'a, u8>,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        let bytes = shape.weight_code_bytes();
        check::len("weight codes", "bytes", codes.count(), bytes)?;
        let (m, batch) = (shape.m(), layout.bytes(shape.m(), shape.blocks()));
        check::scales_len(WEIGHT_SCALES, scales.count(), layout, shape, m, batch)?;
        let global = global.check("weight global scale")?;
        Ok(Self::of_checked(shape, codes, scales, layout, global, None))
    }

    /// Of parts that were checked.
    pub(crate) fn of_checked(
        shape: &Shape,
        codes: S::Slice<'a, u8>,
        scales: S::Slice<'a, u8>,
        layout: ScaleLayout,
        global: GlobalScale,
        row_alpha: Option<S::Slice<'a, f32>>,
    ) -> Self {
        Self {
            shape: *shape,
            codes,
            scales,
            layout,
            global,
            row_alpha,
            column_alpha: None,
            select: None,
            late: false,
            distinct: false,
        }
    }

    fn with_checked_row_alpha(mut self, alpha: S::Slice<'a, f32>) -> Result<Self> {
        check::of_rows("row alpha", self.shape.m(), self.shape.l(), alpha.count())?;
        self.row_alpha = Some(alpha);
        Ok(self)
    }

    /// Elements from one matrix's row alphas to the next's: 0 where all matrices share M of them.
    pub(crate) fn row_alpha_batch_stride(&self) -> usize {
        match &self.row_alpha {
            Some(alpha) if alpha.count() == self.shape.m() * self.shape.l() => self.shape.m(),
            _ => 0,
        }
    }

    /// Layout of the scales.
    pub fn layout(&self) -> ScaleLayout {
        self.layout
    }

    /// The shape the weights were checked against. Its N means nothing here.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Refuses a selection.
    #[doc(hidden)]
    pub fn all(&self, wants: &'static str) -> Result<()> {
        match self.select {
            None => Ok(()),
            Some(_) => Err(Error::Selected { wants }),
        }
    }

    /// Checks that these weights fit `shape`, whose N may differ from the one they were made with. A selection has an
    /// id for each batch.
    #[doc(hidden)]
    pub fn check(&self, shape: &Shape) -> Result<()> {
        let (m, k, l) = (self.shape.m(), self.shape.k(), self.shape.l());
        let l = self.select.as_ref().map_or(l, |select| select.count());
        match m == shape.m() && k == shape.k() && l == shape.l() {
            true => Ok(()),
            false => Err(Error::ShapeMismatch {
                weights: [m, k, l],
                call: [shape.m(), shape.k(), shape.l()],
            }),
        }
    }
}

impl<'a> Weights<'a> {
    /// Weights in host memory. Reads every scale once, to refuse NaN and negative ones: make the
    /// view once and keep it.
    ///
    /// # Errors
    /// Buffers that are too short or too long, a layout that contradicts the length, a NaN or negative block scale, a
    /// global scale that is [not usable](Error::GlobalScale).
    ///
    /// ```
    /// use nvfp4_gemv::{GlobalScale, ScaleLayout, Shape, Weights};
    /// let shape = Shape::matrix(2, 16)?;
    /// let codes = [0x22; 16]; // every element is 1.0
    /// let scales = [0x38, 0x40]; // 1.0 for the first row, 2.0 for the second
    /// let w = Weights::new(&shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::ONE)?;
    /// assert_eq!(w.layout(), ScaleLayout::Linear);
    /// # Ok::<(), nvfp4_gemv::Error>(())
    /// ```
    pub fn new(
        shape: &Shape,
        codes: &'a [u8],
        scales: &'a [u8],
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        let weights = Self::with_checked_lengths(shape, codes, scales, layout, global)?;
        let strides = Strides {
            row: shape.blocks(),
            batch: layout.bytes(shape.m(), shape.blocks()),
        };
        scan_scales(WEIGHT_SCALES, scales, layout, shape, shape.m(), strides)?;
        Ok(weights)
    }

    /// Multiplies row `m` of the result by `alpha[m]`, on top of the global scale: the parts
    /// of a fused layer (q, k and v; gate and up) have a global scale each. M elements that all batches share, or L·M.
    ///
    /// # Errors
    /// A slice of neither M nor L·M elements; an element that is NaN or infinite.
    pub fn with_row_alpha(self, alpha: &'a [f32]) -> Result<Self> {
        if let Some((index, &value)) = alpha.iter().enumerate().find(|(_, a)| !a.is_finite()) {
            return Err(Error::RowAlpha { index, value });
        }
        self.with_checked_row_alpha(alpha)
    }

    /// Multiplies element `k` of each vector by `alpha[k]` before the product: AWQ's `pre_quant_scale`. K factors that
    /// all matrices share, or L·K: those of each matrix, which experts have. The product of an element and its factor is
    /// rounded to f32, once. Vectors then count as f32,
    /// with one more [rounding](crate::reference::error_bound) than those have. NVFP4 vectors are refused, since they
    /// were quantised without the factors: multiply before quantising, and take these weights
    /// [without](Self::without_column_alpha).
    ///
    /// # Errors
    /// A slice of neither K nor L·K elements; an element that is NaN or infinite.
    pub fn with_column_alpha(mut self, alpha: &'a [f32]) -> Result<Self> {
        check_column_alpha(alpha, &self.shape)?;
        self.column_alpha = Some(alpha);
        Ok(self)
    }

    /// These weights without [factors of columns](Self::with_column_alpha): for vectors that were multiplied by them.
    #[must_use]
    pub fn without_column_alpha(self) -> Self {
        Self {
            column_alpha: None,
            ..self
        }
    }

    /// Refuses factors of columns.
    #[doc(hidden)]
    pub fn no_column_alpha(&self, why: &'static str) -> Result<()> {
        match self.column_alpha {
            None => Ok(()),
            Some(_) => Err(Error::HasColumnAlpha { why }),
        }
    }

    /// The codes, as they were given.
    pub fn codes(&self) -> &'a [u8] {
        self.codes
    }

    /// The block scales, as they were given.
    pub fn scales(&self) -> &'a [u8] {
        self.scales
    }

    /// The global scale.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The factors of [`with_row_alpha`](Self::with_row_alpha).
    pub fn row_alpha(&self) -> Option<&'a [f32]> {
        self.row_alpha
    }

    /// The factors of [`with_column_alpha`](Self::with_column_alpha).
    pub fn column_alpha(&self) -> Option<&'a [f32]> {
        self.column_alpha
    }
}

/// Why factors of columns are refused with NVFP4 vectors.
pub(crate) const NVFP4_ARE_WITHOUT: &str = "NVFP4 vectors were quantised without them";

/// Refuses factors of columns that are neither K nor L·K finite numbers.
pub(crate) fn check_column_alpha(alpha: &[f32], shape: &Shape) -> Result<()> {
    check::of_rows("column alpha", shape.k(), shape.l(), alpha.len())?;
    match alpha.iter().enumerate().find(|(_, a)| !a.is_finite()) {
        None => Ok(()),
        Some((index, &value)) => Err(Error::ColumnAlpha { index, value }),
    }
}

impl Weights<'_> {
    /// These weights for batches that each say which matrix they have: batch l has matrix `ids[l]`. A call has as many
    /// batches as there are ids. Experts of a mixture are matrices of one array, for example. Row factors are the
    /// matrices', and so is a [bias](crate::Output::with_bias) that is not shared: L of these weights is their number.
    ///
    /// A batch with the id -1 has no matrix, and is skipped: its results are its residual's, or 0.
    ///
    /// # Errors
    /// [`Error::Select`] for the number of a matrix that does not exist, [`Error::Selected`] where these weights are a
    /// selection.
    ///
    /// ```
    /// use nvfp4_gemv::{gemv, Dims, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights};
    /// let experts = Shape::new(Dims { m: 1, n: 1, k: 16, l: 3 })?;
    /// let scales = [0x38, 0x40, 0x48]; // all weights of the experts are 1, 2 and 4
    /// let w = Weights::new(&experts, &[0x22; 24], &scales, ScaleLayout::Linear, GlobalScale::ONE)?;
    /// let shape = Shape::new(Dims { m: 1, n: 1, k: 16, l: 2 })?;
    /// let mut y = [0.0f32; 2];
    /// let x = [1.0f32; 32];
    /// gemv(&shape, &w.select(&[2, 0])?, &Vectors::of(&x), Output::of(&mut y), &Options::new())?;
    /// assert_eq!(y, [64.0, 16.0]);
    /// # Ok::<(), nvfp4_gemv::Error>(())
    /// ```
    pub fn select<'s>(&'s self, ids: &'s [i32]) -> Result<Weights<'s>> {
        self.all("a selection is of")?;
        let matrices = self.shape.l();
        let none = |&(_, &id): &(usize, &i32)| {
            id != NO_MATRIX && usize::try_from(id).map_or(true, |id| id >= matrices)
        };
        if let Some((batch, &id)) = ids.iter().enumerate().find(none) {
            return Err(Error::Select {
                batch,
                id,
                matrices,
            });
        }
        Ok(Weights {
            select: Some(ids),
            ..*self
        })
    }

    /// The factors of columns of a batch's matrix, where there are factors and a matrix.
    pub(crate) fn column_alpha_of(&self, batch: usize) -> Option<&[f32]> {
        let (alpha, k) = (self.column_alpha?, self.shape.k());
        match alpha.len() == k {
            true => Some(alpha),
            false => alpha.chunks(k).nth(self.matrix_of(batch)?),
        }
    }

    /// Whether matrices have factors of columns of their own.
    pub(crate) fn has_column_alpha_each(&self) -> bool {
        let k = self.shape.k();
        self.column_alpha.is_some_and(|alpha| alpha.len() != k)
    }

    /// The matrix of a batch, if it has one.
    pub(crate) fn matrix_of(&self, batch: usize) -> Option<usize> {
        match self.select {
            None => Some(batch),
            Some(ids) => usize::try_from(ids[batch]).ok(), // NO_MATRIX is the one negative number
        }
    }
}

#[cfg(feature = "device")]
impl<'a> Weights<'a, crate::Device> {
    /// Weights in a device's memory. The content of the scales is not looked at.
    ///
    /// # Errors
    /// Buffers that are too short or too long, a layout that contradicts the length, a global scale that is
    /// [not usable](Error::GlobalScale).
    pub fn on_device(
        shape: &Shape,
        codes: cudarc::driver::CudaView<'a, u8>,
        scales: cudarc::driver::CudaView<'a, u8>,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        Self::with_checked_lengths(shape, codes, scales, layout, global)
    }

    /// As [`Weights::select`], in place of an earlier selection; the content is not looked at, and may change between
    /// launches and between replays of a CUDA graph. A batch with a negative id other than -1, or with the number of a
    /// matrix that does not exist, has NaN as its results. A chained launch reads ids before it waits for the launch
    /// before it, as it reads codes. Whoever asks for a chained launch promises that the ids are complete
    /// ([`Options`](crate::Options#chained-launches)), or says that they are [late](Self::late).
    pub fn select_on_device<'s>(
        &'s self,
        ids: cudarc::driver::CudaView<'s, i32>,
    ) -> Weights<'s, crate::Device> {
        Weights {
            shape: self.shape,
            codes: self.codes.slice(..),
            scales: self.scales.slice(..),
            layout: self.layout,
            global: self.global,
            row_alpha: self.row_alpha.as_ref().map(|alpha| alpha.slice(..)),
            column_alpha: None,
            select: Some(ids),
            late: false,
            distinct: false,
        }
    }

    /// These weights with ids that the launch before a chained launch may write, a router's for example. The chained
    /// launch then reads ids, and asks for weights, only when the launch before it has ended. All ids are late that
    /// another launch of the chain writes, also one further back: a launch that does not wait has no order to it.
    #[must_use]
    pub fn late(self) -> Self {
        Weights { late: true, ..self }
    }

    /// These weights with ids of which no two are expected to be equal, as the experts of a single token. The choice of
    /// the kernel then does not count on matrices that several batches share. Results are right whatever the ids are.
    #[must_use]
    pub fn distinct(self) -> Self {
        Weights {
            distinct: true,
            ..self
        }
    }

    /// As [`Weights::with_row_alpha`]; the content is not looked at.
    ///
    /// # Errors
    /// A view of neither M nor L·M elements.
    pub fn with_row_alpha_on_device(
        self,
        alpha: cudarc::driver::CudaView<'a, f32>,
    ) -> Result<Self> {
        self.with_checked_row_alpha(alpha)
    }
}

/// The global scale of NVFP4 vectors.
#[derive(Debug)]
pub enum VectorScale<'a, S: Memory = Host> {
    /// One global scale for all vectors.
    Shared(GlobalScale),
    /// A multiplier for each vector, `[L][N]`.
    PerVector(S::Slice<'a, f32>),
}

impl<S: Memory> VectorScale<'_, S> {
    /// The shared scale, or 1 where every vector has its own.
    pub(crate) fn shared(&self) -> GlobalScale {
        match *self {
            Self::Shared(global) => global,
            Self::PerVector(_) => GlobalScale::ONE,
        }
    }
}

/// NVFP4 vectors `[L][N][K]`, with strides, so that padded arrays are read in place.
#[derive(Debug)]
pub struct Nvfp4Vectors<'a, S: Memory = Host> {
    pub(crate) codes: S::Slice<'a, u8>,
    pub(crate) scales: S::Slice<'a, u8>,
    pub(crate) layout: ScaleLayout,
    pub(crate) global: VectorScale<'a, S>,
    pub(crate) digits: usize,
    code_strides: Option<Strides>,
    scale_strides: Option<Strides>,
}

const VECTOR_SCALES: &str = "vector scales";

impl<'a, S: Memory> Nvfp4Vectors<'a, S> {
    /// Densely packed vectors: codes `[L][N][K/2]`; scales `[L][N][K/16]`, or N rows of the 128x4 layout a batch. The
    /// buffers are checked when they are used.
    pub fn new(
        codes: S::Slice<'a, u8>,
        scales: S::Slice<'a, u8>,
        layout: ScaleLayout,
        global: VectorScale<'a, S>,
    ) -> Self {
        Self {
            codes,
            scales,
            layout,
            global,
            digits: 1,
            code_strides: None,
            scale_strides: None,
        }
    }

    /// These vectors, each of so many *digits*: NVFP4 vectors that follow each other, of which each counts an eighth of
    /// the one before. A vector is their sum, times its global scale. So there are N · digits rows of codes and of
    /// scales, row n · digits + d for digit d of vector n, and N global scales.
    /// [`quantize_digits`](crate::quantize::quantize_digits) makes them, and says how close they come to the vector that
    /// they stand for. They may be 1 to [`MOST_DIGITS`](Self::MOST_DIGITS), which is checked when they are used.
    #[must_use]
    pub fn with_digits(self, digits: usize) -> Self {
        Self { digits, ..self }
    }

    /// The most digits of a vector.
    pub const MOST_DIGITS: usize = crate::shape::MOST_DIGITS;

    /// Steps between rows and batches of codes, in bytes. On a device, multiples of 8. A step of 0 between batches: all
    /// batches have the same codes.
    pub fn with_code_strides(mut self, strides: Strides) -> Self {
        self.code_strides = Some(strides);
        self
    }

    /// Steps between rows and batches of scales, in bytes. The 128x4 layout fixes its rows; only
    /// its batch stride is used. A step of 0 between batches: all batches have the same scales.
    pub fn with_scale_strides(mut self, strides: Strides) -> Self {
        self.scale_strides = Some(strides);
        self
    }

    /// Strides in bytes of codes and scales, after checking that the buffers hold what they reach.
    pub(crate) fn resolve(&self, shape: &Shape) -> Result<Nvfp4Layout> {
        let (vectors, shape) = (shape.n(), &shape.of_digits(self.digits)?);
        let (n, l, blocks) = (shape.n(), shape.l(), shape.blocks());
        let (row, got) = (shape.row_code_bytes(), self.codes.count());
        let codes = check::resolve(
            "vector codes",
            "bytes",
            self.code_strides,
            shape,
            row,
            got,
            Batches::MayBeShared,
        )?;
        let got = self.scales.count();
        let check_len = |batch| check::scales_len(VECTOR_SCALES, got, self.layout, shape, n, batch);
        let packed = Strides::packed(n, blocks);
        let scales = match self.layout {
            ScaleLayout::Linear if self.scale_strides.is_none_or(|given| given == packed) => {
                check_len(packed.batch)?;
                packed
            }
            ScaleLayout::Linear => {
                let given = self.scale_strides;
                check::resolve(
                    VECTOR_SCALES,
                    "bytes",
                    given,
                    shape,
                    blocks,
                    got,
                    Batches::MayBeShared,
                )?
            }
            ScaleLayout::Tiled128x4 => {
                let bytes = self.layout.bytes(n, blocks);
                let given = self.scale_strides.map_or(bytes, |s| s.batch);
                // A stride between batches is not used where there is no other batch, whatever was given.
                let batch = if l > 1 { given } else { bytes };
                if l > 1 {
                    Batches::MayBeShared.check(VECTOR_SCALES, "bytes", batch, bytes)?;
                }
                // The last batch may be padded as well, also where it is the only one.
                check_len(if batch == 0 { 0 } else { given.max(bytes) })?;
                Strides { row: 0, batch }
            }
        };
        if let VectorScale::PerVector(alpha) = &self.global {
            check::len(
                "vector global scales",
                "elements",
                alpha.count(),
                l * vectors,
            )?;
        }
        if let VectorScale::Shared(global) = self.global {
            global.check("vector global scale")?;
        }
        Ok(Nvfp4Layout { codes, scales })
    }
}

impl Nvfp4Vectors<'_> {
    /// [`resolve`](Self::resolve), and the content of host data.
    pub(crate) fn resolve_and_scan(&self, shape: &Shape) -> Result<Nvfp4Layout> {
        let layout = self.resolve(shape)?;
        let shape = &shape.of_digits(self.digits)?;
        scan_scales(
            VECTOR_SCALES,
            self.scales,
            self.layout,
            shape,
            shape.n(),
            layout.scales,
        )?;
        if let VectorScale::PerVector(globals) = self.global {
            for &value in globals {
                positive("vector global scale", value)?;
            }
        }
        Ok(layout)
    }

    /// The digits as vectors of their own, without global scales: N · digits of them.
    pub(crate) fn of_single_digits(&self) -> Nvfp4Vectors<'_> {
        Nvfp4Vectors {
            codes: self.codes,
            scales: self.scales,
            layout: self.layout,
            global: VectorScale::Shared(GlobalScale::ONE),
            digits: 1,
            code_strides: self.code_strides,
            scale_strides: self.scale_strides,
        }
    }

    /// The global scale of a vector.
    pub(crate) fn global_of(&self, shape: &Shape, batch: usize, n: usize) -> f64 {
        match &self.global {
            VectorScale::Shared(global) => global.multiplier(),
            VectorScale::PerVector(globals) => f64::from(globals[batch * shape.n() + n]),
        }
    }
}

/// The weight of digit `digit` of a vector, relative to the first one.
pub(crate) fn digit_weight(digit: usize) -> f64 {
    (-3.0 * digit as f64).exp2()
}

/// Strides of [`Nvfp4Vectors`] in bytes, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nvfp4Layout {
    pub(crate) codes: Strides,
    pub(crate) scales: Strides,
}

impl Nvfp4Layout {
    /// Offset of the scale of block `block` of vector `n` of batch `l`.
    pub(crate) fn scale_offset(
        &self,
        layout: ScaleLayout,
        shape: &Shape,
        l: usize,
        n: usize,
        block: usize,
    ) -> usize {
        l * self.scales.batch
            + match layout {
                ScaleLayout::Linear => n * self.scales.row + block,
                ScaleLayout::Tiled128x4 => layout.offset(n, block, shape.blocks()),
            }
    }
}

/// Vectors `[L][N][K]` of f16, bf16 or f32, with strides.
#[derive(Debug)]
pub struct DenseVectors<'a, T: std::fmt::Debug + 'static, S: Memory = Host> {
    pub(crate) values: S::Slice<'a, T>,
    strides: Option<Strides>,
}

impl<'a, T: std::fmt::Debug + 'static, S: Memory> DenseVectors<'a, T, S> {
    /// Densely packed vectors.
    pub fn new(values: S::Slice<'a, T>) -> Self {
        Self {
            values,
            strides: None,
        }
    }

    /// Steps between rows and batches, in elements. On a device, multiples of 16 bytes. A step of 0 between batches:
    /// all batches have the same vectors.
    pub fn with_strides(mut self, strides: Strides) -> Self {
        self.strides = Some(strides);
        self
    }

    /// Strides in elements, after checking that the buffer holds what they reach.
    pub(crate) fn resolve(&self, shape: &Shape) -> Result<Strides> {
        let (row, got) = (shape.k(), self.values.count());
        check::resolve(
            "vectors",
            "elements",
            self.strides,
            shape,
            row,
            got,
            Batches::MayBeShared,
        )
    }
}

/// The vectors to multiply with.
///
/// In host memory [`Vectors::of`] makes them of a slice, an array or a `Vec` of f16, bf16 or f32, and
/// [`Vectors::nvfp4`] of codes and scales. On a device `Vectors::on_device` makes them of a view. With strides they are
/// made by the variants.
#[derive(Debug)]
#[non_exhaustive]
pub enum Vectors<'a, S: Memory = Host> {
    /// 4-bit activations.
    Nvfp4(Nvfp4Vectors<'a, S>),
    /// 16-bit activations (W4A16).
    F16(DenseVectors<'a, f16, S>),
    /// 16-bit activations (W4A16).
    Bf16(DenseVectors<'a, bf16, S>),
    /// 32-bit activations.
    F32(DenseVectors<'a, f32, S>),
}

impl<'a> Vectors<'a> {
    /// Densely packed vectors `[L][N][K]` of f16, bf16 or f32, in host memory.
    pub fn of<T: Element>(values: &'a [T]) -> Self {
        Self::dense(T::floats(values))
    }

    /// Densely packed NVFP4 vectors in host memory; see [`Nvfp4Vectors::new`].
    pub fn nvfp4(
        codes: &'a [u8],
        scales: &'a [u8],
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Self {
        Self::Nvfp4(Nvfp4Vectors::new(
            codes,
            scales,
            layout,
            VectorScale::Shared(global),
        ))
    }
}

#[cfg(feature = "device")]
impl<'a> Vectors<'a, crate::Device> {
    /// Densely packed vectors `[L][N][K]` of f16, bf16 or f32, in a device's memory.
    pub fn on_device<T: Element>(values: cudarc::driver::CudaView<'a, T>) -> Self {
        Self::dense(T::floats(values))
    }
}

impl<'a, S: Memory> Vectors<'a, S> {
    fn dense(values: Floats<'a, S>) -> Self {
        match values {
            Floats::F16(values) => Self::F16(DenseVectors::new(values)),
            Floats::Bf16(values) => Self::Bf16(DenseVectors::new(values)),
            Floats::F32(values) => Self::F32(DenseVectors::new(values)),
        }
    }
}

impl<S: Memory> Vectors<'_, S> {
    /// The element type, as the dispatch sees it.
    pub fn activation(&self) -> Activation {
        match self {
            Self::Nvfp4(_) => Activation::Nvfp4,
            Self::F16(_) => Activation::F16,
            Self::Bf16(_) => Activation::Bf16,
            Self::F32(_) => Activation::F32,
        }
    }
}

/// The product of two global scales, as the f32 that kernels multiply by.
pub(crate) fn combine(weights: GlobalScale, vectors: GlobalScale) -> Result<f32> {
    let value = (weights.multiplier() * vectors.multiplier()) as f32;
    if value.is_normal() {
        Ok(value)
    } else {
        Err(Error::GlobalScale {
            operand: "product of the global scales",
            value,
        })
    }
}

/// [`combine`] for operands: vectors without one shared global scale count as 1.
pub(crate) fn alpha<S: Memory>(weights: GlobalScale, vectors: &Vectors<'_, S>) -> Result<f32> {
    let vectors = match vectors {
        Vectors::Nvfp4(v) => v.global.shared(),
        _ => GlobalScale::ONE,
    };
    combine(weights, vectors)
}

/// Refuses the first NaN or negative scale of `rows` rows a batch. The 128x4 layout has its own row stride.
fn scan_scales(
    operand: &'static str,
    scales: &[u8],
    layout: ScaleLayout,
    shape: &Shape,
    rows: usize,
    strides: Strides,
) -> Result<()> {
    let blocks = shape.blocks();
    if rows == 0 {
        return Ok(());
    }
    for batch in 0..shape.l() {
        let scales = &scales[batch * strides.batch..];
        // Densely packed: one sweep over all bytes finds out that all is well. Padding may be anything, and is looked at
        // again below.
        let is_dense = layout == ScaleLayout::Tiled128x4 || strides.row == blocks;
        if is_dense && first_bad_scale(&scales[..layout.bytes(rows, blocks)]).is_none() {
            continue;
        }
        for row in 0..rows {
            for block in 0..blocks {
                let code = scales[match layout {
                    ScaleLayout::Linear => row * strides.row + block,
                    ScaleLayout::Tiled128x4 => layout.offset(row, block, blocks),
                }];
                if is_bad_scale(code) {
                    return Err(bad_scale(operand, [batch, row, block], code));
                }
            }
        }
    }
    Ok(())
}

/// Whether a scale is NaN or negative.
const fn is_bad_scale(code: u8) -> bool {
    code >= 0x7f
}

/// Where the first scale is that is NaN or negative. The largest of all is looked at first, which vector instructions do.
pub(crate) fn first_bad_scale(scales: &[u8]) -> Option<usize> {
    match is_bad_scale(largest(scales)) {
        true => scales.iter().position(|code| is_bad_scale(*code)),
        false => None,
    }
}

/// The error that a scale is NaN or negative.
pub(crate) fn bad_scale(operand: &'static str, [batch, row, block]: [usize; 3], code: u8) -> Error {
    match e4m3::is_nan(code) {
        true => Error::ScaleNan {
            operand,
            batch,
            row,
            block,
        },
        false => Error::ScaleNegative {
            operand,
            batch,
            row,
            block,
            code,
        },
    }
}

/// The largest byte; 0 of none.
fn largest(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |largest, &byte| largest.max(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Dims;
    use proptest::prelude::*;

    /// Every scale of a matrix is looked at, wherever it lies, and padding is not.
    #[test]
    fn each_scale_is_scanned_and_padding_is_not() {
        for (m, k) in [(1, 16), (130, 80), (256, 64)] {
            let shape = Shape::new(Dims { m, n: 1, k, l: 2 }).unwrap();
            for layout in ScaleLayout::ALL {
                let codes = vec![0; shape.weight_code_bytes()];
                // A byte that is no scale stays NaN.
                let mut scales = vec![0xff; shape.weight_scale_bytes(layout)];
                let bytes = layout.bytes(m, shape.blocks());
                let at =
                    |batch, row, block| batch * bytes + layout.offset(row, block, shape.blocks());
                let all = |batch| {
                    let rows = (0..m).map(move |row| (batch, row));
                    rows.flat_map(|(l, row)| (0..shape.blocks()).map(move |b| (l, row, b)))
                };
                for (batch, row, block) in all(0).chain(all(1)) {
                    scales[at(batch, row, block)] = 0x7e;
                }
                let one = GlobalScale::ONE;
                let scan = |scales: &[u8]| {
                    let weights = Weights::new(&shape, &codes, scales, layout, one);
                    weights.map(drop)
                };
                scan(&scales).unwrap();
                for (code, (batch, row, block)) in
                    [0x7f, 0x80].into_iter().cycle().zip(all(0).chain(all(1)))
                {
                    // A part of a large matrix is as good as all of it.
                    if row > 2 && row + 2 < m {
                        continue;
                    }
                    let operand = WEIGHT_SCALES;
                    let expected = match code {
                        0x7f => Error::ScaleNan {
                            operand,
                            batch,
                            row,
                            block,
                        },
                        _ => Error::ScaleNegative {
                            operand,
                            batch,
                            row,
                            block,
                            code,
                        },
                    };
                    let before = std::mem::replace(&mut scales[at(batch, row, block)], code);
                    assert_eq!(scan(&scales), Err(expected), "{layout}");
                    scales[at(batch, row, block)] = before;
                }
            }
        }
    }

    /// Everything that a device call multiplies and adds is inside the buffer, whatever strides were given.
    #[test]
    fn strides_that_nothing_steps_over_mean_nothing() {
        let x = [1.0f32; 64];
        let huge = Strides {
            row: usize::MAX,
            batch: usize::MAX / 2,
        };
        let resolved = |n, l, strides| {
            let shape = Shape::new(Dims { m: 1, n, k: 16, l }).unwrap();
            DenseVectors::<f32>::new(&x)
                .with_strides(strides)
                .resolve(&shape)
        };
        let dense = |n| Strides::packed(n, 16);
        assert_eq!(resolved(1, 1, huge), Ok(dense(1)));
        assert_eq!(resolved(1, 0, huge), Ok(dense(1)));
        assert_eq!(resolved(2, 0, huge), Ok(dense(2)));
        let row = Strides { row: 20, ..huge };
        assert_eq!(resolved(2, 1, row), Ok(Strides { row: 20, batch: 32 }));
        let batch = Strides { batch: 24, ..huge };
        assert_eq!(resolved(1, 2, batch), Ok(Strides { row: 16, batch: 24 }));
        assert!(resolved(2, 1, huge).is_err() && resolved(1, 2, huge).is_err());

        let scales = [0x38u8; 512];
        let shape = Shape::matrix(1, 16).unwrap();
        for (layout, batch) in [(ScaleLayout::Linear, 1), (ScaleLayout::Tiled128x4, 512)] {
            let one = VectorScale::Shared(GlobalScale::ONE);
            let vectors = Nvfp4Vectors::<Host>::new(&scales, &scales, layout, one)
                .with_code_strides(huge)
                .with_scale_strides(huge);
            let resolved = vectors.resolve(&shape).unwrap();
            assert_eq!(resolved.codes, Strides { row: 8, batch: 8 });
            assert_eq!(resolved.scales.batch, batch, "{layout}");
        }
    }

    proptest! {
        /// One rule for a global scale: alone, and with another of 1.
        #[test]
        fn a_global_scale_is_refused_at_once_or_never(
            // Any, those around the least normal number, and those around the largest.
            bits in prop_oneof![any::<u32>(), 0u32..0x0080_0010, 0x7e00_0000u32..0x7f80_0010],
            divisor: bool,
        ) {
            let value = f32::from_bits(bits);
            let global = match divisor {
                true => GlobalScale::Divisor(value),
                false => GlobalScale::Multiplier(value),
            };
            let alone = global.check("a test").is_ok();
            let called = alone && combine(global, GlobalScale::ONE).is_ok();
            prop_assert_eq!(alone, called);
            prop_assert!(!alone || value.is_normal() && value > 0.0);
        }
    }
}
