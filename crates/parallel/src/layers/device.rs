//! A rank's part of a pair of layers on its GPU: prepared once, launched often, in a CUDA graph too.

use std::sync::Arc;

use nvfp4_gemv::context::driver_error;
use nvfp4_gemv::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, DriverError, ValidAsZeroBits,
};
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{
    Choice, DenseVectors, Device, Element, GlobalScale, Options, Output, PreparedGemvOnDevice,
    ScaleLayout, Shape, Vectors, Weights,
};

use super::placement::{Placement, Read};
use super::{LayersError, RankLayers, with_vectors};
use crate::nccl::{Communicator, Window};
use crate::shard::Shard;

/// Element types of vectors and results between layers: f32, f16, bf16.
pub trait DeviceElement: Element + DeviceRepr + ValidAsZeroBits {
    /// Vectors of it, as an operand.
    fn vectors(values: CudaView<'_, Self>) -> Vectors<'_, Device>;
}

macro_rules! element {
    ($($type:ty => $variant:ident,)*) => {$(
        impl DeviceElement for $type {
            fn vectors(values: CudaView<'_, Self>) -> Vectors<'_, Device> {
                Vectors::$variant(DenseVectors::new(values))
            }
        }
    )*};
}

element! {
    f32 => F32,
    f16 => F16,
    bf16 => Bf16,
}

/// A rank's part of a pair of layers on its GPU, with all buffers that it needs: [`RankLayers::on_device`].
///
/// A [run](Self::run) enqueues the first layers, the work of `between`, the last layer, and the sum over all
/// ranks, in this order on one stream. Before layers that take NVFP4, the launch enqueues the kernel that
/// [quantises](Placement::nvfp4). A launch allocates nothing. A launch can be captured into a CUDA graph, as calls of
/// this crate [can](nvfp4_gemv#cuda-graphs), by all ranks alike. One launch that is not captured must come before, and
/// lets NCCL connect the ranks. Nothing of the sum overlaps the kernels before it, whose results the sum needs.
#[derive(Debug)]
pub struct LayersOnDevice<T: DeviceElement> {
    first: Vec<Layer>,
    last: Layer,
    /// The results of `first`.
    results: Vec<CudaSlice<T>>,
    input: Read<T>,
    between: Read<T>,
    output: Summed<T>,
    communicator: Arc<Communicator>,
}

/// The memory in which the sum over all ranks is made.
#[derive(Debug)]
enum Summed<T: DeviceElement> {
    Plain(CudaSlice<T>),
    Window(Window<T>),
}

impl<T: DeviceElement> Summed<T> {
    fn view(&self) -> CudaView<'_, T> {
        match self {
            Self::Plain(values) => values.as_view(),
            Self::Window(window) => window.view(),
        }
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        match self {
            Self::Plain(values) => values.as_view_mut(),
            Self::Window(window) => window.view_mut(),
        }
    }
}

/// A shard on the device, and its prepared product.
#[derive(Debug)]
struct Layer {
    shape: Shape,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    row_alpha: Option<CudaSlice<f32>>,
    layout: ScaleLayout,
    global: GlobalScale,
    /// Filled in behind the buffers that it is prepared with.
    prepared: Option<PreparedGemvOnDevice>,
}

pub(super) fn cuda(error: DriverError) -> LayersError {
    driver_error("copying a rank's layers", error).into()
}

impl Layer {
    fn new(stream: &Arc<CudaStream>, shard: &Shard<'_>, n: usize) -> Result<Self, LayersError> {
        let weights = shard.weights()?;
        let row_alpha = shard.row_alpha();
        let row_alpha = row_alpha.map(|alpha| stream.clone_htod(alpha)).transpose();
        Ok(Self {
            shape: with_vectors(shard, n)?,
            codes: stream.clone_htod(shard.codes()).map_err(cuda)?,
            scales: stream.clone_htod(shard.scales()).map_err(cuda)?,
            row_alpha: row_alpha.map_err(cuda)?,
            layout: weights.layout(),
            global: weights.global(),
            prepared: None,
        })
    }

    fn weights(&self) -> Result<Weights<'_, Device>, LayersError> {
        let (codes, scales) = (self.codes.as_view(), self.scales.as_view());
        let weights = Weights::on_device(&self.shape, codes, scales, self.layout, self.global)?;
        Ok(match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha_on_device(alpha.as_view())?,
            None => weights,
        })
    }

    fn prepare<T: DeviceElement>(
        &mut self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
        y: CudaViewMut<'_, T>,
        options: &Options<'_>,
    ) -> Result<(), LayersError> {
        let (weights, output) = (self.weights()?, Output::on_device(y));
        let prepared =
            PreparedGemvOnDevice::new(stream, &self.shape, &weights, vectors, output, options)?;
        self.prepared = Some(prepared);
        Ok(())
    }

    fn prepared(&self) -> &PreparedGemvOnDevice {
        self.prepared.as_ref().expect("`on_device` prepares all")
    }

    fn launch<T: DeviceElement>(
        &self,
        stream: &Arc<CudaStream>,
        vectors: &Vectors<'_, Device>,
        y: CudaViewMut<'_, T>,
    ) -> Result<(), LayersError> {
        let (weights, output) = (self.weights()?, Output::on_device(y));
        Ok(self.prepared().run(stream, &weights, vectors, output)?)
    }
}

impl RankLayers<'_> {
    /// Copies this rank's weights to its GPU, and prepares the products for n vectors. The promise of
    /// [chained](Options::chained) options holds at each launch.
    ///
    /// # Errors
    /// [`LayersError::OtherRank`]; a stream of another device than the communicator's; errors of the products; errors
    /// that CUDA reports of memory and copies.
    pub fn on_device<T: DeviceElement>(
        &self,
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        n: usize,
        options: &Options<'_>,
    ) -> Result<LayersOnDevice<T>, LayersError> {
        self.place(stream, communicator, &Placement::new(n), options)
    }

    /// [`on_device`](Self::on_device) as a [`Placement`] says. All ranks do this alike.
    ///
    /// # Errors
    /// As [`on_device`](Self::on_device)'s and [`Window::new`]'s; a global scale that is not positive and finite.
    pub fn place<T: DeviceElement>(
        &self,
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        placement: &Placement,
        options: &Options<'_>,
    ) -> Result<LayersOnDevice<T>, LayersError> {
        let mut window = self.windows(stream, communicator, placement, 1)?;
        self.place_with(stream, communicator, placement, options, window.pop())
    }

    /// Windows for the results of so many layers of this form, registered at once: one for each
    /// [`place_with`](Self::place_with). None where the placement's sums are made in memory as any other.
    ///
    /// # Errors
    /// [`LayersError::OtherRank`]; as [`Window::several`]'s.
    pub fn windows<T: DeviceElement>(
        &self,
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        placement: &Placement,
        count: usize,
    ) -> Result<Vec<Window<T>>, LayersError> {
        self.is_for(communicator.rank(), communicator.ranks())?;
        let len = with_vectors(&self.last, placement.n)?.outputs();
        let bytes = len.saturating_mul(size_of::<T>());
        match placement.takes_window(communicator.ranks(), bytes)? {
            false => Ok(Vec::new()),
            true => Ok(Window::several(stream, communicator, len, count)?),
        }
    }

    /// [`place`](Self::place) with the result in a window that was made before, of [`windows`](Self::windows); in memory
    /// as any other without one. All ranks do this alike.
    ///
    /// # Errors
    /// As [`on_device`](Self::on_device)'s; a global scale that is not positive and finite; a window of another length.
    pub fn place_with<T: DeviceElement>(
        &self,
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        placement: &Placement,
        options: &Options<'_>,
        window: Option<Window<T>>,
    ) -> Result<LayersOnDevice<T>, LayersError> {
        self.is_for(communicator.rank(), communicator.ranks())?;
        communicator.is_on(stream)?;
        let globals = placement.globals()?;
        let zeros = |count: usize| stream.alloc_zeros::<T>(count).map_err(cuda);
        let summed = |len| match window {
            None => Ok(Summed::Plain(zeros(len)?)),
            Some(window) if window.view().len() == len => Ok(Summed::Window(window)),
            Some(window) => Err(LayersError::WindowLength {
                got: window.view().len(),
                expected: len,
            }),
        };
        let layer = |shard| Layer::new(stream, shard, placement.n);
        let read = |layer: &Layer, at: usize| {
            Read::new(stream, &layer.shape, layer.layout, globals.map(|of| of[at]))
        };
        let first = self.first.iter().map(layer);
        let first = first.collect::<Result<Vec<_>, _>>()?;
        let last = layer(&self.last)?;
        let results = first.iter().map(|layer| zeros(layer.shape.outputs()));
        let mut layers = LayersOnDevice {
            results: results.collect::<Result<_, _>>()?,
            input: read(&first[0], 0)?,
            between: read(&last, 1)?,
            output: summed(last.shape.outputs())?,
            first,
            last,
            communicator: communicator.clone(),
        };
        let LayersOnDevice {
            first,
            last,
            results,
            input,
            between,
            output,
            ..
        } = &mut layers;
        for (layer, result) in first.iter_mut().zip(results) {
            layer.prepare(stream, &input.vectors(), result.as_view_mut(), options)?;
        }
        last.prepare(stream, &between.vectors(), output.view_mut(), options)?;
        Ok(layers)
    }
}

impl<T: DeviceElement> LayersOnDevice<T> {
    /// The vectors `[n][K]`, to be filled before a launch.
    pub fn input(&mut self) -> &mut CudaSlice<T> {
        self.input.values()
    }

    /// The result `[n][M]`, the whole one on every rank, when a launch has run.
    pub fn output(&self) -> CudaView<'_, T> {
        self.output.view()
    }

    /// Whether the sum is made in a [`Window`].
    pub fn is_in_window(&self) -> bool {
        matches!(self.output, Summed::Window(_))
    }

    /// The choice for each layer, in the order of the layers: what computes it, and why.
    pub fn choices(&self) -> Vec<&Choice> {
        let layers = self.first.iter().chain([&self.last]);
        layers.map(|layer| layer.prepared().choice()).collect()
    }

    /// Enqueues all of it. `between` enqueues the kernels that make the last layer's vectors `[n][K of its part]` of
    /// the first layers' results, `[n][rows]` each. It enqueues them on the same stream, or ordered with it.
    ///
    /// # Errors
    /// Errors of `between`, of the launches and of the ranks. After an error the other ranks wait for this rank, until
    /// their timeout.
    pub fn run<E: From<LayersError>>(
        &mut self,
        stream: &Arc<CudaStream>,
        between: impl FnOnce(&Arc<CudaStream>, &[CudaSlice<T>], &mut CudaSlice<T>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.run_own(stream, between)?;
        Ok(self.reduce(stream)?)
    }

    /// Enqueues this rank's part alone: its summand of the result. [`reduce`](Self::reduce) follows.
    ///
    /// # Errors
    /// As [`run`](Self::run)'s.
    pub fn run_own<E: From<LayersError>>(
        &mut self,
        stream: &Arc<CudaStream>,
        between: impl FnOnce(&Arc<CudaStream>, &[CudaSlice<T>], &mut CudaSlice<T>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.input.quantize(stream)?;
        for (layer, result) in self.first.iter().zip(&mut self.results) {
            layer.launch(stream, &self.input.vectors(), result.as_view_mut())?;
        }
        between(stream, &self.results, self.between.values())?;
        self.between.quantize(stream)?;
        let (vectors, output) = (self.between.vectors(), self.output.view_mut());
        Ok(self.last.launch(stream, &vectors, output)?)
    }

    /// Enqueues the sum of all ranks' summands.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]'s.
    pub fn reduce(&mut self, stream: &Arc<CudaStream>) -> Result<(), LayersError> {
        let mut output = self.output.view_mut();
        Ok(self.communicator.all_reduce(stream, &mut output)?)
    }

    /// Waits for the stream, and for the other ranks no longer than their timeout.
    ///
    /// # Errors
    /// As [`Communicator::synchronize`]'s.
    pub fn synchronize(&self, stream: &Arc<CudaStream>) -> Result<(), LayersError> {
        Ok(self.communicator.synchronize(stream)?)
    }
}
