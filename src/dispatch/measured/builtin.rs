//! Generated from the tables beside this file: cargo xtask tables.

use super::wire::{self, File};
use super::{Chained, GpuModel, Timed};

#[path = "h200.rs"]
#[rustfmt::skip] // a line a problem
mod h200;
#[path = "h100.rs"]
#[rustfmt::skip] // a line a problem
mod h100;

pub(super) fn files() -> Vec<File> {
    vec![h200::file(), h100::file()]
}
