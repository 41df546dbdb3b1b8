//! What tests of the pointer API's refusals share: a device and operands that nobody has.

use nvfp4_gemv::raw::{DeviceInfo, Output, Weights};
use nvfp4_gemv::{FloatType, GlobalScale, ScaleLayout};

pub(crate) const OUTPUT: Output = Output {
    address: 0x5000_0000,
    element: FloatType::F16,
};

/// Codes and scales far apart and well aligned.
pub(crate) fn weights(layout: ScaleLayout) -> Weights {
    Weights {
        codes: 0x1000_0000,
        scales: 0x2000_0000,
        layout,
        global: GlobalScale::ONE,
        row_alpha: 0,
        row_alpha_batch_stride: 0,
    }
}

pub(crate) fn hopper() -> DeviceInfo {
    DeviceInfo {
        name: "none".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        l2_bytes: 60 << 20,
        shared_bytes: 227 << 10,
        memory_bytes: 1 << 30,
    }
}
