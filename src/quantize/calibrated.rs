//! Quantising for the vectors that a matrix will meet.

use rayon::prelude::*;

use super::{QuantizeError, Quantized, block_scale, encode, quantize_row, step};
use crate::dialect::Dialect;
use crate::element::Element;
use crate::format::e2m1;
use crate::{BLOCK, GlobalScale, check};

/// Statistics of the vectors x that a matrix will meet, from collected ones: the mean of `x[i]²` for
/// each column i, or of `x[i] · x[j]` for each pair. One for all matrices that multiply the same vectors.
///
/// A matrix W that is quantised to Q changes a product by `(W - Q) x`, whose mean square for a row of errors e is
/// `Σ e[i] · H[i][j] · e[j]`, H the mean products. To H's diagonal a hundredth of the diagonal's mean is added, so that
/// columns that the collected vectors left at zero count for something, and so that few vectors are enough. This sum is
/// a row's **weighted error**. Of squares, H has nothing beside its diagonal.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// H's diagonal, what was added included.
    squares: Vec<f32>,
    /// H = RᵀR, R upper triangular. `[K][K]`: a row of R over its element on the diagonal, in that element's place 1.
    /// Nothing for squares: there R is diagonal.
    factor: Option<Vec<f32>>,
    /// The squares of R's diagonal.
    pivots: Vec<f32>,
}

/// The addend of H's diagonal, as a part of its mean.
const DAMPING: f64 = 0.01;

/// The power of two that statistics are divided by, which have no unit: products of them and of squared errors are then
/// within f32's range. `added` is a part of their mean.
fn unit(added: f64) -> f64 {
    match added > 0.0 {
        true => (added / DAMPING).log2().round().exp2(),
        false => 1.0,
    }
}

/// Rows of R that are made before the rows behind them are updated.
const PANEL: usize = 32;

/// Rows of W whose errors are fed back together: a vector register's elements, or a few.
const ROWS: usize = 16;

impl Calibration {
    /// Of mean squares, one for each column.
    ///
    /// # Errors
    /// [A statistic](QuantizeError::Statistic) that is negative, infinite or NaN.
    pub fn of_squares(squares: &[f32]) -> Result<Self, QuantizeError> {
        if let Some(at) = squares.iter().position(|x| !is_square(*x)) {
            return Err(statistic(at, at, squares[at]));
        }
        let diagonal = squares.iter().map(|x| f64::from(*x));
        let added = damping(diagonal.clone());
        let unit = unit(added);
        let squares: Vec<f32> = diagonal.map(|x| ((x + added) / unit) as f32).collect();
        Ok(Self {
            pivots: squares.clone(),
            squares,
            factor: None,
        })
    }

    /// Of the mean products of pairs, `[K][K]`. Takes K³ / 3 operations and 12 bytes a product.
    ///
    /// # Errors
    /// Not `k · k` products; [one](QuantizeError::Statistic) that is infinite or NaN, negative on the diagonal, or not
    /// that of the same pair the other way around; products that [no vectors have](QuantizeError::NoMoments).
    pub fn of_products(products: &[f32], k: usize) -> Result<Self, QuantizeError> {
        let needed = k.saturating_mul(k);
        check::len("mean products", "elements", products.len(), needed)?;
        let at = |row: usize, column: usize| products[row * k + column];
        for row in 0..k {
            for column in 0..=row {
                let (one, other) = (at(row, column), at(column, row));
                // Sums in another order differ in their last bits.
                let most = 1e-3 * (f64::from(at(row, row)) * f64::from(at(column, column))).sqrt();
                let is_wrong = match row == column {
                    true => !is_square(one),
                    false => !one.is_finite() || (f64::from(one) - f64::from(other)).abs() > most,
                };
                // A NaN makes the comparison false.
                if is_wrong || other.is_nan() {
                    return Err(statistic(
                        row,
                        column,
                        if one.is_finite() { other } else { one },
                    ));
                }
            }
        }
        let diagonal = (0..k).map(|i| f64::from(at(i, i)));
        let added = damping(diagonal.clone());
        let unit = unit(added);
        let squares = diagonal.map(|x| ((x + added) / unit) as f32).collect();
        let mut h: Vec<f64> = products.iter().map(|x| f64::from(*x) / unit).collect();
        (0..k).for_each(|i| h[i * k + i] += added / unit);
        let pivots = factorise(&mut h, k)?;
        let factor = h
            .par_chunks(k.max(1))
            .enumerate()
            .flat_map_iter(|(j, row)| {
                let pivot = row[j];
                row.iter().map(move |x| (x / pivot) as f32)
            });
        Ok(Self {
            squares,
            factor: Some(factor.collect()),
            pivots,
        })
    }

    /// Columns.
    pub fn k(&self) -> usize {
        self.squares.len()
    }

    /// For rows of errors `[K][ROWS]` from column `j` on: each one's sum of `R[j][i] · e[i]` behind j, over `R[j][j]`.
    fn fed_back(&self, errors: &[[f32; ROWS]], j: usize) -> [f32; ROWS] {
        let mut sums = [0.0; ROWS];
        if let Some(factor) = &self.factor {
            let row = &factor[j * errors.len()..][..errors.len()];
            for (r, errors) in row[j + 1..].iter().zip(&errors[j + 1..]) {
                for (sum, error) in sums.iter_mut().zip(errors) {
                    *sum += r * error;
                }
            }
        }
        sums
    }
}

fn is_square(x: f32) -> bool {
    x.is_finite() && x >= 0.0
}

fn statistic(row: usize, column: usize, value: f32) -> QuantizeError {
    QuantizeError::Statistic { row, column, value }
}

/// The addend of a diagonal. Vectors of zeros alone say nothing: all columns are alike.
fn damping(diagonal: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = diagonal.len().max(1) as f64;
    match diagonal.sum::<f64>() / count {
        0.0 => 1.0,
        mean => DAMPING * mean,
    }
}

/// Makes R of H, in its place: `H = RᵀR`. What is below the diagonal means nothing afterwards. Returns the squares of
/// R's diagonal. Each element's operations have one order, whatever the threads.
fn factorise(h: &mut [f64], k: usize) -> Result<Vec<f32>, QuantizeError> {
    let mut pivots = Vec::with_capacity(k);
    for first in (0..k).step_by(PANEL) {
        let last = k.min(first + PANEL);
        let (before, behind) = h.split_at_mut(last * k);
        let panel = &mut before[first * k..];
        for j in first..last {
            let (above, row) = panel.split_at_mut((j - first) * k);
            let row = &mut row[..k];
            above
                .chunks_exact(k)
                .for_each(|above| eliminate(row, above, j));
            let square = row[j];
            if !(square.is_normal() && square > 0.0) {
                return Err(QuantizeError::NoMoments { column: j });
            }
            pivots.push(square as f32);
            let pivot = square.sqrt();
            row[j..].iter_mut().for_each(|x| *x /= pivot);
        }
        let rows = behind.par_chunks_exact_mut(k).enumerate();
        rows.for_each(|(at, row)| {
            let panel = panel.chunks_exact(k);
            panel.for_each(|above| eliminate(row, above, last + at));
        });
    }
    Ok(pivots)
}

/// Takes a finished row of R out of row `j`.
fn eliminate(row: &mut [f64], above: &[f64], j: usize) {
    let factor = above[j];
    for (x, a) in row[j..].iter_mut().zip(&above[j..]) {
        *x -= factor * a;
    }
}

/// Quantises a row-major matrix `[rows][k]` for the vectors that `calibration` tells of, so that products change less.
/// The format, and what it costs to multiply, stay what they are.
///
/// A block's scale is, of the E4M3 numbers from three quarters of [`quantize`](super::quantize)'s to twice it, the one
/// with the least sum of squared errors, each times its column's mean square. With mean products, elements are then
/// rounded from the last column to the first, each after what the errors behind it do to products has been taken off:
/// error feedback, as in GPTQ. No row's [weighted error](Calibration) is larger than with `quantize`, but for rounding:
/// where it would be, the row is that of `quantize`.
///
/// # Errors
/// As [`quantize`](super::quantize); a calibration of another number of columns.
///
/// ```
/// use nvfp4_gemv::{Dialect, quantize::{Calibration, quantize_calibrated}};
/// let row: Vec<f32> = (0..32).map(|i| (i as f32).sin()).collect();
/// let calibration = Calibration::of_squares(&[1.0; 32])?;
/// let q = quantize_calibrated(&row, 1, 32, Dialect::ModelOpt, None, &calibration)?;
/// assert_eq!(q.scales.len(), 2);
/// # Ok::<(), nvfp4_gemv::quantize::QuantizeError>(())
/// ```
pub fn quantize_calibrated<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    dialect: Dialect,
    global: Option<GlobalScale>,
    calibration: &Calibration,
) -> Result<Quantized, QuantizeError> {
    check::len("calibration", "columns", calibration.k(), k)?;
    let (shape, mut out) = Quantized::zeros(values, rows, k, dialect, global)?;
    let global = out.global;
    out.codes
        .par_chunks_mut(ROWS * shape.row_code_bytes())
        .zip(out.scales.par_chunks_mut(ROWS * shape.blocks()))
        .zip(values.par_chunks(ROWS * k))
        .for_each(|((codes, scales), values)| {
            some_rows(values, dialect, global, calibration, codes, scales);
        });
    Ok(out)
}

/// Up to [`ROWS`] rows.
fn some_rows<T: Element>(
    values: &[T],
    dialect: Dialect,
    global: GlobalScale,
    calibration: &Calibration,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let k = calibration.k();
    let of_row = |row: usize| {
        (
            row * k / 2..(row + 1) * k / 2,
            row * k / BLOCK..(row + 1) * k / BLOCK,
        )
    };
    // As without calibration, and its weighted errors.
    for (row, values) in values.chunks_exact(k).enumerate() {
        let (c, s) = of_row(row);
        quantize_row(values, dialect, global, &mut codes[c], &mut scales[s]);
    }
    let mut errors = vec![[0.0; ROWS]; k];
    let mut plain = [0.0; ROWS];
    for j in (0..k).rev() {
        let sums = calibration.fed_back(&errors, j);
        for (row, values) in values.chunks_exact(k).enumerate() {
            let (c, s) = of_row(row);
            let code = e2m1::unpack(&codes[c], j);
            let value = e2m1::decode(code) * step(scales[s][j / BLOCK], global);
            let error = values[j].to_f32() - value;
            errors[j][row] = error;
            plain[row] += weighted(calibration.pivots[j], error + sums[row]);
        }
    }
    // The same with what was learnt.
    let mut searched = scales.to_vec();
    let blocks = searched.chunks_exact_mut(k / BLOCK);
    for (scales, values) in blocks.zip(values.chunks_exact(k)) {
        let blocks = values.as_chunks::<BLOCK>().0.iter();
        let squares = calibration.squares.as_chunks::<BLOCK>().0;
        for ((scale, block), squares) in scales.iter_mut().zip(blocks).zip(squares) {
            *scale = search(
                &block.map(Element::to_f32),
                squares,
                *scale,
                dialect,
                global,
            );
        }
    }
    let mut found = vec![0u8; values.len()];
    let mut moved = [0.0; ROWS];
    for j in (0..k).rev() {
        let sums = calibration.fed_back(&errors, j);
        for (row, values) in values.chunks_exact(k).enumerate() {
            let step = step(searched[of_row(row).1][j / BLOCK], global);
            let wanted = values[j].to_f32() + sums[row];
            let code = encode(wanted / step);
            let value = e2m1::decode(code) * step;
            found[row * k + j] = code;
            errors[j][row] = values[j].to_f32() - value;
            moved[row] += weighted(calibration.pivots[j], wanted - value);
        }
    }
    for (row, found) in found.chunks_exact(k).enumerate() {
        if moved[row] < plain[row] {
            let (c, s) = of_row(row);
            codes[c].copy_from_slice(&e2m1::pack(found.iter().copied()));
            scales[s.clone()].copy_from_slice(&searched[s]);
        }
    }
}

fn weighted(pivot: f32, error: f32) -> f64 {
    f64::from(pivot) * f64::from(error) * f64::from(error)
}

/// The scale of a block with the least weighted sum of squared errors; of equals `plain`, the recipe's, then the
/// smallest.
fn search(
    x: &[f32; BLOCK],
    squares: &[f32; BLOCK],
    plain: u8,
    dialect: Dialect,
    global: GlobalScale,
) -> u8 {
    let error = |scale: u8| -> f32 {
        let step = step(scale, global);
        let of_one = |(x, square): (&f32, &f32)| {
            let error = x - e2m1::decode(encode(x / step)) * step;
            square * error * error
        };
        x.iter().zip(squares).map(of_one).sum()
    };
    let amax = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let (least, most) = (
        block_scale(0.75 * amax, dialect, global),
        block_scale(2.0 * amax, dialect, global),
    );
    let (mut best, mut of_best) = (plain, error(plain));
    for scale in least..=most {
        let error = error(scale);
        if error < of_best {
            (best, of_best) = (scale, error);
        }
    }
    best
}
