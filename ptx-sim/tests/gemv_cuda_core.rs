//! The project's CUDA-core kernels, as nvcc compiles them, against an f64 computation.
//!
//! Needs nvcc (`NVCC`, or on the `PATH`); without it the tests say so and pass.

mod common;

use common::cuda_core::{Activation, Case, Problem};
use common::nvcc::compile;
use ptx_sim::{Module, Options, Policy, Program};

const ARCHES: [&str; 3] = ["compute_80", "compute_90a", "compute_100a"];

fn check(module: &Module, c: &Case, policy: Policy) {
    let kernel = c.kernel();
    let program = Program::new(module, &kernel).unwrap_or_else(|e| panic!("{kernel}: {e}"));
    let p = Problem::new(module, c);
    let options = Options {
        policy,
        ..Options::default()
    };
    let (_, wrong) = p
        .run(&program, &p.launch, &options)
        .unwrap_or_else(|e| panic!("{kernel}: {e}"));
    assert_eq!(wrong, None, "{kernel}");
}

fn family(unit: &str, activation: Activation, ctas: &[Option<usize>]) {
    for arch in ARCHES {
        let Some(ptx) = compile(unit, arch) else {
            return;
        };
        let module = Module::parse(&ptx).unwrap();
        for &ctas in ctas {
            for n in [1, 2, 3, 5] {
                for blocks_per_load in [1, 2] {
                    for tiled in [false, true] {
                        for exact in [true, false] {
                            let c = Case {
                                activation,
                                m: 13,
                                n,
                                k: if exact { 1056 } else { 288 },
                                batches: 1 + usize::from(exact && n == 1),
                                blocks_per_load,
                                warps: 4,
                                k_split: if exact { 2 } else { 1 },
                                tiled,
                                ctas,
                                exact,
                                half: false,
                            };
                            let policy = if tiled {
                                Policy::Random(n as u64)
                            } else {
                                Policy::Fair
                            };
                            check(&module, &c, policy);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn nvfp4_vectors() {
    family("gemv_cuda_core_nvfp4", Activation::Nvfp4, &[None]);
}

#[test]
fn f16_vectors() {
    family("gemv_cuda_core_f16", Activation::F16, &[None]);
}

#[test]
fn bf16_vectors() {
    family("gemv_cuda_core_bf16", Activation::Bf16, &[None]);
}

#[test]
fn f32_vectors() {
    family("gemv_cuda_core_f32", Activation::F32, &[None]);
}

#[test]
fn nvfp4_vectors_with_integer_dot_products() {
    family("gemv_nvfp4", Activation::Nvfp4, &[Some(1), Some(3)]);
}

/// Loads of 32 bytes: results are bit for bit what exact sums of blocks give in the kernel's order. K ends in
/// the middle of a warp's step, or has fewer steps than warps share; rows end in the middle of a tile.
#[test]
fn nvfp4_vectors_with_four_blocks_a_load() {
    for arch in ["compute_100a", "compute_103a", "compute_120a"] {
        let Some(ptx) = compile("gemv_nvfp4_wide", arch) else {
            return;
        };
        let module = Module::parse(&ptx).unwrap();
        for (k, k_split, m, ctas) in [
            (64, 1, 5, 1),
            (1088, 2, 13, 3),
            (4160, 2, 6, 2),
            (6208, 4, 3, 1),
        ] {
            for n in [1, 2, 3, 8] {
                for tiled in [false, true] {
                    for exact in [true, false] {
                        let c = Case {
                            activation: Activation::Nvfp4,
                            m: if tiled && k < 2048 { m + 128 } else { m },
                            n,
                            k,
                            batches: 1 + usize::from(n == 1),
                            blocks_per_load: 4,
                            warps: 4,
                            k_split,
                            tiled,
                            ctas: Some(ctas),
                            exact,
                            half: false,
                        };
                        let policy = match tiled {
                            true => Policy::Random(n as u64),
                            false => Policy::Fair,
                        };
                        check(&module, &c, policy);
                    }
                }
            }
        }
    }
}
