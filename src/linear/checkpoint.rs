//! Layers of checkpoints, whose bytes stay where they are.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::{Bytes, Linear};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::file::Tensor;

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
    /// The first bytes of a tensor.
    fn of(checkpoint: &Arc<Checkpoint>, tensor: &Tensor<'_>, bytes: usize) -> Bytes {
        let mut files = checkpoint.files().iter();
        let file = files.position(|file| std::ptr::eq(file, tensor.file()));
        Bytes::sharing(Arc::new(Self {
            checkpoint: checkpoint.clone(),
            file: file.expect("a tensor of this checkpoint"),
            range: tensor.range().start..tensor.range().start + bytes,
        }))
    }
}

impl Linear {
    /// A layer of a checkpoint, by the layer's name, with its `bias` if it has one, and with its factors of rows and of
    /// columns. Codes and scales stay in the files, which the layer keeps open; the scales are looked at here, as in
    /// [`Checkpoint::layer`]. Codes of ComfyUI's are copied, since their nibbles are in the other order.
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
        let (name, rows) = (layer.name(), layer.rows());
        let shape = layer.shape(1).expect("the layer was opened with it");
        let [codes, scales] = layer.tensors();
        let (layout, global) = (layer.layout(), layer.global());
        let scales = InFile::of(checkpoint, &scales, scales.bytes().len());
        let row_alpha = layer.row_alpha().map(<[f32]>::to_vec);
        let column_alpha = layer.column_alpha().map(<[f32]>::to_vec);
        let codes = match layer.into_codes() {
            Cow::Borrowed(bytes) => InFile::of(checkpoint, &codes, bytes.len()),
            Cow::Owned(bytes) => bytes.into(),
        };
        let mut linear = Self::of_scanned(shape, codes, scales, layout, global);
        let parts = Arc::get_mut(&mut linear.parts).expect("nobody shares it yet");
        parts.row_alpha = row_alpha.map(Into::into);
        parts.column_alpha = column_alpha.map(Into::into);
        if let Some(bias) = checkpoint.tensor(&format!("{name}.bias")) {
            if bias.shape() != [rows] {
                return Err(bias.wrong(format!("[{rows}]")).into());
            }
            let values = bias.to_f32_widened()?;
            linear = linear.with_bias(values).map_err(|e| bias.refused(e))?;
        }
        Ok(linear)
    }
}
