//! Refusals of a call by address, before anything is chosen.

use nvfp4_gemv::kernel::{Call, Job};
use nvfp4_gemv::{
    Activation, Config, Error, FloatType, GlobalScale, Gpu, Kernel, Options, RawOutput, RawSelect,
    RawVectors, RawWeights, RawWorkspace, Refusal, ScaleLayout, Shape, Strides, Target, dispatch,
    select,
};

use crate::refuses;
use crate::support::{nowhere, sized};

crate::trials! {
    host:
        null_pointers,
        misaligned_pointers_and_strides,
        small_strides,
        strides_past_the_address_range,
        global_scales,
        overlaps,
        additions,
        shared_vectors,
        selections,
        workspaces,
        nothing_to_do_is_no_error;
}
#[cfg(feature = "device")]
pub(crate) mod without_a_gpu {
    use nvfp4_gemv::{Error, raw};

    crate::trials! {
        host: no_driver_or_device_is_a_typed_error;
    }

    /// On a machine without a driver or device, what a user sees says so.
    fn no_driver_or_device_is_a_typed_error() {
        let versions = raw::versions().unwrap();
        // Without linked kernels there is no runtime.
        let runtime = !raw::COMPILED_ARCHS.is_empty();
        assert_eq!(versions.runtime.is_some_and(|v| v >= (12, 9)), runtime);
        match raw::device_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::NoDriver { reason }) => {
                assert!(!reason.is_empty());
                if versions.driver.is_none() {
                    assert!(reason.contains("libcuda"), "{reason}");
                }
                assert!(matches!(raw::gpu(0), Err(Error::NoDriver { .. })));
            }
            Err(Error::NoDevice { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

const SHAPE: (usize, usize, usize, usize) = (130, 2, 64, 3);

struct Operands {
    shape: Shape,
    weights: RawWeights,
    vectors: RawVectors,
    output: RawOutput,
}

fn operands() -> Operands {
    let (m, n, k, l) = SHAPE;
    let shape = sized(m, n, k, l);
    Operands {
        shape,
        weights: nowhere::weights(ScaleLayout::Tiled128x4),
        vectors: nowhere::vectors(&shape, ScaleLayout::Linear),
        output: nowhere::OUTPUT,
    }
}

fn refusal(change: impl FnOnce(&mut Operands)) -> Error {
    let mut c = operands();
    let call = |c: &Operands| Call::new(&c.shape, &c.weights, &c.vectors, &c.output);
    assert!(call(&c).is_ok());
    change(&mut c);
    call(&c).unwrap_err()
}

/// Changes the NVFP4 vectors of a call.
macro_rules! vectors {
    ($call:ident, $field:ident $(. $part:ident)* = $value:expr) => {
        if let RawVectors::Nvfp4 { $field, .. } = &mut $call.vectors {
            #[allow(unused_assignments)]
            { (*$field) $(. $part)* = $value; }
        }
    };
}

fn dense(values: u64, row: usize, batch: usize) -> RawVectors {
    RawVectors::Dense {
        element: FloatType::F16,
        values,
        strides: Strides { row, batch },
    }
}

fn null_pointers() {
    let null = |operand| Error::NullPointer { operand };
    refuses!(|c| c.weights.codes = 0 => null("weight codes"));
    refuses!(|c| c.weights.scales = 0 => null("weight scales"));
    refuses!(|c| vectors!(c, codes = 0) => null("vector codes"));
    refuses!(|c| vectors!(c, scales = 0) => null("vector scales"));
    refuses!(|c| c.vectors = dense(0, 128, 256) => null("vectors"));
    refuses!(|c| c.output.address = 0 => null("output"));
}

fn misaligned_pointers_and_strides() {
    let bad = |operand, value, align| Error::Misaligned {
        operand,
        value,
        align,
    };
    refuses!(|c| c.weights.codes += 4 => bad("weight codes", 0x10_0000_0004, 8));
    refuses!(|c| c.weights.scales += 2 => bad("weight scales", 0x20_0000_0002, 4));
    refuses!(|c| c.weights.row_alpha += 2 => bad("row alpha", 0x30_0000_0002, 4));
    refuses!(|c| vectors!(c, codes = 0x40_0000_0001) => bad("vector codes", 0x40_0000_0001, 8));
    refuses!(|c| vectors!(c, code_strides.row = 36) => bad("vector codes", 36, 8));
    refuses!(|c| vectors!(c, code_strides.batch = 4097) => bad("vector codes", 4097, 8));
    refuses!(|c| vectors!(c, vector_alpha = 0x60_0000_0001) => bad("vector global scales", 0x60_0000_0001, 4));
    refuses!(|c| c.vectors = dense(0x40_0000_0008, 128, 256) => bad("vectors", 0x40_0000_0008, 16));
    refuses!(|c| c.vectors = dense(0x40_0000_0000, 136, 512) => bad("vectors", 136, 16));
    refuses!(|c| c.output.address += 1 => bad("output", 0x70_0000_0001, 2));
    refuses!(|c| {
        c.output.address += 2;
        c.output.element = FloatType::F32;
    } => bad("output", 0x70_0000_0002, 4));
}

fn small_strides() {
    let small = |operand, stride, needed| Error::StrideTooSmall {
        operand,
        unit: "bytes",
        stride,
        needed,
    };
    refuses!(|c| vectors!(c, code_strides.row = 24) => small("vector codes", 24, 32));
    refuses!(|c| vectors!(c, code_strides.batch = 56) => small("vector codes", 56, 64));
    refuses!(|c| vectors!(c, scale_strides.row = 3) => small("vector scales", 3, 4));
    refuses!(|c| {
        vectors!(c, layout = ScaleLayout::Tiled128x4);
        vectors!(c, scale_strides.batch = 511);
    } => small("vector scales", 511, 512));
    refuses!(|c| c.vectors = dense(0x40_0000_0000, 112, 256) => small("vectors", 112, 128));
}

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

fn global_scales() {
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for scale in [GlobalScale::Multiplier(value), GlobalScale::Divisor(value)] {
            refuses!(|c| c.weights.global = scale => like Error::GlobalScale { operand: "weight global scale", .. });
            refuses!(|c| vectors!(c, global = scale) => like Error::GlobalScale { operand: "vector global scale", .. });
        }
    }
    refuses!(|c| {
        c.weights.global = GlobalScale::Multiplier(1e-30);
        vectors!(c, global = GlobalScale::Multiplier(1e-30));
    } => like Error::GlobalScale { operand: "product of the global scales", .. });
}

fn overlaps() {
    let (m, n, k, l) = SHAPE;
    let code_bytes = (l * m * k / 2) as u64;
    let output_bytes = (l * n * m * 2) as u64;
    for (operand, address) in [
        ("weight codes", 0x10_0000_0000 + code_bytes - 2),
        ("weight codes", 0x10_0000_0000 - output_bytes + 2),
        ("weight scales", 0x20_0000_0000),
        ("row alpha", 0x30_0000_0000),
        ("vector codes", 0x40_0000_0000 + 2 * 128 * 32),
        ("vector scales", 0x50_0000_0000),
        ("vector global scales", 0x60_0000_0000),
    ] {
        assert_eq!(
            refusal(|c| c.output.address = address),
            Error::OutputOverlaps { operand },
            "{address:#x}"
        );
    }
}

/// Numbers that are added to results, and their strides and addresses.
fn additions() {
    let (m, n, _, l) = SHAPE;
    let at = 0x80_0000_0000;
    // A residual may be at the output's own address or apart from the output, and nowhere else.
    refuses_nothing(|c| (c.output.bias, c.output.residual) = (at, c.output.address));
    refuses_nothing(|c| c.output.residual = at);
    let bytes = (l * n * m * 2) as u64;
    for residual in [2, bytes - 2].map(|by| nowhere::OUTPUT.address + by) {
        let operand = "residual";
        refuses!(|c| c.output.residual = residual => Error::OutputOverlaps { operand });
    }
    let operand = "bias";
    refuses!(|c| c.output.bias = c.output.address + bytes - 4 => Error::OutputOverlaps { operand });
    for (operand, change) in [
        (
            "bias",
            (|c, at| c.output.bias = at) as fn(&mut Operands, u64),
        ),
        ("residual", |c, at| c.output.residual = at),
    ] {
        refuses!(|c| change(c, at + 1) => like Error::Misaligned { operand: o, .. } if o == operand);
    }
    let strides = |row, batch| Some(Strides { row, batch });
    let row = 2 * m;
    refuses_nothing(|c| c.output.strides = strides(row + 2, n * (row + 2)));
    let small = |stride, needed| Error::StrideTooSmall {
        operand: "output",
        unit: "bytes",
        stride,
        needed,
    };
    refuses!(|c| c.output.strides = strides(row - 2, 4 * row) => small(row - 2, row));
    refuses!(|c| c.output.strides = strides(row, row + 2) => small(row + 2, n * row));
    refuses!(|c| c.output.strides = strides(row + 1, 4 * row) => like Error::Misaligned { operand: "output", .. });
    assert_eq!(
        refusal(|c| c.output.strides = strides(1 << 32, 1 << 34)),
        Error::StrideTooLarge {
            operand: "output",
            stride: 1 << 31,
            most: i32::MAX as usize,
        }
    );
}

/// Batches may have the same vectors, whose batch stride is 0; no other stride is too small.
fn shared_vectors() {
    refuses_nothing(|c| {
        vectors!(c, code_strides.batch = 0);
        vectors!(c, scale_strides.batch = 0);
    });
    refuses_nothing(|c| c.vectors = dense(0x40_0000_0000, 128, 0));
    refuses!(|c| c.vectors = dense(0x40_0000_0000, 128, 16) => like Error::StrideTooSmall { stride: 16, .. });
    let strides = Some(Strides { row: 260, batch: 0 });
    refuses!(|c| c.output.strides = strides => like Error::StrideTooSmall { operand: "output", .. });
}

/// A selection of matrices, which kernels take or refuse; its ids are an operand as others are.
fn selections() {
    let at = 0x80_0000_0000;
    let select = |ids, matrices| {
        Some(RawSelect {
            ids,
            late: false,
            distinct: false,
            matrices,
        })
    };
    // More matrices than batches, and fewer.
    refuses_nothing(|c| c.weights.select = select(at, 100));
    refuses_nothing(|c| c.weights.select = select(at, 1));
    refuses!(|c| c.weights.select = select(at, 0) => like Error::Select { matrices: 0, .. });
    refuses!(|c| c.weights.select = select(at, Shape::MAX_DIM + 1) => like Error::SizeOverflow { .. });
    refuses!(|c| c.weights.select = select(0, 1) => Error::NullPointer { operand: "select" });
    refuses!(|c| c.weights.select = select(at + 2, 1) => like Error::Misaligned { operand: "select", .. });
    let operand = "select";
    refuses!(|c| c.weights.select = select(c.output.address + 4, 1) => Error::OutputOverlaps { operand });
    // The call has all matrices, not only as many as there are batches.
    let (m, _, k, _) = SHAPE;
    let operand = "weight codes";
    refuses!(|c| {
        c.output.address = c.weights.codes + (99 * m * k / 2) as u64;
        c.weights.select = select(at, 100);
    } => Error::OutputOverlaps { operand });
    let shape = operands().shape;
    let operands = nvfp4_gemv::Operands {
        select: true,
        matrices: 4,
        ..nvfp4_gemv::Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4)
            .with_workspace(u64::MAX)
    };
    for compute_capability in [(9, 0), (10, 0), (12, 0)] {
        let gpu = Gpu::of_compute_capability(compute_capability, "90a;100f;120f");
        let job = Job::new(&shape, &operands, &gpu);
        for kernel in Kernel::ALL {
            // A kernel that refuses the call without a selection, too, gives that other reason.
            let plain = nvfp4_gemv::Operands {
                select: false,
                ..operands
            };
            let without = kernel.available(&Job::new(&shape, &plain, &gpu));
            let expected = match kernel {
                Kernel::Direct | Kernel::Ring | Kernel::Packed => without,
                // It takes a selection where rows are whole steps.
                Kernel::Stream => without.and(Err(Refusal::SelectWhole)),
                _ => without.and(Err(Refusal::Select)),
            };
            assert_eq!(kernel.available(&job), expected, "{kernel}");
        }
    }
    let gpu = Gpu::of_compute_capability((9, 0), "90a");
    let whole = sized(128, 1, 256, 2);
    assert_eq!(
        Kernel::Stream.available(&Job::new(&whole, &operands, &gpu)),
        Ok(())
    );
}

fn refuses_nothing(change: impl FnOnce(&mut Operands)) {
    let mut c = operands();
    change(&mut c);
    Call::new(&c.shape, &c.weights, &c.vectors, &c.output).expect("a valid call");
}

/// Workspaces that calls do not take; and kernels that want one.
fn workspaces() {
    let (m, n, k, l) = SHAPE;
    let shape = sized(m, n, k, l);
    let layout = ScaleLayout::Tiled128x4;
    let weights = nowhere::weights(layout);
    let vectors = nowhere::vectors(&shape, layout);
    let call = Call::new(&shape, &weights, &vectors, &nowhere::OUTPUT).unwrap();
    let with = |address, bytes| call.with_workspace(RawWorkspace { address, bytes });
    let address = 0x80_0000_0000;
    assert_eq!(with(address, 4096).unwrap().operands().workspace, 4096);
    assert_eq!(
        with(0, 0),
        Ok(call.with_workspace(RawWorkspace::NONE).unwrap())
    );
    assert_eq!(
        with(0, 4096),
        Err(Error::NullPointer {
            operand: "workspace"
        })
    );
    assert_eq!(
        with(address + 128, 4096),
        Err(Error::Misaligned {
            operand: "workspace",
            value: address + 128,
            align: RawWorkspace::ALIGNMENT,
        })
    );
    for (other, address) in [
        ("weight codes", 0x10_0000_0000 - 256),
        ("weight scales", 0x20_0000_0000),
        ("row alpha", 0x30_0000_0000),
        ("vector codes", 0x40_0000_0000),
        ("vector scales", 0x50_0000_0000),
        ("vector global scales", 0x60_0000_0000),
        ("output", nowhere::OUTPUT.address),
    ] {
        let operand = "workspace";
        assert_eq!(with(address, 4096), Err(Error::Overlap { operand, other }));
    }

    let gpu = Gpu::of_compute_capability((9, 0), "90a");
    let packed = Options::new().kernel(Kernel::Packed);
    let operands = call.operands();
    let needed = dispatch::workspace_bytes(&shape, &operands, &gpu, &packed).unwrap();
    // Counters; three batches of a span of 256 elements for eight vectors, as f16; and two sums of 256 rows for each
    // multiprocessor.
    assert_eq!(needed, 8192 + 3 * 256 * 8 * 2 + 132 * 2 * 256 * 8 * 4);
    let choose = |operands| select(&shape, &operands, Target::Gpu(&gpu), &packed);
    let config = choose(operands.with_workspace(needed)).unwrap().config;
    assert!(matches!(config, Some(Config::Packed(_))));
    for given in [0, needed - 1] {
        let error = choose(operands.with_workspace(given)).unwrap_err();
        let reason = Refusal::Workspace { needed, given };
        assert_eq!(
            error,
            Error::KernelUnavailable {
                kernel: "packed",
                reason
            }
        );
        let says = format!("a workspace of {needed} bytes");
        assert!(error.to_string().contains(&says));
    }
    // Dispatch without a workspace chooses a kernel that needs none.
    let any = Options::new().without_environment();
    let choice = select(&shape, &operands, Target::Gpu(&gpu), &any).unwrap();
    assert_ne!(choice.kernel(), Some(Kernel::Packed));
}

fn nothing_to_do_is_no_error() {
    for (m, n, k, l) in [(0, 1, 16, 1), (1, 1, 16, 0), (0, 2, 64, 1)] {
        let shape = sized(m, n, k, l);
        let weights = RawWeights {
            codes: 0,
            scales: 0,
            ..nowhere::weights(ScaleLayout::Linear)
        };
        let output = RawOutput {
            address: 0,
            ..nowhere::OUTPUT
        };
        let call = Call::new(&shape, &weights, &dense(0, 0, 0), &output).unwrap();
        #[cfg(feature = "device")]
        {
            // No kernel is launched, so no address is used, and no context.
            let gpu = Gpu::of_compute_capability((9, 0), "90a");
            let options = Options::new().without_environment();
            let prepared = nvfp4_gemv::raw::PreparedRawGemv::new(&call, &gpu, &options).unwrap();
            assert!(prepared.plan().launches().is_empty());
            // SAFETY: as above.
            unsafe { prepared.run(std::ptr::null_mut()) }.unwrap();
        }
        assert_eq!(*call.shape(), shape);
    }
}
