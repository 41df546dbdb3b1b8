//! Pieces of a checkpoint's weights to a device's memory, through memory that is pinned.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{
    CudaEvent, CudaStream, CudaViewMut, DevicePtrMut, DriverError, PinnedHostSlice, result,
};

use crate::checkpoint::{Piece, Pieces};
use crate::context::driver_error;
use crate::error::{Error, Result};

const DURING: &str = "copying pieces to the device";

fn error(error: DriverError) -> Error {
    driver_error(DURING, error)
}

/// A device's memory that [`Joined::send`](crate::checkpoint::Joined::send) sends codes and linear block scales to.
///
/// Copies run on a stream while the next pieces are read. No GPU has run this yet: tests on the host hold the order, the
/// bounds of memory and the ends after errors, with another destination.
///
/// ```no_run
/// use nvfp4_gemv::checkpoint::{Checkpoint, RowOrder};
/// use nvfp4_gemv::{DevicePieces, ScaleLayout, cudarc::driver::CudaContext};
/// let checkpoint = Checkpoint::open("model")?;
/// let joined = checkpoint.joined(&["model.layers.0.mlp.down_proj"], RowOrder::Stacked)?;
/// let (stream, shape) = (CudaContext::new(0)?.new_stream()?, joined.shape());
/// let mut codes = stream.alloc_zeros::<u8>(shape.weight_code_bytes())?;
/// let mut scales = stream.alloc_zeros::<u8>(shape.weight_scale_bytes(ScaleLayout::Linear))?;
/// let buffers = DevicePieces::buffers(&stream, 4, 16 << 20)?;
/// let mut to = DevicePieces::new(&stream, codes.as_view_mut(), scales.as_view_mut());
/// joined.send(buffers, &mut to, |arrived, all| println!("{arrived} of {all} bytes"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DevicePieces<'a> {
    stream: Arc<CudaStream>,
    codes: CudaViewMut<'a, u8>,
    scales: CudaViewMut<'a, u8>,
    /// Buffers that the device reads, each until its event: the first began first.
    under_way: VecDeque<(CudaEvent, PinnedHostSlice<u8>)>,
}

impl<'a> DevicePieces<'a> {
    /// Codes `[L][M][K/2]` and linear block scales `[L][M][K/16]` in a device's memory, which copies on `stream` fill.
    pub fn new(
        stream: &Arc<CudaStream>,
        codes: CudaViewMut<'a, u8>,
        scales: CudaViewMut<'a, u8>,
    ) -> Self {
        Self {
            stream: Arc::clone(stream),
            codes,
            scales,
            under_way: VecDeque::new(),
        }
    }

    /// Pinned buffers of so many bytes. The system does not move pinned memory out, so there should be few.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn buffers(
        stream: &Arc<CudaStream>,
        count: usize,
        bytes: usize,
    ) -> Result<Vec<PinnedHostSlice<u8>>> {
        let buffer = |_| {
            // SAFETY: the memory is written below before anything reads it.
            let mut buffer = unsafe { stream.context().alloc_pinned::<u8>(bytes) }?;
            // SAFETY: it has so many bytes, and nothing else has its address.
            unsafe { buffer.as_mut_ptr()?.write_bytes(0, bytes) };
            Ok(buffer)
        };
        (0..count)
            .map(buffer)
            .collect::<std::result::Result<_, _>>()
            .map_err(error)
    }
}

impl Pieces for DevicePieces<'_> {
    type Buffer = PinnedHostSlice<u8>;
    type Error = Error;

    fn bytes(buffer: &mut Self::Buffer) -> Result<&mut [u8]> {
        buffer.as_mut_slice().map_err(error)
    }

    fn begin(&mut self, piece: Piece, buffer: Self::Buffer) -> Result<()> {
        let (to, operand) = match piece.of_scales {
            true => (&mut self.scales, "weight scales"),
            false => (&mut self.codes, "weight codes"),
        };
        let (end, got) = (piece.at + piece.bytes, to.len());
        let Some(mut to) = to.try_slice_mut(piece.at..end) else {
            return Err(Error::BufferTooShort {
                operand,
                unit: "bytes",
                needed: end,
                got,
                hint: String::new(),
            });
        };
        let begun = (|| {
            let from = &buffer.as_slice()?[..piece.bytes];
            let (to, _written) = to.device_ptr_mut(&self.stream);
            // SAFETY: both sides have as many bytes. The buffer stays where it is, and nobody writes to it, until the
            // event below: `end` and `drop` wait for that.
            unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }?;
            self.stream.record_event(None)
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
        Some(Ok(buffer))
    }
}

impl Drop for DevicePieces<'_> {
    fn drop(&mut self) {
        while self.end().is_some() {}
    }
}
