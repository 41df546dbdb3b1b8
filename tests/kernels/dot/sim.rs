//! `gemv_dot`: integer products, and f16 products of four blocks a load.

use std::sync::Arc;

use nvfp4_gemv::format::{e2m1, e4m3};
use nvfp4_gemv::kernel::DotConfig;
use nvfp4_gemv::kernel::params::nvfp4_direct_params as Params;
use nvfp4_gemv::{Activation, Dims, FloatType, ScaleLayout, Shape};
use nvfp4_gemv_cli::problem::Problem;
use ptx_sim::{Policy, Timing};

use crate::direct::sim::{LARGE, demand_all, demand_sampled, harmless, many, runs, shared_memory};
use crate::support::faults::{Run, demand_right_plans};
use crate::support::operands::{Case, Data, Operands, numbers};
use crate::support::passes::check_passes;
use crate::support::ptx::ALL;
use crate::support::schedules::options;
use crate::support::sim::Simulator;

crate::trials! {
    simulator:
        integer_products, many_vectors,
        wide_loads = || wide("100a", 3),
        faults = || demand_all("gemv_dot", "90a", dot("90a", 2, LARGE), shared_memory),
        faults_wide = || demand_all("gemv_dot_wide", "100a", dot("100a", 4, WIDE), shared_memory),
        wrong_plans;
    long: wide_loads_everywhere, sampled_faults;
}

fn policy(layout: ScaleLayout, n: usize) -> Policy {
    match layout {
        ScaleLayout::Tiled128x4 => Policy::Random(n as u64),
        ScaleLayout::Linear => Policy::Fair,
    }
}

fn integer_products() {
    for simulator in ALL.map(Simulator::new) {
        for (i, n) in [1, 2, 3, 5, 11].into_iter().enumerate() {
            for layout in ScaleLayout::ALL {
                for data in [Data::Integers, Data::FullRange] {
                    let exact = data == Data::Integers;
                    let (k, l) = if exact {
                        (1056, 1 + usize::from(n == 1))
                    } else {
                        (288, 1)
                    };
                    let shape = Shape::new(Dims { m: 13, n, k, l }).expect("a shape");
                    let case = Case::new(shape, data, layout, 3)
                        .with_additions(3 + 2 * i + usize::from(exact))
                        .with_bias_of_batches();
                    for (ctas, blocks_per_load) in [(1, 1 + u32::from(exact)), (3, 2)] {
                        let config = DotConfig {
                            blocks_per_load,
                            warps: 4,
                            k_split: if exact { 2 } else { 1 },
                            ctas,
                            ..DotConfig::DEFAULT
                        };
                        let options = options(policy(layout, n), Timing::Eager);
                        simulator.check(&case, config, n == 2, &options);
                    }
                }
            }
        }
    }
}

fn many_vectors() {
    let simulator = Simulator::new("90a");
    for (i, case) in many(Activation::Nvfp4, (5, 96)).into_iter().enumerate() {
        let config = DotConfig {
            blocks_per_load: 1 + i as u32 % 2,
            warps: 2,
            k_split: 1 + i as u32 / 2 % 2,
            ctas: 1 + i as u32 % 2,
            ..DotConfig::DEFAULT
        };
        let options = options(Policy::Random(i as u64), Timing::Eager);
        check_passes(&simulator, &case, config, i % 3 == 0, &options);
    }
}

/// A dot product as four blocks a load order it, from each block's exact sum and the product of its scales.
fn in_wide_order(blocks: &[(f32, f32)], k_split: usize) -> f32 {
    let parts = (0..k_split).map(|part| {
        let mut lanes = [0f32; 32];
        for span in blocks.chunks(128).skip(part).step_by(k_split) {
            for (lane, own) in span.chunks(4).enumerate() {
                for &(sum, scale) in own {
                    lanes[lane] = sum.mul_add(scale, lanes[lane]);
                }
            }
        }
        for offset in [16, 8, 4, 2, 1] {
            lanes = std::array::from_fn(|i| lanes[i] + lanes[i ^ offset]);
        }
        lanes[0]
    });
    parts.fold(0.0, |y, part| y + part)
}

/// A block's exact sum, and the product of its scales.
fn block(problem: &Problem, row: usize, vector: usize, block: usize) -> (f32, f32) {
    let (bytes, blocks) = (problem.shape.row_code_bytes(), problem.shape.blocks());
    let code = |codes: &[u8], row: usize, i: usize| {
        e2m1::decode(e2m1::unpack(&codes[row * bytes..], block * 16 + i))
    };
    let products = (0..16).map(|i| code(&problem.a, row, i) * code(&problem.b, vector, i));
    let scale = |scales: &[u8], row: usize| e4m3::decode(scales[row * blocks + block]);
    let scales = scale(&problem.sfa, row) * scale(&problem.sfb, vector);
    (products.sum::<f32>(), scales)
}

/// Loads of 32 bytes: results are bit for bit what exact sums of blocks give in the kernel's order. K ends in
/// the middle of a warp's step, or has fewer steps than warps share; rows end in the middle of a tile.
fn wide(arch: &'static str, every: usize) {
    let simulator = Simulator::new(arch);
    let mut turn = 0;
    for (k, k_split, m, ctas) in [
        (64, 1, 5, 1),
        (1088, 2, 13, 3),
        (4160, 2, 6, 2),
        (6208, 4, 3, 1),
    ] {
        for n in [1, 2, 3, 8] {
            for layout in ScaleLayout::ALL {
                for data in [Data::Integers, Data::FullRange] {
                    turn += 1;
                    if turn % every != 0 {
                        continue;
                    }
                    let tall = layout == ScaleLayout::Tiled128x4 && k < 2048;
                    let m = if tall { m + 128 } else { m };
                    let l = 1 + usize::from(n == 1);
                    let shape = Shape::new(Dims { m, n, k, l }).expect("a shape");
                    let problem = match data {
                        Data::Integers => Problem::integers(shape, 11),
                        _ => Problem::full_range(shape, 11),
                    };
                    let case = Case::new(shape, data, layout, 11);
                    let operands = Arc::new(Operands::of(&case, &problem));
                    let config = DotConfig {
                        blocks_per_load: 4,
                        warps: 4,
                        k_split,
                        ctas,
                        ..DotConfig::DEFAULT
                    };
                    // GPUs of sm_120 have less shared memory than others.
                    if arch == "120a" && !simulator.takes(&case, config) {
                        continue;
                    }
                    let options = options(policy(layout, n), Timing::Eager);
                    let output = simulator.run(&operands, config, false, &options);
                    let alpha = problem.alpha.as_ref().map_or(1.0, |alpha| alpha[0]);
                    for (i, got) in numbers(&output, FloatType::F32).enumerate() {
                        let (vector, row) = (i / m, i / (n * m) * m + i % m);
                        let blocks: Vec<(f32, f32)> = (0..shape.blocks())
                            .map(|b| block(&problem, row, vector, b))
                            .collect();
                        let want = in_wide_order(&blocks, k_split as usize) * alpha;
                        assert_eq!(got as f32, want, "{case:?}, element {i}");
                    }
                }
            }
        }
    }
}

fn wide_loads_everywhere() {
    for arch in ["100a", "103a", "120a"] {
        wide(arch, 1);
    }
}

fn dot(arch: &'static str, blocks_per_load: u32, sizes: [(usize, usize); 3]) -> Vec<Run> {
    runs(arch, Activation::Nvfp4, 2, sizes, |k_split| {
        let config = DotConfig {
            blocks_per_load,
            warps: 4,
            k_split,
            ctas: 3,
            ..DotConfig::DEFAULT
        };
        config.into()
    })
}

const WIDE: [(usize, usize); 3] = [(226, 4224), (57, 2176), (13, 320)];

fn sampled_faults() {
    demand_sampled("gemv_dot", "90a", dot("90a", 2, LARGE));
    demand_sampled("gemv_dot_wide", "100a", dot("100a", 4, WIDE));
}

fn wrong_plans() {
    let integer = dot("90a", 2, [(130, 544), (17, 1088), (5, 288)]);
    let n = crate::words![Params:
        n = "the kernel of two has no more vectors",
    ];
    let left = crate::words![Params:
        tiles_left = "one tile more for every CTA gives all of them, too"
    ];
    let both = [&harmless()[..], &n].concat();
    demand_right_plans("90a", &integer, &[&both[..], &left].concat(), 1);
    let wide = dot("100a", 4, [(130, 320), (9, 2176), (5, 320)]);
    demand_right_plans("100a", &wide, &both, 1);
}
