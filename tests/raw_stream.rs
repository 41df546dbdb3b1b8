//! What the pointer API of the stream kernel refuses. Everything is refused before CUDA is called, so no GPU
//! is needed: a call that got through would fail with `NoDriver` here, or crash on these addresses.
#![cfg(feature = "cuda")]

mod raw_call;

use nvfp4_gemv::raw::{Vectors, Weights};
use nvfp4_gemv::{
    Activation, Config, Error, FloatType, GlobalScale, Path, ScaleLayout, Shape, StreamConfig,
    Strides, TileConfig, TileKernel, Unavailable, raw,
};
use raw_call::{OUTPUT, hopper, weights};

struct Call {
    shape: Shape,
    weights: Weights,
    vectors: Vectors,
    config: StreamConfig,
    device: raw::DeviceInfo,
}

fn dense(element: FloatType, k: usize) -> Vectors {
    let row = k * element.bytes();
    Vectors::Dense {
        element,
        values: 0x3000_0000,
        strides: Strides {
            row,
            batch: 3 * row,
        },
    }
}

fn nvfp4(codes: u64, layout: ScaleLayout) -> Vectors {
    Vectors::Nvfp4 {
        codes,
        code_strides: Strides {
            row: 256,
            batch: 768,
        },
        scales: 0x4000_0000,
        layout,
        scale_strides: Strides {
            row: 32,
            batch: ScaleLayout::Tiled128x4.bytes(3, 32),
        },
        global: GlobalScale::ONE,
        vector_alpha: 0,
    }
}

/// Addresses far apart and well aligned; two batches of three f16 vectors.
fn valid() -> Call {
    Call {
        shape: Shape::new(130, 3, 512, 2).unwrap(),
        weights: weights(ScaleLayout::Linear),
        vectors: dense(FloatType::F16, 512),
        config: StreamConfig {
            warps: 12,
            stages: 4,
            vectors: 8,
            fetch: 128,
            ctas: 132,
            dependent: false,
        },
        device: hopper(),
    }
}

fn refusal(change: impl FnOnce(&mut Call)) -> Error {
    let mut call = valid();
    change(&mut call);
    // SAFETY: not upheld on purpose; every call here must be refused before the addresses are used.
    unsafe {
        raw::stream(
            &call.shape,
            &call.weights,
            &call.vectors,
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
        Error::PathUnavailable { path, reason } => {
            assert_eq!(path, Path::CudaCore);
            reason
        }
        other => panic!("{other}"),
    }
}

#[test]
fn types_lengths_and_alignment() {
    assert!(matches!(
        reason(|c| c.vectors = dense(FloatType::F32, 512)),
        Unavailable::Activation {
            found: Activation::F32,
            ..
        }
    ));
    let odd = |k: usize| {
        reason(|c| {
            c.shape = Shape::new(130, 3, k, 2).unwrap();
            c.vectors = dense(FloatType::Bf16, k);
        })
    };
    for k in [16, 128, 496, 512 + 32] {
        let why = odd(k);
        assert!(
            matches!(why, Unavailable::RowLength { k: found, .. } if found == k),
            "{why}"
        );
    }
    assert_eq!(odd(131_072), Unavailable::VectorMemory);
    let changes: [fn(&mut Call); 3] = [
        |c| c.weights.codes += 8,
        |c| c.weights.scales += 8,
        |c| {
            c.vectors = nvfp4(0x3000_0008, ScaleLayout::Linear);
        },
    ];
    for change in changes {
        assert_eq!(reason(change), Unavailable::Alignment);
    }
    // Dense vectors are checked like those of every other kernel.
    assert!(matches!(
        refusal(|c| match &mut c.vectors {
            Vectors::Dense { values, .. } => *values += 8,
            Vectors::Nvfp4 { .. } => unreachable!(),
        }),
        Error::Misaligned { align: 16, .. }
    ));
}

#[test]
fn devices() {
    assert!(matches!(
        reason(|c| c.device.compute_capability = (7, 5)),
        Unavailable::ComputeCapability {
            needed: "8.0 or newer",
            ..
        }
    ));
}

#[test]
fn configurations_without_a_kernel() {
    let changes: [fn(&mut Call); 9] = [
        |c| c.config.warps = 0,
        |c| c.config.warps = 13, // of 12 for three vectors
        |c| c.config.stages = 5,
        |c| c.config.stages = 34,
        |c| c.config.vectors = 3,
        |c| c.config.fetch = 512,
        |c| c.config.ctas = 0,
        |c| c.config.ctas = 2 * 144 + 1, // more than places
        |c| c.device.shared_bytes = 16 << 10,
    ];
    for change in changes {
        let error = refusal(change);
        assert!(matches!(error, Error::StreamConfig { .. }), "{error}");
        assert!(
            error.to_string().contains("stages are 3, 4 or 6"),
            "{error}"
        );
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
        refusal(|c| c.weights.scales = 0x5000_0000),
        Error::OutputOverlaps { .. }
    ));
}

fn default_of(call: &Call) -> nvfp4_gemv::Result<Config> {
    let path = Path::CudaCore;
    raw::default_config(
        path,
        &call.shape,
        &call.weights,
        &call.vectors,
        &call.device,
    )
}

fn candidates_of(call: &Call) -> Vec<Config> {
    let path = Path::CudaCore;
    raw::candidates(
        path,
        &call.shape,
        &call.weights,
        &call.vectors,
        &call.device,
    )
}

/// The stream kernel where it takes the problem, the others elsewhere; all are worth measuring.
#[test]
fn the_default_where_it_runs() {
    let mut call = valid();
    let streams = |cuts: &[Config]| {
        cuts.iter()
            .filter(|c| matches!(c, Config::Stream(_)))
            .count()
    };
    for layout in ScaleLayout::ALL {
        call.weights.layout = layout;
        for vectors in [dense(FloatType::F16, 512), nvfp4(0x3000_0000, layout)] {
            call.vectors = vectors;
            assert!(matches!(default_of(&call), Ok(Config::Stream(_))));
            let cuts = candidates_of(&call);
            assert_eq!(cuts.first(), default_of(&call).ok().as_ref());
            assert!(streams(&cuts) > 0 && streams(&cuts) < cuts.len());
            assert!(cuts.iter().all(|cut| cut.path() == Path::CudaCore));
        }
    }
    call.shape = Shape::new(130, 3, 480, 2).unwrap();
    assert!(matches!(default_of(&call), Ok(Config::CudaCore(_))));
    let cuts = candidates_of(&call);
    assert!(!cuts.is_empty() && streams(&cuts) == 0);
}

/// A configuration is checked against its own kernel, not against the other one of its path.
#[test]
fn a_tile_configuration_needs_what_tiles_need() {
    let call = valid();
    let config = TileConfig {
        kernel: TileKernel::CudaCore,
        stages: 2,
        cluster: 1,
        dependent: false,
    };
    let prepared = raw::prepare(
        &call.shape,
        &call.weights,
        &call.vectors,
        &OUTPUT,
        &config.into(),
        &call.device,
    );
    assert!(matches!(
        prepared,
        Err(Error::PathUnavailable {
            reason: Unavailable::Activation { takes: "NVFP4", .. },
            ..
        })
    ));
}
