//! A GGUF file: opened, and every tensor read in every way.
#![no_main]

use std::hint::black_box;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nvfp4_gemv::checkpoint::Gguf;
use nvfp4_gemv_fuzz::exercise;
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
    exercise::gguf(&file);
});
