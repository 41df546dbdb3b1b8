//! Executes the PTX of CUDA kernels on the CPU.
//!
//! Kernels for the tensor cores of a GPU need that GPU, which most machines, and every CI runner, lack. This crate runs
//! their PTX functionally and checks what a GPU would not. The checks cover the bounds, alignment and initialisation of
//! every byte, the use of barriers, and divergence at warp-synchronous instructions. They also find races and missing
//! fences between threads and asynchronous operations, and deadlocks. An instruction that is not modelled exactly is an
//! error that names it.
//!
//! ```
//! use ptx_sim::{Launch, Module, Options, Sim};
//!
//! let ptx = "
//!     .version 9.0
//!     .target sm_90a
//!     .address_size 64
//!     .visible .entry twice(.param .u64 p) {
//!         .reg .b32 %r<3>; .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [p];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.s64 %rd3, %rd1, %rd2;
//!         ld.global.u32 %r2, [%rd3];
//!         shl.b32 %r2, %r2, 1;
//!         st.global.u32 [%rd3], %r2;
//!         ret;
//!     }";
//! let mut sim = Sim::new(Module::parse(ptx)?);
//! let x = sim.upload("x", &[1, 0, 0, 0, 5, 0, 0, 0])?;
//! let launch = Launch::new("twice", [1, 1, 1], [2, 1, 1]).buffer(x);
//! let report = sim.run(&launch, &Options::default())?;
//! assert_eq!(sim.download(x), [2, 0, 0, 0, 10, 0, 0, 0]);
//! assert!(report.coverage.complete());
//! # Ok::<(), ptx_sim::SimError>(())
//! ```

#[macro_use]
mod named;

pub mod ast;
pub mod coverage;
pub mod demangle;
pub mod error;
mod exec;
pub mod files;
pub mod inventory;
pub mod launch;
mod lexer;
pub mod memory;
pub mod models;
pub mod mutate;
mod ops;
mod parser;
pub mod program;
pub mod recording;
pub mod report;
pub mod sched;
pub mod schedules;
mod sim;
pub mod softfloat;
pub mod trace;

pub use ast::Module;
pub use error::SimError;
pub use models::hazard::Profile;
pub use models::relaxation::{Allowed, Relaxation};
pub use models::sums::{Silicon, SumRule};
pub use program::Program;
pub use report::{Note, Report};
pub use sched::{Policy, Timing};
pub use sim::{
    Buffer, Buffers, DEFAULT_MEMORY, HazardChecks, Launch, Multiprocessors, Options, Sim, Symbol,
    Uninitialised, check_memory,
};
pub use trace::Trace;
