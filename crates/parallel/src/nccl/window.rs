//! Memory that collectives of all ranks reach.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvfp4_gemv::Element;
use nvfp4_gemv::context::{driver_error, make_current};
use nvfp4_gemv::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, ValidAsZeroBits,
};

use super::api::Handle;
use super::communicator::{Communicator, is_idle};
use super::error::NcclError;

/// The number of bytes that windows are multiples of: `NCCL_WIN_REQUIRED_ALIGNMENT`.
const GRANULE: usize = 4096;

/// Device memory that all ranks have registered for their collectives, as symmetric: NCCL's windows, from 2.27 on. Give
/// its view to [`Communicator::all_reduce`], and NCCL takes kernels for symmetric memory where it can and finds them
/// faster.
///
/// All ranks make windows of the same length in the same order, and drop them when none of them has work left on them.
///
/// NCCL may still use the memory of an aborted communicator's window when the window is dropped: for as long as there
/// are graphs with the communicator's collectives. Dropping waits a few seconds for that to end, and then lets the
/// memory go unfreed.
#[derive(Debug)]
pub struct Window<T: Element + DeviceRepr> {
    /// Never dropped as it is: the memory is NCCL's. Lent as views only, so that nobody can put another one in its
    /// place.
    values: ManuallyDrop<CudaSlice<T>>,
    handle: Registered,
    communicator: Arc<Communicator>,
}

/// NCCL's `ncclWindow_t`.
#[derive(Debug)]
struct Registered(Handle);

// SAFETY: NCCL's windows belong to no thread, and only `Window::drop` uses this one.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl<T: Element + DeviceRepr + ValidAsZeroBits> Window<T> {
    /// Allocates so many elements, as zeros, on the stream's device, which must be the communicator's, and registers
    /// them together with the other ranks.
    ///
    /// # Errors
    /// [`NcclError::NoWindows`], [`NcclError::NotRegistered`]; a stream of another device than the communicator's; as
    /// [`Communicator::all_reduce`]'s; errors that CUDA reports.
    pub fn new(
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        len: usize,
    ) -> Result<Self, NcclError> {
        let session = &communicator.session;
        let windows = session.windows()?;
        communicator.is_on(stream)?;
        make_current(stream)?;
        let bytes = len
            .saturating_mul(size_of::<T>())
            .max(1)
            .checked_next_multiple_of(GRANULE)
            .unwrap_or(usize::MAX);
        let mut memory: *mut c_void = null_mut();
        session.call("ncclMemAlloc", "allocating a window", |_, _| {
            // SAFETY: a place for an address; the device is current.
            unsafe { (windows.allocate)(&mut memory, bytes) }
        })?;
        // SAFETY: memory of `allocate` on the current device, of so many bytes, which `drop` gives back.
        let handle = Registered(unsafe { session.window(memory, bytes) }?);
        // SAFETY: memory of the stream's device for so many elements, and more. `ManuallyDrop` keeps cudarc from
        // freeing it.
        let values = unsafe { stream.upgrade_device_ptr(memory.addr() as u64, len) };
        let mut window = Self {
            values: ManuallyDrop::new(values),
            handle,
            communicator: communicator.clone(),
        };
        let zeros = stream.memset_zeros(&mut *window.values);
        zeros.map_err(|error| driver_error("filling a window with zeros", error))?;
        Ok(window)
    }
}

impl<T: Element + DeviceRepr> Window<T> {
    /// Its elements, to be read.
    pub fn view(&self) -> CudaView<'_, T> {
        self.values.as_view()
    }

    /// Its elements, to be written.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.values.as_view_mut()
    }
}

impl<T: Element + DeviceRepr> Drop for Window<T> {
    fn drop(&mut self) {
        let stream = self.values.stream().clone();
        // SAFETY: nobody has this any more.
        let values = unsafe { ManuallyDrop::take(&mut self.values) };
        // Lets the stream wait for what other streams have enqueued with it.
        let memory = values.leak();
        // So all of that ends too, or the communicator is aborted at the timeout.
        let _ = self.communicator.synchronize(&stream);
        if make_current(&stream).is_ok() {
            let window = Some(self.handle.0);
            let ends = |within| ends(&stream, within);
            // SAFETY: the window and its memory, of `allocate` on the stream's device, which is current. Views that
            // borrowed them are gone.
            unsafe {
                let session = &self.communicator.session;
                session.give_back(window, memory as *mut c_void, ends);
            }
        }
    }
}

/// Whether a stream's work ends within a time. A stream that reports an error may still have some.
fn ends(stream: &CudaStream, within: Duration) -> bool {
    let begin = Instant::now();
    loop {
        match is_idle(stream) {
            Ok(true) => return true,
            Ok(false) if begin.elapsed() < within => sleep(Duration::from_millis(1)),
            Ok(false) | Err(_) => return false,
        }
    }
}
