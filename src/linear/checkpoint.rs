//! Layers of checkpoints, whose bytes stay where they are.

use std::ops::Range;
use std::sync::Arc;

use super::{Bytes, Linear};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::file::Tensor;
use crate::types::ScaleLayout;

/// Bytes of a file of a checkpoint.
struct InFile {
    checkpoint: Arc<Checkpoint>,
    file: usize,
    range: Range<usize>,
}

impl AsRef<[u8]> for InFile {
    fn as_ref(&self) -> &[u8] {
        self.checkpoint.files()[self.file].bytes_in(self.range.clone())
    }
}

impl InFile {
    fn of(checkpoint: &Arc<Checkpoint>, tensor: &Tensor<'_>) -> Bytes {
        let mut files = checkpoint.files().iter();
        let file = files.position(|file| std::ptr::eq(file, tensor.file()));
        Bytes::sharing(Arc::new(Self {
            checkpoint: checkpoint.clone(),
            file: file.expect("a tensor of this checkpoint"),
            range: tensor.range(),
        }))
    }
}

impl Linear {
    /// A layer of a checkpoint, by the layer's name, with its `bias` if it has one. Codes and scales stay in the files,
    /// which the layer keeps open; the scales are looked at here, as in [`Checkpoint::layer`].
    ///
    /// # Errors
    /// As [`Checkpoint::layer`]'s; a bias of another type than f32, f16 or bf16, or another length.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use nvfp4_gemv::{Linear, checkpoint::Checkpoint};
    /// struct Model {
    ///     layers: Vec<Linear>, // borrows nothing
    /// }
    /// let checkpoint = Arc::new(Checkpoint::open("model")?);
    /// let layers = checkpoint.layers().map(|name| Linear::from_checkpoint(&checkpoint, name));
    /// let model = Model { layers: layers.collect::<Result<_, _>>()? };
    /// # drop(model.layers);
    /// # Ok::<(), nvfp4_gemv::checkpoint::CheckpointError>(())
    /// ```
    pub fn from_checkpoint(
        checkpoint: &Arc<Checkpoint>,
        name: &str,
    ) -> Result<Self, CheckpointError> {
        let layer = checkpoint.layer(name)?;
        let (name, dialect) = (layer.name(), layer.dialect());
        let tensor = |what: &str| checkpoint.find_tensor(&format!("{name}.{what}"));
        let mut linear = Self::of_scanned(
            layer.shape(1).expect("the layer was opened with it"),
            InFile::of(checkpoint, &tensor(dialect.codes())?),
            InFile::of(checkpoint, &tensor(dialect.scales())?),
            ScaleLayout::Linear,
            layer.global(),
        );
        if let Some(bias) = checkpoint.tensor(&format!("{name}.bias")) {
            if bias.shape() != [layer.rows()] {
                return Err(bias.wrong(format!("[{}]", layer.rows())).into());
            }
            let values = bias.to_f32_widened()?;
            linear = linear.with_bias(values).map_err(|e| bias.refused(e))?;
        }
        Ok(linear)
    }
}
