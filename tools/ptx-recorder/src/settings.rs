//! Settings that the program `ptx-record` passes to the library that it starts a program with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The environment variable that carries [`Settings`], as JSON.
pub const VARIABLE: &str = "PTX_RECORD_SETTINGS";

/// Settings for launches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Execute them in the simulator.
    pub run: bool,
    /// Write a specification of each into this directory.
    pub specs: Option<PathBuf>,
    /// `strict` or `hardware`.
    pub profile: String,
    /// Names of relaxations allowed beyond the profile.
    pub allow: Vec<String>,
    /// Treatment of accesses that nothing orders: `error`, `warn` or `off`.
    pub hazards: String,
    /// `fair`, `random[:SEED]` or `starve[:SEED]`.
    pub policy: String,
    /// `eager`, `lazy`, `random` or `after:STEPS`.
    pub timing: String,
    /// Thread-instructions after which a launch is given up.
    pub budget: Option<u64>,
    /// Clusters that run at once.
    pub resident: Option<usize>,
    /// Bytes of device memory.
    pub memory: u64,
    /// The GPU that programs see, as `sm_100a`; the highest architecture of the program's PTX if there is none.
    pub device: Option<String>,
    /// Multiprocessors of the GPU.
    pub sms: u32,
    /// Report reads of bytes that nothing wrote, and go on.
    pub warn_uninitialised: bool,
    /// Say nothing of launches that succeed.
    pub quiet: bool,
    /// A fault to plant in every kernel that is launched, by its name in `ptx-sim mutate --list`.
    pub fault: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            run: true,
            specs: None,
            profile: "hardware".into(),
            allow: Vec::new(),
            hazards: "error".into(),
            policy: "fair".into(),
            timing: "eager".into(),
            budget: None,
            resident: None,
            memory: 4 << 30,
            device: None,
            sms: 148,
            warn_uninitialised: false,
            quiet: false,
            fault: None,
        }
    }
}

impl Settings {
    /// Settings of the environment variable, or the default ones where it is not set.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var(VARIABLE) {
            Err(_) => Ok(Self::default()),
            Ok(json) => serde_json::from_str(&json).map_err(|e| format!("{VARIABLE}: {e}")),
        }
    }

    /// Options of the simulator; an error names a setting that is not known.
    pub fn options(&self) -> Result<ptx_sim::Options, String> {
        use ptx_sim::{Options, Uninitialised};
        let mut allow = ptx_sim::models::relaxation::Allowed::NONE;
        for name in &self.allow {
            allow = allow.with(name.parse()?);
        }
        let usual = Options::default();
        Ok(Options {
            policy: self.policy.parse()?,
            timing: self.timing.parse()?,
            profile: self.profile.parse()?,
            allow,
            hazards: self.hazards.parse()?,
            budget: self.budget.unwrap_or(usual.budget),
            resident: self.resident.unwrap_or(usual.resident),
            sms: self.sms,
            uninitialised: match self.warn_uninitialised {
                true => Uninitialised::Warn,
                false => Uninitialised::Error,
            },
            ..usual
        })
    }
}
