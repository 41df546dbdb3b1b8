//! Memory that collectives of all ranks reach.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, ValidAsZeroBits};

use super::api::{Handle, SUCCESS, Windows};
use super::communicator::Communicator;
use super::error::NcclError;
use crate::context::{driver_error, make_current};
use crate::quantize::Element;

/// What windows are multiples of, in bytes: `NCCL_WIN_REQUIRED_ALIGNMENT`.
const GRANULE: usize = 4096;

/// Device memory that all ranks have registered for their collectives: NCCL's symmetric windows, from 2.27 on. Give its view
/// to [`Communicator::all_reduce`], and NCCL takes kernels for windows where it finds them faster.
///
/// All ranks make windows of the same length in the same order, and drop them when none of them has work left on them.
#[derive(Debug)]
pub struct Window<T: Element + DeviceRepr> {
    /// Never dropped as it is: the memory is NCCL's. Lent as views only, so that nobody can put another one in its place.
    values: ManuallyDrop<CudaSlice<T>>,
    handle: Registered,
    windows: Windows,
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
    /// Allocates so many elements, as zeros, on the stream's device, which must be the communicator's, and registers them
    /// together with the other ranks.
    ///
    /// # Errors
    /// [`NcclError::NoWindows`]; as [`Communicator::all_reduce`]'s; what CUDA reports.
    pub fn new(
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        len: usize,
    ) -> Result<Self, NcclError> {
        let session = &communicator.session;
        let windows = session.windows()?;
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
        // SAFETY: memory of `allocate`, of so many bytes, which `drop` frees behind the window.
        let registered = unsafe { session.register(memory, bytes) };
        let handle = match registered {
            Ok(handle) => Registered(handle),
            Err(error) => {
                // SAFETY: memory of `allocate`. The communicator is aborted, and nothing was enqueued with it.
                unsafe { (windows.free)(memory) };
                return Err(error);
            }
        };
        // SAFETY: memory of the stream's device for so many elements, and more. `ManuallyDrop` keeps cudarc from freeing
        // it.
        let values = unsafe { stream.upgrade_device_ptr(memory.addr() as u64, len) };
        let mut window = Self {
            values: ManuallyDrop::new(values),
            handle,
            windows,
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
        // Work on it ends, or its collectives are aborted at the timeout, and then the rest of it ends. Of an aborted
        // communicator no window is left to give back.
        if self.communicator.synchronize(&stream).is_err() {
            let _ = stream.synchronize();
        }
        let _ = self.communicator.session.deregister(self.handle.0);
        // SAFETY: nobody has this any more.
        let memory = unsafe { ManuallyDrop::take(&mut self.values) }.leak();
        if make_current(&stream).is_ok() {
            // SAFETY: memory of `allocate`, whose work has ended, and which is no window any more.
            let status = unsafe { (self.windows.free)(memory as *mut c_void) };
            debug_assert_eq!(status, SUCCESS, "a window's memory cannot be freed");
        }
    }
}
