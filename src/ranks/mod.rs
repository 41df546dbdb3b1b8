//! Who takes part: ranks that a launcher started, and how they meet.
//!
//! A rank is a process with a GPU of its own, or a thread. Launchers tell each process its number in its environment, each
//! in words of its own; [`Ranks`] reads those of torchrun, Open MPI, MPICH and its relatives, and Slurm. Started by none, a
//! process is alone: rank 0 of 1.
//!
//! To communicate, all need what rank 0 makes, such as NCCL's id. [`Ranks::share`] brings it to them: rank 0 waits for all
//! others at the address that the environment names (`MASTER_ADDR`, `MASTER_PORT`), and answers when every one has come. A
//! rank that does not come is named in the error that all others get. This is for networks that are trusted, as NCCL's own
//! connections are: whoever reaches the port can take a rank's place.
//!
//! ```
//! use nvfp4_gemv::ranks::{Launcher, Ranks};
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
//! # Ok::<(), nvfp4_gemv::ranks::RanksError>(())
//! ```

mod error;
mod meeting;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use error::RanksError;

crate::types::named! {
    /// What started a rank's process.
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
/// Set where torchrun itself listens at the port.
const TORCHRUN_LISTENS: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Names of a launcher's variables: a process's number, how many there are, and the same within its host.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    ranks: &'static str,
    /// The first one that is set counts.
    local_rank: &'static [&'static str],
    local_ranks: &'static [&'static str],
    /// Set in what the launcher started alone. Slurm sets the others also in batch scripts, which are no ranks.
    only_with: Option<&'static str>,
}

/// What a launcher started may start others: torchrun runs under srun. So the innermost come first.
const NAMES: [Names; 4] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        ranks: "WORLD_SIZE",
        local_rank: &["LOCAL_RANK"],
        local_ranks: &["LOCAL_WORLD_SIZE"],
        only_with: None,
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_ranks: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        only_with: None,
    },
    Names {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"],
        local_ranks: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        only_with: None,
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        ranks: "SLURM_NTASKS",
        local_rank: &["SLURM_LOCALID"],
        local_ranks: &[],
        only_with: Some("SLURM_STEP_ID"),
    },
];

/// A process among those that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    launcher: Launcher,
    rank: usize,
    ranks: usize,
    local_rank: usize,
    /// Where they meet, as far as the environment says it.
    host: Option<String>,
    port: Option<u16>,
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
    };

    /// What this process's environment says.
    ///
    /// # Errors
    /// [`RanksError::Missing`], [`RanksError::NoNumber`], [`RanksError::Contradiction`].
    pub fn of_environment() -> Result<Self, RanksError> {
        Self::of_variables(|name| {
            let value = std::env::var_os(name)?;
            Some(value.to_string_lossy().into_owned())
        })
    }

    /// What variables say that are not, or not only, the environment's.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment)'s.
    pub fn of_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, RanksError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let started = |names: &&Names| {
            let there = names.only_with.is_none_or(|name| get(name).is_some());
            there && (get(names.rank).is_some() || get(names.ranks).is_some())
        };
        let (host, port) = (get(HOST), port(&get)?);
        match NAMES.iter().find(started) {
            None => Ok(Self {
                host,
                port,
                ..Self::ALONE
            }),
            Some(names) => {
                let (rank, ranks, local_rank) = names.numbers(&get)?;
                Ok(Self {
                    launcher: names.launcher,
                    rank,
                    ranks,
                    local_rank,
                    host,
                    port,
                })
            }
        }
    }

    /// What started it.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Its number among all.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Its number among those of its host: the GPU that is its own, where it sees those of the others too.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The GPU of this rank, of so many that it sees: the one of its number within the host; or the only one, where the
    /// launcher shows each rank its own.
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

    /// Brings rank 0's bytes to all ranks, which all call this; those of the others do not matter. At most
    /// [`MOST_BYTES`](Self::MOST_BYTES). Alone, nothing is sent.
    ///
    /// # Errors
    /// [`RanksError::NoMeeting`] where the environment does not say where; [`RanksError::TooLong`]; what keeps ranks from
    /// coming, after the timeout at the latest.
    pub fn share(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<u8>, RanksError> {
        if bytes.len() > Self::MOST_BYTES {
            let (got, most) = (bytes.len(), Self::MOST_BYTES);
            return Err(RanksError::TooLong { got, most });
        }
        if self.ranks == 1 {
            return Ok(bytes.to_vec());
        }
        let named = |name| RanksError::NoMeeting {
            launcher: self.launcher,
            name,
        };
        let host = self.host.as_deref().ok_or_else(|| named(HOST))?;
        let port = self.port.ok_or_else(|| named(PORT))?;
        match self.rank {
            0 => meeting::Host::open(host, port)?.share(self.ranks, bytes, timeout),
            rank => meeting::join(host, port, rank, self.ranks, timeout),
        }
    }

    /// As many bytes as can be shared at most.
    pub const MOST_BYTES: usize = 4096;
}

impl Names {
    /// Rank, ranks, and the rank within the host, checked against each other.
    fn numbers(
        &self,
        get: &impl Fn(&str) -> Option<String>,
    ) -> Result<(usize, usize, usize), RanksError> {
        let number = |name: &'static str| -> Result<usize, RanksError> {
            let value = get(name).ok_or(RanksError::Missing {
                launcher: self.launcher,
                name,
            })?;
            parse(name, &value)
        };
        let first = |names: &'static [&'static str]| -> Result<Option<(&str, usize)>, RanksError> {
            let set = names.iter().find(|name| get(name).is_some());
            set.map(|&name| Ok((name, number(name)?))).transpose()
        };
        let (rank, ranks) = (number(self.rank)?, number(self.ranks)?);
        let less = |name, value, than, of| match value < of {
            true => Ok(()),
            false => Err(RanksError::Contradiction {
                name,
                value,
                than,
                of,
            }),
        };
        less(self.rank, rank, self.ranks, ranks)?;
        let local = first(self.local_rank)?;
        if let (Some((name, local_rank)), Some((than, of))) = (local, first(self.local_ranks)?) {
            less(name, local_rank, than, of)?;
        }
        let (name, local_rank) = match local {
            Some(local) => local,
            // One process alone has no other number; of several, which GPU is its own must be said.
            None if ranks == 1 => (self.rank, 0),
            None => {
                return Err(RanksError::Missing {
                    launcher: self.launcher,
                    name: self.local_rank[0],
                });
            }
        };
        less(name, local_rank, self.ranks, ranks)?;
        Ok((rank, ranks, local_rank))
    }
}

fn parse(name: &'static str, value: &str) -> Result<usize, RanksError> {
    // More ranks than NCCL counts must be a mistake.
    let number = value
        .parse()
        .ok()
        .filter(|number| *number <= i32::MAX as usize);
    number.ok_or_else(|| RanksError::NoNumber {
        name,
        value: value.into(),
    })
}

/// The port at which ranks meet: the one that is named for them; or the launcher's, or the next one where torchrun
/// listens at that itself.
fn port(get: &impl Fn(&str) -> Option<String>) -> Result<Option<u16>, RanksError> {
    let port_of = |name: &'static str| -> Result<Option<u16>, RanksError> {
        let Some(value) = get(name) else {
            return Ok(None);
        };
        let port = value.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or(RanksError::NoPort { name, value })?;
        Ok(Some(port))
    };
    if let Some(port) = port_of(PORT_VARIABLE)? {
        return Ok(Some(port));
    }
    let Some(port) = port_of(PORT)? else {
        return Ok(None);
    };
    match get(TORCHRUN_LISTENS).as_deref() {
        Some("True" | "true" | "1") => match port.checked_add(1) {
            Some(next) => Ok(Some(next)),
            None => Err(RanksError::NoPort {
                name: PORT,
                value: format!("{port}, behind which there is none"),
            }),
        },
        _ => Ok(Some(port)),
    }
}
