//! The crate lives in one dependency graph with candle: see tests/compat/candle/Cargo.toml. With candle's kernels, the
//! modules for candle compile for CUDA, too.

use anyhow::Result;

use crate::cargo::Cargo;
use crate::checks::Context;

pub(super) fn check(context: &Context<'_>, with_kernels: bool) -> Result<()> {
    let package = context.workspace.root().join("tests/compat/candle");
    let mut cargo = context
        .cargo
        .clone()
        .target_dir(&context.workspace.check_dir("compat"))
        // One architecture is enough: neither this crate's kernels nor candle's are run.
        .env("NVFP4_GEMV_ARCHS", "80");
    let alone = |cargo: &Cargo| cargo.clone().at(package.join("Cargo.toml"));
    if !with_kernels {
        return alone(&cargo).run(["check"]);
    }
    // candle would ask nvidia-smi; and uses half the processors unless told.
    cargo = cargo.env("CUDA_COMPUTE_CAP", "80");
    if let Ok(count) = std::thread::available_parallelism() {
        cargo = cargo.env("CUDAFORGE_THREADS", count.to_string());
    }
    alone(&cargo).run(["check", "--features", "candle-cuda"])?;
    // The calls of crates/candle on CUDA devices, with its tests.
    let modules = ["clippy", "--package", "nvfp4-gemv-candle", "--all-targets"];
    cargo.run(
        [
            &modules[..],
            &["--features", "cuda", "--", "-D", "warnings"],
        ]
        .concat(),
    )
}
