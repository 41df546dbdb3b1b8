//! Options that a caller asks for, and the choice that was made.

use std::fmt;
#[cfg(all(feature = "device", feature = "tune"))]
use std::time::Duration;

use super::environment::PATH_VARIABLE;
use super::measured::Measurements;
use super::rank::Evidence;
use crate::error::Result;
use crate::kernel::{Call, Config, Kernel};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::types::{GemvPath, VectorAccuracy};
#[cfg(feature = "device")]
use crate::workspace::Workspace;

/// Requests of a caller for a call, beyond the call's operands. The default requests nothing: the fastest kernel that
/// is known of for the problem is taken, unless the environment names a path.
///
/// ```
/// use nvfp4_gemv::{GemvPath, Options};
/// let automatic = Options::new();
/// let on_cuda_cores = Options::new().path(GemvPath::CudaCore);
/// ```
///
/// A request is never replaced by something else: a path, kernel or config that cannot run is an error that says why. A
/// kernel implies its path, a config its kernel; two requests that contradict each other are an error too.
///
/// # Chained launches
///
/// With [`chained`](Self::chained), launches follow each other with programmatic dependent launch, as layers of a model
/// can. From compute capability 9.0 on, a kernel may start before the kernels before it in the stream have ended. The
/// kernel may read codes and block scales of the weights at once, and the ids of a [selection](crate::Weights::select).
/// Then the kernel waits for the kernels before it. Everything else is behind that wait: vectors and their scales,
/// factors, bias, residual, workspace, and every store. Kernels have defaults of their own for this, and some launches
/// of chained calls wait all the same where that was faster. Below compute capability 9.0, and on the CPU, launches do
/// not overlap, and `chained` changes nothing.
///
/// Nothing can check that the weights are complete by then. So a caller who asks for chained launches promises: **no
/// kernel that may still be running when this one starts writes the codes or block scales that it reads, nor its ids,
/// unless these are late (`Weights::late`).** The kernel right before this one is not the only one that may be running:
/// a chained launch may let the next launch start before it has waited itself. So the promise is about all chained
/// launches right before this one in the stream, and about
/// the kernel before the first of those. An ordinary launch, a copy or a memset starts when all work before it
/// has ended: data that was written before one of these is complete.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    pub(crate) path: Option<GemvPath>,
    pub(crate) kernel: Option<Kernel>,
    pub(crate) config: Option<Config>,
    pub(crate) tuned: Option<&'a Measurements>,
    chained: bool,
    batch_invariant: bool,
    vector_accuracy: VectorAccuracy,
    pub(crate) environment: bool,
    #[cfg(feature = "device")]
    pub(crate) workspace: Option<&'a Workspace>,
    #[cfg(all(feature = "device", feature = "tune"))]
    pub(crate) measure: Option<Duration>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            path: None,
            kernel: None,
            config: None,
            tuned: None,
            chained: false,
            batch_invariant: false,
            vector_accuracy: VectorAccuracy::Exact,
            environment: true,
            #[cfg(feature = "device")]
            workspace: None,
            #[cfg(all(feature = "device", feature = "tune"))]
            measure: None,
        }
    }
}

impl<'a> Options<'a> {
    /// Asks for nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for this path, whatever the environment says; `None` stands for any.
    #[must_use]
    pub fn path(mut self, path: impl Into<Option<GemvPath>>) -> Self {
        self.path = path.into();
        self
    }

    /// Asks for this kernel; `None` stands for any.
    #[must_use]
    pub fn kernel(mut self, kernel: impl Into<Option<Kernel>>) -> Self {
        self.kernel = kernel.into();
        self
    }

    /// Asks for this config; `None` stands for the best one that is known of.
    #[must_use]
    pub fn config(mut self, config: impl Into<Option<Config>>) -> Self {
        self.config = config.into();
        self
    }

    /// Gives measurements on this very device, a `tune::Tuned`: for the problems in it, its kernels and configs go
    /// before the built-in tables and the model.
    ///
    /// A table of another GPU is [refused](crate::Error::TunedElsewhere). `tune::Tuned::load` checks whether a table
    /// was made with this driver, version and build. Nobody checks that of a table that was read without `load`. The
    /// configs of such a table are checked before they run, but they may not be the fastest.
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

    /// Asks for results whose bits do not depend on the other vectors of a call: neither on their number nor on what
    /// they are. The field calls this batch invariance. So a text that is generated beside others, or checked several
    /// tokens at once, is the text that is generated alone.
    ///
    /// A vector's products are then added up in an order that follows from the GPU, M, K, L, the type of the vectors,
    /// the layout and alignment of the weights, and the kernel or config that is asked for; on the CPU from K, the type
    /// and the [`Implementation`](crate::cpu::Implementation). Nothing else decides. Built-in tables say which kernel is
    /// the fastest, as if the call had 32 vectors, and not which config, since they know configs by their number of
    /// vectors. Tuned files are not asked. So it is slower than the free choice where that differs.
    ///
    /// On a GPU it is for NVFP4, f16 and bf16 vectors and batches that select no matrix. The kernel may need a
    /// workspace. Where the call gives too little, that is an error, and no other kernel takes the call. Not all
    /// results of two versions of the crate, or of two machines, are equal. Quantising vectors on the way is the
    /// caller's: a global scale of several vectors together depends on all of them.
    ///
    /// # Errors
    /// Of the calls: [`Refusal::BatchInvariant`] where a path, kernel or config that is asked for cannot do this.
    #[must_use]
    pub fn batch_invariant(mut self, asked: bool) -> Self {
        self.batch_invariant = asked;
        self
    }

    /// Whether results [do not depend](Self::batch_invariant) on other vectors.
    pub fn is_batch_invariant(&self) -> bool {
        self.batch_invariant
    }

    /// Allows that f16, bf16 and f32 vectors on a GPU be multiplied as [digits](crate::Nvfp4Vectors::with_digits),
    /// which come so close to them: Blackwell's FP4 tensor cores take no other vectors. A launch in front then makes
    /// the digits in the call's [workspace](Self::workspace). That happens where the kernels that take digits are
    /// expected to be faster, or where the path, kernel or config that is asked for is one of theirs.
    /// [`Choice::digits`] says whether it does. **Nothing of this expectation was measured, and these kernels have run
    /// in a simulator only.**
    ///
    /// A result then differs from that of the vectors themselves by at most
    /// [`reference::digits_error`](crate::reference::digits_error), beside roundings. How digits are divided among
    /// passes is as with digits that the caller makes, and so are the shapes that the kernels refuse. NVFP4 vectors are
    /// multiplied as they are, and so are vectors of calls that are [batch invariant](Self::batch_invariant), that
    /// select matrices, or on the CPU. A vector that holds a NaN or an infinity has results that are NaN. Configs of
    /// digits are not [measured](Self::measure).
    ///
    /// # Errors
    /// Of the calls: [`Refusal::Workspace`] where such a path, kernel or config is asked for and the digits have no
    /// place.
    #[must_use]
    pub fn vector_accuracy(mut self, accuracy: VectorAccuracy) -> Self {
        self.vector_accuracy = accuracy;
        self
    }

    /// The digits that vectors [may be](Self::vector_accuracy) multiplied as.
    pub(super) fn digits(&self) -> Option<usize> {
        self.vector_accuracy.digits()
    }

    /// Gives memory for intermediate data of the call: without it, kernels that need some are not chosen. A call in
    /// host memory needs none.
    #[cfg(feature = "device")]
    #[must_use]
    pub fn workspace(mut self, workspace: impl Into<Option<&'a Workspace>>) -> Self {
        self.workspace = workspace.into();
        self
    }

    /// Asks that the likeliest configs take turns on the device when a call is prepared, for about so long; `None` stands
    /// for no turns. A few milliseconds are enough. What wins is remembered in this process, for all calls of that
    /// problem that ask for this, whoever prepares them: its shape, types, layouts and alignment, the size of its
    /// workspace, and which path or kernel was asked for. It is measured once.
    ///
    /// `PreparedGemvOnDevice::new` and `LinearOnDevice::prepare` measure. Other calls and other ways to prepare measure
    /// nothing, and take what was remembered, or what they would take without this. A call that a layer has prepared
    /// before is not measured again. Nothing is measured, either, where there is one config to take: one that was asked
    /// for, or that a [tuned](Self::tuned) table has for the problem. So a program with a file that has all of its problems
    /// always takes the same configs. `tune::Tuned::remembered` makes such a file of what was remembered.
    ///
    /// The configs take turns with the caller's weights and vectors, and copies of the weights, as many as are needed for
    /// cold caches, on a stream of their own, after all work of the call's stream. Results and intermediate data go into
    /// memory that is freed afterwards: the caller's output and workspace are neither read nor written. All of it takes up
    /// to six times the L2 cache, and as much as output and workspace. Chained calls are measured chained, and then isolated, as long again.
    ///
    /// The budget is for the turns. The first turn of each config is always whole. Before the turns, kernels are loaded,
    /// which feature `jit` may have to compile, and memory is filled.
    ///
    /// # Errors
    /// Of those that prepare: `Error::MeasuredInCapture` where something is to be measured and the call's stream is being
    /// captured, [`Error::Selected`](crate::Error::Selected) for batches that select their matrix, and what CUDA reports,
    /// also where memory is short.
    #[cfg(all(feature = "device", feature = "tune"))]
    #[must_use]
    pub fn measure(mut self, budget: impl Into<Option<Duration>>) -> Self {
        self.measure = budget.into();
        self
    }

    /// The operands' properties, with the workspace that is given here.
    pub(super) fn with_workspace(&self, operands: &Operands) -> Operands {
        #[cfg(feature = "device")]
        if let Some(workspace) = self.workspace {
            return operands.with_workspace(workspace.bytes());
        }
        *operands
    }

    /// A call with the workspace that is given here.
    pub(crate) fn with_its_workspace(&self, call: &Call) -> Result<Call> {
        #[cfg(feature = "device")]
        if let Some(workspace) = self.workspace {
            return call.with_workspace(workspace.raw());
        }
        Ok(*call)
    }

    /// Asks for programmatic dependent launch: ["Chained launches"](Self#chained-launches).
    ///
    /// # Safety
    /// No kernel that may still be running when a launch starts writes the codes or block scales of the launch's weights,
    /// nor their ids, unless these are late (`Weights::late`). ["Chained launches"](Self#chained-launches) says which
    /// kernels may still be running. The promise is for every launch of every call that is given this value or a copy of
    /// it. The promise is also for every later `run` of a `PreparedGemvOnDevice` or `PreparedRawGemv` that was made with the value.
    /// `PreparedGemvOnDevice::run` is a safe function, and relies on this promise. The promise is also for every
    /// replay of a graph that such a launch was captured into. Do not give the value to code that cannot keep this.
    ///
    /// Without the promise there are no such options:
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

    /// These options, chained or not, where nothing is launched: to ask what would be chosen.
    #[cfg(test)]
    pub(super) fn as_if_chained(mut self, chained: bool) -> Self {
        self.chained = chained;
        self
    }
}

/// The path and config that compute a problem, and why they were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The path.
    pub path: GemvPath,
    /// The GPU kernel's config, which says which kernel it is; `None` on the CPU.
    pub config: Option<Config>,
    /// Why; prints as a sentence.
    pub reason: Reason,
    /// The [digits](crate::Nvfp4Vectors::with_digits) that a launch of the call makes of each of its vectors, as
    /// [`Options::vector_accuracy`] allows; `None` where the call's vectors are multiplied as they are given.
    pub digits: Option<usize>,
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
    /// The config, the kernel, or a path that has no other kernel was asked for.
    Asked {
        /// The one who asked.
        by: Asker,
    },
    /// The best kernel of the path that was asked for.
    BestOfPath {
        /// The one who asked.
        by: Asker,
        /// Why, as part of a sentence.
        why: &'static str,
        /// The evidence for that.
        evidence: Evidence,
    },
    /// Host operands are computed where they lie.
    OperandsOnHost,
    /// The fastest kernel, as far as is known.
    Best {
        /// Why, as part of a sentence.
        why: &'static str,
        /// The evidence for that.
        evidence: Evidence,
    },
    /// The order of its sums does not depend on the number of vectors, which was asked for.
    BatchInvariant,
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
            Self::BatchInvariant => f.write_str(
                "the order in which it adds up a vector's products does not depend on the number of vectors",
            ),
            Self::Instead { of, because } => write!(f, "not {of}: {because}"),
        }
    }
}
