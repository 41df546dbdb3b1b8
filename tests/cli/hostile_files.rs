//! Inputs that are no files, that do not end, and that go away.

use std::path::Path;

use crate::{LAYER, MODELOPT, fails};

/// A file that has this length and takes no room on the disk.
fn sparse(path: &Path, length: u64) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(length)
        .unwrap();
}

#[cfg(unix)]
mod unix {
    use std::fs::OpenOptions;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use nvfp4_gemv::file::READ_UP_TO;

    use super::*;
    use crate::{command, text};

    /// Nobody writes to it: who opens it and waits, waits for ever.
    fn pipe(path: PathBuf) -> String {
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path.into_os_string().into_string().unwrap()
    }

    #[test]
    fn an_input_that_is_no_file_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            dir.path()
                .join(name)
                .into_os_string()
                .into_string()
                .unwrap()
        };
        let fifo = pipe(dir.path().join("x.safetensors"));
        let json = pipe(dir.path().join("x.json"));
        for (path, what) in [
            (&*fifo, "a pipe"),
            (&json, "a pipe"),
            ("/dev/zero", "a device"),
        ] {
            let refused = |args: &[&str]| {
                let error = fails(args);
                let expected = format!("{path}: not a regular file but {what}");
                assert!(error.contains(&expected), "{error}");
            };
            refused(&["run", "--checkpoint", path, "--layer", "x"]);
            let run = [
                "run",
                "--checkpoint",
                MODELOPT,
                "--layer",
                LAYER,
                "--path",
                "cpu",
            ];
            refused(&[&run[..], &["--input", &format!("{path}:x")]].concat());
            refused(&["verify", "--problem", path]);
            refused(&["quantize", path, &at("out.safetensors")]);
            // A GPU's own file is refused in other words.
            if json_of_info()["cuda"]["why_none"].is_string() {
                refused(&["plan", "16", "16", "--tuned", path]);
            }
        }
        // A shard in a directory, a shard that an index names, and an index.
        let folder = dir.path().to_str().unwrap();
        assert!(fails(&["quantize", folder, &at("o")]).contains("x.safetensors: not a regular"));
        let index = at("model.safetensors.index.json");
        std::fs::write(&index, r#"{"weight_map": {"x": "x.safetensors"}}"#).unwrap();
        assert!(fails(&["quantize", &index, &at("o")]).contains("x.safetensors: not a regular"));
        std::fs::remove_file(&index).unwrap();
        pipe(PathBuf::from(&index));
        assert!(fails(&["quantize", folder, &at("o")]).contains("index.json: not a regular"));
    }

    fn json_of_info() -> serde_json::Value {
        crate::json(&["info"])
    }

    /// A header of one weight, and so many zeros that the program is not done with them before it is stopped.
    fn large(path: &Path) -> u64 {
        const ROWS: u64 = 1 << 20;
        const K: u64 = 1 << 12;
        let length = ROWS * K * 4;
        assert!(length > READ_UP_TO);
        let header = format!(
            r#"{{"a.weight":{{"dtype":"F32","shape":[{ROWS},{K}],"data_offsets":[0,{length}]}}}}"#
        );
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        std::fs::write(path, &bytes).unwrap();
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(bytes.len() as u64 + length).unwrap();
        bytes.len() as u64
    }

    /// Signals a process, with the shell's own command.
    fn signal(process: u32, name: &str) {
        let kill = format!("kill -{name} {process}");
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
    }

    /// What is mapped is listed in /proc; there is no such list elsewhere.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_mapped_file_that_becomes_shorter_is_an_error_with_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.safetensors");
        let header = large(&path);
        let mut child = command()
            .arg("quantize")
            .args([&path, &dir.path().join("out.safetensors")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Not a matter of time: it has 16 GiB to go through once it is mapped.
        let maps = format!("/proc/{}/maps", child.id());
        while !std::fs::read_to_string(&maps)
            .unwrap()
            .contains("large.safetensors")
        {
            assert!(
                child.try_wait().unwrap().is_none(),
                "ended before it was mapped"
            );
            std::thread::yield_now();
        }
        signal(child.id(), "STOP");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(header).unwrap();
        signal(child.id(), "CONT");
        let out = child.wait_with_output().unwrap();
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{}: {error}", out.status);
        assert!(
            error.starts_with("error: probably an input file became shorter"),
            "{error}"
        );
        assert!(!dir.path().join("out.safetensors").exists());
    }
}

#[test]
fn text_files_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    sparse(&index, 1 << 40);
    let index = index.to_str().unwrap();
    let error = fails(&["run", "--checkpoint", index, "--layer", "x"]);
    assert!(
        error.contains("index.json: larger than 67108864 bytes"),
        "{error}"
    );
    let tuned = dir.path().join("tuned.json");
    sparse(&tuned, 1 << 40);
    let error = fails(&["plan", "16", "16", "--tuned", tuned.to_str().unwrap()]);
    assert!(
        error.contains("tuned.json: larger than 67108864 bytes"),
        "{error}"
    );
}

/// The safetensors crate limits headers itself: a length of 1 TB is not believed, nor is one of 101 MB.
#[test]
fn headers_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.safetensors");
    for (header, says) in [
        (1u64 << 40, "header too large"),
        (101_000_000, "header too large"),
    ] {
        std::fs::write(&path, header.to_le_bytes()).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 41).unwrap();
        let error = fails(&[
            "run",
            "--checkpoint",
            path.to_str().unwrap(),
            "--layer",
            "x",
        ]);
        assert!(error.contains(says), "{error}");
    }
}
