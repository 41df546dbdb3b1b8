//! Weights cut into shards, one for each rank: the beginning of tensor parallelism.
//!
//! A layer whose weights are too many for one GPU, or whose time on one is too long, is divided among several, which
//! are called ranks. Its weights `[L][M][K]` can be cut in two ways.
//!
//! - [`Split::Rows`]: each rank has M / ranks rows, multiplies them by the whole vector, and has that part of the
//!   result. Where the weight matrix is written as `[K][M]`, as in Megatron-LM, this is a column-parallel layer.
//! - [`Split::K`]: each rank has K / ranks columns, multiplies them by its part of the vector, and has a summand of the
//!   whole result. All ranks' summands are added (an all-reduce). In Megatron-LM this is a row-parallel layer.
//!
//! A layer cut by rows, followed by one cut by K, needs one such addition for both. The first layer's part of the
//! result is the second layer's part of the vector.
//!
//! Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
//! section 3.
//!
//! ```
//! use nvfp4_gemv_parallel::shard::{Sharding, Split};
//! use nvfp4_gemv::{GlobalScale, Options, Output, ScaleLayout, Shape, Vectors, Weights, gemv};
//! // All weights are 1.
//! let shape = Shape::matrix(32, 64)?;
//! let (codes, scales) = (vec![0x22; 32 * 32], vec![0x38; 32 * 4]);
//! let whole = Weights::new(&shape, &codes, &scales, ScaleLayout::Linear, GlobalScale::ONE)?;
//!
//! // The second one of two ranks.
//! let sharding = Sharding::of(&whole, Split::K, 2)?;
//! let shard = sharding.shard(&whole, 1)?;
//! let mut y = [0.0f32; 32];
//! let mine = vec![0.5f32; sharding.range(1)?.len()];
//! let weights = shard.weights()?;
//! gemv(shard.shape(), &weights, &Vectors::of(&mine), Output::of(&mut y), &Options::new())?;
//! assert_eq!(y, [16.0; 32]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;
use std::ops::Range;

use nvfp4_gemv::{BLOCK, Dims, GlobalScale, ScaleLayout, Shape, Weights};

nvfp4_gemv::named! {
    /// The dimension of the weights that ranks divide.
    Split {
        /// M: each rank has rows, and a part of the result.
        Rows = "rows",
        /// K: each rank has columns, and a summand of the result.
        K = "k",
    }
}

/// Why weights cannot be cut.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// There are no ranks.
    #[error("0 ranks: a layer is divided among 1 or more")]
    NoRanks,

    /// The ranks' parts would not be equal, or would cut what must stay whole.
    #[error(
        "{} = {size} over {ranks} ranks: each part must be a multiple of {granule}, {why}; {}",
        .split.dimension(), .split.advice(*size, *ranks, *granule)
    )]
    Indivisible {
        /// The dimension.
        split: Split,
        /// Its size.
        size: usize,
        /// The ranks that there are.
        ranks: usize,
        /// The number that each part must be a multiple of.
        granule: usize,
        /// Why it must, as part of a sentence.
        why: &'static str,
    },

    /// There is no such rank.
    #[error("rank {rank}: {ranks} ranks are numbered from 0 to {}", .ranks - 1)]
    NoSuchRank {
        /// The rank that was asked for.
        rank: usize,
        /// The ranks that there are.
        ranks: usize,
    },

    /// The weights have another layout of scales than those that were divided.
    #[error("the scales' layout is {found}, what was divided has {expected}")]
    #[allow(missing_docs)]
    Layout {
        expected: ScaleLayout,
        found: ScaleLayout,
    },

    /// The weights are of another shape than those that were divided.
    #[error(transparent)]
    Weights(#[from] nvfp4_gemv::Error),
}

/// Ranks that are tried when others would work: what one host has, or two.
pub(crate) const MOST_ADVISED: usize = 16;

/// Rows whose length is a multiple of this are not ragged: the fastest kernels take no others, or take others more
/// slowly.
const EVEN: usize = 256;

/// Whether a row is even, and so many equal parts of it are not.
fn makes_ragged(k: usize, ranks: usize) -> bool {
    k.is_multiple_of(EVEN) && !k.is_multiple_of(ranks * EVEN)
}

impl Split {
    const fn dimension(self) -> &'static str {
        match self {
            Self::Rows => "M",
            Self::K => "K",
        }
    }

    /// The number that a rank's part of the dimension must be a multiple of, and why.
    const fn granule(self, layout: ScaleLayout) -> (usize, &'static str) {
        match (self, layout) {
            (Self::Rows, ScaleLayout::Linear) => {
                (8, "so that its part of an f16 result begins at 16 bytes")
            }
            (Self::Rows, ScaleLayout::Tiled128x4) => (
                ScaleLayout::ATOM_ROWS,
                "the rows of an atom of 128x4 scales",
            ),
            (Self::K, ScaleLayout::Linear) => {
                (2 * BLOCK, "so that its rows' codes begin at 16 bytes")
            }
            (Self::K, ScaleLayout::Tiled128x4) => (
                ScaleLayout::ATOM_BLOCKS * BLOCK,
                "the columns of an atom of 128x4 scales",
            ),
        }
    }

    /// Advice in the place of a size and ranks that do not work: a size or ranks that would.
    fn advice(self, size: usize, ranks: usize, granule: usize) -> String {
        let step = ranks.saturating_mul(granule);
        let above = size.checked_next_multiple_of(step);
        let above = above.filter(|above| *above <= Shape::MAX_DIM);
        let sizes: Vec<String> = [Some(size / step * step), above]
            .into_iter()
            .flatten()
            .filter(|size| *size > 0)
            .map(|size| size.to_string())
            .collect();
        let sizes = match sizes.is_empty() {
            true => "no size would work".into(),
            false => format!("{} = {} would work", self.dimension(), sizes.join(" or ")),
        };
        let work = (1..=MOST_ADVISED).filter(|ranks| size.is_multiple_of(ranks * granule));
        let work: Vec<usize> = work.collect();
        let ragged = work.iter().filter(|ranks| makes_ragged(size, **ranks));
        let ragged: Vec<usize> = match self {
            Self::Rows => Vec::new(),
            Self::K => ragged.copied().collect(),
        };
        let list = |ranks: &[usize]| {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            ranks.join(", ")
        };
        match (&work[..], &ragged[..]) {
            ([], _) => format!("{sizes}, and this one only undivided"),
            (work, []) => format!("{sizes}, and this one with {} ranks", list(work)),
            (work, ragged) => format!(
                "{sizes}, and this one with {} ranks (with {} the parts are no multiples of {EVEN}, as the whole is, and \
                 take slower kernels)",
                list(work),
                list(ragged)
            ),
        }
    }
}

/// How the weights of a layer are divided among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    shape: Shape,
    layout: ScaleLayout,
    split: Split,
    ranks: usize,
}

impl Sharding {
    /// Divides a layer, whose scales have this layout. The shape's N does not matter to it; [`shape`](Self::shape)
    /// keeps it.
    ///
    /// # Errors
    /// [`ShardError::NoRanks`]; [`ShardError::Indivisible`] with sizes and ranks that would work. A single rank takes
    /// every layer.
    pub fn new(
        shape: &Shape,
        layout: ScaleLayout,
        split: Split,
        ranks: usize,
    ) -> Result<Self, ShardError> {
        let sharding = Self {
            shape: *shape,
            layout,
            split,
            ranks,
        };
        if ranks == 0 {
            return Err(ShardError::NoRanks);
        }
        let (size, (granule, why)) = (sharding.size(), split.granule(layout));
        let fits = ranks
            .checked_mul(granule)
            .is_some_and(|step| size.is_multiple_of(step));
        match fits || ranks == 1 {
            true => Ok(sharding),
            false => Err(ShardError::Indivisible {
                split,
                size,
                ranks,
                granule,
                why,
            }),
        }
    }

    /// Divides a layer with these weights.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn of(weights: &Weights<'_>, split: Split, ranks: usize) -> Result<Self, ShardError> {
        weights.all("ranks divide")?;
        Self::new(weights.shape(), weights.layout(), split, ranks)
    }

    /// The dimension that is divided.
    pub fn split(&self) -> Split {
        self.split
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The shape of each rank's weights, with the N of the layer's.
    pub fn shape(&self) -> Shape {
        let (whole, part) = (&self.shape, self.size() / self.ranks);
        let (m, k) = match self.split {
            Split::Rows => (part, whole.k()),
            Split::K => (whole.m(), part),
        };
        let (n, l) = (whole.n(), whole.l());
        Shape::new(Dims { m, n, k, l }).expect("a part of a shape is one")
    }

    /// Whether K of the whole is a multiple of 256 and K of each rank's part is not. Then the fastest kernels cannot
    /// compute a part, or take longer for its bytes.
    pub fn makes_rows_ragged(&self) -> bool {
        self.split == Split::K && makes_ragged(self.size(), self.ranks)
    }

    /// The rows, or the columns, of a rank.
    ///
    /// # Errors
    /// [`ShardError::NoSuchRank`].
    pub fn range(&self, rank: usize) -> Result<Range<usize>, ShardError> {
        let ranks = self.ranks;
        let part = self.size() / ranks;
        match rank < ranks {
            true => Ok(rank * part..(rank + 1) * part),
            false => Err(ShardError::NoSuchRank { rank, ranks }),
        }
    }

    /// The weights of a rank. Buffers that lie in one piece in the whole weights are borrowed from them, others are
    /// copied.
    ///
    /// # Errors
    /// [`ShardError::NoSuchRank`]; [`ShardError::Weights`] and [`ShardError::Layout`] for other weights than those that
    /// this divides.
    pub fn shard<'a>(&self, weights: &Weights<'a>, rank: usize) -> Result<Shard<'a>, ShardError> {
        let range = self.range(rank)?;
        weights.all("ranks divide")?;
        weights.no_column_alpha("parts of ranks do not have them")?;
        weights.check(&self.shape)?;
        let layout = weights.layout();
        if layout != self.layout {
            return Err(ShardError::Layout {
                expected: self.layout,
                found: layout,
            });
        }
        let row_alpha = weights.row_alpha().map(|alpha| match self.split {
            Split::K => Cow::Borrowed(alpha),
            Split::Rows => Pieces {
                count: alpha.len() / self.shape.m().max(1),
                stride: self.shape.m(),
                part: range.clone(),
            }
            .of(alpha),
        });
        Ok(Shard {
            shape: self.shape(),
            codes: self.code_pieces(&range).of(weights.codes()),
            scales: self.scale_pieces(&range).of(weights.scales()),
            layout,
            global: weights.global(),
            row_alpha,
        })
    }

    /// The size of the dimension that is divided.
    fn size(&self) -> usize {
        match self.split {
            Split::Rows => self.shape.m(),
            Split::K => self.shape.k(),
        }
    }

    fn code_pieces(&self, range: &Range<usize>) -> Pieces {
        let (shape, row) = (&self.shape, self.shape.row_code_bytes());
        match self.split {
            Split::Rows => Pieces {
                count: shape.l(),
                stride: shape.m() * row,
                part: range.start * row..range.end * row,
            },
            Split::K => Pieces {
                count: shape.l() * shape.m(),
                stride: row,
                part: range.start / 2..range.end / 2,
            },
        }
    }

    fn scale_pieces(&self, range: &Range<usize>) -> Pieces {
        let (shape, blocks, layout) = (&self.shape, self.shape.blocks(), self.layout);
        match self.split {
            // Whole atoms, unless there is only one rank.
            Split::Rows => Pieces {
                count: shape.l(),
                stride: layout.bytes(shape.m(), blocks),
                part: layout.bytes(range.start, blocks)..layout.bytes(range.end, blocks),
            },
            Split::K => {
                let lines = match layout {
                    ScaleLayout::Linear => 1,
                    ScaleLayout::Tiled128x4 => ScaleLayout::ATOM_ROWS,
                };
                let bytes = |k: usize| layout.bytes(lines, k / BLOCK);
                Pieces {
                    count: shape.l() * shape.m().div_ceil(lines),
                    stride: bytes(shape.k()),
                    part: bytes(range.start)..bytes(range.end),
                }
            }
        }
    }
}

/// One part of each of so many pieces of equal length, which follow each other: the same range in every piece.
struct Pieces {
    count: usize,
    stride: usize,
    part: Range<usize>,
}

impl Pieces {
    fn of<'a, T: Copy>(&self, all: &'a [T]) -> Cow<'a, [T]> {
        let Range { start, end } = self.part;
        match self.count {
            1 => Cow::Borrowed(&all[start..end]),
            count if end - start == self.stride => Cow::Borrowed(&all[..count * self.stride]),
            count => {
                let pieces = all.chunks(self.stride.max(1)).take(count);
                Cow::Owned(
                    pieces
                        .flat_map(|piece| &piece[start..end])
                        .copied()
                        .collect(),
                )
            }
        }
    }
}

/// The weights of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard<'a> {
    shape: Shape,
    codes: Cow<'a, [u8]>,
    scales: Cow<'a, [u8]>,
    layout: ScaleLayout,
    global: GlobalScale,
    row_alpha: Option<Cow<'a, [f32]>>,
}

impl Shard<'_> {
    /// Their shape, with the N of the layer's.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Packed codes, `[L][M][K/2]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Block scales, in the layout of the whole weights.
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// Factors of the rows, if the whole weights have them.
    pub fn row_alpha(&self) -> Option<&[f32]> {
        self.row_alpha.as_deref()
    }

    /// The weights as an operand. Reads every scale once, as [`Weights::new`] does.
    ///
    /// # Errors
    /// As [`Weights::new`]'s; none where the whole weights were made by that.
    pub fn weights(&self) -> nvfp4_gemv::Result<Weights<'_>> {
        let (codes, scales) = (self.codes(), self.scales());
        let weights = Weights::new(&self.shape, codes, scales, self.layout, self.global)?;
        match self.row_alpha() {
            Some(alpha) => weights.with_row_alpha(alpha),
            None => Ok(weights),
        }
    }
}
