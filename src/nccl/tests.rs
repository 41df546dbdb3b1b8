//! With functions in the place of NCCL's: what a session does with what they say.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::api::{Api, Config, Handle, IN_PROGRESS, Id, SUCCESS, SYMMETRIC, Status, Windows};
use super::error::NcclError;
use super::find::{checked, load};
use super::session::Session;
use super::{LEAST, Version};

const REMOTE_ERROR: Status = 6;

/// What a communicator points to here.
#[derive(Default)]
struct Fake {
    /// What each look at it says.
    state: AtomicI32,
    /// After so many looks it is done.
    looks: AtomicI32,
    aborted: AtomicUsize,
    finalized: AtomicUsize,
    destroyed: AtomicUsize,
    /// Windows that there are.
    windows: AtomicUsize,
}

impl Fake {
    /// Stays for as long as the process lives, so that nothing here is freed twice or too early.
    fn new(state: Status, looks: i32) -> &'static Self {
        Box::leak(Box::new(Self {
            state: state.into(),
            looks: looks.into(),
            ..Self::default()
        }))
    }

    /// Its address, as the id that `init` makes a communicator of.
    fn id(&self) -> [u8; 128] {
        let mut id = [0; 128];
        id[..8].copy_from_slice(&(std::ptr::from_ref(self) as usize).to_ne_bytes());
        id
    }

    fn start(&self, timeout: Duration) -> Result<Session, NcclError> {
        Session::start(api(), 2, 1, self.id(), timeout)
    }

    fn counts(&self) -> [usize; 3] {
        [&self.aborted, &self.finalized, &self.destroyed].map(|count| count.load(SeqCst))
    }
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

unsafe extern "C" fn old_version(code: *mut c_int) -> Status {
    // SAFETY: a place for a number.
    unsafe { *code = 21304 };
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

unsafe extern "C" fn refusing_init(
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
    SUCCESS
}

unsafe extern "C" fn abort(comm: Handle) -> Status {
    of(comm).aborted.fetch_add(1, SeqCst);
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

fn api() -> Api {
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

unsafe extern "C" fn free(_: *mut c_void) -> Status {
    SUCCESS
}

const WINDOW: usize = 0x1234;

unsafe extern "C" fn register(
    comm: Handle,
    memory: *mut c_void,
    bytes: usize,
    window: *mut Handle,
    flags: c_int,
) -> Status {
    assert_eq!((memory.addr(), bytes, flags), (4096, 8192, SYMMETRIC));
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

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_session_that_works_ends_in_good_order() {
    let fake = Fake::new(SUCCESS, 3);
    let session = fake.start(LONG).unwrap();
    assert_eq!((session.rank(), session.ranks()), (1, 2));
    let mut called = null_mut();
    let call = |_: &Api, comm| {
        called = comm;
        IN_PROGRESS
    };
    session.call("ncclAllReduce", "adding up", call).unwrap();
    assert!(std::ptr::eq(called.cast(), fake));
    let mut left = 3;
    let done = || {
        left -= 1;
        Ok(left == 0)
    };
    session.wait("work", done).unwrap();
    assert_eq!(left, 0);
    assert_eq!(fake.counts(), [0, 0, 0]);
    drop(session);
    assert_eq!(fake.counts(), [0, 1, 1]);
}

#[test]
fn ranks_that_do_not_come_end_at_the_timeout() {
    let fake = Fake::new(IN_PROGRESS, 0);
    let error = fake.start(Duration::ZERO).unwrap_err();
    assert!(
        matches!(
            error,
            NcclError::Timeout {
                rank: 1,
                ranks: 2,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(fake.counts(), [1, 0, 0], "aborted, once");
    assert!(error.hint().unwrap().contains("first rank that ended"));
}

/// The GPU would wait forever: the communicator is aborted, which ends that, and everything later says why.
#[test]
fn work_that_is_not_done_ends_at_the_timeout() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(Duration::ZERO).unwrap();
    let error = session.wait("the stream's work", || Ok(false)).unwrap_err();
    assert!(matches!(error, NcclError::Timeout { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("rank 1 of 2") && text.contains("the stream's work"),
        "{text}"
    );
    let later = session.call("ncclAllReduce", "adding up", |_, _| unreachable!());
    let NcclError::Aborted { first, .. } = later.unwrap_err() else {
        panic!("not aborted");
    };
    assert_eq!(first, text);
    drop(session);
    assert_eq!(fake.counts(), [1, 0, 0], "aborted, once, and not destroyed");
}

#[test]
fn a_rank_that_died_ends_the_wait_before_the_timeout() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    let mut asked = 0;
    let error = session.wait("the stream's work", || {
        asked += 1;
        fake.state.store(REMOTE_ERROR, SeqCst);
        Ok(false)
    });
    let error = error.unwrap_err();
    assert_eq!(asked, 1);
    assert_eq!(
        error.to_string(),
        "rank 1 of 2, while the stream's work: NCCL reports remote process exited (socket closed); the communicator was \
         aborted"
    );
    assert_eq!(fake.counts(), [1, 0, 0]);
    assert!(matches!(
        session.check("looking"),
        Err(NcclError::Aborted { .. })
    ));
}

/// What was enqueued is done, and still a failure that NCCL reports is one.
#[test]
fn a_failure_is_reported_also_of_work_that_is_done() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    fake.state.store(REMOTE_ERROR, SeqCst);
    let error = session.wait("the stream's work", || Ok(true)).unwrap_err();
    assert!(matches!(error, NcclError::Failed { .. }), "{error:?}");
}

#[test]
fn a_call_that_fails_ends_the_session() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    let error = session.call("ncclAllReduce", "adding up", |_, _| 5);
    let text = error.unwrap_err().to_string();
    assert_eq!(
        text,
        "rank 1 of 2: NCCL fails in ncclAllReduce: invalid usage (socket closed)"
    );
    assert_eq!(fake.counts(), [1, 0, 0]);
}

#[test]
fn an_initialisation_that_is_refused_has_nothing_to_abort() {
    let api = Api {
        init: refusing_init,
        ..api()
    };
    let error = Session::start(api, 2, 1, [0; 128], LONG).unwrap_err();
    assert!(
        matches!(
            error,
            NcclError::Call {
                call: "ncclCommInitRankConfig",
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn ranks_are_checked_before_nccl_is_called() {
    for (ranks, rank) in [(2, 2), (0, 0), (usize::MAX, 1), (2, usize::MAX)] {
        let error = Session::start(api(), ranks, rank, [0; 128], LONG).unwrap_err();
        assert_eq!(error, NcclError::NoSuchRank { rank, ranks });
    }
}

/// A rank that leaves while another one does not waits for it as long as the timeout, and then aborts.
#[test]
fn leaving_alone_ends_at_the_timeout() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(Duration::ZERO).unwrap();
    fake.state.store(IN_PROGRESS, SeqCst);
    drop(session);
    assert_eq!(fake.counts(), [1, 1, 0]);
}

#[test]
fn giving_up_is_an_abort() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    session.abort("this rank gave up");
    session.abort("this rank gave up");
    assert_eq!(fake.counts(), [1, 0, 0]);
    assert!(matches!(
        session.check("looking"),
        Err(NcclError::Aborted { .. })
    ));
}

#[test]
fn a_library_that_is_too_old_is_named() {
    let old = Api {
        version: old_version,
        ..api()
    };
    let error = checked(old, "somewhere".into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "NCCL 2.13.4 is too old, and 2.14.0 or newer is needed, the first whose communicators need not block: somewhere"
    );
    assert!(error.hint().unwrap().contains(super::LIBRARY_VARIABLE));
    let found = checked(api(), "somewhere".into()).unwrap();
    assert!(found.version > LEAST);
}

#[test]
fn versions_are_read_as_nccl_writes_them() {
    let of = |code| Version::of_code(code).to_string();
    assert_eq!(of(2804), "2.8.4");
    assert_eq!(of(20906), "2.9.6");
    assert_eq!(of(22809), "2.28.9");
    assert_eq!(of(-1), "0.0.0");
    assert!(Version::of_code(2999) < LEAST && Version::of_code(21400) == LEAST);
}

#[test]
fn a_folder_without_it_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let says = || load(Some(folder.path().into())).unwrap_err().to_string();
    let missing = says();
    assert!(
        missing.contains("NVFP4_GEMV_NCCL") && missing.ends_with("no libnccl.so.2"),
        "{missing}"
    );
    let file = folder.path().join("libnccl.so.2");
    std::fs::write(&file, "not a library").unwrap();
    let bogus = says();
    assert!(bogus.contains("cannot be loaded"), "{bogus}");
}

#[test]
fn windows_are_registered_and_given_back() {
    let memory = std::ptr::without_provenance_mut(4096);
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    // SAFETY: nothing here touches the memory.
    let window = unsafe { session.register(memory, 8192) }.unwrap();
    assert_eq!((window.addr(), fake.windows.load(SeqCst)), (WINDOW, 1));
    session.deregister(window).unwrap();
    assert_eq!(fake.windows.load(SeqCst), 0);
    // A communicator that is gone is not asked for its windows.
    session.abort("this rank gave up");
    assert!(session.deregister(window).is_err());
    assert_eq!(fake.windows.load(SeqCst), 0);

    let api = Api {
        windows: None,
        ..api()
    };
    let fake = Fake::new(SUCCESS, 0);
    let session = Session::start(api, 2, 1, fake.id(), LONG).unwrap();
    assert_eq!(
        session.windows().unwrap_err().to_string(),
        "NCCL 2.28.9 has no symmetric windows; 2.27.0 or newer has them"
    );
    // Others go on.
    session.check("looking").unwrap();
}

#[cfg(unix)]
#[test]
fn a_library_that_is_not_nccl_says_what_it_lacks() {
    let this = libloading::os::unix::Library::this();
    let why = Api::of(this.into()).unwrap_err();
    assert_eq!(why, "it has no ncclGetVersion: it is too old, or not NCCL");
}
