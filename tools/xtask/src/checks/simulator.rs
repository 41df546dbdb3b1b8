//! Simulations that the tests leave out because they take minutes.

use anyhow::Result;

use crate::checks::Context;
use crate::test::JIT_FEATURES;
use crate::toolchain;

/// Runs the long simulations. Of ptx-sim: the conformance kernels with 200 seeds each, and all faults planted in the
/// largest of them. Of the crate's kernels: sweeps of all configs and shapes, further sets of planted faults, and
/// NVRTC's kernels for GPUs of which the tests compile one kernel.
pub(super) fn check(context: &Context<'_>) -> Result<()> {
    toolchain::install_nvrtc(context.workspace)?;
    let cargo = toolchain::nvrtc_environment(context.workspace).into_iter();
    let cargo = cargo.fold(context.cargo.clone(), |cargo, (name, value)| {
        cargo.env(name, value)
    });
    let test = ["test", "--release", "--package"];
    let ptx_sim = "ptx-sim --test conformance --test planted_faults";
    let ptx_sim: Vec<&str> = ptx_sim.split(' ').collect();
    let kernels = ["nvfp4-gemv", "--test", "kernels"];
    let explorer = ["mma-explorer", "--test", "explorer"];
    for (suite, filter) in [
        (&ptx_sim[..], None),
        (&kernels, Some("long")),
        (&explorer, Some("long")),
    ] {
        let arguments = test.iter().chain(suite).chain(&["--", "--ignored"]);
        cargo.run(arguments.copied().chain(filter))?;
    }
    let (without, jit) = (["--no-default-features"], ["--", "--ignored", "jit::"]);
    cargo.run([&test, &kernels[..], &without, &JIT_FEATURES, &jit].concat())
}
