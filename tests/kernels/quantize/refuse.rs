//! Refusals of the quantiser: it refuses before CUDA is called, so no GPU is needed. A call that got through would fail
//! with `NoDriver` here, or crash on these addresses.

use nvfp4_gemv::kernel::quantize::{Global, Input, Quantize};
use nvfp4_gemv::raw;
use nvfp4_gemv::{Error, FloatType, Gate, GlobalScale, RowOrder, ScaleLayout, Strides};

use crate::refuses;
use crate::support::sized;

crate::trials! {
    host: null_pointers, misaligned_pointers_and_strides, strides, global_scales, digits, gates_and_norms, copies, overlaps,
        nothing_to_do_is_no_error;
}

const N: usize = 3;
const K: usize = 64;
const L: usize = 2;

/// Addresses far apart and well aligned.
fn valid() -> Quantize {
    Quantize {
        element: FloatType::F16,
        input: Input::Plain,
        chained: false,
        early: false,
        copies: 1,
        digits: 1,
        values: 0x1000_0000,
        strides: Strides {
            row: 2 * K,
            batch: 2 * K * N,
        },
        global: Global::PerVector(0x2000_0000),
        codes: 0x3000_0000,
        scales: 0x4000_0000,
        layout: ScaleLayout::Tiled128x4,
        vector_alpha: 0x5000_0000,
    }
}

fn refusal(change: impl FnOnce(&mut Quantize)) -> Error {
    let mut call = valid();
    change(&mut call);
    let shape = sized(0, N, K, L);
    // SAFETY: not upheld on purpose; every call here must be refused before the addresses are used.
    unsafe { raw::quantize(&shape, &call, std::ptr::null_mut()) }.unwrap_err()
}

fn null_pointers() {
    let null = |operand| Error::NullPointer { operand };
    refuses!(|c| c.values = 0 => null("vectors"));
    refuses!(|c| c.global = Global::PerVector(0) => null("given global scales"));
    refuses!(|c| c.codes = 0 => null("quantised codes"));
    refuses!(|c| c.scales = 0 => null("quantised scales"));
    refuses!(|c| c.vector_alpha = 0 => null("vector global scales"));
}

fn misaligned_pointers_and_strides() {
    let bad = |operand, value, align| Error::Misaligned {
        operand,
        value,
        align,
    };
    refuses!(|c| c.values += 8 => bad("vectors", 0x1000_0008, 16));
    refuses!(|c| c.strides.row = 136 => bad("vectors", 136, 16));
    refuses!(|c| c.strides.batch = 392 => bad("vectors", 392, 16));
    refuses!(|c| c.global = Global::PerVector(0x2000_0002) => bad("given global scales", 0x2000_0002, 4));
    refuses!(|c| c.codes += 4 => bad("quantised codes", 0x3000_0004, 8));
    refuses!(|c| c.scales += 8 => bad("quantised scales", 0x4000_0008, 16));
    refuses!(|c| c.vector_alpha += 1 => bad("vector global scales", 0x5000_0001, 4));
}

fn strides() {
    let small = |stride, needed| Error::StrideTooSmall {
        operand: "vectors",
        unit: "bytes",
        stride,
        needed,
    };
    refuses!(|c| c.strides.row = 112 => small(112, 128));
    refuses!(|c| c.strides.batch = 368 => small(368, 384));
    refuses!(|c| c.element = FloatType::F32 => small(128, 256));
    for error in [
        refusal(|c| c.strides.batch = usize::MAX - 15),
        refusal(|c| c.strides.row = usize::MAX - 15),
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
    // A divisor's reciprocal counts.
    for global in [
        GlobalScale::Multiplier(0.0),
        GlobalScale::Multiplier(-1.0),
        GlobalScale::Multiplier(f32::NAN),
        GlobalScale::Divisor(f32::INFINITY),
        GlobalScale::Divisor(1e-45),
    ] {
        let error = refusal(|c| c.global = Global::Shared(global));
        let operand = "given global scale";
        assert!(matches!(error, Error::GlobalScale { operand: o, .. } if o == operand));
    }
}

fn overlaps() {
    let vectors = (L * N * K * 2) as u64;
    let overlap = |operand, other| Error::Overlap { operand, other };
    refuses!(|c| c.codes = c.values + vectors - 8 => overlap("quantised codes", "vectors"));
    refuses!(|c| c.scales = c.values - 16 => overlap("quantised scales", "vectors"));
    refuses!(|c| c.scales = c.codes + 32 => overlap("quantised scales", "quantised codes"));
    // The padding of the second batch.
    refuses!(|c| c.vector_alpha = c.scales + 1020 => overlap("vector global scales", "quantised scales"));
    refuses!(|c| c.vector_alpha = 0x2000_0000 => overlap("vector global scales", "given global scales"));
}

fn digits() {
    let error = |digits, takes| Error::Digits { digits, takes };
    for digits in [0, 6, usize::MAX] {
        refuses!(|c| c.digits = digits => error(digits, "a vector has 1 to 5"));
    }
    let one =
        "what a gate or an RMSNorm makes has one, and so have vectors with given global scales";
    refuses!(|c| c.digits = 3 => error(3, one)); // with given global scales
    refuses!(|c| { c.digits = 3; c.global = Global::Computed; c.input = Input::Normed { weight: 1 << 20, epsilon: 1.0 } }
             => error(3, one));
    // All digits are written.
    let codes = (3 * L * N * K / 2) as u64;
    refuses!(|c| { c.digits = 3; c.global = Global::Computed; c.vector_alpha = c.codes + codes - 4 }
             => Error::Overlap { operand: "vector global scales", other: "quantised codes" });
}

fn gates_and_norms() {
    let factor = |operand, value| Error::Factor { operand, value };
    let overlap = |operand, other| Error::Overlap { operand, other };
    let norm = |weight, epsilon| Input::Normed { weight, epsilon };
    let gated = |alpha, limit| Input::Gated {
        gate: Gate::Clamped { alpha, limit },
        order: RowOrder::Stacked,
    };
    const EPSILON: &str = "epsilon of the RMSNorm";
    const WEIGHT: &str = "weight of the RMSNorm";
    const INF: f32 = f32::INFINITY;
    const AT: u64 = 0x6000_0000;
    refuses!(|c| c.input = norm(AT, 0.0) => factor(EPSILON, 0.0));
    refuses!(|c| c.input = norm(AT, INF) => factor(EPSILON, INF));
    refuses!(|c| c.input = norm(0, 1e-5) => Error::NullPointer { operand: WEIGHT });
    refuses!(|c| c.input = norm(AT + 8, 1e-5) => Error::Misaligned { operand: WEIGHT, value: AT + 8, align: 16 });
    refuses!(|c| { c.input = norm(AT, 1e-5); c.vector_alpha = AT + 2 * 60 } => overlap("vector global scales", WEIGHT));
    refuses!(|c| c.input = gated(-1.0, 7.0) => factor("alpha of the gate", -1.0));
    refuses!(|c| c.input = gated(1.0, INF) => factor("limit of the gate", INF));
    // Vectors that are gated have twice as many elements.
    let (given, needed) = (2 * K, 4 * K);
    refuses!(|c| c.input = gated(1.0, 7.0) => Error::StrideTooSmall {
        operand: "vectors", unit: "bytes", stride: given, needed
    });
}

fn copies() {
    let error = |copies| Error::Copies { copies, batches: L };
    refuses!(|c| c.copies = 0 => error(0));
    refuses!(|c| c.copies = 3 => error(3));
    refuses!(|c| c.copies = usize::MAX => error(usize::MAX));
}

fn nothing_to_do_is_no_error() {
    let mut call = valid();
    call.codes = 0;
    for (n, l) in [(N, 0), (0, 1)] {
        let nothing = sized(1, n, K, l);
        // SAFETY: an empty shape touches no address.
        unsafe { raw::quantize(&nothing, &call, std::ptr::null_mut()) }.unwrap();
    }
}
