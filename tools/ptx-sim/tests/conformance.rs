//! The clean-room tcgen05 kernels in `conformance/`, under every timing and many schedules: results
//! must be exact to the bit, and the strict profile must find nothing.

mod common;

use common::conformance::{self, Case, Loaded, module};
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{TensorMap, TensorMapArgs};
use ptx_sim::{Options, Policy, Program, Timing};

/// Every policy with every timing, `seeds` times.
fn sweep(entry: &str, case: fn(u64) -> Case, seeds: u64) {
    let module = module(entry);
    let program = Program::new(&module, entry).expect(entry);
    for seed in 0..seeds {
        let case = case(seed);
        let loaded = Loaded::new(&module, &case);
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
                let at = format!("{}, seed {seed}, {policy}, {timing:?}", case.name);
                let (report, wrong) = loaded
                    .run(&program, &loaded.launch, &options)
                    .unwrap_or_else(|e| panic!("{at}: {e}"));
                assert!(report.warnings.is_empty());
                assert_eq!(wrong, None, "{at}");
            }
        }
    }
}

const PIPELINED: [fn(u64) -> Case; 3] = [
    |s| conformance::mma_pipelined(s, 1, 16, 256),
    |s| conformance::mma_pipelined(s, 2, 5, 768),
    |s| conformance::mma_pipelined(s, 1, 11, 1280),
];

#[test]
fn mma_bf16() {
    sweep("mma_bf16", conformance::mma_bf16, 5);
}

#[test]
fn mma_mxf4nvf4() {
    sweep("mma_mxf4nvf4", conformance::mma_mxf4nvf4, 5);
}

#[test]
fn mma_mxf8f6f4() {
    sweep("mma_mxf8f6f4", conformance::mma_mxf8f6f4, 5);
}

#[test]
fn mma_two_cta() {
    sweep("mma_two_cta", conformance::mma_two_cta, 5);
}

#[test]
fn mma_pipelined() {
    for shape in PIPELINED {
        sweep("mma_pipelined", shape, 5);
    }
}

#[test]
#[ignore = "minutes in a debug build: `cargo xtask check simulator`"]
fn two_hundred_seeds() {
    sweep("mma_bf16", conformance::mma_bf16, 200);
    sweep("mma_mxf4nvf4", conformance::mma_mxf4nvf4, 200);
    sweep("mma_mxf8f6f4", conformance::mma_mxf8f6f4, 200);
    sweep("mma_two_cta", conformance::mma_two_cta, 200);
    for shape in PIPELINED {
        sweep("mma_pipelined", shape, 200);
    }
}

#[test]
fn a_swizzle_that_does_not_match_is_a_warning() {
    let module = module("mma_pipelined");
    let program = Program::new(&module, "mma_pipelined").expect("it decodes");
    let mut loaded = Loaded::new(&module, &conformance::mma_pipelined(1, 1, 16, 256));
    let right = loaded.launch.params[0].clone();
    let map = TensorMap::from_bytes(right[..].try_into().expect("128 bytes")).expect("a map");
    let other = TensorMapArgs {
        swizzle: Swizzle::None,
        ..map.args().clone()
    };
    let other = TensorMap::encode(other).expect("a valid map").to_bytes();
    for (params, warned) in [(right, false), (other.to_vec(), true)] {
        loaded.launch.params[0] = params;
        let options = Options::default();
        let (report, wrong) = loaded
            .run(&program, &loaded.launch, &options)
            .expect("nothing else is wrong with it");
        assert_eq!(wrong.is_some(), warned);
        let text: Vec<_> = report.warnings.iter().map(|w| w.message.as_str()).collect();
        assert_eq!(!text.is_empty(), warned);
        let says = |t: &&str| t.contains("read with swizzle B128 and was written with None");
        assert!(text.iter().all(says), "{text:?}");
    }
}
