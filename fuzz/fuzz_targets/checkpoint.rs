//! A checkpoint: an index beside two sound shards where the input begins with `{`, otherwise one file. It
//! is opened, and every layer is.
#![no_main]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::checkpoint::Checkpoint;
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{json, mutate, tensors};

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
    let name = match data.first() {
        Some(b'{') => "model.safetensors.index.json",
        _ => "one.safetensors",
    };
    SCRATCH.file(name, data)
}

fuzz_target!(|data: &[u8]| {
    let checkpoint = match Checkpoint::open(place(data)) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    let names: Vec<String> = checkpoint
        .files()
        .iter()
        .flat_map(|file| file.tensors().map(|t| t.name().to_owned()))
        .collect();
    for name in &names {
        assert!(checkpoint.tensor(name).is_some(), "{name:?}");
    }
    // Names that are layers, names that are tensors, and names that are nothing.
    let layers: Vec<&str> = checkpoint.layers().collect();
    let asked = layers
        .iter()
        .copied()
        .chain(names.iter().map(String::as_str));
    for name in asked.chain(["", ".", "layer", "layer.weight"]).take(64) {
        if let Err(error) = checkpoint.find_tensor(name) {
            black_box(error.to_string());
        }
        match checkpoint.layer(name) {
            Ok(layer) => {
                let weights = layer.weights().map(black_box);
                weights.expect("the layer was checked when it was opened");
                black_box((layer.dialect(), layer.shape(1).is_ok()));
                if let Err(error) = layer.input_global() {
                    black_box(error.to_string());
                }
                for note in layer.notes() {
                    black_box(note.to_string());
                }
                assert_eq!(layer.codes().len(), layer.rows() * layer.k() / 2);
            }
            Err(error) => drop(black_box(error.to_string())),
        }
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, |old, rng| match old.first() {
        Some(b'{') => json::mutate(old, rng),
        _ => tensors::mutate(old, rng),
    })
});
