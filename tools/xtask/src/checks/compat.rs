//! The crate lives in one dependency graph with candle: see tests/compat/candle/Cargo.toml.

use anyhow::Result;

use crate::checks::Context;

pub(super) fn check(context: &Context<'_>, with_kernels: bool) -> Result<()> {
    let package = context.workspace.root().join("tests/compat/candle");
    let mut cargo = context
        .cargo
        .clone()
        .at(package.join("Cargo.toml"))
        .target_dir(&context.workspace.check_dir("compat"))
        // One architecture is enough: neither this crate's kernels nor candle's are run.
        .env("NVFP4_GEMV_ARCHS", "80");
    if !with_kernels {
        return cargo.run(["check"]);
    }
    // candle would ask nvidia-smi; and uses half the processors unless told.
    cargo = cargo.env("CUDA_COMPUTE_CAP", "80");
    if let Ok(count) = std::thread::available_parallelism() {
        cargo = cargo.env("CUDAFORGE_THREADS", count.to_string());
    }
    cargo.run(["check", "--features", "candle-cuda"])
}
