//! Schedules of a kernel's operations.

use ptx_sim::{Options, Policy, Profile, Timing};

/// Every timing, with fair, random and unfair schedules, in both profiles.
pub(crate) fn all_options() -> Vec<Options> {
    use Policy::{Fair, Random, Starve};
    let mut all = Vec::new();
    for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
        for policy in [Fair, Random(1), Random(2), Starve(3)] {
            for profile in [Profile::Strict, Profile::Hardware] {
                all.push(Options {
                    timing,
                    policy,
                    profile,
                    budget: 10_000_000,
                    ..Options::default()
                });
            }
        }
    }
    all
}
