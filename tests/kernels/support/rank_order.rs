//! The order in which several CTAs add a sum: the order of their ranks, to the bit.

use nvfp4_gemv::FloatType;
use nvfp4_gemv_cli::problem::Problem;

use super::operands::numbers;
use super::sized;

/// Demands that a cluster adds the partial sums of its CTAs in the order of ranks, to the bit. The step of K of one
/// rank, computed alone, gives the partial sum of that rank. `run` computes a problem of `m` rows, with so many CTAs in
/// a cluster, and returns f32 outputs.
pub(crate) fn check(m: usize, run: impl Fn(&Problem, usize) -> Vec<u8>) {
    const CLUSTER: usize = 5;
    let shape = sized(m, 2, CLUSTER * 256 - 64, 1);
    let problem = Problem {
        alpha: None,
        ..Problem::full_range(shape, 9)
    };
    let run = |problem: &Problem, cluster: usize| -> Vec<f32> {
        let output = run(problem, cluster);
        numbers(&output, FloatType::F32).map(|y| y as f32).collect()
    };
    let whole = run(&problem, CLUSTER);
    let parts: Vec<Vec<f32>> = (0..CLUSTER)
        .map(|rank| run(&part(&problem, rank..rank + 1), 1))
        .collect();
    let sum = |i: usize, ranks: &mut dyn Iterator<Item = usize>| {
        ranks.fold(0.0f32, |sum, rank| sum + parts[rank][i])
    };
    let mut reversed_differs = false;
    for (i, &y) in whole.iter().enumerate() {
        let in_order = sum(i, &mut (0..CLUSTER));
        assert_eq!(y, in_order, "element {i}");
        reversed_differs |= sum(i, &mut (0..CLUSTER).rev()) != in_order;
    }
    assert!(reversed_differs, "these data do not show the order");
}

/// The K steps `steps` of a problem, without its alpha.
fn part(problem: &Problem, steps: std::ops::Range<usize>) -> Problem {
    const STEP: usize = 256;
    let shape = &problem.shape;
    let rows = |all: &[u8], row: usize, unit: usize| -> Vec<u8> {
        let range = steps.start * STEP / unit..(steps.end * STEP / unit).min(row);
        all.chunks(row)
            .flat_map(|r| r[range.clone()].to_vec())
            .collect()
    };
    let (codes, blocks) = (shape.row_code_bytes(), shape.blocks());
    let k = (steps.end * STEP).min(shape.k()) - steps.start * STEP;
    Problem {
        shape: sized(shape.m(), shape.n(), k, shape.l()),
        a: rows(&problem.a, codes, 2),
        sfa: rows(&problem.sfa, blocks, 16),
        b: rows(&problem.b, codes, 2),
        sfb: rows(&problem.sfb, blocks, 16),
        alpha: None,
        c: None,
    }
}
