//! PTX: parsed, its inventory made, every kernel decoded and run for a while.
#![no_main]

use std::hint::black_box;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv_fuzz::{mutate, text};
use ptx_sim::inventory::inventory;
use ptx_sim::{Launch, Module, Options, Sim};

/// Bytes that a kernel may ask for.
const MEMORY: u64 = 16 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else {
        return;
    };
    let module = match Module::parse(source) {
        Ok(module) => module,
        Err(error) => {
            black_box(error.to_string());
            return;
        }
    };
    black_box(inventory(&module));
    // More kernels tell nothing new, and each has its budget.
    let names: Vec<String> = module.entries().take(4).map(str::to_owned).collect();
    for name in names {
        let mut sim = Sim::with_memory(module.clone(), MEMORY);
        let program = match sim.program(&name) {
            Ok(program) => program,
            Err(error) => {
                black_box(error.to_string());
                continue;
            }
        };
        // The size of a small CTA that the kernel allows; every parameter points into this buffer.
        let block = program.reqntid.unwrap_or([40, 1, 1]);
        let grid = program.cluster.unwrap_or([2, 1, 1]);
        let buffer = sim.upload("buffer", &[0x70; 4096]).expect("it is small");
        let mut launch = Launch::new(&name, grid, block);
        launch.params = program
            .params
            .iter()
            .map(|p| {
                let bytes = buffer.address.to_le_bytes();
                bytes.into_iter().cycle().take(p.size as usize).collect()
            })
            .collect();
        let options = Options {
            budget: 20_000,
            ..Options::default()
        };
        match sim.run_program(&program, &launch, &options, None) {
            Ok(report) => drop(black_box(report)),
            Err(error) => drop(black_box(error.to_string())),
        }
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, text::mutate)
});
