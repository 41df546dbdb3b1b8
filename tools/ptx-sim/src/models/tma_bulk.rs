//! Bulk copies without a tensor map, and the element-wise reductions of both kinds.
//!
//! Sources: PTX ISA `cp.async.bulk`, `cp.reduce.async.bulk`, `cp.reduce.async.bulk.tensor`.

use thiserror::Error;

use crate::ast::Ty;
use crate::memory::layout::MAX_SHARED;
use crate::softfloat::{self, BF16, Round, add_odd, extreme};

/// The rule a bulk copy breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum BulkError {
    #[error("bulk copy size {0} is not a multiple of 16 bytes")]
    Size(u32),
    #[error(
        "a bulk copy of {size} bytes: no CTA has more than {limit} bytes of shared memory, where one side lies"
    )]
    TooLarge { size: u32, limit: u32 },
    #[error("{side} address {address:#x} of a bulk copy is not 16-byte aligned")]
    Alignment { side: &'static str, address: u64 },
    #[error("range of {size} bytes at {side} address {address:#x} overflows its space")]
    Overflow {
        side: &'static str,
        address: u64,
        size: u32,
    },
    #[error("reduction {op} is not defined for {ty} towards {dst:?}")]
    Reduction {
        op: ReduceOp,
        ty: Ty,
        dst: ReduceDst,
    },
    #[error("{len} bytes are not a whole number of {ty} elements, or the sides differ")]
    ReductionLength { len: usize, ty: Ty },
}

/// Checks size, alignment and extent of a `cp.async.bulk` in any direction.
///
/// Each side is its name, its address and the end (exclusive) of its space.
pub fn check_bulk(size: u32, sides: [(&'static str, u64, u64); 2]) -> Result<(), BulkError> {
    if !size.is_multiple_of(16) {
        return Err(BulkError::Size(size));
    }
    if size > MAX_SHARED {
        let limit = MAX_SHARED;
        return Err(BulkError::TooLarge { size, limit });
    }
    for (side, address, limit) in sides {
        if !address.is_multiple_of(16) {
            return Err(BulkError::Alignment { side, address });
        }
        match address.checked_add(u64::from(size)) {
            Some(end) if end <= limit => {}
            _ => {
                return Err(BulkError::Overflow {
                    side,
                    address,
                    size,
                });
            }
        }
    }
    Ok(())
}

named! {
    /// `.redOp`.
    #[allow(missing_docs)]
    ReduceOp {
        Add "add",
        Min "min",
        Max "max",
        Inc "inc",
        Dec "dec",
        And "and",
        Or "or",
        Xor "xor",
    }
}

/// Memory of a reduction's destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ReduceDst {
    SharedCluster,
    Global,
}

/// The table of valid operation, type and destination of `cp.reduce.async.bulk`.
pub fn check_reduction(op: ReduceOp, ty: Ty, dst: ReduceDst) -> Result<(), BulkError> {
    use ReduceOp::*;
    use Ty::*;
    let global = dst == ReduceDst::Global;
    let ok = match op {
        Add => matches!(ty, U32 | S32 | U64) || (global && matches!(ty, F32 | F64 | F16 | Bf16)),
        Min | Max => matches!(ty, U32 | S32) || (global && matches!(ty, U64 | S64 | F16 | Bf16)),
        Inc | Dec => ty == U32,
        And | Or | Xor => ty == B32 || (global && ty == B64),
    };
    if ok {
        Ok(())
    } else {
        Err(BulkError::Reduction { op, ty, dst })
    }
}

/// Reduces `src` into `dst`, element by element; [`check_reduction`] has passed.
pub fn reduce(op: ReduceOp, ty: Ty, dst: &mut [u8], src: &[u8]) -> Result<(), BulkError> {
    let n = ty.bytes() as usize;
    if dst.len() != src.len() || !dst.len().is_multiple_of(n) {
        return Err(BulkError::ReductionLength { len: dst.len(), ty });
    }
    for (d, s) in dst.chunks_exact_mut(n).zip(src.chunks_exact(n)) {
        let [a, b] = [&*d, s].map(|all| all.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)));
        d.copy_from_slice(&reduced(op, ty, a, b).to_le_bytes()[..n]);
    }
    Ok(())
}

/// An element after a reduction that [`check_reduction`] lets pass.
pub(crate) fn reduced(op: ReduceOp, ty: Ty, d: u64, s: u64) -> u64 {
    use ReduceOp::*;
    use Ty::*;
    let (d32, s32) = (d as u32, s as u32);
    match (op, ty) {
        (And, _) => d & s,
        (Or, _) => d | s,
        (Xor, _) => d ^ s,
        (Inc, _) => u64::from(if d32 >= s32 { 0 } else { d32 + 1 }),
        (Dec, _) => u64::from(if d32 == 0 || d32 > s32 { s32 } else { d32 - 1 }),
        (_, F16 | Bf16) => {
            let format = if ty == F16 { softfloat::F16 } else { BF16 };
            let [a, b] = [d32, s32].map(|bits| format.to_f64(bits & 0xffff));
            let x = match op {
                Add => add_odd(a, b),
                _ => f64::from(extreme(a as f32, b as f32, op == Max, false)),
            };
            u64::from(format.round(x, Round::Nearest, false))
        }
        (_, F32) => {
            // Hopper keeps subnormals here, whatever the text says of "the current implementation".
            let f = f32::from_bits(d32) + f32::from_bits(s32);
            u64::from(if f.is_nan() { 0x7fff_ffff } else { f.to_bits() })
        }
        // NaNs come through as they are, signalling ones too.
        (_, F64) if f64::from_bits(d).is_nan() => d,
        (_, F64) if f64::from_bits(s).is_nan() => s,
        (_, F64) => (f64::from_bits(d) + f64::from_bits(s)).to_bits(),
        (Add, U32 | S32) => u64::from(d32.wrapping_add(s32)),
        (Add, _) => d.wrapping_add(s),
        (Min, S32) => u64::from((d32 as i32).min(s32 as i32) as u32),
        (Max, S32) => u64::from((d32 as i32).max(s32 as i32) as u32),
        (Min, S64) => (d as i64).min(s as i64) as u64,
        (Max, S64) => (d as i64).max(s as i64) as u64,
        (Min, _) => d.min(s),
        (Max, _) => d.max(s),
    }
}

#[cfg(test)]
mod tests {
    use super::ReduceOp::*;
    use super::*;

    #[test]
    fn bulk_rules() {
        let ok = [("global", 0x1000, u64::MAX), ("shared", 0x40, 0x80)];
        assert_eq!(check_bulk(64, ok), Ok(()));
        assert_eq!(check_bulk(24, ok), Err(BulkError::Size(24)));
        // The size of a copy is limited also where both sides have as much.
        let all = [("global", 0, u64::MAX), ("shared", 0, u64::MAX)];
        for size in [MAX_SHARED + 16, 0xffff_fff0] {
            let limit = MAX_SHARED;
            assert_eq!(
                check_bulk(size, all),
                Err(BulkError::TooLarge { size, limit })
            );
        }
        assert!(matches!(
            check_bulk(80, ok),
            Err(BulkError::Overflow { side: "shared", .. })
        ));
        let off = [("global", 0x1008, u64::MAX), ("shared", 0x40, 0x80)];
        assert!(matches!(
            check_bulk(16, off),
            Err(BulkError::Alignment { side: "global", .. })
        ));
    }

    #[test]
    fn reduction_table() {
        use ReduceDst::*;
        assert!(check_reduction(Add, Ty::F32, SharedCluster).is_err());
        assert!(check_reduction(Add, Ty::F32, Global).is_ok());
        assert!(check_reduction(Inc, Ty::S32, Global).is_err());
        assert!(check_reduction(Xor, Ty::B64, Global).is_ok());
        assert!(check_reduction(Min, Ty::F32, Global).is_err());
        let g = reduced;
        assert_eq!(g(Inc, Ty::U32, 5, 5), 0);
        assert_eq!(g(Inc, Ty::U32, 4, 5), 5);
        assert_eq!(g(Dec, Ty::U32, 0, 5), 5);
        assert_eq!(g(Dec, Ty::U32, 9, 5), 5);
        assert_eq!(g(Min, Ty::S32, 0xffff_ffff, 1), 0xffff_ffff);
        let mut d = 1.5f32.to_le_bytes();
        reduce(Add, Ty::F32, &mut d, &2.25f32.to_le_bytes()).unwrap();
        assert_eq!(f32::from_le_bytes(d), 3.75);
        let tiny = f32::from_bits(1).to_le_bytes();
        let mut d = 0f32.to_le_bytes();
        reduce(Add, Ty::F32, &mut d, &tiny).unwrap();
        assert_eq!(f32::from_le_bytes(d).to_bits(), 1);
        assert!(reduce(Add, Ty::F32, &mut d, &[0; 3]).is_err());
    }
}
