//! Stands in for the CUDA runtime and driver.
//!
//! A CUDA program that is started with this library in place of NVIDIA's runs without a GPU: its launches are executed
//! in `ptx-sim`, or written down as specifications of launches. The program `ptx-record` of this package starts
//! programs so. `docs/recorder.md` of ptx-sim says what is supported.
//!
//! All calls are synchronous: a launch ends before the call returns, and streams are in order with each other. A
//! function that is not supported returns `cudaErrorNotSupported` and says its name.

use std::io::Write;

mod call;
pub mod code;
pub mod copy;
pub mod device;
mod driver;
pub mod fatbin;
pub mod launch;
pub mod memory;
mod missing;
pub mod names;
mod objects;
pub mod recorder;
mod runtime;
pub mod settings;
pub mod specs;
mod tensor_map;

/// Tells the user something. Nobody may be listening: that ends no program.
pub fn say(text: &str) {
    let mut err = std::io::stderr().lock();
    for line in text.lines() {
        let _ = writeln!(err, "ptx-record: {line}");
    }
}
