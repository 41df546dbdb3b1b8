//! The document `tests/recorded/gpu.json`: test programs write it, and `xtask` compares it with the tree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The document's path in the repository.
pub const PATH: &str = "tests/recorded/gpu.json";

/// Changes whenever a reader of older documents would misread newer ones.
pub const SCHEMA: &str = "nvfp4-gemv/gpu-record/1";

/// Runs of tests, each with its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub schema: String,
    /// One for each suite and kind of GPU: the last one.
    pub runs: Vec<Run>,
}

/// One run of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The test program, such as `kernels`.
    pub program: String,
    /// Arguments that say what to run, such as `gpu`.
    pub arguments: Vec<String>,
    /// The devices that the program saw, by their names.
    pub gpus: Vec<String>,
    /// The driver's own version, where Linux's kernel module says it.
    pub driver: Option<String>,
    /// When the run ended, RFC 3339.
    pub date_utc: String,
    pub passed: u64,
    pub failed: u64,
    /// Names of those that failed, where a test was wrong and not the sources: written by hand, to be run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Tests that said why they cannot run there, and those that nobody asked for.
    pub ignored: u64,
    /// The sources that the program was compiled from: a hash of each folder that decides what runs on a GPU.
    pub sources: BTreeMap<String, String>,
}

/// The NVIDIA driver's own version, where Linux's kernel module says it.
pub fn driver_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        parts.clone().count() >= 2 && parts.all(|part| part.parse::<u32>().is_ok())
    };
    text.split_whitespace().find(is_version).map(str::to_owned)
}

impl Run {
    /// The suite's name: the program, and what it was asked for.
    pub fn suite(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        words.map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

impl Default for Record {
    fn default() -> Self {
        Self {
            schema: SCHEMA.into(),
            runs: Vec::new(),
        }
    }
}

impl Record {
    /// Reads what [`Record::to_json`] made.
    ///
    /// # Errors
    /// Text that is no such document, in words.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match record.schema == SCHEMA {
            true => Ok(record),
            false => Err(format!("schema {:?}, not {SCHEMA:?}", record.schema)),
        }
    }

    pub fn to_json(&self) -> String {
        // Strings and numbers only: nothing that JSON lacks.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Takes a run, in place of an earlier one of the same suite on the same GPUs.
    pub fn add(&mut self, run: Run) {
        let same = |other: &Run| other.suite() == run.suite() && other.gpus == run.gpus;
        self.runs.retain(|other| !same(other));
        self.runs.push(run);
        self.runs.sort_by_key(|run| (run.suite(), run.gpus.clone()));
    }
}
