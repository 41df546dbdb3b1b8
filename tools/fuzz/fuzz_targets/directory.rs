//! A directory of a checkpoint, as `nvfp4_gemv_fuzz::directory` makes it: files of any kind beside each other, indices,
//! configs, links, folders, names that are not UTF-8. The directory is opened, and so is each of its entries by itself.
#![no_main]

use std::collections::HashSet;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::checkpoint::AnyCheckpoint;
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{directory, exercise, json, mutate};
use serde_json::Value;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::default);

/// Opens a path and uses what is there. Whatever an index or a name says, files are those of one directory, and a name is
/// one tensor's.
fn open(path: &Path) {
    let checkpoint = match AnyCheckpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    let directory = if path.is_dir() {
        Some(path)
    } else {
        path.parent()
    };
    let inside = |file: &Path| {
        assert_eq!(file.parent(), directory, "{}", file.display());
        assert!(
            file.metadata().is_ok_and(|of| of.is_file()),
            "{}",
            file.display()
        );
    };
    let mut names = HashSet::new();
    match checkpoint {
        AnyCheckpoint::Safetensors(checkpoint) => {
            for file in checkpoint.files() {
                inside(file.path());
                for tensor in file.tensors() {
                    assert!(names.insert(tensor.name().to_owned()), "{}", tensor.name());
                }
            }
            checkpoint
                .config_files()
                .iter()
                .for_each(|file| inside(file));
            exercise::safetensors(&Arc::new(*checkpoint));
        }
        AnyCheckpoint::Gguf(file) => {
            file.files().for_each(inside);
            for tensor in file.tensors() {
                assert!(names.insert(tensor.name().to_owned()), "{}", tensor.name());
            }
            exercise::gguf(&file);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(Value::Object(entries)) = serde_json::from_slice(data) else {
        return;
    };
    // Of this name, by which paths of the corpus lead out of it and back.
    let place = SCRATCH.path().join("d");
    directory::make(&place, &entries).expect("a fuzz target writes into its temporary directory");
    open(&place);
    let Ok(entries) = fs::read_dir(&place) else {
        return;
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().take(6).for_each(|path| open(path));
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, json::mutate)
});
