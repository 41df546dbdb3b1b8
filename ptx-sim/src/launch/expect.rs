//! What a buffer must hold after the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Element, LaunchSpec, Prepared};
use crate::error::{Mismatch, SimError};
use crate::files;
use crate::sim::{Buffer, Sim};

/// What a buffer must hold, and how exactly.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectSpec {
    /// The type of its elements.
    #[serde(rename = "type")]
    pub element: Element,
    /// What they are.
    pub values: Expected,
    /// An element may differ by this much.
    #[serde(default)]
    pub absolute: f64,
    /// And by this part of what is expected.
    #[serde(default)]
    pub relative: f64,
}

/// Where what is expected comes from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// A raw file of elements of the same type.
    File(PathBuf),
    /// These numbers.
    Numbers(Vec<f64>),
    /// A product of two buffers.
    Matmul(MatmulSpec),
}

/// `D[m][n]`, the sum over k of `A[m][k] * B[n][k]`, times alpha: of what the buffers hold before the run.
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

/// A matrix in a buffer, without gaps.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    /// The buffer.
    pub buffer: String,
    /// The type of its elements.
    #[serde(rename = "type")]
    pub element: Element,
    /// k is the slow index: A is `[k][m]`, B is `[k][n]`.
    #[serde(default)]
    pub transposed: bool,
}

impl Operand {
    /// Its values, `[rows][k]`.
    fn read(
        &self,
        sim: &Sim,
        buffers: &BTreeMap<String, Buffer>,
        (rows, k): (usize, usize),
    ) -> Result<Vec<f64>, String> {
        let buffer = buffers
            .get(&self.buffer)
            .ok_or_else(|| format!("there is no buffer `{}`", self.buffer))?;
        let bytes = sim.download(*buffer);
        let needs = rows.checked_mul(k).and_then(|n| self.element.bytes(n));
        let Some(bytes) = needs.and_then(|n| bytes.get(..n)) else {
            let (name, have) = (&self.buffer, bytes.len());
            return Err(format!(
                "buffer `{name}` of {have} bytes is no {rows} x {k} of {:?}",
                self.element
            ));
        };
        let values = self.element.read(bytes);
        Ok(match self.transposed {
            false => values,
            true => (0..rows * k)
                .map(|i| values[i % k * rows + i / k])
                .collect(),
        })
    }
}

impl MatmulSpec {
    fn values(&self, sim: &Sim, buffers: &BTreeMap<String, Buffer>) -> Result<Vec<f64>, String> {
        let a = self.a.read(sim, buffers, (self.m, self.k))?;
        let b = self.b.read(sim, buffers, (self.n, self.k))?;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let rows = a.chunks_exact(self.k.max(1));
        let row = |a| {
            b.chunks_exact(self.k.max(1))
                .map(move |b| self.alpha * dot(a, b))
        };
        Ok(rows.flat_map(row).collect())
    }
}

/// What a buffer must hold, known in full.
#[derive(Debug, Clone)]
pub struct Expectation {
    name: String,
    buffer: Buffer,
    spec: ExpectSpec,
    values: Vec<f64>,
}

impl LaunchSpec {
    /// What the buffers must hold after a run from this state. Paths are relative to `base`.
    pub fn expectations(&self, p: &Prepared, base: &Path) -> Result<Vec<Expectation>, SimError> {
        let mut all = Vec::new();
        for (name, b) in &self.buffers {
            let (Some(spec), Some(buffer)) = (&b.expect, p.buffers.get(name)) else {
                continue;
            };
            let refuse = |m: String| SimError::Launch(format!("buffer {name}: expect: {m}"));
            let values = match &spec.values {
                Expected::Numbers(v) => v.clone(),
                Expected::File(f) => {
                    let bytes = files::read(&base.join(f), buffer.size as u64)?;
                    spec.element.read(&bytes)
                }
                Expected::Matmul(m) => m.values(&p.sim, &p.buffers).map_err(refuse)?,
            };
            if spec
                .element
                .bytes(values.len())
                .is_none_or(|n| n > buffer.size)
            {
                let (count, element) = (values.len(), spec.element);
                let m = format!("{count} of {element:?} do not fit {} bytes", buffer.size);
                return Err(refuse(m));
            }
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
    /// Compares with what the buffer holds now.
    pub fn check(&self, after: &Sim) -> Result<(), SimError> {
        let got = self.spec.element.read(after.download(self.buffer));
        let (mut first, mut wrong, mut worst) = (None, 0, 0.0);
        for (i, (want, got)) in self.values.iter().zip(got).enumerate() {
            let off = (want - got).abs();
            let fits = off <= self.spec.absolute + self.spec.relative * want.abs();
            // Infinities and NaNs are themselves.
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
}
