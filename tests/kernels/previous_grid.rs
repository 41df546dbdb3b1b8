//! Every kernel behind a grid that has not ended, and that writes late: vectors, their scales, factors, bias, residual,
//! ids of a selection. The tensor-core kernel, which shares more than memory with that grid, has its own trials:
//! `overlap.rs`.

use nvfp4_gemv::kernel::params::nvfp4_ring_params;
use nvfp4_gemv::kernel::{Config, Kernel, RingConfig, StreamConfig};
use nvfp4_gemv::{Activation, FloatType, ScaleLayout, Shape};
use ptx_sim::report::ViolationKind;
use ptx_sim::{Launch, SimError};

use crate::ring::refuse::COUNTING;
use crate::support::chained::{Chained, Ready, WAIT, late_kernel};
use crate::support::operands::{Bias, Case, Data, Residual};
use crate::support::schedules::few;
use crate::support::sim::Simulator;
use crate::support::{ptx, sized};

crate::trials! {
    simulator:
        every_kernel_of_hopper, consumer_blackwell, counters_of_the_call_before;
}

/// The default config; for `stream`, with each place at which it can wait; and one that bundles batches.
fn configs(simulator: &Simulator, case: &Case, kernel: Kernel) -> Vec<Config> {
    simulator.job(case, true, |job| {
        let Ok(default) = kernel.default_config(job) else {
            return Vec::new();
        };
        let bundles = |config: &Config| matches!(config, Config::Packed(packed) if packed.bundle);
        let bundling = kernel.candidates(job).into_iter().find(bundles);
        let Config::Stream(stream) = default else {
            return [default].into_iter().chain(bundling).collect();
        };
        let behind = |behind| StreamConfig { behind, ..stream }.into();
        (0..stream.stages).map(behind).collect()
    })
}

/// Demands that the call runs to its end with the right result, and that without its waits it reads too early.
fn check(call: &Chained, seed: u64) {
    let writer = [call.writer("")];
    let ours = call.ready(str::to_string);
    call.demand_right(&[&writer[..], &ours].concat(), seed);

    demand_noticed(call, &writer, seed, "");
}

/// Demands that a grid before, which writes an operand, is noticed where the call does not wait for the grid.
fn demand_noticed(call: &Chained, writer: &[Ready], seed: u64, operand: &str) {
    let hasty = call.ready(|ptx| ptx.replace(WAIT, ""));
    let all = [writer, &hasty].concat();
    let mut noticed = 0;
    for options in few(seed) {
        match call.run(&all, &options) {
            // The grid before happens to have ended.
            Ok(()) => {}
            // A later one of several launches may find that the first launch has not written yet.
            Err(SimError::Violation(v)) => {
                let early = v.message.contains(WAIT.trim_end_matches(';'));
                let early = early && v.kind == ViolationKind::Hazard;
                assert!(early || call.planned.len() > 1, "{v}");
                // Without waits, a later launch fails by what the first one writes, before it reads the operand.
                noticed += usize::from(call.planned.len() > 1 || v.message.contains(operand));
            }
            other => panic!("{other:?}: {}, {options:?}", call.context),
        }
    }
    assert!(noticed > 0, "{}", call.context);
}

/// The case with batches that select matrices, by ids that the grid before writes.
fn selecting(case: Case) -> Case {
    Case {
        shape: sized(case.shape.m(), case.shape.n(), case.shape.k(), 3),
        select: true,
        late: true,
        ..case
    }
}

/// Checks calls of a kernel, and returns their number.
fn calls_of(kernel: Kernel, simulator: &Simulator) -> usize {
    let mut calls = 0;
    for (turn, activation) in Activation::ALL.into_iter().enumerate() {
        // Rows are whole atoms: `ring` would compute rows past M from whatever is there.
        let shape = sized(128, [1, 3][turn % 2], 512, 1);
        let layout = ScaleLayout::ALL[turn / 2 % 2];
        let plain = Case {
            activation,
            ..Case::new(shape, Data::Integers, layout, 3)
        };
        let with_operands = Case {
            row_alpha: true,
            vector_alpha: activation == Activation::Nvfp4,
            bias: Bias::Shared,
            residual: Residual::Apart,
            ..plain
        };
        let selecting = selecting(plain);
        // Elements that are quantised when they are read, of each type in turn.
        let on_read = Case {
            activation: Activation::Nvfp4,
            on_read: Some(FloatType::ALL[turn % 3]),
            data: Data::FullRange,
            ..plain
        };
        for (has_all, case) in [
            (false, plain),
            (false, selecting),
            (false, on_read),
            (true, with_operands),
        ] {
            for (i, config) in configs(simulator, &case, kernel).into_iter().enumerate() {
                let call = Chained::new(simulator, &case, config);
                check(&call, calls as u64);
                calls += 1;
                // A wait that is missing shows by each operand alone: none of them is read where nobody looks.
                if i == 0 && turn == 0 && (has_all || case.late) {
                    let mut operands = call.late_operands();
                    match has_all {
                        true => assert_eq!(operands.len(), 6, "{operands:?}"),
                        false => operands.retain(|(operand, _)| *operand == "select"),
                    }
                    for (operand, address) in operands {
                        let writer = [call.writer_of(&[address], "")];
                        demand_noticed(&call, &writer, 1, &format!("{operand}+"));
                    }
                }
            }
        }
    }
    calls
}

/// Checks all kernels but those of Blackwell.
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

/// A grid that writes a zero to the counter of a call of `ring`, and ends long after.
fn counter_writer(call: &Chained) -> Ready {
    const LATE: &str = "
    ld.param.u64 %rd1, [counter];
    mov.u32 %r2, 0;
    st.global.u32 [%rd1], %r2;
AGAIN:
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p, %r2, 5000;
    @%p bra AGAIN;
";
    let at = std::mem::offset_of!(nvfp4_ring_params, counters);
    let counter = &call.planned[0].parameters.bytes()[at..][..8];
    let launch = Launch::new("counts", [1, 1, 1], [32, 1, 1]).bytes(counter);
    (
        late_kernel("90a", "counts", ".param .u64 counter", LATE),
        launch,
    )
}

/// `ring` counts units in the workspace only when the grid before is over. Calls that share a workspace may overlap.
fn counters_of_the_call_before() {
    let simulator = Simulator::with_multiprocessors("90a", 4);
    let config = RingConfig {
        ctas: 2,
        ..COUNTING
    };
    let shape = Shape::matrix(96, 512).expect("a shape");
    let case = Case::new(shape, Data::Integers, ScaleLayout::Linear, 3);
    let call = Chained::new(&simulator, &case, config.into());
    let (vectors, counter) = ([call.writer("")], [counter_writer(&call)]);
    let ours = call.ready(str::to_string);
    call.demand_right(&[&vectors[..], &ours, &ours].concat(), 1);
    call.demand_right(&[&counter[..], &ours, &ours].concat(), 2);

    let hasty = call.ready(|ptx| ptx.replace(WAIT, ""));
    let early = few(3).iter().all(|options| {
        let ran = call.run(&[&counter[..], &hasty].concat(), options);
        matches!(ran, Err(SimError::Violation(v)) if v.kind == ViolationKind::Hazard && v.message.contains("workspace"))
    });
    assert!(early, "{}", call.context);
}
