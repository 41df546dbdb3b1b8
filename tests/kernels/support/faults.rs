//! Faults planted in kernels' PTX, in launch plans, and in tensor maps: the simulator notices each, or a list says
//! why there is nothing to notice. tools/ptx-sim/docs/planted-faults.md explains how.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvfp4_gemv::kernel::Config;
use nvfp4_gemv::kernel::plan;
use ptx_sim::memory::layout::SMALL_START;
use ptx_sim::memory::{Access, Fault, Observer, Space, SyncEvent};
use ptx_sim::mutate::{Check, Known, Mutant, Planted, Ran, Score, Subject};
use ptx_sim::{Options, Policy, Program, SimError, Timing, Uninitialised};

use super::operands::{Case, Operands};
use super::ptx;
use super::sim::{Loaded, gpu, launches};

/// A call with one launch that receives faults. The launches before it have already run. The launches behind it run
/// again for each fault.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    loaded: Loaded,
    roundings: u32,
    planned: plan::Launch,
    after: Vec<plan::Launch>,
    arch: &'static str,
    uninitialised: Uninitialised,
}

impl Run {
    /// Plants faults in the launch that multiplies; in the last such launch if there are several.
    pub(crate) fn new(
        arch: &'static str,
        case: &Case,
        config: impl Into<Config>,
        chained: bool,
        uninitialised: Uninitialised,
    ) -> Self {
        Self::of(
            arch,
            case,
            config.into(),
            chained,
            uninitialised,
            |launches| {
                let multiplies = |launch: &plan::Launch| !launch.auxiliary;
                launches.iter().rposition(multiplies).expect("a launch")
            },
        )
    }

    /// Plants faults in the first launch.
    pub(crate) fn first(
        arch: &'static str,
        case: &Case,
        config: impl Into<Config>,
        chained: bool,
        uninitialised: Uninitialised,
    ) -> Self {
        Self::of(arch, case, config.into(), chained, uninitialised, |_| 0)
    }

    /// Plants faults in the last launch.
    pub(crate) fn last(
        arch: &'static str,
        case: &Case,
        config: impl Into<Config>,
        chained: bool,
        uninitialised: Uninitialised,
    ) -> Self {
        let last = |launches: &[plan::Launch]| launches.len() - 1;
        Self::of(arch, case, config.into(), chained, uninitialised, last)
    }

    fn of(
        arch: &'static str,
        case: &Case,
        config: Config,
        chained: bool,
        uninitialised: Uninitialised,
        which: fn(&[plan::Launch]) -> usize,
    ) -> Self {
        let mut loaded = Loaded::new(&Arc::new(Operands::new(case)), arch);
        let plan = loaded.plan(config, &gpu(arch), chained);
        let parts = plan.launches().iter().flat_map(plan::Launch::parts);
        let mut before: Vec<plan::Launch> = parts.collect();
        let after = before.split_off(which(&before) + 1);
        let planned = before.pop().expect("a launch");
        for before in before {
            let ran = run(&mut loaded, &before, arch, &Options::default());
            ran.expect("the launches before are right");
        }
        Self {
            roundings: config.roundings(&case.shape, case.activation),
            loaded,
            planned,
            after,
            arch,
            uninitialised,
        }
    }

    /// The run with all batches in one row of CTAs: a kernel that strides over batches meets its own shared memory
    /// again.
    pub(crate) fn in_one_row(mut self) -> Self {
        self.planned.grid[1] = 1;
        self
    }

    fn launch(&self) -> ptx_sim::Launch {
        launches(&self.planned).expect("a valid launch").remove(0)
    }

    fn run(
        &self,
        program: &ptx_sim::Program,
        launch: &ptx_sim::Launch,
        options: &Options,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Ran, SimError> {
        let mut loaded = self.loaded.clone();
        let options = Options {
            uninitialised: self.uninitialised,
            ..options.clone()
        };
        let report = match observer {
            Some(observer) => loaded
                .memory
                .observed(program, launch, &options, observer)?,
            None => loaded.memory.launch(program, launch, &options)?,
        };
        let options = Options {
            uninitialised: self.uninitialised,
            ..Options::default()
        };
        for after in &self.after {
            run(&mut loaded, after, self.arch, &options)?;
        }
        let wrong = loaded.difference(self.roundings);
        Ok(Ran { report, wrong })
    }
}

/// Runs a launch without a fault.
fn run(
    loaded: &mut Loaded,
    planned: &plan::Launch,
    arch: &'static str,
    options: &Options,
) -> Result<(), SimError> {
    let program = &ptx::entry(planned.entry, arch).program;
    let launch = launches(planned).expect("a valid launch").remove(0);
    loaded.memory.launch(program, &launch, options).map(drop)
}

/// Whether a fault is not one of arithmetic. The kernels have hundreds to thousands of arithmetic instructions; the
/// exact and the random data of the other tests check them.
pub(crate) fn no_arithmetic(mutant: &Mutant) -> bool {
    use ptx_sim::mutate::Kind::*;
    !matches!(
        mutant.kind,
        Guard | Compare | LoopBound | Offset | Select | Selector | Shift | Constant | Operation
    )
}

/// Trials that everybody runs plant one in so many faults. A trial of the kind `long` plants all of them.
pub(crate) const SAMPLE: u64 = 7;

/// Of faults in launch plans, where the runs of a trial are many: one in so many.
pub(crate) const SAMPLE_OF_PLANS: u64 = 21;

/// The kernel that all `runs` launch. The lists of faults know the kernel as `name`.
pub(crate) fn subject(
    name: &str,
    arch: &'static str,
    runs: Vec<Run>,
    schedules: Vec<(Policy, Timing)>,
    pick: impl Fn(&Mutant) -> bool + Sync + 'static,
) -> Subject {
    let entry = runs[0].planned.entry;
    let kernel = ptx::entry(entry, arch).kernel.clone();
    let host = runs.last().map(Run::launch);
    let launches = runs.into_iter().map(|run| {
        assert_eq!(run.planned.entry, entry);
        let name = run.loaded.operands.case.shape.to_string();
        let check = move |planted: &Planted, options: &Options| {
            let launch = planted.launch(run.launch())?;
            run.run(planted.program(), &launch, options, None)
        };
        (name, Box::new(check) as Box<Check<'static>>)
    });
    Subject {
        name: name.into(),
        kernel,
        host,
        launches: launches.collect(),
        schedules,
        pick: Box::new(pick),
    }
}

/// Demands that each fault is noticed or in the list, and that there are at least `least` faults.
pub(crate) fn demand(subject: &Subject, list: &str, least: usize) -> Score {
    let known = Known::parse(list).expect("the list");
    // Other trials use the other processors. Faults of the list run under the first schedule alone, on all launches.
    // The list argues why no other schedule could notice them either, and they would take most of the time.
    let findings = subject
        .run(&known, 1, 1)
        .expect("the sound kernel is right");
    let score = Score::new(&subject.name, &findings, &known);
    println!("{score}");
    let problems = subject.disagreements(&findings, &known);
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
    assert!(findings.len() >= least, "only {} faults", findings.len());
    score
}

/// Reason why faults of the vectors' batch stride do nothing if a tensor map has that stride.
pub(crate) const MAPPED: &str = "0 says that batches share vectors; a tensor map has the stride";

/// Reason why faults do nothing in the word that says whether the epilogue has operands.
pub(crate) const ANY_OPERAND: &str =
    "any number but 0 says so, and each operand is asked for by itself";

/// Reasons why faults do nothing in words of a selection, where runs have none.
pub(crate) const ALL_MATRICES: &str = "batches that do not select have the matrices that there are";
pub(crate) const NOT_LATE: &str = "to wait earlier changes nothing";

/// Reason why faults do nothing in words that count only with a bias. Sweeps have a bias.
pub(crate) const NO_BIAS: &str = "the runs have no bias";

/// Reason why faults do nothing in a word that no kernel reads.
pub(crate) const PADDING: &str = "padding";

/// Place of a fault in a launch plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The word of the parameters at this offset in bytes.
    Word(usize),
    /// Words that no run reads, from this offset on, within so many bytes.
    Unread(usize, usize),
    /// The grid along x or y.
    Grid(usize),
    /// Threads of a CTA.
    Threads,
    /// Dynamic shared memory.
    Shared,
}

/// A fault of a launch plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// The word of the parameters at this offset in bytes is larger by so much.
    More(usize, i32),
    /// The word of the parameters at this offset in bytes and the next word change places.
    Swapped(usize),
    /// The grid has one CTA, or one cluster, less along x or y.
    GridLess(usize),
    /// A CTA has one warp less.
    WarpLess,
    /// A CTA has 16 bytes less of dynamic shared memory.
    SharedLess,
}

/// Size of a field in bytes, from a function that returns a reference to the field.
pub(crate) const fn size_of_field<P, F>(_: fn(&P) -> &F) -> usize {
    size_of::<F>()
}

/// Harmless faults of a parameter structure: the words at the named fields, each with its reason. `unread in` names
/// fields of which the kernel does not read all: their words that no run reads are harmless, too.
#[macro_export]
macro_rules! words {
    ($params:ty: $($($field:ident).+ $(+ $more:literal)? = $why:expr),* $(,)? $(; unread in $($part:ident),+)?) => {
        [
            $((
                $crate::support::faults::At::Word(std::mem::offset_of!($params, $($field).+) $(+ $more)?),
                $why,
            ),)*
            $($((
                $crate::support::faults::At::Unread(
                    std::mem::offset_of!($params, $part),
                    $crate::support::faults::size_of_field(|params: &$params| &params.$part),
                ),
                concat!("all of ", stringify!($part), " is read"),
            ),)+)?
        ]
    };
}

impl Wrong {
    fn all(planned: &plan::Launch) -> Vec<Self> {
        let words = (0..planned.parameters.bytes().len()).step_by(4);
        let mut all: Vec<Self> = words
            .flat_map(|at| {
                let more = [4, 16, -4].map(|by| Self::More(at, by));
                more.into_iter().chain([Self::Swapped(at)])
            })
            .collect();
        all.extend([Self::GridLess(0), Self::GridLess(1), Self::WarpLess]);
        all.push(Self::SharedLess);
        all
    }

    fn at(self) -> At {
        match self {
            Self::More(at, _) | Self::Swapped(at) => At::Word(at),
            Self::GridLess(d) => At::Grid(d),
            Self::WarpLess => At::Threads,
            Self::SharedLess => At::Shared,
        }
    }

    /// The plan with this fault; `None` if the fault changes nothing or is impossible in this plan.
    fn planted(self, planned: &plan::Launch) -> Option<plan::Launch> {
        let mut wrong = planned.clone();
        let bytes = wrong.parameters.bytes_mut();
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(word.try_into().expect("four bytes")))
        };
        match self {
            Self::More(at, by) => {
                let more = word(bytes, at)?.wrapping_add_signed(by);
                bytes[at..at + 4].copy_from_slice(&more.to_le_bytes());
            }
            Self::Swapped(at) => {
                if word(bytes, at)? == word(bytes, at + 4)? {
                    return None;
                }
                bytes[at..at + 8].rotate_left(4);
            }
            Self::GridLess(d) => {
                let least = if d == 0 { wrong.cluster.max(1) } else { 1 };
                wrong.grid[d] = wrong.grid[d].checked_sub(least).filter(|&left| left > 0)?;
            }
            Self::WarpLess => wrong.threads = wrong.threads.checked_sub(32).filter(|&t| t > 0)?,
            Self::SharedLess => wrong.dynamic_shared = wrong.dynamic_shared.checked_sub(16)?,
        }
        Some(wrong)
    }
}

/// Bytes of the parameters that a run has read, by address.
struct ParametersRead(Vec<bool>);

impl ParametersRead {
    fn none() -> Self {
        Self(Vec::new())
    }

    /// Whether a word of the parameter structure, which is a kernel's last parameter, was read.
    fn of_last_parameter(&self, program: &Program, word: usize) -> bool {
        let start = program
            .params
            .last()
            .map_or(0, |last| SMALL_START + last.offset) as usize
            + word;
        (start..start + 4).any(|at| self.0.get(at).copied().unwrap_or(false))
    }

    /// Whether two launches give a kernel the same, as far as the kernel has read its parameters in the first launch.
    /// Then the kernel does the same.
    fn alike(&self, program: &Program, one: &ptx_sim::Launch, other: &ptx_sim::Launch) -> bool {
        let without_parameters = |launch: &ptx_sim::Launch| ptx_sim::Launch {
            params: Vec::new(),
            ..launch.clone()
        };
        let parameters = program
            .params
            .iter()
            .zip(one.params.iter().zip(&other.params));
        let mut alike = parameters.map(|(parameter, (one, other))| {
            let start = (SMALL_START + parameter.offset) as usize;
            let read = |at: usize| self.0.get(start + at).copied().unwrap_or(false);
            let mut bytes = one.iter().zip(other).enumerate();
            one.len() == other.len() && bytes.all(|(at, (one, other))| one == other || !read(at))
        });
        without_parameters(one) == without_parameters(other)
            && one.params.len() == other.params.len()
            && alike.all(|alike| alike)
    }
}

impl Observer for ParametersRead {
    fn access(&mut self, access: &Access) -> Result<(), Fault> {
        if access.space == Space::Param {
            let start = access.address as usize;
            let end = start + access.size as usize;
            self.0.resize(self.0.len().max(end), false);
            self.0[start..end].fill(true);
        }
        Ok(())
    }

    fn sync(&mut self, _: &SyncEvent) -> Result<(), Fault> {
        Ok(())
    }
}

/// Demands that a wrong plan is noticed in at least one of the runs: by a wrong result, or by the simulator. `harmless`
/// lists places where some faults are not noticed, with reasons. One in `of` of the faults is planted. If `of` is 1,
/// each listed place must have a fault that is not noticed.
pub(crate) fn demand_right_plans(
    arch: &'static str,
    runs: &[Run],
    harmless: &[(At, &str)],
    of: u64,
) {
    let mut options = super::schedules::few(1)[1].clone();
    options.timeouts = 50;
    let mut faults = BTreeSet::new();
    let mut trials = Vec::new();
    for run in runs {
        let entry = ptx::entry(run.planned.entry, arch);
        let mut read = ParametersRead::none();
        let ran = run.run(&entry.program, &run.launch(), &options, Some(&mut read));
        let ran = ran.expect("a right plan runs");
        assert_eq!(ran.wrong, None);
        trials.push((ran.report.thread_instructions, entry, run, read));
        faults.extend(Wrong::all(&run.planned));
    }
    trials.sort_by_key(|(cost, ..)| *cost);
    let notices = |fault: Wrong| {
        let mut planted = false;
        let mut notices = trials.iter().filter_map(|(cost, entry, run, read)| {
            let wrong = fault.planted(&run.planned)?;
            planted = true;
            let options = Options {
                budget: cost * 3 + 100_000,
                ..options.clone()
            };
            let launches = launches(&wrong).ok()?;
            if read.alike(&entry.program, &run.launch(), &launches[0]) {
                return Some(false);
            }
            let ran = run.run(&entry.program, &launches[0], &options, None);
            Some(!ran.is_ok_and(|ran| ran.wrong.is_none()))
        });
        notices.any(|noticed| noticed) || !planted
    };
    let faults = faults.into_iter().step_by(of as usize);
    let unnoticed: Vec<Wrong> = faults.filter(|&fault| !notices(fault)).collect();
    let is_read = |word: usize| {
        let mut trials = trials.iter();
        trials.any(|(_, entry, _, read)| read.of_last_parameter(&entry.program, word))
    };
    let is_of = |fault: &Wrong, at: &At| match (fault.at(), at) {
        (At::Word(word), At::Unread(start, bytes)) => {
            (*start..start + bytes).contains(&word) && !is_read(word)
        }
        (found, at) => found == *at,
    };
    let is_listed = |fault: &Wrong| harmless.iter().any(|(at, _)| is_of(fault, at));
    let left: Vec<_> = unnoticed.iter().filter(|fault| !is_listed(fault)).collect();
    assert!(left.is_empty(), "without effect: {left:?}");
    for (at, why) in harmless.iter().filter(|_| of == 1) {
        let found = unnoticed.iter().any(|fault| is_of(fault, at));
        assert!(found, "every fault at {at:?} is noticed: {why}");
    }
}
