//! A checkpoint: where the input begins with `{`, an index beside two sound shards, or, without a `weight_map`, the
//! config of one of them; otherwise one file. It is opened, and every layer is; its modules are listed, and experts and
//! layers joined.
#![no_main]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::Linear;
use nvfp4_gemv::checkpoint::{CONFIG_FILE, Checkpoint, ModuleKind, QUANT_CONFIG_FILE, RowOrder};
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
    for note in checkpoint.notes() {
        black_box(note.to_string());
    }
    let names: Vec<String> = checkpoint
        .files()
        .iter()
        .flat_map(|file| file.tensors().map(|t| t.name().to_owned()))
        .collect();
    for name in &names {
        assert!(checkpoint.tensor(name).is_some(), "{name:?}");
    }
    let modules = checkpoint.modules();
    let tensors = modules.iter().flat_map(|module| module.tensors());
    assert_eq!(tensors.count(), names.len(), "each tensor is in one module");
    for module in modules.iter().take(64) {
        for note in module.notes() {
            black_box(note.to_string());
        }
        if let ModuleKind::Refused(error) = module.kind() {
            black_box(error.to_string());
        }
        black_box((module.kind().name(), module.config(), module.bytes()));
        let (stem, part) = module.name().rsplit_once('.').unwrap_or_default();
        let experts = stem.rsplit_once('.').unwrap_or_default().0;
        for order in RowOrder::ALL {
            let all = [
                checkpoint.joined(&[module.name(); 2], order),
                checkpoint.experts(stem, &[part], order),
                checkpoint.experts(experts, &[part; 2], order),
            ];
            for joined in all {
                match joined.map(|joined| joined.gather()) {
                    Ok(gathered) => drop(black_box(gathered.weights().is_ok())),
                    Err(error) => drop(black_box(error.to_string())),
                }
            }
        }
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
                black_box((layer.exporter(), layer.shape(1).is_ok()));
                if let Err(error) = layer.input_global() {
                    black_box(error.to_string());
                }
                for note in layer.notes() {
                    black_box(note.to_string());
                }
                assert_eq!(layer.codes().len(), layer.rows() * layer.k() / 2);
                match Linear::from_checkpoint(&checkpoint, name) {
                    // Only its bias was not looked at before.
                    Ok(linear) => assert_eq!(linear.weights().codes(), layer.codes()),
                    Err(error) => assert!(error.to_string().contains(".bias"), "{error}"),
                }
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
