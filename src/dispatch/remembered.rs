//! What was measured in this process when calls were prepared: [`Options::measure`](super::Options::measure).

use std::sync::{PoisonError, RwLock};

use super::measured::{Entry, GpuModel, Machine, Measurements};
use crate::kernel::{Job, Kernel};
use crate::types::GemvPath;

/// Beside the problem, what the fastest config depends on: the kernels that were there to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Among {
    gpu: GpuModel,
    /// Without a workspace some kernels cannot run.
    workspace: bool,
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
            workspace: job.operands.workspace > 0,
            path,
            kernel,
        }
    }

    /// All kernels that run on a GPU.
    fn all(gpu: &GpuModel, workspace: bool) -> Self {
        Self {
            gpu: gpu.clone(),
            workspace,
            path: None,
            kernel: None,
        }
    }

    fn is(&self, job: &Job<'_>, path: Option<GemvPath>, kernel: Option<Kernel>) -> bool {
        self.gpu.is_of(job.gpu)
            && self.workspace == (job.operands.workspace > 0)
            && (self.path, self.kernel) == (path, kernel)
    }
}

/// Whether the launches of a job overlap, so that it is measured in a chain.
pub(crate) fn overlaps(job: &Job<'_>) -> bool {
    job.chained && job.gpu.compute_capability >= (9, 0)
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

/// What was measured with all kernels of a GPU to choose from. Of a problem that was measured with a workspace and
/// without one, what was measured with it.
pub(crate) fn of(machine: &Machine) -> Measurements {
    let tables = TABLES.read().unwrap_or_else(PoisonError::into_inner);
    let mut all = Measurements::new(machine.clone(), FROM);
    for workspace in [false, true] {
        let among = Among::all(&machine.gpu, workspace);
        let tables = tables.iter().filter(|(one, _)| *one == among);
        for entry in tables.flat_map(|(_, table)| table.entries()) {
            all.insert(entry.clone());
        }
    }
    all
}
