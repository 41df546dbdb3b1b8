//! Pairs of layers over several ranks, which are threads here: the ranks compute what one device computes.

use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::reference::{self, error_bound};
use nvfp4_gemv::{
    Activation, Dims, FloatType, GlobalScale, Options, Output, ScaleLayout, Shape, Vectors,
    Weights, convert_scales, gemv,
};
use nvfp4_gemv_parallel::layers::{GroupError, HostRank, LayersError, TensorParallel, silu_times};
use nvfp4_gemv_parallel::shard::{Sharding, Split};

/// Owner of the weights of a layer.
struct Layer {
    shape: Shape,
    codes: Vec<u8>,
    scales: Vec<u8>,
    layout: ScaleLayout,
    row_alpha: Vec<f32>,
}

impl Layer {
    fn random(m: usize, k: usize, layout: ScaleLayout, seed: u64) -> Self {
        let mut r = fastrand::Rng::with_seed(seed);
        let shape = Shape::matrix(m, k).unwrap();
        let codes = (0..shape.weight_code_bytes()).map(|_| r.u8(..)).collect();
        // Block scales from 2^-4 to 2.
        let linear = (0..shape.weight_scale_bytes(ScaleLayout::Linear)).map(|_| r.u8(0x18..=0x40));
        let linear: Vec<u8> = linear.collect();
        Self {
            shape,
            codes,
            scales: convert_scales(&linear, ScaleLayout::Linear, layout, m, k, 1).unwrap(),
            layout,
            row_alpha: (0..m).map(|_| r.f32() + 0.5).collect(),
        }
    }

    fn weights(&self) -> Weights<'_> {
        let global = GlobalScale::Divisor(64.0);
        Weights::new(&self.shape, &self.codes, &self.scales, self.layout, global)
            .unwrap()
            .with_row_alpha(&self.row_alpha)
            .unwrap()
    }
}

fn one(weights: &Weights<'_>, n: usize, x: &[f32]) -> Vec<f32> {
    let of = with_vectors(weights.shape(), n);
    let mut y = vec![0.0; of.outputs()];
    let options = Options::new();
    gemv(&of, weights, &Vectors::of(x), Output::of(&mut y), &options).unwrap();
    y
}

fn with_vectors(shape: &Shape, n: usize) -> Shape {
    let (m, k, l) = (shape.m(), shape.k(), shape.l());
    Shape::new(Dims { m, n, k, l }).unwrap()
}

/// Results of the pair on each rank. Each rank is a thread of its own.
fn over_ranks(
    layers: &TensorParallel<'_>,
    n: usize,
    x: &[f32],
    between: impl Fn(&[Vec<f32>], &mut [f32]) -> Result<(), LayersError> + Sync,
) -> Vec<Vec<f32>> {
    let rank = |group: HostRank| {
        let mine = layers.rank(group.rank()).unwrap();
        mine.compute(n, x, &group, &between).unwrap()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = HostRank::group(layers.ranks())
            .into_iter()
            .map(|group| scope.spawn(|| rank(group)))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

/// Demands that every rank has the same bits, twice, and that they are within the bound of the last layer's sums.
/// Everything before these sums is computed by rows, and so has the same bits as one device's.
fn check(ranks: usize, n: usize, last: &Weights<'_>, middle: &[f32], again: [Vec<Vec<f32>>; 2]) {
    let [results, second] = again;
    assert_eq!(results.len(), ranks);
    for result in results.iter().chain(&second) {
        let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(result), bits(&results[0]), "{ranks} ranks");
    }
    let shape = with_vectors(last.shape(), n);
    let truth = reference::gemv(&shape, last, &Vectors::of(middle)).unwrap();
    let part = Sharding::new(&shape, last.layout(), Split::K, ranks).unwrap();
    let roundings = Implementation::best().roundings(&part.shape(), Activation::F32) + ranks as u32;
    for (at, (&y, &magnitude)) in truth.y.iter().zip(&truth.magnitude).enumerate() {
        let bound = error_bound(y, magnitude, roundings, FloatType::F32);
        let off = (f64::from(results[0][at]) - y).abs();
        assert!(off <= bound, "{ranks} ranks: {at}: {off} > {bound}");
    }
}

const HIDDEN: usize = 192;

#[test]
fn an_mlp_over_ranks_is_what_one_computes() {
    for layout in ScaleLayout::ALL {
        for (ranks, n) in [(1, 1), (2, 3), (4, 1)] {
            let wide = 128 * ranks;
            let [gate, up] = [1, 2].map(|seed| Layer::random(wide, HIDDEN, layout, seed));
            let down = Layer::random(HIDDEN, wide, layout, 3);
            let (gate, up, down) = (gate.weights(), up.weights(), down.weights());
            let mut r = fastrand::Rng::with_seed(ranks as u64);
            let x: Vec<f32> = (0..n * HIDDEN).map(|_| r.f32() - 0.5).collect();

            let mut middle = vec![0.0; n * wide];
            silu_times(&one(&gate, n, &x), &one(&up, n, &x), &mut middle);
            let mlp = TensorParallel::mlp(&gate, &up, &down, ranks).unwrap();
            let again = [(), ()].map(|()| {
                over_ranks(&mlp, n, &x, |gate_up, out| {
                    silu_times(&gate_up[0], &gate_up[1], out);
                    Ok(())
                })
            });
            check(ranks, n, &down, &middle, again);
        }
    }
}

/// The attention here is a simple stand-in: each head of q is its head of k, times its head of v.
#[test]
fn projections_over_ranks_are_what_one_computes() {
    const HEAD: usize = 64;
    let layout = ScaleLayout::Linear;
    for (ranks, n) in [(1, 2), (2, 1), (4, 2)] {
        let (heads, kv_heads) = (8, 4);
        let q = Layer::random(heads * HEAD, HIDDEN, layout, 1);
        let [k, v] = [2, 3].map(|seed| Layer::random(kv_heads * HEAD, HIDDEN, layout, seed));
        let o = Layer::random(HIDDEN, heads * HEAD, layout, 4);
        let (q, k, v, o) = (q.weights(), k.weights(), v.weights(), o.weights());
        let attention = |qkv: &[Vec<f32>], out: &mut [f32]| {
            let of_vector = |all: &[f32], vector: usize| {
                let length = all.len() / n;
                all[vector * length..(vector + 1) * length].to_vec()
            };
            let length = out.len() / n;
            for (vector, out) in out.chunks_mut(length).enumerate() {
                let [q, k, v] = [0, 1, 2].map(|at| of_vector(&qkv[at], vector));
                for (at, out) in out.iter_mut().enumerate() {
                    let of = at / HEAD / (heads / kv_heads) * HEAD + at % HEAD;
                    *out = q[at] * k[of] * v[of];
                }
            }
        };
        let mut r = fastrand::Rng::with_seed(9);
        let x: Vec<f32> = (0..n * HIDDEN).map(|_| r.f32() - 0.5).collect();
        let mut middle = vec![0.0; n * heads * HEAD];
        let whole = [&q, &k, &v].map(|weights| one(weights, n, &x));
        attention(&whole, &mut middle);
        let layers = TensorParallel::attention([&q, &k, &v], &o, HEAD, ranks).unwrap();
        let again = [(), ()].map(|()| {
            over_ranks(&layers, n, &x, |qkv, out| {
                attention(qkv, out);
                Ok(())
            })
        });
        check(ranks, n, &o, &middle, again);
    }
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    let layout = ScaleLayout::Linear;
    let layer = |m, k| Layer::random(m, k, layout, 1);
    let (wide, narrow, other) = (layer(256, 64), layer(64, 256), layer(64, 128));
    let (wide, narrow, other) = (wide.weights(), narrow.weights(), other.weights());
    let mlp = |gate, up, down, ranks| TensorParallel::mlp(gate, up, down, ranks).map(drop);
    assert_eq!(mlp(&wide, &wide, &narrow, 2), Ok(()));
    let says = |result: Result<(), LayersError>| result.unwrap_err().to_string();
    assert_eq!(
        says(mlp(&wide, &narrow, &narrow, 2)),
        "up's M is 64, and must be 256, as gate's M is"
    );
    assert_eq!(
        says(mlp(&wide, &wide, &other, 2)),
        "down's K is 128, and must be 256, as gate's M is"
    );
    let three = says(mlp(&wide, &wide, &narrow, 3));
    assert!(
        three.starts_with("gate: M = 256 over 3 ranks") && three.contains("1, 2, 4"),
        "{three}"
    );
    // 256 rows could be cut into 16 parts, and 256 columns into 8.
    let sixteen = says(mlp(&wide, &wide, &narrow, 16));
    assert!(
        sixteen.starts_with("down: K = 256 over 16 ranks"),
        "{sixteen}"
    );
    assert!(says(mlp(&wide, &wide, &narrow, 0)).contains("0 ranks"));

    let (q, kv) = (layer(256, 64), layer(128, 64));
    let (q, kv) = (q.weights(), kv.weights());
    let heads =
        |head, ranks| TensorParallel::attention([&q, &kv, &kv], &narrow, head, ranks).map(drop);
    assert_eq!(heads(64, 2), Ok(()));
    assert_eq!(
        says(heads(64, 4)),
        "k: 128 rows are 2 heads of 64, which 4 ranks cannot share equally; 1 or 2 would work"
    );
    assert!(matches!(heads(0, 2), Err(LayersError::Heads { .. })));

    let layers = TensorParallel::mlp(&wide, &wide, &narrow, 2).unwrap();
    assert!(matches!(layers.rank(2), Err(LayersError::Shard { .. })));
    let rank = layers.rank(1).unwrap();
    let group = HostRank::group(2);
    let between = |_: &[Vec<f32>], _: &mut [f32]| -> Result<(), LayersError> { Ok(()) };
    let error = rank.compute(1, &[0.0; 64], &group[0], between).unwrap_err();
    assert!(matches!(error, LayersError::OtherRank { .. }), "{error:?}");
    let error = rank.compute(1, &[0.0; 63], &group[1], between).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the vectors: 63 elements, and 64 are needed"
    );
}

#[test]
fn sums_are_made_in_the_order_of_the_ranks() {
    // Another order would not lose the small number.
    let parts: [f32; 4] = [1.0, 1e8, -1e8, 0.5];
    let sums: Vec<f32> = std::thread::scope(|scope| {
        let threads: Vec<_> = HostRank::group(4)
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    let mut sum = [0.0];
                    // Many rounds: no round takes parts of another one.
                    for round in 0..50 {
                        let mut all = [0.0; 4];
                        rank.all_gather(&[rank.rank() as f32 + round as f32], &mut all)
                            .unwrap();
                        assert_eq!(all, [0.0, 1.0, 2.0, 3.0].map(|at| at + round as f32));
                        sum = [parts[rank.rank()]];
                        rank.all_reduce(&mut sum).unwrap();
                    }
                    sum[0]
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(sums, [0.5; 4]);
}

/// A rank that ends, by an error between its layers or by a panic, ends the others' wait.
#[test]
fn a_rank_that_ends_ends_the_others_wait() {
    for panics in [false, true] {
        let mut group = HostRank::group(3).into_iter();
        let ends = group.next().unwrap();
        std::thread::scope(|scope| {
            let others: Vec<_> = group
                .map(|rank| scope.spawn(move || rank.all_reduce(&mut [1.0])))
                .collect();
            let end = scope.spawn(move || {
                let _ends = ends;
                if panics {
                    std::panic::resume_unwind(Box::new("as a test asked for"));
                }
            });
            assert_eq!(end.join().is_err(), panics);
            for other in others {
                // The first one that gives up ends too, and is not what the last one misses.
                assert_eq!(other.join().unwrap(), Err(GroupError::Gone { rank: 0 }));
            }
        });
    }
}

#[test]
fn parts_of_different_lengths_are_refused_by_all() {
    let group = HostRank::group(2);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .iter()
            .map(|rank| scope.spawn(|| rank.all_reduce(&mut vec![0.0; rank.rank() + 1])))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let lengths = vec![1, 2];
    assert_eq!(
        results,
        [(); 2].map(|()| Err(GroupError::Lengths {
            lengths: lengths.clone()
        }))
    );
    let alone = &HostRank::group(1)[0];
    let error = alone.all_gather(&[1.0], &mut []).unwrap_err();
    assert_eq!(error, GroupError::GatherLength { got: 0, needed: 1 });
}
