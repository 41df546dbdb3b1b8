//! Tuning: measures which kernel and config is fastest for a problem on this device, and keeps the results in a file.
//!
//! Nothing here happens on its own. `Tuner` (feature `cuda` or `jit`) measures when it is asked to, for seconds. [`Tuned`] holds
//! the results, to be [saved](Tuned::save) and [loaded](Tuned::load). Only calls that are given a `Tuned` use it:
//! [`Options::tuned`](crate::Options::tuned). Without one, the built-in tables decide ([`crate::dispatch`]). The
//! `nvfp4-gemv tune` command does all of it.
//!
//! A file belongs to a GPU (name, compute capability, multiprocessors), the CUDA version of its driver,
//! this crate's version and the sources of its kernels. One that was made with others is refused with the
//! reason: a config that was best for other kernels is at best slow.
//!
//! ```no_run
//! # #[cfg(feature = "device")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use nvfp4_gemv::tune::{Limits, Tuned, Tuner};
//! use nvfp4_gemv::{Activation, Operands, Options, ScaleLayout, Shape};
//!
//! let mut tuner = Tuner::new(0)?;
//! let mut tuned = Tuned::load_or_new("tuned.jsonl", tuner.machine(), "my program")?;
//! let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
//! let shape = Shape::matrix(4096, 7168)?;
//! if tuned.find(&shape, &operands).is_none() {
//!     let outcome = tuner.tune(&shape, &operands, &Limits::default(), |_| ())?;
//!     tuned.insert(outcome.entry);
//!     tuned.save("tuned.jsonl")?;
//! }
//! let options = Options::new().tuned(&tuned); // for any call on a stream of this device
//! let best = tuned.find(&shape, &operands).map(|entry| entry.kernels[0].config);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "device"))]
//! # fn main() {}
//! ```

#[cfg(feature = "device")]
mod buffers;
#[cfg(feature = "device")]
mod chain;
#[cfg(any(feature = "device", test))]
mod descent;
#[cfg(feature = "device")]
mod device;
mod error;
#[cfg(feature = "device")]
mod judge;
#[cfg(feature = "device")]
mod prepare;
#[cfg(any(feature = "device", test))]
mod ranking;
mod search;
mod store;

use std::collections::HashSet;
use std::path::Path;

#[cfg(feature = "device")]
pub use chain::ChainOutcome;
#[cfg(feature = "device")]
pub use device::{Outcome, Repeat, Sustained, Took, Tuner, machine};
pub use error::TuneError;
#[cfg(feature = "device")]
pub use judge::Judged;
#[cfg(feature = "device")]
pub(crate) use prepare::at_prepare;
#[cfg(feature = "device")]
#[doc(hidden)]
pub use prepare::launches_at_prepare;
pub use search::{Found, Limits, Progress, search};

use crate::dispatch::measured::{Entry, Machine, Measurements, comparable};
#[cfg(feature = "device")]
use crate::dispatch::remembered;
use crate::operands::Operands;
use crate::shape::Shape;

/// The variable that programs of this crate take a file's name from. The library does not read it.
pub const TUNED_VARIABLE: &str = "NVFP4_GEMV_TUNED";

/// Measurements of one machine. Two are equal if they say the same of the same problems.
#[derive(Clone, Debug)]
pub struct Tuned {
    table: Measurements,
    /// The problems that were [inserted](Tuned::insert) and not yet [saved](Tuned::save).
    new: HashSet<(Shape, Operands)>,
}

impl PartialEq for Tuned {
    fn eq(&self, other: &Self) -> bool {
        self.table == other.table
    }
}

impl Tuned {
    /// Nothing yet. `from` says for people who measured, and how.
    pub fn new(machine: &Machine, from: impl Into<String>) -> Self {
        Self {
            table: Measurements::new(machine.clone(), from),
            new: HashSet::new(),
        }
    }

    /// Times measured in this process on such a machine when calls were prepared: [`Options::measure`]. To be
    /// [saved](Self::save), so that later processes take the same configs and measure nothing. What was measured among
    /// the kernels of one path alone, or of one kernel, is not in it.
    ///
    /// [`Options::measure`]: crate::Options::measure
    #[cfg(feature = "device")]
    pub fn remembered(machine: &Machine) -> Self {
        let table = remembered::of(machine);
        let of = |entry: &Entry| (entry.shape, entry.operands);
        Self {
            new: table.entries().iter().map(of).collect(),
            table,
        }
    }

    /// Reads a file that was made on `machine`: `tune::machine` says which this is.
    ///
    /// # Errors
    /// [`TuneError::Corrupt`] for a file that is none of tuned configs, [`TuneError::Foreign`] for another GPU's,
    /// [`TuneError::Stale`] for one of another driver or version, [`TuneError::Io`], [`TuneError::NotRegular`],
    /// [`TuneError::TooLarge`].
    pub fn load(path: impl AsRef<Path>, machine: &Machine) -> Result<Self, TuneError> {
        let table = store::load(path.as_ref(), machine)?;
        Ok(Self {
            table,
            new: HashSet::new(),
        })
    }

    /// Reads a file of any machine: to look at it or to plan for that machine, not to compute with it here.
    ///
    /// # Errors
    /// [`TuneError::Corrupt`], [`TuneError::Io`], [`TuneError::NotRegular`], [`TuneError::TooLarge`].
    pub fn read_of_any(path: impl AsRef<Path>) -> Result<Self, TuneError> {
        let table = store::read(path.as_ref())?;
        Ok(Self {
            table,
            new: HashSet::new(),
        })
    }

    /// [`load`](Self::load), or nothing yet where there is no file.
    ///
    /// # Errors
    /// As [`load`](Self::load): a file that is refused is not replaced.
    pub fn load_or_new(
        path: impl AsRef<Path>,
        machine: &Machine,
        from: impl Into<String>,
    ) -> Result<Self, TuneError> {
        match Self::load(path, machine) {
            Err(TuneError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::new(machine, from))
            }
            other => other,
        }
    }

    /// Whether [`save`](Self::save) and [`replace`](Self::replace) could write to a path now, as far as that can be
    /// known before: to be asked before minutes of measuring. Leaves nothing. The content of a file that is there is
    /// not looked at; [`load`](Self::load) does that.
    ///
    /// # Errors
    /// [`TuneError::Io`] for a folder that is not there, for a pipe, a device or a directory, and for a file that may
    /// not be written to. [`TuneError::Io`] also for anything else that the system refuses.
    pub fn check_writable(path: impl AsRef<Path>) -> Result<(), TuneError> {
        store::check_writable(path.as_ref())
    }

    /// Adds this to a file, or writes a new one. Entries that others have added to the file since it was loaded are
    /// kept, and are in this afterwards too. Where both have a problem, the entry that was [inserted](Self::insert)
    /// here since the last save counts, and otherwise the entry in the file.
    ///
    /// Any number of programs and threads can save to one file. The savers wait for each other, by a lock on the file
    /// itself, so that none undoes what another has added. Where the file system has no locks, two that save in the
    /// same moment may still do that. The file is replaced in one step: who reads it meanwhile finds the old one or the
    /// new one.
    ///
    /// # Errors
    /// As [`load`](Self::load) for a file that is there: one that is refused is not replaced. [`TuneError::Io`]
    /// where the file cannot be written, or the path leads to a pipe, a device or a directory.
    /// [`TuneError::Invalid`] for an entry that [`load`](Self::load) would refuse.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), TuneError> {
        self.check()?;
        let merge = |file: Option<Measurements>| {
            let Some(mut merged) = file else {
                return self.table.clone();
            };
            for entry in self.table.entries() {
                let of = (entry.shape, entry.operands);
                if self.new.contains(&of) || merged.find(&of.0, &of.1).is_none() {
                    merged.insert(entry.clone());
                }
            }
            merged
        };
        self.table = store::update(path.as_ref(), &self.table.machine, merge)?;
        self.new.clear();
        Ok(())
    }

    /// Writes a file that holds this alone, whatever is there already; in one step, as [`save`](Self::save).
    ///
    /// # Errors
    /// [`TuneError::Io`], and [`TuneError::Invalid`] for an entry that [`load`](Self::load) would refuse.
    pub fn replace(&mut self, path: impl AsRef<Path>) -> Result<(), TuneError> {
        self.check()?;
        store::overwrite(path.as_ref(), &self.table)?;
        self.new.clear();
        Ok(())
    }

    /// Whether a file of this could be read again.
    fn check(&self) -> Result<(), TuneError> {
        let invalid = |reason| TuneError::Invalid { reason };
        self.table.check().map_err(invalid)
    }

    /// Adds the results of a problem, in the place of earlier ones of that problem. Faults of an entry are found by
    /// [`save`](Self::save).
    pub fn insert(&mut self, entry: Entry) {
        self.new.insert((entry.shape, comparable(&entry.operands)));
        self.table.insert(entry);
    }

    /// The results of a problem.
    pub fn find(&self, shape: &Shape, operands: &Operands) -> Option<&Entry> {
        self.table.find(shape, operands)
    }

    /// All measurements.
    pub fn measurements(&self) -> &Measurements {
        &self.table
    }
}

impl AsRef<Measurements> for Tuned {
    fn as_ref(&self) -> &Measurements {
        &self.table
    }
}

#[cfg(test)]
mod tests;
