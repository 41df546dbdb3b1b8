//! What is said of libraries that the system's loader finds by NVRTC's name, and that are none.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

use nvfp4_gemv::jit::{self, NvrtcError};

/// What tells this test program that it is to look for NVRTC: what must be said of one.
const EXPECTED: &str = "NVFP4_GEMV_TEST_EXPECTED";

/// The loader reads its variable when a process starts, so this is one of its own.
#[test]
#[ignore = "it is the process that the other test starts"]
fn looks() {
    let Ok(expected) = std::env::var(EXPECTED) else {
        return;
    };
    match jit::library() {
        // By another name, or in another place: then nobody wants to know what was wrong before.
        Ok((version, place)) => println!("found {version}: {place}"),
        Err(NvrtcError::Missing { looked_at }) => {
            let said = looked_at.iter().any(|why| why.contains(&expected));
            assert!(said, "{expected}: {looked_at:?}");
        }
        Err(other) => println!("found one that will not do: {other}"),
    }
}

fn look(folder: &Path, expected: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "looks", "--ignored", "--nocapture"])
        .env(EXPECTED, expected)
        .env("LD_LIBRARY_PATH", folder);
    for name in [jit::LIBRARY_VARIABLE, "CUDA_HOME", "CUDA_PATH"] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

#[test]
fn what_is_wrong_with_a_library_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnvrtc.so.13");
    let right = |expected: &str| {
        let out = look(folder.path(), expected);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{expected}: {said}");
    };
    // The system's own words: too short, or no ELF file.
    std::fs::write(&library, "not a library").unwrap();
    right(&format!("the system's loader: {}: ", library.display()));
    // It would be waited for.
    std::fs::remove_file(&library).unwrap();
    let made = Command::new("mkfifo").arg(&library).status().unwrap();
    assert!(made.success());
    right(&format!("{} is not a regular file", library.display()));
}
