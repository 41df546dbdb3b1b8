//! Device memory for intermediate data of calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};

use crate::context::{driver_error, same_device};
use crate::error::{Error, Result};
use crate::operands::RawWorkspace;

/// Device memory for intermediate data of calls, such as vectors in the order in which a kernel reads them. Kernels
/// that need a workspace are not chosen without it: [`Options::workspace`](crate::Options::workspace) gives it to a
/// call, and [`workspace_bytes`](crate::dispatch::workspace_bytes) says how much the call would use.
///
/// One is enough for all calls of a stream, which run one after the other. It belongs to that stream: a call on another
/// one could run at the same time, and is refused. Threads that call on one stream wait for each other while they
/// enqueue: the launches of two calls must not mix.
///
/// Clones share the memory, and a prepared call keeps it alive. It is freed in the order of its stream: behind the
/// calls that use it. A CUDA graph keeps nothing alive: the workspace of captured calls must outlive its replays, and
/// those of the stream's other calls must not run beside them.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::dispatch::workspace_bytes;
/// use nvfp4_gemv::{Activation, Dims, Operands, Options, ScaleLayout, Shape, Workspace, raw};
///
/// raw::device_count()?;
/// let gpu = raw::gpu(0)?;
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let operands = Operands::new(Activation::Bf16, ScaleLayout::Linear);
/// // As much as the layer that needs most of it, with up to 64 tokens a step.
/// let mut most = 0;
/// for (m, k) in [(14336, 4096), (4096, 14336)] {
///     let shape = Shape::new(Dims { m, n: 64, k, l: 1 })?;
///     most = most.max(workspace_bytes(&shape, &operands, &gpu, &Options::new())?);
/// }
/// let workspace = Workspace::new(&stream, most)?; // once
/// let options = Options::new().workspace(&workspace); // for every call on this stream
/// # let _ = options;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Workspace {
    shared: Arc<Shared>,
    raw: RawWorkspace,
}

#[derive(Debug)]
struct Shared {
    memory: CudaSlice<u8>,
    /// Held while the launches of a call are enqueued.
    enqueues: Mutex<()>,
}

impl Workspace {
    /// Allocates so many bytes on the stream's device, as zeros.
    ///
    /// # Errors
    /// The per-thread default stream, which is another stream in each thread. Errors that CUDA reports of the
    /// allocation.
    pub fn new(stream: &Arc<CudaStream>, bytes: u64) -> Result<Self> {
        // CUDA refuses empty allocations.
        let len = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
        let memory = stream.alloc_zeros(len);
        let memory = memory.map_err(|error| driver_error("allocating a workspace", error))?;
        Self::of(memory, bytes)
    }

    /// Uses memory of the caller's, and writes zeros to its front. It belongs to the stream that the memory does.
    ///
    /// # Errors
    /// The per-thread default stream, which is another stream in each thread. An address that is not a multiple of
    /// [`RawWorkspace::ALIGNMENT`]. Errors that CUDA reports of writing the zeros.
    pub fn of_memory(mut memory: CudaSlice<u8>) -> Result<Self> {
        let bytes = memory.len() as u64;
        let counters = memory.len().min(RawWorkspace::COUNTER_BYTES as usize);
        let stream = memory.stream().clone();
        stream
            .memset_zeros(&mut memory.slice_mut(..counters))
            .map_err(|error| driver_error("clearing a workspace", error))?;
        Self::of(memory, bytes)
    }

    fn of(mut memory: CudaSlice<u8>, bytes: u64) -> Result<Self> {
        let stream = memory.stream().clone();
        if handle(&stream) == PER_THREAD {
            return Err(Error::WorkspaceOfAnotherStream);
        }
        // Reads of the memory that other streams have enqueued are waited for.
        let (address, written) = memory.device_ptr_mut(&stream);
        drop(written);
        crate::check::pointer("workspace", address, RawWorkspace::ALIGNMENT)?;
        Ok(Self {
            shared: Arc::new(Shared {
                memory,
                enqueues: Mutex::new(()),
            }),
            raw: RawWorkspace { address, bytes },
        })
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.raw.bytes
    }

    /// The stream whose calls may use it.
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.shared.memory.stream()
    }

    /// By address, for [`raw::Call::with_workspace`](crate::raw::Call::with_workspace). It is valid while this, or a
    /// clone of it, is there.
    pub fn raw(&self) -> RawWorkspace {
        self.raw
    }

    /// Takes the workspace for a call on this stream, while the call's launches are enqueued.
    pub(crate) fn hold(&self, stream: &Arc<CudaStream>) -> Result<MutexGuard<'_, ()>> {
        same_device("workspace", self.stream(), stream)?;
        match handle(self.stream()) == handle(stream) {
            // Whoever panicked while it enqueued left nothing half done that this call would see.
            true => Ok(self
                .shared
                .enqueues
                .lock()
                .unwrap_or_else(PoisonError::into_inner)),
            false => Err(Error::WorkspaceOfAnotherStream),
        }
    }
}

/// CUDA's handle of each thread's default stream: `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

fn handle(stream: &Arc<CudaStream>) -> usize {
    stream.cu_stream().addr()
}
