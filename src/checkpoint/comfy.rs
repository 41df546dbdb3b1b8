//! Layers that ComfyUI has quantised: what their marks say.
//!
//! ComfyUI uses ModelOpt's names. The block scales of its layers are in the 128x4 layout, with rows and columns that fill
//! it up; the high nibble of a byte of codes comes first; rows of codes are padded to a multiple of 16. A layer's mark is
//! a small JSON object, in a tensor `comfy_quant` or in the entry `_quantization_metadata` of the file's metadata.
//!
//! Sources: comfy-kitchen 7d86acf, `tensor/nvfp4.py` and `float_utils.py`; ComfyUI's `ops.py`.

use serde_json::Value;

use super::{CheckpointError, json};
use crate::file::Tensor;
use crate::{BLOCK, Shape};

/// The mark of an NVFP4 layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Rows and columns before they were padded.
    shape: Option<[u64; 2]>,
}

/// More than any mark has.
const MOST_BYTES: usize = 64 << 10;

impl Mark {
    /// Reads a mark. An entry that is not known might change the product, and so does a rotation.
    pub(super) fn of(said: &Value) -> Result<Self, String> {
        let Some(said) = said.as_object() else {
            return Err("something that is no object".into());
        };
        let mut mark = Self::default();
        let rotates = said
            .get("convrot")
            .is_some_and(|value| *value != Value::Bool(false));
        for (entry, value) in said {
            match &**entry {
                "format" if value == "nvfp4" => {}
                "format" => {
                    return Err(format!(
                        "`format` {value}, and the layer's tensors are NVFP4"
                    ));
                }
                "convrot" if rotates => {
                    return Err(format!("`convrot` {value}: vectors are rotated first"));
                }
                "convrot" => {}
                "convrot_groupsize" if !rotates => {}
                "group_size" if value.as_u64() == Some(BLOCK as u64) => {}
                // Of how it computes, not of what.
                "full_precision_matrix_mult" if value.is_boolean() => {}
                "orig_dtype" if value.is_string() => {}
                "orig_shape" => match value.as_array().map(|sizes| &sizes[..]) {
                    Some([rows, columns]) if rows.is_u64() && columns.is_u64() => {
                        mark.shape = Some([rows, columns].map(|size| size.as_u64().unwrap_or(0)));
                    }
                    _ => {
                        return Err(format!(
                            "`orig_shape` {value}, which is no shape of a matrix"
                        ));
                    }
                },
                _ => return Err(format!("{entry:?}: {value}, which is not known here")),
            }
        }
        match said.contains_key("format") {
            true => Ok(mark),
            false => Err("no `format`".into()),
        }
    }

    /// Reads the tensor of a layer's mark.
    pub(super) fn of_tensor(tensor: &Tensor<'_>, layer: &str) -> Result<Self, CheckpointError> {
        let bytes = tensor.bytes();
        let value = match bytes.len() {
            ..=MOST_BYTES => json::parsed(bytes),
            _ => Err(format!("more than {MOST_BYTES} bytes")),
        };
        let value = value.map_err(|reason| format!("what cannot be read: {reason}"));
        value
            .and_then(|value| Self::of(&value))
            .map_err(|says| CheckpointError::Config {
                file: tensor.file().path().into(),
                layer: layer.into(),
                says: format!("says in tensor {:?} {says}", tensor.name()),
            })
    }

    /// The shape of a layer whose codes have the shape `stored`, without rows that were added to fill it up. Where the
    /// mark does not say how many there were, a bias does.
    pub(super) fn cut(
        self,
        stored: Shape,
        codes: &Tensor<'_>,
        bias: Option<&Tensor<'_>>,
    ) -> Result<Shape, CheckpointError> {
        let (m, k) = (stored.m(), stored.k());
        let rows = match (self.shape, bias.map(|bias| bias.shape())) {
            (Some([rows, columns]), _) => {
                if columns != k as u64 {
                    let expected =
                        format!("{k} columns, as ComfyUI's mark says {:?}", [rows, columns]);
                    return Err(codes.wrong(expected).into());
                }
                usize::try_from(rows).unwrap_or(usize::MAX)
            }
            (None, Some(&[rows])) => rows,
            (None, _) => m,
        };
        // Rows are padded to what a kernel takes: 16, or the 128 of the scales' layout.
        if rows > m || rows.next_multiple_of(128) != m.next_multiple_of(128) {
            return Err(codes
                .wrong(format!("{rows} rows, or a few more that fill it up"))
                .into());
        }
        Ok(Shape::matrix(rows, k).map_err(|e| codes.refused(e))?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_say_what_is_known_or_are_refused() {
        let plain = json!({ "format": "nvfp4" });
        assert_eq!(Mark::of(&plain), Ok(Mark { shape: None }));
        let all = json!({
            "format": "nvfp4", "full_precision_matrix_mult": true, "convrot": false, "convrot_groupsize": 256,
            "group_size": 16, "orig_dtype": "torch.bfloat16", "orig_shape": [100, 64]
        });
        assert_eq!(
            Mark::of(&all),
            Ok(Mark {
                shape: Some([100, 64])
            })
        );
        for (entry, value, says) in [
            ("format", json!("float8_e4m3fn"), "format"),
            ("convrot", json!(true), "rotated"),
            ("convrot", json!(null), "rotated"),
            ("group_size", json!(32), "group_size"),
            ("orig_shape", json!([100]), "orig_shape"),
            ("orig_shape", json!([-1, 64]), "orig_shape"),
            ("low_rank", json!(16), "low_rank"),
        ] {
            let mut said = plain.clone();
            said[entry] = value;
            let error = Mark::of(&said).unwrap_err();
            assert!(error.contains(says), "{said}: {error}");
        }
        for said in [json!({}), json!([]), json!("nvfp4"), json!(null)] {
            assert!(Mark::of(&said).is_err(), "{said}");
        }
    }
}
