//! Whole experts on ranks, which are threads here: the ranks compute what one device computes.

use nvfp4_gemv::{Experts, Linear, Mlp, Output, Vectors};
use nvfp4_gemv_parallel::experts::{ExpertsError, RankExperts};
use nvfp4_gemv_parallel::layers::{GroupError, HostRank};

const K: usize = 64;
const WIDE: usize = 48;
const EXPERTS: usize = 7;
const CHOICES: usize = 3;

fn experts(seed: u64) -> Experts {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut layer = |rows: usize, k: usize| {
        let values: Vec<f32> = (0..rows * k).map(|_| random.f32() * 2.0 - 1.0).collect();
        Linear::from_dense(&values, rows, k).unwrap()
    };
    let mut expert = |_| Mlp::new(layer(WIDE, K), layer(WIDE, K), layer(K, WIDE)).unwrap();
    let all: Vec<Mlp> = (0..EXPERTS).map(&mut expert).collect();
    Experts::new(all).unwrap()
}

/// Vectors, ids without repetition, and weights.
fn routed(n: usize, seed: u64) -> (Vec<f32>, Vec<i32>, Vec<f32>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let x = (0..n * K).map(|_| random.f32() * 2.0 - 1.0).collect();
    let mut ids = Vec::new();
    for _ in 0..n {
        let mut all: Vec<i32> = (0..EXPERTS as i32).collect();
        random.shuffle(&mut all);
        ids.extend(&all[..CHOICES]);
    }
    let weights = (0..n * CHOICES).map(|_| random.f32()).collect();
    (x, ids, weights)
}

type Results = Vec<Result<Vec<f32>, ExpertsError>>;

/// Each rank's result; `ids` are those that a rank is given.
fn on_ranks<'a>(
    experts: &Experts,
    ranks: usize,
    n: usize,
    x: &[f32],
    ids: impl Fn(usize) -> &'a [i32] + Sync,
    weights: &[f32],
) -> Results {
    let rank = |group: HostRank| {
        let own = RankExperts::new(experts, &group)?;
        own.compute(n, x, ids(group.rank()), weights, &group)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = HostRank::group(ranks)
            .into_iter()
            .map(|group| scope.spawn(|| rank(group)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn on_one(experts: &Experts, n: usize, x: &[f32], ids: &[i32], weights: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; n * K];
    let output = Output::of(&mut y);
    experts
        .forward(&Vectors::of(x), n, ids, weights, output)
        .unwrap();
    y
}

/// Any number of ranks and of vectors, with choices that are none: the same bits on all ranks, and one device's result
/// up to the rounding of parts and of their sum.
#[test]
fn ranks_compute_what_one_device_computes() {
    let experts = experts(1);
    for n in [1, 2, 9] {
        let (x, mut ids, weights) = routed(n, n as u64);
        ids[0] = -1;
        let one = on_one(&experts, n, &x, &ids, &weights);
        for ranks in 1..=EXPERTS {
            let all = on_ranks(&experts, ranks, n, &x, |_| &ids, &weights);
            let all: Vec<Vec<f32>> = all.into_iter().map(Result::unwrap).collect();
            assert!(all.iter().all(|y| *y == all[0]), "{ranks} ranks, n = {n}");
            let most = one.iter().fold(0.0f32, |most, y| most.max(y.abs()));
            for (y, one) in all[0].iter().zip(&one) {
                // Each of at most `CHOICES` parts and each addition is rounded once.
                let bound = 2.0 * CHOICES as f32 * f32::EPSILON * most;
                assert!(
                    (y - one).abs() <= bound,
                    "{ranks} ranks, n = {n}: {y} and {one}"
                );
            }
            // One rank alone has nothing to round twice.
            if ranks == 1 {
                assert_eq!(all[0], one);
            }
        }
    }
}

/// A router's id that no rank has is an error on every rank: nobody waits, and nobody leaves it out.
#[test]
fn an_id_of_no_expert_is_an_error_on_every_rank() {
    let experts = experts(2);
    let (x, mut ids, weights) = routed(2, 3);
    ids[4] = EXPERTS as i32;
    for result in on_ranks(&experts, 3, 2, &x, |_| &ids, &weights) {
        let (id, place, experts) = (EXPERTS as i32, 4, EXPERTS);
        assert_eq!(
            result,
            Err(ExpertsError::NoSuchExpert { id, place, experts })
        );
    }
}

/// A rank that fails by itself ends the waits of the others, which say so.
#[test]
fn a_rank_that_fails_ends_the_others_waits() {
    let experts = experts(3);
    let (x, ids, weights) = routed(1, 4);
    let wrong = [-7; CHOICES];
    let results = on_ranks(
        &experts,
        2,
        1,
        &x,
        |rank| if rank == 1 { &wrong } else { &ids },
        &weights,
    );
    assert!(matches!(
        results[1],
        Err(ExpertsError::NoSuchExpert { id: -7, .. })
    ));
    assert_eq!(results[0], Err(GroupError::Gone { rank: 1 }.into()));
}

#[test]
fn ranks_without_an_expert_and_other_groups_are_refused() {
    let experts = experts(4);
    for result in on_ranks(&experts, EXPERTS + 1, 1, &[0.0; K], |_| &[], &[]) {
        let ranks = EXPERTS + 1;
        assert_eq!(
            result,
            Err(ExpertsError::TooFew {
                experts: EXPERTS,
                ranks
            })
        );
    }
    let one = HostRank::group(1).pop().unwrap();
    let other = HostRank::group(2).pop().unwrap();
    let own = RankExperts::new(&experts, &one).unwrap();
    let refused = own.compute(1, &[0.0; K], &[0], &[1.0], &other);
    let (rank, got, ranks) = (1, 2, 1);
    assert_eq!(refused, Err(ExpertsError::OtherRank { rank, got, ranks }));
}
