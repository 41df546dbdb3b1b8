//! Proves that a toolchain compiles, once: nvcc needs a host compiler, and not every one will do.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};

use crate::process;

const PROGRAM: &str = "#include <cuda_fp16.h>\n\
    extern \"C\" __global__ void twice(const __half *x, __half *y) {\n\
    \x20   y[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]);\n\
    }\n";

/// Compiles a small kernel, unless this very compiler has done so before.
pub(crate) fn prove(nvcc: &Path, records: &Path) -> Result<()> {
    let key = nvcc.to_string_lossy().into_owned();
    let fingerprint = fingerprint(nvcc)?;
    let mut known: BTreeMap<String, String> = fs::read_to_string(records)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    if known.get(&key) == Some(&fingerprint) {
        return Ok(());
    }
    compile(nvcc)?;
    known.insert(key, fingerprint);
    // Without the record the proof is only repeated.
    if let (Some(parent), Ok(text)) = (records.parent(), serde_json::to_vec_pretty(&known)) {
        let _ = fs::create_dir_all(parent);
        let _ = fs::write(records, text);
    }
    Ok(())
}

/// Changes with the compiler, and with what chooses its host compiler.
fn fingerprint(nvcc: &Path) -> Result<String> {
    let metadata =
        fs::metadata(nvcc).with_context(|| format!("cannot examine {}", nvcc.display()))?;
    let modified = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |time| time.as_secs());
    let host = env::var("NVCC_CCBIN").unwrap_or_default();
    Ok(format!("{} bytes, {modified}, {host}", metadata.len()))
}

fn compile(nvcc: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let source = directory.path().join("twice.cu");
    fs::write(&source, PROGRAM).with_context(|| format!("cannot write {}", source.display()))?;
    let mut command = Command::new(nvcc);
    command
        .args(["-arch=sm_90a", "-c", "-o"])
        .arg(directory.path().join("twice.o"))
        .arg(&source);
    let output = process::output(&mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "nvcc is there, but does not compile: `{}`\n{}\n{}",
            process::line(&command),
            process::tail(&said, 20),
            advice(&said)
        );
    }
    Ok(())
}

fn advice(said: &str) -> &'static str {
    if said.contains("unsupported GNU version") || said.contains("unsupported clang version") {
        "The C++ compiler is too new for this nvcc. Install an older one beside it (CUDA 13.0 takes \
         g++ up to 15) and set NVCC_CCBIN to it: NVCC_CCBIN=g++-14."
    } else if said.contains("host compiler") || said.contains("cc1plus") {
        "nvcc needs a C++ compiler for the host. Install g++ (Debian, Ubuntu: apt install g++; \
         Fedora: dnf install gcc-c++), or set NVCC_CCBIN to the one to use."
    } else {
        "If the host's C++ compiler or its headers are at fault, set NVCC_CCBIN to another one."
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::testing::script;

    #[test]
    fn proves_once_and_again_when_the_compiler_changes() {
        let directory = tempfile::tempdir().unwrap();
        let nvcc = directory.path().join("nvcc");
        let records = directory.path().join("proved.json");
        let runs = directory.path().join("runs");
        // The script writes beside itself, whatever the folder is called.
        let run = r#"echo run >>"${0%/*}/runs""#;
        script(&nvcc, run);
        let count = || {
            fs::read_to_string(&runs)
                .unwrap_or_default()
                .lines()
                .count()
        };
        prove(&nvcc, &records).unwrap();
        prove(&nvcc, &records).unwrap();
        assert_eq!(count(), 1);
        script(&nvcc, &format!("# other\n{run}"));
        prove(&nvcc, &records).unwrap();
        assert_eq!(count(), 2);
        fs::write(&records, "damaged").unwrap();
        prove(&nvcc, &records).unwrap();
        assert_eq!(count(), 3);
    }

    #[test]
    fn a_failure_is_not_recorded_and_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let nvcc = directory.path().join("nvcc");
        let records = directory.path().join("proved.json");
        let cases = [
            (
                "gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.",
                "install g++",
            ),
            (
                "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory",
                "install g++",
            ),
            (
                "#error -- unsupported GNU version! gcc versions later than 15 are not supported!",
                "too new",
            ),
        ];
        for (said, expected) in cases {
            script(&nvcc, &format!("cat >&2 <<'END'\n{said}\nEND\nexit 1"));
            let error = prove(&nvcc, &records).unwrap_err().to_string();
            assert!(error.to_lowercase().contains(expected), "{error}");
            assert!(error.contains("-arch=sm_90a"), "{error}");
        }
        assert!(!records.exists());
    }
}
