//! The document that `bench --json` prints and `cargo xtask bench` reads: this file is part of both
//! programs, so that they cannot disagree. docs/benchmarks.md describes it.
//!
//! Units are in the names. A sample is the mean of one round's launches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Changes whenever a reader of older documents would misread newer ones.
pub(crate) const SCHEMA: &str = "nvfp4-gemv/bench/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) schema: String,
    pub(crate) crate_version: String,
    /// As whoever started the program knows it.
    pub(crate) git_commit: Option<String>,
    /// When the measurement ended, RFC 3339.
    pub(crate) date_utc: String,
    pub(crate) host: Option<String>,
    /// `all`, `quick`, `cpu` or `custom`.
    pub(crate) suite: String,
    pub(crate) device: Device,
    pub(crate) method: Method,
    /// Paths that were slowed down on purpose, and by how many percent of the weights.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) slowed_percent: BTreeMap<String, u32>,
    pub(crate) cases: Vec<Case>,
}

/// What computed. `null` where a field means nothing for the kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// `cuda` or `cpu`.
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) compute_capability: Option<String>,
    pub(crate) multiprocessors: Option<u32>,
    pub(crate) threads: Option<usize>,
    pub(crate) l2_bytes: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    /// The driver's own version.
    pub(crate) driver: Option<String>,
    /// The newest CUDA that the driver supports.
    pub(crate) driver_cuda: Option<String>,
    /// The CUDA runtime that is linked in.
    pub(crate) runtime_cuda: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Method {
    /// Measured rounds; those to warm up are not counted.
    pub(crate) rounds: usize,
    /// What was asked for: every case says what it rotated over.
    pub(crate) cold_bytes: usize,
}

/// One problem, and everything that was measured of it in the same rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) l: usize,
    pub(crate) activation: String,
    /// Layout of all block scales.
    pub(crate) layout: String,
    pub(crate) output_type: String,
    /// Codes and unpadded scales: what GB/s count.
    pub(crate) weight_bytes: usize,
    /// What the launches took turns over.
    pub(crate) rotated_bytes: usize,
    pub(crate) launches_per_round: usize,
    /// A kernel that only reads as many bytes.
    pub(crate) ceiling: Ceiling,
    /// What the library would take; `null` where nothing can run the case.
    pub(crate) picked: Option<Picked>,
    pub(crate) paths: Vec<Measured>,
    /// Paths that cannot run the case.
    pub(crate) skipped: Vec<Skipped>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    pub(crate) median_us: f64,
    pub(crate) gb_per_s: f64,
    pub(crate) samples_us: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Picked {
    pub(crate) path: String,
    pub(crate) reason: String,
}

/// A path's times. The sample of a round belongs to the ceiling's sample of the same round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) path: String,
    /// `isolated` or `chained`.
    pub(crate) mode: String,
    /// The path that the library would take.
    pub(crate) picked: bool,
    /// How the path cut the problem, for people.
    pub(crate) config: String,
    pub(crate) median_us: f64,
    pub(crate) gb_per_s: f64,
    /// The median of the rounds' ceiling time / time: 1 is the ceiling.
    pub(crate) share_of_ceiling: f64,
    pub(crate) samples_us: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) path: String,
    pub(crate) why: String,
}
