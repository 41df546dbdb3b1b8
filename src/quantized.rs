//! Vectors that are quantised on the device, from layer to layer in the same buffers.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, DevicePtrMut};

use crate::check;
use crate::context::{driver_error, make_current, same_device};
use crate::device::{dense, gpu, read};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::kernel::quantize::{Global, Input, Quantize};
use crate::memory::Device;
use crate::raw;
use crate::shape::Shape;
use crate::tensor::{Nvfp4Vectors, VectorScale, Vectors};
use crate::types::{FloatType, RowOrder, ScaleLayout};

/// Buffers on a device for the NVFP4 vectors `[L][N][K]` of a shape: codes `[L][N][K/2]`, block
/// scales, a global scale for each vector, f32 `[L][N]`. [`bytes`](Self::bytes) of memory in all.
///
/// Quantising allocates nothing, synchronises nothing, and is one kernel, so that it can be [captured
/// into a CUDA graph](crate#cuda-graphs) together with the GEMV that uses the result. Codes and scales are those of
/// [`quantize_vectors_or_nan`](crate::quantize::quantize_vectors_or_nan), bit for bit.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use half::bf16;
/// use nvfp4_gemv::{
///     DenseVectors, GlobalScale, Options, Output, QuantizedVectors, ScaleLayout, Shape, Vectors,
///     Weights, gemv_on_device,
/// };
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let shape = Shape::matrix(128, 256)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// let weights = Weights::on_device(
///     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::ONE,
/// )?;
/// let mut quantized = QuantizedVectors::new(&stream, &shape, ScaleLayout::Tiled128x4)?; // once
///
/// let x = stream.clone_htod(&vec![bf16::ONE; shape.k()])?;
/// quantized.quantize(&stream, &Vectors::on_device(x.as_view()))?;
/// let mut y = stream.alloc_zeros::<f32>(shape.m())?;
/// let output = Output::on_device(y.as_view_mut());
/// gemv_on_device(&stream, &shape, &weights, &quantized.vectors(), output, &Options::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QuantizedVectors {
    shape: Shape,
    layout: ScaleLayout,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    alpha: CudaSlice<f32>,
    digits: usize,
    copies: usize,
    chained: bool,
    /// The next launch fetches nothing before it waits.
    early: bool,
}

impl QuantizedVectors {
    /// Bytes of device memory that the buffers for a shape take: codes, scales with their padding,
    /// global scales. The 128x4 layout pads the vectors of a batch to 128 rows of scales.
    ///
    /// ```
    /// use nvfp4_gemv::{Dims, QuantizedVectors, ScaleLayout, Shape};
    /// let shape = Shape::new(Dims { m: 4096, n: 2, k: 1024, l: 1 })?;
    /// assert_eq!(QuantizedVectors::bytes(&shape, ScaleLayout::Linear), 2 * (512 + 64 + 4));
    /// assert_eq!(
    ///     QuantizedVectors::bytes(&shape, ScaleLayout::Tiled128x4),
    ///     2 * (512 + 4) + 128 * 64,
    /// );
    /// # Ok::<(), nvfp4_gemv::Error>(())
    /// ```
    pub const fn bytes(shape: &Shape, layout: ScaleLayout) -> usize {
        let vectors = shape.l() * shape.n();
        vectors * (shape.row_code_bytes() + 4) + scale_bytes(shape, layout)
    }

    /// Allocates the buffers, as vectors of zeros. M of the shape means nothing.
    ///
    /// # Errors
    /// Errors that CUDA reports of the allocations.
    pub fn new(stream: &Arc<CudaStream>, shape: &Shape, layout: ScaleLayout) -> Result<Self> {
        Self::of_digits(stream, shape, layout, 1)
    }

    /// As [`new`](Self::new), for vectors of so many [digits](Nvfp4Vectors::with_digits): what
    /// [`quantize`](Self::quantize) then makes comes close to 16-bit vectors, and is that of
    /// [`quantize_digits_or_nan`](crate::quantize::quantize_digits_or_nan), bit for bit. Kernels that multiply NVFP4
    /// vectors on Blackwell's tensor cores take it, and no others do. The buffers are as large as those of digits times N
    /// vectors, at most. Gates, RMSNorms and global scales that are given are [errors](Error::Digits) then.
    ///
    /// Those kernels have run in a simulator only.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new); [`Error::Digits`].
    ///
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    /// use half::bf16;
    /// use nvfp4_gemv::{QuantizedVectors, ScaleLayout, Shape, Vectors};
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let shape = Shape::matrix(4096, 4096)?;
    /// let mut digits = QuantizedVectors::of_digits(&stream, &shape, ScaleLayout::Tiled128x4, 3)?; // once
    /// let x = stream.clone_htod(&vec![bf16::ONE; shape.k()])?;
    /// digits.quantize(&stream, &Vectors::on_device(x.as_view()))?;
    /// let vectors = digits.vectors(); // for gemv_on_device
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_digits(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        layout: ScaleLayout,
        digits: usize,
    ) -> Result<Self> {
        let vectors = shape.l() * shape.n();
        let rows = shape.of_digits(digits)?;
        // CUDA allocates no nothing, which N = 0 and L = 0 would ask for.
        let cuda = |error| driver_error("allocating quantised vectors", error);
        let bytes = |count: usize| stream.alloc_zeros::<u8>(count.max(1)).map_err(cuda);
        Ok(Self {
            shape: *shape,
            layout,
            codes: bytes(rows.l() * rows.n() * shape.row_code_bytes())?,
            scales: bytes(scale_bytes(&rows, layout))?,
            alpha: stream.alloc_zeros(vectors.max(1)).map_err(cuda)?,
            digits,
            copies: 1,
            chained: false,
            early: false,
        })
    }

    /// These buffers, with each batch of vectors written `copies` times, as batches that follow each other: a vector for
    /// each of its experts. There are L / copies batches of vectors to quantise then.
    ///
    /// # Errors
    /// [`Error::Copies`](crate::Error::Copies) where L is no multiple of them.
    pub fn with_copies(self, copies: usize) -> Result<Self> {
        Input::Plain.source(&self.shape, copies)?;
        Ok(Self { copies, ..self })
    }

    /// These buffers, quantised by programmatic dependent launches where the device has them (compute capability 9.0
    /// and up): the next kernel is on its way before the one before has ended. It begins its work when the launch before
    /// it has ended, and lets the next launch start only then.
    ///
    /// # Errors
    /// Errors that CUDA reports of the device's properties.
    ///
    /// # Safety
    /// The launch before each of these in its stream, if it is itself a programmatic dependent launch, ends only when the
    /// launches before it have ended, as all kernels of this crate do. A kernel that never executes
    /// `griddepcontrol.wait` does not.
    pub unsafe fn chained(self) -> Result<Self> {
        let gpu = gpu(self.codes.stream().context().ordinal())?;
        let chained = gpu.has_dependent_launches();
        Ok(Self { chained, ..self })
    }

    /// [`chained`](Self::chained), where products with late ids follow: they fetch nothing before they wait.
    ///
    /// # Safety
    /// As [`chained`](Self::chained)'s.
    pub(crate) unsafe fn chained_before_late(self) -> Result<Self> {
        let early = true;
        // SAFETY: this function's own contract.
        unsafe { Self { early, ..self }.chained() }
    }

    /// Whether [`chained`](Self::chained) was called, on a device that has such launches.
    pub(crate) fn is_chained(&self) -> bool {
        self.chained
    }

    /// Checks vectors as [`quantize`](Self::quantize) does, and enqueues nothing.
    pub(crate) fn check(
        &self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
    ) -> Result<()> {
        same_device("quantised vectors", self.codes.stream(), stream)?;
        let source = &Input::Plain.source(&self.shape, self.copies)?;
        let (vectors, _) = match vectors {
            Vectors::Nvfp4(_) => return Err(Error::AlreadyNvfp4),
            Vectors::F16(v) => dense(v, FloatType::F16, source, stream)?,
            Vectors::Bf16(v) => dense(v, FloatType::Bf16, source, stream)?,
            Vectors::F32(v) => dense(v, FloatType::F32, source, stream)?,
        };
        const VECTORS: &str = "vectors";
        check::pointer(VECTORS, vectors.values, 16)?;
        let row = source.k() * vectors.element.bytes();
        let apart = check::Batches::Apart;
        check::strided(VECTORS, source, vectors.strides, row, 16, apart).map(drop)
    }

    /// Enqueues the quantisation of f16, bf16 or f32 vectors on `stream`, each with a global scale
    /// from its own largest magnitude. A vector that holds a NaN or an infinity becomes one whose
    /// products are NaN.
    ///
    /// # Errors
    /// Vectors that are NVFP4 already, contradict the shape, are misaligned or lie on another device; errors that CUDA
    /// reports of the launch.
    pub fn quantize(
        &mut self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
    ) -> Result<()> {
        self.enqueue(stream, vectors, Input::Plain, None)
    }

    /// As [`quantize`](Self::quantize), with global scales that are given: from calibration, or
    /// earlier tokens. Elements past their range saturate. A scale in device memory that is not
    /// positive and finite makes its vector one whose products are NaN.
    ///
    /// # Errors
    /// As [`quantize`](Self::quantize); too few or too many global scales, a shared one that is not positive and
    /// finite.
    pub fn quantize_with(
        &mut self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
        global: &VectorScale<'_, Device>,
    ) -> Result<()> {
        self.enqueue(stream, vectors, Input::Plain, Some(global))
    }

    /// As [`quantize`](Self::quantize), of what a gate makes of vectors `[L][N][2K]`: the results of `gate` and `up`, in
    /// an order. Codes and scales are those of [`Gate::of`] and
    /// [`quantize_vectors_or_nan`](crate::quantize::quantize_vectors_or_nan), bit for bit. With `global` as
    /// [`quantize_with`](Self::quantize_with).
    ///
    /// # Errors
    /// As [`quantize_with`](Self::quantize_with); [`Error::Factor`] for a gate's number.
    pub fn quantize_gated(
        &mut self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
        gate: Gate,
        order: RowOrder,
        global: Option<&VectorScale<'_, Device>>,
    ) -> Result<()> {
        self.enqueue(stream, vectors, Input::Gated { gate, order }, global)
    }

    /// As [`quantize`](Self::quantize), of [`rms_norm`](crate::rms_norm) of the vectors, bit for bit. `weight` has K
    /// elements of the vectors' type. With `global` as [`quantize_with`](Self::quantize_with).
    ///
    /// # Errors
    /// As [`quantize_with`](Self::quantize_with); [`Error::Factor`] for an epsilon that is not positive and finite;
    /// weights of another type than the vectors', or of another length.
    pub fn quantize_normed(
        &mut self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
        weight: &Vectors<'_, Device>,
        epsilon: f32,
        global: Option<&VectorScale<'_, Device>>,
    ) -> Result<()> {
        let one = Shape::matrix(0, self.shape.k())?;
        let (weight, _weight) = match (vectors, weight) {
            (Vectors::F16(_), Vectors::F16(w)) => dense(w, FloatType::F16, &one, stream)?,
            (Vectors::Bf16(_), Vectors::Bf16(w)) => dense(w, FloatType::Bf16, &one, stream)?,
            (Vectors::F32(_), Vectors::F32(w)) => dense(w, FloatType::F32, &one, stream)?,
            (Vectors::Nvfp4(_), _) => return Err(Error::AlreadyNvfp4),
            (vectors, weight) => {
                return Err(Error::NormType {
                    vectors: vectors.activation(),
                    weight: weight.activation(),
                });
            }
        };
        let weight = weight.values;
        self.enqueue(stream, vectors, Input::Normed { weight, epsilon }, global)
    }

    fn enqueue(
        &mut self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
        input: Input,
        global: Option<&VectorScale<'_, Device>>,
    ) -> Result<()> {
        same_device("quantised vectors", self.codes.stream(), stream)?;
        let shape = &self.shape;
        let source = &input.source(shape, self.copies)?;
        // The guards record, when dropped, that the stream uses the buffers until then: they must
        // outlive the launch.
        let (vectors, _vectors) = match vectors {
            Vectors::Nvfp4(_) => return Err(Error::AlreadyNvfp4),
            Vectors::F16(v) => dense(v, FloatType::F16, source, stream)?,
            Vectors::Bf16(v) => dense(v, FloatType::Bf16, source, stream)?,
            Vectors::F32(v) => dense(v, FloatType::F32, source, stream)?,
        };
        let _globals;
        let global = match global {
            None => Global::Computed,
            Some(VectorScale::Shared(global)) => Global::Shared(*global),
            Some(VectorScale::PerVector(globals)) => {
                const GLOBALS: &str = "given global scales";
                let (address, guard) = read(GLOBALS, globals, stream)?;
                check::len(GLOBALS, "elements", globals.len(), shape.l() * shape.n())?;
                _globals = guard;
                Global::PerVector(address)
            }
        };
        let (codes, _codes) = self.codes.device_ptr_mut(stream);
        let (scales, _scales) = self.scales.device_ptr_mut(stream);
        let (vector_alpha, _alpha) = self.alpha.device_ptr_mut(stream);
        let call = Quantize {
            element: vectors.element,
            input,
            chained: self.chained,
            early: self.early,
            copies: self.copies,
            digits: self.digits,
            values: vectors.values,
            strides: vectors.strides,
            global,
            codes,
            scales,
            layout: self.layout,
            vector_alpha,
        };
        make_current(stream)?;
        // SAFETY: the stream's context is current. The vectors' view was checked to hold what shape
        // and strides reach, and the buffers were made for the shape. cudarc's events, recorded by
        // the guards, keep them from being freed or reused before the enqueued work has run.
        unsafe { raw::quantize(shape, &call, stream.cu_stream().cast()) }
    }

    /// The vectors, with a global scale each, for [`gemv_on_device`](crate::gemv_on_device).
    pub fn vectors(&self) -> Vectors<'_, Device> {
        let vectors = Nvfp4Vectors::new(
            self.codes.as_view(),
            self.scales.as_view(),
            self.layout,
            VectorScale::PerVector(self.alpha.as_view()),
        );
        Vectors::Nvfp4(vectors.with_digits(self.digits))
    }

    /// The shape the buffers were made for. Its M means nothing here.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Codes `[L][N][digits][K/2]`, the even element in the low nibble.
    pub fn codes(&self) -> CudaView<'_, u8> {
        self.codes.as_view()
    }

    /// Block scales, E4M3, N · digits rows of the [`layout`](Self::layout) a batch.
    pub fn scales(&self) -> CudaView<'_, u8> {
        self.scales.as_view()
    }

    /// Global scales, multipliers, `[L][N]`.
    pub fn global_scales(&self) -> CudaView<'_, f32> {
        self.alpha.as_view()
    }

    /// How the block scales lie.
    pub fn layout(&self) -> ScaleLayout {
        self.layout
    }
}

/// Bytes of the block scales, their padding included.
const fn scale_bytes(shape: &Shape, layout: ScaleLayout) -> usize {
    layout.bytes(shape.n(), shape.blocks()) * shape.l()
}
