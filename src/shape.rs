//! The problem's dimensions, checked once, and every size that follows from them.

use std::fmt;

use crate::error::{Error, Result};
use crate::types::ScaleLayout;

/// The most digits of a vector.
pub(crate) const MOST_DIGITS: usize = 5;

/// Elements that share one block scale.
pub const BLOCK: usize = 16;

/// The dimensions of a problem, by name, unchecked: [`Shape::new`] checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dims {
    /// Rows of the weights.
    pub m: usize,
    /// Vectors a batch.
    pub n: usize,
    /// Elements of each row and of each vector.
    pub k: usize,
    /// Batches.
    pub l: usize,
}

/// The dimensions of one batched GEMV: `y[l][n][m] = Σ_k w[l][m][k] · x[l][n][k]`.
///
/// | name | meaning | allowed |
/// |---|---|---|
/// | M | rows of the weights, elements of each output vector | 0 to [`MAX_DIM`](Self::MAX_DIM) |
/// | N | vectors of a batch | 0 to `MAX_DIM` |
/// | K | elements of each row and of each vector | a multiple of 16, up to [`MAX_K`](Self::MAX_K) |
/// | L | batches, each with weights and vectors of its own | 0 to `MAX_DIM` |
///
/// A `Shape` that exists is valid: every size derived from it fits in memory's address range.
///
/// ```
/// use nvfp4_gemv::{Dims, Shape};
/// let shape = Shape::new(Dims { m: 4096, n: 2, k: 7168, l: 1 })?;
/// assert_eq!(shape.weight_code_bytes(), 4096 * 7168 / 2);
/// assert!(Shape::matrix(4096, 100).is_err()); // K is not a multiple of 16
/// # Ok::<(), nvfp4_gemv::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    m: usize,
    n: usize,
    k: usize,
    l: usize,
}

impl Shape {
    /// The largest M, N or L: kernels index with 32-bit integers, and may step over the end by as many batches as a grid
    /// has.
    pub const MAX_DIM: usize = (1 << 31) - (1 << 17);

    /// The largest K: kernels count the bytes of a row's scales in the 128x4 layout, 512 for four blocks, with 32-bit
    /// integers.
    pub const MAX_K: usize = 1 << 28;

    /// Checks the dimensions.
    ///
    /// # Errors
    /// K that is 0 or no multiple of 16; dimensions above [`MAX_DIM`](Self::MAX_DIM) and [`MAX_K`](Self::MAX_K), and
    /// sizes beyond the address range.
    pub fn new(dims: Dims) -> Result<Self> {
        let Dims { m, n, k, l } = dims;
        if k == 0 {
            return Err(Error::KZero);
        }
        if !k.is_multiple_of(BLOCK) {
            return Err(Error::KNotMultipleOfBlock { k });
        }
        let shape = Self { m, n, k, l };
        let dims_fit = [m, n, l].into_iter().all(|dim| dim <= Self::MAX_DIM) && k <= Self::MAX_K;
        // The largest operand is the weights as codes, the scales of weights or vectors in either layout, or a wide
        // output or vector of at most 4 bytes an element. f64 for the reference makes it 8.
        let sizes_fit = || {
            let row = k.next_multiple_of(64);
            is_size([m.next_multiple_of(128), row, l, 1])
                && is_size([n.next_multiple_of(128), row / BLOCK, l, 1])
                && is_size([n, m.max(k), l, 8])
        };
        if dims_fit && sizes_fit() {
            Ok(shape)
        } else {
            Err(Error::SizeOverflow { m, n, k, l })
        }
    }

    /// One matrix of M rows and K columns, and one vector: N = 1, L = 1.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn matrix(m: usize, k: usize) -> Result<Self> {
        Self::new(Dims { m, n: 1, k, l: 1 })
    }

    /// Rows of the weights.
    pub const fn m(&self) -> usize {
        self.m
    }

    /// Vectors a batch.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Batches.
    pub const fn l(&self) -> usize {
        self.l
    }

    /// The shape with so many vectors a batch.
    pub(crate) fn with_vectors(&self, n: usize) -> Result<Self> {
        let Self { m, k, l, .. } = *self;
        Self::new(Dims { m, n, k, l })
    }

    /// This shape with a vector for each digit of its vectors.
    ///
    /// # Errors
    /// Digits that a vector cannot have; too many of them in all.
    pub(crate) fn of_digits(&self, digits: usize) -> Result<Self> {
        match digits {
            1 => Ok(*self),
            2..=MOST_DIGITS => self.with_vectors(self.n.saturating_mul(digits)),
            _ => Err(Error::Digits {
                digits,
                takes: "a vector has 1 to 5",
            }),
        }
    }

    /// The shape of one of its batches.
    pub(crate) const fn one_batch(&self) -> Self {
        Self { l: 1, ..*self }
    }

    /// Nothing to compute: M = 0, N = 0 or L = 0.
    pub const fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.l == 0
    }

    /// Blocks of 16 in a row: K / 16.
    pub const fn blocks(&self) -> usize {
        self.k / BLOCK
    }

    /// Bytes of codes in a row: K / 2.
    pub const fn row_code_bytes(&self) -> usize {
        self.k / 2
    }

    /// Bytes of all weight codes: L · M · K / 2.
    pub const fn weight_code_bytes(&self) -> usize {
        self.l * self.m * self.row_code_bytes()
    }

    /// Bytes of all weight scales in a layout, its padding included.
    pub const fn weight_scale_bytes(&self, layout: ScaleLayout) -> usize {
        layout.bytes(self.m, self.blocks()) * self.l
    }

    /// Elements of all outputs: L · N · M.
    pub const fn outputs(&self) -> usize {
        self.l * self.n * self.m
    }

    /// Elements of all vectors: L · N · K.
    pub const fn vector_elements(&self) -> usize {
        self.l * self.n * self.k
    }

    /// Bytes a kernel must read of the weights: codes and unpadded scales. Figures in GB/s count these bytes.
    pub const fn weight_bytes(&self) -> usize {
        self.weight_code_bytes() + self.l * self.m * self.blocks()
    }
}

/// The product of these is a size that memory can have.
fn is_size(factors: [usize; 4]) -> bool {
    let product = factors
        .into_iter()
        .try_fold(1_usize, |product, factor| product.checked_mul(factor));
    product.is_some_and(|size| isize::try_from(size).is_ok())
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, k, l } = self;
        write!(f, "Shape {{ m: {m}, n: {n}, k: {k}, l: {l} }}")
    }
}

/// `MxK`, then `xL` and ` n=N` where they are not 1. The alternate form, `{:#}`, names every dimension:
/// `M = 4096, K = 7168, L = 8, N = 1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, k, l } = self;
        if f.alternate() {
            return write!(f, "M = {m}, K = {k}, L = {l}, N = {n}");
        }
        write!(f, "{}x{}", self.m, self.k)?;
        if self.l != 1 {
            write!(f, "x{}", self.l)?;
        }
        if self.n != 1 {
            write!(f, " n={}", self.n)?;
        }
        Ok(())
    }
}

/// Steps from one row to the next and from one batch to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Step from one vector to the next of the same batch.
    pub row: usize,
    /// Step from one batch to the next.
    pub batch: usize,
}

impl Strides {
    /// Strides of batches of `rows` rows with nothing between them; `row` is a row's length.
    pub const fn packed(rows: usize, row: usize) -> Self {
        let batch = rows * row;
        Self { row, batch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_bad_dimensions() {
        assert_eq!(Shape::matrix(1, 0), Err(Error::KZero));
        assert_eq!(
            Shape::matrix(1, 24),
            Err(Error::KNotMultipleOfBlock { k: 24 })
        );
        for (m, n, k, l) in [
            (usize::MAX, 1, 16, 1),
            (1, usize::MAX, 16, 1),
            (1, 1, usize::MAX - 15, 1),
            (1, 1, 16, usize::MAX),
            (1 << 30, 1, 1 << 30, 1 << 30),
            (1, 1 << 30, 1 << 30, 1 << 30),
            (1 << 30, 1 << 30, 16, 1 << 30),
            (Shape::MAX_DIM + 1, 1, 16, 1),
            (1, Shape::MAX_DIM + 1, 16, 1),
            (1, 1, Shape::MAX_K + 16, 1),
            (1, 1, 16, Shape::MAX_DIM + 1),
        ] {
            assert_eq!(
                Shape::new(Dims { m, n, k, l }),
                Err(Error::SizeOverflow { m, n, k, l })
            );
        }
    }

    #[test]
    fn takes_any_number_of_vectors() {
        for n in [1, 17, 128, 1000, 1 << 20, Shape::MAX_DIM] {
            let (m, k, l) = (64, 16, 1);
            let shape = Shape::new(Dims { m, n, k, l }).unwrap();
            assert_eq!((shape.n(), shape.outputs()), (n, 64 * n));
        }
    }

    #[test]
    fn sizes() {
        let s = Shape::new(Dims {
            m: 129,
            n: 3,
            k: 80,
            l: 2,
        })
        .unwrap();
        assert_eq!(s.blocks(), 5);
        assert_eq!(s.weight_code_bytes(), 2 * 129 * 40);
        assert_eq!(s.weight_scale_bytes(ScaleLayout::Linear), 2 * 129 * 5);
        assert_eq!(s.weight_scale_bytes(ScaleLayout::Tiled128x4), 2 * 256 * 8);
        assert_eq!(s.outputs(), 2 * 3 * 129);
        assert_eq!(s.to_string(), "129x80x2 n=3");
        assert_eq!(format!("{s:#}"), "M = 129, K = 80, L = 2, N = 3");
        for (m, n, l) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)] {
            let shape = Shape::new(Dims { m, n, k: 16, l }).unwrap();
            assert!(shape.is_empty(), "{shape:?}");
        }
    }
}
