//! What a caller asks for, and what was chosen.

use std::fmt;

use super::environment::PATH_VARIABLE;
use super::measured::Measurements;
use super::rank::Evidence;
use crate::error::Result;
use crate::kernel::{Call, Config, Kernel};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::types::GemvPath;
#[cfg(feature = "device")]
use crate::workspace::Workspace;

/// What a caller asks of a call beyond its operands. The default asks for nothing: the fastest kernel that is known
/// of for the problem is taken, unless the environment names a path.
///
/// ```
/// use nvfp4_gemv::{GemvPath, Options};
/// let automatic = Options::new();
/// let on_cuda_cores = Options::new().path(GemvPath::CudaCore);
/// ```
///
/// What is asked for is never replaced by something else: a path, kernel or config that cannot run is an
/// error that says why. A kernel implies its path, a config its kernel; two that contradict each other are an
/// error too.
///
/// # Chained launches
///
/// With [`chained`](Self::chained), launches follow each other with programmatic dependent launch, as layers of a
/// model can: from compute capability 9.0 on, a kernel may start before the kernels before it in the stream have
/// ended. It may read codes and block scales of the weights at once, and the ids of a
/// [selection](crate::Weights::select). Then it waits for those kernels, and only after
/// that it reads vectors and row factors, and writes the output. Kernels have defaults of their own for this, and some
/// launches of chained calls wait all the same where that was faster. Below
/// compute capability 9.0, and on the CPU, launches do not overlap, and this changes nothing.
///
/// Nothing can check that the weights are complete by then, so whoever asks for it promises it: **no kernel that may
/// still be running when this one starts writes the codes, block scales or ids that it reads.** The kernel right before it
/// is not the only one that may be. A chained launch may let the next one start before it has waited itself. So the
/// promise is about all chained launches right before this one in the stream, and about the kernel before the first
/// of those. An ordinary launch, a copy or a memset starts when all that is before it has ended: what was written
/// before one of these is complete.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    pub(crate) path: Option<GemvPath>,
    pub(crate) kernel: Option<Kernel>,
    pub(crate) config: Option<Config>,
    pub(crate) tuned: Option<&'a Measurements>,
    chained: bool,
    pub(crate) environment: bool,
    #[cfg(feature = "device")]
    pub(crate) workspace: Option<&'a Workspace>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            path: None,
            kernel: None,
            config: None,
            tuned: None,
            chained: false,
            environment: true,
            #[cfg(feature = "device")]
            workspace: None,
        }
    }
}

impl<'a> Options<'a> {
    /// Asks for nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// On this path, whatever the environment says; `None` stands for any.
    #[must_use]
    pub fn path(mut self, path: impl Into<Option<GemvPath>>) -> Self {
        self.path = path.into();
        self
    }

    /// With this kernel; `None` stands for any.
    #[must_use]
    pub fn kernel(mut self, kernel: impl Into<Option<Kernel>>) -> Self {
        self.kernel = kernel.into();
        self
    }

    /// With this config; `None` stands for the best one that is known of.
    #[must_use]
    pub fn config(mut self, config: impl Into<Option<Config>>) -> Self {
        self.config = config.into();
        self
    }

    /// With what was measured on this very device, a `tune::Tuned`: for the problems in it, its kernels
    /// and configs go before what this crate knows of itself.
    ///
    /// A table of another GPU is [refused](crate::Error::TunedElsewhere). Whether it was made with this driver, version
    /// and build is what `tune::Tuned::load` checks; of a table that was read without it, nobody
    /// does: its configs are checked all the same before they run, but they may not be the fastest.
    #[must_use]
    pub fn tuned(mut self, table: &'a impl AsRef<Measurements>) -> Self {
        self.tuned = Some(table.as_ref());
        self
    }

    /// Without looking at `NVFP4_GEMV_PATH`, which names the path of calls that ask for neither path, kernel nor
    /// config.
    #[must_use]
    pub fn without_environment(mut self) -> Self {
        self.environment = false;
        self
    }

    /// With memory for what the call computes on the way: without it, kernels that need some are not chosen. A call in
    /// host memory needs none.
    #[cfg(feature = "device")]
    #[must_use]
    pub fn workspace(mut self, workspace: impl Into<Option<&'a Workspace>>) -> Self {
        self.workspace = workspace.into();
        self
    }

    /// What is asked about operands, with the workspace that is given here.
    pub(super) fn with_workspace(&self, operands: &Operands) -> Operands {
        #[cfg(feature = "device")]
        if let Some(workspace) = self.workspace {
            return operands.with_workspace(workspace.bytes());
        }
        *operands
    }

    /// A call with the workspace that is given here.
    pub(super) fn with_its_workspace(&self, call: &Call) -> Result<Call> {
        #[cfg(feature = "device")]
        if let Some(workspace) = self.workspace {
            return call.with_workspace(workspace.raw());
        }
        Ok(*call)
    }

    /// With programmatic dependent launch: ["Chained launches"](Self#chained-launches).
    ///
    /// # Safety
    /// For every launch of every call that is given this value or a copy of it, for every later `launch` of a
    /// `PreparedGemvOnDevice` or `PreparedRawGemv` that was made with it (the first is a safe function, and relies on this
    /// promise), and at every replay of a graph that such a launch was captured into: no kernel that may still be running when the launch starts writes the codes,
    /// block scales or ids of its weights. ["Chained launches"](Self#chained-launches) says which kernels those are. Do not
    /// give the value to code that cannot keep this.
    ///
    /// Without the promise there is no such value:
    ///
    /// ```compile_fail,E0133
    /// let options = nvfp4_gemv::Options::new().chained();
    /// ```
    ///
    /// ```compile_fail,E0451
    /// let options = nvfp4_gemv::Options { chained: true, ..Default::default() };
    /// ```
    #[must_use]
    pub unsafe fn chained(mut self) -> Self {
        self.chained = true;
        self
    }

    /// Whether calls are chained.
    pub fn is_chained(&self) -> bool {
        self.chained
    }

    /// The same, chained or not, where nothing is launched: to ask what would be chosen.
    #[cfg(test)]
    pub(super) fn as_if_chained(mut self, chained: bool) -> Self {
        self.chained = chained;
        self
    }
}

/// What computes a problem, and why that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The path.
    pub path: GemvPath,
    /// The GPU kernel's config, which says which kernel it is; `None` on the CPU.
    pub config: Option<Config>,
    /// Why; prints as a sentence.
    pub reason: Reason,
}

impl Choice {
    /// The GPU kernel; `None` on the CPU.
    pub fn kernel(&self) -> Option<Kernel> {
        self.config.map(|config| config.kernel())
    }
}

/// Who asked for a path, a kernel or a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The caller, by [`Options`].
    Caller,
    /// The variable `NVFP4_GEMV_PATH`.
    Environment,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "the caller",
            Self::Environment => PATH_VARIABLE,
        })
    }
}

/// Why a kernel was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It was asked for: the config, the kernel, or a path that has no other kernel.
    Asked {
        /// By whom.
        by: Asker,
    },
    /// Of the path that was asked for, the best kernel.
    BestOfPath {
        /// By whom.
        by: Asker,
        /// Why, as part of a sentence.
        why: &'static str,
        /// What that rests on.
        evidence: Evidence,
    },
    /// Host operands are computed where they lie.
    OperandsOnHost,
    /// It is the fastest, as far as is known.
    Best {
        /// Why, as part of a sentence.
        why: &'static str,
        /// What that rests on.
        evidence: Evidence,
    },
    /// A better kernel cannot run this.
    Instead {
        /// The better kernel.
        of: Kernel,
        /// Why it cannot.
        because: Refusal,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { by } => write!(f, "asked for by {by}"),
            Self::BestOfPath { by, why, evidence } => write!(
                f,
                "the path was asked for by {by}; of its kernels, {why} ({evidence})"
            ),
            Self::OperandsOnHost => f.write_str("the operands are in host memory"),
            Self::Best { why, evidence } => write!(f, "{why} ({evidence})"),
            Self::Instead { of, because } => write!(f, "not {of}: {because}"),
        }
    }
}
