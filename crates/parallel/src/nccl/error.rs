//! Errors of NCCL and between ranks, and advice that helps.

use std::time::Duration;

use nvfp4_gemv_files::printable;

use super::PLACE;
use super::api::{REMOTE_ERROR, SYSTEM_ERROR};

/// Why ranks do not communicate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// No library was found, or none that can be loaded.
    #[error("NCCL is not there: {}", .looked_at.join("; "))]
    Missing {
        /// The places that were looked at, and what was there.
        looked_at: Vec<String>,
    },
    /// The library is older than what is called of it.
    #[error("NCCL {version} is too old, and {needed} or newer is needed, {why}: {place}")]
    TooOld {
        /// The library's version.
        version: String,
        /// The oldest that will do.
        needed: String,
        /// The feature that the oldest usable version has first, as part of a sentence.
        why: &'static str,
        /// The library's place.
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
    /// NCCL takes memory for a window, and makes none of it.
    #[error(
        "rank {rank} of {ranks}: NCCL registered no window: its settings, or the GPUs, have no symmetric memory"
    )]
    NotRegistered {
        /// The rank.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
    },
    /// There is no such rank.
    #[error("rank {rank} of {ranks}: ranks are numbered from 0, and there is 1 or more")]
    NoSuchRank {
        /// The rank that was asked for.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
    },
    /// The buffer for what ranks gather is not as long as all of their parts.
    #[error("{got} elements for what {ranks} ranks with {part} each gather: there must be {}", part * ranks)]
    GatherLength {
        /// The number of elements that it has.
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
        /// NCCL's number of its result.
        status: i32,
        /// Its result.
        result: String,
        /// The text that NCCL last said in this process, most often of this failure; or empty.
        said: String,
    },
    /// NCCL reports a failure of what it does by itself: on this rank, on another one, or on the way between them. The
    /// status tells these apart as far as NCCL does. The communicator was aborted.
    #[error("rank {rank} of {ranks}, while {doing}: NCCL reports {result}{}; the communicator was aborted", spoken(.said))]
    Failed {
        /// The operation that was going on.
        doing: &'static str,
        /// The rank that noticed.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
        /// NCCL's number of what it reports.
        status: i32,
        /// The result that NCCL reports.
        result: String,
        /// The text that NCCL last said in this process, most often of this failure; or empty.
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
        /// The operation that was going on.
        doing: &'static str,
        /// The rank that waited.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
        /// The time that the rank waited.
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
        /// The sum that it should be.
        expected: f32,
    },
    /// The device, or an operand on it.
    #[error(transparent)]
    Device(#[from] nvfp4_gemv::Error),
}

fn spoken(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!(
            " (NCCL last said in this process: {})",
            printable::text(text)
        ),
    }
}

/// The call with which a rank joins the others, and what that is.
pub(super) const INIT: &str = "ncclCommInitRankConfig";
pub(super) const JOINING: &str = "joining the other ranks";

const SAYS_MORE: &str = "NCCL_DEBUG=INFO in the environment of all ranks lets NCCL say more.";

impl NcclError {
    /// Whether it is only what is seen of another rank's end. Nothing where NCCL does not say.
    pub(crate) fn is_of_another_rank(&self) -> Option<bool> {
        match self {
            Self::Timeout { .. } | Self::Aborted { .. } => Some(true),
            // A call also returns what the communicator has noticed before.
            Self::Call { status, .. } | Self::Failed { status, .. } => match *status {
                // A connection that another rank does not take any more, or what this host lacks.
                SYSTEM_ERROR => None,
                status => Some(status == REMOTE_ERROR),
            },
            _ => Some(false),
        }
    }

    /// Advice that helps.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } | Self::TooOld { .. } | Self::NoWindows { .. } => Some(format!(
                "The PyPI package nvidia-nccl-cu13 (or -cu12) has it, and so have NVIDIA's packages libnccl2. Set {PLACE} to \
                 the folder of libnccl.so.2, or add that folder to LD_LIBRARY_PATH."
            )),
            // The rank's own: not where another one fails meanwhile.
            Self::Call {
                call: INIT, status, ..
            }
            | Self::Failed {
                doing: JOINING,
                status,
                ..
            } if *status != REMOTE_ERROR => Some(format!(
                "NCCL needs a GPU, and a driver that is not older than the CUDA release that it is made for (13 of the PyPI \
                 package nvidia-nccl-cu13, 12 of -cu12). {SAYS_MORE}"
            )),
            Self::Call { .. } | Self::Failed { .. } => Some(SAYS_MORE.into()),
            Self::NotRegistered { .. } => Some(
                "Unset NCCL_CUMEM_ENABLE and NCCL_WIN_ENABLE in the environment of all ranks, or set both to 1; or do \
                 without windows."
                    .to_string(),
            ),
            Self::Timeout { .. } => Some(
                "Look for the first rank that ended. NCCL_DEBUG=INFO in the environment of all ranks shows how far each \
                 came; NCCL_SOCKET_IFNAME names the network interface, where hosts have several."
                    .to_string(),
            ),
            _ => None,
        }
    }
}
