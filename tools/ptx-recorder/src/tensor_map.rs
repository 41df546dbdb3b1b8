//! `cuTensorMapEncodeTiled` and its like. A tensor map is the 128 bytes that a driver writes on Hopper, and that the
//! simulator reads, so that the map is found wherever a program puts it.

use std::ffi::c_void;

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};

use crate::call::{api, put};
use crate::code::{Code, Fail};

fn known<T>(value: Option<T>, what: &str, number: u32) -> Result<T, Fail> {
    value.ok_or_else(|| Fail::value(format!("{number} is no {what}")))
}

api! { Driver run;
    fn cuTensorMapEncodeTiled(
        map: *mut [u8; 128], data_type: u32, rank: u32, address: u64, dims: *const u64, strides: *const u64,
        boxes: *const u32, element_strides: *const u32, interleave: u32, swizzle: u32, promotion: u32, fill: u32,
    ) |r| {
        let n = rank as usize;
        if !(1..=5).contains(&n) {
            return Err(Fail::value(format!("tensorRank {rank} is not in 1..=5")));
        }
        if dims.is_null() || boxes.is_null() || element_strides.is_null() || (strides.is_null() && n > 1) {
            return Err(Fail::value("an array of the tensor map is null"));
        }
        if !(map as usize).is_multiple_of(64) {
            return Err(Fail::value(format!("the tensor map at {map:?} is not 64-byte aligned")));
        }
        let global_strides = match n {
            1 => Vec::new(),
            _ => std::slice::from_raw_parts(strides, n - 1).to_vec(),
        };
        let encoded = TensorMap::encode(TensorMapArgs {
            data_type: known(DataType::from_driver(data_type), "CUtensorMapDataType", data_type)?,
            global_address: address,
            global_dim: std::slice::from_raw_parts(dims, n).to_vec(),
            global_strides,
            box_dim: std::slice::from_raw_parts(boxes, n).to_vec(),
            element_strides: std::slice::from_raw_parts(element_strides, n).to_vec(),
            interleave: known(Interleave::from_driver(interleave), "CUtensorMapInterleave", interleave)?,
            swizzle: known(Swizzle::from_driver(swizzle), "CUtensorMapSwizzle", swizzle)?,
            l2_promotion: known(L2Promotion::from_driver(promotion), "CUtensorMapL2promotion", promotion)?,
            oob_fill: known(OobFill::from_driver(fill), "CUtensorMapFloatOOBfill", fill)?,
        });
        put(map, encoded.map_err(|e| Fail::value(e.to_string()))?.to_bytes())
    }

    fn cuTensorMapReplaceAddress(map: *mut [u8; 128], address: *mut c_void) |r| {
        if map.is_null() {
            return Err(Fail::value("the tensor map is null"));
        }
        let old = TensorMap::from_bytes(&map.read_unaligned());
        let old = old.ok_or_else(|| Fail::value("these 128 bytes are no tensor map"))?;
        let new = old.replace_address(address as u64);
        put(map, new.map_err(|e| Fail::value(e.to_string()))?.to_bytes())
    }

    also [cuTensorMapEncodeIm2colWide] fn cuTensorMapEncodeIm2col() |r| {
        Err(Fail::new(Code::NOT_SUPPORTED, "tensor maps of im2col mode are not supported"))
    }
}
