//! The order of a GPU's kernels for a problem, from the best evidence on each kernel.

use std::array;
use std::cell::OnceCell;
use std::fmt;
use std::ptr;

use super::measured::{self, Entry, Measurements, Near, Timed, comparable};
use super::model::{self, Way};
use crate::gpu::Gpu;
use crate::kernel::{Checked, Config, Job, Kernel, compared_by_time};
use crate::operands::Operands;
use crate::refusal::Refusal;
use crate::shape::Shape;

/// Evidence for an estimate, from the best to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// Times of this problem on this device: a file of `tune`.
    Tuned,
    /// Times of this problem on this device, measured when a call was prepared.
    Prepared,
    /// Times of this problem on the same model of GPU, in a built-in table.
    Measured {
        /// The GPU.
        on: &'static str,
    },
    /// This kernel has no time, and another kernel of its path has one: this kernel was slower, and by how much was not
    /// kept. The estimate is the other kernel's, changed as the model says: this kernel's share is at most that.
    Behind {
        /// The other kernel.
        kernel: Kernel,
        /// The GPU.
        on: &'static str,
    },
    /// Times of the nearest problem in a built-in table, of a GPU with the same major compute capability,
    /// scaled as the model says.
    Nearest {
        /// The kernel whose times they are: this one, or another one of its path.
        kernel: Kernel,
        /// The GPU.
        on: &'static str,
        /// The problem that was measured.
        shape: Shape,
    },
    /// A count of instructions and bytes, from the machine code and published rates.
    Modelled,
}

impl Evidence {
    /// Whether an estimate that rests on this is only a bound, which the kernel's share does not exceed.
    pub fn is_bound(&self) -> bool {
        matches!(self, Self::Behind { .. })
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tuned => f.write_str("from the file of tuned configs"),
            Self::Prepared => f.write_str("measured when a call was prepared"),
            Self::Measured { on } => write!(f, "measured on {on}"),
            Self::Behind { kernel, on } => write!(f, "slower than {kernel}, on {on}"),
            Self::Nearest { kernel, on, shape } => {
                write!(f, "after {kernel} with {shape}, measured on {on}")
            }
            Self::Modelled => f.write_str("modelled"),
        }
    }
}

/// How fast a kernel is for a problem, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The share of the read-only ceiling.
    pub share: f64,
    /// Seconds a call; `None` where all that is known is of another model of GPU, or of the model of kernels.
    pub seconds: Option<f64>,
    /// The evidence for share and seconds.
    pub evidence: Evidence,
}

/// A kernel, whether it can compute a problem, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The kernel.
    pub kernel: Kernel,
    /// The config that it would take, or why it cannot compute the problem.
    pub config: Result<Config, Refusal>,
    /// The estimate of its time. For a kernel that cannot compute the problem: how fast it would be, where that is
    /// known and a caller could change the problem.
    pub estimate: Option<Estimate>,
}

/// All kernels for a problem on a GPU, the fastest first, whether they can compute it or not. `tuned` are measurements
/// on that very GPU. `chained` says whether launches follow each other with [programmatic dependent
/// launch](super::Options#chained-launches).
///
/// ```
/// use nvfp4_gemv::dispatch::rank;
/// use nvfp4_gemv::{Activation, Dims, Gpu, Operands, ScaleLayout, Shape};
/// let shape = Shape::new(Dims { m: 4096, n: 1, k: 7168, l: 8 })?;
/// let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
/// let b200 = Gpu::of_compute_capability((10, 0), "100f");
/// for ranked in rank(&shape, &operands, &b200, None, false) {
///     if let Some(estimate) = ranked.estimate {
///         println!("{}: {:.0}% ({})", ranked.kernel, 100.0 * estimate.share, estimate.evidence);
///     }
/// }
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
pub fn rank(
    shape: &Shape,
    operands: &Operands,
    gpu: &Gpu,
    tuned: Option<&Measurements>,
    chained: bool,
) -> Vec<Ranked> {
    let job = Job::new(shape, operands, gpu).chained(chained);
    let tables = Tables::of(&job, tuned.map(|table| (table, Evidence::Tuned)));
    let ranked = |(kernel, estimate)| Ranked {
        kernel,
        config: tables.config(kernel).map(|checked| checked.config()),
        estimate,
    };
    tables.rank(|_| true).map(ranked).collect()
}

const KERNELS: usize = Kernel::ALL.len();

/// Measurements of a job's problem, tables to look further in, and the kernels' answers on the job.
pub(super) struct Tables<'t> {
    job: &'t Job<'t>,
    /// The measurements of this problem on this very device, and what they are.
    tuned: Option<(&'t Entry, Evidence)>,
    /// The measurements of this problem on the same model of GPU, and the model's name.
    model: Option<(&'static Entry, &'static str)>,
    /// The table of that model.
    of_model: Option<&'static Measurements>,
    /// Whether kernels may be compared by the times that they count: [`Way::timed`].
    by_time: bool,
    asked: [Asked; KERNELS],
}

/// A kernel's answers on a job: asked once, and only if somebody wants to know.
#[derive(Default)]
struct Asked {
    available: OnceCell<Result<(), Refusal>>,
    config: OnceCell<Result<Checked, Refusal>>,
    /// The share that the model expects: [`model::share`].
    share: OnceCell<f64>,
}

/// Name of the GPU that was measured here, as [`Evidence::Behind`] prints it.
const HERE: &str = "this GPU";

/// The built-in table of a GPU's model.
pub(super) fn of_model(gpu: &Gpu) -> Option<&'static Measurements> {
    let mut tables = measured::builtin().iter();
    tables.find(|table| table.machine.gpu.is_of(gpu))
}

impl<'t> Tables<'t> {
    pub(super) fn of(job: &'t Job<'t>, tuned: Option<(&'t Measurements, Evidence)>) -> Self {
        let of_model = of_model(job.gpu);
        let entry = |table: &'static Measurements| {
            let entry = table.find(job.shape, job.operands)?;
            Some((entry, table.machine.gpu.name.as_str()))
        };
        Self {
            job,
            tuned: tuned.and_then(|(table, evidence)| {
                Some((table.find(job.shape, job.operands)?, evidence))
            }),
            model: of_model.and_then(entry),
            of_model,
            by_time: true,
            asked: Default::default(),
        }
    }

    /// These, for kernels that do not take the configs whose times they count: they are compared by measurements alone.
    pub(super) fn by_measurements(self) -> Self {
        Self {
            by_time: false,
            ..self
        }
    }

    /// The tables that problems near the job are looked for in: that of its model of GPU first, if there is one.
    fn of_class(&self) -> impl Iterator<Item = &'static Measurements> {
        let (first, major) = (self.of_model, self.job.gpu.compute_capability.0);
        let others = measured::builtin().iter().filter(move |table| {
            let is_first = first.is_some_and(|first| ptr::eq(first, *table));
            table.machine.gpu.compute_capability.0 == major && !is_first
        });
        first.into_iter().chain(others)
    }

    fn available(&self, kernel: Kernel) -> Result<(), Refusal> {
        let available = &self.asked[kernel as usize].available;
        *available.get_or_init(|| kernel.available(self.job))
    }

    /// [`model::share`].
    fn share(&self, kernel: Kernel) -> f64 {
        let job = self.job;
        let share = || model::share(&Way::usual(kernel, job), job.shape, job.operands);
        *self.asked[kernel as usize].share.get_or_init(share)
    }

    /// The config that a kernel takes for the job: the fastest one that was measured for this very problem, where it
    /// can still run, or else its default.
    pub(super) fn config(&self, kernel: Kernel) -> Result<Checked, Refusal> {
        let job = self.job;
        let find = || {
            self.available(kernel)?;
            let model = self.model.map(|(entry, _)| entry);
            let tuned = self.tuned.map(|(entry, _)| entry);
            let mut entries = [tuned, model].into_iter().flatten();
            let timed = entries.find_map(|entry| entry.of(kernel));
            let measured = timed.and_then(|timed| match timed.chained {
                Some(chained) if job.ahead() => Some(chained.config),
                // The config that is fastest alone, unless the kernel knows a better one for chains.
                None if job.ahead() => timed.config.in_chain(job),
                _ => Some(timed.config.behind_ids(job)),
            });
            let measured = measured.and_then(|config| config.checked(job).ok());
            measured.map_or_else(|| self.unmeasured(kernel), Ok)
        };
        *self.asked[kernel as usize].config.get_or_init(find)
    }

    /// The config of a kernel that has no time of this problem: its default, or the config of a measured problem that
    /// the kernel [follows](Config::follows).
    fn unmeasured(&self, kernel: Kernel) -> Result<Checked, Refusal> {
        let job = self.job;
        let default = kernel.default_checked(job)?;
        let follows = |config: &Config| config.follows(job, &default.config());
        let near = self.as_long(kernel).filter(follows);
        let near = near.and_then(|config| config.checked(job).ok());
        Ok(near.unwrap_or(default))
    }

    /// The fastest config of the problem, in the table of the GPU's model, that differs from this one in its number of
    /// rows alone, and least. It has half as many to twice as many.
    fn as_long(&self, kernel: Kernel) -> Option<Config> {
        let job = self.job;
        let (shape, operands) = (job.shape, comparable(job.operands));
        let rows = |shape: &Shape| (shape.m() * shape.l()).max(1) as f64;
        let near = self.of_model?.entries().iter().filter_map(|entry| {
            if (entry.shape.k(), entry.shape.n()) != (shape.k(), shape.n())
                || entry.operands != operands
            {
                return None;
            }
            let octaves = (rows(&entry.shape) / rows(shape)).log2().abs();
            let timed = entry.of(kernel).filter(|_| octaves <= 1.0)?;
            let config = match job.ahead() {
                true => timed.chained?.config,
                false => timed.config,
            };
            Some((octaves, config))
        });
        let near = near.min_by(|(a, _), (b, _)| a.total_cmp(b));
        near.map(|(_, config)| config)
    }

    /// Some kernels and what is known of their time, the fastest first.
    pub(super) fn rank(
        &self,
        among: impl Fn(Kernel) -> bool,
    ) -> impl Iterator<Item = (Kernel, Option<Estimate>)> {
        let mut ranked = Kernel::ALL.iter().filter(|&&kernel| among(kernel));
        let mut ranked: [_; KERNELS] = array::from_fn(|_| {
            let &kernel = ranked.next()?;
            let estimate = self.estimate(kernel);
            let share = estimate.map_or(0.0, |estimate| estimate.share);
            let bound = estimate.is_some_and(|one| one.evidence.is_bound());
            Some((share, (bound, kernel as usize), kernel, estimate))
        });
        ranked.sort_unstable_by(|a, b| match (a, b) {
            (Some(a), Some(b)) => b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
        let ranked = ranked.into_iter().flatten();
        ranked.map(|(_, _, kernel, estimate)| (kernel, estimate))
    }

    /// The kernels that may be the first of some kernels to run, the fastest first. A kernel that is known to be no
    /// faster than one that runs is left out, and is not estimated. Where a call's own configs were measured, what was not
    /// among them is left out, too: an estimate is no match for a time.
    pub(super) fn contenders(
        &self,
        among: impl Fn(Kernel) -> bool,
    ) -> impl Iterator<Item = (Kernel, Option<Estimate>)> {
        let leader = self.leader(&among);
        let left_out = move |kernel| match (self.tuned, leader) {
            (Some((entry, Evidence::Prepared)), Some(_)) if entry.of(kernel).is_none() => true,
            (_, leader) => leader.is_some_and(|leader| self.is_behind(kernel, leader)),
        };
        self.rank(move |kernel| among(kernel) && !left_out(kernel))
    }

    /// The configs that may be the fastest of some kernels', the likeliest first, at most `most`. The first one is what is
    /// taken where nobody measures. Kernels whose share is less than `far` of the best have none; of the others each has
    /// one, and the rest is shared so that a kernel has as many as those behind it together.
    #[cfg(all(feature = "device", feature = "tune"))]
    pub(super) fn likeliest(
        &self,
        among: impl Fn(Kernel) -> bool,
        most: usize,
        far: f64,
    ) -> Vec<Config> {
        let runs = self.rank(among).filter_map(|(kernel, estimate)| {
            let first = self.config(kernel).ok()?.config();
            Some((kernel, first, estimate?.share))
        });
        let runs: Vec<_> = runs.collect();
        let best = runs.iter().map(|run| run.2).fold(0.0, f64::max);
        let near = runs.iter().filter(|run| run.2 >= far * best);
        let kernels: Vec<_> = near.take(most).collect();
        let mut rest = most.saturating_sub(kernels.len());
        let mut all: Vec<Config> = kernels.iter().map(|run| run.1).collect();
        for (i, &&(kernel, first, _)) in kernels.iter().enumerate() {
            let share = if i + 1 < kernels.len() {
                rest.div_ceil(2)
            } else {
                rest
            };
            let more = self.configs(kernel).into_iter();
            let more: Vec<_> = more.filter(|config| *config != first).take(share).collect();
            rest -= more.len();
            all.extend(more);
        }
        all
    }

    /// A kernel's configs that can compute the job, each once: those that were the fastest of problems near it, the
    /// nearest first, and then the kernel's own candidates.
    #[cfg(all(feature = "device", feature = "tune"))]
    fn configs(&self, kernel: Kernel) -> Vec<Config> {
        let job = self.job;
        let entries = measured::by_distance(self.of_class(), job.shape, job.operands);
        let near = entries.filter_map(|entry| {
            let timed = entry.of(kernel)?;
            match timed.chained {
                Some(chained) if job.ahead() => Some(chained.config),
                None if job.ahead() => timed.config.in_chain(job),
                _ => Some(timed.config),
            }
        });
        let mut configs = Vec::new();
        for config in near.chain(kernel.candidates(job)) {
            if config.check(job).is_ok() && !configs.contains(&config) {
                configs.push(config);
            }
        }
        configs
    }

    /// Measurements of this very problem, by the best evidence.
    fn exact(&self) -> Option<&'t Entry> {
        let tuned = self.tuned.map(|(entry, _)| entry);
        tuned.or(self.model.map(|(entry, _)| entry))
    }

    /// The fastest of some kernels that have a time of this very problem, if it runs.
    fn leader(&self, among: impl Fn(Kernel) -> bool) -> Option<&'t Timed> {
        let (job, entry) = (self.job, self.exact()?);
        let timed = entry.kernels.iter();
        let timed = timed.filter(|timed| among(timed.kernel()) && counts(timed, entry, job));
        let leader = timed.min_by(|a, b| {
            let place = |timed: &Timed| timed.kernel() as usize;
            let seconds = seconds(a, job).total_cmp(&seconds(b, job));
            seconds.then_with(|| place(a).cmp(&place(b)))
        })?;
        self.config(leader.kernel()).is_ok().then_some(leader)
    }

    /// Whether a kernel stands behind the [leader](Self::leader) by what was measured of this very problem.
    fn is_behind(&self, kernel: Kernel, leader: &Timed) -> bool {
        let stand_in = || self.exact().and_then(|entry| self.stand_in(entry, kernel));
        let no_faster = |timed: &Timed| seconds(timed, self.job) >= seconds(leader, self.job);
        kernel != leader.kernel() && stand_in().is_some_and(no_faster)
    }

    /// The estimate for a kernel, from the best evidence.
    pub(super) fn estimate(&self, kernel: Kernel) -> Option<Estimate> {
        let (job, available) = (self.job, self.available(kernel));
        // No change of the problem's operands would help.
        if let Err(Refusal::ComputeCapability { .. }) = available {
            return None;
        }
        let exact = |entry: &Entry, own: Evidence, on: &'static str| {
            let timed = self.stand_in(entry, kernel)?;
            let evidence = match timed.kernel() {
                itself if itself == kernel => own,
                other => Evidence::Behind { kernel: other, on },
            };
            let by = self.relative(kernel, timed.kernel());
            Some(Estimate {
                share: entry.ceiling_seconds / seconds(timed, job) * by,
                seconds: Some(seconds(timed, job) / by),
                evidence,
            })
        };
        let tuned = || {
            let (entry, own) = self.tuned?;
            exact(entry, own, HERE)
        };
        let measured = || {
            let (entry, on) = self.model?;
            exact(entry, Evidence::Measured { on }, on)
        };
        let nearest = || {
            let pick = |_, entry| self.stand_in(entry, kernel);
            let [near] = measured::nearest(self.of_class(), job.shape, job.operands, pick);
            Some(self.nearest(&near?, kernel))
        };
        let modelled = || {
            // A kernel that cannot run is worth a guess only where no other kernel of its path can run, and nothing was
            // measured.
            let alone = || {
                let mut path = Kernel::ALL
                    .iter()
                    .filter(|other| other.path() == kernel.path());
                self.of_class().next().is_none()
                    && path.all(|&other| self.available(other).is_err())
            };
            (available.is_ok() || alone()).then(|| Estimate {
                share: self.share(kernel),
                seconds: None,
                evidence: Evidence::Modelled,
            })
        };
        let by_time = || {
            if !(self.by_time && compared_by_time(job)) {
                return None;
            }
            let operands = job.operands.with_workspace(u64::MAX);
            let given = Job {
                operands: &operands,
                ..*job
            };
            let config = match available {
                // As fast as it would be with the workspace that a reason asks for.
                Err(Refusal::Workspace { .. }) => kernel.default_config(&given),
                _ => self.config(kernel).map(|checked| checked.config()),
            };
            Some(Estimate {
                share: model::share(&Way::timed(&config.ok()?, &given), job.shape, job.operands),
                seconds: None,
                evidence: Evidence::Modelled,
            })
        };
        (tuned().or_else(measured))
            .or_else(by_time)
            .or_else(nearest)
            .or_else(modelled)
    }

    /// The share of the nearest problem that was measured, changed by as much as the model says that the problem
    /// differs, and by what the kernel's default reaches. A kernel that has no time there was no faster than the kernel
    /// that has one. The model's opinion of these two kernels there does not put the kernel without a time in front here.
    /// The model's opinion of how each kernel changes from there to here may.
    fn nearest(&self, near: &Near<'static>, of: Kernel) -> Estimate {
        let Near {
            table,
            entry,
            timed,
        } = *near;
        let job = self.job;
        let on = table.machine.gpu.name.as_str();
        let shape = entry.shape;
        let there = entry.ceiling_seconds / seconds(timed, job);
        // Tables are measured with a workspace.
        let operands = entry.operands.with_workspace(u64::MAX);
        let then = Job::new(&shape, &operands, job.gpu).chained(job.chained);
        let modelled = |way| model::share(&way, &shape, &operands);
        let timed_then = modelled(Way::of(&timed.config, &then));
        let kernel = timed.kernel();
        let own_then = match kernel == of {
            true => timed_then,
            false => modelled(Way::usual(of, &then)),
        };
        // The time there is of the best config. Here it is the default.
        let share = there * self.share(of) / timed_then.max(own_then) * of.default_reaches(job);
        let other = (kernel != of && self.available(kernel).is_ok()).then_some(kernel);
        let its =
            |other: Kernel| there * self.share(other) / timed_then * other.default_reaches(job);
        let (share, evidence) = match other.map(its) {
            Some(its) if share <= CLEARLY * its => {
                (share.min(its), Evidence::Behind { kernel, on })
            }
            _ => (share, Evidence::Nearest { kernel, on, shape }),
        };
        let share = share.min(1.0);
        let bytes_per_second = shape.weight_bytes() as f64 / entry.ceiling_seconds;
        let seconds = job.shape.weight_bytes() as f64 / bytes_per_second / share;
        Estimate {
            share,
            // Another model's memory is faster or slower.
            seconds: table.machine.gpu.is_of(job.gpu).then_some(seconds),
            evidence,
        }
    }

    /// The time of an entry that stands for a kernel. A kernel with a time of its own has that one. A kernel without
    /// one that can compute the job and the entry's problem has the best time of its path's kernels, which it did not
    /// exceed. A time of a kernel that the model expects to be slower than this kernel even with one vector says
    /// nothing of this kernel.
    fn stand_in<'e>(&self, entry: &'e Entry, kernel: Kernel) -> Option<&'e Timed> {
        let job = self.job;
        let of_one = |kernel: Kernel| kernel.share_of_one(job.shape, job.operands);
        let of_path = |timed: &&Timed| {
            timed.kernel().path() == kernel.path() && of_one(kernel) <= of_one(timed.kernel())
        };
        let fastest = || {
            let of_path = entry.kernels.iter().filter(of_path);
            let of_path = of_path.filter(|timed| counts(timed, entry, job));
            of_path.min_by(|a, b| seconds(a, job).total_cmp(&seconds(b, job)))
        };
        // A kernel that could not run there was not slower there.
        let can = || {
            let operands = entry.operands.with_workspace(u64::MAX);
            let then = Job::new(&entry.shape, &operands, job.gpu).chained(job.chained);
            // The answer is the same with less of a workspace: a kernel that needs more says so, and would be no faster
            // with it.
            let can = matches!(
                self.available(kernel),
                Ok(()) | Err(Refusal::Workspace { .. })
            );
            can && kernel.available(&then).is_ok()
        };
        match entry.of(kernel) {
            Some(own) if counts(own, entry, job) => Some(own),
            // The kernel was measured, and is known to be no better than the best time that counts.
            Some(_) => {
                let all = entry.kernels.iter();
                all.filter(|timed| counts(timed, entry, job))
                    .min_by(|a, b| seconds(a, job).total_cmp(&seconds(b, job)))
            }
            None => can().then(fastest).flatten(),
        }
    }

    /// Fraction of another kernel's share that a kernel without a time reaches; the other kernel was measured at this
    /// problem. The fraction is as large as the model says, and at most 1, because the kernel was slower.
    fn relative(&self, of: Kernel, other: Kernel) -> f64 {
        match of == other {
            true => 1.0,
            false => (self.share(of) / self.share(other)).min(1.0),
        }
    }
}

/// Factor by which the model must see a kernel in front of the kernel that was no slower at the nearest problem. The
/// share that the model starts from is only one that the kernel did not exceed there.
const CLEARLY: f64 = 1.1;

/// Whether a kernel's time says something of a job. In a chain isolated times do not, where other kernels of the entry
/// were measured chained. A kernel without a chained time was slower there, or it was faster in a chain of this problem
/// alone and slower between other layers.
fn counts(timed: &Timed, entry: &Entry, job: &Job<'_>) -> bool {
    let is_chained = |timed: &Timed| timed.chained.is_some();
    !job.ahead() || is_chained(timed) || !entry.kernels.iter().any(is_chained)
}

/// A kernel's seconds for a job: chained, where that is asked for and was measured.
fn seconds(timed: &Timed, job: &Job<'_>) -> f64 {
    match timed.chained {
        Some(chained) if job.ahead() => chained.seconds,
        _ => timed.seconds,
    }
}
