//! What was measured in this process when calls were prepared: [`Options::measure`](super::Options::measure).

use std::sync::{PoisonError, RwLock};

use super::measured::{Entry, GpuModel, Machine, Measurements};
use crate::kernel::{Job, Kernel};
use crate::types::GemvPath;

/// Beside the problem, what the fastest config depends on: the kernels that were there to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Among {
    gpu: GpuModel,
    /// Bytes of the workspace: with fewer of them fewer kernels can run.
    workspace: u64,
    path: Option<GemvPath>,
    kernel: Option<Kernel>,
}

/// How the tables say where they are from.
const FROM: &str = "measured when calls were prepared";

/// A table for each set of kernels to choose from: a process has few.
static TABLES: RwLock<Vec<(Among, Measurements)>> = RwLock::new(Vec::new());

impl Among {
    pub(super) fn new(job: &Job<'_>, path: Option<GemvPath>, kernel: Option<Kernel>) -> Self {
        Self {
            gpu: GpuModel::of(job.gpu),
            workspace: job.operands.workspace,
            path,
            kernel,
        }
    }

    /// Whether these are all kernels that run on a GPU.
    fn is_all(&self, gpu: &GpuModel) -> bool {
        self.gpu == *gpu && self.path.is_none() && self.kernel.is_none()
    }

    fn is(&self, job: &Job<'_>, path: Option<GemvPath>, kernel: Option<Kernel>) -> bool {
        self.gpu.is_of(job.gpu)
            && self.workspace == job.operands.workspace
            && (self.path, self.kernel) == (path, kernel)
    }
}

/// Whether the launches of a job overlap, so that it is measured in a chain.
pub(crate) fn overlaps(job: &Job<'_>) -> bool {
    job.ahead() && job.gpu.has_dependent_launches()
}

/// Calls `ask` with the table that has the job's problem, if that was measured as the job's calls are launched.
pub(super) fn with<T>(
    job: &Job<'_>,
    (path, kernel): (Option<GemvPath>, Option<Kernel>),
    ask: impl FnOnce(&Measurements) -> T,
) -> Option<T> {
    let tables = TABLES.read().unwrap_or_else(PoisonError::into_inner);
    let mut tables = tables.iter();
    let (_, table) = tables.find(|(among, _)| among.is(job, path, kernel))?;
    let entry = table.find(job.shape, job.operands)?;
    let chained = || entry.kernels.iter().any(|timed| timed.chained.is_some());
    (!overlaps(job) || chained()).then(|| ask(table))
}

/// Remembers what was measured, in the place of what was measured of the same problem before.
pub(crate) fn insert(among: Among, machine: &Machine, entry: Entry) {
    let mut tables = TABLES.write().unwrap_or_else(PoisonError::into_inner);
    let at = tables.iter().position(|(one, _)| *one == among);
    let at = at.unwrap_or_else(|| {
        tables.push((among, Measurements::new(machine.clone(), FROM)));
        tables.len() - 1
    });
    tables[at].1.insert(entry);
}

/// What was measured with all kernels of a GPU to choose from. Of a problem that was measured with several workspaces,
/// what was measured with the largest.
pub(crate) fn of(machine: &Machine) -> Measurements {
    let tables = TABLES.read().unwrap_or_else(PoisonError::into_inner);
    let mut tables: Vec<_> = (tables.iter())
        .filter(|(among, _)| among.is_all(&machine.gpu))
        .collect();
    tables.sort_by_key(|(among, _)| among.workspace);
    let mut all = Measurements::new(machine.clone(), FROM);
    for entry in tables.into_iter().flat_map(|(_, table)| table.entries()) {
        all.insert(entry.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dispatch::measured::{Chained, Timed};
    use crate::dispatch::select::likeliest;
    use crate::dispatch::{Choice, Evidence, Options, Reason, Target, select, to_measure};
    use crate::error::Error;
    use crate::gpu::Gpu;
    use crate::kernel::{Call, Config};
    use crate::operands::Operands;
    use crate::shape::{Dims, Shape};
    use crate::types::{Activation, ScaleLayout};

    const LINEAR: ScaleLayout = ScaleLayout::Linear;

    /// A GPU of a name: what is remembered of one says nothing of another, and tests run in one process.
    fn gpu(name: &str) -> Gpu {
        Gpu {
            name: name.into(),
            ..Gpu::of_compute_capability((9, 0), "80;90a")
        }
    }

    fn machine(gpu: &Gpu) -> Machine {
        Machine {
            gpu: GpuModel::of(gpu),
            driver: "13.0".into(),
            crate_version: "0".into(),
            kernels: String::new(),
        }
    }

    fn shape(m: usize, n: usize) -> Shape {
        let (k, l) = (4096, 1);
        Shape::new(Dims { m, n, k, l }).unwrap()
    }

    fn call(shape: &Shape, workspace: bool) -> Call {
        let call = Call::nowhere(shape, Activation::Nvfp4, LINEAR, 32);
        match workspace {
            true => call,
            false => Call {
                workspace: crate::operands::RawWorkspace::NONE,
                ..call
            },
        }
    }

    fn asks<'a>() -> Options<'a> {
        let options = Options::new().without_environment();
        options.measure(Duration::from_millis(5))
    }

    fn choose(gpu: &Gpu, call: &Call, options: &Options<'_>) -> Choice {
        select(call.shape(), &call.operands(), Target::Gpu(gpu), options).unwrap()
    }

    fn is_remembered(choice: &Choice) -> bool {
        let evidence = Evidence::Prepared;
        matches!(choice.reason, Reason::Best { evidence: one, .. } | Reason::BestOfPath { evidence: one, .. }
            if one == evidence)
    }

    /// Some config that is not what is taken where nobody measured.
    fn another(gpu: &Gpu, call: &Call, options: &Options<'_>) -> Config {
        let what = to_measure(call, gpu, options, 8).unwrap().unwrap();
        let first = choose(gpu, call, options).config.unwrap();
        let mut others = what.isolated.into_iter().filter(|one| *one != first);
        others.find(|one| one.kernel() == first.kernel()).unwrap()
    }

    fn entry(call: &Call, config: Config, chained: Option<Config>) -> Entry {
        let seconds = 1e-5;
        let chained = chained.map(|config| Chained { config, seconds });
        Entry {
            shape: *call.shape(),
            operands: call.operands(),
            ceiling_seconds: seconds / 2.0,
            kernels: vec![Timed {
                config,
                seconds,
                chained,
            }],
        }
    }

    fn remember(gpu: &Gpu, call: &Call, options: &Options<'_>, chained: bool) -> Config {
        let config = another(gpu, call, options);
        let what = to_measure(call, gpu, options, 8).unwrap().unwrap();
        let entry = entry(call, config, chained.then_some(config));
        insert(what.among, &machine(gpu), entry);
        config
    }

    /// The winner of a prepared call is taken by all calls of the problem that ask for it, and measured once.
    #[test]
    fn what_was_measured_is_taken_where_it_is_asked_for() {
        let gpu = gpu("taken");
        let (call, other) = (call(&shape(4096, 1), true), call(&shape(2048, 1), true));
        let config = remember(&gpu, &call, &asks(), false);
        let choice = choose(&gpu, &call, &asks());
        assert_eq!(choice.config, Some(config));
        assert!(is_remembered(&choice), "{choice:?}");
        assert!(
            choice
                .reason
                .to_string()
                .contains("when a call was prepared")
        );
        assert!(to_measure(&call, &gpu, &asks(), 8).unwrap().is_none());
        // Who does not ask for it has what others have, on every thread and whatever was asked for before.
        let unasked = asks().measure(None);
        assert_ne!(choose(&gpu, &call, &unasked).config, Some(config));
        assert!(to_measure(&call, &gpu, &unasked, 8).unwrap().is_none());
        // Another problem is to be measured.
        assert!(!is_remembered(&choose(&gpu, &other, &asks())));
        assert!(to_measure(&other, &gpu, &asks(), 8).unwrap().is_some());
    }

    /// A kernel that nobody measured is not taken, however well the model thinks of it.
    #[test]
    fn what_was_not_measured_is_not_taken() {
        let gpu = Gpu {
            name: "slower than expected".into(),
            ..Gpu::of_compute_capability((10, 0), "100f")
        };
        let shape = shape(4096, 8);
        let tiled = ScaleLayout::Tiled128x4;
        let call = Call::nowhere(&shape, Activation::Nvfp4, tiled, 32);
        let what = to_measure(&call, &gpu, &asks(), 8).unwrap().unwrap();
        let first = what.isolated[0];
        assert_eq!(first.kernel(), Kernel::Tcgen05);
        let mut entry = entry(&call, first, None);
        entry.ceiling_seconds = entry.kernels[0].seconds / 50.0;
        insert(what.among, &machine(&gpu), entry);
        let choice = choose(&gpu, &call, &asks());
        assert_eq!(choice.config, Some(first), "{choice:?}");
    }

    /// Without a workspace, or within a path, the fastest is of other kernels.
    #[test]
    fn kernels_to_choose_from_are_told_apart() {
        let gpu = gpu("apart");
        let shape = shape(4096, 4);
        let (with, without) = (call(&shape, true), call(&shape, false));
        remember(&gpu, &with, &asks(), false);
        let is_known = |call: &Call, options: Options<'_>| {
            let what = to_measure(call, &gpu, &options, 8).unwrap();
            let known = what.is_none();
            assert!(known || !is_remembered(&choose(&gpu, call, &options)));
            known
        };
        let path = choose(&gpu, &with, &asks()).path;
        assert!(is_known(&with, asks()));
        assert!(!is_known(&without, asks()));
        assert!(!is_known(&with, asks().path(path)));
        assert!(!is_known(&with, asks().kernel(Kernel::Stream)));
        let of_stream = asks().kernel(Kernel::Stream);
        let config = remember(&gpu, &with, &of_stream, false);
        assert!(is_known(&with, of_stream));
        assert_eq!(choose(&gpu, &with, &of_stream).config, Some(config));
        // A file is for calls that ask for nothing.
        let saved = of(&machine(&gpu));
        assert_eq!(saved.entries().len(), 1);
        let unrestricted = choose(&gpu, &with, &asks()).config;
        assert_eq!(Some(saved.entries()[0].kernels[0].config), unrestricted);
        assert_eq!(saved.machine, machine(&gpu));
    }

    /// Times of launches that wait say nothing of chains; times in chains come with the others.
    #[test]
    fn chains_are_measured_in_chains() {
        let gpu = gpu("chains");
        let call = call(&shape(4096, 1), true);
        let chained = asks().as_if_chained(true);
        remember(&gpu, &call, &asks(), false);
        assert!(!is_remembered(&choose(&gpu, &call, &chained)));
        let what = to_measure(&call, &gpu, &chained, 8).unwrap().unwrap();
        for config in &what.chained {
            let same = |one: &Config| one.kernel() == config.kernel();
            assert!(what.isolated.iter().any(same), "{config:?}");
        }
        let config = what.chained[1];
        insert(
            what.among,
            &machine(&gpu),
            entry(&call, config, Some(config)),
        );
        assert_eq!(choose(&gpu, &call, &chained).config, Some(config));
        assert!(is_remembered(&choose(&gpu, &call, &asks())));
    }

    /// A file says what is taken: nothing is measured, and nothing that was measured counts.
    #[test]
    fn a_file_goes_before() {
        let gpu = gpu("file");
        let call = call(&shape(4096, 1), true);
        let config = remember(&gpu, &call, &asks(), false);
        let first = choose(&gpu, &call, &asks().measure(None)).config.unwrap();
        let mut file = Measurements::new(machine(&gpu), "a file");
        file.insert(entry(&call, first, None));
        let with_file = asks().tuned(&file);
        assert_eq!(choose(&gpu, &call, &with_file).config, Some(first));
        assert!(to_measure(&call, &gpu, &with_file, 8).unwrap().is_none());
        // A file of what was measured gives the same choice in a process that never measured.
        let saved = of(&machine(&gpu));
        let read = Measurements::from_json_lines(&saved.to_json_lines()).unwrap();
        let choice = choose(&gpu, &call, &asks().measure(None).tuned(&read));
        assert_eq!(choice.config, Some(config));
        // A file that has other problems only does not count.
        let none = Measurements::new(machine(&gpu), "another file");
        assert_eq!(
            choose(&gpu, &call, &asks().tuned(&none)).config,
            Some(config)
        );
        let elsewhere = Measurements::new(machine(&self::gpu("elsewhere")), "a file");
        let refused = to_measure(&call, &gpu, &asks().tuned(&elsewhere), 8);
        assert!(matches!(refused, Err(Error::TunedElsewhere { .. })));
    }

    /// There is nothing to find out where a config was asked for, or nothing is computed.
    #[test]
    fn where_there_is_no_choice_nothing_is_measured() {
        let gpu = gpu("no choice");
        let call = call(&shape(4096, 1), true);
        let config = another(&gpu, &call, &asks());
        assert!(
            to_measure(&call, &gpu, &asks().config(config), 8)
                .unwrap()
                .is_none()
        );
        let nothing = self::call(&shape(0, 1), true);
        assert!(to_measure(&nothing, &gpu, &asks(), 8).unwrap().is_none());
        assert!(to_measure(&call, &gpu, &asks(), 1).unwrap().is_none());
    }

    /// What is measured begins with what would be taken, has each config once, and nothing that cannot run.
    #[test]
    fn the_likeliest_configs_can_run_and_the_choice_is_first() {
        for name in ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "unknown"] {
            let gpu = gpu(name);
            for activation in Activation::ALL {
                for (m, k, n, l) in [
                    (4096, 4096, 1, 1),
                    (34816, 5120, 1, 1),
                    (96, 512, 8, 3),
                    (3072, 2048, 16, 1),
                ] {
                    let shape = Shape::new(Dims { m, n, k, l }).unwrap();
                    for (layout, chained) in [(LINEAR, false), (ScaleLayout::Tiled128x4, true)] {
                        let operands = Operands::new(activation, layout).with_workspace(u64::MAX);
                        let job = Job::new(&shape, &operands, &gpu).chained(chained);
                        let options = asks().as_if_chained(chained);
                        let all = likeliest(&job, &options, 8).unwrap();
                        let choice =
                            select(&shape, &operands, Target::Gpu(&gpu), &options).unwrap();
                        assert_eq!(
                            all.first(),
                            choice.config.as_ref(),
                            "{shape} {activation:?}"
                        );
                        assert!(
                            (2..=8).contains(&all.len()),
                            "{shape} {activation:?}: {all:?}"
                        );
                        for (i, config) in all.iter().enumerate() {
                            assert_eq!(config.check(&job), Ok(()), "{shape} {config:?}");
                            assert!(!all[..i].contains(config), "{shape} {config:?} twice");
                        }
                        // A kernel that is asked for has all of the places.
                        let kernel = all[0].kernel();
                        let of_one = likeliest(&job, &options.kernel(kernel), 8).unwrap();
                        assert!(of_one.iter().all(|one| one.kernel() == kernel));
                    }
                }
            }
        }
    }
}
