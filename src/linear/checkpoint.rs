//! Layers of checkpoints, whose bytes stay where they are.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::{Bytes, Linear};
use crate::checkpoint::{Checkpoint, CheckpointError, Note};
use crate::types::{RowOrder, ScaleLayout};

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
    /// Bytes that a tensor of the checkpoint has.
    fn of(checkpoint: &Arc<Checkpoint>, bytes: &[u8]) -> Bytes {
        let files = checkpoint.files().iter().enumerate();
        let mut places = files.filter_map(|(file, of)| Some((file, of.range_of(bytes)?)));
        let (file, range) = places.next().expect("bytes of this checkpoint");
        Bytes::sharing(Arc::new(Self {
            checkpoint: checkpoint.clone(),
            file,
            range,
        }))
    }
}

/// The bias of a layer of so many rows, if it has one.
fn bias(
    checkpoint: &Checkpoint,
    name: &str,
    rows: usize,
) -> Result<Option<Vec<f32>>, CheckpointError> {
    let Some(bias) = checkpoint.tensor(&format!("{name}.bias")) else {
        return Ok(None);
    };
    if bias.shape() != [rows] {
        return Err(bias.wrong(format!("[{rows}]")).into());
    }
    Ok(Some(bias.to_f32_widened()?))
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
        let [_, scales] = layer.tensors();
        let (layout, global) = (layer.layout(), layer.global());
        let scales = InFile::of(checkpoint, scales.bytes());
        let row_alpha = layer.row_alpha().map(<[f32]>::to_vec);
        let column_alpha = layer.column_alpha().map(<[f32]>::to_vec);
        let codes = match layer.into_codes() {
            Cow::Borrowed(bytes) => InFile::of(checkpoint, bytes),
            Cow::Owned(bytes) => bytes.into(),
        };
        let mut linear = Self::of_scanned(shape, codes, scales, layout, global);
        let parts = Arc::get_mut(&mut linear.parts).expect("nobody shares it yet");
        parts.row_alpha = row_alpha.map(Into::into);
        parts.column_alpha = column_alpha.map(Into::into);
        if let Some(bias) = bias(checkpoint, name, rows)? {
            linear = linear.with_bias(bias).expect("as many as rows");
        }
        Ok(linear)
    }

    /// A layer of several that are joined to one matrix: q, k and v, or gate and up. Codes and scales are copied, unless
    /// there is only one.
    ///
    /// # Errors
    /// As [`Checkpoint::joined`]'s.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use nvfp4_gemv::{Linear, RowOrder, checkpoint::Checkpoint};
    /// let checkpoint = Arc::new(Checkpoint::open("model")?);
    /// let parts = ["q_proj", "k_proj", "v_proj"].map(|part| format!("model.layers.0.self_attn.{part}"));
    /// let qkv = Linear::joined_from_checkpoint(&checkpoint, &parts, RowOrder::Stacked)?;
    /// # Ok::<(), nvfp4_gemv::checkpoint::CheckpointError>(())
    /// ```
    pub fn joined_from_checkpoint(
        checkpoint: &Arc<Checkpoint>,
        layers: &[impl AsRef<str>],
        order: RowOrder,
    ) -> Result<Self, CheckpointError> {
        if let [one] = layers {
            return Self::from_checkpoint(checkpoint, one.as_ref());
        }
        let joined = checkpoint.joined(layers, order)?;
        let (mut rows, mut biases) = (Vec::new(), Vec::new());
        for (name, of_layer) in joined.names() {
            rows.push(of_layer);
            biases.push(bias(checkpoint, name, of_layer)?);
        }
        let (shape, global) = (joined.shape(), joined.global());
        let row_alpha = joined.row_alpha().map(<[f32]>::to_vec);
        let column_alpha = joined.column_alpha().map(<[f32]>::to_vec);
        let (codes, scales) = joined.gather().into_owned();
        joined.check_scales(0, &scales)?;
        let mut linear = Self::of_scanned(
            shape,
            codes.into(),
            scales.into(),
            ScaleLayout::Linear,
            global,
        );
        let refused = |error: crate::Error| CheckpointError::Join {
            layers: [&layers[0], &layers[1]].map(|name| name.as_ref().to_owned()),
            reason: error.to_string(),
        };
        if let Some(row_alpha) = row_alpha {
            linear = linear.with_row_alpha(row_alpha).map_err(refused)?;
        }
        if let Some(column_alpha) = column_alpha {
            linear = linear.with_column_alpha(column_alpha).map_err(refused)?;
        }
        if biases.iter().any(Option::is_some) {
            // -0 changes no result, not even 0 or -0.
            let of = |(bias, &rows): (Option<Vec<f32>>, &usize)| bias.unwrap_or(vec![-0.0; rows]);
            let biases: Vec<Vec<f32>> = biases.into_iter().zip(&rows).map(of).collect();
            let all = match order {
                RowOrder::Stacked => biases.concat(),
                RowOrder::Interleaved => (0..rows[0])
                    .flat_map(|row| biases.iter().map(move |bias| bias[row]))
                    .collect(),
            };
            linear = linear.with_bias(all).map_err(refused)?;
        }
        Ok(linear)
    }

    /// A part of all experts of a layer, such as `down_proj` of `model.layers.0.mlp.experts`, each with its bias if it
    /// has one.
    ///
    /// # Errors
    /// As [`Checkpoint::experts`]'s, and [`from_checkpoint`](Self::from_checkpoint)'s.
    pub(crate) fn experts_from_checkpoint(
        checkpoint: &Arc<Checkpoint>,
        experts: &str,
        part: &str,
    ) -> Result<Vec<Self>, CheckpointError> {
        let experts = experts.trim_end_matches('.');
        if let Some(count) = checkpoint.experts_of_their_own(experts)? {
            let names = (0..count).map(|expert| format!("{experts}.{expert}.{part}"));
            return names
                .map(|name| Self::from_checkpoint(checkpoint, &name))
                .collect();
        }
        let joined = checkpoint.experts(experts, &[part], RowOrder::Stacked)?;
        let (m, k) = (joined.shape().m(), joined.shape().k());
        let mut biases = None;
        for note in joined.notes() {
            let Note::NotAdded { tensor } = note else {
                continue;
            };
            let bias = checkpoint.find_tensor(tensor)?;
            if bias.shape() != [joined.shape().l(), m] {
                return Err(bias.wrong(format!("{:?}", [joined.shape().l(), m])).into());
            }
            if biases.is_some() {
                return Err(bias.wrong("one bias of these experts").into());
            }
            biases = Some(bias.to_f32_widened()?);
        }
        let layers = joined.parts().enumerate().map(|(expert, (bytes, global))| {
            let [codes, scales] = bytes.map(|bytes| match bytes {
                Cow::Borrowed(bytes) => InFile::of(checkpoint, bytes),
                Cow::Owned(bytes) => bytes.into(),
            });
            let layer = Self::new(m, k, codes, scales, ScaleLayout::Linear, global);
            // One set of factors for all experts, or one each.
            let alpha = joined.column_alpha();
            let alpha = alpha.map(|alpha| alpha.get(expert * k..(expert + 1) * k).unwrap_or(alpha));
            let layer = layer.and_then(|layer| match alpha {
                Some(alpha) => layer.with_column_alpha(alpha),
                None => Ok(layer),
            });
            let layer = layer.and_then(|layer| match &biases {
                Some(biases) => layer.with_bias(&biases[expert * m..(expert + 1) * m]),
                None => Ok(layer),
            });
            layer.map_err(|error| CheckpointError::Join {
                layers: [experts, part].map(str::to_owned),
                reason: format!("expert {expert}: {error}"),
            })
        });
        layers.collect()
    }
}
