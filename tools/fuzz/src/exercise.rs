//! Everything that can be done with a checkpoint that has been opened, and what must hold of it.

use std::hint::black_box;
use std::sync::Arc;

use nvfp4_gemv::Linear;
use nvfp4_gemv::checkpoint::{Checkpoint, Gguf, ModuleKind, RowOrder};

/// Opens every layer, lists the modules, joins experts and layers.
pub fn safetensors(checkpoint: &Arc<Checkpoint>) {
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
                match Linear::from_checkpoint(checkpoint, name) {
                    // Only its bias was not looked at before.
                    Ok(linear) => assert_eq!(linear.weights().codes(), layer.codes()),
                    Err(error) => assert!(error.to_string().contains(".bias"), "{error}"),
                }
            }
            Err(error) => drop(black_box(error.to_string())),
        }
    }
}

/// Reads every tensor in every way.
pub fn gguf(file: &Gguf) {
    black_box((file.architecture(), file.texts("tokenizer.ggml.tokens")));
    for tensor in file.tensors() {
        let name = tensor.name();
        let found = file.tensor(name).map(|found| found.to_string());
        assert_eq!(found, Some(tensor.to_string()));
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let matrices = match file.dense(module) {
            Ok(matrix) => vec![matrix],
            Err(_) => file.dense_experts(module).unwrap_or_default(),
        };
        // Rows of a matrix without rows may have any length.
        let matrices = matrices.iter().filter(|matrix| !matrix.bytes().is_empty());
        for matrix in matrices.take(2) {
            let mut row = vec![0.0; matrix.k()];
            assert_eq!(matrix.bytes().len(), matrix.rows() * matrix.row_bytes());
            for at in 0..matrix.rows().min(4) {
                matrix.row(at, &mut row).unwrap();
            }
        }
        match file.weights(module) {
            // The quantised parts are what weights take.
            Ok(gathered) => drop(black_box(gathered.weights().unwrap())),
            Err(error) => drop(black_box(error.to_string())),
        }
        black_box(file.input_globals(module).map_err(|e| e.to_string())).ok();
        match file.vector(name) {
            Ok(values) => assert_eq!([values.len()], tensor.shape()),
            Err(error) => drop(black_box(error.to_string())),
        }
    }
}
