//! What the trials of several kernels share.

pub(crate) mod faults;
pub(crate) mod operands;
pub(crate) mod ptx;
pub(crate) mod schedules;
pub(crate) mod sim;
pub(crate) mod trial;

#[path = "../../../build/nvcc.rs"]
#[allow(dead_code)]
mod nvcc;
#[path = "../../quantize_data/mod.rs"]
pub(crate) mod quantize_data;
#[path = "../../../build/sources.rs"]
mod sources;
#[path = "../../../src/kernel/units.rs"]
#[allow(dead_code)]
mod units;
