//! A tensor map: the arguments of `cuTensorMapEncodeTiled`, with every rule of that call, and the 128 bytes that the
//! call writes.
//!
//! Source: CUDA driver API, "Tensor Map Object Management", `cuTensorMapEncodeTiled`. Where its text is silent, the
//! driver on Hopper decides: `probes/recorded/tensor_maps.txt`.

mod bytes;
mod check;

use super::swizzle::Swizzle;
pub use check::TensorMapError;

of_driver! {
    /// `CUtensorMapDataType`.
    #[allow(missing_docs)]
    DataType "CU_TENSOR_MAP_DATA_TYPE_" {
        Uint8 "UINT8", Uint16 "UINT16", Uint32 "UINT32", Int32 "INT32", Uint64 "UINT64", Int64 "INT64",
        Float16 "FLOAT16", Float32 "FLOAT32", Float64 "FLOAT64", Bfloat16 "BFLOAT16", Float32Ftz "FLOAT32_FTZ",
        Tfloat32 "TFLOAT32", Tfloat32Ftz "TFLOAT32_FTZ",
        /// Sixteen 4-bit values in 8 bytes, dense.
        U4x16Align8B "16U4_ALIGN8B",
        /// Sixteen 4-bit values in 8 bytes, then 8 bytes of padding in shared memory.
        U4x16Align16B "16U4_ALIGN16B",
        /// Sixteen 6-bit values in 12 bytes, then 4 bytes of padding in shared memory.
        U6x16Align16B "16U6_ALIGN16B",
    }
}

impl DataType {
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

of_driver! {
    /// `CUtensorMapInterleave`.
    #[allow(missing_docs)]
    Interleave "CU_TENSOR_MAP_INTERLEAVE_" { None "NONE", B16 "16B", B32 "32B", }
}

of_driver! {
    /// `CUtensorMapL2promotion`: a hint, kept and not modelled.
    #[allow(missing_docs)]
    L2Promotion "CU_TENSOR_MAP_L2_PROMOTION_" { None "NONE", B64 "L2_64B", B128 "L2_128B", B256 "L2_256B", }
}

of_driver! {
    /// `CUtensorMapFloatOOBfill`.
    OobFill "CU_TENSOR_MAP_FLOAT_OOB_FILL_" {
        /// Elements outside the tensor read as zero.
        Zero "NONE",
        /// Elements outside the tensor read as a special NaN.
        NanRequestZeroFma "NAN_REQUEST_ZERO_FMA",
    }
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
    /// Value that out-of-bounds elements read as.
    pub oob_fill: OobFill,
}

/// Bytes of the box as the driver counts them, for its limit and in the map: dimensions are divided by their element
/// strides and rounded down. A copy moves one element more of each dimension that its stride does not divide. So a copy
/// may move more bytes than this, or this may be 0.
fn driver_box_bytes(args: &TensorMapArgs) -> u64 {
    let dims = args.box_dim.iter().zip(&args.element_strides);
    dims.map(|(n, stride)| u64::from(n / stride))
        .product::<u64>()
        * args.data_type.bits()
        / 8
}

/// A tensor map whose arguments the driver would accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap(TensorMapArgs);

impl TensorMap {
    /// Checks the arguments against every rule of the call.
    pub fn encode(args: TensorMapArgs) -> Result<Self, TensorMapError> {
        check::check(&args)?;
        Ok(Self(args))
    }

    /// Refuses arguments that only later architectures than Hopper know.
    pub fn check_hopper(&self) -> Result<(), TensorMapError> {
        check::check_hopper(&self.0)
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

    /// Bytes from one row of the box to the next in shared memory. A swizzled row takes the whole
    /// span, however narrow it is.
    pub fn row_pitch(&self) -> u64 {
        match self.0.swizzle.span() {
            Some(span) => u64::from(span),
            None => self.inner_shared_bytes(),
        }
    }

    /// Bytes of shared memory that the whole box covers, padding and gaps included.
    pub fn box_bytes(&self) -> u64 {
        self.row_pitch() * self.rows()
    }

    /// Bytes that a load passes to `complete_tx`: the whole box, out-of-bounds elements included, and without padding
    /// and gaps.
    pub fn transaction_bytes(&self) -> u64 {
        self.inner_global_bytes() * self.rows()
    }
}
