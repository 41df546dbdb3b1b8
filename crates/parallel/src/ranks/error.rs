//! Why ranks do not find each other.

use std::time::Duration;

use nvfp4_gemv_files::printable;

use super::{Launcher, PORT_VARIABLE};

/// Errors in what a launcher says, or between ranks that meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// A variable that the launcher sets beside others is not there.
    #[error(
        "{found} is set, as {launcher} sets it, but {name} is not; set it too, or unset {found} where this process is to be \
         alone"
    )]
    Missing {
        /// The launcher that sets such variables.
        launcher: Launcher,
        /// The variable.
        name: &'static str,
        /// One variable that is there.
        found: &'static str,
    },
    /// A variable is no number of ranks.
    #[error("{name} is {value:?}, and must be a number from 0 on, in digits alone")]
    NoNumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A variable is no port.
    #[error(
        "{name} is {value:?}, and must be a port from 1 to 65535, in digits alone; {PORT_VARIABLE} names another one"
    )]
    NoPort {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// Variables contradict each other.
    #[error("{name} is {value}, and must be less than {than}, which is {of}")]
    Contradiction {
        /// The variable of a number.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The variable of how many there are.
        than: &'static str,
        /// Its value.
        of: usize,
    },
    /// A rank's GPU is not there.
    #[error("this is rank {local_rank} of its host, which needs {} GPUs, and {visible} are visible", local_rank + 1)]
    TooFewDevices {
        /// Its number within the host.
        local_rank: usize,
        /// GPUs that it sees.
        visible: usize,
    },
    /// Nothing says where ranks meet.
    #[error(
        "where ranks meet is not said: {name} is not set (launcher: {launcher}); set MASTER_ADDR to the host of rank 0, and \
         {PORT_VARIABLE} or MASTER_PORT to a free port there, in the environment of all ranks"
    )]
    NoMeeting {
        /// The launcher that started this process.
        launcher: Launcher,
        /// The variable.
        name: &'static str,
    },
    /// More is to be shared than can be.
    #[error("{got} bytes are to be shared, and {most} can be")]
    TooLong {
        /// Bytes.
        got: usize,
        /// The most that there may be.
        most: usize,
    },
    /// More ranks are to meet than can.
    #[error("{ranks} ranks are to meet, and {most} can")]
    TooMany {
        /// The ranks that there should be.
        ranks: usize,
        /// The most that there may be.
        most: usize,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen at port {port}: {why}; {PORT_VARIABLE} names another one, in the environment of all ranks"
    )]
    Listen {
        /// The port.
        port: u16,
        /// The system's reason.
        why: String,
    },
    /// Rank 0 is not there.
    #[error("rank {rank} does not reach rank 0 at {} within {} s: {why}", printable::text(.at), timeout.as_secs_f64())]
    Unreachable {
        /// The number of this rank.
        rank: usize,
        /// Host and port.
        at: String,
        /// The time that it was tried.
        timeout: Duration,
        /// The system's last reason.
        why: String,
    },
    /// Ranks did not come.
    #[error("{} of {ranks} ranks did not come within {} s: {}", absent.len(), timeout.as_secs_f64(), few(absent))]
    Absent {
        /// The numbers of these ranks.
        absent: Vec<usize>,
        /// The ranks that there should be.
        ranks: usize,
        /// The time that they were waited for.
        timeout: Duration,
    },
    /// Rank 0 cannot take the ranks' connections.
    #[error(
        "rank 0 cannot take more connections, with {came} of {ranks} ranks there: {why}; each takes an open file of its \
         process (ulimit -n)"
    )]
    Accept {
        /// Ranks that are there, rank 0 among them.
        came: usize,
        /// The ranks that there should be.
        ranks: usize,
        /// The system's reason.
        why: String,
    },
    /// Ranks came, and ended before all others had come.
    #[error("{} of {ranks} ranks came and have gone: {}", gone.len(), few(gone))]
    Gone {
        /// The numbers of these ranks.
        gone: Vec<usize>,
        /// The ranks that there should be.
        ranks: usize,
    },
    /// A rank was told another number of ranks.
    #[error("rank {rank} was told that there are {theirs} ranks, and rank 0 that there are {ours}")]
    World {
        /// The rank.
        rank: usize,
        /// The number of ranks that it was told.
        theirs: usize,
        /// The number of ranks that rank 0 was told.
        ours: usize,
    },
    /// Two processes say that they are the same rank, or one says that it is none.
    #[error("a process says that it is rank {rank}, which {why}")]
    Rank {
        /// The rank.
        rank: usize,
        /// The fault of that number, as part of a sentence.
        why: &'static str,
    },
    /// Rank 0 does not let a rank go on.
    #[error("rank 0 says: {}", printable::text(.says))]
    Refused {
        /// Its error.
        says: String,
    },
    /// A program that is not rank 0 listens at rank 0's port, or a rank 0 of another version of this crate.
    #[error("what listens at {} is no rank 0 of this version", printable::text(.at))]
    Stranger {
        /// Host and port.
        at: String,
    },
}

/// The first numbers of a list, which may be of thousands.
fn few(ranks: &[usize]) -> String {
    const MOST: usize = 8;
    let first: Vec<String> = ranks.iter().take(MOST).map(usize::to_string).collect();
    let first = first.join(", ");
    match ranks.len().saturating_sub(MOST) {
        0 => format!("rank {first}"),
        more => format!("rank {first} and {more} more"),
    }
}
