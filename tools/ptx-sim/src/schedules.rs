//! Variations of the order of things: whose turn it is, and when asynchronous operations complete.

use crate::{Options, Policy, Timing};

/// Every policy with every timing.
pub fn schedules(seed: u64) -> Vec<Options> {
    [Policy::Fair, Policy::Random(seed), Policy::Starve(seed)]
        .into_iter()
        .flat_map(|policy| {
            [Timing::Eager, Timing::Lazy, Timing::Random].map(|timing| options(policy, timing))
        })
        .collect()
}

/// A few schedules that differ as much as possible.
pub fn few(seed: u64) -> [Options; 3] {
    [
        options(Policy::Fair, Timing::Lazy),
        options(Policy::Random(seed), Timing::Random),
        options(Policy::Starve(seed), Timing::Eager),
    ]
}

/// A schedule.
pub fn options(policy: Policy, timing: Timing) -> Options {
    Options {
        policy,
        timing,
        ..Options::default()
    }
}
