//! Tile-mode tensor copies: which global bytes go to which shared bytes.
//!
//! Sources: PTX ISA "Tensors" (bounding box, traversal stride, out-of-boundary access,
//! swizzling modes), "Restriction on Tensor Copy instructions", `cp.async.bulk.tensor`,
//! `cp.reduce.async.bulk.tensor`. The plan is data: the caller moves the bytes when, and in
//! whatever order, its scheduler decides.

use super::swizzle::Swizzle;
use super::tensor_map::{DataType, Interleave, OobFill, TensorMap};
use thiserror::Error;

/// Direction of a tensor copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Global to shared.
    Load,
    /// Shared to global.
    Store,
    /// Shared into global, by an element-wise reduction.
    Reduce,
}

/// The global side of one move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalSide {
    /// Bytes at this global address.
    Bytes(u64),
    /// Loads only: zeros, for elements outside the tensor.
    Zero,
    /// Loads only: the special NaN of the element type, little-endian in the first bytes.
    Nan {
        /// Bit pattern of one element.
        pattern: u64,
        /// Bytes of one element.
        bytes: u8,
    },
    /// Loads only: padding of the padded packed types, left uninitialised.
    Uninitialised,
}

/// One run of bytes, contiguous in global memory, or rows of them that fill a span of the swizzle each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Absolute shared address, swizzle applied.
    pub shared: u32,
    /// Length in bytes.
    pub len: u32,
    /// Source or destination of the bytes in global memory.
    pub global: GlobalSide,
    /// Order of the bytes in their range of shared memory: whole spans of this pattern, or in order.
    pub swizzle: Swizzle,
    /// Distance of rows in global memory, from start to start, where there are several.
    pub pitch: u64,
}

impl Move {
    /// Bytes that are contiguous on both sides.
    fn in_order(shared: u32, len: u32, global: GlobalSide) -> Self {
        Self {
            shared,
            len,
            global,
            swizzle: Swizzle::None,
            pitch: 0,
        }
    }

    /// Number of rows of the move.
    pub fn rows(&self) -> u64 {
        match self.pitch {
            0 => 1,
            _ => u64::from(self.len / self.swizzle.span().unwrap_or(self.len).max(1)),
        }
    }

    /// Divides the move into moves that are contiguous on both sides.
    pub fn granules(self) -> impl Iterator<Item = Move> {
        let granule = match self.swizzle {
            Swizzle::None => self.len.max(1),
            swizzle => swizzle.granule(),
        };
        let row = self.swizzle.span().unwrap_or(self.len.max(1));
        (0..self.len).step_by(granule as usize).map(move |at| {
            let offset = u64::from(at / row) * self.pitch + u64::from(at % row);
            let global = match self.global {
                GlobalSide::Bytes(a) => GlobalSide::Bytes(a.wrapping_add(offset)),
                fill => fill,
            };
            let shared = self.swizzle.apply(self.shared + at);
            Move::in_order(shared, granule.min(self.len - at), global)
        })
    }
}

/// Everything one tensor copy does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The moves; disjoint in shared memory.
    pub moves: Vec<Move>,
    /// Shared bytes the box covers from the operand address on (its bounds check).
    pub shared_bytes: u32,
    /// Bytes that a load passes to `complete_tx` of its mbarrier.
    pub transaction_bytes: u32,
}

/// The rule a tensor copy breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum TmaError {
    #[error("the instruction has {got} coordinates, the tensor map has rank {want}")]
    CoordinateCount { got: usize, want: usize },
    #[error("shared address {address:#x} of a tensor copy is not {align}-byte aligned")]
    SharedAlignment { address: u32, align: u32 },
    #[error("box of {bytes} bytes at shared address {address:#x} leaves shared memory")]
    SharedOverflow { address: u32, bytes: u64 },
    #[error("store coordinate {value} in dimension {dim} is negative")]
    NegativeStore { dim: usize, value: i32 },
    #[error("the first coordinate {value} must be a multiple of {multiple} for {data_type:?}")]
    PackedCoordinate {
        value: i32,
        multiple: i32,
        data_type: DataType,
    },
    #[error("the first coordinate {value} of {data_type:?} is not a multiple of 16 bytes")]
    CoordinateAlignment { value: i32, data_type: DataType },
    #[error("{data_type:?} cannot be copied in direction {direction:?}")]
    PackedDirection {
        data_type: DataType,
        direction: Direction,
    },
    #[error("not modelled: {0}")]
    Unmodelled(&'static str),
}

/// More than any CTA's shared memory: larger boxes are refused before they are planned.
pub const MAX_BOX_BYTES: u64 = 1 << 18;

/// Alignment of the shared operand of a tensor copy.
pub const SHARED_ALIGNMENT: u32 = 128;

/// Plans a tile-mode copy of the box at `coords` (innermost first) to or from `shared`.
pub fn plan(
    map: &TensorMap,
    coords: &[i32],
    shared: u32,
    direction: Direction,
) -> Result<Plan, TmaError> {
    check(map, coords, shared, direction)?;
    let args = map.args();
    let rank = map.rank();
    let bytes = map.box_bytes();
    let end = u64::from(shared) + bytes;
    if bytes > MAX_BOX_BYTES || end > 1 << 32 {
        return Err(TmaError::SharedOverflow {
            address: shared,
            bytes,
        });
    }
    if let Some(rows) = whole_rows(map, coords, shared, direction) {
        return Ok(Plan {
            moves: vec![rows],
            shared_bytes: bytes as u32,
            transaction_bytes: map.transaction_bytes() as u32,
        });
    }
    let pitch = map.row_pitch() as u32;
    let counts: Vec<u32> = (0..rank).map(|d| map.box_elements(d)).collect();
    let mut plan = Plan {
        moves: Vec::with_capacity(map.rows() as usize),
        shared_bytes: bytes as u32,
        transaction_bytes: map.transaction_bytes() as u32,
    };
    let mut index = vec![0u32; rank];
    for row in 0..map.rows() as u32 {
        // Global offset of this row, or None where an outer coordinate is outside the tensor.
        let mut base = Some(args.global_address);
        for d in 1..rank {
            let at =
                i64::from(coords[d]) + i64::from(index[d]) * i64::from(args.element_strides[d]);
            base = match u64::try_from(at) {
                Ok(at) if at < args.global_dim[d] => {
                    base.map(|b| b.wrapping_add(at.wrapping_mul(args.global_strides[d - 1])))
                }
                _ => None,
            };
        }
        push_row(
            map,
            base,
            i64::from(coords[0]),
            shared + row * pitch,
            direction,
            &mut plan.moves,
        );
        for d in 1..rank {
            index[d] += 1;
            if index[d] < counts[d] {
                break;
            }
            index[d] = 0;
        }
    }
    Ok(plan)
}

fn check(map: &TensorMap, coords: &[i32], shared: u32, dir: Direction) -> Result<(), TmaError> {
    let args = map.args();
    if coords.len() != map.rank() {
        return Err(TmaError::CoordinateCount {
            got: coords.len(),
            want: map.rank(),
        });
    }
    if args.interleave != Interleave::None {
        return Err(TmaError::Unmodelled("interleaved tensor layouts"));
    }
    let t = args.data_type;
    if dir != Direction::Load {
        if let Some((dim, &value)) = coords.iter().enumerate().find(|(_, c)| **c < 0) {
            return Err(TmaError::NegativeStore { dim, value });
        }
        if t == DataType::U4x16Align16B || (t.is_packed() && dir == Direction::Reduce) {
            return Err(TmaError::PackedDirection {
                data_type: t,
                direction: dir,
            });
        }
        if t == DataType::U6x16Align16B {
            return Err(TmaError::Unmodelled("storing 6-bit types (.b6p2x16)"));
        }
    }
    let multiple = match t {
        DataType::U4x16Align8B => 2,
        _ if t.is_padded() => 128,
        _ => 1,
    };
    if coords[0] % multiple != 0 {
        return Err(TmaError::PackedCoordinate {
            value: coords[0],
            multiple,
            data_type: t,
        });
    }
    // Not in the text; recorded: an illegal instruction, even for boxes wholly outside.
    if !t.is_packed() && i64::from(coords[0]) * t.bits() as i64 % 128 != 0 {
        return Err(TmaError::CoordinateAlignment {
            value: coords[0],
            data_type: t,
        });
    }
    if let Some(span) = args.swizzle.span()
        && map.inner_shared_bytes() != u64::from(span)
        && map.rows() > 1
    {
        // Recorded on Hopper: rows lie a span apart. Only these were.
        if dir != Direction::Load {
            return Err(TmaError::Unmodelled(
                "storing a swizzled box narrower than the swizzle span",
            ));
        }
        if !matches!(args.swizzle, Swizzle::B32 | Swizzle::B64 | Swizzle::B128) {
            return Err(TmaError::Unmodelled(
                "a box narrower than the swizzle span, with atoms of more than 16 bytes",
            ));
        }
    }
    if !shared.is_multiple_of(SHARED_ALIGNMENT) {
        return Err(TmaError::SharedAlignment {
            address: shared,
            align: SHARED_ALIGNMENT,
        });
    }
    Ok(())
}

/// A load of a box of two dimensions that lies in the tensor, and whose rows fill a span of the swizzle each.
fn whole_rows(map: &TensorMap, coords: &[i32], shared: u32, direction: Direction) -> Option<Move> {
    let args = map.args();
    let (&[x, y], &[width, height]) = (coords, &args.global_dim[..]) else {
        return None;
    };
    let (x, y) = (u64::try_from(x).ok()?, u64::try_from(y).ok()?);
    let bits = args.data_type.bits();
    let (first, len) = (x * bits / 8, map.inner_global_bytes());
    let step = u64::from(args.element_strides[1]);
    let last = y + step * map.rows().checked_sub(1)?;
    let inside = first + len <= width * bits / 8 && last < height;
    let fills = args.swizzle.span().map(u64::from) == Some(len) && !args.data_type.is_padded();
    if direction != Direction::Load || !inside || !fills {
        return None;
    }
    let stride = args.global_strides[0];
    let start = args.global_address.checked_add(first)?;
    // No row begins before the one before it ends, and none behind the last address.
    start
        .checked_add(stride.checked_mul(last)?)?
        .checked_add(len)?;
    let pitch = stride.checked_mul(step).filter(|pitch| *pitch > len)?;
    Some(Move {
        shared,
        len: (len * map.rows()) as u32,
        global: GlobalSide::Bytes(start + stride * y),
        swizzle: args.swizzle,
        pitch,
    })
}

/// The moves of one innermost row, cut at swizzle granules and at the tensor's edges.
fn push_row(
    map: &TensorMap,
    base: Option<u64>,
    x: i64,
    row_start: u32,
    direction: Direction,
    moves: &mut Vec<Move>,
) {
    let args = map.args();
    let bits = args.data_type.bits() as i64;
    // Bytes [lo, hi) of the row are inside the tensor; elements never straddle them, because
    // packed types move an even number of elements.
    let len = map.inner_global_bytes() as i64;
    let size = (args.global_dim[0] as i64 * bits) / 8;
    // Hopper writes whole 16-byte pieces: a store or reduction spills over the end of a row.
    let size = match direction {
        Direction::Load => size,
        _ => size.div_euclid(16) * 16 + if size % 16 == 0 { 0 } else { 16 },
    };
    let first = x * bits / 8;
    let (lo, hi) = match base {
        Some(_) => ((-first).clamp(0, len), (size - first).clamp(0, len)),
        None => (0, 0),
    };
    let hi = hi.max(lo);
    let fill = fill_of(args.oob_fill);
    // All of the row is on one side of the tensor's edge, and fills the span that the pattern permutes.
    let span = args.swizzle.span().map_or(len, i64::from);
    let whole = match base {
        Some(base) if (lo, hi) == (0, len) => {
            Some(GlobalSide::Bytes(base.wrapping_add_signed(first)))
        }
        _ if lo == hi => Some(fill),
        _ => None,
    };
    if let (Direction::Load, Some(global), false) = (direction, whole, args.data_type.is_padded())
        && len == span
    {
        let m = Move {
            shared: row_start,
            len: len as u32,
            global,
            swizzle: args.swizzle,
            pitch: 0,
        };
        return push(moves, m);
    }
    let data_of_slot: i64 = match args.data_type {
        DataType::U4x16Align16B => 8,
        DataType::U6x16Align16B => 12,
        _ => i64::from(args.swizzle.granule()),
    };
    let slot_bytes = if args.data_type.is_padded() {
        16
    } else {
        data_of_slot
    };
    let mut at = 0i64;
    let mut slot = i64::from(row_start);
    while at < len {
        let here = args.swizzle.apply(slot as u32);
        let end = (at + data_of_slot).min(len);
        let (a, b) = (at.max(lo).min(end), end.min(hi).max(at));
        let (a, b) = if a < b { (a, b) } else { (end, end) };
        let shared_of = |o: i64| here + (o - at) as u32;
        if direction == Direction::Load && at < a {
            push(moves, Move::in_order(here, (a - at) as u32, fill));
        }
        if let (true, Some(base)) = (a < b, base) {
            let from = base.wrapping_add_signed(first + a);
            let bytes = GlobalSide::Bytes(from);
            push(moves, Move::in_order(shared_of(a), (b - a) as u32, bytes));
        }
        if direction == Direction::Load && b < end {
            push(moves, Move::in_order(shared_of(b), (end - b) as u32, fill));
        }
        if args.data_type.is_padded() && direction == Direction::Load {
            let pad = (16 - data_of_slot) as u32;
            let shared = here + data_of_slot as u32;
            push(
                moves,
                Move::in_order(shared, pad, GlobalSide::Uninitialised),
            );
        }
        at = end;
        slot += slot_bytes;
    }
}

/// Appends a move, joined to the last one where both sides continue it.
fn push(moves: &mut Vec<Move>, m: Move) {
    let in_order = |m: &Move| m.swizzle == Swizzle::None;
    if let Some(last) = moves.last_mut()
        && last.shared + last.len == m.shared
        && in_order(last)
        && in_order(&m)
    {
        let joins = match (last.global, m.global) {
            (GlobalSide::Bytes(a), GlobalSide::Bytes(b)) => {
                a.wrapping_add(u64::from(last.len)) == b
            }
            (a, b) => a == b,
        };
        if joins {
            last.len += m.len;
            return;
        }
    }
    moves.push(m);
}

fn fill_of(fill: OobFill) -> GlobalSide {
    if fill == OobFill::Zero {
        return GlobalSide::Zero;
    }
    // The "special NaN" has no documented bits. Hopper fills with this half-word, whatever the
    // type's size.
    GlobalSide::Nan {
        pattern: 0x7ff7,
        bytes: 2,
    }
}
