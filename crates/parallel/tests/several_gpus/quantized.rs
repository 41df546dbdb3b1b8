//! Layers that read NVFP4 vectors: each rank quantises the given vectors, and the vectors between the layers.

use anyhow::{Result, ensure};
use half::bf16;
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::quantize::{QuantizedRows, quantize_vectors_or_nan};
use nvfp4_gemv::reference::{self, error_bound, sum_error_bound};
use nvfp4_gemv::{Activation, FloatType, GlobalScale, Options, Output, VectorScale, gemv};
use nvfp4_gemv_parallel::layers::{Placement, RankLayers, TensorParallel, VectorGlobals};
use nvfp4_gemv_parallel::nccl::UniqueId;
use nvfp4_gemv_parallel::shard::Shard;

use super::rank::{Rank, WIDE, Work};
use super::{LONG, on_threads};

/// Elements of the given vectors are 0.5 at most, and elements between the layers are 1 at most.
const GLOBALS: VectorGlobals = VectorGlobals {
    input: GlobalScale::Divisor(2.0 * 6.0 * 448.0),
    between: GlobalScale::Divisor(6.0 * 448.0),
};

/// Outcome of a rank: gate's results and the sum, and how often their kernels round a term.
struct Outcome {
    gate: Vec<bf16>,
    y: Vec<bf16>,
    roundings: [u32; 2],
}

pub(crate) fn nvfp4_vectors_are_the_exact_result(ranks: usize) -> Result<()> {
    for n in [1, 8] {
        let (work, id) = (Work::new(n), UniqueId::new()?);
        let outcomes = on_threads(ranks, |rank| on_gpu(&work, rank, ranks, &id))?;
        check(&work, &outcomes)?;
    }
    Ok(())
}

fn on_gpu(work: &Work, rank: usize, ranks: usize, id: &UniqueId) -> Result<Outcome> {
    let placement = Placement::new(work.n).nvfp4(GLOBALS);
    let mut of = Rank::<bf16>::new(work, rank, ranks, id, LONG, placement)?;
    let (part, mut gate) = (middle(work, rank, ranks), Vec::new());
    of.mlp.run(&of.stream, |on, gate_up, out| -> Result<()> {
        gate = on.clone_dtoh(&gate_up[0])?;
        Ok(on.memcpy_htod(&part, out)?)
    })?;
    of.mlp.synchronize(&of.stream)?;
    Ok(Outcome {
        gate,
        y: of.stream.clone_dtoh(&of.mlp.output())?,
        roundings: of.roundings(Activation::Nvfp4),
    })
}

/// The check on the CPU. It fails if a rank's summand is left out.
pub(crate) fn on_a_cpu_the_bound_is_kept_unless_a_rank_is_left_out() -> Result<()> {
    for (ranks, n) in [(1, 1), (2, 8), (4, 3)] {
        let work = Work::new(n);
        check(&work, &on_cpu(&work, ranks, ranks)?)?;
        let found = check(&work, &on_cpu(&work, ranks, ranks - 1)?);
        ensure!(found.is_err(), "{ranks} ranks: one may be left out");
    }
    Ok(())
}

fn on_cpu(work: &Work, ranks: usize, come: usize) -> Result<Vec<Outcome>> {
    let computed = of_each_rank(work, ranks, |rank, mine| {
        let x = (work.vectors(), GLOBALS.input);
        let (gate, of_gate) = product(work, &mine.first()[0], &x)?;
        let x = (middle(work, rank, ranks), GLOBALS.between);
        let (y, of_down) = product(work, mine.last(), &x)?;
        let roundings = [of_gate, of_down];
        Ok(Outcome { gate, y, roundings })
    })?;
    let mut sum = vec![bf16::ZERO; computed[0].y.len()];
    for outcome in &computed[..come] {
        let parts = sum.iter_mut().zip(&outcome.y);
        parts.for_each(|(sum, part)| *sum += *part);
    }
    let with_sum = |outcome| Outcome {
        y: sum.clone(),
        ..outcome
    };
    Ok(computed.into_iter().map(with_sum).collect())
}

type Vectors = (Vec<bf16>, GlobalScale);

fn quantized(work: &Work, k: usize, (x, global): &Vectors) -> Result<QuantizedRows> {
    let global = VectorScale::Shared(*global);
    Ok(quantize_vectors_or_nan(x, work.n, k, Some(global))?)
}

fn product(work: &Work, shard: &Shard<'_>, x: &Vectors) -> Result<(Vec<bf16>, u32)> {
    let shape = work.shape(shard.shape())?;
    let x = quantized(work, shape.k(), x)?;
    let mut y = vec![bf16::ZERO; shape.outputs()];
    let (weights, output) = (shard.weights()?, Output::of(&mut y[..]));
    gemv(&shape, &weights, &x.vectors(), output, &Options::new())?;
    let roundings = Implementation::best().roundings(&shape, Activation::Nvfp4);
    Ok((y, roundings))
}

/// Vectors that a rank's layer down reads: its part of each vector. They are not the rank's own results, so that a
/// rounding of those moves no code.
fn middle(work: &Work, rank: usize, ranks: usize) -> Vec<bf16> {
    let mut random = fastrand::Rng::with_seed(2);
    let whole: Vec<bf16> = (0..work.n * WIDE)
        .map(|_| bf16::from_f32(2.0 * random.f32() - 1.0))
        .collect();
    let part = WIDE / ranks;
    let of_vector = |vector: usize| &whole[vector * WIDE + rank * part..][..part];
    (0..work.n).flat_map(of_vector).copied().collect()
}

/// Results of `make` for each rank's number and layers.
fn of_each_rank<R>(
    work: &Work,
    ranks: usize,
    make: impl Fn(usize, &RankLayers<'_>) -> Result<R>,
) -> Result<Vec<R>> {
    let [gate, down] = work.weights()?;
    let layers = TensorParallel::mlp(&gate, &gate, &down, ranks)?;
    let rank = |rank| make(rank, &layers.rank(rank)?);
    (0..ranks).map(rank).collect()
}

/// Each rank's part of gate, and the sum on all of them, are within their bounds of the exact ones.
fn check(work: &Work, outcomes: &[Outcome]) -> Result<()> {
    let ranks = outcomes.len();
    let parts = of_each_rank(work, ranks, |rank, mine| {
        let of = &outcomes[rank];
        let [of_gate, of_down] = of.roundings;
        let x = (work.vectors(), GLOBALS.input);
        let gate = exact(work, &mine.first()[0], &x, of_gate)?;
        near("gate", &of.gate, &gate)?;
        let x = (middle(work, rank, ranks), GLOBALS.between);
        exact(work, mine.last(), &x, of_down)
    })?;
    let sums: Vec<(f64, f64)> = (0..parts[0].len())
        .map(|at| {
            let of_ranks: Vec<(f64, f64)> = parts.iter().map(|part| part[at]).collect();
            let sum = of_ranks.iter().map(|(y, _)| y).sum();
            (sum, sum_error_bound(&of_ranks, FloatType::Bf16))
        })
        .collect();
    for of in outcomes {
        near("the sum", &of.y, &sums)?;
        ensure!(of.y == outcomes[0].y, "two ranks have other results");
    }
    Ok(())
}

/// A layer's exact results, and how far computed ones may lie from them.
fn exact(work: &Work, shard: &Shard<'_>, x: &Vectors, roundings: u32) -> Result<Vec<(f64, f64)>> {
    let shape = work.shape(shard.shape())?;
    let x = quantized(work, shape.k(), x)?;
    let exact = reference::gemv(&shape, &shard.weights()?, &x.vectors())?;
    let bound =
        |(&y, &magnitude): (&f64, &f64)| (y, error_bound(y, magnitude, roundings, FloatType::Bf16));
    Ok(exact.y.iter().zip(&exact.magnitude).map(bound).collect())
}

fn near(what: &str, y: &[bf16], exact: &[(f64, f64)]) -> Result<()> {
    ensure!(y.len() == exact.len(), "{what}: {} numbers", y.len());
    for (at, (y, (exact, bound))) in y.iter().zip(exact).enumerate() {
        let off = (y.to_f64() - exact).abs();
        ensure!(off <= *bound, "{what} {at}: {y} is off by {off} of {bound}");
    }
    Ok(())
}
