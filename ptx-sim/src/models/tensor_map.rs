//! A tensor map, as the arguments of `cuTensorMapEncodeTiled`, with every rule of that call.
//!
//! Source: CUDA driver API, "Tensor Map Object Management", `cuTensorMapEncodeTiled`.

use super::swizzle::Swizzle;
use thiserror::Error;

/// `CUtensorMapDataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DataType {
    Uint8,
    Uint16,
    Uint32,
    Int32,
    Uint64,
    Int64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float32Ftz,
    Tfloat32,
    Tfloat32Ftz,
    /// Sixteen 4-bit values in 8 bytes, dense.
    U4x16Align8B,
    /// Sixteen 4-bit values in 8 bytes, then 8 bytes of padding in shared memory.
    U4x16Align16B,
    /// Sixteen 6-bit values in 12 bytes, then 4 bytes of padding in shared memory.
    U6x16Align16B,
}

impl DataType {
    /// Decodes the driver's enumeration value.
    pub fn from_driver(value: u32) -> Option<Self> {
        use DataType::*;
        const ALL: [DataType; 16] = [
            Uint8,
            Uint16,
            Uint32,
            Int32,
            Uint64,
            Int64,
            Float16,
            Float32,
            Float64,
            Bfloat16,
            Float32Ftz,
            Tfloat32,
            Tfloat32Ftz,
            U4x16Align8B,
            U4x16Align16B,
            U6x16Align16B,
        ];
        ALL.get(value as usize).copied()
    }

    /// Bits of one element in global memory.
    pub fn bits(self) -> u64 {
        use DataType::*;
        match self {
            Uint8 => 8,
            Uint16 | Float16 | Bfloat16 => 16,
            Uint32 | Int32 | Float32 | Float32Ftz | Tfloat32 | Tfloat32Ftz => 32,
            Uint64 | Int64 | Float64 => 64,
            U4x16Align8B | U4x16Align16B => 4,
            U6x16Align16B => 6,
        }
    }

    /// Is it one of the packed 16Un types?
    pub fn is_packed(self) -> bool {
        matches!(
            self,
            Self::U4x16Align8B | Self::U4x16Align16B | Self::U6x16Align16B
        )
    }

    /// Does shared memory hold padding that global memory does not?
    pub fn is_padded(self) -> bool {
        matches!(self, Self::U4x16Align16B | Self::U6x16Align16B)
    }

    /// Is it a floating-point type (the ones NaN fill is allowed for)?
    pub fn is_float(self) -> bool {
        use DataType::*;
        matches!(
            self,
            Float16 | Float32 | Float64 | Bfloat16 | Float32Ftz | Tfloat32 | Tfloat32Ftz
        )
    }
}

/// `CUtensorMapInterleave`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Interleave {
    None,
    B16,
    B32,
}

/// `CUtensorMapL2promotion`: a hint, kept and not modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum L2Promotion {
    None,
    B64,
    B128,
    B256,
}

/// `CUtensorMapFloatOOBfill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OobFill {
    /// Elements outside the tensor read as zero.
    Zero,
    /// Elements outside the tensor read as a special NaN.
    NanRequestZeroFma,
}

/// The arguments of the call, unchecked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMapArgs {
    /// Element type.
    pub data_type: DataType,
    /// Address of element (0, .., 0).
    pub global_address: u64,
    /// Elements in each dimension, innermost first; its length is the rank.
    pub global_dim: Vec<u64>,
    /// Bytes between neighbours in dimensions 1.., so one entry fewer than dimensions.
    pub global_strides: Vec<u64>,
    /// Elements of the box in each dimension.
    pub box_dim: Vec<u32>,
    /// Traversal stride in each dimension.
    pub element_strides: Vec<u32>,
    /// Interleaved layout.
    pub interleave: Interleave,
    /// Shared memory swizzle.
    pub swizzle: Swizzle,
    /// L2 fetch granularity.
    pub l2_promotion: L2Promotion,
    /// What out-of-bounds elements read as.
    pub oob_fill: OobFill,
}

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
    #[error("INTERLEAVE_32B requires SWIZZLE_32B, not {0:?}")]
    InterleaveSwizzle(Swizzle),
    #[error("{data_type:?} does not support swizzle {swizzle:?}")]
    PackedSwizzle {
        data_type: DataType,
        swizzle: Swizzle,
    },
    #[error("NaN fill is not allowed for {0:?}")]
    NanFill(DataType),
    #[error("the tensor's last byte is beyond the 64-bit address space")]
    AddressOverflow,
}

/// A tensor map whose arguments the driver would accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap(TensorMapArgs);

impl TensorMap {
    /// Checks the arguments against every rule of the call.
    pub fn encode(args: TensorMapArgs) -> Result<Self, TensorMapError> {
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
        check_dims(&args)?;
        check_strides(&args, align)?;
        check_box(&args)?;
        if args.oob_fill == OobFill::NanRequestZeroFma && !args.data_type.is_float() {
            return Err(TensorMapError::NanFill(args.data_type));
        }
        Ok(Self(args))
    }

    /// The checked arguments.
    pub fn args(&self) -> &TensorMapArgs {
        &self.0
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.global_dim.len()
    }

    /// `cuTensorMapReplaceAddress`: the same map at another address.
    pub fn replace_address(&self, global_address: u64) -> Result<Self, TensorMapError> {
        Self::encode(TensorMapArgs {
            global_address,
            ..self.0.clone()
        })
    }

    /// Elements the box has in dimension `dim` after the traversal stride; 1 beyond the rank.
    pub fn box_elements(&self, dim: usize) -> u32 {
        let args = &self.0;
        let ignored = dim == 0 && args.interleave == Interleave::None;
        match (args.box_dim.get(dim), args.element_strides.get(dim)) {
            (Some(&n), Some(&stride)) if !ignored => n.div_ceil(stride),
            (Some(&n), _) => n,
            _ => 1,
        }
    }

    /// Bytes of one innermost row of the box in global memory.
    pub fn inner_global_bytes(&self) -> u64 {
        u64::from(self.box_elements(0)) * self.0.data_type.bits() / 8
    }

    /// Bytes of one innermost row of the box in shared memory, padding included.
    pub fn inner_shared_bytes(&self) -> u64 {
        if self.0.data_type.is_padded() {
            u64::from(self.box_elements(0)) // 16 elements take 16 bytes
        } else {
            self.inner_global_bytes()
        }
    }

    /// Rows of the box: the product of its dimensions but the innermost.
    pub fn rows(&self) -> u64 {
        (1..self.rank())
            .map(|d| u64::from(self.box_elements(d)))
            .product()
    }

    /// Bytes of the whole box in shared memory, padding included.
    pub fn box_bytes(&self) -> u64 {
        self.inner_shared_bytes() * self.rows()
    }

    /// What a load passes to `complete_tx`: the whole box, out-of-bounds elements included, and
    /// without the padding of the padded types.
    pub fn transaction_bytes(&self) -> u64 {
        self.inner_global_bytes() * self.rows()
    }
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
    let inner = (args.global_dim[0] * args.data_type.bits()).div_ceil(8);
    let mut last = args
        .global_address
        .checked_add(inner - 1)
        .ok_or(TensorMapError::AddressOverflow)?;
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
        // Strides of zero, or ones that overlap, are accepted: public kernels broadcast so.
        // 2^40 * 2^32 overflows 64 bits, so the extent is checked.
        let reach = (args.global_dim[index + 1] - 1).checked_mul(value);
        last = reach
            .and_then(|r| last.checked_add(r))
            .ok_or(TensorMapError::AddressOverflow)?;
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
        // Without interleave "the first element of this array is ignored".
        let ignored = dim == 0 && args.interleave == Interleave::None;
        if !ignored && (value == 0 || value > 8) {
            return Err(TensorMapError::ElementStride { dim, value });
        }
    }
    let (t, swizzle) = (args.data_type, args.swizzle);
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
    if args.interleave == Interleave::B32 && swizzle != Swizzle::B32 {
        return Err(TensorMapError::InterleaveSwizzle(swizzle));
    }
    if args.interleave == Interleave::None {
        let bits = u64::from(args.box_dim[0]) * t.bits();
        if !bits.is_multiple_of(128) {
            return Err(TensorMapError::BoxBytes { bits });
        }
        if let Some(span) = swizzle.span() {
            let bytes = bits / 8;
            if bytes > u64::from(span) {
                return Err(TensorMapError::BoxOverSwizzle { bytes, span });
            }
        }
    }
    Ok(())
}
