//! The rules of `cuTensorMapEncodeTiled`.

use super::{DataType, Interleave, OobFill, TensorMapArgs, driver_box_bytes};
use crate::models::swizzle::Swizzle;
use thiserror::Error;

/// The rule of `cuTensorMapEncodeTiled` that the arguments break.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum TensorMapError {
    #[error("tensorRank {0} is not in 1..=5")]
    Rank(usize),
    #[error("{array} has {got} entries, the rank asks for {want}")]
    Length {
        array: &'static str,
        got: usize,
        want: usize,
    },
    #[error("an interleaved map needs rank >= 3, this one has {0}")]
    InterleaveRank(usize),
    #[error("globalAddress {address:#x} is not {align}-byte aligned")]
    Address { address: u64, align: u64 },
    #[error("globalAddress {0:#x} must be below 2^57")]
    AddressTooLarge(u64),
    #[error("globalDim[{dim}] = {value} is not in 1..=2^32")]
    GlobalDim { dim: usize, value: u64 },
    #[error("globalDim[0] = {value} must be a multiple of {multiple} for {data_type:?}")]
    GlobalDimMultiple {
        value: u64,
        multiple: u64,
        data_type: DataType,
    },
    #[error("globalStrides[{index}] = {value} must be a multiple of {multiple}")]
    StrideMultiple {
        index: usize,
        value: u64,
        multiple: u64,
    },
    #[error("globalStrides[{index}] = {value} must be below 2^40")]
    StrideTooLarge { index: usize, value: u64 },
    #[error("boxDim[{dim}] = {value} is not in 1..=256")]
    BoxDim { dim: usize, value: u32 },
    #[error("a box of {bytes} bytes is larger than 228 KiB")]
    BoxSize { bytes: u64 },
    #[error("boxDim[0] is {bits} bits, not a multiple of 16 bytes")]
    BoxBytes { bits: u64 },
    #[error("boxDim[0] = {0} must be 128 for a padded packed type")]
    BoxPacked(u32),
    #[error("elementStrides[{dim}] = {value} is not in 1..=8")]
    ElementStride { dim: usize, value: u32 },
    #[error("the box's inner dimension of {bytes} bytes exceeds the swizzle span of {span}")]
    BoxOverSwizzle { bytes: u64, span: u32 },
    #[error("{data_type:?} requires INTERLEAVE_NONE")]
    PackedInterleave { data_type: DataType },
    #[error("{data_type:?} does not support swizzle {swizzle:?}")]
    PackedSwizzle {
        data_type: DataType,
        swizzle: Swizzle,
    },
    #[error("Hopper has no {0}")]
    NotOnHopper(&'static str),
    #[error("NaN fill is not allowed for {0:?}")]
    NanFill(DataType),
}

/// Checks the arguments against every rule of the call.
pub(super) fn check(args: &TensorMapArgs) -> Result<(), TensorMapError> {
    let rank = args.global_dim.len();
    if !(1..=5).contains(&rank) {
        return Err(TensorMapError::Rank(rank));
    }
    let want_len = |array, got, want| {
        if got == want {
            Ok(())
        } else {
            Err(TensorMapError::Length { array, got, want })
        }
    };
    want_len("globalStrides", args.global_strides.len(), rank - 1)?;
    want_len("boxDim", args.box_dim.len(), rank)?;
    want_len("elementStrides", args.element_strides.len(), rank)?;
    if args.interleave != Interleave::None && rank < 3 {
        return Err(TensorMapError::InterleaveRank(rank));
    }
    let align = if args.interleave == Interleave::B32 || args.data_type.is_padded() {
        32
    } else {
        16
    };
    if !args.global_address.is_multiple_of(align) {
        return Err(TensorMapError::Address {
            address: args.global_address,
            align,
        });
    }
    if args.global_address >= 1 << 57 {
        return Err(TensorMapError::AddressTooLarge(args.global_address));
    }
    check_dims(args)?;
    check_strides(args, align)?;
    check_box(args)?;
    if args.oob_fill == OobFill::NanRequestZeroFma && !args.data_type.is_float() {
        return Err(TensorMapError::NanFill(args.data_type));
    }
    Ok(())
}

/// Refuses maps that the driver refuses on Hopper: all that came with later architectures. Recorded.
pub(super) fn check_hopper(args: &TensorMapArgs) -> Result<(), TensorMapError> {
    let missing = match args.swizzle {
        _ if args.data_type.is_packed() => "packed element types",
        Swizzle::None | Swizzle::B32 | Swizzle::B64 | Swizzle::B128 => return Ok(()),
        _ => "swizzle with atoms of more than 16 bytes",
    };
    Err(TensorMapError::NotOnHopper(missing))
}

fn check_dims(args: &TensorMapArgs) -> Result<(), TensorMapError> {
    for (dim, &value) in args.global_dim.iter().enumerate() {
        if value == 0 || value > 1 << 32 {
            return Err(TensorMapError::GlobalDim { dim, value });
        }
    }
    let multiple = match args.data_type {
        DataType::U4x16Align8B => 2,
        t if t.is_padded() => 128,
        _ => 1,
    };
    let value = args.global_dim[0];
    if !value.is_multiple_of(multiple) {
        return Err(TensorMapError::GlobalDimMultiple {
            value,
            multiple,
            data_type: args.data_type,
        });
    }
    Ok(())
}

fn check_strides(args: &TensorMapArgs, multiple: u64) -> Result<(), TensorMapError> {
    for (index, &value) in args.global_strides.iter().enumerate() {
        if !value.is_multiple_of(multiple) {
            return Err(TensorMapError::StrideMultiple {
                index,
                value,
                multiple,
            });
        }
        if value >= 1 << 40 {
            return Err(TensorMapError::StrideTooLarge { index, value });
        }
        // Strides of zero, or ones that overlap, are accepted: public kernels broadcast so. So are
        // tensors that end beyond the address space: addresses wrap around.
    }
    Ok(())
}

fn check_box(args: &TensorMapArgs) -> Result<(), TensorMapError> {
    for (dim, &value) in args.box_dim.iter().enumerate() {
        if value == 0 || value > 256 {
            return Err(TensorMapError::BoxDim { dim, value });
        }
    }
    for (dim, &value) in args.element_strides.iter().enumerate() {
        // The first element stride "is ignored" without interleave, but the driver refuses 9 there too.
        if value == 0 || value > 8 {
            return Err(TensorMapError::ElementStride { dim, value });
        }
    }
    let (t, swizzle) = (args.data_type, args.swizzle);
    // Not in the text. Recorded: as much as a multiprocessor has shared memory.
    let bytes = driver_box_bytes(args);
    if bytes > 228 << 10 {
        return Err(TensorMapError::BoxSize { bytes });
    }
    if t.is_padded() {
        if args.box_dim[0] != 128 {
            return Err(TensorMapError::BoxPacked(args.box_dim[0]));
        }
        let supported = matches!(swizzle, Swizzle::None | Swizzle::B128 | Swizzle::B128Atom32)
            || (t == DataType::U6x16Align16B && swizzle == Swizzle::B128Atom64);
        if !supported {
            return Err(TensorMapError::PackedSwizzle {
                data_type: t,
                swizzle,
            });
        }
    }
    if t == DataType::U6x16Align16B && args.interleave != Interleave::None {
        return Err(TensorMapError::PackedInterleave { data_type: t });
    }
    let bits = u64::from(args.box_dim[0]) * t.bits();
    if !bits.is_multiple_of(128) {
        return Err(TensorMapError::BoxBytes { bits });
    }
    if let (Interleave::None, Some(span)) = (args.interleave, swizzle.span()) {
        let bytes = bits / 8;
        if bytes > u64::from(span) {
            return Err(TensorMapError::BoxOverSwizzle { bytes, span });
        }
    }
    Ok(())
}
