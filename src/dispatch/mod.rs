//! THE dispatch table: which kernel computes a problem, with which config, and why. Pure: no CUDA, no clock, no
//! environment but one variable, read by [`forced_by_environment`].
//!
//! Each kernel itself says whether it can compute a problem, and why not: [`Kernel::available`](crate::Kernel). An
//! [`Estimate`] of its time there rests on the best [`Evidence`] that there is:
//!
//! 1. times of this problem on this device: a file of `tune`, if the caller gives one, or what was
//!    measured (`Options::measure`) in this process, if the caller asks for that;
//! 2. times of this problem on this model of GPU: the tables that come with the crate, [`measured`];
//! 3. times of the nearest problem in such a table, of a GPU of this generation;
//! 4. a model, where nobody measured. On a Hopper with 9 to 32 vectors it comes before the nearest problem: there kernels
//!    count their microseconds.
//!
//! [`rank`] orders all kernels by that. [`select`] takes the first one that can compute the problem, within what the
//! caller's [`Options`] ask for, and asks no kernel that is known to stand behind it. A request is never replaced by
//! something else. [`plan`] makes the launches of a call of what was selected: its config was checked then, and is not
//! checked again.

mod digits;
mod environment;
mod lately;
pub mod measured;
mod model;
mod options;
mod rank;
#[cfg(all(feature = "device", feature = "tune"))]
pub(crate) mod remembered;
mod select;

pub use environment::{PATH_VARIABLE, forced_by_environment};
pub use options::{Asker, Choice, Options, Reason};
pub use rank::{Estimate, Evidence, Ranked, rank};
pub use select::{Target, plan, select, workspace_bytes};
#[cfg(all(feature = "device", feature = "tune"))]
pub(crate) use select::{ToMeasure, rivals, to_measure};
#[cfg(feature = "device")]
pub(crate) use select::{bundling_bytes, is_same_on_read};

#[cfg(test)]
mod tests;
