//! The tensor-core kernel behind launches that have not ended, on one multiprocessor. All of the launches share its
//! shared memory and its tensor memory.

use std::mem::offset_of;

use nvfp4_gemv::kernel::params::nvfp4_tcgen05_params as Params;
use nvfp4_gemv::kernel::{Config, Kernel};
use nvfp4_gemv::{Dims, ScaleLayout, Shape};
use ptx_sim::report::ViolationKind;
use ptx_sim::{Allowed, Launch, Options, Relaxation, SimError};

use crate::support::chained::{Chained, WAIT, late_kernel};
use crate::support::operands::{Case, Data};
use crate::support::ptx;
use crate::support::schedules::{few, schedules};
use crate::support::sim::Simulator;

crate::trials! {
    simulator:
        behind_itself, behind_itself_with_all_columns, behind_a_foreign_kernel, what_the_grid_before_writes;
}

const KERNEL: Kernel = Kernel::Tcgen05;
const START: &str = "griddepcontrol.launch_dependents;";
const ALLOC: &str = "tcgen05.alloc";
const FREE: &str = "tcgen05.dealloc";

/// Takes all tensor memory of the multiprocessor, and gives it back.
const TAKES_ALL_COLUMNS: &str = "
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [columns], 512;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    bar.sync 0;
    ld.shared.u32 %r2, [columns];
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;
";

/// Calls of a few vectors and of many, with two configs each among those that `take` wants. The configs are the
/// default, and the config of least shared memory, of which several CTAs have room on a multiprocessor.
fn calls(take: fn(&Chained) -> bool) -> Vec<Chained> {
    let simulator = Simulator::new(ptx::BLACKWELL);
    let of = |(m, n, k)| {
        let shape = Shape::new(Dims { m, n, k, l: 1 }).expect("a shape");
        let case = Case {
            padded: true,
            ..Case::new(shape, Data::Integers, ScaleLayout::Tiled128x4, 3)
        };
        let configs = simulator.job(&case, true, |job| KERNEL.candidates(job));
        let make = |config: &Config| Chained::new(&simulator, &case, *config);
        let mut calls: Vec<Chained> = configs.iter().map(make).filter(take).collect();
        let least = (0..calls.len()).min_by_key(|i| calls[*i].shared());
        let least = least.filter(|i| *i > 0).map(|i| calls.swap_remove(i));
        calls.into_iter().take(1).chain(least)
    };
    let all = [(200, 2, 1056), (300, 16, 512)].map(of);
    all.into_iter().flatten().collect()
}

fn unchanged(ptx: &str) -> String {
    ptx.to_string()
}

/// One call twice: the second launch overwrites the results of the first.
fn behind_itself() {
    for (seed, call) in calls(|_| true).into_iter().enumerate() {
        let one = call.ready(unchanged);
        call.demand_right(&[&one[..], &one].concat(), seed as u64);
    }
    let call = calls(|_| true).remove(0);
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

/// The kernel behind itself, changed to take all tensor memory of its multiprocessor: every two CTAs there want the
/// same columns. The old order lets dependents start and allocates before it waits: two launches of the kernel hang.
/// CTAs in clusters are left out: clusters that wait for each other's columns hang without another launch.
fn behind_itself_with_all_columns() {
    let alone = |call: &Chained| call.planned.iter().all(|launch| launch.cluster <= 1);
    let mut deadlocks = 0;
    for (seed, mut call) in calls(alone).into_iter().enumerate() {
        // Room for CTAs of both, whatever their shared memory.
        call.on.shared = u32::MAX;
        let one = call.ready(all_columns);
        call.demand_right(&[&one[..], &one].concat(), seed as u64);

        let old = call.ready(|ptx| {
            let text = allocates_first(&all_columns(ptx)).replace(START, "");
            text.replace(ALLOC, &format!("{START}\n{ALLOC}"))
        });
        let all = [&old[..], &old].concat();
        for options in schedules(1).into_iter().map(between_the_two) {
            match call.run(&all, &options) {
                Ok(()) => {}
                Err(SimError::Deadlock(d)) => {
                    deadlocks += 1;
                    let text = d.to_string();
                    let line = |grid: &str, does: &str| {
                        let mut lines = text.lines();
                        lines.any(|line| line.contains(grid) && line.contains(does))
                    };
                    let waits = line("in grid 1 (", ", for 512 columns");
                    let holds = line("of grid 2 (", "holds columns 0..512");
                    assert!(waits && holds, "{text}");
                }
                Err(error) => panic!("{error}: {}", call.context),
            }
        }
    }
    assert!(deadlocks > 0, "the old order hangs");
}

/// Options for which no grid before the first launch or behind the last launch holds tensor memory.
fn between_the_two(options: Options) -> Options {
    let allow = Allowed::NONE
        .with(Relaxation::AllocatedBefore)
        .with(Relaxation::LateDependents);
    Options { allow, ..options }
}

/// The kernel hangs behind a foreign kernel if it allocates before it waits. In its own order it does not hang.
fn behind_a_foreign_kernel() {
    let foreign = late_kernel(ptx::BLACKWELL, "foreign", "", TAKES_ALL_COLUMNS);
    let foreign = [(foreign, Launch::new("foreign", [3, 1, 1], [32, 1, 1]))];
    for (seed, call) in calls(|_| true).into_iter().enumerate() {
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

/// The kernel's waits for the grid before have something to wait for. The loading thread waits for the vectors, and the
/// warp that multiplies waits for tensor memory. (Warps that store come behind a barrier with that warp.) If a plan
/// does not tell the kernel that it depends on a grid, the loading thread does not wait.
fn what_the_grid_before_writes() {
    const WAITS: usize = 3;
    for (seed, call) in calls(|_| true).into_iter().enumerate() {
        let writer = [call.writer(TAKES_ALL_COLUMNS)];
        let ours = call.ready(unchanged);
        call.demand_right(&[&writer[..], &ours].concat(), seed as u64);

        let without = |which: usize| {
            call.ready(|ptx| {
                let mut parts = ptx.split(WAIT).enumerate();
                let first = parts.next().map_or("", |(_, text)| text).to_string();
                parts.fold(first, |all, (i, part)| match (i - 1) % WAITS == which {
                    true => all + part,
                    false => all + WAIT + part,
                })
            })
        };
        let mut untold = call.clone();
        for launch in &mut untold.planned {
            let at = offset_of!(Params, dependent);
            let dependent = &mut launch.parameters.bytes_mut()[at..at + 4];
            assert_eq!(*dependent, 1_u32.to_le_bytes());
            dependent.fill(0);
        }
        let untold = untold.ready(unchanged);
        for (what, hasty, hangs) in [
            ("loads", without(0), false),
            ("allocates", without(1), true),
            ("is not told", untold, false),
        ] {
            let mut noticed = 0;
            for options in few(seed as u64) {
                match call.run(&[&writer[..], &hasty].concat(), &options) {
                    // The grid before happens to have ended.
                    Ok(()) => continue,
                    Err(SimError::Violation(v)) if v.kind == ViolationKind::Hazard && !hangs => {
                        let says = WAIT.trim_end_matches(';');
                        assert!(v.message.contains(says), "{what}: {v}");
                    }
                    Err(SimError::Deadlock(_)) if hangs => {}
                    other => panic!("{what}: {other:?}: {}, {options:?}", call.context),
                }
                noticed += 1;
            }
            assert!(noticed > 0, "{what}: {}", call.context);
        }
    }
}

/// The PTX with 512 columns in each instruction that allocates or frees columns.
fn all_columns(ptx: &str) -> String {
    let of = |text: &str, name: &str| {
        let mut parts = text.split(name);
        let mut all = parts.next().expect("a text").to_string();
        for part in parts {
            let (operands, rest) = part.split_once(';').expect("an instruction");
            let (address, _) = operands.rsplit_once(',').expect("operands");
            all += &format!("{name}{address}, 512;{rest}");
        }
        all
    };
    of(&of(ptx, ALLOC), FREE)
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
