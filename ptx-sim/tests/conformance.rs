//! The clean-room tcgen05 kernels in `conformance/`, under every timing and many schedules: results
//! must be exact to the bit, and the strict profile must find nothing.

#[path = "conformance_data.rs"]
#[allow(dead_code, unused_imports)]
mod data;

#[path = "support/kernel.rs"]
mod kernel;

use data::Case;
use kernel::{Kernel, load, prepare};
use ptx_sim::{Options, Policy, SimError, Timing};

fn run(kernel: &Kernel, case: &Case, options: &Options) -> Result<(), SimError> {
    let (mut sim, launch, out) = prepare(kernel, case)?;
    let report = sim.run_program(&kernel.program, &launch, options, None)?;
    assert!(report.warnings.is_empty());
    assert!(
        sim.fully_written(out),
        "{}: an output byte was not written",
        case.name
    );
    for (i, (got, want)) in sim
        .download(out)
        .chunks_exact(4)
        .zip(&case.expected)
        .enumerate()
    {
        let got = u32::from_le_bytes([got[0], got[1], got[2], got[3]]);
        let (g, w) = (f32::from_bits(got), *want);
        assert_eq!(
            got,
            want.to_bits(),
            "{} element {i}: {g} instead of {w} with {options:?}",
            case.name
        );
    }
    Ok(())
}

/// Every policy with every timing, `seeds` times.
fn sweep(entry: &str, case: fn(u64) -> Case, seeds: u64) {
    let kernel = load(entry);
    for seed in 0..seeds {
        let case = case(seed);
        for policy in [Policy::Fair, Policy::Random(seed), Policy::Starve(seed)] {
            for timing in [Timing::Eager, Timing::Lazy, Timing::Random] {
                if policy == Policy::Fair && seed > 0 && timing != Timing::Random {
                    continue;
                }
                let options = Options {
                    policy,
                    timing,
                    budget: 50_000_000,
                    ..Options::default()
                };
                run(&kernel, &case, &options)
                    .unwrap_or_else(|e| panic!("{entry}, seed {seed}, {policy}, {timing:?}: {e}"));
            }
        }
    }
}

#[test]
fn mma_bf16() {
    sweep("mma_bf16", data::mma_bf16, 20);
}

#[test]
fn mma_mxf4nvf4() {
    sweep("mma_mxf4nvf4", data::mma_mxf4nvf4, 20);
}

#[test]
fn mma_mxf8f6f4() {
    sweep("mma_mxf8f6f4", data::mma_mxf8f6f4, 20);
}

#[test]
fn mma_two_cta() {
    sweep("mma_two_cta", data::mma_two_cta, 20);
}

#[test]
fn mma_pipelined() {
    let shapes: [fn(u64) -> Case; 3] = [
        |s| data::mma_pipelined(s, 1, 16, 256),
        |s| data::mma_pipelined(s, 2, 5, 768),
        |s| data::mma_pipelined(s, 1, 11, 1280),
    ];
    for shape in shapes {
        sweep("mma_pipelined", shape, 20);
    }
}

#[test]
#[ignore = "takes minutes; run it in release mode"]
fn two_hundred_seeds() {
    sweep("mma_bf16", data::mma_bf16, 200);
    sweep("mma_mxf4nvf4", data::mma_mxf4nvf4, 200);
    sweep("mma_mxf8f6f4", data::mma_mxf8f6f4, 200);
    sweep("mma_two_cta", data::mma_two_cta, 200);
    sweep("mma_pipelined", |s| data::mma_pipelined(s, 2, 5, 768), 200);
}
