//! The kernels' PTX, executed by ptx-sim: tensor cores without a GPU that has them.
//!
//! Needs nvcc; without one every test says so and passes.

mod executed;
mod kernels;
mod loaded;
mod operands;
mod params;
mod planted_faults;
mod primitives;
mod ptx;
mod ring;
mod schedules;
mod stream;
mod tiled;

#[path = "../../build/nvcc.rs"]
#[allow(dead_code)]
mod nvcc;
