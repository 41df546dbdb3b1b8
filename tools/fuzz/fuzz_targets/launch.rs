//! A launch specification: prepared for two kernels, which are run for a while.
#![no_main]

use std::hint::black_box;
use std::path::Component;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{json, mutate};
use ptx_sim::files::Existing;
use ptx_sim::launch::LaunchSpec;
use ptx_sim::{Module, Options, Sim};

/// Bytes that a launch may ask for.
const MEMORY: u64 = 16 << 20;

/// A kernel that copies through a tensor map, and one that takes a structure.
static MODULE: LazyLock<Module> =
    LazyLock::new(|| Module::parse(include_str!("launch.ptx")).expect("it is sound"));

/// The files that specifications of the corpus name.
static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::default();
    scratch.file("raw", &[7; 64]);
    scratch.file(
        "f.safetensors",
        include_bytes!("../corpus/safetensors/types"),
    );
    scratch
});

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let spec = match LaunchSpec::parse(text) {
        Ok(spec) => spec,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    for kernel in ["tile", "structure"] {
        let sim = Sim::with_memory(MODULE.clone(), MEMORY);
        let mut prepared = match spec.prepare_in(sim, kernel, SCRATCH.path()) {
            Ok(prepared) => prepared,
            Err(error) => {
                black_box(error.to_string());
                return;
            }
        };
        let expectations = spec.expectations(&prepared, SCRATCH.path());
        let expectations = expectations.unwrap_or_else(|error| {
            black_box(error.to_string());
            Vec::new()
        });
        let options = Options {
            budget: 20_000,
            ..Options::default()
        };
        prepared.before.truncate(4);
        if let Err(error) = prepared.run_before(&options) {
            black_box(error.to_string());
        }
        if let Err(error) = prepared.sim.run(&prepared.launch, &options) {
            black_box(error.to_string());
        }
        for e in &expectations {
            let _ = black_box(e.check(&prepared.sim));
        }
        // Wherever a buffer is dumped, it is inside.
        let out = SCRATCH.path().join("out");
        for path in spec.dump_paths(&out) {
            let name = path.strip_prefix(&out).expect("it is inside");
            let plain = name.components().all(|c| matches!(c, Component::Normal(_)));
            assert!(plain, "{name:?}");
        }
        let _ = black_box(spec.dump(&prepared, &out, Existing::Replace));
        let _ = std::fs::remove_dir_all(&out);
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, json::mutate)
});
