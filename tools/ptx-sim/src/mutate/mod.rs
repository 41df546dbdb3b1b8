//! Planted faults: what happens when one thing about a kernel is wrong? `docs/planted-faults.md`.
//!
//! [`Kernel::mutants`] lists the faults, [`campaign`] runs each under several schedules until
//! something notices, [`Score`] adds up, and [`Known`] is a list of faults that change nothing.

mod body;
mod class;
mod drops;
mod golden;
mod host;
mod kind;
mod known;
mod moves;
mod mutant;
mod operands;
mod run;
mod scalar;
mod score;
mod subject;
mod text;
mod tweak;

pub use golden::Golden;
pub use host::{HostFault, MapFault, host_mutants};
pub use kind::Kind;
pub use known::{Known, KnownEntry, KnownError};
pub use mutant::{Kernel, Mutant, Planted};
pub use run::{Check, Finding, Noticed, Outcome, Ran, Trial, TrialError, campaign, schedules};
pub use score::Score;
pub use subject::Subject;

use mutant::Plan;
