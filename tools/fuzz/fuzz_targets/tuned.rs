//! A tuned file: read on the machine it names, asked for every problem it has, and written again.
#![no_main]

use std::hint::black_box;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nvfp4_gemv::dispatch::measured::{Measurements, builtin};
use nvfp4_gemv::tune::Tuned;
use nvfp4_gemv_fuzz::scratch::Scratch;
use nvfp4_gemv_fuzz::{json, mutate};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::default);

fuzz_target!(|data: &[u8]| {
    let parsed = std::str::from_utf8(data).map(Measurements::from_json_lines);
    let machine = match &parsed {
        Ok(Ok(table)) => &table.machine,
        _ => &builtin()[0].machine,
    };
    let tuned = match Tuned::load(SCRATCH.file("tuned.jsonl", data), machine) {
        Ok(tuned) => tuned,
        Err(error) => {
            assert!(!matches!(parsed, Ok(Ok(_))), "{error}");
            black_box(error.to_string());
            return;
        }
    };
    let table = tuned.measurements();
    for entry in table.entries() {
        assert_eq!(tuned.find(&entry.shape, &entry.operands), Some(entry));
        for timed in &entry.kernels {
            black_box((entry.share(timed), entry.of(timed.kernel())));
        }
    }
    let again =
        Measurements::from_json_lines(&table.to_json_lines()).expect("what is written can be read");
    assert_eq!(again, *table);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(data, size, max_size, seed, json::mutate)
});
