//! Tensor maps, as the driver encodes them: for kernels that are linked in, too.

use std::ffi::c_void;

use super::{api, ready};
use crate::error::Result;
use crate::kernel::params::{
    NVFP4_SWIZZLE_128, NVFP4_TENSOR_MAP_BYTES, NVFP4_TENSOR_MAP_RANK, nvfp4_tensor_map,
};

/// A tensor map as kernels take it: `CUtensorMap`.
pub(in crate::raw) type EncodedMap = [u8; NVFP4_TENSOR_MAP_BYTES as usize];

/// Encodes a tensor map of bytes, in place. No device work.
pub(in crate::raw) fn encode(map: &nvfp4_tensor_map, encoded: &mut EncodedMap) -> Result<()> {
    let api = ready()?;
    let element_strides = [1; NVFP4_TENSOR_MAP_RANK as usize];
    let swizzle = match map.swizzle {
        NVFP4_SWIZZLE_128 => api::TENSOR_MAP_SWIZZLE_128B,
        _ => api::TENSOR_MAP_SWIZZLE_NONE,
    };
    // SAFETY: the arrays have as many elements as the rank says, or more, and live through the call. The driver follows
    // no device address, and writes as many bytes as an encoded map has; all maps of a launch are aligned as it asks.
    api.check("encoding a tensor map", unsafe {
        (api.encode_tiled)(
            encoded.as_mut_ptr().cast(),
            api::TENSOR_MAP_UINT8,
            map.rank,
            map.address as *mut c_void,
            map.size.as_ptr(),
            // The innermost dimension's stride is that of bytes, and not asked for.
            map.stride[1..].as_ptr(),
            map.box_size.as_ptr(),
            element_strides.as_ptr(),
            api::TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            api::TENSOR_MAP_L2_PROMOTION_256B,
            api::TENSOR_MAP_OOB_FILL_NONE,
        )
    })
}
