//! torchao's metadata of a layer.
//!
//! torchao, and transformers with it, write a tensor `a.weight` as the tensors `a._weight_qdata`, `a._weight_scale` and
//! more. Into the metadata of each file they write an entry `a.weight`: a JSON object with the tensor's type, its
//! attributes, and the tensors it was made of. Codes and block scales are as ModelOpt's; the scales may be in the 128x4
//! layout, of which torchao writes 32 rows of 16 for 128 rows of 4.
//!
//! Sources: torchao 36027d8, `prototype/safetensors` and `prototype/mx_formats/nvfp4_tensor.py`; transformers 5.14.1.

use serde_json::Value;

use super::{CheckpointError, json};
use crate::file::Tensor;
use crate::{BLOCK, ScaleLayout, Shape};

/// The entry's object of an NVFP4 layer.
#[derive(Debug)]
struct Said {
    layout: ScaleLayout,
    /// The layer's tensors, after `_weight_`.
    tensors: Vec<String>,
}

/// Behind the layer's name and `._weight_`.
const PREFIX: &str = "_weight_";
const OWN: [&str; 4] = ["qdata", "scale", "per_tensor_scale", "act_per_tensor_scale"];

impl Said {
    /// Reads the object. An attribute that is not known might change the product.
    fn of(said: &Value) -> Result<Self, String> {
        let kind = said.get("_type").unwrap_or(&Value::Null);
        if kind != "NVFP4Tensor" {
            return Err(format!("`_type` {kind}, and the tensors are NVFP4"));
        }
        let attributes = said.get("_data").and_then(Value::as_object);
        let mut layout = None;
        for (name, value) in attributes.into_iter().flatten() {
            match &**name {
                "is_swizzled_scales" if *value == Value::Bool(true) => {
                    layout = Some(ScaleLayout::Tiled128x4);
                }
                "is_swizzled_scales" if *value == Value::Bool(false) => {
                    layout = Some(ScaleLayout::Linear);
                }
                "block_size" if value.as_u64() == Some(BLOCK as u64) => {}
                "is_swizzled_scales" | "block_size" => return Err(format!("`{name}` {value}")),
                // The types that vectors are quantised to and that dequantising rounds to, and the kernel.
                "act_quant_kwargs" | "orig_dtype" | "use_triton_kernel" => {}
                _ => return Err(format!("{name:?}: {value}, which is not known here")),
            }
        }
        let listed = said.get("_tensor_data_names").and_then(Value::as_array);
        let listed = listed.into_iter().flatten();
        let tensors = listed.map(|name| name.as_str().map(str::to_owned).ok_or(name));
        let tensors = tensors.collect::<Result<Vec<_>, _>>();
        let tensors = tensors.map_err(|name| format!("`_tensor_data_names` with {name}"))?;
        if let Some(other) = tensors.iter().find(|name| !OWN.contains(&&***name)) {
            return Err(format!("a tensor {other:?}, which is not known here"));
        }
        match layout {
            Some(layout) => Ok(Self { layout, tensors }),
            None => Err("nothing of `is_swizzled_scales`".into()),
        }
    }
}

/// The layout of a layer's block scales, as the metadata of the codes' file say. `has` tells which tensors there are, by
/// the ends of their names.
pub(super) fn layout(
    layer: &str,
    codes: &Tensor<'_>,
    has: impl Fn(&str) -> bool,
) -> Result<ScaleLayout, CheckpointError> {
    let entry = format!("{layer}.weight");
    let refused = |says: String| CheckpointError::Config {
        file: codes.file().path().into(),
        layer: layer.into(),
        says: format!("says in metadata entry {entry:?} {says}"),
    };
    let Some(text) = codes.file().metadata().get(&entry) else {
        return Err(CheckpointError::Config {
            file: codes.file().path().into(),
            layer: layer.into(),
            says: format!("has no metadata entry {entry:?}, which says how torchao's scales lie"),
        });
    };
    let said = json::parsed(text.as_bytes());
    let said = said.map_err(|reason| format!("what cannot be read: {reason}"));
    let said = said.and_then(|value| Said::of(&value)).map_err(refused)?;
    let differs = OWN.iter().find(|name| {
        let is_listed = said.tensors.iter().any(|listed| listed == *name);
        is_listed != has(&format!("{PREFIX}{name}"))
    });
    match differs {
        None => Ok(said.layout),
        Some(name) => Err(refused(format!(
            "that it has {:?}, and {:?} is among one of the two alone",
            said.tensors, name
        ))),
    }
}

/// The dimensions of a tensor of block scales.
pub(super) fn dims(shape: &Shape, layout: ScaleLayout) -> [usize; 2] {
    match layout {
        ScaleLayout::Linear => [shape.m(), shape.blocks()],
        ScaleLayout::Tiled128x4 => [
            shape.m().div_ceil(128).saturating_mul(32),
            shape.blocks().div_ceil(4).saturating_mul(16),
        ],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_say_what_is_known_or_are_refused() {
        let plain = json!({
            "_type": "NVFP4Tensor",
            "_data": {
                "block_size": 16, "is_swizzled_scales": true, "use_triton_kernel": false, "act_quant_kwargs": null,
                "orig_dtype": { "_type": "torch.dtype", "_data": "bfloat16" },
            },
            "_tensor_data_names": ["qdata", "scale", "per_tensor_scale"],
        });
        let said = Said::of(&plain).unwrap();
        assert_eq!(said.layout, ScaleLayout::Tiled128x4);
        assert_eq!(said.tensors, ["qdata", "scale", "per_tensor_scale"]);
        for (pointer, value, says) in [
            ("/_type", json!("MXTensor"), "MXTensor"),
            ("/_data/block_size", json!(32), "block_size"),
            (
                "/_data/is_swizzled_scales",
                json!(null),
                "is_swizzled_scales",
            ),
            ("/_data", json!({}), "is_swizzled_scales"),
            (
                "/_data",
                json!({ "is_swizzled_scales": true, "rotation": 1 }),
                "rotation",
            ),
            (
                "/_tensor_data_names",
                json!(["qdata", "zero_point"]),
                "zero_point",
            ),
            ("/_tensor_data_names", json!([1]), "_tensor_data_names"),
        ] {
            let mut said = plain.clone();
            *said.pointer_mut(pointer).unwrap() = value;
            let error = Said::of(&said).unwrap_err();
            assert!(error.contains(says), "{said}: {error}");
        }
    }
}
