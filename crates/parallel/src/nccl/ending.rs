//! Ends of communicators, on threads of their own.
//!
//! `ncclCommAbort` and `ncclCommDestroy` return only when nothing uses the communicator any more. Captured graphs with
//! its collectives do, for as long as they live, and their owner may be the one who waits. So nobody waits for these
//! calls without a bound, unless the system has no thread left for them.

use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::api::{Handle, Status};

/// The call that ends a communicator, which may still be under way.
#[derive(Debug)]
pub(super) struct Ending {
    returned: Mutex<bool>,
    changed: Condvar,
    /// When it was first waited for. Whatever waits for it later has what is left of that time.
    awaited: OnceLock<Instant>,
}

/// A communicator that only the thread that ends it has.
struct Last(Handle);

// SAFETY: NCCL's communicators belong to no thread, and nobody else has this one.
unsafe impl Send for Last {}

impl Ending {
    /// Calls `ncclCommAbort` or `ncclCommDestroy` on a thread of its own. Where the system gives no thread, on this
    /// one: what the GPU waits for must end, even if it takes long.
    ///
    /// # Safety
    /// The communicator is there, and nobody uses it from here on.
    pub(super) unsafe fn begin(
        comm: Handle,
        call: unsafe extern "C" fn(Handle) -> Status,
    ) -> Arc<Self> {
        let ending = Arc::new(Self {
            returned: Mutex::new(false),
            changed: Condvar::new(),
            awaited: OnceLock::new(),
        });
        let run = {
            let (ending, last) = (ending.clone(), Last(comm));
            move || {
                // All of it moves to the thread, and not its field alone.
                let last = last;
                // SAFETY: as the caller says. The result does not matter: there is nothing that would help.
                unsafe { call(last.0) };
                ending.set_returned();
            }
        };
        let thread = thread::Builder::new().name("end of a communicator".into());
        if thread.spawn(run).is_err() {
            // SAFETY: as the caller says, and no thread has begun.
            unsafe { call(comm) };
            ending.set_returned();
        }
        ending
    }

    fn set_returned(&self) {
        *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether the call has returned, for which this waits so long at most, all callers together.
    pub(super) fn has_returned(&self, within: Duration) -> bool {
        let begin = self.awaited.get_or_init(Instant::now);
        let left = within.saturating_sub(begin.elapsed());
        let returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(returned, left, |returned| !*returned);
        let (returned, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *returned
    }
}
