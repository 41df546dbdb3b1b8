//! A problem file: read, and what can be read can be computed.
#![no_main]

use std::hint::black_box;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::{Options, Output, ScaleLayout, gemv};
use nvfp4_gemv_cli::problem::Problem;
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{mutate, tensors};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::default);

fuzz_target!(|data: &[u8]| {
    let path = SCRATCH.file("p.safetensors", data);
    let problem = match Problem::read(&path) {
        Ok(problem) => problem,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    let s = &problem.shape;
    black_box(
        problem
            .reference()
            .expect("it was checked when it was read"),
    );
    for layout in [ScaleLayout::Linear, ScaleLayout::Tiled128x4] {
        let weights = problem.weights(layout).expect("checked when it was read");
        let vectors = problem.vectors(layout).expect("checked when it was read");
        let mut y = vec![0.0; s.m() * s.n() * s.l()];
        let view = weights.view().expect("checked when it was read");
        let output = Output::of(&mut y);
        if let Err(error) = gemv(s, &view, &vectors.view(), output, &Options::new()) {
            black_box(error.to_string());
        }
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, tensors::mutate)
});
