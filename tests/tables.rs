//! The built-in tables are what was measured.
#![cfg(feature = "tune")]

use std::fs;

use nvfp4_gemv::dispatch::measured::{Measurements, builtin};

#[test]
fn every_table_is_its_json() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dispatch/measured");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let tables = files.filter(|file| file.extension().is_some_and(|kind| kind == "json"));
    let mut count = 0;
    for file in tables {
        let measured = Measurements::from_json(&fs::read_to_string(&file).unwrap()).unwrap();
        assert!(
            builtin().contains(&measured),
            "no built-in table is what {} says: run `cargo xtask tables`, and commit",
            file.display()
        );
        count += 1;
    }
    assert_eq!(count, builtin().len());
}

#[test]
fn the_first_table_is_the_h200s() {
    assert_eq!(builtin()[0].machine.gpu.name, "NVIDIA H200");
}
