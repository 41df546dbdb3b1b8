//! How communicators end, and what is given back of windows.

use std::ffi::c_void;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::thread::scope;
use std::time::{Duration, Instant};

use super::super::Timeouts;
use super::super::api::{Api, Handle, IN_PROGRESS, REMOTE_ERROR, SUCCESS};
use super::super::error::NcclError;
use super::super::session::Session;
use super::LONG;
use super::fake::{Fake, WINDOW, api, returns};

/// A rank that leaves while another one does not waits for it as long as the timeout, and then aborts.
#[test]
fn leaving_alone_ends_at_the_timeout() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(Duration::ZERO).unwrap();
    fake.state.store(IN_PROGRESS, SeqCst);
    drop(session);
    assert_eq!(fake.counts([1, 1, 0]), [1, 1, 0]);
}

#[test]
fn giving_up_is_an_abort() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    session.abort("this rank gave up");
    session.abort("this rank gave up");
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0]);
    assert!(matches!(
        session.check("looking"),
        Err(NcclError::Aborted { .. })
    ));
}

/// A session's memory, and a window of it.
fn registered(fake: &'static Fake, session: &Session) -> (*mut c_void, Handle) {
    let memory = memory_of(fake);
    // SAFETY: nothing here uses the memory.
    (memory, unsafe { session.window(memory, 8192) }.unwrap())
}

fn memory_of(fake: &'static Fake) -> *mut c_void {
    std::ptr::from_ref(fake).cast_mut().cast()
}

/// As with NCCL_CUMEM_ENABLE=0: it says that all is well, and makes no window.
#[test]
fn memory_that_becomes_no_window_is_given_back_with_an_error() {
    let fake = Fake::new(SUCCESS, 0);
    fake.lacks_windows.store(true, SeqCst);
    let session = fake.start(LONG).unwrap();
    // SAFETY: nothing here uses the memory.
    let error = unsafe { session.window(memory_of(fake), 8192) }.unwrap_err();
    assert_eq!(error, NcclError::NotRegistered { rank: 1, ranks: 2 });
    assert!(error.hint().unwrap().contains("NCCL_CUMEM_ENABLE"));
    assert_eq!(fake.freed.load(SeqCst), 1);
    // Others go on.
    session.check("looking").unwrap();
}

#[test]
fn memory_whose_registration_fails_stays_where_nccl_may_use_it() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(Duration::from_millis(10)).unwrap();
    fake.set_graphs(true);
    fake.state.store(REMOTE_ERROR, SeqCst);
    // SAFETY: nothing here uses the memory.
    let error = unsafe { session.window(memory_of(fake), 8192) }.unwrap_err();
    assert!(matches!(error, NcclError::Failed { .. }), "{error:?}");
    assert_eq!(fake.freed.load(SeqCst), 0);
    fake.set_graphs(false);
}

/// The first one waits for all of them: otherwise each would do so for a second.
#[test]
fn windows_of_an_aborted_communicator_wait_together() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(PATIENCE).unwrap();
    fake.set_graphs(true);
    let windows: Vec<_> = (0..100).map(|_| registered(fake, &session)).collect();
    session.abort("this rank gave up");
    let begin = Instant::now();
    for (memory, window) in windows {
        // SAFETY: nothing here uses the window or its memory.
        assert!(!unsafe { session.give_back(Some(window), memory, |_| true) });
    }
    let took = begin.elapsed();
    assert!(took >= PATIENCE && took < 60 * PATIENCE, "{took:?}");
    fake.set_graphs(false);
}

#[test]
fn windows_are_registered_and_given_back() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    let (memory, window) = registered(fake, &session);
    assert_eq!((window.addr(), fake.windows.load(SeqCst)), (WINDOW, 1));
    // SAFETY: nothing here uses the window or its memory.
    let freed = unsafe { session.give_back(Some(window), memory, |_| unreachable!()) };
    assert!(freed);
    assert_eq!(fake.windows.load(SeqCst), 0);
    assert_eq!(fake.freed.load(SeqCst), 1);

    let api = Api {
        windows: None,
        ..api()
    };
    let fake = Fake::new(SUCCESS, 0);
    let session = Session::start(api, 2, 1, fake.id(), LONG.into()).unwrap();
    assert_eq!(
        session.windows().unwrap_err().to_string(),
        "NCCL 2.28.9 has no symmetric windows; 2.27.0 or newer has them"
    );
    // Others go on.
    session.check("looking").unwrap();
}

/// NCCL may use it for as long as it ends the communicator; and the GPU for as long as its work has not ended.
#[test]
fn memory_of_a_window_is_freed_when_nothing_uses_it() {
    let give_back = |fake: &'static Fake, ends: bool| {
        let session = fake.start(Duration::from_millis(50)).unwrap();
        let (memory, window) = registered(fake, &session);
        session.abort("this rank gave up");
        // SAFETY: nothing here uses the window or its memory.
        let freed = unsafe { session.give_back(Some(window), memory, |_| ends) };
        assert_eq!(fake.freed.load(SeqCst), usize::from(freed));
        // A communicator that is gone is not asked for its windows.
        assert_eq!(fake.windows.load(SeqCst), 1);
        freed
    };
    // Unless the thread that ends it was kept from that for so long.
    let mut tries = std::iter::repeat_with(|| give_back(Fake::new(SUCCESS, 0), true));
    assert!(tries.by_ref().take(1000).any(|freed| freed));
    assert!(!give_back(Fake::new(SUCCESS, 0), false));
    let fake = Fake::new(SUCCESS, 0);
    fake.set_graphs(true);
    assert!(!returns(move || give_back(fake, true)));
    fake.set_graphs(false);
}

/// Its owner is the one who waits, and destroys it when that is over.
#[test]
fn a_graph_that_is_alive_keeps_nobody_waiting() {
    const SHORT: Duration = Duration::from_millis(10);
    let graphs = |timeouts: Timeouts| {
        let fake = Fake::new(SUCCESS, 0);
        let session = fake.start(timeouts).unwrap();
        fake.set_graphs(true);
        (fake, session)
    };
    let (fake, session) = graphs(SHORT.into());
    let session = returns(move || {
        let error = session.wait("the stream's work", || Ok(false)).unwrap_err();
        assert!(matches!(error, NcclError::Timeout { .. }), "{error:?}");
        session
    });
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0]);
    returns(move || drop(session));
    fake.set_graphs(false);

    let (fake, session) = graphs(SHORT.into());
    let session = returns(move || {
        fake.state.store(REMOTE_ERROR, SeqCst);
        let error = session.call("ncclAllReduce", "adding up", |_, _| IN_PROGRESS);
        assert!(matches!(error, Err(NcclError::Failed { .. })), "{error:?}");
        session
    });
    returns(move || drop(session));
    fake.set_graphs(false);

    // Leaving takes too long, or the last call does.
    for (state, counts) in [(IN_PROGRESS, [1, 1, 0]), (SUCCESS, [0, 1, 1])] {
        let (fake, session) = graphs(SHORT.into());
        fake.state.store(state, SeqCst);
        returns(move || drop(session));
        assert_eq!(fake.counts(counts), counts);
        fake.set_graphs(false);
    }
}

#[test]
fn another_thread_can_abort_what_is_waited_for() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    scope(|scope| {
        let (send, called) = mpsc::channel();
        let session = &session;
        let waits = scope.spawn(move || {
            session.call("ncclAllReduce", "adding up", |_, _| {
                fake.state.store(IN_PROGRESS, SeqCst);
                send.send(()).unwrap();
                IN_PROGRESS
            })
        });
        called.recv().unwrap();
        session.abort("this rank gave up");
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, NcclError::Aborted { .. }), "{error:?}");
    });
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0]);
}

#[test]
fn work_that_fails_ends_the_communicator() {
    let fake = Fake::new(SUCCESS, 0);
    let session = fake.start(LONG).unwrap();
    let fails = NcclError::Device(nvfp4_gemv::Error::WrongContext { operand: "values" });
    let error = session.wait("the stream's work", || Err(fails.clone()));
    assert_eq!(error, Err(fails));
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0]);
    assert!(session.check("looking").is_err());
}
