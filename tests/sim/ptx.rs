//! PTX of a translation unit of `csrc/launch`.

use std::io::Write;
use std::process::Command;
use std::sync::Once;

use ptx_sim::Module;

/// Compiles `csrc/launch/<unit>.cu` for an architecture such as `compute_90a`. Nothing, and a printed
/// reason, without nvcc.
pub(crate) fn compile(unit: &str, arch: &str) -> Option<Module> {
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
    let source = format!("{}/csrc/launch/{unit}.cu", env!("CARGO_MANIFEST_DIR"));
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
    let ptx = String::from_utf8(output.stdout).expect("PTX is text");
    Some(Module::parse(&ptx).expect("nvcc's PTX parses"))
}
