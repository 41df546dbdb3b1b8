//! What the simulator's own tests leave out because it takes minutes in debug builds.

use anyhow::Result;

use crate::checks::Context;

/// The conformance kernels with 200 seeds each. About a minute each for the release build and for the
/// runs, on two processors.
pub(super) fn check(context: &Context<'_>) -> Result<()> {
    context.cargo.run([
        "test",
        "--release",
        "--package",
        "ptx-sim",
        "--test",
        "conformance",
        "--",
        "--ignored",
    ])
}
