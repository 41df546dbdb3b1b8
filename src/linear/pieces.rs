//! Pieces of a checkpoint's weights to a device's memory, through memory that is pinned.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, CudaViewMut, DevicePtrMut, DriverError, result,
};

use super::MatricesOnDevice;
use super::device::upload;
use crate::checkpoint::{Joined, Piece, Pieces, SendError};
use crate::context::driver_error;
use crate::error::{Error, Result};
use crate::tiled_weights::tiled;
use crate::types::ScaleLayout;

const DURING: &str = "copying pieces to the device";

fn error(error: DriverError) -> Error {
    driver_error(DURING, error)
}

impl MatricesOnDevice {
    /// Joined weights of a checkpoint in a device's memory, their block scales in the layout that is asked for: copied now,
    /// on `stream`, piece by piece through these [buffers](DevicePieces::some_buffers), as [`Joined::send`] does. The host needs
    /// no other memory, however large the weights are. What [`LinearOnDevice::from_matrix`](crate::LinearOnDevice) and
    /// [`ExpertsOnDevice::new`](crate::ExpertsOnDevice::new) take.
    ///
    /// A bias is not part of joined weights: [`with_bias`](Self::with_bias).
    ///
    /// # Errors
    /// As [`Joined::send`]'s; its destination's errors are those that CUDA reports of memory, copies and the kernel that
    /// changes the layout. [`Error::HasColumnAlpha`] for weights with factors of columns, before anything is sent.
    ///
    /// ```no_run
    /// use nvfp4_gemv::checkpoint::{Checkpoint, RowOrder};
    /// use nvfp4_gemv::cudarc::driver::CudaContext;
    /// use nvfp4_gemv::{DevicePieces, LinearOnDevice, MatricesOnDevice, ScaleLayout};
    /// let checkpoint = Checkpoint::open("model")?;
    /// let layers = checkpoint.layers().map(|name| checkpoint.joined(&[name], RowOrder::Stacked));
    /// let layers = layers.collect::<Result<Vec<_>, _>>()?;
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let mut buffers = DevicePieces::some_buffers(&stream)?;
    /// let progress = |arrived, all| print!("\r{arrived} of {all} bytes");
    /// let layout = ScaleLayout::Tiled128x4;
    /// let matrices = MatricesOnDevice::from_joined(&stream, layout, &layers, &mut buffers, progress)?;
    /// let layers = matrices.into_iter().map(LinearOnDevice::from_matrix);
    /// # let _: Vec<LinearOnDevice> = layers.collect::<Result<_, _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_joined(
        stream: &Arc<CudaStream>,
        layout: ScaleLayout,
        all: &[Joined<'_>],
        buffers: &mut Vec<PinnedBuffer>,
        progress: impl FnMut(usize, usize),
    ) -> std::result::Result<Vec<Self>, SendError<Error>> {
        let refused = SendError::Destination;
        if all.iter().any(|joined| joined.column_alpha().is_some()) {
            let why = "kernels on a device do not multiply by them";
            return Err(refused(Error::HasColumnAlpha { why }));
        }
        let memory = |bytes: usize| {
            // SAFETY: pieces write all of it before anything reads it. A buffer of nothing has a byte that nobody reads.
            unsafe { stream.alloc::<u8>(bytes.max(1)) }.map_err(error)
        };
        let both = |joined: &Joined<'_>| {
            let shape = joined.shape();
            let scales = shape.weight_scale_bytes(ScaleLayout::Linear);
            Ok([memory(shape.weight_code_bytes())?, memory(scales)?])
        };
        let mut parts: Vec<[CudaSlice<u8>; 2]> = all
            .iter()
            .map(both)
            .collect::<Result<_>>()
            .map_err(refused)?;
        let views = parts
            .iter_mut()
            .map(|of| of.each_mut().map(|of| of.as_view_mut()));
        let mut to = DevicePieces::new(stream, views.collect());
        Joined::send(all, buffers, &mut to, progress)?;
        drop(to);
        let matrices = all.iter().zip(parts).map(|(joined, [codes, scales])| {
            let shape = joined.shape();
            let scales = match layout {
                ScaleLayout::Linear => scales,
                ScaleLayout::Tiled128x4 => {
                    let bytes = shape.weight_scale_bytes(ScaleLayout::Linear);
                    tiled(stream, &shape, &scales.slice(..bytes))?
                }
            };
            let (l, m, k) = (shape.l(), shape.m(), shape.k());
            let matrices = Self::new(l, m, k, codes, scales, layout, joined.global())?;
            match joined.row_alpha() {
                Some(alpha) => matrices.with_row_alpha(upload(stream, alpha)?),
                None => Ok(matrices),
            }
        });
        matrices.collect::<Result<_>>().map_err(refused)
    }
}

/// Memory of a device that [`Joined::send`] sends codes and linear block scales to:
/// [`MatricesOnDevice::from_joined`] makes it, and this is for memory of the caller's. Copies run on a stream while the
/// next pieces are read.
///
/// ```no_run
/// use nvfp4_gemv::checkpoint::{Checkpoint, Joined, RowOrder};
/// use nvfp4_gemv::{DevicePieces, ScaleLayout, cudarc::driver::CudaContext};
/// let checkpoint = Checkpoint::open("model")?;
/// let joined = checkpoint.joined(&["model.layers.0.mlp.down_proj"], RowOrder::Stacked)?;
/// let (stream, shape) = (CudaContext::new(0)?.new_stream()?, joined.shape());
/// let mut codes = stream.alloc_zeros::<u8>(shape.weight_code_bytes())?;
/// let mut scales = stream.alloc_zeros::<u8>(shape.weight_scale_bytes(ScaleLayout::Linear))?;
/// let mut buffers = DevicePieces::some_buffers(&stream)?;
/// let mut to = DevicePieces::new(&stream, vec![[codes.as_view_mut(), scales.as_view_mut()]]);
/// Joined::send(&[joined], &mut buffers, &mut to, |arrived, all| println!("{arrived} of {all} bytes"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DevicePieces<'a> {
    stream: Arc<CudaStream>,
    /// Of each joined weights.
    to: Vec<[CudaViewMut<'a, u8>; 2]>,
    /// Buffers that the device reads, each until its event: the first began first.
    under_way: VecDeque<(CudaEvent, PinnedBuffer)>,
    /// Events of copies that have ended.
    events: Vec<CudaEvent>,
}

impl<'a> DevicePieces<'a> {
    /// Codes `[L][M][K/2]` and linear block scales `[L][M][K/16]` in a device's memory, which copies on `stream` fill: both
    /// for each of the joined weights that are sent, in their order.
    pub fn new(stream: &Arc<CudaStream>, to: Vec<[CudaViewMut<'a, u8>; 2]>) -> Self {
        Self {
            stream: Arc::clone(stream),
            to,
            under_way: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// As many [buffers](Self::buffers) as suit this machine, of 2 MiB: two for each of its cores but two, and at most 64.
    /// A core reads from the page cache a tenth of what the bus to a device takes; the calling thread and the system need
    /// the others. What lies in buffers should fit into caches, and a copy should take longer than to begin it.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn some_buffers(stream: &Arc<CudaStream>) -> Result<Vec<PinnedBuffer>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let readers = cores.saturating_sub(2).clamp(1, 32);
        Self::buffers(stream, 2 * readers, 2 << 20)
    }

    /// Pinned buffers of so many bytes. The system does not move pinned memory out, so there should be few.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn buffers(
        stream: &Arc<CudaStream>,
        count: usize,
        bytes: usize,
    ) -> Result<Vec<PinnedBuffer>> {
        let buffer = |_| PinnedBuffer::new(stream.context(), bytes);
        (0..count).map(buffer).collect()
    }
}

/// Pinned memory of the host, which a device copies from by itself. It is cached: threads write to it and read it.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<CudaContext>,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        context.bind_to_thread().map_err(error)?;
        // SAFETY: the context is current. The memory is written below before anything reads it.
        let at = unsafe { result::malloc_host(len.max(1), 0) }.map_err(error)?;
        let at = NonNull::new(at.cast::<u8>()).expect("memory that was allocated");
        // SAFETY: it has so many bytes, and nothing else has its address.
        unsafe { at.write_bytes(0, len) };
        Ok(Self {
            context: Arc::clone(context),
            at,
            len,
        })
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: it has so many bytes, which were written, and which are this value's own.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // An error here says that the context is gone, and its memory with it.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: it was allocated in this context, and nobody has its address any more.
            let _ = unsafe { result::free_host(self.at.as_ptr().cast()) };
        }
    }
}

impl Pieces for DevicePieces<'_> {
    type Buffer = PinnedBuffer;
    type Error = Error;

    fn bytes(buffer: &mut Self::Buffer) -> Result<&mut [u8]> {
        Ok(buffer)
    }

    fn begin(&mut self, piece: Piece, buffer: Self::Buffer) -> Result<()> {
        let operand = match piece.of_scales {
            true => "weight scales",
            false => "weight codes",
        };
        let to = self.to.get_mut(piece.of);
        let to = to.map(|both| &mut both[usize::from(piece.of_scales)]);
        let (end, got) = (piece.at + piece.bytes, to.as_ref().map_or(0, |to| to.len()));
        let Some(mut to) = to.and_then(|to| to.try_slice_mut(piece.at..end)) else {
            return Err(Error::BufferTooShort {
                operand,
                unit: "bytes",
                needed: end,
                got,
                hint: String::new(),
            });
        };
        let begun = (|| {
            let from = &buffer[..piece.bytes];
            let (to, _written) = to.device_ptr_mut(&self.stream);
            // SAFETY: both sides have as many bytes. The buffer stays where it is, and nobody writes to it, until the
            // event below: `end` and `drop` wait for that.
            unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }?;
            let event = match self.events.pop() {
                Some(event) => event,
                None => self.stream.context().new_event(None)?,
            };
            event.record(&self.stream)?;
            Ok(event)
        })();
        match begun {
            Ok(event) => {
                self.under_way.push_back((event, buffer));
                Ok(())
            }
            Err(reason) => {
                // The copy may have begun: the buffer is not given back before it has ended.
                let _ = self.stream.synchronize();
                Err(error(reason))
            }
        }
    }

    fn end(&mut self) -> Option<Result<Self::Buffer>> {
        let (event, buffer) = self.under_way.pop_front()?;
        if let Err(reason) = event.synchronize() {
            // Nothing is known of the copy: memory that it may read is not freed.
            std::mem::forget(buffer);
            return Some(Err(error(reason)));
        }
        self.events.push(event);
        Some(Ok(buffer))
    }
}

impl Drop for DevicePieces<'_> {
    fn drop(&mut self) {
        while self.end().is_some() {}
    }
}
