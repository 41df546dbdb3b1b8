//! Two layers of a checkpoint, cut for several ranks that are threads, and computed on the CPU.
//!
//! Shows tensor parallelism without GPUs. The first layer is cut by rows (column-parallel), the second one along K
//! (row-parallel). Each rank computes its part of both layers alone, and one sum over the ranks makes the result whole.
//! Needs no GPU, and the repository, for `tests/data`; the package that is published has none.
//! `cargo run --release --package nvfp4-gemv-parallel --no-default-features --example checkpoint_shards`

use std::thread;

use anyhow::{Result, ensure};
use nvfp4_gemv::{
    Activation, FloatType, Options, Output, Shape, Vectors, Weights, checkpoint::Checkpoint,
    cpu::Implementation, gemv, reference,
};
use nvfp4_gemv_parallel::layers::HostRank;
use nvfp4_gemv_parallel::shard::{Sharding, Split};

const CHECKPOINT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/minilm-l0-compressed-tensors.safetensors"
);

const LAYERS: [&str; 2] = ["intermediate", "output"];

fn main() -> Result<()> {
    let checkpoint = Checkpoint::open(CHECKPOINT)?;
    let [first, second] = LAYERS.map(|name| format!("encoder.layer.0.{name}.dense"));
    let (first, second) = (checkpoint.layer(&first)?, checkpoint.layer(&second)?);
    let (first, second) = (first.weights()?, second.weights()?);
    let x: Vec<f32> = (0..first.shape().k()).map(|i| (i as f32).sin()).collect();
    let middle = gelu(product(first.shape(), &first, &x)?);
    let exact = reference::gemv(second.shape(), &second, &Vectors::of(&middle))?;

    for ranks in [1, 2, 4] {
        let rows = Sharding::of(&first, Split::Rows, ranks)?;
        let columns = Sharding::of(&second, Split::K, ranks)?;
        let rank = |group: HostRank| -> Result<Vec<f32>> {
            let mine = rows.shard(&first, group.rank())?;
            let part = gelu(product(mine.shape(), &mine.weights()?, &x)?);
            let mine = columns.shard(&second, group.rank())?;
            let mut y = product(mine.shape(), &mine.weights()?, &part)?;
            group.all_reduce(&mut y)?;
            Ok(y)
        };
        let results = thread::scope(|scope| -> Result<Vec<_>> {
            let start = |group| scope.spawn(|| rank(group));
            let threads: Vec<_> = HostRank::group(ranks).into_iter().map(start).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|rank| rank.expect("no panic")).collect()
        })?;
        let same = results.iter().all(|result| *result == results[0]);
        ensure!(same, "two ranks have other results");
        // A term is rounded in its rank's own sum, and then where the other ranks' are added.
        let own = Implementation::best().roundings(&columns.shape(), Activation::F32);
        let roundings = own + ranks as u32 - 1;
        let mut worst: f64 = 0.0;
        for (at, (&y, &magnitude)) in exact.y.iter().zip(&exact.magnitude).enumerate() {
            let bound = reference::error_bound(y, magnitude, roundings, FloatType::F32);
            worst = worst.max((f64::from(results[0][at]) - y).abs() / bound);
        }
        println!("{ranks} ranks: off by {worst:.3} of the bound");
        ensure!(worst <= 1.0, "an element is further off than its bound");
    }
    Ok(())
}

fn product(shape: &Shape, weights: &Weights<'_>, x: &[f32]) -> Result<Vec<f32>> {
    let mut y = vec![0.0; shape.outputs()];
    let (vectors, output) = (Vectors::of(x), Output::of(&mut y));
    gemv(shape, weights, &vectors, output, &Options::new())?;
    Ok(y)
}

/// The model's function between the layers. It acts on each number alone, so each rank can compute it.
fn gelu(y: Vec<f32>) -> Vec<f32> {
    let tanh = |x: f32| ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh();
    y.into_iter().map(|x| 0.5 * x * (1.0 + tanh(x))).collect()
}
