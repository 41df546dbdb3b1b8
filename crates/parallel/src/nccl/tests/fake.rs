//! Functions in the place of NCCL's.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, mpsc};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use super::super::Timeouts;
use super::super::api::{
    Api, Config, Handle, IN_PROGRESS, Id, REMOTE_ERROR, SUCCESS, SYMMETRIC, Status, Windows,
};
use super::super::error::NcclError;
use super::super::session::Session;

/// A limit for what takes no time: longer means that it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The value that a communicator points to here.
#[derive(Default)]
pub(super) struct Fake {
    /// The status that each look at it returns.
    pub(super) state: AtomicI32,
    /// The number of looks after which it is done.
    pub(super) looks: AtomicI32,
    pub(super) aborted: AtomicUsize,
    pub(super) finalized: AtomicUsize,
    pub(super) destroyed: AtomicUsize,
    /// Windows that there are, and memory that was freed.
    pub(super) windows: AtomicUsize,
    pub(super) freed: AtomicUsize,
    /// Memory that is registered becomes no window: NCCL has no symmetric memory.
    pub(super) lacks_windows: AtomicBool,
    /// An abort, and a destroy, return when this is not so any more: graphs have its collectives.
    graphs: Mutex<bool>,
    no_graphs: Condvar,
}

impl Fake {
    /// Stays for as long as the process lives, so that nothing here is freed twice or too early.
    pub(super) fn new(state: Status, looks: i32) -> &'static Self {
        Box::leak(Box::new(Self {
            state: state.into(),
            looks: looks.into(),
            ..Self::default()
        }))
    }

    /// Its address, as the id that `init` makes a communicator of.
    pub(super) fn id(&self) -> [u8; 128] {
        let mut id = [0; 128];
        id[..8].copy_from_slice(&(std::ptr::from_ref(self) as usize).to_ne_bytes());
        id
    }

    pub(super) fn start(&self, timeouts: impl Into<Timeouts>) -> Result<Session, NcclError> {
        Session::start(api(), 2, 1, self.id(), timeouts.into())
    }

    /// How often it was aborted, finalised and destroyed. The first and the last begin on threads of their own, so this
    /// waits for as many of these as are expected.
    pub(super) fn counts(&self, expected: [usize; 3]) -> [usize; 3] {
        let counts = || [&self.aborted, &self.finalized, &self.destroyed].map(|n| n.load(SeqCst));
        let begin = Instant::now();
        while counts() != expected && begin.elapsed() < PATIENCE {
            sleep(Duration::from_millis(1));
        }
        counts()
    }

    pub(super) fn set_graphs(&self, are_there: bool) {
        *self.graphs.lock().unwrap() = are_there;
        self.no_graphs.notify_all();
    }

    /// Waits for graphs, as NCCL does, whatever else fails.
    fn wait_for_graphs(&self) {
        let graphs = self.graphs.lock().unwrap();
        drop(self.no_graphs.wait_while(graphs, |there| *there).unwrap());
    }
}

/// The value that a thread makes, which must not wait forever for that.
pub(super) fn returns<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, made) = mpsc::channel();
    spawn(move || send.send(make()));
    made.recv_timeout(PATIENCE).expect("it waits, and must not")
}

fn of(comm: Handle) -> &'static Fake {
    // SAFETY: every communicator here is the address of a `Fake` that is never freed.
    unsafe { &*comm.cast() }
}

unsafe extern "C" fn version(code: *mut c_int) -> Status {
    // SAFETY: a place for a number.
    unsafe { *code = 22809 };
    SUCCESS
}

unsafe extern "C" fn unique_id(_: *mut Id) -> Status {
    SUCCESS
}

unsafe extern "C" fn error_string(status: Status) -> *const c_char {
    match status {
        REMOTE_ERROR => c"remote process exited".as_ptr(),
        _ => c"invalid usage".as_ptr(),
    }
}

unsafe extern "C" fn last_error(_: Handle) -> *const c_char {
    c"socket closed\n".as_ptr()
}

unsafe extern "C" fn init(
    comm: *mut Handle,
    ranks: c_int,
    id: Id,
    rank: c_int,
    _: *mut Config,
) -> Status {
    assert_eq!((ranks, rank), (2, 1));
    let address = usize::from_ne_bytes(id.bytes[..8].try_into().unwrap());
    // SAFETY: a place for a communicator.
    unsafe { *comm = std::ptr::with_exposed_provenance_mut::<c_void>(address) };
    IN_PROGRESS
}

pub(super) unsafe extern "C" fn refusing_init(
    _: *mut Handle,
    _: c_int,
    _: Id,
    _: c_int,
    _: *mut Config,
) -> Status {
    5
}

unsafe extern "C" fn async_error(comm: Handle, state: *mut Status) -> Status {
    let fake = of(comm);
    let is = match fake.looks.fetch_sub(1, SeqCst) {
        1.. => IN_PROGRESS,
        _ => fake.state.load(SeqCst),
    };
    // SAFETY: a place for a state.
    unsafe { *state = is };
    SUCCESS
}

unsafe extern "C" fn finalize(comm: Handle) -> Status {
    of(comm).finalized.fetch_add(1, SeqCst);
    IN_PROGRESS
}

unsafe extern "C" fn destroy(comm: Handle) -> Status {
    of(comm).destroyed.fetch_add(1, SeqCst);
    of(comm).wait_for_graphs();
    SUCCESS
}

unsafe extern "C" fn abort(comm: Handle) -> Status {
    of(comm).aborted.fetch_add(1, SeqCst);
    of(comm).wait_for_graphs();
    SUCCESS
}

unsafe extern "C" fn all_reduce(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: c_int,
    _: Handle,
    _: Handle,
) -> Status {
    SUCCESS
}

unsafe extern "C" fn all_gather(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: Handle,
    _: Handle,
) -> Status {
    SUCCESS
}

pub(super) fn api() -> Api {
    Api {
        version,
        unique_id,
        error_string,
        last_error,
        init,
        async_error,
        finalize,
        destroy,
        abort,
        all_reduce,
        all_gather,
        windows: Some(Windows {
            allocate,
            free,
            register,
            deregister,
        }),
    }
}

unsafe extern "C" fn allocate(_: *mut *mut c_void, _: usize) -> Status {
    SUCCESS
}

/// Memory here is the communicator that it is of.
unsafe extern "C" fn free(memory: *mut c_void) -> Status {
    of(memory).freed.fetch_add(1, SeqCst);
    SUCCESS
}

pub(super) const WINDOW: usize = 0x1234;

unsafe extern "C" fn register(
    comm: Handle,
    memory: *mut c_void,
    bytes: usize,
    window: *mut Handle,
    flags: c_int,
) -> Status {
    assert_eq!((memory, bytes, flags), (comm, 8192, SYMMETRIC));
    if of(comm).lacks_windows.load(SeqCst) {
        return SUCCESS;
    }
    of(comm).windows.fetch_add(1, SeqCst);
    // SAFETY: a place for a window.
    unsafe { *window = std::ptr::without_provenance_mut(WINDOW) };
    IN_PROGRESS
}

unsafe extern "C" fn deregister(comm: Handle, window: Handle) -> Status {
    assert_eq!(window.addr(), WINDOW);
    of(comm).windows.fetch_sub(1, SeqCst);
    SUCCESS
}
