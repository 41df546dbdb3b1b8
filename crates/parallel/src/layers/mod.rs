//! Pairs of layers over several ranks: tensor parallelism with one sum for both.
//!
//! The MLP of a decoder, and the projections around its attention, have one form. Some layers read the same vector;
//! something between them and the last layer mixes no columns of different ranks; the last layer reads its result. The
//! first layers are cut by rows and the last layer along K ([`Split`]). So each rank computes its part of everything
//! without the others. One addition at the end gives all of them the whole result.
//!
//! [`TensorParallel::mlp`] and [`TensorParallel::attention`] check that the weights fit each other and the ranks, and
//! [`TensorParallel::rank`] cuts a rank's part. That part computes [on the host](RankLayers::compute), where ranks are
//! threads, or, with feature `nccl`, is copied to the rank's GPU: `RankLayers::on_device`.
//!
//! The computation between the layers is the caller's: `silu(gate) * up` of an MLP, which [`silu_times`] computes on
//! the host, or the attention.
//!
//! ```
//! use nvfp4_gemv_parallel::layers::{HostRank, LayersError, TensorParallel, silu_times};
//! use nvfp4_gemv::{GlobalScale, ScaleLayout, Shape, Weights};
//!
//! // All weights are 1: hidden size 64, intermediate size 128.
//! let (wide, narrow) = (Shape::matrix(128, 64)?, Shape::matrix(64, 128)?);
//! let (codes, scales) = (vec![0x22; 128 * 32], vec![0x38; 128 * 4]);
//! let weights = |shape| Weights::new(shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::ONE);
//! let (gate, up, down) = (weights(&wide)?, weights(&wide)?, weights(&narrow)?);
//! let mlp = TensorParallel::mlp(&gate, &up, &down, 2)?;
//!
//! // Two ranks, a thread each.
//! let x = [1.0 / 64.0; 64];
//! let rank = |group: HostRank| {
//!     mlp.rank(group.rank())?.compute(1, &x, &group, |gate_up, out| {
//!         silu_times(&gate_up[0], &gate_up[1], out);
//!         Ok::<(), LayersError>(())
//!     })
//! };
//! let y: Vec<Vec<f32>> = std::thread::scope(|scope| {
//!     let threads: Vec<_> = HostRank::group(2).into_iter().map(|group| scope.spawn(|| rank(group))).collect();
//!     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_, _>>()
//! })?;
//! assert_eq!(y[0], y[1]);
//! assert!((y[0][0] - 128.0 * 0.731_058_6).abs() < 1e-3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "nccl")]
mod device;
mod error;
mod host;
#[cfg(feature = "nccl")]
mod placement;
pub mod sums;

use nvfp4_gemv::{Dims, Shape, Weights};

use crate::shard::{MOST_ADVISED, Shard, Sharding, Split};

#[cfg(feature = "nccl")]
pub use device::{DeviceElement, LayersOnDevice};
pub use error::{LayersError, Origin, origin};
pub use host::{GroupError, HostRank, silu_times};
#[cfg(feature = "nccl")]
pub use placement::{Placement, VectorGlobals};

/// A pair of layers, checked and divided among ranks. It borrows the whole weights.
#[derive(Debug)]
pub struct TensorParallel<'a> {
    /// The layers that are cut by rows, with their names.
    first: Vec<(&'static str, &'a Weights<'a>, Sharding)>,
    last: (&'static str, &'a Weights<'a>, Sharding),
    ranks: usize,
}

impl<'a> TensorParallel<'a> {
    /// An MLP: gate and up, the computation between, and down.
    ///
    /// # Errors
    /// [`LayersError::Mismatch`], [`LayersError::Batches`]; [`LayersError::Shard`] for sizes that do not divide, with
    /// those that would.
    pub fn mlp(
        gate: &'a Weights<'a>,
        up: &'a Weights<'a>,
        down: &'a Weights<'a>,
        ranks: usize,
    ) -> Result<Self, LayersError> {
        let (g, u, d) = (gate.shape(), up.shape(), down.shape());
        equal(("up's M", u.m()), ("gate's M", g.m()))?;
        equal(("down's K", d.k()), ("gate's M", g.m()))?;
        equal(("up's K", u.k()), ("gate's K", g.k()))?;
        equal(("down's M", d.m()), ("gate's K", g.k()))?;
        Self::new(&[("gate", gate), ("up", up)], ("down", down), ranks)
    }

    /// The projections around an attention: q, k and v with heads of so many rows, the attention, and o. Each rank has
    /// whole heads, and those of k and v that its heads of q look at.
    ///
    /// # Errors
    /// As [`mlp`](Self::mlp)'s; [`LayersError::Heads`].
    pub fn attention(
        [q, k, v]: [&'a Weights<'a>; 3],
        o: &'a Weights<'a>,
        head: usize,
        ranks: usize,
    ) -> Result<Self, LayersError> {
        let shapes = [q, k, v, o].map(Weights::shape);
        let [qs, ks, vs, os] = shapes;
        equal(("v's M", vs.m()), ("k's M", ks.m()))?;
        equal(("o's K", os.k()), ("q's M", qs.m()))?;
        equal(("k's K", ks.k()), ("q's K", qs.k()))?;
        equal(("v's K", vs.k()), ("q's K", qs.k()))?;
        equal(("o's M", os.m()), ("q's K", qs.k()))?;
        let first = [("q", q), ("k", k), ("v", v)];
        let over = |ranks| Self::new(&first, ("o", o), ranks);
        // The first layer whose heads so many ranks cannot share.
        let unequal = |ranks: usize| {
            let mut rows = first
                .map(|(layer, weights)| (layer, weights.shape().m()))
                .into_iter();
            rows.find(|(_, rows)| {
                head == 0 || !rows.is_multiple_of(head) || !(rows / head).is_multiple_of(ranks)
            })
        };
        let layers = over(ranks)?;
        match unequal(ranks) {
            None => Ok(layers),
            Some((layer, rows)) => {
                let work = |ranks: &usize| unequal(*ranks).is_none() && over(*ranks).is_ok();
                Err(LayersError::Heads {
                    layer,
                    rows,
                    head,
                    ranks,
                    work: (1..=MOST_ADVISED).filter(work).collect(),
                })
            }
        }
    }

    fn new(
        first: &[(&'static str, &'a Weights<'a>)],
        last: (&'static str, &'a Weights<'a>),
        ranks: usize,
    ) -> Result<Self, LayersError> {
        let cut = |(layer, weights): (&'static str, &'a Weights<'a>), split| {
            let l = weights.shape().l();
            if l != 1 {
                return Err(LayersError::Batches { layer, l });
            }
            let sharding = Sharding::of(weights, split, ranks);
            let sharding = sharding.map_err(|error| LayersError::Shard { layer, error })?;
            Ok((layer, weights, sharding))
        };
        let first = first.iter().map(|&layer| cut(layer, Split::Rows));
        Ok(Self {
            first: first.collect::<Result<_, _>>()?,
            last: cut(last, Split::K)?,
            ranks,
        })
    }

    /// The ranks that it is divided among.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// A rank's part of each layer: the first layers in their order, and the last layer.
    ///
    /// # Errors
    /// [`LayersError::Shard`] for a rank that there is not.
    pub fn rank(&self, rank: usize) -> Result<RankLayers<'a>, LayersError> {
        let cut = |(layer, weights, sharding): &(&'static str, &'a Weights<'a>, Sharding)| {
            let shard = sharding.shard(weights, rank);
            shard.map_err(|error| LayersError::Shard { layer, error })
        };
        Ok(RankLayers {
            first: self.first.iter().map(cut).collect::<Result<_, _>>()?,
            last: cut(&self.last)?,
            rank,
            ranks: self.ranks,
        })
    }
}

fn equal(
    (dimension, found): (&'static str, usize),
    (of, expected): (&'static str, usize),
) -> Result<(), LayersError> {
    match found == expected {
        true => Ok(()),
        false => Err(LayersError::Mismatch {
            dimension,
            found,
            expected,
            of,
        }),
    }
}

/// A rank's part of a pair of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RankLayers<'a> {
    first: Vec<Shard<'a>>,
    last: Shard<'a>,
    rank: usize,
    ranks: usize,
}

impl<'a> RankLayers<'a> {
    /// Its part of the layers that read the vector, in their order.
    pub fn first(&self) -> &[Shard<'a>] {
        &self.first
    }

    /// Its part of the layer that reads the result of the computation between.
    pub fn last(&self) -> &Shard<'a> {
        &self.last
    }

    /// Checks that the part is cut for this rank.
    fn is_for(&self, found: usize, of: usize) -> Result<(), LayersError> {
        let (rank, ranks) = (self.rank, self.ranks);
        match (rank, ranks) == (found, of) {
            true => Ok(()),
            false => Err(LayersError::OtherRank {
                rank,
                ranks,
                found,
                of,
            }),
        }
    }
}

/// The shape of a shard with so many vectors.
fn with_vectors(shard: &Shard<'_>, n: usize) -> Result<Shape, LayersError> {
    let shape = shard.shape();
    let (m, k, l) = (shape.m(), shape.k(), shape.l());
    Ok(Shape::new(Dims { m, n, k, l })?)
}
