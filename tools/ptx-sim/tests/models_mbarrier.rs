//! Phase sequences, ranges and misuse of the mbarrier model.

#[macro_use]
#[path = "common/refused.rs"]
mod refused;

use proptest::prelude::*;
use ptx_sim::models::mbarrier::MbarrierError::{self, *};
use ptx_sim::models::mbarrier::{MAX_COUNT, Mbarrier, Slot, pending_count};

fn slot(count: u32) -> Slot {
    let mut s = Slot::default();
    s.init(0x40, count).unwrap();
    s
}

fn with(count: u32, f: impl FnOnce(&mut Mbarrier)) {
    f(slot(count).get("test").unwrap());
}

#[test]
fn phases_and_parity() {
    with(2, |b| {
        assert!(
            b.test_parity(1).unwrap(),
            "the predecessor of phase 0 counts as complete"
        );
        assert!(!b.test_parity(0).unwrap());
        assert!(!b.arrive(1).unwrap().completed);
        let e = b.arrive(1).unwrap();
        assert!(e.completed);
        assert_eq!((b.phase(), b.pending()), (1, 2));
        assert!(b.test_parity(0).unwrap());
        assert!(!b.test_parity(1).unwrap());
        assert!(b.test_state(e.state).unwrap());
        b.arrive(2).unwrap();
        refused!(b.test_state(e.state) => StaleState { .. });
        // A waiter of phase 0 that comes two phases late sees the parity of the current phase.
        assert!(!b.test_parity(0).unwrap());
    });
}

#[test]
fn transactions_hold_the_phase_open_and_may_come_first() {
    with(1, |b| {
        assert!(
            !b.complete_tx(512).unwrap().completed,
            "early completion: tx = -512"
        );
        assert_eq!(b.tx_count(), -512);
        assert!(!b.arrive_expect_tx(1024).unwrap().completed);
        assert!(b.complete_tx(512).unwrap().completed);
        assert_eq!((b.phase(), b.tx_count(), b.pending()), (1, 0, 1));
        // expect_tx alone does not complete even when it returns the count to zero.
        b.complete_tx(16).unwrap();
        b.expect_tx(16).unwrap();
        assert_eq!(b.phase(), 1);
    });
}

#[test]
fn ranges() {
    let mut s = Slot::default();
    assert!(matches!(s.init(4, 1), Err(MbarrierError::Alignment(4))));
    refused!(s.init(0, 0) => CountRange { .. });
    refused!(s.init(0, MAX_COUNT + 1) => CountRange { .. });
    s.init(0, MAX_COUNT).unwrap();
    let b = s.get("x").unwrap();
    refused!(b.increment_pending() => PendingOverflow { .. });
    b.expect_tx(MAX_COUNT).unwrap();
    assert!(matches!(b.expect_tx(1), Err(MbarrierError::TxRange { .. })));
    b.complete_tx(MAX_COUNT).unwrap();
    b.complete_tx(MAX_COUNT).unwrap();
    refused!(b.complete_tx(1) => TxRange { .. });
    refused!(b.expect_tx(u32::MAX) => TxRange { .. });
    with(3, |b| {
        assert!(matches!(b.arrive(0), Err(MbarrierError::CountRange { .. })));
        refused!(b.arrive(4) => PendingUnderflow { .. });
        refused!(b.arrive_no_complete(3) => NoComplete { .. });
        b.arrive_no_complete(2).unwrap();
        b.expect_tx(8).unwrap();
        b.arrive_no_complete(1).unwrap(); // held open by the transaction
        assert!(matches!(b.test_parity(2), Err(MbarrierError::Parity(2))));
    });
}

#[test]
fn drop_lowers_later_phases() {
    with(3, |b| {
        b.arrive_drop(1).unwrap();
        assert_eq!((b.expected(), b.pending()), (2, 2));
        b.arrive(2).unwrap();
        assert_eq!((b.expected(), b.pending(), b.phase()), (2, 2, 1));
        refused!(b.arrive_drop(2) => ExpectedUnderflow { .. });
        assert_eq!(
            (b.expected(), b.pending()),
            (2, 2),
            "a refused operation changes nothing"
        );
    });
}

#[test]
fn misuse() {
    let mut s = Slot::default();
    refused!(s.get("arrive") => Uninitialised { op: "arrive" });
    refused!(s.inval() => Uninitialised { .. });
    s.init(8, 2).unwrap();
    assert_eq!(s.init(8, 2), Err(MbarrierError::Reinit));
    let state = s.get("a").unwrap().arrive(1).unwrap().state;
    assert_eq!(pending_count(state), Ok(2));
    s.inval().unwrap();
    s.init(16, 2).unwrap();
    let b = s.get("a").unwrap();
    assert_eq!(b.test_state(state), Err(MbarrierError::OtherObject));
    refused!(b.test_state(12345) => NotAState(_));
    assert!(pending_count(7).is_err());
}

proptest! {
    /// Against counters kept separately: a phase completes exactly when both reach zero.
    #[test]
    fn agrees_with_plain_counters(count in 1u32..6, ops in prop::collection::vec((0u8..4, 1u32..4), 1..80)) {
        let mut s = slot(count);
        let b = s.get("x").unwrap();
        let (mut pending, mut tx, mut phase) = (i64::from(count), 0i64, 0u64);
        for (op, n) in ops {
            let fits = i64::from(n) <= pending;
            let done = match op {
                0 if fits => { pending -= i64::from(n); b.arrive(n).unwrap().completed }
                1 => { tx += i64::from(n); b.expect_tx(n).unwrap(); continue }
                2 => { tx -= i64::from(n); b.complete_tx(n).unwrap().completed }
                3 if pending >= 1 => { tx += i64::from(n); pending -= 1; b.arrive_expect_tx(n).unwrap().completed }
                _ => continue,
            };
            prop_assert_eq!(done, pending == 0 && tx == 0);
            if done { pending = i64::from(count); phase += 1; }
            prop_assert_eq!((i64::from(b.pending()), i64::from(b.tx_count()), b.phase()), (pending, tx, phase));
            prop_assert_eq!(b.test_parity((phase & 1) as u32), Ok(false));
            prop_assert_eq!(b.test_parity((phase & 1) as u32 ^ 1), Ok(true));
        }
    }
}
