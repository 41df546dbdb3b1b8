//! The tensor maps of codes, which several kernels take.

use super::call::Pass;
use super::params::{NVFP4_SWIZZLE_128, nvfp4_tensor_map};
use super::{Call, Job};
use crate::refusal::Refusal;

/// Bytes that a batch of codes must stay below: cuTensorMapEncodeTiled takes strides below 2^40.
const MOST_BATCH_BYTES: u64 = 1 << 40;

/// Whether a tensor map's stride holds a batch of codes.
pub(super) fn maps_batches(job: &Job<'_>) -> Result<(), Refusal> {
    match ((job.shape.m() * job.shape.row_code_bytes()) as u64) < MOST_BATCH_BYTES {
        true => Ok(()),
        false => Err(Refusal::BatchSize),
    }
}

/// Bytes of a row of one box of codes: as many as the 128-byte swizzle takes.
const BOX_BYTES: u32 = 128;

/// The tensor map of the weights' codes. A copy takes 256 elements of `rows` rows.
pub(super) fn weights_map(call: &Call, rows: u32) -> nvfp4_tensor_map {
    codes_map(call, [BOX_BYTES, rows])
}

/// The tensor map of the weights' codes: bytes of a row, rows, matrices. A copy takes a box of bytes and rows.
pub(super) fn codes_map(call: &Call, [bytes, rows]: [u32; 2]) -> nvfp4_tensor_map {
    let [m, matrices] = [call.shape.m(), call.matrices()].map(|size| size as u64);
    let row = call.shape.row_code_bytes() as u64;
    nvfp4_tensor_map {
        address: call.weights.codes,
        size: [row, m, matrices, 0],
        stride: [1, row, row * m, 0],
        box_size: [bytes, rows, 1, 0],
        rank: 3,
        swizzle: NVFP4_SWIZZLE_128,
    }
}

/// The tensor map of the codes of a pass's NVFP4 vectors. The strides of a single row or batch are not used, but must
/// be valid. Vectors that all batches share are one batch: `vectors_batch` of `csrc/format/operands.cuh`.
pub(super) fn vectors_map(call: &Call, pass: &Pass, rows: u32) -> nvfp4_tensor_map {
    let shape = &call.shape;
    let row = shape.row_code_bytes() as u64;
    let stride = match shape.n() * call.vectors.digits() {
        1 => row,
        _ => pass.vectors.row_bytes as u64,
    };
    let (batches, batch) = match (shape.l(), pass.vectors.batch_bytes) {
        (0 | 1, _) | (_, 0) => (1, stride * pass.n as u64),
        (l, bytes) => (l as u64, bytes as u64),
    };
    nvfp4_tensor_map {
        address: pass.vectors.values,
        size: [row, pass.n as u64, batches, 0],
        stride: [1, stride, batch, 0],
        box_size: [BOX_BYTES, rows, 1, 0],
        rank: 3,
        swizzle: NVFP4_SWIZZLE_128,
    }
}
