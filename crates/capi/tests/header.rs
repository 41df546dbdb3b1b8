//! `include/nvfp4_gemv.h` is what cbindgen makes of the sources.
//!
//! After a wanted change: `NVFP4_GEMV_HEADER=write cargo test -p nvfp4-gemv-capi --test header`. A change of what is
//! there is another `NVFP4_ABI_VERSION`; what is added is not.

use std::fs;
use std::path::Path;

use cbindgen::{Builder, Config};

#[test]
fn the_header_is_of_the_sources() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(package.join("cbindgen.toml")).unwrap();
    // It follows `mod` into the other files.
    let builder = Builder::new()
        .with_config(config)
        .with_src(package.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    // Rust's heading of what a caller promises, which C need not see.
    let made = String::from_utf8(made).unwrap();
    let made = made.replace("// # Safety\n", "");
    let made = made.strip_suffix('\n').unwrap_or(&made).to_owned() + "\n";
    let header = package.join("include/nvfp4_gemv.h");
    if std::env::var_os("NVFP4_GEMV_HEADER").is_some_and(|what| what == "write") {
        fs::write(&header, &made).unwrap();
    }
    let there = fs::read_to_string(&header).unwrap_or_default();
    assert!(
        there == made,
        "include/nvfp4_gemv.h is not of the sources: NVFP4_GEMV_HEADER=write cargo test -p nvfp4-gemv-capi --test \
         header writes it"
    );
}
