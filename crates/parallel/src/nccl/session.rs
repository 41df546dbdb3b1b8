//! A communicator's life, without streams: it starts, works, fails and ends, and nothing in it waits forever.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::api::{Api, Config, Handle, IN_PROGRESS, Id, SUCCESS, SYMMETRIC, Status, Windows};
use super::ending::Ending;
use super::error::{INIT, JOINING, NcclError};
use super::{Timeouts, Version};

/// Between two looks at a communicator. Short beside what it takes to notice a rank that died, long beside a look.
const PAUSE: Duration = Duration::from_micros(100);

/// A rank's communicator.
#[derive(Debug)]
pub(super) struct Session {
    api: Api,
    rank: usize,
    ranks: usize,
    timeouts: Timeouts,
    /// Held from a call until what it began is done: until then NCCL takes no other call.
    turn: Mutex<()>,
    /// Held for as long as NCCL takes to say how it is, so that another thread can abort what is waited for.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Null once it is aborted, or destroyed.
    comm: Handle,
    failed: Option<NcclError>,
    /// The call that ends it.
    ending: Option<Arc<Ending>>,
    /// The timeout of waits that begin now.
    timeout: Duration,
}

// SAFETY: NCCL's communicators belong to no thread; calls with one must not run at the same time, and the lock around
// this sees to that.
unsafe impl Send for State {}

impl Session {
    /// Joins the others of the id, and waits for all of them. The device that is current becomes the rank's.
    pub(super) fn start(
        api: Api,
        ranks: usize,
        rank: usize,
        id: [u8; Id::BYTES],
        timeouts: Timeouts,
    ) -> Result<Self, NcclError> {
        let (count, number) = match (c_int::try_from(ranks), c_int::try_from(rank)) {
            (Ok(count), Ok(number)) if number < count => (count, number),
            _ => return Err(NcclError::NoSuchRank { rank, ranks }),
        };
        let mut config = Config::NOT_BLOCKING;
        let id = Id { bytes: id };
        // NCCL fills this in at once, and a thread of it does so again when all have come. After an error nobody knows
        // whether it still will, so it stays.
        let place = Box::into_raw(Box::new(AtomicPtr::<c_void>::new(null_mut())));
        // SAFETY: a place for a communicator, made above, which stays; ranks and rank that were checked; a
        // configuration of the version that it says, which NCCL copies.
        let status = unsafe { (api.init)((*place).as_ptr(), count, id, number, &mut config) };
        let session = Self {
            api,
            rank,
            ranks,
            timeouts,
            turn: Mutex::new(()),
            state: Mutex::new(State {
                // SAFETY: the place stays.
                comm: unsafe { (*place).load(Acquire) },
                failed: None,
                ending: None,
                timeout: timeouts.joining,
            }),
        };
        session.settle(status, INIT, JOINING)?;
        // SAFETY: made above, and NCCL is done with it: all have come.
        drop(unsafe { Box::from_raw(place) });
        Ok(session)
    }

    /// All ranks have come, and from here on the other timeout counts.
    pub(super) fn joined(&self) {
        self.lock().timeout = self.timeouts.waiting;
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Calls NCCL with the communicator, and waits until what was called is enqueued.
    pub(super) fn call(
        &self,
        name: &'static str,
        doing: &'static str,
        call: impl FnOnce(&Api, Handle) -> Status,
    ) -> Result<(), NcclError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let status = {
            let state = self.working()?;
            call(&self.api, state.comm)
        };
        self.settle(status, name, doing)
    }

    /// Waits until something is done that depends on the other ranks, and looks after them meanwhile. The communicator
    /// is aborted at the timeout, when NCCL reports a failure, and when what is waited for has failed.
    pub(super) fn wait(
        &self,
        doing: &'static str,
        mut is_done: impl FnMut() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let (begin, timeout) = (Instant::now(), self.lock().timeout);
        loop {
            match is_done() {
                Ok(true) => return self.check(doing),
                Ok(false) => self.check(doing)?,
                // The other ranks would wait for what this one cannot do any more.
                Err(error) => return Err(self.fail(&mut *self.working()?, error)),
            }
            if begin.elapsed() >= timeout {
                let error = self.too_late(doing, timeout);
                return Err(self.fail(&mut *self.working()?, error));
            }
            sleep(PAUSE);
        }
    }

    /// Whether all is well, as far as NCCL knows. A failure, also of another rank, ends this one.
    pub(super) fn check(&self, doing: &'static str) -> Result<(), NcclError> {
        let mut state = self.working()?;
        match self.ask(&state)? {
            SUCCESS | IN_PROGRESS => Ok(()),
            status => {
                let error = self.reported(doing, status);
                Err(self.fail(&mut state, error))
            }
        }
    }

    /// The functions of windows.
    pub(super) fn windows(&self) -> Result<Windows, NcclError> {
        self.api.windows.ok_or_else(|| {
            let mut code = 0;
            // SAFETY: a place for a number.
            unsafe { (self.api.version)(&mut code) };
            let version = Version::of_code(code).to_string();
            NcclError::NoWindows { version }
        })
    }

    /// Memory of every rank becomes a window, or is given back.
    ///
    /// # Safety
    /// The memory is of [`Windows::allocate`] on the device that is current, and has so many bytes. Nobody else uses
    /// it, nor frees it but by [`give_back`](Self::give_back).
    pub(super) unsafe fn window(
        &self,
        memory: *mut c_void,
        bytes: usize,
    ) -> Result<Handle, NcclError> {
        // SAFETY: as the caller says.
        let registered = unsafe { self.register(memory, bytes) };
        let (window, error) = match registered {
            Ok(window) if !window.is_null() => return Ok(window),
            Ok(none) => (Some(none), self.not_registered()),
            Err(error) => (None, error),
        };
        // SAFETY: what was registered, or not; nothing was enqueued with the memory, and the caller says that nobody
        // uses it.
        unsafe { self.give_back(window, memory, |_| true) };
        Err(error)
    }

    /// A window of memory; null where NCCL has none for it, and does without.
    ///
    /// # Safety
    /// The memory is of [`Windows::allocate`], has so many bytes, and stays until [`give_back`](Self::give_back).
    unsafe fn register(&self, memory: *mut c_void, bytes: usize) -> Result<Handle, NcclError> {
        let windows = self.windows()?;
        // NCCL fills this in when all ranks have come. After an error nobody knows whether it still will, so it stays.
        let place = Box::into_raw(Box::new(null_mut()));
        self.call(
            "ncclCommWindowRegister",
            "registering a window",
            |_, comm| {
                // SAFETY: the caller answers for the memory; the place stays, and the session gives a communicator that
                // is there.
                unsafe { (windows.register)(comm, memory, bytes, place, SYMMETRIC) }
            },
        )?;
        // SAFETY: made so above, and NCCL is done with it.
        Ok(*unsafe { Box::from_raw(place) })
    }

    /// A window becomes memory as any other, and is freed. Where the communicator was aborted and NCCL may still use
    /// the memory, it is not freed, and this says so.
    ///
    /// # Safety
    /// The window is what [`register`](Self::register) returned, or none where that failed, and the memory is its own;
    /// from here on nobody uses either. The device of the memory is current.
    pub(super) unsafe fn give_back(
        &self,
        window: Option<Handle>,
        memory: *mut c_void,
        work_has_ended: impl FnOnce(Duration) -> bool,
    ) -> bool {
        let Ok(windows) = self.windows() else {
            return false;
        };
        let deregister = |window| {
            self.call(
                "ncclCommWindowDeregister",
                "giving back a window",
                // SAFETY: as the caller says; the session gives a communicator that is there.
                |_, comm| unsafe { (windows.deregister)(comm, window) },
            )
        };
        let is_no_window =
            window.is_some_and(|window| window.is_null() || deregister(window).is_ok());
        let within = self.timeouts.ending();
        let is_unused = is_no_window || self.has_ended(within) && work_has_ended(within);
        if !is_unused {
            return false;
        }
        // SAFETY: memory of `allocate`, which the caller says that nobody uses. NCCL does not use it either: it is no
        // window any more, or the communicator has ended, and so has what was enqueued.
        unsafe { (windows.free)(memory) == SUCCESS }
    }

    /// Whether NCCL has ended the communicator, for which this waits so long at most, all windows and the drop
    /// together. One that works has not.
    fn has_ended(&self, within: Duration) -> bool {
        let ending = self.lock().ending.clone();
        ending.is_some_and(|ending| ending.has_returned(within))
    }

    /// Gives up the calls that are under way, and the communicator. The collectives that the GPU waits for end soon;
    /// this does not wait for that.
    pub(super) fn abort(&self, why: &'static str) {
        let mut state = self.lock();
        if state.failed.is_none() {
            let (rank, ranks) = (self.rank, self.ranks);
            let first = why.to_string();
            self.fail(&mut state, NcclError::Aborted { rank, ranks, first });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic between two calls leaves a communicator as NCCL knows it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicator, if nothing has ended it.
    fn working(&self) -> Result<MutexGuard<'_, State>, NcclError> {
        let state = self.lock();
        match &state.failed {
            None => Ok(state),
            Some(first) => Err(NcclError::Aborted {
                rank: self.rank,
                ranks: self.ranks,
                first: first.to_string(),
            }),
        }
    }

    /// Waits for what a call has begun. Whoever calls this has the turn.
    fn settle(
        &self,
        status: Status,
        call: &'static str,
        doing: &'static str,
    ) -> Result<(), NcclError> {
        let begin = Instant::now();
        let mut said = Some(status);
        loop {
            let mut state = self.working()?;
            let timeout = state.timeout;
            let error = match said.take() {
                Some(status) if status != SUCCESS && status != IN_PROGRESS => {
                    self.call_failed(call, status)
                }
                _ => match self.ask(&state) {
                    Ok(SUCCESS) => return Ok(()),
                    Ok(IN_PROGRESS) if begin.elapsed() < timeout => {
                        drop(state);
                        sleep(PAUSE);
                        continue;
                    }
                    Ok(IN_PROGRESS) => self.too_late(doing, timeout),
                    Ok(status) => self.reported(doing, status),
                    Err(error) => error,
                },
            };
            return Err(self.fail(&mut state, error));
        }
    }

    /// The state of the communicator, as NCCL reports it.
    fn ask(&self, state: &State) -> Result<Status, NcclError> {
        let mut is = SUCCESS;
        // SAFETY: the communicator is there, since nothing has aborted it; a place for its state.
        match unsafe { (self.api.async_error)(state.comm, &mut is) } {
            SUCCESS => Ok(is),
            status => Err(self.call_failed("ncclCommGetAsyncError", status)),
        }
    }

    /// Ends the communicator because of an error. Later calls name it.
    fn fail(&self, state: &mut State, error: NcclError) -> NcclError {
        let comm = std::mem::replace(&mut state.comm, null_mut());
        if !comm.is_null() {
            // SAFETY: the communicator is there, and from here on nobody has it.
            state.ending = Some(unsafe { Ending::begin(comm, self.api.abort) });
        }
        state.failed = Some(error.clone());
        error
    }

    fn too_late(&self, doing: &'static str, timeout: Duration) -> NcclError {
        let (rank, ranks) = (self.rank, self.ranks);
        NcclError::Timeout {
            doing,
            rank,
            ranks,
            timeout,
        }
    }

    fn call_failed(&self, call: &'static str, status: Status) -> NcclError {
        let (result, said) = self.api.text(status);
        NcclError::Call {
            call,
            rank: self.rank,
            ranks: self.ranks,
            status,
            result,
            said,
        }
    }

    fn not_registered(&self) -> NcclError {
        let (rank, ranks) = (self.rank, self.ranks);
        NcclError::NotRegistered { rank, ranks }
    }

    fn reported(&self, doing: &'static str, status: Status) -> NcclError {
        let (result, said) = self.api.text(status);
        NcclError::Failed {
            doing,
            rank: self.rank,
            ranks: self.ranks,
            status,
            result,
            said,
        }
    }

    /// Ends it in good order: all ranks do, so this waits for them, and aborts where that takes too long.
    fn finish(&self) -> Result<(), NcclError> {
        self.call(
            "ncclCommFinalize",
            "leaving the other ranks",
            // SAFETY: the communicator is there.
            |api, comm| unsafe { (api.finalize)(comm) },
        )?;
        let mut state = self.working()?;
        let comm = std::mem::replace(&mut state.comm, null_mut());
        // SAFETY: the communicator is there and was finalised, and from here on nobody has it.
        state.ending = Some(unsafe { Ending::begin(comm, self.api.destroy) });
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // One that failed has ended, or is about to.
        let _ = self.finish();
        // Longer than that only what still uses it keeps it, and that may be the caller's.
        self.has_ended(self.timeouts.ending());
    }
}
