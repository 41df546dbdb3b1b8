//! What the pointer API refuses. Everything is refused before CUDA is called, so no GPU is needed:
//! a call that got through would fail with `NoDriver` here, or crash on these addresses.
#![cfg(feature = "cuda")]

use nvfp4_gemv::raw::{Output, Vectors, Weights};
use nvfp4_gemv::{
    Config, CudaCoreConfig, CudaCoreKernel, Error, FloatType, GlobalScale, Path, ScaleLayout,
    Shape, Strides, raw,
};

const SHAPE: (usize, usize, usize, usize) = (130, 2, 64, 3);

#[derive(Clone, Copy)]
struct Call {
    shape: (usize, usize, usize, usize),
    weights: Weights,
    vectors: Vectors,
    output: Output,
    config: CudaCoreConfig,
}

fn device() -> raw::DeviceInfo {
    raw::DeviceInfo {
        name: "none".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        l2_bytes: 60 << 20,
        shared_bytes: 99 << 10,
        memory_bytes: 1 << 30,
    }
}

/// Addresses far apart and well aligned.
fn valid() -> Call {
    let (_, n, k, _) = SHAPE;
    Call {
        shape: SHAPE,
        weights: Weights {
            codes: 0x1000_0000,
            scales: 0x2000_0000,
            layout: ScaleLayout::Tiled128x4,
            global: GlobalScale::Multiplier(0.5),
            row_alpha: 0x3000_0000,
            row_alpha_batch_stride: 0,
        },
        vectors: Vectors::Nvfp4 {
            codes: 0x4000_0000,
            code_strides: Strides {
                row: k / 2,
                batch: 128 * k / 2,
            },
            scales: 0x5000_0000,
            layout: ScaleLayout::Linear,
            scale_strides: Strides {
                row: k / 16,
                batch: n * k / 16,
            },
            global: GlobalScale::Divisor(2.0),
            vector_alpha: 0x6000_0000,
        },
        output: Output {
            address: 0x7000_0000,
            element: FloatType::F16,
        },
        config: CudaCoreConfig {
            kernel: CudaCoreKernel::Direct,
            ctas: 0,
            blocks_per_load: 2,
            warps: 4,
            k_split: 2,
            dependent: false,
        },
    }
}

fn dense(values: u64, row: usize, batch: usize) -> Vectors {
    Vectors::Dense {
        element: FloatType::F16,
        values,
        strides: Strides { row, batch },
    }
}

fn refusal(change: impl FnOnce(&mut Call)) -> Error {
    let mut call = valid();
    change(&mut call);
    let (m, n, k, l) = call.shape;
    let shape = Shape::new(m, n, k, l).unwrap();
    // SAFETY: not upheld on purpose; every call here must be refused before the addresses are used.
    let refusal = unsafe {
        raw::cuda_core(
            &shape,
            &call.weights,
            &call.vectors,
            &call.output,
            &call.config,
            &device(),
            std::ptr::null_mut(),
        )
    }
    .unwrap_err();
    // What a call refuses cannot be prepared either.
    let prepared = raw::prepare(
        &shape,
        &call.weights,
        &call.vectors,
        &call.output,
        &call.config.into(),
        &device(),
    );
    // By its text: a scale that is refused may be NaN.
    assert_eq!(prepared.unwrap_err().to_string(), refusal.to_string());
    refusal
}

/// Changes the NVFP4 vectors of a call.
macro_rules! vectors {
    ($call:ident, $field:ident $(. $part:ident)* = $value:expr) => {
        if let Vectors::Nvfp4 { $field, .. } = &mut $call.vectors {
            #[allow(unused_assignments)]
            { (*$field) $(. $part)* = $value; }
        }
    };
}

#[test]
fn null_pointers() {
    let null = |operand| Error::NullPointer { operand };
    assert_eq!(refusal(|c| c.weights.codes = 0), null("weight codes"));
    assert_eq!(refusal(|c| c.weights.scales = 0), null("weight scales"));
    assert_eq!(refusal(|c| vectors!(c, codes = 0)), null("vector codes"));
    assert_eq!(refusal(|c| vectors!(c, scales = 0)), null("vector scales"));
    assert_eq!(refusal(|c| c.vectors = dense(0, 128, 256)), null("vectors"));
    assert_eq!(refusal(|c| c.output.address = 0), null("output"));
}

#[test]
fn misaligned_pointers_and_strides() {
    let bad = |operand, value, align| Error::Misaligned {
        operand,
        value,
        align,
    };
    assert_eq!(
        refusal(|c| c.weights.codes += 4),
        bad("weight codes", 0x1000_0004, 8)
    );
    assert_eq!(
        refusal(|c| c.weights.scales += 2),
        bad("weight scales", 0x2000_0002, 4)
    );
    assert_eq!(
        refusal(|c| c.weights.row_alpha += 2),
        bad("row alpha", 0x3000_0002, 4)
    );
    assert_eq!(
        refusal(|c| vectors!(c, codes = 0x4000_0001)),
        bad("vector codes", 0x4000_0001, 8)
    );
    assert_eq!(
        refusal(|c| vectors!(c, code_strides.row = 36)),
        bad("vector codes", 36, 8)
    );
    assert_eq!(
        refusal(|c| vectors!(c, code_strides.batch = 4097)),
        bad("vector codes", 4097, 8)
    );
    assert_eq!(
        refusal(|c| vectors!(c, vector_alpha = 0x6000_0001)),
        bad("vector global scales", 0x6000_0001, 4)
    );
    assert_eq!(
        refusal(|c| c.vectors = dense(0x4000_0008, 128, 256)),
        bad("vectors", 0x4000_0008, 16)
    );
    assert_eq!(
        refusal(|c| c.vectors = dense(0x4000_0000, 136, 512)),
        bad("vectors", 136, 16)
    );
    assert_eq!(
        refusal(|c| c.output.address += 1),
        bad("output", 0x7000_0001, 2)
    );
    assert_eq!(
        refusal(|c| {
            c.output.address += 2;
            c.output.element = FloatType::F32;
        }),
        bad("output", 0x7000_0002, 4)
    );
}

#[test]
fn small_strides() {
    let small = |operand, stride, needed| Error::StrideTooSmall {
        operand,
        unit: "bytes",
        stride,
        needed,
    };
    assert_eq!(
        refusal(|c| vectors!(c, code_strides.row = 24)),
        small("vector codes", 24, 32)
    );
    assert_eq!(
        refusal(|c| vectors!(c, code_strides.batch = 56)),
        small("vector codes", 56, 64)
    );
    assert_eq!(
        refusal(|c| vectors!(c, scale_strides.row = 3)),
        small("vector scales", 3, 4)
    );
    assert_eq!(
        refusal(|c| {
            vectors!(c, layout = ScaleLayout::Tiled128x4);
            vectors!(c, scale_strides.batch = 511);
        }),
        small("vector scales", 511, 512)
    );
    assert_eq!(
        refusal(|c| c.vectors = dense(0x4000_0000, 112, 256)),
        small("vectors", 112, 128)
    );
}

#[test]
fn strides_past_the_address_range() {
    for error in [
        refusal(|c| vectors!(c, code_strides.batch = usize::MAX - 7)),
        refusal(|c| vectors!(c, code_strides.row = usize::MAX - 7)),
        refusal(|c| vectors!(c, scale_strides.batch = usize::MAX)),
        refusal(|c| {
            vectors!(c, layout = ScaleLayout::Tiled128x4);
            vectors!(c, scale_strides.batch = usize::MAX);
        }),
        refusal(|c| c.weights.row_alpha_batch_stride = usize::MAX),
    ] {
        assert!(
            matches!(
                error,
                Error::SizeOverflow { .. } | Error::StrideTooSmall { .. }
            ),
            "{error}"
        );
    }
}

#[test]
fn global_scales() {
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for scale in [GlobalScale::Multiplier(value), GlobalScale::Divisor(value)] {
            let error = refusal(|c| c.weights.global = scale);
            assert!(matches!(
                error,
                Error::GlobalScale {
                    operand: "weight global scale",
                    ..
                }
            ));
            let error = refusal(|c| vectors!(c, global = scale));
            assert!(matches!(
                error,
                Error::GlobalScale {
                    operand: "vector global scale",
                    ..
                }
            ));
        }
    }
    let error = refusal(|c| {
        c.weights.global = GlobalScale::Multiplier(1e-30);
        vectors!(c, global = GlobalScale::Multiplier(1e-30));
    });
    assert!(matches!(
        error,
        Error::GlobalScale {
            operand: "product of the global scales",
            ..
        }
    ));
}

#[test]
fn overlaps() {
    let (m, n, k, l) = SHAPE;
    let code_bytes = (l * m * k / 2) as u64;
    let output_bytes = (l * n * m * 2) as u64;
    for (operand, address) in [
        ("weight codes", 0x1000_0000 + code_bytes - 2),
        ("weight codes", 0x1000_0000 - output_bytes + 2),
        ("weight scales", 0x2000_0000),
        ("row alpha", 0x3000_0000),
        ("vector codes", 0x4000_0000 + 2 * 128 * 32),
        ("vector scales", 0x5000_0000),
        ("vector global scales", 0x6000_0000),
    ] {
        assert_eq!(
            refusal(|c| c.output.address = address),
            Error::OutputOverlaps { operand },
            "{address:#x}"
        );
    }
}

#[test]
fn configurations_without_a_kernel() {
    for (blocks_per_load, warps, k_split) in [(0, 4, 1), (3, 4, 1), (1, 0, 1), (1, 9, 1), (1, 4, 3)]
    {
        let error = refusal(|c| {
            c.config = CudaCoreConfig {
                blocks_per_load,
                warps,
                k_split,
                ..c.config
            };
        });
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
    // Integer dot: no CTAs; vectors that are not NVFP4; vectors larger than shared memory.
    let integer_dot = |call: &mut Call, ctas| {
        call.config.kernel = CudaCoreKernel::IntegerDot;
        call.config.ctas = ctas;
    };
    for error in [
        refusal(|c| integer_dot(c, 0)),
        refusal(|c| {
            integer_dot(c, 1);
            c.vectors = dense(0x4000_0000, 128, 256);
        }),
        refusal(|c| {
            integer_dot(c, 1);
            c.shape = (1, 2, 65536, 1);
            vectors!(c, code_strides.row = 32768);
            vectors!(c, scale_strides.row = 4096);
        }),
    ] {
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
    // 16-byte loads of rows that are not.
    let error = refusal(|c| c.shape.2 = 48);
    assert!(matches!(error, Error::Config { .. }), "{error}");
}

/// A device with 32-byte loads, if this build has code for it.
fn b200() -> Option<raw::DeviceInfo> {
    let carried = raw::COMPILED_ARCHS.split(';').any(|arch| arch == "100a");
    carried.then(|| raw::DeviceInfo {
        compute_capability: (10, 0),
        multiprocessors: 148,
        shared_bytes: 227 << 10,
        ..device()
    })
}

#[test]
fn four_blocks_a_load_need_blackwell_and_alignment() {
    let wide = |call: &mut Call| {
        call.shape = (256, 1, 512, 1);
        vectors!(call, code_strides.row = 256);
        vectors!(call, scale_strides.row = 32);
        call.config.kernel = CudaCoreKernel::IntegerDot;
        call.config.ctas = 1;
        call.config.blocks_per_load = 4;
    };
    // On a Hopper.
    let error = refusal(wide);
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(error.to_string().contains("blocks a load are 1, 2 or"));

    let Some(b200) = b200() else { return };
    let mut call = valid();
    wide(&mut call);
    let blocks = |k: usize, codes: u64, scales: u64, device: &raw::DeviceInfo| {
        let shape = Shape::gemv(256, k, 1).unwrap();
        raw::most_blocks_per_load(&shape, codes, scales, device)
    };
    assert_eq!(blocks(512, 64, 4, &b200), 4);
    assert_eq!(blocks(512, 64, 4, &device()), 2);
    assert_eq!(blocks(96, 64, 4, &b200), 2);
    assert_eq!(blocks(80, 64, 4, &b200), 1);
    assert_eq!(blocks(512, 16, 4, &b200), 2);
    assert_eq!(blocks(512, 8, 4, &b200), 1);
    assert_eq!(blocks(512, 64, 2, &b200), 2);
    assert_eq!(blocks(512, 64, 1, &b200), 1);

    let shape = Shape::new(256, 1, 512, 1).unwrap();
    let vectors = call.vectors;
    let default = |weights: &Weights| {
        raw::default_config(Path::CudaCore, &shape, weights, &vectors, &b200).unwrap()
    };
    let Config::CudaCore(config) = default(&call.weights) else {
        panic!("not the integer-dot kernel")
    };
    assert_eq!(config.blocks_per_load, 4);
    let candidates = raw::candidates(Path::CudaCore, &shape, &call.weights, &call.vectors, &b200);
    let widths: std::collections::BTreeSet<u32> = candidates
        .iter()
        .filter_map(|config| match config {
            Config::CudaCore(config) => Some(config.blocks_per_load),
            _ => None,
        })
        .collect();
    assert_eq!(widths, [2, 4].into());

    // Codes that 32-byte loads cannot have: another default, and a refusal of what was forced.
    call.weights.codes += 16;
    assert_ne!(default(&call.weights), Config::CudaCore(config));
    let refused = raw::prepare(
        &shape,
        &call.weights,
        &call.vectors,
        &call.output,
        &config.into(),
        &b200,
    );
    assert!(matches!(refused, Err(Error::Config { .. })));
}

#[test]
fn nothing_to_do_is_no_error() {
    let call = valid();
    for shape in [
        Shape::gemv(0, 16, 1).unwrap(),
        Shape::gemv(1, 16, 0).unwrap(),
    ] {
        let nothing = Weights {
            codes: 0,
            scales: 0,
            ..call.weights
        };
        let output = Output {
            address: 0,
            ..call.output
        };
        // SAFETY: an empty shape touches no address.
        unsafe {
            raw::cuda_core(
                &shape,
                &nothing,
                &call.vectors,
                &output,
                &call.config,
                &device(),
                std::ptr::null_mut(),
            )
        }
        .unwrap();
    }
}

/// On a machine without a driver or device, what a user sees says so.
#[test]
fn no_driver_or_device_is_a_typed_error() {
    let versions = raw::versions().unwrap();
    assert!(versions.runtime >= (12, 9));
    match raw::device_count() {
        Ok(count) => assert!(count > 0),
        Err(Error::NoDriver { reason }) => {
            assert!(!reason.is_empty());
            if versions.driver.is_none() {
                assert!(reason.contains("libcuda"), "{reason}");
            }
            assert!(matches!(raw::device_info(0), Err(Error::NoDriver { .. })));
        }
        Err(Error::NoDevice { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn nothing_to_do_is_prepared_and_launched_without_a_device() {
    let call = valid();
    for (m, l) in [(0, 1), (8, 0)] {
        let shape = Shape::new(m, 1, 64, l).unwrap();
        let prepared = raw::prepare(
            &shape,
            &call.weights,
            &call.vectors,
            &call.output,
            &call.config.into(),
            &device(),
        )
        .unwrap();
        assert_eq!(prepared.config(), call.config.into());
        // SAFETY: no kernel is launched, so no address is used, and no context.
        unsafe { prepared.clone().launch(std::ptr::null_mut()) }.unwrap();
    }
}

#[test]
fn prepared_calls_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<raw::Prepared>();
    crosses::<nvfp4_gemv::PreparedGemv>();
    crosses::<nvfp4_gemv::tune::Tuned>();
}
