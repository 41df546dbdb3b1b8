//! What the pointer API of the tiled kernels refuses. Everything is refused before CUDA is called, so no
//! GPU is needed: a call that got through would fail with `NoDriver` here, or crash on these addresses.
#![cfg(feature = "cuda")]

mod raw_call;

use nvfp4_gemv::raw::{Vectors, Weights};
use nvfp4_gemv::{
    Error, FloatType, GlobalScale, Path, ScaleLayout, Shape, Strides, TileConfig, TileKernel,
    Unavailable, raw,
};
use raw_call::{OUTPUT, hopper, weights};

struct Call {
    shape: Shape,
    weights: Weights,
    codes: u64,
    code_strides: Strides,
    scales: u64,
    layout: ScaleLayout,
    config: TileConfig,
    device: raw::DeviceInfo,
}

/// Addresses far apart and well aligned; two batches of three vectors.
fn valid() -> Call {
    let shape = Shape::new(130, 3, 512, 2).unwrap();
    Call {
        shape,
        weights: weights(ScaleLayout::Tiled128x4),
        codes: 0x3000_0000,
        code_strides: Strides {
            row: 256,
            batch: 1024,
        },
        scales: 0x4000_0000,
        layout: ScaleLayout::Tiled128x4,
        config: TileConfig {
            kernel: TileKernel::CudaCore,
            stages: 2,
            cluster: 2,
            dependent: false,
        },
        device: hopper(),
    }
}

fn refusal(change: impl FnOnce(&mut Call)) -> Error {
    let mut call = valid();
    change(&mut call);
    let vectors = Vectors::Nvfp4 {
        codes: call.codes,
        code_strides: call.code_strides,
        scales: call.scales,
        layout: call.layout,
        scale_strides: Strides {
            row: call.shape.blocks(),
            batch: ScaleLayout::Tiled128x4.bytes(128, call.shape.blocks()),
        },
        global: GlobalScale::ONE,
        vector_alpha: 0,
    };
    // SAFETY: not upheld on purpose; every call here must be refused before the addresses are used.
    unsafe {
        raw::tiled(
            &call.shape,
            &call.weights,
            &vectors,
            &OUTPUT,
            &call.config,
            &call.device,
            std::ptr::null_mut(),
        )
    }
    .unwrap_err()
}

fn reason(change: impl FnOnce(&mut Call)) -> Unavailable {
    match refusal(change) {
        Error::PathUnavailable { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn layouts_lengths_and_alignment() {
    let linear = |operand| Unavailable::ScaleLayout { operand };
    assert_eq!(
        reason(|c| c.weights.layout = ScaleLayout::Linear),
        linear("weights' scales")
    );
    assert_eq!(
        reason(|c| c.layout = ScaleLayout::Linear),
        linear("vectors' scales")
    );
    assert_eq!(
        reason(|c| c.shape = Shape::new(130, 3, 496, 2).unwrap()),
        Unavailable::RowLength {
            k: 496,
            needed: "a multiple of 32"
        }
    );
    let changes: [fn(&mut Call); 6] = [
        |c| c.weights.codes += 8,
        |c| c.weights.scales += 4,
        |c| c.codes += 8,
        |c| c.scales += 8,
        |c| c.code_strides.row += 8,
        |c| c.code_strides.batch += 8,
    ];
    for change in changes {
        assert_eq!(reason(change), Unavailable::Alignment);
    }
}

#[test]
fn devices() {
    let needs = |change: fn(&mut Call)| match reason(change) {
        Unavailable::ComputeCapability { needed, .. } => needed,
        other => panic!("{other}"),
    };
    assert_eq!(
        needs(|c| c.device.compute_capability = (8, 9)),
        "9.0 or newer"
    );
    assert_eq!(needs(|c| c.config.kernel = TileKernel::TENSOR_CORE), "10.x");
}

#[test]
fn configurations_without_a_kernel() {
    let changes: [fn(&mut Call); 5] = [
        |c| c.config.stages = 3,
        |c| c.config.stages = 0,
        |c| c.config.cluster = 0,
        |c| c.config.cluster = 3, // two K steps
        |c| c.device.shared_bytes = 40 << 10,
    ];
    for change in changes {
        let error = refusal(change);
        assert!(matches!(error, Error::TileConfig { .. }), "{error}");
    }
}

/// What every call of the pointer API checks, is checked here too.
#[test]
fn pointers_and_overlap() {
    assert!(matches!(
        refusal(|c| c.weights.codes = 0),
        Error::NullPointer { .. }
    ));
    assert!(matches!(
        refusal(|c| c.codes = 0x5000_0000),
        Error::OutputOverlaps { .. }
    ));
}

#[test]
fn defaults_belong_to_their_path() {
    let call = valid();
    let vectors = Vectors::Dense {
        element: FloatType::F16,
        values: 0x3000_0000,
        strides: Strides {
            row: 1024,
            batch: 3072,
        },
    };
    for path in [Path::CudaCore, Path::CudaCoreTma, Path::TensorCore] {
        let config =
            raw::default_config(path, &call.shape, &call.weights, &vectors, &call.device).unwrap();
        assert_eq!(config.path(), path);
    }
    let small = raw::DeviceInfo {
        shared_bytes: 16 << 10,
        ..call.device
    };
    let tile = raw::default_config(
        Path::TensorCore,
        &call.shape,
        &call.weights,
        &vectors,
        &small,
    );
    assert!(matches!(
        tile,
        Err(Error::PathUnavailable {
            reason: Unavailable::SharedMemory,
            ..
        })
    ));
}
