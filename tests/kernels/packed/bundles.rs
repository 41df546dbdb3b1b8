//! `gemv_packed` with bundles: batches that select the same matrix are multiplied together.

use nvfp4_gemv::kernel::PackedConfig;
use nvfp4_gemv::kernel::params::nvfp4_bundle_params as BundleParams;
use nvfp4_gemv::{Activation, FloatType, ScaleLayout};
use ptx_sim::{Uninitialised, mutate};

use crate::support::faults::{
    ALL_MATRICES, At, Run, SAMPLE, demand, demand_right_plans, no_arithmetic, subject,
};
use crate::support::operands::{Case, Data};
use crate::support::schedules::few;
use crate::support::sim::Simulator;
use crate::support::sized;

crate::trials! {
    simulator:
        results,
        many_batches,
        faults_of_bundling,
        wrong_plans;
}

const ACTIVATIONS: [Activation; 3] = [Activation::Nvfp4, Activation::F16, Activation::Bf16];

/// A shape of one vector a batch, how many batches share the first matrix, and a config.
type Bundling = ((usize, usize, usize), usize, PackedConfig);

fn bundling(
    shape: (usize, usize, usize),
    hot: usize,
    [warps, chunk, ctas, vectors]: [u32; 4],
) -> Bundling {
    let config = PackedConfig {
        warps,
        chunk,
        ctas,
        vectors,
        bundle: true,
        ..PackedConfig::DEFAULT
    };
    (shape, hot, config)
}

fn bundlings() -> Vec<Bundling> {
    vec![
        // Bundles of two; groups that CTAs share.
        bundling((70, 512, 6), 0, [4, 1, 3, 8]),
        // A matrix with more batches than a bundle has, a full bundle and one batch; one with exactly as many.
        bundling((20, 320, 14), 9, [1, 1, 4, 8]),
        bundling((33, 256, 10), 8, [2, 1, 2, 8]),
        // All batches in one bundle.
        bundling((130, 256, 12), 12, [4, 1, 5, 16]),
        // More CTAs than chunks: some have nothing.
        bundling((16, 64, 4), 4, [1, 1, 12, 8]),
        // Whole groups: no sums of parts.
        bundling((100, 192, 5), 2, [8, 2, 7, 32]),
        bundling((40, 576, 20), 13, [3, 2, 6, 64]),
    ]
}

fn case(((m, k, l), hot, _): &Bundling, i: usize, activation: Activation, data: Data) -> Case {
    let case = Case {
        activation,
        select: true,
        hot: *hot,
        late: i.is_multiple_of(2),
        row_alpha: i.is_multiple_of(3),
        vector_alpha: activation == Activation::Nvfp4 && i % 4 == 1,
        vector_layout: ScaleLayout::ALL[i / 2 % 2],
        output: FloatType::ALL[i % 3],
        ..Case::new(sized(*m, 1, *k, *l), data, ScaleLayout::ALL[i % 2], 7)
    };
    case.with_additions(i)
}

/// Exact and full-range data of every type, and ids of no matrix, in chained launches and in others.
fn results() {
    let simulator = Simulator::new("90a");
    let mut turn = 0;
    for bundling in bundlings() {
        for activation in ACTIVATIONS {
            for data in Data::BOTH {
                turn += 1;
                let case = case(&bundling, turn, activation, data);
                let options = &few(turn as u64)[turn % 3];
                simulator.check(&case, bundling.2, turn.is_multiple_of(2), options);
                if data == Data::Integers {
                    let unknown = case.with_unknown_ids()[turn % 4];
                    simulator.check(&unknown, bundling.2, turn % 4 < 2, options);
                }
            }
        }
    }
}

/// More batches than the launch that bundles has threads.
fn many_batches() {
    let bundling = bundling((3, 64, 1100), 70, [1, 1, 2, 64]);
    let case = case(&bundling, 5, Activation::F16, Data::Integers);
    let simulator = Simulator::new("90a");
    simulator.check(&case, bundling.2, false, &few(1)[0]);
}

/// Runs with faults in the launch that bundles; some batch has an id of no matrix.
fn runs() -> Vec<Run> {
    let some = bundlings().into_iter().take(3).enumerate();
    let run = |(i, bundling): (usize, Bundling)| {
        let case = case(&bundling, i, Activation::Nvfp4, Data::Integers).for_faults(i);
        let case = case.with_unknown_ids()[i + 1];
        Run::first("90a", &case, bundling.2, true, Uninitialised::Error)
    };
    some.map(run).collect()
}

/// Plants faults in the launch that bundles. Those of the others are planted where batches are not bundled; that they
/// wait for this launch is a trial of `previous_grid`.
fn faults_of_bundling() {
    let subject = subject(
        "gemv_packed_bundle",
        "90a",
        runs(),
        mutate::schedules(2),
        move |mutant| no_arithmetic(mutant) && mutant.is_in_share(SAMPLE),
    );
    let list = include_str!("../many_vectors/equivalent_faults.txt");
    demand(&subject, list, 8);
}

/// Words of the plan of the launch that bundles.
fn wrong_plans() {
    const HARMLESS: &[(At, &str)] = &crate::words![BundleParams:
        select.matrices = ALL_MATRICES,
        select.late = "this launch always waits",
    ];
    demand_right_plans("90a", &runs(), HARMLESS, 1);
}
