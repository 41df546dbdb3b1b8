//! A communicator's life, without streams: it starts, works, fails and ends, and nothing in it waits forever.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Version;
use super::api::{Api, Config, Handle, IN_PROGRESS, Id, SUCCESS, SYMMETRIC, Status, Windows};
use super::error::{JOINING, NcclError};

/// Between two looks at a communicator. Short beside what it takes to notice a rank that died, long beside a look.
const PAUSE: Duration = Duration::from_micros(100);

/// A rank's communicator.
#[derive(Debug)]
pub(super) struct Session {
    api: Api,
    rank: usize,
    ranks: usize,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Null once it was aborted.
    comm: Handle,
    failed: Option<NcclError>,
}

// SAFETY: NCCL's communicators belong to no thread; calls with one must not run at the same time, and the lock around this
// sees to that.
unsafe impl Send for State {}

impl Session {
    /// Joins the others of the id, and waits for all of them. The device that is current becomes the rank's.
    pub(super) fn start(
        api: Api,
        ranks: usize,
        rank: usize,
        id: [u8; Id::BYTES],
        timeout: Duration,
    ) -> Result<Self, NcclError> {
        let (count, number) = match (c_int::try_from(ranks), c_int::try_from(rank)) {
            (Ok(count), Ok(number)) if number < count => (count, number),
            _ => return Err(NcclError::NoSuchRank { rank, ranks }),
        };
        let session = Self {
            api,
            rank,
            ranks,
            timeout,
            state: Mutex::new(State {
                comm: null_mut(),
                failed: None,
            }),
        };
        let mut config = Config::NOT_BLOCKING;
        let mut state = session.lock();
        let id = Id { bytes: id };
        // SAFETY: a place for a communicator; ranks and rank that were checked; a configuration of the version that it
        // says, which NCCL copies.
        let status = unsafe { (session.api.init)(&mut state.comm, count, id, number, &mut config) };
        session.settle(&mut state, status, JOINING, "joining the other ranks")?;
        drop(state);
        Ok(session)
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
        let mut state = self.working()?;
        let status = call(&self.api, state.comm);
        self.settle(&mut state, status, name, doing)
    }

    /// Waits until something is done that depends on the other ranks, and looks after them meanwhile. At the timeout, and
    /// when NCCL reports a failure, the communicator is aborted.
    pub(super) fn wait(
        &self,
        doing: &'static str,
        mut is_done: impl FnMut() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let begin = Instant::now();
        loop {
            if is_done()? {
                return self.check(doing);
            }
            self.check(doing)?;
            if begin.elapsed() >= self.timeout {
                let mut state = self.working()?;
                return Err(self.fail(&mut state, self.too_late(doing)));
            }
            sleep(PAUSE);
        }
    }

    /// Whether all is well, as far as NCCL knows: a failure of another rank ends this one.
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

    /// Memory of every rank becomes a window.
    ///
    /// # Safety
    /// The memory is of [`Windows::allocate`], has so many bytes, and stays until [`deregister`](Self::deregister).
    pub(super) unsafe fn register(
        &self,
        memory: *mut c_void,
        bytes: usize,
    ) -> Result<Handle, NcclError> {
        let windows = self.windows()?;
        // NCCL fills this in when all ranks have come. After an error nobody knows whether it still will, so it stays.
        let place = Box::into_raw(Box::new(null_mut()));
        self.call(
            "ncclCommWindowRegister",
            "registering a window",
            |_, comm| {
                // SAFETY: the caller answers for the memory; the place stays, and the session gives a communicator that is there.
                unsafe { (windows.register)(comm, memory, bytes, place, SYMMETRIC) }
            },
        )?;
        // SAFETY: made so above, and NCCL has filled it in.
        Ok(*unsafe { Box::from_raw(place) })
    }

    /// A window becomes memory as any other. A communicator that was aborted has none left.
    pub(super) fn deregister(&self, window: Handle) -> Result<(), NcclError> {
        let windows = self.windows()?;
        self.call(
            "ncclCommWindowDeregister",
            "giving back a window",
            |_, comm| {
                // SAFETY: the window is one of this communicator's, which is there, and nobody uses it from here on.
                unsafe { (windows.deregister)(comm, window) }
            },
        )
    }

    /// Gives up what is under way, and the communicator. What the GPU waits for ends.
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

    /// Waits for what a call has begun.
    fn settle(
        &self,
        state: &mut State,
        status: Status,
        call: &'static str,
        doing: &'static str,
    ) -> Result<(), NcclError> {
        if status != SUCCESS && status != IN_PROGRESS {
            let error = self.call_failed(call, status);
            return Err(self.fail(state, error));
        }
        let begin = Instant::now();
        loop {
            let error = match self.ask(state) {
                Ok(SUCCESS) => return Ok(()),
                Ok(IN_PROGRESS) if begin.elapsed() < self.timeout => {
                    sleep(PAUSE);
                    continue;
                }
                Ok(IN_PROGRESS) => self.too_late(doing),
                Ok(status) => self.reported(doing, status),
                Err(error) => error,
            };
            return Err(self.fail(state, error));
        }
    }

    /// What state NCCL says that the communicator is in.
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
            // SAFETY: the communicator is there, and from here on nobody has it. What this returns does not matter: there is
            // nothing that would help.
            unsafe { (self.api.abort)(comm) };
        }
        state.failed = Some(error.clone());
        error
    }

    fn too_late(&self, doing: &'static str) -> NcclError {
        let (rank, ranks, timeout) = (self.rank, self.ranks, self.timeout);
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
            result,
            said,
        }
    }

    fn reported(&self, doing: &'static str, status: Status) -> NcclError {
        let (result, said) = self.api.text(status);
        NcclError::Failed {
            doing,
            rank: self.rank,
            ranks: self.ranks,
            result,
            said,
        }
    }

    /// Ends it in good order: all ranks do, so this waits for them, and aborts where that takes too long.
    fn finish(&self) -> Result<(), NcclError> {
        let mut state = self.working()?;
        // SAFETY: the communicator is there.
        let status = unsafe { (self.api.finalize)(state.comm) };
        self.settle(
            &mut state,
            status,
            "ncclCommFinalize",
            "leaving the other ranks",
        )?;
        let comm = std::mem::replace(&mut state.comm, null_mut());
        // SAFETY: the communicator is there and was finalised, and from here on nobody has it.
        unsafe { (self.api.destroy)(comm) };
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // One that failed is gone already.
        let _ = self.finish();
    }
}
