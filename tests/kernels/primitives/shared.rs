//! Shared-memory addresses and the warp's leader.

use super::trial::{HOPPER, Kernels, bytes32};

crate::trials! {
    simulator: addresses, leaders;
}

fn addresses() {
    for kernels in HOPPER.map(|arch| Kernels::new("shared", arch)) {
        let want = bytes32((0..64).map(|t| 1000 + (t + 1) % 64));
        let mut trial = kernels.trial("addresses", [1, 1, 1], [64, 1, 1]);
        trial = trial.output(want.len()).words(&[0]);
        trial.gives(&want);
        trial.wrong(1).differs(&want);
        trial.wrong(2).is_refused(&["outside"]);
    }
}

/// Whether each warp has one leader, the same at both calls.
fn one_leader_a_warp(output: &[u8]) -> bool {
    output.chunks(32 * 8).all(|warp| {
        let lanes = || warp.chunks(8).map(|lane| (lane[0], lane[4]));
        lanes().all(|(first, second)| first == second && first <= 1)
            && lanes().filter(|lane| lane.0 == 1).count() == 1
    })
}

fn leaders() {
    for kernels in HOPPER.map(|arch| Kernels::new("shared", arch)) {
        let mut trial = kernels.trial("elections", [1, 1, 1], [128, 1, 1]);
        trial = trial.output(128 * 8).words(&[0]);
        for outcome in trial.outcomes() {
            assert!(one_leader_a_warp(&outcome.unwrap()));
        }
        for outcome in trial.wrong(1).outcomes() {
            assert!(!one_leader_a_warp(&outcome.unwrap()));
        }
        trial.wrong(2).is_refused(&["elect.sync"]);
    }
}
