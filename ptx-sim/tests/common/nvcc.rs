//! PTX of the project's kernels, from nvcc (`NVCC`, or on the `PATH`).

use std::path::{Path, PathBuf};
use std::process::Command;

/// PTX of a launcher's kernels; `None` without nvcc.
pub(crate) fn compile(unit: &str, arch: &str) -> Option<String> {
    let nvcc = std::env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    let csrc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../csrc/launch");
    let source: PathBuf = csrc.join(format!("{unit}.cu"));
    let out = Command::new(&nvcc)
        .args([
            "-std=c++17",
            "-O3",
            "-ptx",
            &format!("-arch={arch}"),
            "-o",
            "-",
        ])
        .arg(&source)
        .output();
    match out {
        Err(e) => {
            println!("skipped: {nvcc} does not start: {e}");
            None
        }
        Ok(o) => {
            assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
            Some(String::from_utf8(o.stdout).unwrap())
        }
    }
}
