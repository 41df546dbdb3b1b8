//! PTX of CUDA sources.

use std::io::Write;
use std::process::Command;
use std::sync::Once;

use ptx_sim::Module;

/// Parses [`source`] of `csrc/launch/<unit>.cu`.
pub(crate) fn compile(unit: &str, arch: &str) -> Option<Module> {
    let ptx = source(&format!("csrc/launch/{unit}.cu"), arch)?;
    Some(Module::parse(&ptx).expect("nvcc's PTX parses"))
}

/// Compiles a file of this repository for an architecture such as `compute_90a`. Nothing, and a
/// printed reason, without nvcc.
pub(crate) fn source(file: &str, arch: &str) -> Option<String> {
    let nvcc = match super::nvcc::find() {
        Ok(nvcc) => nvcc,
        Err(missing) => {
            static ONCE: Once = Once::new();
            // Past the test harness, which would swallow what a passing test prints.
            ONCE.call_once(|| {
                let _ = writeln!(std::io::stderr(), "simulator tests are skipped: {missing}");
            });
            return None;
        }
    };
    let source = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(&nvcc.path)
        .args(["-std=c++17", "-O3", "-lineinfo", "-ptx"])
        .arg(format!("-arch={arch}"))
        .args(["-o", "-", &source])
        .output()
        .expect("nvcc starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8(output.stdout).expect("PTX is text"))
}
