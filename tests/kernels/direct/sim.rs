//! `gemv_direct`, for vectors of all types.

use nvfp4_gemv::kernel::DirectConfig;
use nvfp4_gemv::kernel::params::nvfp4_direct_params as Params;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::mutate::{Kind, Mutant, Score};
use ptx_sim::{Policy, Timing, Uninitialised};

use crate::support::faults::{
    ALL_MATRICES, ANY_OPERAND, At, NO_BIAS, NOT_LATE, Run, demand, demand_right_plans, subject,
};
use crate::support::operands::{Case, Data};
use crate::support::passes::{MANY_VECTORS, check_passes};
use crate::support::ptx::ALL;
use crate::support::schedules::options;
use crate::support::sim::Simulator;
use crate::support::sized;

crate::trials! {
    simulator:
        nvfp4 = || check(Activation::Nvfp4),
        f16 = || check(Activation::F16),
        bf16 = || check(Activation::Bf16),
        f32 = || check(Activation::F32),
        many_vectors, select, faults_nvfp4, faults_f16, wrong_plans;
    long: all_faults_nvfp4, sampled_faults;
}

/// Every type, number of vectors and layout, on every architecture. Blocks a load and parts of K take turns.
fn check(activation: Activation) {
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
                    let case = Case {
                        activation,
                        ..Case::new(sized(13, n, k, l), data, layout, 3)
                            .with_additions(3 + 2 * i + usize::from(exact))
                            .with_bias_of_batches()
                    };
                    let policy = match layout {
                        ScaleLayout::Tiled128x4 => Policy::Random(n as u64),
                        ScaleLayout::Linear => Policy::Fair,
                    };
                    let blocks: &[u32] = if n == 1 { &[1, 2] } else { &[1 + i as u32 % 2] };
                    for &blocks_per_load in blocks {
                        let config = DirectConfig {
                            blocks_per_load,
                            warps: 4,
                            k_split: if exact { 2 } else { 1 },
                            ..DirectConfig::DEFAULT
                        };
                        simulator.check(&case, config, n == 2, &options(policy, Timing::Eager));
                    }
                }
            }
        }
    }
}

/// Batches that select one of fewer matrices, and indices of matrices that do not exist.
fn select() {
    for simulator in ["80", "90a"].map(Simulator::new) {
        for (i, activation) in Activation::ALL.into_iter().enumerate() {
            for layout in ScaleLayout::ALL {
                for (j, data) in Data::BOTH.into_iter().enumerate() {
                    let n = 1 + 2 * j;
                    let case = Case {
                        activation,
                        select: true,
                        row_alpha: true,
                        ..Case::new(sized(13, n, 288, 5), data, layout, 3).with_additions(2 * i + j)
                    };
                    let config = DirectConfig {
                        blocks_per_load: 1 + j as u32,
                        warps: 4,
                        k_split: 2,
                        ..DirectConfig::DEFAULT
                    };
                    let options = options(Policy::Random(i as u64), Timing::Eager);
                    for case in case.with_unknown_ids().into_iter().chain([case]) {
                        simulator.check(&case, config, i % 2 == 0, &options);
                    }
                }
            }
        }
    }
}

/// Cases of each of [`MANY_VECTORS`] in both layouts of the weights' scales and of the vectors' scales. For some
/// numbers of vectors both have the same layout.
pub(crate) fn many(activation: Activation, (m, k): (usize, usize)) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, n) in MANY_VECTORS.into_iter().enumerate() {
        for weight_layout in ScaleLayout::ALL {
            for vector_layout in ScaleLayout::ALL {
                let once = match activation {
                    Activation::Nvfp4 => [17, 64].contains(&n) && vector_layout != weight_layout,
                    // Vectors without scales have one layout.
                    _ => vector_layout != ScaleLayout::Linear,
                };
                if once {
                    continue;
                }
                let turn = cases.len() + i;
                let data = [Data::Integers, Data::FullRange][turn % 2];
                let l = 1 + usize::from(n < 64);
                let shape = sized(m, n, k, l);
                cases.push(Case {
                    activation,
                    vector_layout,
                    vector_alpha: turn % 3 == 1 && activation == Activation::Nvfp4,
                    padded: turn % 4 < 2,
                    ..Case::new(shape, data, weight_layout, turn as u64)
                });
            }
        }
    }
    cases
}

fn many_vectors() {
    let simulator = Simulator::new("90a");
    for activation in [Activation::Nvfp4, Activation::F16] {
        for (i, case) in many(activation, (5, 96)).into_iter().enumerate() {
            let config = DirectConfig {
                blocks_per_load: 1 + i as u32 % 2,
                warps: 2,
                k_split: 1 + i as u32 / 2 % 2,
                ..DirectConfig::DEFAULT
            };
            let options = options(Policy::Random(i as u64), Timing::Eager);
            check_passes(&simulator, &case, config, i % 3 == 0, &options);
        }
    }
}

/// Launches of one kernel that together do all that it does, on two batches. In the first launch rows lie in two
/// 128-row tiles of scales. In the second launch warps take two steps, then a last tile of one row, with one vector
/// less if the same kernel takes it. The third launch has f16 results.
fn runs(
    arch: &'static str,
    activation: Activation,
    n: usize,
    sizes: [(usize, usize); 3],
    config: impl Fn(u32) -> nvfp4_gemv::kernel::Config,
) -> Vec<Run> {
    use ScaleLayout::{Linear, Tiled128x4};
    let fewer = if n > 2 { n - 1 } else { n };
    [
        (Tiled128x4, sizes[0], 2, n, FloatType::F32),
        (Linear, sizes[1], 1, fewer, FloatType::F32),
        (Linear, sizes[2], 1, n, FloatType::F16),
    ]
    .map(|(layout, (m, k), k_split, n, output)| {
        let shape = sized(m, n, k, 2);
        let case = Case {
            activation,
            output,
            row_alpha: output == FloatType::F32,
            vector_alpha: output == FloatType::F32 && activation == Activation::Nvfp4,
            ..Case::new(shape, Data::Integers, layout, 5)
        };
        Run::new(arch, &case, config(k_split), false, Uninitialised::Error)
    })
    .into()
}

/// Schedules for these kernels, which have nothing asynchronous: timing does not matter.
fn policies() -> Vec<(Policy, Timing)> {
    use Policy::{Fair, Random, Starve};
    [Fair, Starve(0), Random(1), Starve(1), Random(2)]
        .map(|policy| (policy, Timing::Eager))
        .to_vec()
}

/// Whether a fault is of a kind of which every fault in these kernels shows. Which faults of other kinds are equivalent
/// depends on the compiler that wrote the PTX, so no list is kept.
fn shared_memory(mutant: &Mutant) -> bool {
    use Kind::{DropBarrier, DropShuffle, DropStore, LateWait, ShuffleLane};
    matches!(
        mutant.kind,
        DropBarrier | LateWait | DropStore | DropShuffle | ShuffleLane
    )
}

fn sample(mutant: &Mutant) -> bool {
    !shared_memory(mutant) && mutant.is_in_share(32)
}

/// The list of faults in compiled kernels.
const LIST: &str = include_str!("equivalent_faults.txt");

/// Plants one in 32 of the faults. Demands that survivors are of kinds that the list explains, and at most a quarter of
/// the faults. The list's patterns are broader than for PTX that does not change. A few dozen faults are so few that
/// copies of one equivalent fault weigh much.
fn demand_sampled(name: &str, arch: &'static str, runs: Vec<Run>) {
    // A CTA that works on all batches meets its own shared memory again.
    let runs = runs.into_iter().map(Run::in_one_row).collect();
    let subject = subject(name, arch, runs, policies(), sample);
    let score: Score = demand(&subject, LIST, 20);
    assert!(score.total_caught() * 4 >= score.mutants * 3, "{score}");
}

/// Demands that every fault of shared memory and shuffles is noticed.
fn demand_all(name: &str, arch: &'static str, runs: Vec<Run>, pick: fn(&Mutant) -> bool) {
    let runs = runs.into_iter().map(Run::in_one_row).collect();
    let subject = subject(name, arch, runs, policies(), pick);
    demand(&subject, LIST, 30);
}

/// M and K of each launch of [`runs`].
const LARGE: [(usize, usize); 3] = [(130, 1120), (57, 1088), (13, 288)];

fn direct(
    activation: Activation,
    n: usize,
    blocks_per_load: u32,
    sizes: [(usize, usize); 3],
) -> Vec<Run> {
    runs("90a", activation, n, sizes, |k_split| {
        let config = DirectConfig {
            blocks_per_load,
            warps: 4,
            k_split,
            ..DirectConfig::DEFAULT
        };
        config.into()
    })
}

fn faults_nvfp4() {
    let runs = direct(Activation::Nvfp4, 8, 2, LARGE);
    let pick = |mutant: &Mutant| shared_memory(mutant) && mutant.is_in_share(8);
    demand_all("gemv_direct", "90a", runs, pick);
}

fn all_faults_nvfp4() {
    let runs = direct(Activation::Nvfp4, 8, 2, LARGE);
    demand_all("gemv_direct", "90a", runs, shared_memory);
}

fn faults_f16() {
    let runs = direct(Activation::F16, 1, 1, LARGE);
    demand_all("gemv_direct", "90a", runs, shared_memory);
}

fn sampled_faults() {
    for (activation, n, config) in [(Activation::Nvfp4, 8, 2), (Activation::F16, 1, 1)] {
        demand_sampled("gemv_direct", "90a", direct(activation, n, config, LARGE));
    }
}

/// Faults of launch plans that change nothing.
fn harmless() -> Vec<(At, &'static str)> {
    let words = crate::words![Params:
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
    ];
    let grid = [(At::Grid(1), "CTAs stride over batches")];
    [&words[..], &grid].concat()
}

fn wrong_plans() {
    let own = crate::words![Params:
        select.matrices = ALL_MATRICES,
        select.late = NOT_LATE,
    ];
    let harmless = [&harmless()[..], &own].concat();
    let runs = direct(Activation::Nvfp4, 8, 2, [(130, 544), (17, 1088), (5, 288)]);
    demand_right_plans("90a", &runs, &harmless, 1);
}
