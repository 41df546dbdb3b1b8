//! A checkpoint: where the input begins with `{`, an index beside two sound shards, or, without a `weight_map`, the
//! config of one of them; otherwise one file. It is opened, and every layer is; its modules are listed, and experts and
//! layers joined.
#![no_main]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::checkpoint::{CONFIG_FILE, Checkpoint, QUANT_CONFIG_FILE};
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{exercise, json, mutate, tensors};

/// The names that the indices of the corpus have for them.
const SHARDS: [(&str, &[u8]); 2] = [
    (
        "a.safetensors",
        include_bytes!("../corpus/checkpoint/modelopt"),
    ),
    (
        "b.safetensors",
        include_bytes!("../corpus/checkpoint/compressed-tensors"),
    ),
];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::default();
    for (name, bytes) in SHARDS {
        scratch.file(name, bytes);
    }
    scratch
});

fn place(data: &[u8]) -> PathBuf {
    let is_index = data.windows(10).any(|part| part == b"weight_map");
    let is_config = data.first() == Some(&b'{') && !is_index;
    // Config files of both kinds, or of none: "[]" says nothing of layers.
    for name in [CONFIG_FILE, QUANT_CONFIG_FILE] {
        SCRATCH.file(name, if is_config { data } else { b"[]" });
    }
    match data.first() {
        _ if is_config => SCRATCH.path().join(SHARDS[0].0),
        Some(b'{') => SCRATCH.file("model.safetensors.index.json", data),
        _ => SCRATCH.file("one.safetensors", data),
    }
}

fuzz_target!(|data: &[u8]| {
    let checkpoint = match Checkpoint::open(place(data)) {
        Ok(checkpoint) => Arc::new(checkpoint),
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    exercise::safetensors(&checkpoint);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, |old, rng| match old.first() {
        Some(b'{') => json::mutate(old, rng),
        _ => tensors::mutate(old, rng),
    })
});
