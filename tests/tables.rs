//! The built-in tables are what was measured.
#![cfg(feature = "tune")]

use std::fs;

use nvfp4_gemv::dispatch::measured::{Measurements, builtin};

#[test]
fn the_h200_table_is_its_json() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/dispatch/measured/h200.json"
    );
    let measured = Measurements::from_json(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(
        measured == builtin()[0],
        "h200.rs is not what h200.json says: run `cargo xtask tables`, and commit"
    );
}
