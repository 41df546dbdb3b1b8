//! Trials in the simulator, where a read past the data, and a wait that ends before its copy, are errors.

use nvfp4_gemv::kernel::read_only::Read;
use ptx_sim::{Options, Policy, Timing};

use super::{configs, data};
use crate::support::ptx::{self, ALL};
use crate::support::sim;

crate::trials! {
    simulator: every_config_reads_everything_once, without_sums_nothing_is_written;
}

/// Value of the sink before a launch.
const BEFORE: u32 = 5;

/// Demands that the sink holds the right sum after each config has read `bytes` bytes.
fn sums(arch: &'static str, bytes: usize, multiprocessors: u32, sums: bool, policy: Policy) {
    let (data, sum) = data(bytes);
    for config in configs(&sim::gpu(arch)) {
        let mut sim = sim::empty(arch);
        let from = sim.upload("data", if bytes == 0 { &[0; 16] } else { &data });
        let sink = sim.upload("sink", &BEFORE.to_le_bytes()).expect("memory");
        let read = Read {
            data: from.expect("memory").address,
            bytes,
            sink: sink.address,
            sums,
        };
        let planned = config.launch(&read, multiprocessors);
        let context = format!("{config} for {arch}, {multiprocessors} SMs, {bytes} bytes");
        let launch = &sim::launches(&planned).expect("a valid launch")[0];
        // Copies land late: a wait that does not wait finds no data.
        let options = Options {
            policy,
            timing: Timing::Lazy,
            ..Options::default()
        };
        let program = &ptx::entry(planned.entry, arch).program;
        let report = sim
            .run_program(program, launch, &options, None)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(
            report.warnings.is_empty(),
            "{context}: {:?}",
            report.warnings
        );
        let want = if sums {
            BEFORE.wrapping_add(sum)
        } else {
            BEFORE
        };
        assert_eq!(sim.download(sink), want.to_le_bytes(), "{context}");
    }
}

fn every_config_reads_everything_once() {
    for arch in ALL {
        for (bytes, multiprocessors) in [(0, 2), (16, 1), (63, 3), (4096, 1), (20_016, 2)] {
            sums(arch, bytes, multiprocessors, true, Policy::Random(7));
        }
        // More than any ring holds, and than the loads of a grid on one multiprocessor take in two turns.
        sums(arch, (264 << 10) + 272, 1, true, Policy::default());
    }
}

fn without_sums_nothing_is_written() {
    for arch in ALL {
        sums(arch, 20_016, 2, false, Policy::Random(3));
    }
}
