//! Sums and collections on a rank's stream.

use std::sync::Arc;

use nvfp4_gemv::context::{driver_error, make_current, same_context, same_device};
use nvfp4_gemv::cudarc::driver::sys::{CUresult, cuStreamQuery};
use nvfp4_gemv::cudarc::driver::{
    CudaContext, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr,
    DeviceSlice, DriverError,
};
use nvfp4_gemv::{Element, Error, FloatType};

use super::api::{BFLOAT16, FLOAT16, FLOAT32, Handle, SUM};
use super::error::NcclError;
use super::session::Session;
use super::{Timeouts, UniqueId, api};

/// One rank's part in the collectives of all ranks.
///
/// Every rank makes one with the same [`UniqueId`], and then all make the same calls in the same order. Each rank has a
/// GPU and a thread of its own, in one process or in several. A thread that made two communicators, one after the
/// other, would wait in the first one for the second.
///
/// A call enqueues, as all of this crate's calls on a device do, and can be [captured into a CUDA
/// graph](nvfp4_gemv#cuda-graphs), by all ranks alike. NCCL enqueues on a thread of its own, and the call waits for it.
/// So capture with mode `THREAD_LOCAL` or `RELAXED`, not `GLOBAL`, and capture launches that are made often. The first
/// call with a number of elements may let NCCL connect the ranks in another way than before, for which NCCL allocates.
/// Make such a call once before the capture.
///
/// After an error of NCCL's, which may be another rank's, a communicator is of no more use: all later calls are
/// [`NcclError::Aborted`]. It is of no more use either after an error of the work that
/// [`synchronize`](Self::synchronize) waits for. NCCL meanwhile ends the communicator on a thread of its own. First and
/// soon NCCL ends the collectives that the GPU waits for. Then, when no graph has the communicator's collectives any
/// more, NCCL frees what it has allocated. A call that refuses something before it asks NCCL, such as memory of another
/// device, ends nothing.
///
/// Dropped without an error, a communicator waits for the other ranks to drop theirs, at most for the timeout. Then,
/// after an error too, it waits a few seconds more at most, for NCCL to end it. Destroy graphs with its collectives
/// before: NCCL cannot end the communicator while there are any, and nothing in the process can cut that short.
///
/// ```no_run
/// use std::time::Duration;
///
/// use nvfp4_gemv::cudarc::driver::CudaContext;
/// use nvfp4_gemv_parallel::nccl::{Communicator, NcclError, UniqueId};
///
/// // Two ranks that are threads of this process, with a GPU each.
/// let id = UniqueId::new()?;
/// let rank = |rank: usize| -> Result<Vec<f32>, Box<dyn std::error::Error + Send + Sync>> {
///     let stream = CudaContext::new(rank)?.new_stream()?;
///     let ranks = Communicator::new(&stream, 2, rank, &id, Duration::from_secs(60))?;
///     let mut y = stream.clone_htod(&[rank as f32; 8192])?;
///     ranks.all_reduce(&stream, &mut y.as_view_mut())?;
///     ranks.synchronize(&stream)?;
///     Ok(stream.clone_dtoh(&y)?)
/// };
/// std::thread::scope(|scope| {
///     let other = scope.spawn(|| rank(1));
///     assert_eq!(rank(0).unwrap(), [1.0; 8192]);
///     assert_eq!(other.join().unwrap().unwrap(), [1.0; 8192]);
/// });
/// # Ok::<(), NcclError>(())
/// ```
#[derive(Debug)]
pub struct Communicator {
    pub(super) session: Session,
    context: Arc<CudaContext>,
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Communicator>();
};

impl Communicator {
    /// Joins the other ranks with the device of a stream, and adds up a number of each on it, which shows that all are
    /// there. The timeout is a `Duration`, which is also that of every later wait, or [`Timeouts`].
    ///
    /// # Errors
    /// As [`library`](super::library)'s; [`NcclError::NoSuchRank`]; [`NcclError::Timeout`] where a rank does not come;
    /// [`NcclError::Call`], [`NcclError::Failed`], [`NcclError::WrongSum`]; errors that CUDA reports.
    pub fn new(
        stream: &Arc<CudaStream>,
        ranks: usize,
        rank: usize,
        id: &UniqueId,
        timeout: impl Into<Timeouts>,
    ) -> Result<Self, NcclError> {
        let api = *api()?;
        make_current(stream)?;
        let communicator = Self {
            session: Session::start(api, ranks, rank, *id.bytes(), timeout.into())?,
            context: stream.context().clone(),
        };
        // The others wait for what this rank cannot do any more.
        let counted = communicator.count(stream);
        counted.inspect_err(|_| communicator.abort())?;
        communicator.session.joined();
        Ok(communicator)
    }

    /// A stream is of the device, and the context, that this rank joined with.
    pub(crate) fn is_on(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        same_context("the communicator", &self.context, stream.context())
    }

    /// Each rank adds its number from 1 on.
    fn count(&self, stream: &Arc<CudaStream>) -> Result<(), NcclError> {
        let cuda = |error| driver_error("adding up the first numbers", error);
        let (rank, ranks) = (self.rank(), self.ranks());
        let mut sum = stream.clone_htod(&[(rank + 1) as f32]).map_err(cuda)?;
        self.all_reduce(stream, &mut sum.as_view_mut())?;
        self.synchronize(stream)?;
        let got = stream.clone_dtoh(&sum).map_err(cuda)?[0];
        let expected = (ranks * (ranks + 1) / 2) as f32;
        match got == expected {
            true => Ok(()),
            false => Err(NcclError::WrongSum {
                ranks,
                got,
                expected,
            }),
        }
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.session.rank()
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.session.ranks()
    }

    /// Puts the sum of all ranks' values in the place of each rank's.
    ///
    /// # Errors
    /// Values on another device than the stream's, or a stream on another one than this rank's, which end nothing;
    /// [`NcclError::Call`], [`NcclError::Failed`], [`NcclError::Timeout`], [`NcclError::Aborted`].
    pub fn all_reduce<T: Element + DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        values: &mut CudaViewMut<'_, T>,
    ) -> Result<(), NcclError> {
        same_device("values", values.stream(), stream)?;
        let count = values.len();
        let (address, _guard) = values.device_ptr_mut(stream);
        // SAFETY: the view is of the stream's device and holds so many elements; the guard, which lives through the
        // call, keeps its memory until the enqueued work has run.
        unsafe { self.all_reduce_raw(stream, address, address, count, T::TYPE) }
    }

    /// Collects the elements of all ranks, in the order of the ranks' numbers.
    ///
    /// # Errors
    /// [`NcclError::GatherLength`], which ends nothing; else as [`all_reduce`](Self::all_reduce)'s.
    pub fn all_gather<T: Element + DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        mine: &CudaView<'_, T>,
        all: &mut CudaViewMut<'_, T>,
    ) -> Result<(), NcclError> {
        same_device("a rank's values", mine.stream(), stream)?;
        same_device("all values", all.stream(), stream)?;
        let (part, got, ranks) = (mine.len(), all.len(), self.ranks());
        if part.checked_mul(ranks) != Some(got) {
            return Err(NcclError::GatherLength { got, part, ranks });
        }
        self.is_on(stream)?;
        make_current(stream)?;
        let (from, _read) = mine.device_ptr(stream);
        let (to, _written) = all.device_ptr_mut(stream);
        self.session
            .call("ncclAllGather", "collecting", |api, comm| {
                // SAFETY: the views are of the stream's device, which is current, and hold so many elements. The
                // guards, which live through the call, keep their memory until the enqueued work has run. The session
                // gives a communicator that is there.
                unsafe {
                    (api.all_gather)(
                        from as *const _,
                        to as *mut _,
                        part,
                        number_of(T::TYPE),
                        comm,
                        stream.cu_stream().cast(),
                    )
                }
            })
    }

    /// [`all_reduce`](Self::all_reduce) by address, from one place to another or in place.
    ///
    /// # Safety
    /// Both addresses are of valid memory of the stream's device for so many elements. The memory stays valid until the
    /// enqueued work has run, in every replay of a graph too. The two regions are the same, or do not overlap.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce)'s.
    pub unsafe fn all_reduce_raw(
        &self,
        stream: &Arc<CudaStream>,
        from: u64,
        to: u64,
        count: usize,
        element: FloatType,
    ) -> Result<(), NcclError> {
        self.is_on(stream)?;
        make_current(stream)?;
        self.session
            .call("ncclAllReduce", "adding up", |api, comm| {
                // SAFETY: the caller answers for the memory; the stream's context is current, and the session gives a
                // communicator that is there.
                unsafe {
                    (api.all_reduce)(
                        from as *const _,
                        to as *mut _,
                        count,
                        number_of(element),
                        SUM,
                        comm,
                        stream.cu_stream().cast::<std::ffi::c_void>() as Handle,
                    )
                }
            })
    }

    /// Waits for the stream, as `CudaStream::synchronize` does, and for the other ranks no longer than the timeout.
    ///
    /// # Errors
    /// [`NcclError::Timeout`], [`NcclError::Failed`], [`NcclError::Aborted`]; errors that CUDA reports of the stream's
    /// work. After any of them the communicator is aborted.
    pub fn synchronize(&self, stream: &Arc<CudaStream>) -> Result<(), NcclError> {
        make_current(stream)?;
        self.session
            .wait("the stream's work", || Ok(is_idle(stream)?))
    }

    /// Whether NCCL has noticed a failure, such as another rank's end. Costs the host a call, and the stream nothing.
    ///
    /// # Errors
    /// [`NcclError::Failed`], [`NcclError::Aborted`].
    pub fn check(&self) -> Result<(), NcclError> {
        self.session.check("looking after the other ranks")
    }

    /// Gives up: collectives that the GPU waits for end soon, with any content, and the other ranks notice at their
    /// timeout. This returns at once, also while another thread waits with this communicator, which then gets
    /// [`NcclError::Aborted`].
    pub fn abort(&self) {
        self.session.abort("this rank gave up");
    }
}

/// Whether a stream has no work left.
pub(super) fn is_idle(stream: &CudaStream) -> Result<bool, Error> {
    // SAFETY: the stream is a live one.
    match unsafe { cuStreamQuery(stream.cu_stream()) } {
        CUresult::CUDA_SUCCESS => Ok(true),
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        error => Err(driver_error("waiting for the stream", DriverError(error))),
    }
}

/// NCCL's number of an element type.
const fn number_of(element: FloatType) -> std::ffi::c_int {
    match element {
        FloatType::F16 => FLOAT16,
        FloatType::Bf16 => BFLOAT16,
        FloatType::F32 => FLOAT32,
    }
}
