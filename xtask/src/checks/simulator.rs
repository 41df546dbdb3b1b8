//! What the tests leave out because it takes minutes in debug builds.

use anyhow::Result;

use crate::checks::Context;

<<<<<<< HEAD
/// The conformance kernels with 200 seeds each, all faults planted in the largest of them, and the long simulations of the crate's kernels: sweeps of all
/// configs and shapes, and samples of planted faults.
pub(super) fn check(context: &Context<'_>) -> Result<()> {
    let suites = [
        ["ptx-sim", "conformance", "--ignored"].as_slice(),
        &["ptx-sim", "planted_faults", "--ignored"],
        &["nvfp4-gemv", "kernels", "--ignored", "long"],
    ];
    for suite in suites {
        let (package, test) = (suite[0], suite[1]);
        let cargo = [
            "test",
            "--release",
            "--package",
            package,
            "--test",
            test,
            "--",
        ];
        context.cargo.run([&cargo, &suite[2..]].concat())?;
=======
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
>>>>>>> w-tsim
    }
    Ok(())
}
