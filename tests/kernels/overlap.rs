//! The tensor-core kernel behind launches that have not ended, on one multiprocessor: its shared and its tensor memory are
//! for all of them.

use std::sync::Arc;

use nvfp4_gemv::kernel::{Config, Kernel, plan};
use nvfp4_gemv::{Dims, ScaleLayout, Shape};
use nvfp4_gemv_simulate::ptx::Entry;
use ptx_sim::report::ViolationKind;
use ptx_sim::{Launch, Options, SimError};

use crate::support::operands::{Case, Data, Operands};
use crate::support::ptx;
use crate::support::schedules::few;
use crate::support::sim::{Loaded, Simulator, launches};

crate::trials! {
    simulator: behind_itself, behind_a_foreign_kernel;
}

const KERNEL: Kernel = Kernel::Tcgen05;
const WAIT: &str = "griddepcontrol.wait;";
const ALLOC: &str = "tcgen05.alloc";

/// Lets dependents start at once, and allocates all tensor memory of its multiprocessor long after.
const FOREIGN: &str = "
.version 9.0
.target sm_100a
.address_size 64
.visible .entry foreign() {
    .reg .pred %p; .reg .b32 %r<3>; .shared .align 16 .b8 columns[16];
    griddepcontrol.launch_dependents;
    mov.u32 %r1, 0;
LATE:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p, %r1, 5000;
    @%p bra LATE;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [columns], 512;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    bar.sync 0;
    ld.shared.u32 %r2, [columns];
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;
    ret;
}
";

/// A launch with its code.
type Ready = (Arc<Entry>, Launch);

/// A call in memory, planned as one of a chain.
struct Chained {
    loaded: Loaded,
    planned: Vec<plan::Launch>,
    roundings: u32,
    context: String,
}

impl Chained {
    fn new(simulator: &Simulator, case: &Case, config: Config) -> Self {
        let mut loaded = Loaded::new(&Arc::new(Operands::new(case)), simulator.arch);
        let plan = loaded.plan(config, &simulator.gpu, true);
        Self {
            loaded,
            planned: plan
                .launches()
                .iter()
                .flat_map(plan::Launch::parts)
                .collect(),
            roundings: config.roundings(&case.shape, case.activation),
            context: format!("{config:?}, {case:?}"),
        }
    }

    fn shared(&self) -> u32 {
        let all = self.planned.iter().map(|launch| launch.dynamic_shared);
        all.max().unwrap_or(0)
    }

    /// The launches, of code that `edit` has changed.
    fn ready(&self, edit: impl Fn(&str) -> String) -> Vec<Ready> {
        let of = |planned: &plan::Launch| {
            let text = edit(&ptx::unit(planned.unit, ptx::BLACKWELL));
            let entry = Arc::new(Entry::new(&text, planned.entry));
            let launches = launches(planned).expect("a valid launch").into_iter();
            launches.map(move |launch| (entry.clone(), launch))
        };
        self.planned.iter().flat_map(of).collect()
    }

    /// Runs launches at the same time. The result must be right if they end.
    fn run(&self, all: &[Ready], options: &Options) -> Result<(), SimError> {
        let mut loaded = self.loaded.clone();
        let all: Vec<_> = all.iter().map(|(e, l)| (&e.program, l)).collect();
        loaded.memory.overlapped(&all, options)?;
        assert_eq!(loaded.difference(self.roundings), None, "{}", self.context);
        Ok(())
    }

    /// It runs to its end, whatever the schedule.
    fn demand_right(&self, all: &[Ready], seed: u64) {
        for options in few(seed) {
            let ran = self.run(all, &options);
            ran.unwrap_or_else(|error| panic!("{error}: {}, {options:?}", self.context));
        }
    }
}

/// Calls of a few vectors and of many, each with the default config and with the one of least shared memory, of which
/// several CTAs have room on a multiprocessor.
fn calls() -> Vec<Chained> {
    let simulator = Simulator::new(ptx::BLACKWELL);
    let of = |(m, n, k)| {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).expect("a shape");
        let case = Case {
            padded: true,
            ..Case::new(shape, Data::Integers, ScaleLayout::Tiled128x4, 3)
        };
        let configs = simulator.job(&case, true, |job| KERNEL.candidates(job));
        let make = |config: &Config| Chained::new(&simulator, &case, *config);
        let least = configs.iter().map(make).min_by_key(Chained::shared);
        [configs.first().map(make), least]
    };
    let all = [(200, 2, 1056), (300, 16, 512)].map(of);
    all.into_iter().flatten().flatten().collect()
}

fn unchanged(ptx: &str) -> String {
    ptx.to_string()
}

/// One call and the same again: what the first one writes, the second one overwrites.
fn behind_itself() {
    for (seed, call) in calls().into_iter().enumerate() {
        let one = call.ready(unchanged);
        call.demand_right(&[&one[..], &one].concat(), seed as u64);
    }
    let call = calls().remove(0);
    let hasty = call.ready(|ptx| ptx.replace(WAIT, ""));
    for options in few(1) {
        match call.run(&[&hasty[..], &hasty].concat(), &options) {
            Err(SimError::Violation(v)) if v.kind == ViolationKind::Hazard => {
                assert!(v.message.contains(WAIT.trim_end_matches(';')), "{v}");
            }
            other => panic!("{other:?}, not a hazard: {options:?}"),
        }
    }
}

/// Allocating before it waits, it hangs there; in its own order it does not.
fn behind_a_foreign_kernel() {
    let foreign = Arc::new(Entry::new(FOREIGN, "foreign"));
    let foreign = [(foreign, Launch::new("foreign", [3, 1, 1], [32, 1, 1]))];
    for (seed, call) in calls().into_iter().enumerate() {
        let ours = call.ready(unchanged);
        call.demand_right(&[&foreign[..], &ours].concat(), seed as u64);

        let old = call.ready(allocates_first);
        let all = [&foreign[..], &old].concat();
        let ends = few(seed as u64).map(|options| call.run(&all, &options));
        let deadlocks = ends.into_iter().filter_map(|end| match end {
            Ok(()) => None,
            Err(SimError::Deadlock(d)) => Some(d.to_string()),
            Err(error) => panic!("{error}: {}", call.context),
        });
        let deadlocks: Vec<String> = deadlocks.collect();
        assert!(!deadlocks.is_empty(), "no deadlock: {}", call.context);
        for text in deadlocks {
            assert!(
                text.contains("in grid 1 (foreign), for 512 columns"),
                "{text}"
            );
            assert!(text.contains("for the end of grid 1 (foreign)"), "{text}");
            assert!(text.contains("of grid 2 (gemv_tcgen05"), "{text}");
        }
    }
}

/// Moves all waits for the grid before behind the allocation.
fn allocates_first(ptx: &str) -> String {
    let text = ptx.replace(WAIT, "");
    let mut parts = text.split(ALLOC).map(str::to_string);
    let mut all = parts.next().expect("a text");
    for part in parts {
        let (allocation, rest) = part.split_once(';').expect("an instruction");
        all += &format!("{ALLOC}{allocation};\n{WAIT}{rest}");
    }
    all
}
