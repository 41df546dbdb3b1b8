//! Weights with their scales in the layout of the tensor cores, whichever they came in.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceSlice};

use crate::context::{driver_error, make_current, same_device};
use crate::error::Result;
use crate::memory::Device;
use crate::raw;
use crate::shape::Shape;
use crate::tensor::{GlobalScale, Weights};
use crate::types::ScaleLayout;

/// A buffer on a device, owned or borrowed.
#[derive(Debug)]
enum Held<'a, T> {
    Owned(CudaSlice<T>),
    Borrowed(CudaView<'a, T>),
}

impl<T> Held<'_, T> {
    fn view(&self) -> CudaView<'_, T> {
        match self {
            Self::Owned(slice) => slice.as_view(),
            Self::Borrowed(view) => view.slice(..),
        }
    }
}

/// NVFP4 weights `[L][M][K]` on a device, whose block scales are in the 128x4 layout.
///
/// Linear scales, as checkpoints have them, are brought into the 128x4 layout once, in memory that this type owns. That
/// memory has [`bytes`](Self::bytes), about one byte for 16 weights (an eighth of the codes) with rows padded to 128
/// and K to 64. Scales that are 128x4 already cost nothing. Making a `TiledWeights` allocates: it comes before what is
/// [captured into a CUDA graph](crate#cuda-graphs).
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{
///     DenseVectors, GlobalScale, Options, Output, ScaleLayout, Shape, TiledWeights, Vectors,
/// };
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let shape = Shape::matrix(128, 256)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// // Once, when the model is loaded; the linear scales are freed.
/// let weights =
///     TiledWeights::owned(&stream, &shape, codes, scales, ScaleLayout::Linear, GlobalScale::ONE)?;
///
/// let x = stream.clone_htod(&vec![1.0f32; shape.k()])?;
/// let mut y = stream.alloc_zeros::<f32>(shape.m())?;
/// nvfp4_gemv::gemv_on_device(
///     &stream,
///     &shape,
///     &weights.weights()?,
///     &Vectors::on_device(x.as_view()),
///     Output::on_device(y.as_view_mut()),
///     &Options::new(),
/// )?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TiledWeights<'a> {
    shape: Shape,
    codes: Held<'a, u8>,
    scales: Held<'a, u8>,
    global: GlobalScale,
    row_alpha: Option<Held<'a, f32>>,
}

impl<'a> TiledWeights<'a> {
    /// Bytes of device memory that scales in the 128x4 layout take: so many are allocated for weights whose scales come
    /// linear.
    ///
    /// ```
    /// use nvfp4_gemv::{TiledWeights, Shape};
    /// assert_eq!(TiledWeights::bytes(&Shape::matrix(7168, 16384)?), 7168 * 1024);
    /// assert_eq!(TiledWeights::bytes(&Shape::matrix(1, 16)?), 512); // one atom
    /// # Ok::<(), nvfp4_gemv::Error>(())
    /// ```
    pub const fn bytes(shape: &Shape) -> usize {
        shape.weight_scale_bytes(ScaleLayout::Tiled128x4)
    }

    /// Borrows codes and row factors. Enqueues the change of layout on `stream` and does not wait for
    /// it; later calls are ordered after it by the events of the buffers.
    ///
    /// The change of layout is a kernel that writes scales. A chained launch right after it would read them too
    /// early, as [`Options`](crate::Options#chained-launches) says: synchronise the stream before.
    ///
    /// # Errors
    /// Weights on another device, no memory, errors that CUDA reports of the launch.
    pub fn new(stream: &Arc<CudaStream>, weights: Weights<'a, Device>) -> Result<Self> {
        same_device("weight codes", weights.codes.stream(), stream)?;
        weights.all("a change of layout takes")?;
        let scales = match weights.layout {
            ScaleLayout::Tiled128x4 => Held::Borrowed(weights.scales),
            ScaleLayout::Linear => Held::Owned(tiled(stream, &weights.shape, &weights.scales)?),
        };
        Ok(Self {
            shape: weights.shape,
            codes: Held::Borrowed(weights.codes),
            scales,
            global: weights.global,
            row_alpha: weights.row_alpha.map(Held::Borrowed),
        })
    }

    /// The view that calls take. Checks lengths only.
    ///
    /// # Errors
    /// No errors for weights that were checked when this was made.
    pub fn weights(&self) -> Result<Weights<'_, Device>> {
        let weights = Weights::on_device(
            &self.shape,
            self.codes.view(),
            self.scales.view(),
            ScaleLayout::Tiled128x4,
            self.global,
        )?;
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha_on_device(alpha.view()),
            None => Ok(weights),
        }
    }

    /// The shape the weights were checked against. Its N means nothing here.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl TiledWeights<'static> {
    /// Owns codes and scales, for programs that keep weights longer than any borrow. Linear scales
    /// are freed when their successor has been made: during the call both are in memory.
    ///
    /// # Errors
    /// As [`Weights::on_device`], and [`TiledWeights::new`].
    pub fn owned(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        codes: CudaSlice<u8>,
        scales: CudaSlice<u8>,
        layout: ScaleLayout,
        global: GlobalScale,
    ) -> Result<Self> {
        let relaid = {
            let weights =
                Weights::on_device(shape, codes.as_view(), scales.as_view(), layout, global)?;
            match TiledWeights::new(stream, weights)?.scales {
                Held::Owned(scales) => Some(scales),
                Held::Borrowed(_) => None,
            }
        };
        if relaid.is_some() {
            // The linear scales are freed below, on the stream that they were allocated on, which need not be the
            // stream that still reads them. Where cudarc tracks events it waits for that by itself.
            let freed_on = scales.stream();
            let joined = freed_on.join(stream);
            joined.map_err(|error| driver_error("waiting for 128x4 scales", error))?;
        }
        Ok(Self {
            shape: *shape,
            codes: Held::Owned(codes),
            scales: Held::Owned(relaid.unwrap_or(scales)),
            global,
            row_alpha: None,
        })
    }

    /// As [`Weights::with_row_alpha`], with factors that are owned; their content is not looked at.
    ///
    /// # Errors
    /// A buffer of neither M nor L·M elements.
    pub fn with_row_alpha(mut self, alpha: CudaSlice<f32>) -> Result<Self> {
        self.row_alpha = Some(Held::Owned(alpha));
        self.weights()?;
        Ok(self)
    }
}

/// Linear scales in the 128x4 layout.
pub(crate) fn tiled(
    stream: &Arc<CudaStream>,
    shape: &Shape,
    linear: &CudaView<'_, u8>,
) -> Result<CudaSlice<u8>> {
    same_device("weight scales", linear.stream(), stream)?;
    let mut scales = stream
        .alloc_zeros::<u8>(TiledWeights::bytes(shape).max(1)) // CUDA allocates no nothing
        .map_err(|error| driver_error("allocating 128x4 scales", error))?;
    make_current(stream)?;
    {
        let (source, _source) = linear.device_ptr(stream);
        let (destination, _destination) = scales.device_ptr_mut(stream);
        // SAFETY: the stream's context is current. Both buffers hold the bytes of their layouts:
        // the source was checked when the weights were made. cudarc's events, recorded by the
        // guards, keep them from being freed or reused before the enqueued work has run.
        unsafe {
            raw::relayout(
                shape,
                ScaleLayout::Tiled128x4,
                source,
                destination,
                stream.cu_stream().cast(),
            )?;
        }
    }
    Ok(scales)
}
