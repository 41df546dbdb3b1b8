//! Inputs that are no files, that do not end, and that go away.

use std::fs::OpenOptions;

use crate::{Folder, contains, fails};

/// A file that begins with these bytes, has this length, and takes no room on the disk.
fn sparse(path: &str, begin: &[u8], length: u64) {
    std::fs::write(path, begin).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

#[cfg(unix)]
mod unix {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use nvfp4_gemv::file::READ_UP_TO;

    use super::*;
    use crate::{LAYER, MODELOPT, command, run_layer, text, there_is_a_device};

    /// A pipe that nobody writes to: a reader that opens it and waits, waits for ever.
    fn pipe(path: String) -> String {
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    }

    #[test]
    fn an_input_that_is_no_file_is_refused_and_not_waited_for() {
        let dir = Folder::new();
        let fifo = pipe(dir.at("x.safetensors"));
        let json = pipe(dir.at("x.json"));
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
            refused(&run_layer(
                MODELOPT,
                LAYER,
                &["--input", &format!("{path}:x")],
            ));
            refused(&["verify", "--problem", path]);
            refused(&["quantize", path, &dir.at("out.safetensors")]);
            // A GPU's own file is refused in other words.
            if !there_is_a_device() {
                refused(&["plan", "16", "16", "--tuned", path]);
            }
        }
        // A shard in a directory, a shard that an index names, and an index.
        let folder = dir.path();
        let quantize = |input: &str, says: &str| {
            let error = fails(&["quantize", input, &dir.at("o")]);
            contains(&error, &[says]);
        };
        quantize(folder, "x.safetensors: not a regular");
        let index = dir.at("model.safetensors.index.json");
        std::fs::write(&index, r#"{"weight_map": {"x": "x.safetensors"}}"#).unwrap();
        quantize(&index, "x.safetensors: not a regular");
        std::fs::remove_file(&index).unwrap();
        pipe(index);
        quantize(folder, "index.json: not a regular");
    }

    /// A header of one weight, and so many zeros that the program is not done with them before it is stopped.
    fn large(path: &str) -> u64 {
        const ROWS: u64 = 1 << 20;
        const K: u64 = 1 << 12;
        let length = ROWS * K * 4;
        assert!(length > READ_UP_TO);
        let header = format!(
            r#"{{"a.weight":{{"dtype":"F32","shape":[{ROWS},{K}],"data_offsets":[0,{length}]}}}}"#
        );
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        sparse(path, &bytes, bytes.len() as u64 + length);
        bytes.len() as u64
    }

    /// Signals a process, with the shell's own command.
    fn signal(process: u32, name: &str) {
        let kill = format!("kill -{name} {process}");
        let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent.success());
    }

    /// Mapped files are listed in /proc; there is no such list elsewhere.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_mapped_file_that_becomes_shorter_is_an_error_with_words() {
        let dir = Folder::new();
        let path = dir.at("large.safetensors");
        let header = large(&path);
        let mut child = command()
            .arg("quantize")
            .args([&path, &dir.at("out.safetensors")])
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
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "ended before it was mapped");
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
        assert!(!Path::new(&dir.at("out.safetensors")).exists());
    }
}

#[test]
fn text_files_have_a_limit() {
    let dir = Folder::new();
    let index = dir.at("model.safetensors.index.json");
    sparse(&index, b"", 1 << 40);
    let error = fails(&["run", "--checkpoint", &index, "--layer", "x"]);
    contains(
        &error,
        &["index.json: larger than 268435456 bytes, the most"],
    );
    let tuned = dir.at("tuned.jsonl");
    sparse(&tuned, b"", 1 << 40);
    let error = fails(&["plan", "16", "16", "--tuned", &tuned]);
    contains(&error, &["tuned.jsonl: larger than 67108864 bytes"]);
}

/// The safetensors crate limits headers itself: a length of 1 TB is not believed, nor is one of 101 MB.
#[test]
fn headers_have_a_limit() {
    let dir = Folder::new();
    let path = dir.at("large.safetensors");
    for header in [1u64 << 40, 101_000_000] {
        sparse(&path, &header.to_le_bytes(), 1 << 41);
        let error = fails(&["run", "--checkpoint", &path, "--layer", "x"]);
        assert!(error.contains("header too large"), "{error}");
    }
}
