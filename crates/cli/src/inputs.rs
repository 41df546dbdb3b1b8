//! The vectors of `run`: from a file, from the checkpoint itself, or random; then converted to
//! the activation type.

use std::path::PathBuf;

use anyhow::{Result, bail};
use half::{bf16, f16};
use nvfp4_gemv::checkpoint::{Checkpoint, Dialect};
use nvfp4_gemv::quantize::{quantize, quantize_vectors};
use nvfp4_gemv::{Activation, GlobalScale, ScaleLayout};
use nvfp4_gemv_files::printable;

use crate::destination::files_of;
use crate::engine::{InputScale, Inputs};
use crate::layer::OpenLayer;
use crate::report::count;

/// Name of a layer's own test data, by convention of this project's test files.
pub(crate) const TEST_INPUT: &str = "test_input";

/// Vectors `[n][K]` as plain numbers, and where they come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) values: Vec<f32>,
    pub(crate) n: usize,
    /// The source in words, for people.
    pub(crate) from: String,
    /// The files that they are read from, beside the layer's.
    pub(crate) files: Vec<PathBuf>,
    /// Whether the vectors are the first rows of the layer's own test input.
    pub(crate) is_test_input: bool,
}

impl Source {
    /// The vectors that the flags ask for: `input` is `FILE:TENSOR`.
    pub(crate) fn find(
        layer: &OpenLayer<'_>,
        input: Option<&str>,
        random: Option<u64>,
        n: Option<usize>,
    ) -> Result<Self> {
        let test_input = format!("{}.{TEST_INPUT}", layer.name());
        if let Some(input) = input {
            let Some((file, tensor)) = input.rsplit_once(':') else {
                bail!("--input {input:?}: expected FILE:TENSOR, for example x.safetensors:x");
            };
            let other = Checkpoint::open(file)?;
            let source = Self::read(&other, tensor, layer.k(), n, false)?;
            return Ok(Self {
                files: files_of(&other),
                ..source
            });
        }
        if let Some(seed) = random {
            return Ok(Self::random(seed, n.unwrap_or(1), layer.k()));
        }
        if let Some(checkpoint) = layer.safetensors()
            && checkpoint.tensor(&test_input).is_some()
        {
            return Self::read(checkpoint, &test_input, layer.k(), n, true);
        }
        Ok(Self::random(0, n.unwrap_or(1), layer.k()))
    }

    fn read(
        checkpoint: &Checkpoint,
        name: &str,
        k: usize,
        n: Option<usize>,
        is_test_input: bool,
    ) -> Result<Self> {
        let tensor = checkpoint.find_tensor(name)?;
        let expected = format!("F32, F16 or BF16 [N, {k}] or [{k}]");
        let rows = match *tensor.shape() {
            [columns] if columns == k => 1,
            [rows, columns] if columns == k && rows > 0 => rows,
            _ => return Err(tensor.wrong(expected).into()),
        };
        let n = n.unwrap_or(rows);
        if n > rows {
            bail!("--n {n}: tensor {name:?} has {} only", count(rows, "row"));
        }
        let mut values = tensor.to_f32_widened()?;
        values.truncate(n * k);
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            let (row, column) = (at / k, at % k);
            bail!(
                "{}: tensor {name:?}: row {row}, column {column} is {}",
                printable::path(tensor.file().path()),
                values[at]
            );
        }
        Ok(Self {
            values,
            n,
            from: format!(
                "{}:{}",
                printable::path(tensor.file().path()),
                printable::text(name)
            ),
            files: Vec::new(),
            is_test_input,
        })
    }

    /// Values between -1 and 1.
    pub(crate) fn random(seed: u64, n: usize, k: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        Self {
            values: (0..n * k).map(|_| rng.f32() * 2.0 - 1.0).collect(),
            n,
            from: format!("random, seed {seed}"),
            files: Vec::new(),
            is_test_input: false,
        }
    }

    /// Multiplies each element of a vector by its factor, in f32: what a layer with factors of columns does first.
    pub(crate) fn multiply(&mut self, factors: &[f32]) {
        for vector in self.values.chunks_exact_mut(factors.len().max(1)) {
            let elements = vector.iter_mut().zip(factors);
            elements.for_each(|(x, factor)| *x *= factor);
        }
    }

    /// The vectors in an activation type, and how the scale of 4-bit ones was found.
    pub(crate) fn convert(
        &self,
        activation: Activation,
        k: usize,
        calibrated: Option<GlobalScale>,
    ) -> Result<(Inputs, Option<&'static str>)> {
        let x = &self.values;
        Ok(match activation {
            Activation::F16 => {
                let x = rounded(x, k, activation, f16::from_f32, f16::is_finite)?;
                (Inputs::F16(x), None)
            }
            Activation::Bf16 => {
                let x = rounded(x, k, activation, bf16::from_f32, bf16::is_finite)?;
                (Inputs::Bf16(x), None)
            }
            Activation::F32 => (Inputs::F32(x.clone()), None),
            Activation::Nvfp4 => {
                let (codes, scales, global, from) = match calibrated {
                    Some(global) => {
                        let dialect = match global {
                            GlobalScale::Multiplier(_) => Dialect::ModelOpt,
                            GlobalScale::Divisor(_) => Dialect::CompressedTensors,
                        };
                        let q = quantize(x, self.n, k, dialect, Some(global))?;
                        let global = InputScale::Shared(q.global);
                        (
                            q.codes,
                            q.scales,
                            global,
                            "the checkpoint's calibrated input scale",
                        )
                    }
                    None => {
                        let q = quantize_vectors(x, self.n, k)?;
                        let global = InputScale::PerVector(q.globals);
                        (q.codes, q.scales, global, "a scale for each vector")
                    }
                };
                let layout = ScaleLayout::Linear;
                let inputs = Inputs::Nvfp4 {
                    codes,
                    scales,
                    layout,
                    global,
                };
                (inputs, Some(from))
            }
        })
    }
}

/// Vectors in a type that holds fewer numbers. One that is too large for it would become infinite.
fn rounded<T: Copy>(
    x: &[f32],
    k: usize,
    activation: Activation,
    round: impl Fn(f32) -> T,
    is_finite: impl Fn(T) -> bool,
) -> Result<Vec<T>> {
    let rounded: Vec<T> = x.iter().map(|x| round(*x)).collect();
    if let Some(at) = rounded.iter().position(|x| !is_finite(*x)) {
        let (row, column) = (at / k, at % k);
        bail!(
            "vector {row}, element {column} is {:e}, which is too large for {activation}",
            x[at]
        );
    }
    Ok(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_type_does_not_hold_is_named() {
        let mut source = Source::random(1, 2, 16);
        for (activation, fits, too_large) in [
            (Activation::F16, 65519.0, 65520.0),
            (Activation::F16, -65504.0, -1e5),
            (Activation::Bf16, 3.39e38, 3.4e38),
        ] {
            source.values[21] = fits;
            source.convert(activation, 16, None).unwrap();
            source.values[21] = too_large;
            let error = source.convert(activation, 16, None);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("vector 1, element 5 is "), "{error}");
            assert!(error.contains(activation.name()), "{error}");
            source.convert(Activation::F32, 16, None).unwrap();
            source.convert(Activation::Nvfp4, 16, None).unwrap();
        }
    }
}
