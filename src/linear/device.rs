//! Linear layers in a device's memory.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, DeviceRepr, ValidAsZeroBits};

use super::{Linear, with_bias, with_vectors};
use crate::check;
use crate::context::driver_error;
use crate::device::{Kept, Taken, gpu};
use crate::dispatch::measured::Measurements;
use crate::dispatch::{self, Choice, Options};
use crate::error::{Error, Result};
use crate::memory::Device;
use crate::operands::Operands;
use crate::output::Output;
use crate::scales::convert_scales;
use crate::shape::{Dims, Shape};
use crate::tensor::{GlobalScale, Vectors, Weights};
use crate::tiled_weights::tiled;
use crate::types::{Activation, ScaleLayout, VectorAccuracy};
use crate::workspace::Workspace;

/// A linear layer `y = W x + bias` in a device's memory: buffers that it owns or shares, and the calls that were
/// prepared for it.
///
/// [`Linear::on_device`] copies a layer there, once. A [`forward`](Self::forward) prepares the call for its number of
/// vectors and its buffers the first time, and keeps what it has prepared. From then on it does what
/// [`PreparedGemvOnDevice::run`](crate::PreparedGemvOnDevice::run) does: no allocation, no synchronisation, no copy. It
/// can be [captured into a CUDA graph](crate#cuda-graphs); [`prepare`](Self::prepare) comes before.
///
/// A clone shares buffers and prepared calls.
///
/// ```no_run
/// use nvfp4_gemv::cudarc::driver::CudaContext;
/// use nvfp4_gemv::{Activation, Linear, Output, ScaleLayout, Vectors, Workspace, half::bf16};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let layer = Linear::from_dense(&vec![1.0f32; 128 * 256], 128, 256)?;
/// let layer = layer.on_device(&stream, ScaleLayout::Tiled128x4)?;
/// // One workspace for all layers of a stream: as large as the layer that needs most.
/// let bytes = layer.workspace_bytes(16, Activation::Bf16)?;
/// let layer = layer.with_workspace(Workspace::new(&stream, bytes)?);
///
/// let x = stream.clone_htod(&vec![bf16::ONE; 16 * 256])?;
/// let mut y = stream.alloc_zeros::<f32>(16 * 128)?;
/// let vectors = Vectors::on_device(x.as_view());
/// layer.forward(&stream, &vectors, 16, Output::on_device(y.as_view_mut()))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LinearOnDevice {
    parts: MatricesOnDevice,
    workspace: Option<Workspace>,
    tuned: Option<Arc<dyn AsRef<Measurements> + Send + Sync>>,
    #[cfg(feature = "tune")]
    measure: Option<std::time::Duration>,
    chained: bool,
    batch_invariant: bool,
    vector_accuracy: VectorAccuracy,
    /// Calls that were prepared with these settings.
    kept: Arc<Kept>,
}

/// Matrices of one size in a device's memory, owned or shared, with what belongs to their rows: those that
/// [`ExpertsOnDevice::new`](crate::ExpertsOnDevice::new) is made of. A clone shares the buffers.
#[derive(Clone, Debug)]
pub struct MatricesOnDevice {
    /// L matrices. N means nothing.
    pub(crate) shape: Shape,
    codes: Arc<CudaSlice<u8>>,
    scales: Arc<CudaSlice<u8>>,
    pub(crate) layout: ScaleLayout,
    global: GlobalScale,
    row_alpha: Option<Arc<CudaSlice<f32>>>,
    bias: Option<Arc<CudaSlice<f32>>>,
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync + Clone + 'static>() {}
    is_send_and_sync::<LinearOnDevice>();
};

impl Linear {
    /// This layer in a device's memory, its block scales in the layout that is asked for: copied now, on `stream`. The
    /// tensor cores of compute capability 10.x ask for the 128x4 layout, and [everything else takes
    /// it](crate::TiledWeights). Later calls on other streams are ordered behind the copies by the events of the
    /// buffers; where cudarc tracks no events, synchronise the stream before.
    ///
    /// # Errors
    /// [`Error::HasColumnAlpha`] for a layer with factors of columns. Errors that CUDA
    /// reports of memory, copies and the kernel that changes the layout.
    pub fn on_device(
        &self,
        stream: &Arc<CudaStream>,
        layout: ScaleLayout,
    ) -> Result<LinearOnDevice> {
        LinearOnDevice::stacked(stream, layout, vec![self])
    }
}

/// The scales of a layer.
fn scales(parts: &super::Parts) -> &[u8] {
    &parts.scales.get()[..parts.shape.weight_scale_bytes(parts.layout)]
}

/// The scales of a layer in the linear layout.
fn linear(parts: &super::Parts) -> Result<Cow<'_, [u8]>> {
    match parts.layout {
        ScaleLayout::Linear => Ok(Cow::Borrowed(scales(parts))),
        from => {
            let (m, k) = (parts.shape.m(), parts.shape.k());
            convert_scales(scales(parts), from, ScaleLayout::Linear, m, k, 1).map(Cow::Owned)
        }
    }
}

/// Copies in the device's memory, one behind the other.
fn upload_all<'a>(
    stream: &Arc<CudaStream>,
    parts: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<CudaSlice<u8>> {
    let error = |error| driver_error("copying layers to the device", error);
    let bytes: usize = parts.clone().map(<[u8]>::len).sum();
    let mut all = stream.alloc_zeros(bytes.max(1)).map_err(error)?;
    let mut at = 0;
    for part in parts.filter(|part| !part.is_empty()) {
        let to = &mut all.slice_mut(at..at + part.len());
        stream.memcpy_htod(part, to).map_err(error)?;
        at += part.len();
    }
    Ok(all)
}

/// A copy in the device's memory, which has no buffers of nothing.
pub(super) fn upload<T: DeviceRepr + ValidAsZeroBits>(
    stream: &Arc<CudaStream>,
    values: &[T],
) -> Result<CudaSlice<T>> {
    let copied = match values.is_empty() {
        true => stream.alloc_zeros(1),
        false => stream.clone_htod(values),
    };
    copied.map_err(|error| driver_error("copying a layer to the device", error))
}

impl LinearOnDevice {
    /// A layer of `rows` rows of `k` elements of buffers that are there, owned from now on or shared. The content of the
    /// scales is not looked at.
    ///
    /// # Errors
    /// As [`Weights::on_device`]'s, and [`Shape::matrix`]'s.
    pub fn new(
        rows: usize,
        k: usize,
        codes: impl Into<Arc<CudaSlice<u8>>>,
        scales: impl Into<Arc<CudaSlice<u8>>>,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        MatricesOnDevice::new(1, rows, k, codes, scales, layout, global).map(Self::of)
    }

    /// A layer of one matrix that is there.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`] for another number of matrices.
    pub fn from_matrix(matrix: MatricesOnDevice) -> Result<Self> {
        let count = matrix.shape.l();
        check::fits("the number of matrices", count, "a layer's", 1)?;
        Ok(Self::of(matrix))
    }

    /// One layer with the rows of several, stacked in their order: q, k and v, or gate and up, which read the same vectors
    /// in one call. Where they have different global scales, or factors of rows, the products of both become factors of
    /// rows, each rounded once. A result is `[n][rows of all]`.
    ///
    /// # Errors
    /// [`Error::LayersMismatch`](crate::Error::LayersMismatch) for layers of different K, and for none; otherwise as
    /// [`Linear::on_device`]'s.
    pub fn joined(
        stream: &Arc<CudaStream>,
        layout: ScaleLayout,
        layers: &[&Linear],
    ) -> Result<Self> {
        let first = layers.first().ok_or(crate::Error::LayersMismatch {
            dimension: "the number of layers",
            found: 0,
            of: "the least that are joined",
            expected: 1,
        })?;
        for layer in &layers[1..] {
            check::fits(
                "a joined layer's K",
                layer.k(),
                "the first one's",
                first.k(),
            )?;
        }
        Self::stacked(stream, layout, layers.to_vec())
    }

    /// One layer with the rows of several, which have one K.
    pub(crate) fn stacked(
        stream: &Arc<CudaStream>,
        layout: ScaleLayout,
        layers: Vec<&Linear>,
    ) -> Result<Self> {
        Ok(Self::of(MatricesOnDevice::upload(
            stream,
            layout,
            &[layers],
        )?))
    }

    fn of(parts: MatricesOnDevice) -> Self {
        Self {
            parts,
            workspace: None,
            tuned: None,
            #[cfg(feature = "tune")]
            measure: None,
            chained: false,
            batch_invariant: false,
            vector_accuracy: VectorAccuracy::Exact,
            kept: Arc::default(),
        }
    }

    /// This layer with other settings, for which nothing is prepared yet.
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.kept = Arc::default();
        self
    }

    /// As [`Linear::with_row_alpha`]; the content is not looked at.
    ///
    /// # Errors
    /// Another number of factors than of rows.
    pub fn with_row_alpha(self, alpha: impl Into<Arc<CudaSlice<f32>>>) -> Result<Self> {
        let parts = self.parts.clone().with_row_alpha(alpha)?;
        Ok(self.with(|layer| layer.parts = parts))
    }

    /// As [`Linear::with_bias`].
    ///
    /// # Errors
    /// Another number of numbers than of rows.
    pub fn with_bias(self, bias: impl Into<Arc<CudaSlice<f32>>>) -> Result<Self> {
        let parts = self.parts.clone().with_bias(bias)?;
        Ok(self.with(|layer| layer.parts = parts))
    }

    /// This layer with a workspace, from which some kernels are faster ([`Workspace`]). Calls are then on the
    /// workspace's stream.
    #[must_use]
    pub fn with_workspace(self, workspace: Workspace) -> Self {
        self.with(|layer| layer.workspace = Some(workspace))
    }

    /// This layer with measurements on this very device: as [`Options::tuned`].
    #[must_use]
    pub fn with_tuned(self, table: Arc<impl AsRef<Measurements> + Send + Sync + 'static>) -> Self {
        self.with(|layer| layer.tuned = Some(table))
    }

    /// This layer, whose likeliest configs take turns for so long in [`prepare`](Self::prepare): as [`Options::measure`].
    /// A first [`forward`](Self::forward) measures nothing, and what it has prepared stays: prepare before.
    #[cfg(feature = "tune")]
    #[must_use]
    pub fn with_measure(self, budget: std::time::Duration) -> Self {
        self.with(|layer| layer.measure = Some(budget))
    }

    /// This layer with results that do not depend on the other vectors of a call, or that may: as
    /// [`Options::batch_invariant`].
    #[must_use]
    pub fn with_batch_invariance(self, batch_invariant: bool) -> Self {
        self.with(|layer| layer.batch_invariant = batch_invariant)
    }

    /// This layer, whose f16, bf16 and f32 vectors may be multiplied as digits that come so close to them: as
    /// [`Options::vector_accuracy`]. Digits lie in the layer's [workspace](Self::with_workspace).
    #[must_use]
    pub fn with_vector_accuracy(self, accuracy: VectorAccuracy) -> Self {
        self.with(|layer| layer.vector_accuracy = accuracy)
    }

    /// This layer with chained launches: as [`Options::chained`].
    ///
    /// # Safety
    /// As [`Options::chained`]'s, for every later call of this layer and of its clones.
    #[must_use]
    pub unsafe fn chained(self) -> Self {
        self.with(|layer| layer.chained = true)
    }

    /// Bytes of a [workspace](Self::with_workspace) that calls with `n` vectors of a type would use.
    ///
    /// # Errors
    /// As [`workspace_bytes`](dispatch::workspace_bytes)'s.
    pub fn workspace_bytes(&self, n: usize, activation: Activation) -> Result<u64> {
        let gpu = gpu(self.parts.codes.stream().context().ordinal())?;
        let operands = Operands::new(activation, self.parts.layout);
        dispatch::workspace_bytes(&self.shape(n)?, &operands, gpu, &self.options())
    }

    /// Enqueues `n` vectors `[n][K]`, f16, bf16, f32 or NVFP4, into results `[n][rows]` on a stream of the layer's
    /// device: `y = W x + bias`, with what the [`Output`] adds besides. Returns the choice that was made.
    ///
    /// What was prepared for these buffers and `n` is used again. As many calls are kept as [`KEPT`](Self::KEPT); then
    /// the one that was not used for longest is prepared again when it comes.
    ///
    /// # Errors
    /// As [`gemv_on_device`](crate::gemv_on_device)'s. An output with a bias, where the layer has one.
    pub fn forward<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
    ) -> Result<Choice> {
        self.call(stream, x, n, y, true)
    }

    /// Prepares a call with `n` vectors and these buffers, and enqueues nothing on the stream; with
    /// `with_measure` it measures first, on a stream of its own.
    ///
    /// # Errors
    /// As [`forward`](Self::forward)'s, and where it measures those of `Options::measure`.
    pub fn prepare<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
    ) -> Result<Choice> {
        self.call(stream, x, n, y, false)
    }

    /// The most calls that are kept for a layer.
    pub const KEPT: usize = Kept::MOST;

    fn call<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
        launch: bool,
    ) -> Result<Choice> {
        let y = with_bias(y, self.parts.bias(), |y, bias| y.with_bias_on_device(bias))?;
        let (shape, weights) = (self.shape(n)?, self.parts.view());
        let x = (x, Taken::AsTheyAre);
        self.kept
            .call(stream, &shape, &weights, x, y, &self.options(), launch)
    }

    fn options(&self) -> Options<'_> {
        let mut options = Options::new().workspace(self.workspace.as_ref());
        options = options.batch_invariant(self.batch_invariant);
        options = options.vector_accuracy(self.vector_accuracy);
        options.tuned = self.tuned.as_ref().map(|table| (**table).as_ref());
        #[cfg(feature = "tune")]
        if let Some(budget) = self.measure {
            options = options.measure(budget);
        }
        match self.chained {
            // SAFETY: whoever called `chained` has promised this for all calls of the layer.
            true => unsafe { options.chained() },
            false => options,
        }
    }

    /// The weights, for calls that take them borrowed.
    ///
    /// # Errors
    /// No errors for a layer that was made.
    pub fn weights(&self) -> Result<Weights<'_, Device>> {
        self.parts.weights()
    }

    /// Whether a bias is added to results.
    pub(crate) fn has_bias(&self) -> bool {
        self.parts.bias.is_some()
    }

    /// Rows of the weights, M: elements of a result.
    pub fn rows(&self) -> usize {
        self.parts.shape.m()
    }

    /// Elements of a row, K: elements of a vector.
    pub fn k(&self) -> usize {
        self.parts.shape.k()
    }

    /// The shape of a call with `n` vectors.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`](crate::Error::SizeOverflow) for more vectors than memory can have.
    pub fn shape(&self, n: usize) -> Result<Shape> {
        with_vectors(&self.parts.shape, n)
    }
}

impl MatricesOnDevice {
    /// `count` matrices of `rows` rows of `k` elements, in buffers that are there: codes `[count][rows][k/2]`, and the
    /// block scales of each matrix behind those of the one before. The content of the scales is not looked at.
    ///
    /// # Errors
    /// As [`Weights::on_device`]'s, and [`Shape::new`]'s.
    pub fn new(
        count: usize,
        rows: usize,
        k: usize,
        codes: impl Into<Arc<CudaSlice<u8>>>,
        scales: impl Into<Arc<CudaSlice<u8>>>,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        let matrices = Self {
            shape: Shape::new(Dims {
                m: rows,
                n: 1,
                k,
                l: count,
            })?,
            codes: codes.into(),
            scales: scales.into(),
            layout,
            global,
            row_alpha: None,
            bias: None,
        };
        matrices.weights()?;
        Ok(matrices)
    }

    /// These matrices with a factor for each row, `[count][rows]`, on top of the global scale. The content is not
    /// looked at.
    ///
    /// # Errors
    /// Another number of factors than of rows of all matrices.
    pub fn with_row_alpha(self, alpha: impl Into<Arc<CudaSlice<f32>>>) -> Result<Self> {
        let alpha = alpha.into();
        let rows = self.shape.l() * self.shape.m();
        check::len("row alpha", "elements", alpha.len(), rows)?;
        let row_alpha = Some(alpha);
        let matrices = Self { row_alpha, ..self };
        matrices.weights()?;
        Ok(matrices)
    }

    /// These matrices with a number for each row, `[count][rows]`, which is added to each result.
    ///
    /// # Errors
    /// Another number of numbers than of rows of all matrices.
    pub fn with_bias(self, bias: impl Into<Arc<CudaSlice<f32>>>) -> Result<Self> {
        let bias = bias.into();
        let rows = self.shape.l() * self.shape.m();
        check::len("bias", "elements", bias.len(), rows)?;
        let bias = Some(bias);
        Ok(Self { bias, ..self })
    }

    /// Copies matrices, each of which has the rows of one layer or of several, stacked. All matrices have as many rows,
    /// and all layers as many columns.
    ///
    /// Where layers have different global scales, or factors of rows, the products of both become factors of rows, with
    /// one rounding each.
    ///
    /// # Errors
    /// [`Error::HasColumnAlpha`]; [`Error::RowAlpha`] for a product
    /// that f32 does not have. Errors that CUDA reports of memory, copies and the kernel that changes the layout.
    pub(crate) fn upload(
        stream: &Arc<CudaStream>,
        layout: ScaleLayout,
        matrices: &[Vec<&Linear>],
    ) -> Result<Self> {
        let layers = || matrices.iter().flatten().map(|layer| &*layer.parts);
        for layer in matrices.iter().flatten() {
            (layer.weights()).no_column_alpha("kernels on a device do not multiply by them")?;
        }
        let rows = |layers: &Vec<&Linear>| layers.iter().map(|layer| layer.rows()).sum();
        let first = layers().next();
        let shape = Shape::new(Dims {
            m: matrices.first().map_or(0, rows),
            n: 1,
            k: first.map_or(crate::BLOCK, |first| first.shape.k()),
            l: matrices.len(),
        })?;
        // A buffer of nothing may have a byte.
        let codes = layers().map(|parts| &parts.codes.get()[..parts.shape.weight_code_bytes()]);
        // The device changes linear scales. 128x4 scales of whole matrices stay as they are.
        let as_asked = layers().all(|parts| parts.layout == layout)
            && (layout == ScaleLayout::Linear || matrices.iter().all(|layers| layers.len() == 1));
        let scales = match as_asked {
            true => upload_all(stream, layers().map(scales))?,
            false => {
                let all = layers().map(linear).collect::<Result<Vec<_>>>()?;
                let all = upload_all(stream, all.iter().map(|scales| &**scales))?;
                match layout {
                    ScaleLayout::Linear => all,
                    ScaleLayout::Tiled128x4 => {
                        let bytes = shape.weight_scale_bytes(ScaleLayout::Linear);
                        tiled(stream, &shape, &all.slice(..bytes))?
                    }
                }
            }
        };
        let global = first.map_or(GlobalScale::ONE, |first| first.global);
        let is_one = layers().all(|parts| parts.global == global);
        let factors = layers().any(|parts| parts.row_alpha.is_some());
        let (global, row_alpha) = match (is_one, factors) {
            (true, false) => (global, None),
            (is_one, _) => {
                let own = |parts: &super::Parts| {
                    if is_one {
                        1.0
                    } else {
                        parts.global.multiplier()
                    }
                };
                let of_rows = layers().flat_map(|parts| {
                    let own = own(parts);
                    (0..parts.shape.m()).map(move |row| {
                        let factor = parts.row_alpha.as_ref().map_or(1.0, |alpha| alpha[row]);
                        (own * f64::from(factor)) as f32
                    })
                });
                let of_rows: Vec<f32> = of_rows.collect();
                let lost = |x: &f32| !(x.is_normal() || *x == 0.0);
                if let Some(index) = of_rows.iter().position(lost) {
                    let value = of_rows[index];
                    return Err(Error::RowAlpha { index, value });
                }
                let global = if is_one { global } else { GlobalScale::ONE };
                (global, Some(of_rows))
            }
        };
        let bias = layers().any(|parts| parts.bias.is_some()).then(|| {
            let of_rows = layers().flat_map(|parts| {
                (0..parts.shape.m()).map(|row| parts.bias.as_ref().map_or(-0.0, |bias| bias[row]))
            });
            of_rows.collect::<Vec<f32>>()
        });
        let of_rows = |values: Vec<f32>| upload(stream, &values).map(Arc::new);
        Ok(Self {
            shape,
            codes: Arc::new(upload_all(stream, codes)?),
            scales: Arc::new(scales),
            layout,
            global,
            row_alpha: row_alpha.map(of_rows).transpose()?,
            bias: bias.map(of_rows).transpose()?,
        })
    }

    /// The bias of all rows.
    pub(crate) fn bias(&self) -> Option<CudaView<'_, f32>> {
        self.bias.as_ref().map(|bias| bias.as_view())
    }

    /// The weights, whose parts were checked when these were made.
    pub(crate) fn view(&self) -> Weights<'_, Device> {
        let (codes, scales) = (self.codes.as_view(), self.scales.as_view());
        let row_alpha = self.row_alpha.as_ref().map(|alpha| alpha.as_view());
        Weights::of_checked(
            &self.shape,
            codes,
            scales,
            self.layout,
            self.global,
            row_alpha,
        )
    }

    /// The same, checked.
    pub(crate) fn weights(&self) -> Result<Weights<'_, Device>> {
        let (codes, scales) = (self.codes.as_view(), self.scales.as_view());
        let weights = Weights::on_device(&self.shape, codes, scales, self.layout, self.global)?;
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha_on_device(alpha.as_view()),
            None => Ok(weights),
        }
    }
}

impl fmt::Debug for LinearOnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinearOnDevice")
            .field("parts", &self.parts)
            .field("workspace", &self.workspace)
            .field("chained", &self.chained)
            .field("batch_invariant", &self.batch_invariant)
            .field("vector_accuracy", &self.vector_accuracy)
            .finish_non_exhaustive()
    }
}
