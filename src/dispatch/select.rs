//! The choice.

use super::digits::{self, Digits};
use super::environment;
use super::lately::lately;
use super::measured::Measurements;
use super::model::{self, Way};
use super::options::{Asker, Choice, Options, Reason};
use super::rank::{Estimate, Evidence, Tables};
#[cfg(all(feature = "device", feature = "tune"))]
use super::remembered;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::plan::Plan;
use crate::kernel::{Call, Checked, Config, Job, Kernel};
use crate::operands::{Alignment, Operands};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::types::GemvPath;

/// The memory that the operands lie in, and the machine that computes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// Host memory.
    Host,
    /// The memory of this GPU.
    Gpu(&'a Gpu),
}

/// Why a kernel that bundles batches comes first.
const BUNDLES: &str = "matrices that several batches select are read once";

/// Picks the kernel and its config for a problem, or checks that the path, kernel or config that was asked for can
/// compute the problem.
///
/// # Errors
/// [`Error::PathUnavailable`], [`Error::KernelUnavailable`] or [`Error::Config`] where the request, or every kernel,
/// cannot compute the problem. [`Error::Contradiction`] for options that contradict each other.
/// [`Error::TunedElsewhere`] for measurements of another GPU. [`Error::UnknownPath`] where `NVFP4_GEMV_PATH` names
/// none.
///
/// ```
/// use nvfp4_gemv::dispatch::{Target, select};
/// use nvfp4_gemv::{Activation, GemvPath, Gpu, Operands, Options, ScaleLayout, Shape};
/// let shape = Shape::matrix(4096, 4096)?;
/// let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
/// let hopper = Gpu::of_compute_capability((9, 0), "80;90a");
/// let target = Target::Gpu(&hopper);
/// let choice = select(&shape, &operands, target, &Options::new())?;
/// println!("{} with {:?}: {}", choice.path, choice.config, choice.reason);
///
/// let on_tensor_cores = Options::new().path(GemvPath::TensorCore);
/// let error = select(&shape, &operands, target, &on_tensor_cores).unwrap_err();
/// assert!(error.to_string().contains("compute capability 9.0"));
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn select(
    shape: &Shape,
    operands: &Operands,
    target: Target<'_>,
    options: &Options<'_>,
) -> Result<Choice> {
    let asked = Asked::of(options)?;
    let gpu = match target {
        Target::Host => return asked.on_host(),
        Target::Gpu(gpu) => gpu,
    };
    let operands = options.with_workspace(operands);
    let job = Job::new(shape, &operands, gpu).chained(options.is_chained());
    Ok(asked.allowed(&job, options)?.choice())
}

/// Picks the kernel and its config for a call in a GPU's memory, as [`select`] does, and plans its launches. A call
/// that is not prepared does no more than this before it touches CUDA. A workspace of the options takes the place of
/// the call's.
///
/// # Errors
/// As [`select`]'s; a workspace that [overlaps](Call::with_workspace) an operand.
///
/// ```
/// use nvfp4_gemv::dispatch::plan;
/// use nvfp4_gemv::kernel::Call;
/// use nvfp4_gemv::{Activation, Gpu, Options, ScaleLayout, Shape};
/// let shape = Shape::matrix(4096, 4096)?;
/// let call = Call::nowhere(&shape, Activation::Nvfp4, ScaleLayout::Linear, 32);
/// let hopper = Gpu::of_compute_capability((9, 0), "90a");
/// let (choice, plan) = plan(&call, &hopper, &Options::new())?;
/// println!("{:?}: {}", choice.config, plan.launches()[0].entry);
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn plan(call: &Call, gpu: &Gpu, options: &Options<'_>) -> Result<(Choice, Plan)> {
    let asked = Asked::of(options)?;
    let call = &options.with_its_workspace(call)?;
    let operands = call.operands();
    let job = Job::new(call.shape(), &operands, gpu).chained(options.is_chained());
    let chosen = asked.allowed(&job, options)?;
    let plan = match &chosen.digits {
        None => chosen.checked.plan(call, gpu),
        Some(digits) => digits.plan(&chosen.checked, call, &job),
    };
    Ok((chosen.choice(), plan))
}

/// Share, of that of the first kernel, below which a kernel is not worth measuring when a call is prepared.
#[cfg(all(feature = "device", feature = "tune"))]
const FAR: f64 = 0.7;
/// The same where a choice is judged: the estimates themselves may be wrong.
#[cfg(all(feature = "device", feature = "tune"))]
const FAR_RIVAL: f64 = 0.45;

/// What is to be measured before a call is prepared.
#[cfg(all(feature = "device", feature = "tune"))]
#[derive(Debug)]
pub(crate) struct ToMeasure {
    /// The kernels that there are to choose from.
    pub(crate) among: remembered::Among,
    /// The configs for launches that wait, the likeliest first.
    pub(crate) isolated: Vec<Config>,
    /// Those for launches that follow each other with programmatic dependent launch, where these are asked for. Each
    /// kernel of theirs is among the isolated ones, too.
    pub(crate) chained: Vec<Config>,
}

/// What is to be measured before a call is prepared, with its workspace: nothing where the caller does not [ask for
/// it](Options::measure), where a file or this process knows the fastest config, or where there are no two to choose from.
/// At most `most` configs a kind of launches, and one more of each kernel.
///
/// # Errors
/// As [`select`]'s.
#[cfg(all(feature = "device", feature = "tune"))]
pub(crate) fn to_measure(
    call: &Call,
    gpu: &Gpu,
    options: &Options<'_>,
    most: usize,
) -> Result<Option<ToMeasure>> {
    let asked = Asked::of(options)?;
    let (shape, operands) = (call.shape(), call.operands());
    let job = Job::new(shape, &operands, gpu).chained(options.is_chained());
    if let Some(table) = options.tuned {
        made_on(table, gpu)?;
    }
    let known = remembered::with(&job, asked.kernels(), |_| ()).is_some();
    if shape.is_empty() || known || !asked.may_measure(&job, options) {
        return Ok(None);
    }
    let likeliest =
        |job: &Job<'_>| Tables::of(job, None).likeliest(|one| asked.takes(one), most, FAR);
    let chained = match remembered::overlaps(&job) {
        true => likeliest(&job),
        false => Vec::new(),
    };
    let job = job.chained(false);
    let mut isolated = likeliest(&job);
    for kernel in chained.iter().map(Config::kernel) {
        if isolated.iter().all(|config| config.kernel() != kernel) {
            let checked = Tables::of(&job, None).config(kernel);
            isolated.extend(checked.map(|checked| checked.config()));
        }
    }
    let among = remembered::Among::new(&job, asked.path, asked.kernel);
    Ok(
        (isolated.len().max(chained.len()) > 1).then_some(ToMeasure {
            among,
            isolated,
            chained,
        }),
    )
}

/// The choice for a call that asks for nothing, and the configs that may be faster, the likeliest first, at most `most`
/// with the choice.
///
/// # Errors
/// As [`select`]'s.
#[cfg(all(feature = "device", feature = "tune"))]
pub(crate) fn rivals(job: &Job<'_>, most: usize) -> Result<(Choice, Vec<Config>)> {
    let (checked, reason) = Asked::of(&Options::new().without_environment())?.choose(job, None)?;
    let mut configs = Tables::of(job, None).likeliest(|_| true, most, FAR_RIVAL);
    let config = checked.config();
    configs.retain(|rival| *rival != config);
    configs.truncate(most.saturating_sub(1));
    let chosen = Chosen {
        checked,
        reason,
        digits: None,
    };
    Ok((chosen.choice(), configs))
}

/// The configs that are likely to be the fastest of a job, among those that are asked for, for a test.
#[cfg(all(test, feature = "device", feature = "tune"))]
pub(super) fn likeliest(job: &Job<'_>, options: &Options<'_>, most: usize) -> Result<Vec<Config>> {
    let asked = Asked::of(options)?;
    Ok(Tables::of(job, None).likeliest(|one| asked.takes(one), most, FAR))
}

/// Bytes of a workspace that a call would use: those of the kernel and config that [`select`] picks where there is
/// always enough. 0 where the best one needs none.
///
/// # Errors
/// As [`select`]'s, on this GPU.
///
/// ```
/// use nvfp4_gemv::dispatch::workspace_bytes;
/// use nvfp4_gemv::{Activation, Dims, Gpu, Kernel, Operands, Options, ScaleLayout, Shape};
/// let shape = Shape::new(Dims { m: 14336, n: 64, k: 4096, l: 1 })?;
/// let operands = Operands::new(Activation::F16, ScaleLayout::Linear);
/// let hopper = Gpu::of_compute_capability((9, 0), "90a");
/// let packed = Options::new().kernel(Kernel::Packed);
/// // 64 vectors, two bytes an element; and sums.
/// assert!(workspace_bytes(&shape, &operands, &hopper, &packed)? > 64 * 4096 * 2);
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn workspace_bytes(
    shape: &Shape,
    operands: &Operands,
    gpu: &Gpu,
    options: &Options<'_>,
) -> Result<u64> {
    used_bytes(shape, operands, gpu, options, |asked, job| {
        Ok(Some(asked.allowed(job, options)?))
    })
}

/// Bytes of a workspace that a call would use if it bundles batches that select the same matrix; 0 where it does not.
///
/// # Errors
/// As [`select`]'s, on this GPU.
#[cfg(feature = "device")]
pub(crate) fn bundling_bytes(
    shape: &Shape,
    operands: &Operands,
    gpu: &Gpu,
    options: &Options<'_>,
) -> Result<u64> {
    used_bytes(shape, operands, gpu, options, |asked, job| {
        Ok(asked.bundling(job).map(|bundling| bundling.into()))
    })
}

/// Bytes of a workspace that a call would use with the config that `choose` picks where there is always enough.
fn used_bytes(
    shape: &Shape,
    operands: &Operands,
    gpu: &Gpu,
    options: &Options<'_>,
    choose: impl FnOnce(&Asked, &Job<'_>) -> Result<Option<Chosen>>,
) -> Result<u64> {
    let operands = operands.with_workspace(u64::MAX);
    let job = Job::new(shape, &operands, gpu).chained(options.is_chained());
    let chosen = choose(&Asked::of(options)?, &job)?;
    Ok(chosen.map_or(0, |chosen| {
        let of_kernel = chosen.checked.workspace_bytes(gpu);
        chosen.digits.map_or(of_kernel, |of| of.and(of_kernel))
    }))
}

/// Whether a call has the same kernel and config, and so the same bits, where its NVFP4 vectors are quantised when they
/// are read.
#[cfg(feature = "device")]
pub(crate) fn is_same_on_read(
    shape: &Shape,
    operands: &Operands,
    gpu: &Gpu,
    options: &Options<'_>,
) -> bool {
    let config = |on_read| {
        let operands = Operands {
            on_read,
            ..*operands
        };
        let choice = select(shape, &operands, Target::Gpu(gpu), options);
        choice.ok()?.config
    };
    let read = config(true);
    read.is_some() && read == config(false)
}

/// The path, kernel and config that a caller or the environment asks for. A config implies its kernel, a kernel its
/// path.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Asked {
    path: Option<GemvPath>,
    kernel: Option<Kernel>,
    config: Option<Config>,
    by: Asker,
    batch_invariant: bool,
}

/// Vectors of the call that kernels are ranked for where their number shall decide nothing.
const RANKED_FOR: usize = 32;

impl Asked {
    fn of(options: &Options<'_>) -> Result<Self> {
        let of_config = options.config.map(|config| config.kernel());
        if let (Some(owner), Some(asked)) = (of_config, options.kernel)
            && owner != asked
        {
            return Err(Error::Contradiction {
                given: "the config",
                owner: owner.name(),
                asked: asked.name(),
            });
        }
        let kernel = options.kernel.or(of_config);
        if let (Some(kernel), Some(asked)) = (kernel, options.path)
            && kernel.path() != asked
        {
            return Err(Error::Contradiction {
                given: kernel.name(),
                owner: kernel.path().name(),
                asked: asked.name(),
            });
        }
        let (path, by) = match options.path.or(kernel.map(Kernel::path)) {
            None if options.environment => (environment::forced()?, Asker::Environment),
            path => (path, Asker::Caller),
        };
        Ok(Self {
            path,
            kernel,
            config: options.config,
            by,
            batch_invariant: options.is_batch_invariant(),
        })
    }

    fn on_host(&self) -> Result<Choice> {
        let because = match cfg!(feature = "device") {
            true => Refusal::OperandsOnHost,
            false => Refusal::BuiltWithoutCuda,
        };
        let reason = match self.path {
            None => Reason::OperandsOnHost,
            Some(GemvPath::Cpu) => Reason::Asked { by: self.by },
            Some(path) => return Err(self.unavailable(path, because)),
        };
        Ok(Choice {
            path: GemvPath::Cpu,
            config: None,
            reason,
            digits: None,
        })
    }

    /// As [`on_gpu`](Self::on_gpu), or with digits in the place of the job's vectors: where the options allow that, and
    /// either what is asked for takes NVFP4 vectors alone, or it is expected to be faster.
    fn allowed(&self, job: &Job<'_>, options: &Options<'_>) -> Result<Chosen> {
        let digits = match options.digits() {
            Some(digits) if digits::can_be_made(job) && !self.batch_invariant => digits,
            _ => return self.on_gpu(job, options).map(Chosen::from),
        };
        let share = |job: &Job<'_>, chosen: &Chosen| {
            let tuned = options.tuned.map(|table| (table, Evidence::Tuned));
            let estimate = Tables::of(job, tuned).estimate(chosen.checked.config().kernel());
            estimate.map_or(0.0, |estimate| estimate.share)
        };
        if self.path == Some(GemvPath::TensorCore) {
            return self.with_digits(job, options, digits, |_, chosen| chosen);
        }
        let as_they_are = self.on_gpu(job, options).map(Chosen::from);
        let bytes = job.shape.weight_bytes() as f64;
        let mut seconds = f64::INFINITY; // in bytes that are read meanwhile
        let with_digits = self.with_digits(job, options, digits, |job, chosen| {
            seconds = bytes / share(job, &chosen) + digits::bytes_meanwhile(job.gpu);
            chosen
        });
        match (as_they_are, with_digits) {
            (Ok(chosen), Ok(_)) if bytes / share(job, &chosen) <= seconds => Ok(chosen),
            (_, Ok(chosen)) => Ok(chosen),
            (as_they_are, Err(_)) => as_they_are,
        }
    }

    /// The choice for digits in the place of the job's vectors.
    fn with_digits(
        &self,
        job: &Job<'_>,
        options: &Options<'_>,
        digits: usize,
        then: impl FnOnce(&Job<'_>, Chosen) -> Chosen,
    ) -> Result<Chosen> {
        let refused = |refusal| self.unavailable(GemvPath::TensorCore, refusal);
        let digits = Digits::of(job.shape, digits).map_err(refused)?;
        let operands = digits.operands(job).map_err(refused)?;
        let of_digits = Job {
            operands: &operands,
            ..*job
        };
        let given = job.operands.workspace;
        let chosen = self
            .on_gpu(&of_digits, options)
            .map_err(|error| match error {
                Error::KernelUnavailable { kernel, reason } => Error::KernelUnavailable {
                    kernel,
                    reason: digits.counted(reason, given),
                },
                Error::PathUnavailable { path, reason } => Error::PathUnavailable {
                    path,
                    reason: digits.counted(reason, given),
                },
                Error::Config { config, reason } => Error::Config {
                    config,
                    reason: digits.counted(reason, given),
                },
                other => other,
            })?;
        let chosen = Chosen {
            digits: Some(digits),
            ..chosen.into()
        };
        Ok(then(&of_digits, chosen))
    }

    fn on_gpu(&self, job: &Job<'_>, options: &Options<'_>) -> Result<(Checked, Reason)> {
        if self.path == Some(GemvPath::Cpu) {
            return Err(self.unavailable(GemvPath::Cpu, Refusal::OperandsOnDevice));
        }
        let tuned = options.tuned.map(|table| made_on(table, job.gpu));
        let tuned = tuned.transpose()?;
        #[cfg(all(feature = "device", feature = "tune"))]
        if self.may_measure(job, options) {
            let choose = |table: &_| self.choose(job, Some((table, Evidence::Prepared)));
            if let Some(choice) = remembered::with(job, self.kernels(), choose) {
                return choice;
            }
        }
        match tuned {
            _ if self.batch_invariant => lately(self, job, || self.invariant(job)),
            Some(table) => self.choose(job, Some((table, Evidence::Tuned))),
            None => lately(self, job, || self.choose(job, None)),
        }
    }

    /// Whether what was measured when calls were prepared counts for a job: that is asked for, and neither the caller nor
    /// a tuned table says what to take.
    #[cfg(all(feature = "device", feature = "tune"))]
    fn may_measure(&self, job: &Job<'_>, options: &Options<'_>) -> bool {
        let tuned = |table: &Measurements| table.find(job.shape, job.operands).is_some();
        let is_free = self.config.is_none() && !self.batch_invariant;
        options.measure.is_some() && is_free && !options.tuned.is_some_and(tuned)
    }

    /// The path and the kernel that are asked for.
    #[cfg(all(feature = "device", feature = "tune"))]
    fn kernels(&self) -> (Option<GemvPath>, Option<Kernel>) {
        (self.path, self.kernel)
    }

    /// Whether a kernel is among those that are asked for.
    fn takes(&self, kernel: Kernel) -> bool {
        self.kernel.is_none_or(|asked| asked == kernel)
            && self.path.is_none_or(|asked| asked == kernel.path())
    }

    /// The kernel that bundles batches of the same matrix, where that is worth it and nothing better is known.
    fn bundling(&self, job: &Job<'_>) -> Option<(Checked, Reason)> {
        let kernels = Kernel::ALL.iter().filter(|&&kernel| self.takes(kernel));
        let checked = kernels.copied().find_map(|kernel| kernel.bundles(job))?;
        let (by, why, evidence) = (self.by, BUNDLES, Evidence::Modelled);
        let reason = match (self.path, self.kernel) {
            (None, _) => Reason::Best { why, evidence },
            (Some(_), None) => Reason::BestOfPath { by, why, evidence },
            (Some(_), Some(_)) => Reason::Asked { by },
        };
        Some((checked, reason))
    }

    fn choose(
        &self,
        job: &Job<'_>,
        tuned: Option<(&Measurements, Evidence)>,
    ) -> Result<(Checked, Reason)> {
        if self.config.is_none()
            && tuned.is_none()
            && let Some(bundling) = self.bundling(job)
        {
            return Ok(bundling);
        }
        match self.config {
            Some(config) => match config.checked(job) {
                Ok(checked) => Ok((checked, Reason::Asked { by: self.by })),
                Err(reason) => Err(refused(&config, reason)),
            },
            None => self.best(&Tables::of(job, tuned)),
        }
    }

    /// The config that is asked for, or else that of the kernel which is the fastest for some number of vectors, of
    /// kernels that have a config whose sums are [batch invariant](Options::batch_invariant). What is said here of the
    /// job does not depend on its number of vectors, on what else is measured of it, or on its workspace.
    fn invariant(&self, job: &Job<'_>) -> Result<(Checked, Reason)> {
        if let Some(config) = self.config {
            let checked =
                config
                    .checked(job)
                    .and_then(|checked| match config.is_batch_invariant(job) {
                        true => Ok(checked),
                        false => Err(Refusal::BatchInvariant),
                    });
            let reason = Reason::Asked { by: self.by };
            return (checked.map(|checked| (checked, reason)))
                .map_err(|refusal| refused(&config, refusal));
        }
        let shape = job.shape.with_vectors(RANKED_FOR)?;
        // What the vectors of this call happen to be like, other than their type, decides nothing either.
        let operands = Operands {
            alignment: Alignment {
                codes: job.operands.alignment.codes,
                scales: job.operands.alignment.scales,
                ..Alignment::BEST
            },
            select: job.operands.select,
            on_read: job.operands.on_read,
            ..Operands::new(job.operands.activation, job.operands.weight_layout)
        };
        let operands = operands.with_workspace(u64::MAX);
        let some = Job {
            shape: &shape,
            operands: &operands,
            chained: false,
            ..*job
        };
        let tables = Tables::of(&some, None).by_measurements();
        let of = |kernel: Kernel, job: &Job<'_>| kernel.batch_invariant_config(job);
        let ranked = tables.rank(|kernel| self.takes(kernel) && of(kernel, &some).is_ok());
        let ranked: Vec<Kernel> = ranked.map(|(kernel, _)| kernel).collect();
        // First those that take so many vectors in a pass.
        let in_a_pass = |kernel: &&Kernel| kernel.most_vectors() as usize >= RANKED_FOR;
        let first = ranked.iter().find(in_a_pass).or(ranked.first());
        let Some(&kernel) = first else {
            return Err(self.not_invariant(&some));
        };
        // Kernels with the same order of sums give the same bits. The model says which of them is the fastest for the
        // vectors of this call.
        let order = |kernel: Kernel| of(kernel, &some).ok()?.chain(&some);
        let alike = |other: &Kernel| {
            *other == kernel || order(kernel).is_some() && order(*other) == order(kernel)
        };
        let with = |kernel: Kernel| {
            let operands = &operands;
            let config = of(kernel, &Job { operands, ..*job })?;
            config.checked(job)
        };
        let share = |checked: &Checked| {
            let way = Way::of(&checked.config(), job);
            model::share(&way, job.shape, job.operands)
        };
        let alike = ranked.iter().copied().filter(alike);
        let checked = alike.filter_map(|one| with(one).ok());
        let fastest = checked.max_by(|a, b| share(a).total_cmp(&share(b)));
        fastest
            .map(|checked| (checked, Reason::BatchInvariant))
            .ok_or_else(|| Error::KernelUnavailable {
                kernel: kernel.name(),
                reason: with(kernel).expect_err("it is one of them"),
            })
    }

    /// The error where no kernel of those that are asked for has a batch invariant config: why the kernel, or those of
    /// the path, cannot run at all, or that they have none.
    fn not_invariant(&self, job: &Job<'_>) -> Error {
        let path = self.path.unwrap_or(GemvPath::CudaCore);
        let mut runs = Kernel::ALL.iter().filter(|&&kernel| self.takes(kernel));
        if runs.any(|kernel| kernel.available(job).is_ok()) {
            return self.unavailable(path, Refusal::BatchInvariant);
        }
        match self.best(&Tables::of(job, None)) {
            Err(error) => error,
            Ok(_) => self.unavailable(path, Refusal::BatchInvariant),
        }
    }

    /// The fastest kernel that can compute the job, of those that were asked for.
    fn best(&self, tables: &Tables<'_>) -> Result<(Checked, Reason)> {
        let among = |kernel: Kernel| self.takes(kernel);
        let mut instead = None;
        for (kernel, estimate) in tables.contenders(among) {
            match (tables.config(kernel), estimate) {
                (Ok(checked), Some(Estimate { evidence, .. })) => {
                    let why = match evidence {
                        Evidence::Modelled => kernel.why(),
                        _ => "the fastest that can run this",
                    };
                    let by = self.by;
                    let count = || Kernel::ALL.iter().filter(|&&one| among(one)).count();
                    let reason = match self.path {
                        None => instead.unwrap_or(Reason::Best { why, evidence }),
                        Some(_) if count() == 1 => Reason::Asked { by },
                        Some(_) => Reason::BestOfPath { by, why, evidence },
                    };
                    return Ok((checked, reason));
                }
                // The best kernel's reason says most.
                (Err(because), Some(_)) => {
                    instead.get_or_insert(Reason::Instead {
                        of: kernel,
                        because,
                    });
                }
                (_, None) => {}
            }
        }
        let path = self.path.unwrap_or(GemvPath::CudaCore);
        // The kernel of each path that takes the most problems; of several such kernels the one for this GPU.
        let of_path = |kernel: &Kernel| match self.kernel {
            Some(asked) => *kernel == asked,
            None => kernel.path() == path && kernel.takes_most(),
        };
        let refusals = Kernel::ALL.iter().copied().filter(of_path);
        let refusals = refusals.filter_map(|kernel| tables.config(kernel).err());
        let refusal = refusals.min_by_key(|why| matches!(why, Refusal::ComputeCapability { .. }));
        Err(self.unavailable(path, refusal.expect("every kernel was tried")))
    }

    fn unavailable(&self, path: GemvPath, reason: Refusal) -> Error {
        match self.kernel {
            Some(kernel) => Error::KernelUnavailable {
                kernel: kernel.name(),
                reason,
            },
            None => Error::PathUnavailable { path, reason },
        }
    }
}

/// A config that cannot compute what it was asked for.
fn refused(config: &Config, reason: Refusal) -> Error {
    // The config is written as in tables.
    let config = serde_json::to_string(config).unwrap_or_else(|_| format!("{config:?}"));
    Error::Config { config, reason }
}

/// What is taken on a GPU.
struct Chosen {
    /// The config, checked for the job, or for the job with digits in the place of its vectors.
    checked: Checked,
    reason: Reason,
    digits: Option<Digits>,
}

impl From<(Checked, Reason)> for Chosen {
    fn from((checked, reason): (Checked, Reason)) -> Self {
        Self {
            checked,
            reason,
            digits: None,
        }
    }
}

impl Chosen {
    fn choice(&self) -> Choice {
        let config = self.checked.config();
        Choice {
            path: config.kernel().path(),
            config: Some(config),
            reason: self.reason,
            digits: self.digits.map(|digits| digits.number()),
        }
    }
}

/// The tuned table, if it was made on such a GPU.
fn made_on<'t>(table: &'t Measurements, gpu: &Gpu) -> Result<&'t Measurements> {
    let tuned = &table.machine.gpu;
    match tuned.is_of(gpu) {
        true => Ok(table),
        false => Err(Error::TunedElsewhere {
            tuned: tuned.name.clone(),
            device: gpu.name.clone(),
        }),
    }
}
