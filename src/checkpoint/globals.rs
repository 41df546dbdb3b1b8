//! Global scales of layers: one number, or one for each part of a fused layer.

use safetensors::Dtype;

use super::{Exporter, usable};
use crate::file::{FileError, Tensor};
use crate::{GlobalScale, Shape};

/// The global scale of a layer, or factors of its rows.
#[derive(Clone, Debug)]
pub(super) struct Globals {
    /// 1 where rows have factors.
    pub(super) shared: GlobalScale,
    pub(super) row_alpha: Option<Vec<f32>>,
}

/// Heads of a model's attention, as its config has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heads {
    pub(super) queries: usize,
    /// Of keys, and of values.
    pub(super) keys: usize,
    /// Elements of each.
    pub(super) size: usize,
}

/// The most parts of a fused layer.
const MOST_PARTS: usize = 8;

const EXPECTED: &str = "F32 [] or [1], or a number for each part of a fused layer";

/// Refuses a tensor that is neither one number nor one for each of a few parts. Looks at its header alone.
pub(super) fn expect(tensor: Tensor<'_>) -> Result<Tensor<'_>, FileError> {
    match *tensor.shape() {
        [] if tensor.dtype() == Dtype::F32 => Ok(tensor),
        [parts] if tensor.dtype() == Dtype::F32 && (1..=MOST_PARTS).contains(&parts) => Ok(tensor),
        _ => Err(tensor.wrong(EXPECTED)),
    }
}

impl Globals {
    /// Of a layer that has none.
    pub(super) const ONE: Self = Self {
        shared: GlobalScale::ONE,
        row_alpha: None,
    };

    /// Reads the global scale of a layer. Where there are several that differ, rows of each part are those that the
    /// layer's name and the model's heads tell.
    pub(super) fn of(
        tensor: &Tensor<'_>,
        exporter: Exporter,
        layer: &str,
        shape: &Shape,
        heads: Option<Heads>,
    ) -> Result<Self, FileError> {
        let values = tensor.to_f32()?;
        let globals = values.iter().map(|value| usable(tensor, exporter, *value));
        let globals = globals.collect::<Result<Vec<_>, _>>()?;
        let Some((&shared, rest)) = globals.split_first() else {
            return Err(tensor.wrong(EXPECTED));
        };
        if rest.iter().all(|global| *global == shared) {
            return Ok(Self {
                shared,
                row_alpha: None,
            });
        }
        let Some(rows) = rows_of_parts(layer, globals.len(), shape.m(), heads) else {
            let expected = "equal numbers: which rows are of which part cannot be told";
            return Err(tensor.wrong(format!("{expected}, and they are {values:?}")));
        };
        let factors = globals.iter().zip(rows);
        let factors = factors
            .flat_map(|(global, rows)| std::iter::repeat_n(global.multiplier() as f32, rows));
        Ok(Self {
            shared: GlobalScale::ONE,
            row_alpha: Some(factors.collect()),
        })
    }
}

/// How many rows each part of a fused layer has, the first part's first.
fn rows_of_parts(layer: &str, parts: usize, m: usize, heads: Option<Heads>) -> Option<Vec<usize>> {
    let name = layer.rsplit('.').next()?;
    match (name, parts) {
        // Gate, then up.
        ("gate_up_proj", 2) if m.is_multiple_of(2) => Some(vec![m / 2; 2]),
        ("qkv_proj", 3) => {
            let heads = heads?;
            let [queries, keys] =
                [heads.queries, heads.keys].map(|heads_of| heads_of.checked_mul(heads.size));
            let (queries, keys) = (queries?, keys?);
            // Another attention than the language model's, such as a vision tower's, has other heads.
            let all = keys.checked_mul(2)?.checked_add(queries)?;
            (m > 0 && all == m).then(|| vec![queries, keys, keys])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_rows_that_names_and_heads_tell() {
        let heads = |queries, keys| {
            let size = 16;
            Some(Heads {
                queries,
                keys,
                size,
            })
        };
        let rows = |layer, parts, m, heads| rows_of_parts(layer, parts, m, heads);
        assert_eq!(rows("a.mlp.gate_up_proj", 2, 64, None), Some(vec![32, 32]));
        assert_eq!(
            rows("a.qkv_proj", 3, 64, heads(2, 1)),
            Some(vec![32, 16, 16])
        );
        for (layer, parts, m, heads) in [
            ("a.gate_up_proj", 2, 63, None),
            ("a.gate_up_proj", 3, 64, heads(2, 1)),
            ("a.qkv_proj", 3, 64, None),
            ("a.qkv_proj", 3, 66, heads(2, 1)),
            ("visual.qkv_proj", 3, 128, heads(2, 1)),
            ("a.qkv_proj", 3, 64, heads(0, 0)),
            ("a.qkv_proj", 3, 64, heads(usize::MAX, usize::MAX)),
            // Other models order the rows of these in other ways.
            ("a.query_key_value", 3, 64, heads(2, 1)),
            ("qkv_proj.a", 3, 64, heads(2, 1)),
        ] {
            assert_eq!(
                rows(layer, parts, m, heads),
                None,
                "{layer} {parts} {m} {heads:?}"
            );
        }
    }
}
