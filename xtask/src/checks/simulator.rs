//! What the simulator's own tests leave out because it takes minutes in debug builds: its ignored tests.

use anyhow::Result;

use crate::checks::Context;

/// The conformance kernels with 200 seeds each, and all faults planted in the largest of them. About a
/// minute each for the release build and for the runs, on two processors.
pub(super) fn check(context: &Context<'_>) -> Result<()> {
    context.cargo.run([
        "test",
        "--release",
        "--package",
        "ptx-sim",
        "--test",
        "conformance",
        "--test",
        "planted_faults",
        "--",
        "--ignored",
    ])
}
