//! What the pointer API of the ring kernel refuses. Everything is refused before CUDA is called, so no GPU is
//! needed: a call that got through would fail with `NoDriver` here, or crash on these addresses.
#![cfg(feature = "cuda")]

mod raw_call;

use nvfp4_gemv::path::Operands;
use nvfp4_gemv::path::measured::builtin_for;
use nvfp4_gemv::raw::{Vectors, Weights};
use nvfp4_gemv::{
    Activation, Config, Error, FloatType, GlobalScale, Path, RingConfig, ScaleLayout, Shape,
    Strides, Unavailable, raw,
};
use raw_call::{OUTPUT, hopper, weights};

struct Call {
    shape: Shape,
    weights: Weights,
    vectors: Vectors,
    config: RingConfig,
    device: raw::DeviceInfo,
}

/// Addresses far apart and well aligned; two batches of 132 rows.
fn valid() -> Call {
    Call {
        shape: Shape::gemv(132, 512, 2).unwrap(),
        weights: weights(ScaleLayout::Linear),
        vectors: Vectors::Nvfp4 {
            codes: 0x3000_0000,
            code_strides: Strides {
                row: 256,
                batch: 256,
            },
            scales: 0x4000_0000,
            layout: ScaleLayout::Linear,
            scale_strides: Strides { row: 32, batch: 32 },
            global: GlobalScale::ONE,
            vector_alpha: 0,
        },
        config: RingConfig {
            chunks: 1,
            groups: 4,
            rows: 4,
            depth: 3,
            granule: 1,
            cached: true,
            ctas: 66,
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
        raw::ring(
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
fn devices_types_lengths_and_alignment() {
    let older = reason(|c| c.device.compute_capability = (8, 9));
    assert!(matches!(
        older,
        Unavailable::ComputeCapability { .. } | Unavailable::NoKernelImage { .. }
    ));
    let dense = reason(|c| {
        c.vectors = Vectors::Dense {
            element: FloatType::F16,
            values: 0x3000_0000,
            strides: Strides {
                row: 1024,
                batch: 1024,
            },
        };
    });
    assert!(matches!(dense, Unavailable::Activation { .. }));
    assert!(matches!(
        reason(|c| c.shape = Shape::gemv(132, 384, 2).unwrap()),
        Unavailable::RowLength { k: 384, .. }
    ));
    assert_eq!(reason(|c| c.weights.codes += 8), Unavailable::Alignment);
    assert_eq!(reason(|c| c.weights.scales += 8), Unavailable::Alignment);
}

#[test]
fn shapes_and_cuts_that_have_no_kernel() {
    let cases: [fn(&mut Call); 9] = [
        |c| c.shape = Shape::gemv(133, 512, 2).unwrap(),
        |c| c.weights.layout = ScaleLayout::Tiled128x4,
        |c| c.config.chunks = 3,
        |c| c.config.groups = 17,
        |c| c.config.rows = 3,
        |c| c.config.depth = 0,
        |c| c.config.granule = 2,
        |c| c.config.ctas = 265,
        |c| c.device.shared_bytes = 8 << 10,
    ];
    for change in cases {
        let error = refusal(change);
        assert!(matches!(error, Error::RingConfig { .. }), "{error}");
        assert!(error.to_string().contains("M is a multiple of 4"));
    }
}

/// Where it takes a problem, it is the default of its path, and the first of the candidates.
#[test]
fn default_and_candidates() {
    let of = |change: fn(&mut Call)| {
        let mut call = valid();
        change(&mut call);
        let (shape, weights, vectors) = (&call.shape, &call.weights, &call.vectors);
        let default =
            raw::default_config(Path::CudaCore, shape, weights, vectors, &call.device).unwrap();
        let cuts = raw::candidates(Path::CudaCore, shape, weights, vectors, &call.device);
        let rings = cuts.iter().filter(|c| matches!(c, Config::Ring(_))).count();
        (default, cuts[0], rings)
    };
    let call = valid();
    let (weights, vectors) = (&call.weights, &call.vectors);
    let chain =
        raw::chained_config(Path::CudaCore, &call.shape, weights, vectors, &call.device).unwrap();
    assert!(matches!(chain, Config::Ring(_)) && chain.is_dependent());
    let (default, first, rings) = of(|_| {});
    assert!(matches!(default, Config::Ring(_)), "{default:?}");
    assert_eq!(default, first);
    assert!(rings > 10, "{rings}");
    for other in [
        (|c| c.shape = Shape::gemv(133, 512, 2).unwrap()) as fn(&mut Call),
        |c| c.weights.codes += 8,
    ] {
        let (default, _, _) = of(other);
        assert!(!matches!(default, Config::Ring(_)), "{default:?}");
    }
}

/// Problems of the built-in table have its cuts, alone and in chains, on the GPU that it is of.
#[test]
fn the_table_decides_where_it_can() {
    let table = builtin_for("NVIDIA H200", 132).unwrap();
    let mut call = valid();
    call.device.name = table.machine.gpu.name.clone();
    let linear = Operands::new(Activation::Nvfp4, ScaleLayout::Linear);
    let mut chained = 0;
    for entry in table.entries() {
        let shape = &entry.shape;
        if entry.operands != linear || (shape.n(), shape.l()) != (1, 1) {
            continue;
        }
        let timed = entry.of(Path::CudaCore).unwrap();
        let (weights, vectors, device) = (&call.weights, &call.vectors, &call.device);
        let alone = raw::default_config(Path::CudaCore, shape, weights, vectors, device).unwrap();
        let chain = raw::chained_config(Path::CudaCore, shape, weights, vectors, device).unwrap();
        assert_eq!(Some(alone), timed.config, "{shape}");
        assert_eq!(Some(chain), timed.chained.map(|of| of.config), "{shape}");
        chained += usize::from(chain != alone.with_dependent(true));
    }
    assert!(
        chained >= 3,
        "only {chained} problems have another cut in chains"
    );
}
