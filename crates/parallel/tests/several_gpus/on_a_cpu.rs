//! Expected results of the ranks, tried without a GPU: one rank after the other computes on the CPU.

use anyhow::{Result, ensure};
use half::{bf16, f16};
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::{DenseVectors, Options, Output, gemv};
use nvfp4_gemv_parallel::layers::TensorParallel;
use nvfp4_gemv_parallel::shard::Shard;

use super::expected;
use super::rank::{Computed, Number, Work};

pub(crate) fn the_bound_is_kept_unless_a_rank_is_left_out() -> Result<()> {
    of::<f32>()?;
    of::<f16>()?;
    of::<bf16>()
}

fn of<T: Number>() -> Result<()> {
    for (ranks, n) in [(1, 1), (2, 8), (4, 3), (8, 1)] {
        let work = Work::new(n);
        expected::check::<T>(&work, ranks, &compute::<T>(&work, ranks, ranks)?)?;
        let lacks_one = compute::<T>(&work, ranks, ranks - 1)?;
        let found = expected::check::<T>(&work, ranks, &lacks_one);
        ensure!(found.is_err(), "{ranks} ranks: one may be left out");
    }
    Ok(())
}

/// The sum of the results of the first `come` ranks.
fn compute<T: Number>(work: &Work, ranks: usize, come: usize) -> Result<Computed> {
    let [gate, down] = work.weights()?;
    let layers = TensorParallel::mlp(&gate, &gate, &down, ranks)?;
    let mut y = vec![T::of(0.0); down.shape().m() * work.n];
    let mut roundings = [0; 2];
    for rank in 0..come {
        let mine = layers.rank(rank)?;
        let (middle, of_gate) = product(work, &mine.first()[0], &work.vectors::<T>())?;
        let (part, of_down) = product(work, mine.last(), &middle)?;
        roundings = [of_gate, of_down];
        for (sum, part) in y.iter_mut().zip(part) {
            *sum = T::of(sum.to_f32() + part.to_f32());
        }
    }
    Ok(Computed {
        y: y.into_iter().map(Into::into).collect(),
        roundings,
    })
}

/// A product on the CPU, and how often a term of it is rounded.
fn product<T: Number>(work: &Work, shard: &Shard<'_>, x: &[T]) -> Result<(Vec<T>, u32)> {
    let shape = work.shape(shard.shape())?;
    let mut y = vec![T::of(0.0); shape.outputs()];
    let vectors = T::vectors_on_host(DenseVectors::new(x));
    let (weights, output) = (shard.weights()?, Output::of(&mut y));
    gemv(&shape, &weights, &vectors, output, &Options::new())?;
    Ok((y, Implementation::best().roundings(&shape, T::ACTIVATION)))
}
