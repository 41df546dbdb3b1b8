//! Checks of lengths and strides that every operand shares.

use crate::error::{Error, Result};
use crate::types::ScaleLayout;

/// `got` elements are `needed` or more.
pub(crate) fn len(
    operand: &'static str,
    unit: &'static str,
    got: usize,
    needed: usize,
) -> Result<()> {
    if got >= needed {
        return Ok(());
    }
    Err(Error::BufferTooShort {
        operand,
        unit,
        needed,
        got,
        hint: String::new(),
    })
}

/// `got` bytes hold `needed` bytes of scales of this layout, and are not exactly what densely
/// packed scales of the other layout would take.
pub(crate) fn scales_len(
    operand: &'static str,
    got: usize,
    layout: ScaleLayout,
    rows: usize,
    blocks: usize,
    needed: usize,
    batches: usize,
) -> Result<()> {
    let dense = |layout: ScaleLayout| layout.bytes(rows, blocks) * batches;
    let other = match layout {
        ScaleLayout::Linear => ScaleLayout::Tiled128x4,
        ScaleLayout::Tiled128x4 => ScaleLayout::Linear,
    };
    let contradicts = got != needed && got == dense(other) && needed == dense(layout);
    if contradicts {
        return Err(Error::LayoutContradiction {
            operand,
            tagged: layout,
            needed,
            got,
            fits: other,
        });
    }
    if got >= needed {
        return Ok(());
    }
    let hint = match layout {
        ScaleLayout::Tiled128x4 => format!(
            " (128x4 scales are padded: {rows} rows to {}, {blocks} scales a row to {})",
            rows.next_multiple_of(128),
            blocks.next_multiple_of(4)
        ),
        ScaleLayout::Linear => String::new(),
    };
    Err(Error::BufferTooShort {
        operand,
        unit: "bytes",
        needed,
        got,
        hint,
    })
}

/// A stride steps over `needed` or more.
pub(crate) fn stride(
    operand: &'static str,
    unit: &'static str,
    stride: usize,
    needed: usize,
) -> Result<()> {
    if stride >= needed {
        return Ok(());
    }
    Err(Error::StrideTooSmall {
        operand,
        unit,
        stride,
        needed,
    })
}

/// Elements from the first to one past the last of `l` batches of `n` rows of `row` elements:
/// what a strided operand needs of its buffer.
pub(crate) fn extent(
    l: usize,
    batch_stride: usize,
    n: usize,
    row_stride: usize,
    row: usize,
) -> Option<usize> {
    if l == 0 {
        return Some(0);
    }
    (l - 1)
        .checked_mul(batch_stride)?
        .checked_add((n - 1).checked_mul(row_stride)?)?
        .checked_add(row)
}
