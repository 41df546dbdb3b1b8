//! The examples compile and run. Without a GPU, those that need one say so, and nothing else.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::packages;
use crate::checks::Context;
use crate::process;
use crate::test::WITHOUT_MACHINE_CODE;

/// First lines of an example where there is no GPU: the library's errors, which say more after this.
const NO_GPU: [&str; 2] = [
    "Error: no usable NVIDIA driver: ",
    "Error: the NVIDIA driver sees no device",
];

pub(super) fn check(context: &Context<'_>) -> Result<()> {
    let packages = packages(&context.cargo)?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array());
    let is_example = |target: &&Value| target["kind"][0] == "example";
    let examples: Vec<&Value> = targets.flatten().filter(is_example).collect();
    ensure!(!examples.is_empty(), "no package has examples");
    // The tuning example keeps its file here.
    let temporary = tempfile::tempdir().context("cannot create a temporary directory")?;
    for example in examples {
        let name = example["name"].as_str().context("an example's name")?;
        let required = example["required-features"].as_array();
        let requires = |feature: &str| required.is_some_and(|all| all.contains(&feature.into()));
        // The builds of the tests, which have the examples: the one without machine code for what its users build
        // without nvcc.
        let build = match requires("jit") {
            true => &WITHOUT_MACHINE_CODE[..],
            false => &["--workspace"],
        };
        let program = context
            .cargo
            .executable(&[build, &["--example", name]].concat())?;
        let mut command = Command::new(program);
        command
            .env("TMPDIR", temporary.path())
            .env_remove("NVFP4_GEMV_PATH");
        let output = process::output(&mut command)?;
        let needs_gpu = ["device", "jit", "nccl"].into_iter().any(requires);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let verdict = judge(needs_gpu, output.status.code(), &stderr);
        eprintln!("{name}: {}", verdict.with_context(|| name.to_owned())?);
    }
    Ok(())
}

/// The result of an example, in words.
fn judge(needs_gpu: bool, code: Option<i32>, stderr: &str) -> Result<String> {
    let first = stderr.lines().next().unwrap_or_default();
    match code {
        Some(0) => Ok("ran".into()),
        Some(1) if needs_gpu && NO_GPU.iter().any(|text| first.starts_with(text)) => {
            Ok(format!("did not run: {first}"))
        }
        Some(code) => bail!("exit code {code}:\n{}", process::tail(stderr, 40)),
        None => bail!("ended by a signal:\n{}", process::tail(stderr, 40)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_example_that_needs_a_gpu_may_lack_one() {
        let no_driver = "Error: no usable NVIDIA driver: libcuda.so.1 was not found\n\nbacktrace";
        let panic = "thread 'main' panicked at examples/device_call.rs:1:1";
        assert_eq!(judge(false, Some(0), "").unwrap(), "ran");
        assert_eq!(
            judge(true, Some(1), no_driver).unwrap(),
            "did not run: Error: no usable NVIDIA driver: libcuda.so.1 was not found"
        );
        for (needs_gpu, code, stderr) in [
            (false, Some(1), no_driver),
            (true, Some(1), "Error: expected 512"),
            (true, Some(101), panic),
            (true, Some(101), no_driver),
            (true, None, no_driver),
        ] {
            assert!(judge(needs_gpu, code, stderr).is_err(), "{code:?} {stderr}");
        }
    }
}
