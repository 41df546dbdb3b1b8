//! Every kernel behind a grid that has not ended, and that writes the vectors late. The tensor-core kernel, which shares
//! more than memory with that grid, has trials of its own: `overlap.rs`.

use nvfp4_gemv::kernel::{Config, Kernel, StreamConfig};
use nvfp4_gemv::{Activation, Dims, ScaleLayout, Shape};
use ptx_sim::SimError;
use ptx_sim::report::ViolationKind;

use crate::support::chained::{Chained, WAIT};
use crate::support::operands::{Case, Data};
use crate::support::ptx;
use crate::support::schedules::few;
use crate::support::sim::Simulator;

crate::trials! {
    simulator:
        every_kernel_of_hopper, consumer_blackwell;
}

/// The default, and of `stream` all places at which it can wait.
fn configs(simulator: &Simulator, case: &Case, kernel: Kernel) -> Vec<Config> {
    simulator.job(case, true, |job| {
        let Ok(default) = kernel.default_config(job) else {
            return Vec::new();
        };
        let Config::Stream(stream) = default else {
            return vec![default];
        };
        let behind = |behind| StreamConfig { behind, ..stream }.into();
        (0..stream.stages).map(behind).collect()
    })
}

/// It runs to its end with the right result. Without its waits it reads too early.
fn check(call: &Chained, seed: u64) {
    let writer = [call.writer("")];
    let ours = call.ready(str::to_string);
    call.demand_right(&[&writer[..], &ours].concat(), seed);

    let hasty = call.ready(|ptx| ptx.replace(WAIT, ""));
    let all = [&writer[..], &hasty].concat();
    let mut noticed = 0;
    for options in few(seed) {
        match call.run(&all, &options) {
            // Where the grid before happens to have ended.
            Ok(()) => {}
            // Of several launches a later one may find what the first has not written yet.
            Err(SimError::Violation(v)) => {
                let early = v.message.contains(WAIT.trim_end_matches(';'));
                let early = early && v.kind == ViolationKind::Hazard;
                assert!(early || call.planned.len() > 1, "{v}");
                noticed += 1;
            }
            other => panic!("{other:?}: {}, {options:?}", call.context),
        }
    }
    assert!(noticed > 0, "{}", call.context);
}

/// How many calls of a kernel there were.
fn calls_of(kernel: Kernel, simulator: &Simulator) -> usize {
    let mut calls = 0;
    for (turn, activation) in Activation::ALL.into_iter().enumerate() {
        let shape = Shape::new(Dims {
            // Whole atoms: `ring` computes rows past M from what happens to be there.
            m: 128,
            n: [1, 3][turn % 2],
            k: 512,
            l: 1,
        });
        let layout = ScaleLayout::ALL[turn / 2 % 2];
        let case = Case {
            activation,
            ..Case::new(shape.expect("a shape"), Data::Integers, layout, 3)
        };
        for config in configs(simulator, &case, kernel) {
            check(&Chained::new(simulator, &case, config), calls as u64);
            calls += 1;
        }
    }
    calls
}

/// Of all kernels but those of Blackwell.
fn every_kernel_of_hopper() {
    let simulator = Simulator::with_multiprocessors("90a", 4);
    for &kernel in Kernel::ALL {
        let blackwells = matches!(kernel, Kernel::Tcgen05 | Kernel::MmaFp4);
        assert_eq!(calls_of(kernel, &simulator) == 0, blackwells, "{kernel:?}");
    }
}

fn consumer_blackwell() {
    let calls = calls_of(Kernel::MmaFp4, &Simulator::new(ptx::CONSUMER));
    assert!(calls > 0);
}
