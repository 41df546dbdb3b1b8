//! Vectors of several digits: the sums of all digits, each with a row of the weights, come first. Then those of a vector
//! become its result.

use super::buffers::{Buffers, resize};
use super::{Implementation, Manner, parallel};
use crate::error::Result;
use crate::output::Output;
use crate::shape::Shape;
use crate::tensor::{self, GlobalScale, Nvfp4Vectors, Vectors, Weights, digit_weight};

/// As [`super::product`]: digits are multiplied as vectors of their own, and their sums, which are f32, are added in f64,
/// the first digit's first.
pub(super) fn product(
    how: (Implementation, Manner),
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Nvfp4Vectors<'_>,
    output: Output<'_>,
    buffers: &mut Buffers,
) -> Result<()> {
    weights.no_column_alpha(tensor::NVFP4_ARE_WITHOUT)?;
    vectors.resolve_and_scan(shape)?;
    let alpha = f64::from(tensor::combine(weights.global, vectors.global.shared())?);
    let layout = output.resolve(shape, weights.shape().l())?;
    let of_digits = shape.of_digits(vectors.digits)?;
    let without_factors = Weights {
        global: GlobalScale::ONE,
        row_alpha: None,
        shape: weights.shape,
        codes: weights.codes,
        scales: weights.scales,
        layout: weights.layout,
        column_alpha: None,
        select: weights.select,
        late: weights.late,
        distinct: weights.distinct,
    };
    let mut sums = std::mem::take(&mut buffers.sums);
    let (m, n, digits) = (shape.m(), shape.n(), vectors.digits);
    let result = resize(&mut sums, of_digits.outputs(), 0.0).and_then(|()| {
        let x = Vectors::Nvfp4(vectors.of_single_digits());
        let sums = Output::of(&mut sums[..of_digits.outputs()]);
        super::product(how, &of_digits, &without_factors, &x, sums, buffers)
    });
    if result.is_ok() {
        let row_alpha = |matrix, row| match weights.row_alpha {
            Some(alpha) => f64::from(alpha[matrix * weights.row_alpha_batch_stride() + row]),
            None => 1.0,
        };
        let global = |batch, n| match vectors.global {
            tensor::VectorScale::Shared(_) => 1.0, // in alpha
            tensor::VectorScale::PerVector(_) => vectors.global_of(shape, batch, n),
        };
        let value = |[batch, vector, row]: [usize; 3]| {
            let Some(matrix) = weights.matrix_of(batch) else {
                return 0.0;
            };
            let first = (batch * n + vector) * digits * m + row;
            let of_digits = sums[first..].iter().step_by(m).take(digits).enumerate();
            let sum: f64 = of_digits
                .map(|(digit, sum)| f64::from(*sum) * digit_weight(digit))
                .sum();
            sum * alpha * row_alpha(matrix, row) * global(batch, vector)
        };
        let matrix_of = |batch| weights.matrix_of(batch);
        parallel::write(shape, (output, layout), matrix_of, value);
    }
    buffers.sums = sums;
    result
}
