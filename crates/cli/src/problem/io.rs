//! Problem files: safetensors with `a` U8 [L,M,K/2], `sfa` F8_E4M3 [L,M,K/16], `b` U8 [L,N,K/2],
//! `sfb` F8_E4M3 [L,N,K/16], and perhaps `alpha` F32 [1] or [M] and `c` F64 [L,N,M]. An `alpha` of one number is a
//! global scale, and has the limits of one; those of rows are any finite numbers. The metadata may have the name of the
//! [`Rule`] that results are held against, under `nvfp4_gemv.rule`.

use std::collections::HashMap;
use std::path::Path;

use nvfp4_gemv::file::{FileError, Tensor, TensorFile};
use nvfp4_gemv::{Dims, Error, ScaleLayout, Shape, reference};
use nvfp4_gemv_files::output::Destination;
use safetensors::Dtype;

use super::{Problem, Rule};
use crate::file::{self, NewTensor, WriteError};

/// The key of a rule's name.
const RULE: &str = "nvfp4_gemv.rule";

impl Problem {
    /// Reads a problem file, and the name of the rule that its results are held against, where it has one. It may be of
    /// another version: [`Rule::from_name`] says whether this one knows it.
    ///
    /// # Errors
    /// [`Problem::read`]'s.
    pub fn read_with_rule(path: impl AsRef<Path>) -> Result<(Self, Option<String>), FileError> {
        let file = TensorFile::open(path.as_ref())?;
        let rule = file.metadata().get(RULE).cloned();
        Ok((Self::from_file(&file)?, rule))
    }

    /// Reads a problem file. Everything is checked: a problem that is read can be computed.
    ///
    /// # Errors
    /// [`FileError`], which names the file, the tensor, and what was expected of it.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, FileError> {
        Self::from_file(&TensorFile::open(path.as_ref())?)
    }

    fn from_file(file: &TensorFile) -> Result<Self, FileError> {
        let codes = |name, rows: &str| three_dims(file, name, &format!("U8 [L, {rows}, K/2]"));
        let (a, [l, m, k_half]) = codes("a", "M")?;
        let (b, [_, n, _]) = codes("b", "N")?;
        // An overflow here makes a K that Shape refuses.
        let k = k_half.saturating_mul(2);
        Shape::new(Dims { m, n: 1, k, l }).map_err(|e| a.refused(e))?;
        // M, K and L are right: an error here is due to N.
        let shape = Shape::new(Dims { m, n, k, l }).map_err(|e| b.refused(e))?;
        a.expect(Dtype::U8, &[l, m, k_half])?;
        b.expect(Dtype::U8, &[l, n, k_half])?;
        let scales = |name, dims: [usize; 3]| {
            file.require(name, &format!("F8_E4M3 {dims:?}"))?
                .expect(Dtype::F8_E4M3, &dims)
        };
        let sfa = scales("sfa", [l, m, shape.blocks()])?;
        let sfb = scales("sfb", [l, n, shape.blocks()])?;
        let alpha = match file.get("alpha") {
            Some(t) if t.shape() != [1] && t.shape() != [m] => {
                return Err(t.wrong(format!("F32 [1] or [{m}]")));
            }
            t => t.map(|t| t.to_f32()).transpose()?,
        };
        let c = file
            .get("c")
            .map(|t| t.expect(Dtype::F64, &[l, n, m])?.to_f64())
            .transpose()?;
        let problem = Self {
            shape,
            a: a.bytes().to_vec(),
            sfa: sfa.bytes().to_vec(),
            b: b.bytes().to_vec(),
            sfb: sfb.bytes().to_vec(),
            alpha,
            c,
        };
        problem.check_content(file, &sfa, &sfb)?;
        Ok(problem)
    }

    /// Refuses scales and alphas that no GEMV takes, by the tensor they come from.
    fn check_content(
        &self,
        file: &TensorFile,
        sfa: &Tensor<'_>,
        sfb: &Tensor<'_>,
    ) -> Result<(), FileError> {
        let weights = self.weights(ScaleLayout::Linear);
        if let Err(e) = weights.and_then(|w| w.view().map(drop)) {
            let of_alpha = matches!(e, Error::GlobalScale { .. } | Error::RowAlpha { .. });
            let alpha = file.get("alpha").filter(|_| of_alpha);
            return Err(alpha.as_ref().unwrap_or(sfa).refused(e));
        }
        self.vectors(ScaleLayout::Linear)
            .and_then(|x| reference::decode_vectors(&self.shape, &x.view()))
            .map_err(|e| sfb.refused(e))?;
        Ok(())
    }

    /// Writes a problem file that [`Problem::read`] reads, or replaces one. The file appears when it is complete.
    ///
    /// # Errors
    /// [`WriteError::Write`]; also where a field's length contradicts the shape.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteError> {
        self.write_to(
            &Destination::new(path.as_ref()).replace(true),
            Rule::Derived,
        )
    }

    /// Writes a problem file whose results are held against this rule, and replaces only what the output allows.
    ///
    /// # Errors
    /// [`WriteError::Exists`], [`WriteError::Write`].
    pub fn write_to(&self, output: &Destination, rule: Rule) -> Result<(), WriteError> {
        let shape = &self.shape;
        let (m, n, l) = (shape.m(), shape.n(), shape.l());
        let (row, blocks) = (shape.row_code_bytes(), shape.blocks());
        let codes = |rows, bytes| NewTensor::new(Dtype::U8, &[l, rows, row], bytes);
        let scales = |rows, bytes| NewTensor::new(Dtype::F8_E4M3, &[l, rows, blocks], bytes);
        let mut tensors = vec![
            ("a", codes(m, &self.a[..])),
            ("sfa", scales(m, &self.sfa[..])),
            ("b", codes(n, &self.b)),
            ("sfb", scales(n, &self.sfb)),
        ];
        if let Some(alpha) = &self.alpha {
            let (got, rows) = (alpha.len(), m);
            if got != 1 && got != rows {
                return Err(WriteError::Write {
                    file: output.path().into(),
                    reason: Error::AlphaLength { got, rows }.to_string(),
                });
            }
            tensors.push(("alpha", NewTensor::f32(&[alpha.len()], alpha)));
        }
        if let Some(c) = &self.c {
            tensors.push(("c", NewTensor::f64(&[l, n, m], c)));
        }
        let named = tensors.into_iter().map(|(name, t)| (name.to_owned(), t));
        // A file that says nothing means the same.
        let metadata = (rule != Rule::Derived)
            .then(|| HashMap::from([(RULE.to_owned(), rule.name().to_owned())]));
        file::write_to(output, named, metadata).map(drop)
    }
}

/// A tensor that has three dimensions, whatever they are.
fn three_dims<'a>(
    file: &'a TensorFile,
    name: &str,
    expected: &str,
) -> Result<(Tensor<'a>, [usize; 3]), FileError> {
    let tensor = file.require(name, expected)?;
    match tensor.shape().try_into() {
        Ok(dims) => Ok((tensor, dims)),
        Err(_) => Err(tensor.wrong(expected)),
    }
}
