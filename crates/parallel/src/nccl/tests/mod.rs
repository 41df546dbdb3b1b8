//! With functions in the place of NCCL's: what a session does with what they say.

mod ends;
mod fake;
mod library;

use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::Timeouts;
use super::api::{Api, IN_PROGRESS, REMOTE_ERROR, SUCCESS};
use super::error::NcclError;
use super::session::Session;
use fake::{Fake, api, refusing_init};

/// No test waits so long, unless it fails.
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
    assert_eq!(fake.counts([0, 0, 0]), [0, 0, 0]);
    drop(session);
    assert_eq!(fake.counts([0, 1, 1]), [0, 1, 1]);
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
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0], "aborted, once");
    assert!(error.hint().unwrap().contains("first rank that ended"));
}

/// Memory that is missing, two ranks on one GPU: NCCL's own thread joins the others, and so reports what is this rank's
/// as well.
#[test]
fn joining_that_fails_is_told_from_a_rank_that_fails_meanwhile() {
    let hint_of = |status| {
        let error = Fake::new(status, 1).start(LONG).unwrap_err();
        let NcclError::Failed { status: found, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(found, status);
        error.hint().unwrap()
    };
    assert!(hint_of(1).contains("a GPU, and a driver"));
    assert!(!hint_of(REMOTE_ERROR).contains("a GPU, and a driver"));
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
    assert_eq!(
        fake.counts([1, 0, 0]),
        [1, 0, 0],
        "aborted, once, and not destroyed"
    );
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
        "rank 1 of 2, while the stream's work: NCCL reports remote process exited (NCCL last said in this process: socket closed); the communicator was \
         aborted"
    );
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0]);
    assert!(matches!(
        session.check("looking"),
        Err(NcclError::Aborted { .. })
    ));
}

/// The enqueued work is done, and still a failure that NCCL reports is one.
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
        "rank 1 of 2: NCCL fails in ncclAllReduce: invalid usage (NCCL last said in this process: socket closed)"
    );
    assert_eq!(fake.counts([1, 0, 0]), [1, 0, 0]);
}

#[test]
fn an_initialisation_that_is_refused_has_nothing_to_abort() {
    let api = Api {
        init: refusing_init,
        ..api()
    };
    let error = Session::start(api, 2, 1, [0; 128], LONG.into()).unwrap_err();
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
        let error = Session::start(api(), ranks, rank, [0; 128], LONG.into()).unwrap_err();
        assert_eq!(error, NcclError::NoSuchRank { rank, ranks });
    }
}

#[test]
fn joining_has_a_timeout_of_its_own() {
    let fake = Fake::new(SUCCESS, 1000);
    let session = fake.start(Timeouts {
        joining: LONG,
        waiting: Duration::ZERO,
    });
    let session = session.unwrap();
    // The sum that shows that all ranks are there belongs to joining.
    let mut looks = 1000;
    let done = || {
        looks -= 1;
        Ok(looks == 0)
    };
    session.wait("work", done).unwrap();
    session.joined();
    let error = session.wait("work", || Ok(false)).unwrap_err();
    assert!(
        matches!(
            error,
            NcclError::Timeout {
                timeout: Duration::ZERO,
                ..
            }
        ),
        "{error:?}"
    );
}
