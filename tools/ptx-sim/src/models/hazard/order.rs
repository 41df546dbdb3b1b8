//! Rules that may order two operations: profiles, pipelines, fences.

named! {
    /// How much ordering to assume.
    #[derive(Default)]
    Profile {
        /// Only what the ISA guarantees.
        #[default]
        Strict "strict",
        /// The ISA's guarantees, and all that public kernels rely on: every [`super::super::relaxation::Relaxation`].
        Hardware "hardware",
    }
}

/// Class of an asynchronous operation, as far as ordering goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpClass {
    /// Not an asynchronous operation, or one that forms no pipeline: `cp.async.bulk`.
    Plain,
    /// One through the generic proxy: `cp.async`, `st.async`, `red.async`. Its completion carries
    /// no proxy fence.
    Copy,
    /// `tcgen05.mma`; the key names accumulator and shape, equal keys are pipelined.
    Mma(u64),
    /// `tcgen05.cp`, with its shape being .4x256b or not.
    Cp {
        /// `.4x256b`
        is_4x256b: bool,
    },
    /// `tcgen05.shift`.
    Shift,
    /// `tcgen05.ld` or `.st`.
    LdSt,
}

impl OpClass {
    /// An operation on tensor memory, or ordered with those.
    pub(super) fn tensor(self) -> bool {
        !matches!(self, OpClass::Plain | OpClass::Copy)
    }

    /// "Pipelined tcgen05 Instructions": is `self` then `later` executed in issue order?
    pub(super) fn pipelined(self, later: OpClass) -> bool {
        match (self, later) {
            (OpClass::Mma(a), OpClass::Mma(b)) => a == b,
            (OpClass::Cp { .. } | OpClass::Shift, OpClass::Mma(_)) => true,
            (OpClass::Shift, OpClass::Cp { is_4x256b }) => is_4x256b,
            (OpClass::Mma(_), OpClass::Shift) => true,
            _ => false,
        }
    }
}

/// Fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fence {
    /// `fence.proxy.async`.
    ProxyAsync,
    /// `fence.mbarrier_init.release`: later relaxed operations release the thread's
    /// `mbarrier.init`s.
    MbarrierInit,
    /// `fence.release`: later relaxed operations release.
    Release,
    /// `fence.acquire`: earlier relaxed operations acquire.
    Acquire,
    /// `fence.acq_rel`.
    AcqRel,
    /// `fence.sc`, `membar`: and they synchronise with each other.
    Sc,
    /// `tcgen05.fence::before_thread_sync`.
    Tcgen05Before,
    /// `tcgen05.fence::after_thread_sync`.
    Tcgen05After,
}

/// Memory semantics of a synchronising operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sem {
    /// `.release` or `.acquire`.
    Strong,
    /// `.relaxed`: orders nothing but tcgen05 operations, unless a fence completes the pattern.
    Relaxed,
}
