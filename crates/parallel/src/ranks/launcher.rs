//! Variables that launchers set in the environment of processes.

use std::net::Ipv6Addr;

use super::{HOST, Launcher, PORT, PORT_VARIABLE, Ranks, RanksError};

/// The variable that is set where torchrun itself listens at the port.
const TORCHRUN_LISTENS: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Names of a launcher's variables: a process's number, how many processes there are, and both within the process's
/// host. Of several names the first one that is set counts.
struct Names {
    launcher: Launcher,
    rank: &'static [&'static str],
    ranks: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_ranks: &'static [&'static str],
    /// Variables whose values together all processes of a job have in common, and those of other jobs do not.
    job: &'static [&'static str],
    starts: Starts,
}

/// Variables that show that the launcher has started a process.
enum Starts {
    /// Any of its variables, which nobody else sets.
    Any,
    /// Two of the three that it needs: others may set one of them, since their names are of everybody.
    Two,
    /// This variable beside others. Slurm sets the others also in batch scripts, which are no ranks.
    With(&'static str),
}

/// The launchers. A process that a launcher started may start others: torchrun runs under srun. So the innermost
/// launchers come first.
const NAMES: [Names; 4] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: &["RANK"],
        ranks: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_ranks: &["LOCAL_WORLD_SIZE"],
        job: &["TORCHELASTIC_RUN_ID"],
        starts: Starts::Two,
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_ranks: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE"],
        starts: Starts::Any,
    },
    Names {
        launcher: Launcher::Pmi,
        rank: &["PMI_RANK"],
        ranks: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"],
        local_ranks: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        job: &["SLURM_JOB_ID"],
        starts: Starts::Any,
    },
    Names {
        launcher: Launcher::Slurm,
        rank: &["SLURM_PROCID"],
        // The step's own number: a step may have fewer processes than the job asked for.
        ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_ranks: &[],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        starts: Starts::With("SLURM_STEP_ID"),
    },
];

/// A rank's numbers.
struct Numbers {
    rank: usize,
    ranks: usize,
    local_rank: usize,
}

/// The rank that variables describe; `get` gives no empty ones.
pub(super) fn of_variables(get: &impl Fn(&str) -> Option<String>) -> Result<Ranks, RanksError> {
    let Some(names) = NAMES.iter().find(|names| names.started(get)) else {
        return Ok(Ranks::ALONE);
    };
    let Numbers {
        rank,
        ranks,
        local_rank,
    } = names.numbers(get)?;
    let alone = Ranks {
        launcher: names.launcher,
        rank,
        ranks,
        local_rank,
        ..Ranks::ALONE
    };
    // One rank meets nobody: what says where may be of something else.
    if ranks == 1 {
        return Ok(alone);
    }
    let job = names.job.iter().map(|name| get(name));
    let job: Option<Vec<String>> = job.collect();
    Ok(Ranks {
        host: get(HOST).map(without_brackets),
        port: port(get)?,
        job: job.map(|parts| parts.join(".")),
        ..alone
    })
}

impl Names {
    fn started(&self, get: &impl Fn(&str) -> Option<String>) -> bool {
        let any = |names: &[&str]| names.iter().any(|name| get(name).is_some());
        let (rank, ranks, local) = (any(self.rank), any(self.ranks), any(self.local_rank));
        match self.starts {
            Starts::Any => rank || ranks,
            Starts::Two => [rank, ranks, local].into_iter().filter(|set| *set).count() >= 2,
            Starts::With(name) => (rank || ranks) && any(&[name]),
        }
    }

    /// Rank, ranks, and the rank within the host, checked against each other.
    fn numbers(&self, get: &impl Fn(&str) -> Option<String>) -> Result<Numbers, RanksError> {
        let first = |names: &[&'static str]| -> Result<Option<(&'static str, usize)>, RanksError> {
            let set = names.iter().find_map(|&name| Some((name, get(name)?)));
            set.map(|(name, value)| Ok((name, parse(name, value)?)))
                .transpose()
        };
        let missing = |names: &[&'static str]| {
            let all = [self.rank, self.ranks, self.local_rank].concat();
            let found = all.into_iter().find(|name| get(name).is_some());
            RanksError::Missing {
                launcher: self.launcher,
                name: names[0],
                found: found.expect("by one of them the launcher was known"),
            }
        };
        let less = |name, value, than, of| match value < of {
            true => Ok(()),
            false => Err(RanksError::Contradiction {
                name,
                value,
                than,
                of,
            }),
        };
        let (name, rank) = first(self.rank)?.ok_or_else(|| missing(self.rank))?;
        let (of_all, ranks) = first(self.ranks)?.ok_or_else(|| missing(self.ranks))?;
        less(name, rank, of_all, ranks)?;
        let local = first(self.local_rank)?;
        if let (Some((name, local_rank)), Some((than, of))) = (local, first(self.local_ranks)?) {
            less(name, local_rank, than, of)?;
        }
        let (name, local_rank) = match local {
            Some(local) => local,
            // One process alone has no other number; of several, which GPU is its own must be said.
            None if ranks == 1 => (name, 0),
            None => return Err(missing(self.local_rank)),
        };
        less(name, local_rank, of_all, ranks)?;
        Ok(Numbers {
            rank,
            ranks,
            local_rank,
        })
    }
}

/// Digits alone: Rust's own takes a sign, too.
fn digits<T: std::str::FromStr>(value: &str) -> Option<T> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| value.parse().ok())?
}

fn parse(name: &'static str, value: String) -> Result<usize, RanksError> {
    // More ranks than NCCL counts must be a mistake.
    let number = digits(&value).filter(|number| *number <= i32::MAX as usize);
    number.ok_or(RanksError::NoNumber { name, value })
}

/// A host as sockets take it: an IPv6 address may stand in brackets, as beside a port.
fn without_brackets(host: String) -> String {
    let inner = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match inner.filter(|inner| inner.parse::<Ipv6Addr>().is_ok()) {
        Some(inner) => inner.into(),
        None => host,
    }
}

/// The port at which ranks meet: the one that is named for them; or the launcher's, or the next one where torchrun
/// listens at that itself.
fn port(get: &impl Fn(&str) -> Option<String>) -> Result<Option<u16>, RanksError> {
    let port_of = |name: &'static str| -> Result<Option<u16>, RanksError> {
        let Some(value) = get(name) else {
            return Ok(None);
        };
        let port = digits(&value).filter(|port| *port != 0);
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
