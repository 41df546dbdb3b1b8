//! Names the shared library, so that programs and the loader know it by that name wherever it lies.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libptx_recorder.so");
}
