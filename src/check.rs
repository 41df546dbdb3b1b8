//! Checks of lengths, strides, addresses and overlap that every operand shares.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::shape::{Shape, Strides};
use crate::types::ScaleLayout;

/// Whether a dimension is what another one asks for.
pub(crate) fn fits(
    dimension: &'static str,
    found: usize,
    of: &'static str,
    expected: usize,
) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(Error::LayersMismatch {
            dimension,
            found,
            of,
            expected,
        }),
    }
}

/// `got` elements are as many as `needed`: what is more would be left out without a word.
pub(crate) fn len(
    operand: &'static str,
    unit: &'static str,
    got: usize,
    needed: usize,
) -> Result<()> {
    len_or(operand, unit, got, needed..=needed, String::new)
}

/// `got` elements lie within `needed`, with something to say to whoever has fewer. Where none are needed, one may be
/// there: a device has no buffers of nothing.
pub(crate) fn len_or(
    operand: &'static str,
    unit: &'static str,
    got: usize,
    needed: RangeInclusive<usize>,
    hint: impl FnOnce() -> String,
) -> Result<()> {
    let (least, most) = needed.into_inner();
    if got < least {
        return Err(Error::BufferTooShort {
            operand,
            unit,
            needed: least,
            got,
            hint: hint(),
        });
    }
    if got > most.max(1) {
        return Err(Error::BufferTooLong {
            operand,
            unit,
            needed: most,
            got,
        });
    }
    Ok(())
}

/// Checks that `got` bytes are the scales of `rows` rows a batch, as many batches as the shape has, with `batch` bytes
/// from one to the next. A length that densely packed scales of the other layout would have is an error. The bytes by
/// which `batch` pads may be there behind the last batch, or not.
pub(crate) fn scales_len(
    operand: &'static str,
    got: usize,
    layout: ScaleLayout,
    shape: &Shape,
    rows: usize,
    batch: usize,
) -> Result<()> {
    let (blocks, batches) = (shape.blocks(), shape.l());
    let one = |layout: ScaleLayout| layout.bytes(rows, blocks);
    let needed = extent(batches, batch, rows.min(1), 0, one(layout)).unwrap_or(usize::MAX);
    let most = needed.saturating_add(batch.saturating_sub(one(layout)));
    let other = layout.other();
    let is_packed = needed == one(layout) * batches;
    if got != needed && is_packed && got == one(other) * batches {
        return Err(Error::LayoutContradiction {
            operand,
            tagged: layout,
            needed,
            got,
            fits: other,
        });
    }
    len_or(operand, "bytes", got, needed..=most, || match layout {
        ScaleLayout::Tiled128x4 => format!(
            " (128x4 scales are padded: {rows} rows to {}, {blocks} scales a row to {})",
            rows.next_multiple_of(128),
            blocks.next_multiple_of(4)
        ),
        ScaleLayout::Linear => String::new(),
    })
}

/// Batch strides that are allowed where there are several batches.
#[derive(Clone, Copy)]
pub(crate) enum Batches {
    /// The stride steps over a batch or more.
    Apart,
    /// The stride may also be 0, as vectors' may be: all batches share one.
    MayBeShared,
}

impl Batches {
    pub(crate) fn check(
        self,
        operand: &'static str,
        unit: &'static str,
        given: usize,
        needed: usize,
    ) -> Result<()> {
        match (self, given) {
            (Self::MayBeShared, 0) => Ok(()),
            _ => stride(operand, unit, given, needed),
        }
    }
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
    if l == 0 || n == 0 {
        return Some(0);
    }
    (l - 1)
        .checked_mul(batch_stride)?
        .checked_add((n - 1).checked_mul(row_stride)?)?
        .checked_add(row)
}

/// Strides given or dense, checked against the buffer's length. A stride that nothing steps over means nothing,
/// whatever was given, and is the dense one here: all that is returned lies inside the buffer.
pub(crate) fn resolve(
    operand: &'static str,
    unit: &'static str,
    strides_given: Option<Strides>,
    shape: &Shape,
    row: usize,
    got: usize,
    batches: Batches,
) -> Result<Strides> {
    let (n, l) = (shape.n(), shape.l());
    let packed = Strides::packed(n, row);
    let given = strides_given.unwrap_or(packed);
    let mut strides = packed;
    if n > 1 && l > 0 {
        stride(operand, unit, given.row, row)?;
        strides.row = given.row;
    }
    if l > 1 {
        let needed = extent(1, 0, n, strides.row, row).unwrap_or(usize::MAX);
        batches.check(operand, unit, given.batch, needed)?;
        strides.batch = given.batch;
    }
    let needed = extent(l, strides.batch, n, strides.row, row).unwrap_or(usize::MAX);
    // Rows and batches are padded behind their elements: the last ones, too, or not.
    let padded_row = if n == 0 { 0 } else { given.row.max(row) };
    let padded_batch = given.batch.max(n.saturating_mul(padded_row));
    let most = match l {
        0 => strides_given.map_or(0, |_| padded_batch),
        _ => (l - 1)
            .saturating_mul(strides.batch)
            .saturating_add(padded_batch),
    };
    len_or(operand, unit, got, needed..=most, String::new)?;
    Ok(strides)
}

/// `got` elements are one for each row, M that all matrices share, or as many for each of them. Returns the elements
/// from a matrix's to the next one's: 0 where they are shared.
pub(crate) fn of_rows(
    operand: &'static str,
    m: usize,
    matrices: usize,
    got: usize,
) -> Result<usize> {
    let all = m * matrices;
    if got != m {
        len_or(operand, "elements", got, all..=all, || {
            format!(" (or exactly {m}, which all matrices share)")
        })?;
    }
    Ok(if got == all { m } else { 0 })
}

/// An address that is there and aligned.
pub(crate) fn pointer(operand: &'static str, address: u64, align: u64) -> Result<()> {
    if address == 0 {
        return Err(Error::NullPointer { operand });
    }
    aligned(operand, address, align)
}

/// `value`, an address or a stride in bytes, is a multiple of `align`.
pub(crate) fn aligned(operand: &'static str, value: u64, align: u64) -> Result<()> {
    if value.is_multiple_of(align) {
        return Ok(());
    }
    Err(Error::Misaligned {
        operand,
        value,
        align,
    })
}

/// Checks strides in bytes and returns the bytes they reach.
pub(crate) fn strided(
    operand: &'static str,
    shape: &Shape,
    strides: Strides,
    row: usize,
    align: u64,
    batches: Batches,
) -> Result<usize> {
    let (n, l) = (shape.n(), shape.l());
    if n > 1 {
        stride(operand, "bytes", strides.row, row)?;
        aligned(operand, strides.row as u64, align)?;
    }
    let batch = extent(1, 0, n, strides.row, row).unwrap_or(usize::MAX);
    if l > 1 {
        batches.check(operand, "bytes", strides.batch, batch)?;
        aligned(operand, strides.batch as u64, align)?;
    }
    reach(shape, strides.batch, batch)
}

/// Bytes that all batches reach, where one batch reaches `batch`.
pub(crate) fn reach(shape: &Shape, batch_stride: usize, batch: usize) -> Result<usize> {
    extent(shape.l(), batch_stride, 1, 0, batch)
        .filter(|&reach| isize::try_from(reach).is_ok())
        .ok_or(Error::SizeOverflow {
            m: shape.m(),
            n: shape.n(),
            k: shape.k(),
            l: shape.l(),
        })
}

/// The memory of a call's operands, without an allocation. A call has eleven at most, its workspace among them: there is
/// room for two more.
#[derive(Default)]
pub(crate) struct Regions {
    regions: [(&'static str, u64, usize); 13],
    len: usize,
}

impl Regions {
    pub(crate) fn push(&mut self, operand: &'static str, address: u64, bytes: usize) {
        self.regions[self.len] = (operand, address, bytes);
        self.len += 1;
    }

    /// Adds a region that is written: it shares no byte with those added before.
    pub(crate) fn push_written(
        &mut self,
        operand: &'static str,
        address: u64,
        bytes: usize,
    ) -> Result<()> {
        if let Some(other) = self.overlapped(address, bytes) {
            return Err(Error::Overlap { operand, other });
        }
        self.push(operand, address, bytes);
        Ok(())
    }

    pub(crate) fn check_disjoint(&self, output: u64, output_bytes: usize) -> Result<()> {
        match self.overlapped(output, output_bytes) {
            Some(operand) => Err(Error::OutputOverlaps { operand }),
            None => Ok(()),
        }
    }

    /// The first region that shares a byte with the given one.
    fn overlapped(&self, address: u64, bytes: usize) -> Option<&'static str> {
        let end = |address: u64, bytes: usize| address.saturating_add(bytes as u64);
        self.regions[..self.len]
            .iter()
            .find(|&&(_, other, len)| address < end(other, len) && other < end(address, bytes))
            .map(|&(operand, ..)| operand)
    }
}
