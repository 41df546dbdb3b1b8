//! Checks of addresses, strides and overlap that every call shares.

use crate::check;
use crate::error::{Error, Result};
use crate::ffi;
use crate::shape::Shape;
use crate::tensor::Strides;
use crate::types::ScaleLayout;

pub(super) fn layout_code(layout: ScaleLayout) -> i32 {
    match layout {
        ScaleLayout::Linear => ffi::NVFP4_SCALES_LINEAR as i32,
        ScaleLayout::Tiled128x4 => ffi::NVFP4_SCALES_128X4 as i32,
    }
}

pub(super) fn pointer(operand: &'static str, address: u64, align: u64) -> Result<()> {
    if address == 0 {
        return Err(Error::NullPointer { operand });
    }
    aligned(operand, address, align)
}

pub(super) fn aligned(operand: &'static str, value: u64, align: u64) -> Result<()> {
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
pub(super) fn strided(
    operand: &'static str,
    shape: &Shape,
    strides: Strides,
    row: usize,
    align: u64,
) -> Result<usize> {
    let (n, l) = (shape.n(), shape.l());
    if n > 1 {
        check::stride(operand, "bytes", strides.row, row)?;
        aligned(operand, strides.row as u64, align)?;
    }
    let batch = check::extent(1, 0, n, strides.row, row).unwrap_or(usize::MAX);
    if l > 1 {
        check::stride(operand, "bytes", strides.batch, batch)?;
        aligned(operand, strides.batch as u64, align)?;
    }
    reach(shape, strides.batch, batch)
}

/// What all batches reach, where one reaches `batch`.
pub(super) fn reach(shape: &Shape, batch_stride: usize, batch: usize) -> Result<usize> {
    check::extent(shape.l(), batch_stride, 1, 0, batch)
        .filter(|&reach| isize::try_from(reach).is_ok())
        .ok_or(Error::SizeOverflow {
            m: shape.m(),
            n: shape.n(),
            k: shape.k(),
            l: shape.l(),
        })
}

/// The memory of a call's operands, at most six regions, without an allocation.
#[derive(Default)]
pub(super) struct Regions {
    regions: [(&'static str, u64, usize); 6],
    len: usize,
}

impl Regions {
    pub(super) fn push(&mut self, operand: &'static str, address: u64, bytes: usize) {
        self.regions[self.len] = (operand, address, bytes);
        self.len += 1;
    }

    /// Adds a region that is written: it shares no byte with those added before.
    pub(super) fn push_written(
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

    pub(super) fn check_disjoint(&self, output: u64, output_bytes: usize) -> Result<()> {
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
