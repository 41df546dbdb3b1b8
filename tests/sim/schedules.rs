//! How often-run tests vary the order of things.

use ptx_sim::{Options, Policy, Timing};

/// Every policy with every timing.
pub(crate) fn schedules(seed: u64) -> Vec<Options> {
    let mut all = Vec::new();
    for policy in [Policy::Fair, Policy::Random(seed), Policy::Starve(seed)] {
        for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
            all.push(Options {
                policy,
                timing,
                ..Options::default()
            });
        }
    }
    all
}

/// A few schedules that differ as much as possible.
pub(crate) fn few(seed: u64) -> Vec<Options> {
    [
        (Policy::Fair, Timing::Lazy),
        (Policy::Random(seed), Timing::Random),
        (Policy::Starve(seed), Timing::Eager),
    ]
    .map(|(policy, timing)| Options {
        policy,
        timing,
        ..Options::default()
    })
    .into()
}
