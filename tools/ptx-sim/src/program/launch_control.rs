//! `clusterlaunchcontrol`.

use super::{Addr, Dst, Src};

/// A request to take over a cluster that has not started, and questions about its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LaunchControl {
    /// `try_cancel`; the answer goes to every CTA of the cluster if `everywhere`.
    TryCancel {
        response: Addr,
        mbarrier: Addr,
        everywhere: bool,
    },
    /// `query_cancel.is_canceled`. A response takes two registers.
    IsCanceled { p: u32, response: Src },
    /// `query_cancel.get_first_ctaid`: the coordinates, where the program wants them.
    FirstCta {
        into: [Option<Dst>; 3],
        response: Src,
    },
}
