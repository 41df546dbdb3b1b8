//! A safetensors file: opened, and every tensor read.
#![no_main]

use std::hint::black_box;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::file::TensorFile;
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{mutate, tensors};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::default);

fuzz_target!(|data: &[u8]| {
    let path = SCRATCH.file("f.safetensors", data);
    let file = match TensorFile::open(&path) {
        Ok(file) => file,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    black_box(file.metadata());
    for tensor in file.tensors() {
        assert_eq!(
            file.get(tensor.name()).map(|t| t.to_string()),
            Some(tensor.to_string())
        );
        let bits = tensor.elements() * tensor.dtype().bitsize();
        assert_eq!(tensor.bytes().len() * 8, bits, "{tensor}");
        for read in [
            tensor.to_f32().map(|v| v.len()),
            tensor.to_f32_widened().map(|v| v.len()),
            tensor.to_f64().map(|v| v.len()),
        ] {
            match read {
                Ok(length) => assert_eq!(length, tensor.elements(), "{tensor}"),
                Err(error) => drop(black_box(error.to_string())),
            }
        }
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, tensors::mutate)
});
