//! Statistics of the vectors that layers meet, from a file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail};
use nvfp4_gemv::file::TensorFile;
use nvfp4_gemv::quantize::Calibration;
use nvfp4_gemv_files::printable;

use super::item::Matrix;

/// Between the names of modules that meet the same vectors.
const AND: char = '+';

/// A file of statistics that has one for each layer.
pub(super) struct Calibrations {
    file: TensorFile,
    /// The tensor of each module.
    tensors: HashMap<String, String>,
    /// The tensor that was used last: layers that share one stand together, mostly.
    last: RefCell<Option<(String, Rc<Calibration>)>>,
}

impl Calibrations {
    /// Refuses a file without the statistics of one of the layers, with those of other columns, or with a number that
    /// is not finite.
    pub(super) fn open<'m>(
        path: &Path,
        matrices: impl Iterator<Item = &'m Rc<Matrix<'m>>>,
    ) -> Result<Self> {
        let (file, shown) = (TensorFile::open(path)?, printable::path(path).to_string());
        let mut tensors: HashMap<String, String> = HashMap::new();
        for tensor in file.tensors() {
            for module in tensor.name().split(AND) {
                if let Some(other) = tensors.insert(module.into(), tensor.name().into()) {
                    bail!(
                        "{shown}: {other:?} and {:?} are both of layer {module:?}",
                        tensor.name()
                    );
                }
            }
        }
        for matrix in matrices {
            let (name, k) = (&matrix.name, matrix.k);
            let found = tensors.get(name).and_then(|tensor| file.get(tensor));
            let Some(tensor) = found else {
                bail!(
                    "{shown}: no statistics of layer {name:?}, which is to be quantised; --exclude leaves it as it is"
                );
            };
            if !(tensor.shape() == [k] || tensor.shape() == [k, k]) {
                bail!(
                    "{shown}: {:?} has shape {:?}; layer {name:?} has {k} columns, so it is [{k}], mean squares, or \
                     [{k}, {k}], mean products",
                    tensor.name(),
                    tensor.shape()
                );
            }
        }
        // Errors that can be told without the work on a layer, before the first one is written.
        for tensor in file.tensors() {
            let values = tensor.to_f32_widened()?;
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let (name, value) = (tensor.name(), values[at]);
                bail!("{shown}: {name:?}: element {at} is {value}, which is no mean of products");
            }
        }
        Ok(Self {
            file,
            tensors,
            last: RefCell::default(),
        })
    }

    /// Of a module that was there when the file was opened.
    pub(super) fn of(&self, module: &str) -> Result<Rc<Calibration>, String> {
        let name = self.tensors.get(module).map_or("", String::as_str);
        if let Some((last, calibration)) = &*self.last.borrow()
            && last == name
        {
            return Ok(Rc::clone(calibration));
        }
        let made = || -> Result<Calibration> {
            let Some(tensor) = self.file.get(name) else {
                bail!("no statistics");
            };
            let values = tensor.to_f32_widened()?;
            Ok(match *tensor.shape() {
                [k, _] => Calibration::of_products(&values, k)?,
                _ => Calibration::of_squares(&values)?,
            })
        };
        let made = made().map_err(|error| {
            let path = printable::path(self.file.path());
            format!("{path}: {name:?}: {error}")
        })?;
        let made = Rc::new(made);
        *self.last.borrow_mut() = Some((name.into(), Rc::clone(&made)));
        Ok(made)
    }
}
