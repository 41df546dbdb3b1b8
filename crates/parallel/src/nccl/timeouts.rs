//! How long a communicator waits.

use std::time::Duration;

/// How long a [`Communicator`](super::Communicator) waits for the other ranks. A `Duration` alone is that of both.
///
/// ```
/// use std::time::Duration;
/// use nvfp4_gemv_parallel::nccl::Timeouts;
///
/// // Hosts may start minutes apart; once all have come, a sum takes less than a second.
/// let timeouts = Timeouts {
///     joining: Duration::from_secs(300),
///     waiting: Duration::from_secs(10),
/// };
/// assert_ne!(timeouts, Timeouts::from(Duration::from_secs(300)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The timeout for all to come and be connected, and for their first sum.
    pub joining: Duration,
    /// The timeout for everything later: a call to be enqueued, a stream's work, the others' leaving. Includes NCCL's
    /// connecting at the first call with another number of elements, and all work that was enqueued before the work
    /// that is waited for.
    pub waiting: Duration,
}

impl From<Duration> for Timeouts {
    fn from(both: Duration) -> Self {
        Self {
            joining: both,
            waiting: both,
        }
    }
}

impl Timeouts {
    /// The longest time that dropping a communicator and all of its windows waits for NCCL to end it. That comes after
    /// whatever the drop waits for other ranks. Each window also waits at most so long for its stream's work. All of
    /// that takes milliseconds, unless a graph still has the communicator's collectives.
    pub(super) fn ending(&self) -> Duration {
        self.waiting.min(Duration::from_secs(5))
    }
}
