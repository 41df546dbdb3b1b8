//! A GGUF file: opened, and every tensor read in every way.
#![no_main]

use std::hint::black_box;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nvfp4_gemv::checkpoint::Gguf;
use nvfp4_gemv_fuzz::scratch::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::default);

fuzz_target!(|data: &[u8]| {
    let file = match Gguf::open(SCRATCH.file("f.gguf", data)) {
        Ok(file) => file,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
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
            // What was made is what weights take.
            Ok(gathered) => drop(black_box(gathered.weights().unwrap())),
            Err(error) => drop(black_box(error.to_string())),
        }
        black_box(file.input_globals(module).map_err(|e| e.to_string())).ok();
        match file.vector(name) {
            Ok(values) => assert_eq!([values.len()], tensor.shape()),
            Err(error) => drop(black_box(error.to_string())),
        }
    }
});
