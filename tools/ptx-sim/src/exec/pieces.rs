//! Pieces: the bytes that an asynchronous copy moves.

use super::pending::{Range, Rows};
use crate::models::swizzle::Swizzle;

/// Source of bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum From {
    /// Memory, read when the copy happens.
    Memory(Range),
    /// Memory, as rows that fill a span of the swizzle each.
    Rows(Rows),
    /// Memory that holds 32-bit floats, which are rounded to tf32 on the way.
    Tf32(Range),
    /// Known since it was issued.
    Data(Vec<u8>),
    /// Bytes that were read of memory: from this byte on of [`Copy::fetched`].
    Fetched(usize),
    /// Nowhere: the destination becomes uninitialised.
    Nothing,
}

/// One run of bytes, or rows of them. The bytes lie in order in their source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub(super) from: From,
    pub(super) to: Range,
    /// Order of the bytes in the destination: whole spans of this pattern, or in order.
    pub(super) swizzle: Swizzle,
}

impl Piece {
    /// Bytes that go where they are said to in order.
    pub(super) fn in_order(from: From, to: Range) -> Self {
        Self {
            from,
            to,
            swizzle: Swizzle::None,
        }
    }

    /// Divides the piece into pieces whose bytes lie in order on both sides.
    pub(super) fn granules(self) -> Vec<Piece> {
        if self.swizzle == Swizzle::None {
            return vec![self];
        }
        let size = u64::from(self.swizzle.granule());
        let piece = |at: u64| {
            let size = size.min(self.to.size - at);
            let part = |r: &Range| Range {
                start: r.start + at,
                size,
                ..*r
            };
            let from = match &self.from {
                From::Memory(r) => From::Memory(part(r)),
                From::Rows(rows) => {
                    let row = rows.row(at / rows.first.size);
                    let start = row.start + at % row.size;
                    From::Memory(Range { start, size, ..row })
                }
                From::Tf32(r) => From::Tf32(part(r)),
                From::Data(d) => From::Data(d[at as usize..][..size as usize].to_vec()),
                From::Fetched(first) => From::Fetched(first + at as usize),
                From::Nothing => From::Nothing,
            };
            let start = u64::from(self.swizzle.apply((self.to.start + at) as u32));
            Self::in_order(
                from,
                Range {
                    start,
                    ..part(&self.to)
                },
            )
        };
        (0..self.to.size)
            .step_by(size as usize)
            .map(piece)
            .collect()
    }
}
