//! What a kernel is given of the weights, and what it gives back.

use crate::cpu::prepare::{DenseVector, Nvfp4Vector};
use crate::tensor::Weights;
use crate::types::ScaleLayout;

/// Rows that a kernel takes at once at most.
pub(super) const MAX_ROWS: usize = 4;

/// Vectors that a kernel takes at once at most.
pub(super) const MAX_VECTORS: usize = 4;

/// Rows of a full group lie this far apart: those of a 128x4 atom that share 16 bytes.
pub(super) const ROW_STEP: usize = 32;

/// Rows of a row block: those that share the atoms of the 128x4 layout.
pub(super) const ROW_BLOCK: usize = MAX_ROWS * ROW_STEP;

/// `sums[row][vector]`, before the global scales.
pub(super) type Sums = [[f32; MAX_VECTORS]; MAX_ROWS];

/// What every implementation consists of.
///
/// The functions are unsafe to call on a CPU without the features of their implementation; all
/// else they check.
pub(super) struct Kernels {
    /// Which element of each 128 the dense kernel reads at which position.
    pub(super) order: &'static [u8; 128],
    /// NVFP4 weights times 1, 2 or 4 NVFP4 vectors.
    pub(super) nvfp4: unsafe fn(&Rows<'_>, &[Nvfp4Vector<'_>]) -> Sums,
    /// NVFP4 weights times 1, 2 or 4 f32 vectors.
    pub(super) dense: unsafe fn(&Rows<'_>, &[DenseVector<'_>]) -> Sums,
}

/// One row, or the four rows `i`, `i + 32`, `i + 64`, `i + 96` of a row block.
///
/// Four rows share the loads of the vectors, and give the memory four streams to fetch. Rows 32
/// apart, because each stream then goes on in the next group where it stopped in this one, and
/// because one load of 128x4 scales serves all four.
pub(super) struct Rows<'a> {
    /// Blocks in a row.
    pub(super) blocks: usize,
    /// 1 or 4.
    pub(super) count: usize,
    /// The codes of each row, K/2 bytes; where `count` is 1 only the first is used.
    pub(super) codes: [&'a [u8]; MAX_ROWS],
    pub(super) scales: RowScales<'a>,
}

/// The block scales of [`Rows`], in place.
pub(super) enum RowScales<'a> {
    /// K/16 bytes for each row.
    Linear([&'a [u8]; MAX_ROWS]),
    /// From the first row's 4 bytes in the row block's first atom on. Those of block `j` are
    /// `j / 4 * 512 + j % 4` further; those of the next row of a group of four 4 bytes further.
    Tiled(&'a [u8]),
}

impl<'a> Rows<'a> {
    /// `count` rows of a batch from `row` on, [`ROW_STEP`] apart.
    pub(super) fn new(weights: &Weights<'a>, batch: usize, row: usize, count: usize) -> Self {
        let shape = weights.shape();
        let (blocks, bytes) = (shape.blocks(), shape.row_code_bytes());
        let row_of = |r: usize| if r < count { row + r * ROW_STEP } else { row };
        let scales = &weights.scales[batch * weights.layout.bytes(shape.m(), blocks)..];
        Self {
            blocks,
            count,
            codes: std::array::from_fn(|r| {
                &weights.codes[(batch * shape.m() + row_of(r)) * bytes..][..bytes]
            }),
            scales: match weights.layout {
                ScaleLayout::Linear => RowScales::Linear(std::array::from_fn(|r| {
                    &scales[row_of(r) * blocks..][..blocks]
                })),
                ScaleLayout::Tiled128x4 => {
                    RowScales::Tiled(&scales[weights.layout.offset(row, 0, blocks)..])
                }
            },
        }
    }

    /// Panics where a kernel would read past what is there: what kernels' raw reads rely on.
    pub(super) fn assert_lengths(&self, rows: usize) {
        assert!(rows == self.count && rows <= MAX_ROWS && self.blocks > 0);
        assert!(
            self.codes
                .iter()
                .all(|codes| codes.len() == self.blocks * 8)
        );
        match &self.scales {
            RowScales::Linear(scales) => {
                assert!(scales.iter().all(|scales| scales.len() == self.blocks));
            }
            RowScales::Tiled(scales) => {
                assert!(scales.len() >= (self.blocks.div_ceil(4) - 1) * 512 + 4 * rows);
            }
        }
    }
}

/// The sum of all lanes: halves added until one is left, so log2(L) roundings.
#[inline(always)]
pub(super) fn sum_lanes<const L: usize>(mut lanes: [f32; L]) -> f32 {
    let mut half = L / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Calls a kernel's instance for the number of rows, the number of vectors and the layout.
macro_rules! by_size {
    ($rows:ident, $x:ident, $kernel:ident, $($generic:ty,)?) => {{
        let tiled = matches!($rows.scales, $crate::cpu::rows::RowScales::Tiled(_));
        match ($rows.count, $x.len(), tiled) {
            (4, 1, false) => $kernel::<$($generic,)? 4, 1, false>($rows, $x),
            (4, 1, true) => $kernel::<$($generic,)? 4, 1, true>($rows, $x),
            (4, 2, false) => $kernel::<$($generic,)? 4, 2, false>($rows, $x),
            (4, 2, true) => $kernel::<$($generic,)? 4, 2, true>($rows, $x),
            (4, 4, false) => $kernel::<$($generic,)? 4, 4, false>($rows, $x),
            (4, 4, true) => $kernel::<$($generic,)? 4, 4, true>($rows, $x),
            (1, 1, false) => $kernel::<$($generic,)? 1, 1, false>($rows, $x),
            (1, 1, true) => $kernel::<$($generic,)? 1, 1, true>($rows, $x),
            (1, 2, false) => $kernel::<$($generic,)? 1, 2, false>($rows, $x),
            (1, 2, true) => $kernel::<$($generic,)? 1, 2, true>($rows, $x),
            (1, 4, false) => $kernel::<$($generic,)? 1, 4, false>($rows, $x),
            (1, 4, true) => $kernel::<$($generic,)? 1, 4, true>($rows, $x),
            (rows, vectors, _) => unreachable!("{rows} rows, {vectors} vectors"),
        }
    }};
}
pub(super) use by_size;
