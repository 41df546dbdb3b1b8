//! `gemv_tcgen05`: planted faults.

use nvfp4_gemv::FloatType;
use nvfp4_gemv::kernel::params::nvfp4_tcgen05_params as Params;
use ptx_sim::Uninitialised;
use ptx_sim::mutate::{self, Known, Mutant, Subject};

use super::sim::{ARCH, Cutting, cutting};
use crate::support::faults::{
    ANY_OPERAND, At, MAPPED, NO_BIAS, Run, demand, demand_right_plans, no_arithmetic, subject,
};
use crate::support::operands::{Case, Data};

crate::trials! {
    simulator:
        faults = || faults_of(&ENTRIES[0], 0, |mutant| no_arithmetic(mutant) && mutant.is_in_share(6)),
        listed_faults_exist, wrong_plans;
    long:
        faults_of_few_vectors = || faults_of(&ENTRIES[0], 2, no_arithmetic),
        faults_of_many_vectors = || faults_of(&ENTRIES[2], 2, no_arithmetic),
        faults_of_the_others = || [1, 3].into_iter().for_each(|i| {
            faults_of(&ENTRIES[i], 0, |mutant| no_arithmetic(mutant) && mutant.is_in_share(8));
        });
}

/// Entry points by their names in the list. The vectors of the first two fill at most a word of each line of scales;
/// the others have more vectors. Each has some vectors, and as many as the entry point takes.
const ENTRIES: [Entry; 4] = [
    ("gemv_tcgen05_few_n16", [5, 16]),
    ("gemv_tcgen05_few_n32", [21, 32]),
    ("gemv_tcgen05_many_n64", [40, 64]),
    ("gemv_tcgen05_many_n128", [90, 128]),
];

const LIST: &str = include_str!("equivalent_faults.txt");

/// Launches that together take every branch: tails of M and K, batches, steps of both lengths, dependent launch. Rings
/// and sums are used several times, behind parts of tiles and behind whole ones. Most launches have `some` vectors, and
/// one has as many as the entry point takes. Small launches have every type of output, with and without alphas, of all
/// vectors. Some launches have vectors of three digits, so many that the entry point stays the same.
fn runs([some, most]: [usize; 2]) -> Vec<Run> {
    let cuttings = [
        (some, cutting((20, 1312, 1), [256, 2, 6], true)),
        (some, cutting((300, 288, 2), [256, 3, 5], true)),
        (some, cutting((129, 1760, 1), [512, 2, 3], true)),
        (some, cutting((500, 96, 1), [256, 2, 1], false)),
        // The CTA in the middle has the end of a tile, a whole tile, and the begin of another.
        (most, cutting((600, 544, 1), [256, 2, 3], true)),
    ];
    let run = |i: usize, n: usize, cutting: Cutting, vector_alpha, chained| {
        let digits = if i % 4 == 2 { 3 } else { 1 };
        let n = n / digits;
        let case = Case {
            digits,
            output: FloatType::ALL[i % 3],
            row_alpha: i % 2 == 1,
            vector_alpha,
            padded: i == 2,
            ..cutting.case(n, Data::Integers)
        };
        let wants = Uninitialised::Error;
        Run::new(ARCH, &case, cutting.config, chained, wants)
    };
    let small = cutting((3, 32, 1), [256, 2, 1], true);
    let small = (0..3 * 4).map(|i| run(i, most, small, i / 2 % 2 == 1, false));
    let others = cuttings.into_iter().enumerate();
    let others = others.map(|(i, (n, cutting))| run(i, n, cutting, i == 1, i == 1));
    // Launches that take least come first: they notice most faults.
    small.chain(others).collect()
}

type Entry = (&'static str, [usize; 2]);

fn subject_of(&(name, vectors): &Entry, seeds: u64, pick: fn(&Mutant) -> bool) -> Subject {
    subject(name, ARCH, runs(vectors), mutate::schedules(seeds), pick)
}

fn faults_of(entry: &Entry, seeds: u64, pick: fn(&Mutant) -> bool) {
    demand(&subject_of(entry, seeds, pick), LIST, 60);
}

/// Each line of the list speaks of a fault that some entry point can have.
fn listed_faults_exist() {
    let known = Known::parse(LIST).expect("the list");
    let mut left: Vec<bool> = vec![true; known.entries.len()];
    for entry in &ENTRIES {
        let subject = subject_of(entry, 0, |_| true);
        for mutant in subject.mutants() {
            known.of(entry.0, &mutant).for_each(|at| left[at] = false);
        }
    }
    let entries = known.entries.iter().zip(left);
    let left: Vec<_> = entries
        .filter(|(_, left)| *left)
        .map(|(of, _)| of)
        .collect();
    assert!(left.is_empty(), "no such faults: {left:#?}");
}

fn wrong_plans() {
    let harmless = crate::words![Params:
        dependent = "a run has one grid: tests/kernels/overlap.rs, what_the_grid_before_writes",
        arrivals = "counters of other tiles are zeros too, before and behind: src/kernel/tcgen05/tests.rs has the address",
        epilogue.has_operands = ANY_OPERAND,
        epilogue.bias_batch = NO_BIAS,
        epilogue.bias_batch + 4 = NO_BIAS,
        vectors.batch_bytes = MAPPED,
        vectors.batch_bytes + 4 = MAPPED,
        ; unread in weights, vectors
    ];
    let slack = [(
        At::Shared,
        "what aligns the ring is enough for the worst start",
    )];
    let harmless = [&harmless[..], &slack].concat();
    demand_right_plans(ARCH, &runs([5, 16]), &harmless, 1);
}
