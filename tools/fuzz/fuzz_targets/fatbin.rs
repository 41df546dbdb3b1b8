//! A file that a CUDA program loads as a module: a fat binary, or PTX as text.
#![no_main]

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;
use ptx_recorder::device::LIMITS;
use ptx_recorder::fatbin::{Ptx, image_of};

fuzz_target!(|data: &[u8]| {
    match image_of(data) {
        Ok(sources) => {
            for limits in LIMITS {
                let best = Ptx::best_for(&sources, limits.architecture);
                assert!(best.is_none_or(|p| p.runs_on(limits.architecture)));
            }
        }
        Err(error) => drop(black_box(error.to_string())),
    }
});
