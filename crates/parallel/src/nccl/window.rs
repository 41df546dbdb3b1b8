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
/// To register memory every rank maps that of every other one: windows of many layers are made by one
/// [`several`](Self::several), or else a process with eight ranks spends minutes on them.
///
/// NCCL may still use the memory of an aborted communicator's window when the window is dropped: for as long as there
/// are graphs with the communicator's collectives. Dropping waits a few seconds for that to end, and then lets the
/// memory go unfreed.
#[derive(Debug)]
pub struct Window<T: Element + DeviceRepr> {
    /// Never dropped as it is: the memory is NCCL's. Lent as views only, so that nobody can put another one in its
    /// place.
    values: ManuallyDrop<CudaSlice<T>>,
    _registration: Arc<Registration>,
}

/// Memory that was registered at once, of one window or of several: given back with the last of them.
#[derive(Debug)]
struct Registration {
    memory: u64,
    handle: Registered,
    stream: Arc<CudaStream>,
    communicator: Arc<Communicator>,
}

/// NCCL's `ncclWindow_t`.
#[derive(Debug)]
struct Registered(Handle);

// SAFETY: NCCL's windows belong to no thread, and only `Registration::drop` uses this one.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// Bytes from one window of a registration to the next: those of so many elements, of whole granules. `None` where
/// there are no so many bytes.
fn stride<T>(len: usize) -> Option<usize> {
    let bytes = len.checked_mul(size_of::<T>())?.max(1);
    bytes.checked_next_multiple_of(GRANULE)
}

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
        let mut one = Self::several(stream, communicator, len, 1)?;
        Ok(one.pop().expect("one was made"))
    }

    /// So many windows of so many elements each, which are registered at once, and given back with the last of them.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn several(
        stream: &Arc<CudaStream>,
        communicator: &Arc<Communicator>,
        len: usize,
        count: usize,
    ) -> Result<Vec<Self>, NcclError> {
        let session = &communicator.session;
        let windows = session.windows()?;
        communicator.is_on(stream)?;
        make_current(stream)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let stride = stride::<T>(len).unwrap_or(usize::MAX);
        let bytes = stride.saturating_mul(count);
        let mut memory: *mut c_void = null_mut();
        session.call("ncclMemAlloc", "allocating a window", |_, _| {
            // SAFETY: a place for an address; the device is current.
            unsafe { (windows.allocate)(&mut memory, bytes) }
        })?;
        // SAFETY: memory of `allocate` on the current device, of so many bytes, which `Registration::drop` gives back.
        let handle = Registered(unsafe { session.window(memory, bytes) }?);
        let registration = Arc::new(Registration {
            memory: memory.addr() as u64,
            handle,
            stream: stream.clone(),
            communicator: communicator.clone(),
        });
        let mut all = Vec::with_capacity(count);
        for part in 0..count {
            let address = registration.memory + (part * stride) as u64;
            // SAFETY: memory of the stream's device for so many elements, and more, which no other part has.
            // `ManuallyDrop` keeps cudarc from freeing it.
            let values = unsafe { stream.upgrade_device_ptr(address, len) };
            let mut window = Self {
                values: ManuallyDrop::new(values),
                _registration: registration.clone(),
            };
            let zeros = stream.memset_zeros(&mut *window.values);
            zeros.map_err(|error| driver_error("filling a window with zeros", error))?;
            all.push(window);
        }
        Ok(all)
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
        // SAFETY: nobody has this any more.
        let values = unsafe { ManuallyDrop::take(&mut self.values) };
        // Lets the stream wait for what other streams have enqueued with it. The registration goes behind this.
        values.leak();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // All that the stream waits for ends too, or the communicator is aborted at the timeout.
        let _ = self.communicator.synchronize(&self.stream);
        if make_current(&self.stream).is_ok() {
            let window = Some(self.handle.0);
            let ends = |within| ends(&self.stream, within);
            // SAFETY: the window and its memory, of `allocate` on the stream's device, which is current. Views that
            // borrowed them are gone, with the windows.
            unsafe {
                let session = &self.communicator.session;
                session.give_back(window, self.memory as *mut c_void, ends);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of a registration do not overlap, and begin where NCCL asks for it; sizes that overflow are none.
    #[test]
    fn parts_of_a_registration_are_whole_granules() {
        for (len, bytes) in [(0, 4096), (1, 4096), (2048, 4096), (2049, 8192)] {
            assert_eq!(stride::<u16>(len), Some(bytes), "{len}");
        }
        assert_eq!(stride::<f32>(usize::MAX / 2), None);
        assert_eq!(stride::<u8>(usize::MAX), None);
    }
}
