//! Weights that are brought to a device by pieces: what is asked for, and what it took.

use nvfp4_gemv::ScaleLayout;

/// How weights are loaded.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "device"), allow(dead_code, reason = "a device's"))]
pub(crate) struct LoadPlan {
    /// Of the block scales, after the first load.
    pub(crate) layout: ScaleLayout,
    /// Pinned buffers; none where the library says how many.
    pub(crate) buffers: Option<usize>,
    /// Bytes of each, where their number is given.
    pub(crate) piece_bytes: usize,
    /// How often both ways are measured.
    pub(crate) rounds: usize,
}

/// Seconds that loading took.
#[derive(Clone, Debug)]
pub(crate) struct LoadTimes {
    pub(crate) device: String,
    /// Pinned buffers, and bytes of each.
    pub(crate) buffers: usize,
    pub(crate) buffer_bytes: usize,
    /// The first load, with all that belongs to it.
    pub(crate) first: f64,
    /// Of that: making the pinned buffers.
    pub(crate) pinning: f64,
    /// Making memory for the same weights again.
    pub(crate) allocating: f64,
    /// Bytes that the process had more at its peak in the first load than before it.
    pub(crate) grown: Option<usize>,
    /// By pieces, and one plain copy of as many pinned bytes.
    pub(crate) rounds: Vec<(f64, f64)>,
    /// Whether the device has the file's bytes.
    pub(crate) same: bool,
}
