//! The problem's dimensions, checked once, and every size that follows from them.

use std::fmt;

use crate::error::{Error, Result};
use crate::types::ScaleLayout;

/// Elements that share one block scale.
pub const BLOCK: usize = 16;

/// The dimensions of a problem, by name: what [`Shape::new`] checks.
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
/// | M | rows of the weights, elements of each output vector | 0 or more |
/// | N | vectors that share one pass over the weights | 1 to 16 |
/// | K | elements of each row and of each vector | a positive multiple of 16 |
/// | L | batches, each with weights and vectors of its own | 0 or more |
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
    /// The most vectors one call takes.
    pub const MAX_N: usize = 128;

    /// The largest M, K or L: kernels index with 32-bit integers.
    pub const MAX_DIM: usize = i32::MAX as usize - 127;

    /// Checks the dimensions.
    ///
    /// # Errors
    /// K that is 0 or no multiple of 16, N out of range, and sizes beyond the address range.
    pub fn new(dims: Dims) -> Result<Self> {
        let Dims { m, n, k, l } = dims;
        if k == 0 {
            return Err(Error::KZero);
        }
        if !k.is_multiple_of(BLOCK) {
            return Err(Error::KNotMultipleOfBlock { k });
        }
        if n == 0 || n > Self::MAX_N {
            return Err(Error::NOutOfRange {
                n,
                most: Self::MAX_N,
            });
        }
        let shape = Self { m, n, k, l };
        // The largest operand is the weights as codes, scales in either layout, or a wide output
        // or vector of at most 4 bytes an element. f64 for the reference makes it 8.
        let fits = m <= Self::MAX_DIM
            && k <= Self::MAX_DIM
            && l <= Self::MAX_DIM
            && m.next_multiple_of(128)
                .checked_mul(k.next_multiple_of(64))
                .and_then(|mk| mk.checked_mul(l))
                .is_some_and(|x| isize::try_from(x).is_ok())
            && (n * 8)
                .checked_mul(l)
                .and_then(|nl| nl.checked_mul(m.max(k)))
                .is_some_and(|x| isize::try_from(x).is_ok());
        if fits {
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

    /// Nothing to compute: M = 0 or L = 0.
    pub const fn is_empty(&self) -> bool {
        self.m == 0 || self.l == 0
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

    /// Bytes a kernel must read of the weights: codes and unpadded scales. What GB/s figures count.
    pub const fn weight_bytes(&self) -> usize {
        self.weight_code_bytes() + self.l * self.m * self.blocks()
    }
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
    /// From one vector to the next of the same batch.
    pub row: usize,
    /// From one batch to the next.
    pub batch: usize,
}

impl Strides {
    /// Of batches of `rows` rows with nothing between them; `row` is a row's length.
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
        assert_eq!(
            Shape::new(Dims {
                m: 1,
                n: 0,
                k: 16,
                l: 1
            }),
            Err(Error::NOutOfRange { n: 0, most: 16 })
        );
        assert_eq!(
            Shape::new(Dims {
                m: 1,
                n: 17,
                k: 16,
                l: 1
            }),
            Err(Error::NOutOfRange { n: 17, most: 16 })
        );
        for (m, k, l) in [
            (usize::MAX, 16, 1),
            (1, usize::MAX - 15, 1),
            (1, 16, usize::MAX),
            (1 << 30, 1 << 30, 1 << 30),
            (Shape::MAX_DIM + 1, 16, 1),
        ] {
            assert!(
                matches!(
                    Shape::new(Dims { m, n: 1, k, l }),
                    Err(Error::SizeOverflow { .. })
                ),
                "{m} {k} {l}"
            );
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
        assert!(Shape::matrix(0, 16).unwrap().is_empty());
        assert!(
            Shape::new(Dims {
                m: 1,
                n: 1,
                k: 16,
                l: 0
            })
            .unwrap()
            .is_empty()
        );
    }
}
