//! Weights cut into shards: the shards together are the whole, and ranks compute what one computes.

use nvfp4_gemv::cpu::Implementation;
use nvfp4_gemv::reference::{self, error_bound};
use nvfp4_gemv::{
    Activation, DenseVectors, Dims, FloatType, GlobalScale, Options, Output, ScaleLayout, Shape,
    Strides, Vectors, Weights, convert_scales, gemv,
};
use nvfp4_gemv_parallel::shard::{ShardError, Sharding, Split};
use proptest::prelude::*;

/// Owner of the weights of a layer.
struct Layer {
    shape: Shape,
    codes: Vec<u8>,
    scales: Vec<u8>,
    layout: ScaleLayout,
    row_alpha: Option<Vec<f32>>,
}

impl Layer {
    /// All codes, and scales from 2^-6 to 448.
    fn random(shape: Shape, layout: ScaleLayout, seed: u64) -> Self {
        let mut r = fastrand::Rng::with_seed(seed);
        let codes = (0..shape.weight_code_bytes()).map(|_| r.u8(..)).collect();
        let linear: Vec<u8> = (0..shape.weight_scale_bytes(ScaleLayout::Linear))
            .map(|_| r.u8(0x08..=0x7e))
            .collect();
        let (m, k, l) = (shape.m(), shape.k(), shape.l());
        let scales = convert_scales(&linear, ScaleLayout::Linear, layout, m, k, l).unwrap();
        let alphas = [None, Some(m), Some(m * l)][r.usize(0..3)];
        Self {
            shape,
            codes,
            scales,
            layout,
            row_alpha: alphas.map(|count| (0..count).map(|_| r.f32() + 0.5).collect()),
        }
    }

    fn weights(&self) -> Weights<'_> {
        let global = GlobalScale::Multiplier(0.5);
        let (codes, scales) = (&self.codes, &self.scales);
        let weights = Weights::new(&self.shape, codes, scales, self.layout, global).unwrap();
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha(alpha).unwrap(),
            None => weights,
        }
    }
}

fn shape(m: usize, n: usize, k: usize, l: usize) -> Shape {
    Shape::new(Dims { m, n, k, l }).unwrap()
}

/// Sizes of which every layout can be cut.
const ROWS: usize = 128;
const COLUMNS: usize = 64;

fn layouts() -> impl Strategy<Value = ScaleLayout> {
    prop::sample::select(ScaleLayout::ALL.to_vec())
}

fn splits() -> impl Strategy<Value = Split> {
    prop::sample::select(Split::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every element of the whole is in one shard, at its place: decoded, with all its scales.
    #[test]
    fn shards_put_together_give_the_whole(
        split in splits(), layout in layouts(), ranks in 1usize..5,
        tiles in 1usize..3, steps in 1usize..4, l in 1usize..3, seed: u64,
    ) {
        let [by_rows, by_k] = match split {
            Split::Rows => [ranks, 1],
            Split::K => [1, ranks],
        };
        let layer = Layer::random(shape(ROWS * tiles * by_rows, 1, COLUMNS * steps * by_k, l), layout, seed);
        let whole = layer.weights();
        let sharding = Sharding::of(&whole, split, ranks).unwrap();
        let shards: Vec<_> = (0..ranks).map(|rank| sharding.shard(&whole, rank).unwrap()).collect();
        for batch in 0..l {
            for row in 0..layer.shape.m() {
                let mine = |rank: usize| {
                    let (rows, shard) = (sharding.shape().m(), &shards[rank]);
                    let row = if split == Split::Rows { row - rank * rows } else { row };
                    reference::decode_row(&shard.weights().unwrap(), batch, row)
                };
                let parts: Vec<f64> = match split {
                    Split::Rows => mine(row / sharding.shape().m()),
                    Split::K => (0..ranks).flat_map(mine).collect(),
                };
                prop_assert_eq!(parts, reference::decode_row(&whole, batch, row));
            }
        }
        let bytes: usize = shards.iter().map(|shard| shard.codes().len() + shard.scales().len()).sum();
        prop_assert_eq!(bytes, layer.codes.len() + layer.scales.len());
    }

    /// A size is cut, or refused with sizes and ranks of which each would work.
    #[test]
    fn what_is_advised_works(
        split in splits(), layout in layouts(), ranks in 1usize..20, m in 1usize..2000, blocks in 1usize..200,
    ) {
        let of = |m, k, ranks| Sharding::new(&shape(m, 1, k, 1), layout, split, ranks);
        let k = blocks * 16;
        let error = match of(m, k, ranks) {
            Ok(sharding) => {
                let ends: Vec<usize> = (0..ranks).map(|rank| sharding.range(rank).unwrap().end).collect();
                prop_assert_eq!(ends.last(), Some(if split == Split::Rows { &m } else { &k }));
                prop_assert!(sharding.range(ranks).is_err());
                return Ok(());
            }
            Err(error) => error,
        };
        prop_assert!(matches!(error, ShardError::Indivisible { .. }), "{error}");
        let text = error.to_string();
        let advice = text.rsplit_once("; ").unwrap().1;
        let numbers = |text: &str| -> Vec<usize> {
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
        };
        let (sizes, others) = advice.split_once(" would work, ").unwrap();
        let sizes = numbers(sizes);
        prop_assert!(!sizes.is_empty(), "{}", text);
        for size in sizes {
            let cut = if split == Split::Rows { of(size, k, ranks) } else { of(m, size, ranks) };
            prop_assert!(cut.is_ok(), "{}", text);
        }
        let (others, ragged) = others.split_once(" (").unwrap_or((others, ""));
        let ragged = numbers(ragged.split(" the parts").next().unwrap());
        for ranks in numbers(others) {
            let cut = of(m, k, ranks);
            prop_assert!(cut.is_ok(), "{}", text);
            prop_assert_eq!(cut.unwrap().makes_rows_ragged(), ragged.contains(&ranks), "{}", text);
        }
    }
}

/// Ranks, each on a thread of its own, compute what one computes of the whole. If each has rows of the result, the bits
/// are the same. If each has a summand, the result is inside the bound of the sums.
#[test]
fn ranks_compute_what_one_computes() {
    for layout in ScaleLayout::ALL {
        for (ranks, n, l) in [(2, 1, 1), (4, 3, 2), (8, 1, 1)] {
            let of = shape(ROWS * ranks, n, COLUMNS * ranks, l);
            let layer = Layer::random(of, layout, ranks as u64);
            let (whole, options) = (layer.weights(), Options::new());
            let mut r = fastrand::Rng::with_seed(7);
            let x: Vec<f32> = (0..of.vector_elements()).map(|_| r.f32() - 0.5).collect();
            let mut one = vec![0.0f32; of.outputs()];
            gemv(
                &of,
                &whole,
                &Vectors::of(&x),
                Output::of(&mut one),
                &options,
            )
            .unwrap();

            let computed = |split: Split| -> Vec<Vec<f32>> {
                let sharding = Sharding::of(&whole, split, ranks).unwrap();
                let rank = |rank: usize| {
                    let shard = sharding.shard(&whole, rank).unwrap();
                    let mine = shard.shape();
                    let first = match split {
                        Split::Rows => 0,
                        Split::K => sharding.range(rank).unwrap().start,
                    };
                    let vectors = DenseVectors::new(&x[first..]).with_strides(Strides {
                        row: of.k(),
                        batch: n * of.k(),
                    });
                    let mut y = vec![0.0f32; mine.outputs()];
                    let weights = shard.weights().unwrap();
                    gemv(
                        mine,
                        &weights,
                        &Vectors::F32(vectors),
                        Output::of(&mut y),
                        &options,
                    )
                    .unwrap();
                    y
                };
                std::thread::scope(|scope| {
                    let rank = &rank;
                    let threads: Vec<_> =
                        (0..ranks).map(|i| scope.spawn(move || rank(i))).collect();
                    threads
                        .into_iter()
                        .map(|thread| thread.join().unwrap())
                        .collect()
                })
            };

            let rows = computed(Split::Rows);
            let m = of.m() / ranks;
            for (at, &whole) in one.iter().enumerate() {
                let (vector, row) = (at / of.m(), at % of.m());
                let part = rows[row / m][vector * m + row % m];
                assert_eq!(
                    part.to_bits(),
                    whole.to_bits(),
                    "{layout} {ranks} ranks: {at}"
                );
            }

            let summands = computed(Split::K);
            assert_eq!(summands, computed(Split::K), "not the same bits again");
            let truth = reference::gemv(&of, &whole, &Vectors::of(&x)).unwrap();
            let part = Sharding::of(&whole, Split::K, ranks).unwrap().shape();
            let of_part = Implementation::best().roundings(&part, Activation::F32);
            for (at, (&y, &magnitude)) in truth.y.iter().zip(&truth.magnitude).enumerate() {
                let sum: f32 = summands.iter().map(|part| part[at]).sum();
                let roundings = of_part + ranks as u32;
                let bound = error_bound(y, magnitude, roundings, FloatType::F32);
                let off = (f64::from(sum) - y).abs();
                assert!(
                    off <= bound,
                    "{layout} {ranks} ranks: {at}: {off} > {bound}"
                );
            }
        }
    }
}

#[test]
fn wrong_worlds_are_refused() {
    let layer = Layer::random(shape(256, 1, 128, 1), ScaleLayout::Tiled128x4, 1);
    let whole = layer.weights();
    let of = |split, ranks| Sharding::of(&whole, split, ranks);
    assert_eq!(of(Split::Rows, 0), Err(ShardError::NoRanks));
    let three = of(Split::Rows, 3).unwrap_err().to_string();
    assert_eq!(
        three,
        "M = 256 over 3 ranks: each part must be a multiple of 128, the rows of an atom of 128x4 scales; M = 384 would \
         work, and this one with 1, 2 ranks"
    );
    let four = of(Split::K, 4).unwrap_err().to_string();
    assert!(
        four.contains("K = 256 would work, and this one with 1, 2 ranks"),
        "{four}"
    );
    let narrow = Sharding::new(&shape(64, 1, 768, 1), ScaleLayout::Linear, Split::K, 7);
    let narrow = narrow.unwrap_err().to_string();
    assert!(
        narrow.ends_with(
            "and this one with 1, 2, 3, 4, 6, 8, 12 ranks (with 2, 4, 6, 8, 12 the parts are no multiples of 256, as the \
             whole is, and take slower kernels)"
        ),
        "{narrow}"
    );
    assert!(
        of(Split::K, usize::MAX)
            .unwrap_err()
            .to_string()
            .contains("no size would")
    );

    let two = of(Split::Rows, 2).unwrap();
    let beyond = two.shard(&whole, 2).unwrap_err();
    assert_eq!(
        beyond.to_string(),
        "rank 2: 2 ranks are numbered from 0 to 1"
    );
    // Weights of another shape, or with scales in the other layout.
    let other = Layer::random(shape(256, 1, 64, 1), ScaleLayout::Tiled128x4, 1);
    assert!(matches!(
        two.shard(&other.weights(), 0),
        Err(ShardError::Weights(_))
    ));
    let linear = Layer::random(shape(256, 1, 128, 1), ScaleLayout::Linear, 1);
    assert!(matches!(
        two.shard(&linear.weights(), 0),
        Err(ShardError::Layout { .. })
    ));
    // A part would be another product without its factors of columns.
    let factors = [1.0; 128];
    let with_factors = layer.weights().with_column_alpha(&factors).unwrap();
    let refused = two.shard(&with_factors, 0).unwrap_err().to_string();
    assert!(refused.contains("factors of columns"), "{refused}");
}

/// A shard that lies in one piece is not copied.
#[test]
fn rows_of_one_matrix_are_borrowed() {
    for layout in ScaleLayout::ALL {
        let layer = Layer::random(shape(512, 1, 192, 1), layout, 3);
        let whole = layer.weights();
        let sharding = Sharding::of(&whole, Split::Rows, 4).unwrap();
        for rank in 0..4 {
            let shard = sharding.shard(&whole, rank).unwrap();
            assert!(layer.codes.as_ptr_range().contains(&shard.codes().as_ptr()));
            assert!(
                layer
                    .scales
                    .as_ptr_range()
                    .contains(&shard.scales().as_ptr())
            );
        }
    }
}
