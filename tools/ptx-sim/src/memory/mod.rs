//! Memories: byte regions that know their allocations and which bytes were ever written.

mod allocation;
pub mod layout;
mod region;

pub use allocation::Allocation;
pub(crate) use region::Permuted;
pub use region::Region;

use crate::report::{Nearest, ViolationKind};

named! {
    /// State space of an access, by its name in PTX.
    Space {
        /// Device memory.
        Global "global",
        /// Shared memory of a CTA of the cluster.
        Shared "shared",
        /// A thread's own memory.
        Local "local",
        /// Kernel parameters.
        Param "param",
        /// Constant bank.
        Const "const",
    }
}

/// Why an access failed; the interpreter adds who and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: ViolationKind,
    /// Description of the fault.
    pub message: String,
    /// The address.
    pub address: Option<u64>,
    /// The allocation missed.
    pub nearest: Option<Nearest>,
}

impl Fault {
    /// A fault without an address.
    pub fn new(kind: ViolationKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            address: None,
            nearest: None,
        }
    }

    /// The fault with its address.
    pub fn at(self, address: u64) -> Self {
        let address = Some(address);
        Self { address, ..self }
    }
}

/// How an access behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes as one.
    Atomic,
}

/// Thread and instruction of an access: enough for a hazard checker to order it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor {
    /// Linear CTA of the grid.
    pub cta: u32,
    /// Warp in the CTA.
    pub warp: u32,
    /// Lane in the warp.
    pub lane: u32,
    /// Instruction.
    pub pc: u32,
}

/// An access as hazard checkers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Thread and instruction of the access.
    pub actor: Actor,
    /// Space of the access, after generic addresses are resolved.
    pub space: Space,
    /// Owner of shared memory, as a linear CTA of the grid.
    pub owner: u32,
    /// Address within the space.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// Kind of the access.
    pub kind: AccessKind,
    /// Memory semantics.
    pub order: crate::program::Order,
}

/// Synchronisation that hazard checkers order accesses by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncEvent {
    /// Lanes of a warp were synchronised by a `.sync` instruction.
    Warp {
        /// Linear CTA.
        cta: u32,
        /// Warp.
        warp: u32,
        /// Lanes.
        lanes: u32,
        /// Orders memory accesses, as only `bar.warp.sync` promises.
        memory: bool,
    },
    /// Lanes arrived at a CTA barrier.
    BarrierArrive {
        /// Linear CTA.
        cta: u32,
        /// Warp.
        warp: u32,
        /// Lanes.
        lanes: u32,
        /// Barrier index.
        barrier: u32,
        /// Whether the lanes wait, too.
        waits: bool,
    },
    /// A CTA barrier completed its phase.
    BarrierComplete {
        /// Linear CTA.
        cta: u32,
        /// Barrier index.
        barrier: u32,
    },
    /// Lanes arrived at the cluster barrier.
    ClusterArrive {
        /// Linear CTA.
        cta: u32,
        /// Warp.
        warp: u32,
        /// Lanes.
        lanes: u32,
        /// Whether the arrival is without release semantics.
        relaxed: bool,
    },
    /// Lanes waited for the phase of the cluster barrier that they arrived at.
    ClusterWait {
        /// Linear CTA.
        cta: u32,
        /// Warp.
        warp: u32,
        /// Lanes.
        lanes: u32,
    },
    /// The cluster barrier completed its phase.
    ClusterComplete {
        /// Linear index of the cluster.
        cluster: u32,
    },
    /// A fence.
    Fence {
        /// Kind of the fence.
        kind: crate::program::FenceKind,
        /// Thread and instruction of the fence.
        actor: Actor,
        /// Lanes.
        lanes: u32,
    },
}

/// Sees every access and every synchronisation, in execution order. The seam for hazard checks.
pub trait Observer {
    /// After an access passed its checks. An error stops the run.
    fn access(&mut self, access: &Access) -> Result<(), Fault>;
    /// At a synchronisation.
    fn sync(&mut self, event: &SyncEvent) -> Result<(), Fault>;
}
