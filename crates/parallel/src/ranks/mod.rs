//! Who takes part: ranks that a launcher started, and how they meet.
//!
//! A rank is a process with a GPU of its own, or a thread. Launchers tell each process its number in its environment,
//! each in words of its own; [`Ranks`] reads those of torchrun, Open MPI, MPICH and its relatives, and Slurm. Started
//! by none, a process is alone: rank 0 of 1.
//!
//! To communicate, all ranks need something that rank 0 makes, such as NCCL's id. [`Ranks::share`] brings it to them:
//! rank 0 waits for all others at the address that the environment names (`MASTER_ADDR`, `MASTER_PORT`), and answers
//! when every one has come. A rank that does not come is named in the error that all others get. Ranks of another job,
//! by the name that its launcher gives it, are turned away. This is for networks that are trusted, as NCCL's own
//! connections are: whoever reaches the port can take a rank's place. Which variables say all of this is a table of
//! `docs/several-gpus.md`.
//!
//! ```
//! use nvfp4_gemv_parallel::ranks::{Launcher, Ranks};
//!
//! // What `torchrun --nproc-per-node 8 --nnodes 2` sets for a process of the second host, among others.
//! let variables = [
//!     ("RANK", "9"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8"),
//!     ("MASTER_ADDR", "host1"), ("MASTER_PORT", "29500"),
//! ];
//! let of = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
//! let ranks = Ranks::of_variables(of)?;
//! assert_eq!((ranks.rank(), ranks.ranks(), ranks.local_rank()), (9, 16, 1));
//! assert_eq!(ranks.launcher(), Launcher::Torchrun);
//! # Ok::<(), nvfp4_gemv_parallel::ranks::RanksError>(())
//! ```

mod error;
mod launcher;
mod meeting;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use error::RanksError;

nvfp4_gemv::named! {
    /// The program that started a rank's process.
    Launcher {
        /// Nothing that says so: the process is alone.
        None = "none",
        /// PyTorch's torchrun, and what sets the same variables.
        Torchrun = "torchrun",
        /// Open MPI's mpirun.
        OpenMpi = "Open MPI",
        /// The process manager of MPICH, Intel MPI and others (PMI).
        Pmi = "PMI",
        /// Slurm's srun.
        Slurm = "Slurm",
    }
}

/// The variable that names the port at which ranks meet, in the place of the launcher's.
pub const PORT_VARIABLE: &str = "NVFP4_GEMV_PORT";
/// The variables, as torchrun sets them, of the host and the port at which ranks meet.
const HOST: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
/// A process among those that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    launcher: Launcher,
    rank: usize,
    ranks: usize,
    local_rank: usize,
    /// The host at which ranks meet, as far as the environment says it.
    host: Option<String>,
    port: Option<u16>,
    /// The job that all ranks belong to, as the launcher calls it.
    job: Option<String>,
}

impl Ranks {
    /// One process alone.
    pub const ALONE: Self = Self {
        launcher: Launcher::None,
        rank: 0,
        ranks: 1,
        local_rank: 0,
        host: None,
        port: None,
        job: None,
    };

    /// The rank that this process's environment describes.
    ///
    /// # Errors
    /// [`RanksError::Missing`], [`RanksError::NoNumber`], [`RanksError::NoPort`], [`RanksError::Contradiction`].
    pub fn of_environment() -> Result<Self, RanksError> {
        Self::of_variables(|name| {
            let value = std::env::var_os(name)?;
            Some(value.to_string_lossy().into_owned())
        })
    }

    /// The rank that variables describe, where these are not, or not only, the environment's.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment)'s.
    pub fn of_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, RanksError> {
        launcher::of_variables(&|name| get(name).filter(|value| !value.is_empty()))
    }

    /// The launcher that started it.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Its number among all.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Its number among those of its host: the GPU that is its own, where it sees those of the others too.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The GPU of this rank, among so many that the rank sees. It is the GPU of the rank's number within the host, or
    /// the only GPU, where the launcher shows each rank its own.
    ///
    /// # Errors
    /// [`RanksError::TooFewDevices`].
    pub fn device(&self, visible: usize) -> Result<usize, RanksError> {
        let local_rank = self.local_rank;
        match visible {
            1 if self.ranks > 1 => Ok(0),
            _ if local_rank < visible => Ok(local_rank),
            _ => Err(RanksError::TooFewDevices {
                local_rank,
                visible,
            }),
        }
    }

    /// Brings rank 0's bytes to all ranks. All ranks call this; the bytes of the others do not matter. At most
    /// [`MOST_BYTES`](Self::MOST_BYTES). Alone, nothing is sent. May be called again, by all of them.
    ///
    /// Rank 0 waits for the others as long as the timeout, and the others as long for rank 0. Where rank 0 comes later
    /// than they, they wait a little more than twice as long.
    ///
    /// # Errors
    /// [`RanksError::NoMeeting`] where the environment does not say where ranks meet; [`RanksError::TooLong`] and
    /// [`RanksError::TooMany`]; the errors that keep ranks from coming, after the timeout at the latest.
    pub fn share(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<u8>, RanksError> {
        if bytes.len() > Self::MOST_BYTES {
            let (got, most) = (bytes.len(), Self::MOST_BYTES);
            return Err(RanksError::TooLong { got, most });
        }
        if self.ranks == 1 {
            return Ok(bytes.to_vec());
        }
        if self.ranks > Self::MOST_RANKS {
            let (ranks, most) = (self.ranks, Self::MOST_RANKS);
            return Err(RanksError::TooMany { ranks, most });
        }
        let named = |name| RanksError::NoMeeting {
            launcher: self.launcher,
            name,
        };
        let host = self.host.as_deref().ok_or_else(|| named(HOST))?;
        let port = self.port.ok_or_else(|| named(PORT))?;
        let job = self.job.as_deref();
        match self.rank {
            0 => meeting::Host::open(host, port)?.share(self.ranks, job, bytes, timeout),
            rank => meeting::join((host, port), rank, self.ranks, job, timeout),
        }
    }

    /// The most bytes that can be shared.
    pub const MOST_BYTES: usize = 4096;

    /// The most ranks that can meet: rank 0 has a connection to each.
    pub const MOST_RANKS: usize = 1 << 20;
}
