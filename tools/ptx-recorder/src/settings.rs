//! Settings that the program `ptx-record` passes to the library that it starts a program with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The environment variable that carries [`Settings`], as JSON.
pub const VARIABLE: &str = "PTX_RECORD_SETTINGS";

/// Settings for launches, which are options of the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Write a specification of each launch into this directory, for `ptx-sim run`.
    #[arg(long, value_name = "DIRECTORY")]
    pub specs: Option<PathBuf>,
    /// Execute nothing: with --specs, only write launches down.
    #[arg(long, requires = "specs")]
    pub no_run: bool,
    /// How much ordering asynchronous operations may rely on: strict or hardware.
    #[arg(long, default_value_t = Settings::default().profile)]
    pub profile: String,
    /// Allow one thing that the profile does not: a name from the notes of the hardware profile. Can be repeated.
    #[arg(long)]
    pub allow: Vec<String>,
    /// What accesses that nothing orders do, those of a dependent launch to what an earlier one writes included: error,
    /// warn or off.
    #[arg(long, default_value_t = Settings::default().hazards)]
    pub hazards: String,
    /// How warps take turns: fair, random:SEED or starve:SEED.
    #[arg(long, default_value_t = Settings::default().policy)]
    pub policy: String,
    /// When asynchronous operations complete: eager, lazy or random.
    #[arg(long, default_value_t = Settings::default().timing)]
    pub timing: String,
    /// Thread-instructions after which a launch is given up.
    #[arg(long)]
    pub budget: Option<u64>,
    /// Clusters that run at once.
    #[arg(long)]
    pub resident: Option<usize>,
    /// MiB of device memory.
    #[arg(long, value_name = "MIB", default_value_t = Settings::default().memory)]
    pub memory: u64,
    /// The GPU that the program sees, such as sm_90; the highest architecture of its PTX if this is not given.
    #[arg(long)]
    pub device: Option<String>,
    /// Multiprocessors of that GPU.
    #[arg(long, default_value_t = Settings::default().sms)]
    pub sms: u32,
    /// Report reads of bytes that nothing wrote, and go on.
    #[arg(long)]
    pub warn_uninitialised: bool,
    /// The results of ex2, rcp, sin and the like among those that the ISA allows: nearest, low, high or mixed.
    #[arg(long, default_value_t = Settings::default().approximations)]
    pub approximations: String,
    /// Say nothing of launches that succeed.
    #[arg(long)]
    pub quiet: bool,
    /// Plant a fault in the kernels that are launched, by its name in the lists of `ptx-sim mutate --list --json`.
    #[arg(long, value_name = "NAME")]
    pub fault: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            specs: None,
            no_run: false,
            profile: "hardware".into(),
            allow: Vec::new(),
            hazards: "error".into(),
            policy: "fair".into(),
            timing: "eager".into(),
            budget: None,
            resident: None,
            memory: 4 << 10,
            device: None,
            sms: 148,
            warn_uninitialised: false,
            approximations: "nearest".into(),
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

    /// Bytes of device memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.saturating_mul(1 << 20)
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
            approximations: self.approximations.parse()?,
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
