//! Engines, which compute: the CPU, or a CUDA device. Commands know only [`Engine`]; everything that a device needs is
//! in `cuda.rs`.

mod chain;
mod cpu;
#[cfg(feature = "device")]
mod cuda;
#[cfg(not(feature = "device"))]
#[path = "no_cuda.rs"]
mod cuda;
mod load;
mod memory;
mod mixture;
mod rounds;

use std::borrow::Cow;
use std::time::Duration;

use clap::builder::TypedValueParser;
use half::{bf16, f16};
use nvfp4_gemv::dispatch::measured::Measurements;
use nvfp4_gemv::dispatch::{PATH_VARIABLE, forced_by_environment};
use nvfp4_gemv::kernel::Job;
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::{
    Activation, Choice, Error, FloatType, GemvPath, GlobalScale, Gpu, Kernel, Nvfp4Vectors,
    Options, Refusal, Result, ScaleLayout, Shape, Target, VectorScale, Vectors, Weights, select,
};
use safetensors::Dtype;

pub(crate) use chain::Chain;
#[cfg(feature = "device")]
pub(crate) use cuda::Energy;
pub(crate) use cuda::{compiled_archs, devices, kernels, load};
pub(crate) use load::{LoadPlan, LoadTimes};
pub(crate) use memory::{NotEnoughMemory, check_memory_of};
pub(crate) use mixture::{Mixture, MixtureTimes};
pub(crate) use rounds::{Case, Extent, Ids, Plan, Ready, Way, Ways, Work, rounds};

use crate::report::{count, time};
use crate::shapes;
use nvfp4_gemv_documents::document;

/// The value of `--path`: a path, or none for `auto`.
type PathArg = Option<GemvPath>;

fn path() -> impl TypedValueParser<Value = PathArg> {
    let of = |path: GemvPath, help| (Some(path), path.name(), help);
    shapes::one_of([
        (
            None,
            "auto",
            "The best path this machine has for the problem",
        ),
        of(GemvPath::Cpu, "The CPU"),
        of(GemvPath::CudaCore, "A GPU's CUDA cores"),
        of(GemvPath::TensorCore, "Blackwell's tensor cores"),
    ])
}

/// Options of the commands that compute.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// What computes
    #[arg(long, value_parser = path(), default_value = "auto")]
    path: PathArg,
    /// With this kernel of a GPU, such as `ring`: `nvfp4-gemv info` lists them
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<Kernel>,
}

impl AskArgs {
    /// The option that asks for a path or kernel, or else the variable that does.
    pub(crate) fn asked_by(&self) -> Result<Option<&'static str>> {
        Ok(match (self.kernel, self.path) {
            (Some(_), _) => Some("--kernel"),
            (None, Some(_)) => Some("--path"),
            (None, None) => forced_by_environment()?.map(|_| PATH_VARIABLE),
        })
    }

    pub(crate) fn ask(&self) -> Result<Ask> {
        let path = match (self.path, self.kernel) {
            (None, None) => forced_by_environment()?,
            // A kernel says its path, whatever the environment does.
            (path, _) => path,
        };
        Ok(Ask {
            path,
            kernel: self.kernel,
            by_environment: path != self.path,
            ..Ask::ANY
        })
    }
}

/// A choice of what computes: a path, a kernel, or the library's pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) path: Option<GemvPath>,
    pub(crate) kernel: Option<Kernel>,
    /// Whether it is the environment that asks for `path`.
    by_environment: bool,
    /// Whether launches use programmatic dependent launch.
    pub(crate) is_chained: bool,
    /// Whether results shall not depend on other vectors.
    pub(crate) is_batch_invariant: bool,
    /// Configs that were measured on this machine.
    tuned: Option<TunedTable>,
}

/// A tuned table, which lives as long as the program. A file that is loaded twice gives two tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunedTable(&'static Measurements);

impl TunedTable {
    /// Loads a file that was made on this machine.
    pub(crate) fn load(file: &std::path::Path) -> anyhow::Result<Self> {
        Ok(Self(Box::leak(Box::new(crate::tuned::here(file)?))))
    }
}

impl PartialEq for TunedTable {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for TunedTable {}

impl Ask {
    /// The library's pick.
    pub(crate) const ANY: Self = Self {
        path: None,
        kernel: None,
        by_environment: false,
        is_chained: false,
        is_batch_invariant: false,
        tuned: None,
    };

    pub(crate) fn of_path(path: GemvPath) -> Self {
        Self {
            path: Some(path),
            ..Self::ANY
        }
    }

    pub(crate) fn of_kernel(kernel: Kernel) -> Self {
        Self {
            kernel: Some(kernel),
            ..Self::ANY
        }
    }

    pub(crate) fn tuned(self, table: Option<TunedTable>) -> Self {
        Self {
            tuned: table,
            ..self
        }
    }

    /// This ask for results that do not depend on other vectors, or that may.
    pub(crate) fn batch_invariant(self, is_batch_invariant: bool) -> Self {
        Self {
            is_batch_invariant,
            ..self
        }
    }

    /// This ask for any path and kernel.
    pub(crate) fn of_any(self) -> Self {
        let any = Self::ANY.tuned(self.tuned);
        any.batch_invariant(self.is_batch_invariant)
    }

    /// This ask for any kernel of a path.
    pub(crate) fn on(self, path: GemvPath) -> Self {
        Self {
            path: Some(path),
            ..self.of_any()
        }
    }

    pub(crate) fn chained(self) -> Self {
        Self {
            is_chained: true,
            ..self
        }
    }

    /// The path that it comes down to, where it says.
    pub(crate) fn path(&self) -> Option<GemvPath> {
        self.path.or(self.kernel.map(Kernel::path))
    }

    pub(crate) fn options(&self) -> Options<'static> {
        let asked = Options::new().path(self.path).kernel(self.kernel);
        let options = match self.by_environment {
            true => Options::new(), // it is read again there, so that the reason names it
            false => asked.without_environment(),
        };
        let options = match self.tuned {
            Some(TunedTable(table)) => options.tuned(table),
            None => options,
        };
        let options = options.batch_invariant(self.is_batch_invariant);
        match self.is_chained {
            false => options,
            // SAFETY: copies write the weights of this program, and no kernel does.
            true => unsafe { options.chained() },
        }
    }

    /// Whether a launch waits for the one before, in JSON.
    pub(crate) const fn mode(&self) -> &'static str {
        match self.is_chained {
            false => "isolated",
            true => "chained",
        }
    }

    /// Whether a choice is what this asks for.
    pub(crate) fn is(&self, choice: &Choice) -> bool {
        self.path().is_none_or(|path| path == choice.path)
            && (self.kernel.is_none() || self.kernel == choice.kernel())
    }
}

impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kernel, self.path) {
            (Some(kernel), _) => kernel.fmt(f),
            (None, Some(path)) => path.fmt(f),
            (None, None) => f.write_str("auto"),
        }?;
        f.write_str(if self.is_chained { " chained" } else { "" })?;
        f.write_str(match self.is_batch_invariant {
            true => " batch-invariant",
            false => "",
        })
    }
}

/// Operands in host memory, as an engine needs them: the CPU makes views of them, a device copies
/// them.
#[derive(Clone, Debug)]
pub(crate) struct Operands<'a> {
    pub(crate) shape: Shape,
    /// Weight codes `[L][M][K/2]`.
    pub(crate) codes: Cow<'a, [u8]>,
    /// Weight scales in `layout`.
    pub(crate) scales: Cow<'a, [u8]>,
    pub(crate) layout: ScaleLayout,
    pub(crate) global: GlobalScale,
    /// A factor for each of the M rows.
    pub(crate) row_alpha: Option<Cow<'a, [f32]>>,
    pub(crate) x: Inputs,
    pub(crate) output: FloatType,
}

/// Vectors `[L][N][K]`.
#[derive(Clone, Debug)]
pub(crate) enum Inputs {
    Nvfp4 {
        codes: Vec<u8>,
        scales: Vec<u8>,
        layout: ScaleLayout,
        global: InputScale,
    },
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
}

/// The global scale of NVFP4 vectors.
#[derive(Clone, Debug)]
pub(crate) enum InputScale {
    Shared(GlobalScale),
    /// A multiplier for each vector.
    PerVector(Vec<f32>),
}

impl Inputs {
    pub(crate) fn view(&self) -> Vectors<'_> {
        match self {
            Self::Nvfp4 {
                codes,
                scales,
                layout,
                global,
            } => {
                let global = match global {
                    InputScale::Shared(global) => VectorScale::Shared(*global),
                    InputScale::PerVector(globals) => VectorScale::PerVector(&globals[..]),
                };
                Vectors::Nvfp4(Nvfp4Vectors::new(&codes[..], &scales[..], *layout, global))
            }
            Self::F16(x) => Vectors::of(x),
            Self::Bf16(x) => Vectors::of(x),
            Self::F32(x) => Vectors::of(x),
        }
    }

    #[cfg(feature = "device")]
    pub(crate) fn activation(&self) -> Activation {
        self.view().activation()
    }
}

impl Operands<'_> {
    /// The weights, validated.
    pub(crate) fn weights(&self) -> Result<Weights<'_>> {
        let weights = Weights::new(
            &self.shape,
            &self.codes,
            &self.scales,
            self.layout,
            self.global,
        )?;
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha(alpha),
            None => Ok(weights),
        }
    }
}

/// A result `[L][N][M]`.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
}

impl Values {
    /// A result to be written, filled with what no kernel leaves there.
    pub(crate) fn poisoned(element: FloatType, count: usize) -> Self {
        match element {
            FloatType::F16 => Self::F16(vec![f16::NAN; count]),
            FloatType::Bf16 => Self::Bf16(vec![bf16::NAN; count]),
            FloatType::F32 => Self::F32(vec![f32::NAN; count]),
        }
    }

    pub(crate) fn to_f64(&self) -> Vec<f64> {
        match self {
            Self::F16(y) => y.iter().map(|y| f64::from(*y)).collect(),
            Self::Bf16(y) => y.iter().map(|y| f64::from(*y)).collect(),
            Self::F32(y) => y.iter().map(|y| f64::from(*y)).collect(),
        }
    }

    /// Type and little-endian bytes, for a file.
    pub(crate) fn encoded(&self) -> (Dtype, Vec<u8>) {
        match self {
            Self::F16(y) => (Dtype::F16, y.iter().flat_map(|y| y.to_le_bytes()).collect()),
            Self::Bf16(y) => (
                Dtype::BF16,
                y.iter().flat_map(|y| y.to_le_bytes()).collect(),
            ),
            Self::F32(y) => (Dtype::F32, y.iter().flat_map(|y| y.to_le_bytes()).collect()),
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// The least number of runs, after one to warm up.
    pub(crate) runs: usize,
    /// The least time of all runs together.
    pub(crate) time: Duration,
}

/// The result of an engine's run, and how it was computed.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) y: Values,
    pub(crate) path: GemvPath,
    /// The kernel, on a GPU.
    pub(crate) kernel: Option<Kernel>,
    /// Why this one, as a sentence.
    pub(crate) reason: String,
    /// Most successive f32 roundings of any term: what the bound is derived from.
    pub(crate) roundings: u32,
}

/// Times of a GEMV, in seconds: statistics of samples.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    pub(crate) median: f64,
    /// The least sample.
    pub(crate) min: f64,
    pub(crate) samples: usize,
    pub(crate) of: SampleOf,
}

/// The meaning of a sample of a [`Timing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleOf {
    /// One call's time.
    Call,
    /// The median of so many replays of a CUDA graph of so many launches, divided by the launches.
    #[cfg_attr(
        not(feature = "device"),
        allow(dead_code, reason = "a device's samples")
    )]
    Replays { replays: usize, launches: usize },
}

impl Timing {
    /// Statistics of samples, at least one.
    pub(crate) fn of(mut seconds: Vec<f64>, of: SampleOf) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self {
            median: seconds[seconds.len() / 2],
            min: seconds[0],
            samples: seconds.len(),
            of,
        }
    }

    /// GEMVs that were measured.
    pub(crate) fn runs(&self) -> usize {
        match self.of {
            SampleOf::Call => self.samples,
            SampleOf::Replays { replays, launches } => self.samples * replays * launches,
        }
    }
}

/// The median, and what it is the median of.
impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (median, least) = (time(self.median), time(self.min));
        match self.of {
            SampleOf::Call => {
                let calls = count(self.samples, "call");
                write!(f, "{median} (median of {calls}, the fastest {least})")
            }
            SampleOf::Replays { replays, launches } => {
                let samples = count(self.samples, "sample");
                write!(
                    f,
                    "{median} a launch (median of {samples}, the least {least}; each is the median of {replays} replays \
                     of {launches} launches)"
                )
            }
        }
    }
}

/// The driver and the devices, as `info` shows them.
#[derive(Debug)]
pub(crate) struct Devices {
    /// The driver's and the runtime's CUDA versions, where there are any.
    pub(crate) versions: Option<String>,
    /// Properties of each device, or why there is none.
    pub(crate) found: Result<Vec<Gpu>>,
}

/// A machine's way to compute.
pub(crate) trait Engine {
    /// The device, for people: its name and what matters of it.
    fn device(&self) -> String;

    /// The place of this engine's operands, for the dispatch.
    fn target(&self) -> Target<'_>;

    /// The path, kernel and config that would compute a case.
    fn choose(&self, case: &Case, ask: Ask) -> Result<Choice> {
        select(&case.shape, &case.dispatch(), self.target(), &ask.options())
    }

    /// Computes once, as asked.
    fn compute(&self, operands: &Operands<'_>, ask: Ask) -> Result<Outcome>;

    /// Measures GEMVs, always with the same weights.
    fn time(&self, operands: &Operands<'_>, ask: Ask, budget: Budget) -> Result<Timing> {
        self.repeat(operands, ask, budget).map(|(timing, _)| timing)
    }

    /// Computes the same again and again, measures that, and gives the last result.
    fn repeat(&self, operands: &Operands<'_>, ask: Ask, budget: Budget)
    -> Result<(Timing, Values)>;

    /// Puts a case's operands into memory, on weights that no cache holds, makes `works` ready to take
    /// turns, and gives them to `drive`.
    ///
    /// # Errors
    /// [`NotEnoughMemory`], before anything is allocated; what `drive` returns; what a call reports.
    fn with_ways(
        &self,
        case: &Case,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// Gives `drive` the linear layers of a chain of decoder layers, as [`with_ways`](Self::with_ways) does a case. A
    /// launch of the [`Ways`] is a whole decoder layer. Reads read as many bytes as all of the weights have, in
    /// launches of about 1 GiB.
    ///
    /// # Errors
    /// [`with_ways`](Self::with_ways)'s.
    fn with_chain(
        &self,
        chain: &Chain,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// Times calls of a mixture of experts, chained, whose ids and vectors lie in the device's memory.
    ///
    /// # Errors
    /// [`NotEnoughMemory`], before anything is allocated; where there is no GPU; what a call reports.
    fn mixture(&self, mixture: &Mixture, plan: &Plan) -> anyhow::Result<MixtureTimes>;

    /// The version of cuBLAS that [`Work::Cublas`] calls; or why there is none.
    fn cublas(&self) -> Result<String, String>;

    /// Why an automatic choice came to the CPU, where it did.
    fn why_not_gpu(&self) -> Option<&str> {
        None
    }

    /// Reasons why figures of power and energy are missing, a sentence each.
    fn energy_notes(&self) -> Vec<String>;

    /// The kernels that only read: the fastest at a size is the ceiling. None is how the CPU reads.
    fn reads(&self) -> Vec<Option<ReadConfig>>;

    /// The device, for a document of measurements.
    fn describe(&self) -> document::Device;

    /// The paths that this engine may run, best first.
    fn paths(&self) -> &'static [GemvPath];
}

/// The engine for a request, and, where a GPU was looked for and not found, why not.
///
/// # Errors
/// A GPU path was asked for and there is no GPU to run it: says why.
pub(crate) fn open(path: Option<GemvPath>) -> Result<(Box<dyn Engine>, Option<Error>)> {
    match path {
        Some(GemvPath::Cpu) => Ok((Box::new(cpu::Cpu::new(None)), None)),
        Some(path) => Ok((cuda::open(path)?, None)),
        None => match cuda::open(GemvPath::CudaCore) {
            Ok(engine) => Ok((engine, None)),
            Err(why) => Ok((Box::new(cpu::Cpu::new(Some(no_gpu(&why)))), Some(why))),
        },
    }
}

/// Whether the CPU may take a GPU's place.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct GpuArgs {
    /// Fail where no GPU can be used, instead of computing on the CPU
    #[arg(long)]
    require_gpu: bool,
}

impl GpuArgs {
    /// The engine for a request.
    ///
    /// # Errors
    /// As [`open`]'s; the CPU where a GPU is required.
    pub(crate) fn open(self, ask: Ask) -> anyhow::Result<Box<dyn Engine>> {
        let (engine, why) = open(ask.path())?;
        if self.require_gpu && engine.paths() == [GemvPath::Cpu] {
            match why {
                Some(why) => anyhow::bail!("no GPU can be used: {}", reason_of(&why)),
                None => anyhow::bail!("--require-gpu, and the path cpu is asked for"),
            }
        }
        Ok(engine)
    }
}

/// Why the automatic choice takes the CPU.
pub(crate) fn no_gpu(why: &Error) -> String {
    format!("not cuda-core: {}", reason_of(why))
}

/// Why there is no GPU, without saying twice which path that concerns.
pub(crate) fn reason_of(error: &Error) -> String {
    match error {
        Error::PathUnavailable { reason, .. } => reason.to_string(),
        other => other.to_string(),
    }
}

/// Whether a kernel can compute a problem that every kernel takes.
pub(crate) fn runs_on(kernel: Kernel, gpu: &Gpu) -> Result<Result<(), Refusal>> {
    Ok(kernel.available(&Job {
        shape: &Shape::matrix(128, 256)?,
        operands: &nvfp4_gemv::Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4),
        gpu,
        chained: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of samples that are medians themselves, no single call's time is known.
    #[test]
    fn a_time_says_what_it_is_the_median_of() {
        let seconds = || vec![3e-6, 1e-6, 2e-6];
        let calls = Timing::of(seconds(), SampleOf::Call);
        assert_eq!(calls.runs(), 3);
        assert_eq!(
            calls.to_string(),
            "2.00 us (median of 3 calls, the fastest 1.00 us)"
        );
        let replays = SampleOf::Replays {
            replays: 11,
            launches: 40,
        };
        let launches = Timing::of(seconds(), replays);
        assert_eq!(launches.runs(), 3 * 11 * 40);
        assert_eq!(
            launches.to_string(),
            "2.00 us a launch (median of 3 samples, the least 1.00 us; each is the median of 11 replays of 40 launches)"
        );
    }
}
