//! What the tests leave out because it takes minutes in debug builds.

use anyhow::Result;

use crate::checks::Context;

/// Of ptx-sim the conformance kernels with 200 seeds each, and all faults planted in the largest of them; of the
/// crate's kernels the long simulations: sweeps of all configs and shapes, all planted faults.
pub(super) fn check(context: &Context<'_>) -> Result<()> {
    let test = ["test", "--release", "--package"];
    let ptx_sim = [
        "ptx-sim",
        "--test",
        "conformance",
        "--test",
        "planted_faults",
    ];
    let kernels = ["nvfp4-gemv", "--test", "kernels"];
    for (suite, filter) in [(&ptx_sim[..], None), (&kernels, Some("long"))] {
        let arguments = test.iter().chain(suite).chain(&["--", "--ignored"]);
        context.cargo.run(arguments.copied().chain(filter))?;
    }
    Ok(())
}
