//! Contents that a buffer must have after the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::operand::Operand;
use super::{BufferType, LaunchSpec, Prepared};
use crate::error::{Mismatch, SimError};
use crate::files;
use crate::sim::{Buffer, Sim};

/// Contents that a buffer must have, all of it, and the tolerance.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectSpec {
    /// The type of its elements.
    #[serde(rename = "type")]
    pub element: BufferType,
    /// The expected elements.
    pub values: Expected,
    /// A finite element may differ by this much. Infinities and NaNs must be themselves.
    #[serde(default)]
    pub absolute: f64,
    /// A finite element may differ, besides, by this part of the expected value.
    #[serde(default)]
    pub relative: f64,
}

/// Source of the expected elements.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// A raw file of elements of the same type, below the specification's folder.
    File(PathBuf),
    /// Numbers of the specification.
    Numbers(Vec<f64>),
    /// A product of two buffers.
    Matmul(MatmulSpec),
}

/// `D[m][n]`, the sum over k of `A[m][k] * B[n][k]`, times alpha. The elements are those that the buffers hold before
/// the run, with the scales of their blocks where they have some.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulSpec {
    /// Rows of D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// A.
    pub a: Operand,
    /// B.
    pub b: Operand,
    /// A factor; 1 if there is none.
    #[serde(default = "one")]
    pub alpha: f64,
}

fn one() -> f64 {
    1.0
}

/// Multiplications of a product: minutes.
const MAX_PRODUCTS: usize = 1 << 36;

impl MatmulSpec {
    /// Elements of D.
    fn count(&self) -> Option<usize> {
        self.m.checked_mul(self.n)
    }

    fn values(&self, sim: &Sim, buffers: &BTreeMap<String, Buffer>) -> Result<Vec<f64>, String> {
        let products = self.count().and_then(|n| n.checked_mul(self.k));
        if products.is_none_or(|n| n == 0 || n > MAX_PRODUCTS) {
            let Self { m, n, k, .. } = self;
            return Err(format!(
                "{m} x {n} x {k} are not from 1 to {MAX_PRODUCTS} products"
            ));
        }
        let (of_a, of_b) = ((self.m, self.k), (self.n, self.k));
        let a = self.a.values(sim, buffers, of_a)?;
        let b = self.b.values(sim, buffers, of_b)?;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let row = |a| b.chunks_exact(self.k).map(move |b| self.alpha * dot(a, b));
        Ok(a.chunks_exact(self.k).flat_map(row).collect())
    }
}

impl ExpectSpec {
    /// Refuses an expectation that could not be compared with a buffer of this size, before anything is computed of it.
    fn check(&self, size: usize) -> Result<(), String> {
        for (name, tolerance) in [("absolute", self.absolute), ("relative", self.relative)] {
            if !tolerance.is_finite() || tolerance < 0.0 {
                return Err(format!("{name} is {tolerance}: no tolerance"));
            }
        }
        match &self.values {
            Expected::Numbers(v) => self.check_count(v.len(), size),
            Expected::Matmul(m) => self.check_count(m.count().unwrap_or(usize::MAX), size),
            Expected::File(_) => Ok(()),
        }
    }

    /// Refuses other elements than the buffer has: elements that are compared with nothing would be right whatever they
    /// are.
    fn check_count(&self, count: usize, size: usize) -> Result<(), String> {
        match self.element.bytes(count) {
            Some(bytes) if bytes == size => Ok(()),
            _ => Err(format!(
                "{count} of {:?} are not the {size} bytes of the buffer",
                self.element
            )),
        }
    }

    fn read(&self, base: &Path, file: &Path, size: usize) -> Result<Vec<f64>, SimError> {
        let bytes = files::read_below(base, file, size as u64)?;
        if bytes.len() != size {
            let (file, have) = (base.join(file), bytes.len());
            let file = file.display();
            let m = format!("{file} has {have} bytes, the buffer {size}");
            return Err(SimError::Launch(m));
        }
        Ok(self.element.read(&bytes))
    }
}

/// Expected contents of a buffer, known in full.
#[derive(Debug, Clone)]
pub struct Expectation {
    name: String,
    buffer: Buffer,
    spec: ExpectSpec,
    values: Vec<f64>,
}

impl LaunchSpec {
    /// Expected contents of the buffers after a run from this state. Files lie below `base`.
    pub fn expectations(&self, p: &Prepared, base: &Path) -> Result<Vec<Expectation>, SimError> {
        let mut all = Vec::new();
        for (name, b) in &self.buffers {
            let (Some(spec), Some(buffer)) = (&b.expect, p.buffers.get(name)) else {
                continue;
            };
            let refuse = |m: String| SimError::Launch(format!("buffer {name}: expect: {m}"));
            spec.check(buffer.size).map_err(refuse)?;
            let values = match &spec.values {
                Expected::Numbers(v) => v.clone(),
                Expected::File(f) => spec.read(base, f, buffer.size)?,
                Expected::Matmul(m) => m.values(&p.sim, &p.buffers).map_err(refuse)?,
            };
            spec.check_count(values.len(), buffer.size)
                .map_err(refuse)?;
            all.push(Expectation {
                name: name.clone(),
                buffer: *buffer,
                spec: spec.clone(),
                values,
            });
        }
        Ok(all)
    }
}

impl Expectation {
    /// Compares with the contents that the buffer has now.
    pub fn check(&self, after: &Sim) -> Result<(), SimError> {
        self.check_written(after)?;
        let got = self.spec.element.read(after.download(self.buffer));
        let (mut first, mut wrong, mut worst) = (None, 0, 0.0);
        for (i, (want, got)) in self.values.iter().zip(got).enumerate() {
            let off = (want - got).abs();
            let near = off <= self.spec.absolute + self.spec.relative * want.abs();
            // Infinities and NaNs are themselves: nothing is near them.
            let fits = near && want.is_finite() && got.is_finite();
            if fits || *want == got || want.is_nan() && got.is_nan() {
                continue;
            }
            wrong += 1;
            first.get_or_insert((i, *want, got));
            worst = if off > worst || off.is_nan() {
                off
            } else {
                worst
            };
        }
        let Some((index, want, got)) = first else {
            return Ok(());
        };
        Err(SimError::Mismatch(Box::new(Mismatch {
            buffer: self.name.clone(),
            index,
            want,
            got,
            wrong,
            of: self.values.len(),
            worst,
        })))
    }

    /// Bytes that nothing wrote read as zeros, and are none.
    fn check_written(&self, after: &Sim) -> Result<(), SimError> {
        if after.written(self.buffer, 0, self.buffer.size) {
            return Ok(());
        }
        let size = self.buffer.size;
        let first = (0..size).find(|at| !after.written(self.buffer, *at, 1));
        let index = first.unwrap_or_default() * 8 / self.spec.element.bits();
        Err(SimError::Unwritten {
            buffer: self.name.clone(),
            index,
            want: self.values.get(index).copied().unwrap_or_default(),
        })
    }
}
