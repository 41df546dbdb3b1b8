//! What can be wrong with NCCL and between ranks, and what helps.

use std::time::Duration;

use super::PLACE;
use crate::printable;

/// Why ranks do not communicate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// No library was found, or none that can be loaded.
    #[error("NCCL is not there: {}", .looked_at.join("; "))]
    Missing {
        /// Where it was looked for, and what was there.
        looked_at: Vec<String>,
    },
    /// The library is older than what is called of it.
    #[error("NCCL {version} is too old, and {needed} or newer is needed, {why}: {place}")]
    TooOld {
        /// The library's version.
        version: String,
        /// The oldest that will do.
        needed: String,
        /// What that one has first, as part of a sentence.
        why: &'static str,
        /// Where the library is.
        place: String,
    },
    /// The library has no symmetric windows.
    #[error(
        "NCCL {version} has no symmetric windows; {} or newer has them",
        super::WINDOWS
    )]
    NoWindows {
        /// The library's version.
        version: String,
    },
    /// There is no such rank.
    #[error("rank {rank} of {ranks}: ranks are numbered from 0, and there is 1 or more")]
    NoSuchRank {
        /// The rank that was asked for.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
    },
    /// What ranks gather is not as long as all of their parts.
    #[error("{got} elements for what {ranks} ranks with {part} each gather: there must be {}", part * ranks)]
    GatherLength {
        /// How many there are.
        got: usize,
        /// A rank's part.
        part: usize,
        /// The ranks that there are.
        ranks: usize,
    },
    /// A call failed.
    #[error("rank {rank} of {ranks}: NCCL fails in {call}: {result}{}", spoken(.said))]
    Call {
        /// The function.
        call: &'static str,
        /// The rank that called it.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
        /// Its result.
        result: String,
        /// What NCCL says of it, or empty.
        said: String,
    },
    /// NCCL reports that another rank, or the way to it, failed. The communicator was aborted.
    #[error("rank {rank} of {ranks}, while {doing}: NCCL reports {result}{}; the communicator was aborted", spoken(.said))]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// The rank that noticed.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
        /// What it reports.
        result: String,
        /// What NCCL says of it, or empty.
        said: String,
    },
    /// Another rank did not do its part in time: it died, was never started, or is slower than the timeout allows. The
    /// communicator was aborted.
    #[error(
        "rank {rank} of {ranks}: {doing} was not done within {} s: another rank died, never came, or takes longer; the \
         communicator was aborted",
        timeout.as_secs_f64()
    )]
    Timeout {
        /// What was being done.
        doing: &'static str,
        /// The rank that waited.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
        /// How long it waited.
        timeout: Duration,
    },
    /// A communicator that failed before.
    #[error("rank {rank} of {ranks}: the communicator was aborted before: {first}")]
    Aborted {
        /// The rank.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
        /// Why it was.
        first: String,
    },
    /// The first sum of all ranks is not what they would have given: they are not of one world.
    #[error(
        "{ranks} ranks added up to {got} and not to {expected}: they do not count the same ranks"
    )]
    WrongSum {
        /// The ranks that there are.
        ranks: usize,
        /// The sum.
        got: f32,
        /// What it should be.
        expected: f32,
    },
    /// The device, or an operand on it.
    #[error(transparent)]
    Device(#[from] crate::Error),
}

fn spoken(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!(" ({})", printable::text(text)),
    }
}

/// The call with which a rank joins the others.
pub(super) const JOINING: &str = "ncclCommInitRankConfig";

const SAYS_MORE: &str = "NCCL_DEBUG=INFO in the environment of all ranks lets NCCL say more.";

impl NcclError {
    /// What helps.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } | Self::TooOld { .. } | Self::NoWindows { .. } => Some(format!(
                "The PyPI package nvidia-nccl-cu13 (or -cu12) has it, and so have NVIDIA's packages libnccl2. Set {PLACE} to \
                 the folder of libnccl.so.2, or add that folder to LD_LIBRARY_PATH."
            )),
            Self::Call { call: JOINING, .. } => Some(format!(
                "NCCL needs a GPU, and a driver that is not older than the CUDA release that it is made for (13 of the PyPI \
                 package nvidia-nccl-cu13, 12 of -cu12). {SAYS_MORE}"
            )),
            Self::Call { .. } | Self::Failed { .. } => Some(SAYS_MORE.into()),
            Self::Timeout { .. } => Some(
                "Look for the first rank that ended. NCCL_DEBUG=INFO in the environment of all ranks shows how far each \
                 came; NCCL_SOCKET_IFNAME names the network interface, where hosts have several."
                    .to_string(),
            ),
            _ => None,
        }
    }
}
