//! Layers of checkpoints, cut for ranks that are threads: with the vectors and the outputs that their files hold.

use half::f16;
use nvfp4_gemv::checkpoint::{Checkpoint, Layer};
use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::reference::{self, error_bound, sum_error_bound};
use nvfp4_gemv::{
    Activation, DenseVectors, Dims, FloatType, Options, Output, Shape, Strides, Vectors, Weights,
    gemv,
};
use nvfp4_gemv_parallel::layers::HostRank;
use nvfp4_gemv_parallel::shard::{ShardError, Sharding, Split};

/// The files, and the vectors of each layer in them.
const FILES: [&str; 2] = [
    "minilm-l0-compressed-tensors.safetensors",
    "minilm-l0-modelopt.safetensors",
];
const VECTORS: usize = 8;

/// A layer of a file: its test input, in f32, and the output that belongs to it, in f64.
struct Recorded<'a> {
    layer: Layer<'a>,
    x: Vec<f32>,
    y: Vec<f64>,
}

/// All layers of both files.
fn each_layer(check: impl Fn(&Recorded<'_>)) {
    let mut layers = 0;
    for file in FILES {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
        let checkpoint = Checkpoint::open(format!("{folder}{file}")).unwrap();
        for name in checkpoint.layers() {
            let tensor = |what: &str| checkpoint.find_tensor(&format!("{name}.{what}")).unwrap();
            let recorded = Recorded {
                layer: checkpoint.layer(name).unwrap(),
                x: tensor("test_input").to_f32().unwrap(),
                y: tensor("test_output_w4a16_f64").to_f64().unwrap(),
            };
            assert_eq!(recorded.x.len(), VECTORS * recorded.layer.k());
            check(&recorded);
            layers += 1;
        }
    }
    assert_eq!(layers, 3);
}

/// A rank's part of the whole vectors: the part of each vector that the rank's columns take.
#[derive(Clone, Copy)]
enum X<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
}

impl X<'_> {
    fn from(&self, first: usize, k: usize) -> Vectors<'_> {
        let strides = Strides {
            row: k,
            batch: VECTORS * k,
        };
        match self {
            X::F32(x) => Vectors::F32(DenseVectors::new(&x[first..]).with_strides(strides)),
            X::F16(x) => Vectors::F16(DenseVectors::new(&x[first..]).with_strides(strides)),
        }
    }

    fn activation(&self) -> Activation {
        match self {
            X::F32(_) => Activation::F32,
            X::F16(_) => Activation::F16,
        }
    }
}

fn with_vectors(shape: &Shape) -> Shape {
    let (m, k) = (shape.m(), shape.k());
    Shape::new(Dims {
        m,
        n: VECTORS,
        k,
        l: 1,
    })
    .unwrap()
}

fn product(shape: &Shape, weights: &Weights<'_>, x: &Vectors<'_>) -> Vec<f32> {
    let mut y = vec![0.0; shape.outputs()];
    gemv(shape, weights, x, Output::of(&mut y), &Options::new()).unwrap();
    y
}

/// Each rank's product, on a thread of its own, and the step that all ranks then make together.
fn over_ranks(
    whole: &Weights<'_>,
    split: Split,
    ranks: usize,
    x: X<'_>,
    together: impl Fn(&HostRank, Vec<f32>) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    let sharding = Sharding::of(whole, split, ranks).unwrap();
    let rank = |group: HostRank| {
        let shard = sharding.shard(whole, group.rank()).unwrap();
        let first = match split {
            Split::Rows => 0,
            Split::K => sharding.range(group.rank()).unwrap().start,
        };
        let vectors = x.from(first, whole.shape().k());
        let shape = with_vectors(shard.shape());
        let y = product(&shape, &shard.weights().unwrap(), &vectors);
        together(&group, y)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = HostRank::group(ranks)
            .into_iter()
            .map(|group| scope.spawn(|| rank(group)))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

/// Weights cut by rows, and results gathered: the bits of the whole layer, on every rank.
#[test]
fn column_parallel_layers_are_the_whole_ones() {
    each_layer(|recorded| {
        let whole = recorded.layer.weights().unwrap();
        let shape = with_vectors(whole.shape());
        let halves: Vec<f16> = recorded.x.iter().map(|&x| f16::from_f32(x)).collect();
        for x in [X::F32(&recorded.x), X::F16(&halves)] {
            let one = product(&shape, &whole, &x.from(0, shape.k()));
            for ranks in [2, 4] {
                let results = over_ranks(&whole, Split::Rows, ranks, x, |group, part| {
                    let mut parts = vec![0.0; part.len() * ranks];
                    group.all_gather(&part, &mut parts).unwrap();
                    in_vectors(&parts, ranks)
                });
                for result in results {
                    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&result), bits(&one), "{ranks} ranks");
                }
            }
        }
    });
}

/// `[rank][vector][row of the rank]` becomes `[vector][row]`.
fn in_vectors(parts: &[f32], ranks: usize) -> Vec<f32> {
    let rows = parts.len() / ranks / VECTORS;
    let of = |vector: usize| {
        (0..ranks).flat_map(move |rank| &parts[(rank * VECTORS + vector) * rows..][..rows])
    };
    (0..VECTORS).flat_map(of).copied().collect()
}

/// Weights cut along K, and results added up: the exact product, and the file's output, within the bound of the sums.
#[test]
fn row_parallel_layers_are_the_whole_ones() {
    each_layer(|recorded| {
        let whole = recorded.layer.weights().unwrap();
        let halves: Vec<f16> = recorded.x.iter().map(|&x| f16::from_f32(x)).collect();
        for x in [X::F32(&recorded.x), X::F16(&halves)] {
            for ranks in [2, 4] {
                let results = over_ranks(&whole, Split::K, ranks, x, |group, mut part| {
                    group.all_reduce(&mut part).unwrap();
                    part
                });
                let exact = exact_parts(&whole, ranks, x);
                for (at, parts) in exact.iter().enumerate() {
                    let exact: f64 = parts.of_ranks.iter().sum();
                    let off = |result: &Vec<f32>, y: f64| (f64::from(result[at]) - y).abs();
                    for result in &results {
                        let off = off(result, exact);
                        assert!(off <= parts.bound, "{ranks} ranks: {at}: {off}");
                        assert_eq!(result[at].to_bits(), results[0][at].to_bits());
                    }
                    if let X::F32(_) = x {
                        // The file's own output may come of weights that were rounded to f32.
                        let off = off(&results[0], recorded.y[at]);
                        let bound = parts.bound + parts.magnitude * 2f64.powi(-23);
                        assert!(off <= bound, "{ranks} ranks: {at}: {off}");
                    }
                }
            }
        }
    });
}

/// An element of the exact result, by ranks.
struct Parts {
    of_ranks: Vec<f64>,
    /// Bound of the ranks' sum.
    bound: f64,
    /// Magnitude of the whole.
    magnitude: f64,
}

fn exact_parts(whole: &Weights<'_>, ranks: usize, x: X<'_>) -> Vec<Parts> {
    let sharding = Sharding::of(whole, Split::K, ranks).unwrap();
    let of_part = with_vectors(&sharding.shape());
    let roundings = Implementation::best().roundings(&of_part, x.activation());
    let ranks: Vec<_> = (0..ranks)
        .map(|rank| {
            let shard = sharding.shard(whole, rank).unwrap();
            let first = sharding.range(rank).unwrap().start;
            let x = x.from(first, whole.shape().k());
            reference::gemv(&of_part, &shard.weights().unwrap(), &x).unwrap()
        })
        .collect();
    let of = |at: usize| {
        let bound = |y, magnitude| error_bound(y, magnitude, roundings, FloatType::F32);
        let parts: Vec<(f64, f64)> = ranks
            .iter()
            .map(|rank| (rank.y[at], bound(rank.y[at], rank.magnitude[at])))
            .collect();
        Parts {
            bound: sum_error_bound(&parts, FloatType::F32),
            of_ranks: parts.iter().map(|(y, _)| *y).collect(),
            magnitude: ranks.iter().map(|rank| rank.magnitude[at]).sum(),
        }
    };
    (0..of_part.outputs()).map(of).collect()
}

/// No dimension of these layers is a multiple of 5.
#[test]
fn ranks_that_do_not_divide_a_layer_are_refused() {
    each_layer(|recorded| {
        let whole = recorded.layer.weights().unwrap();
        for split in Split::ALL {
            let error = Sharding::of(&whole, split, 5).unwrap_err();
            let is_indivisible = matches!(error, ShardError::Indivisible { .. });
            assert!(is_indivisible, "{split}: {error}");
        }
    });
}
