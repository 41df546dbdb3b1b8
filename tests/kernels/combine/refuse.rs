//! Refusals of the sum of experts, before CUDA is called.

use nvfp4_gemv::kernel::combine::Combine;
use nvfp4_gemv::raw;
use nvfp4_gemv::{Error, FloatType, RawOutput, Strides};

use crate::refuses;
use crate::support::sized;

crate::trials! {
    host: null_pointers, misaligned, strides, overlaps, nothing_to_do_is_no_error;
}

const M: usize = 64;
const N: usize = 3;
const SLOTS: usize = 4;

fn valid() -> Combine {
    Combine {
        slots: SLOTS,
        element: FloatType::F32,
        inputs: 0x1000_0000,
        weights: 0x2000_0000,
        ids: 0x3000_0000,
        output: RawOutput {
            residual: 0x4000_0000,
            ..RawOutput::packed(0x5000_0000, FloatType::Bf16)
        },
        chained: false,
    }
}

fn refusal(change: impl FnOnce(&mut Combine)) -> Error {
    let mut call = valid();
    change(&mut call);
    let shape = sized(M, N, 16, 1);
    // SAFETY: not upheld on purpose; every call here must be refused before the addresses are used.
    unsafe { raw::combine(&shape, &call, std::ptr::null_mut()) }.unwrap_err()
}

fn null_pointers() {
    let null = |operand| Error::NullPointer { operand };
    refuses!(|c| c.inputs = 0 => null("results of experts"));
    refuses!(|c| c.weights = 0 => null("weights of experts"));
    refuses!(|c| c.output.address = 0 => null("output"));
}

fn misaligned() {
    let bad = |operand, value, align| Error::Misaligned {
        operand,
        value,
        align,
    };
    refuses!(|c| c.inputs += 2 => bad("results of experts", 0x1000_0002, 4));
    refuses!(|c| c.weights += 2 => bad("weights of experts", 0x2000_0002, 4));
    refuses!(|c| c.ids += 1 => bad("ids of experts", 0x3000_0001, 4));
    refuses!(|c| c.output.residual += 1 => bad("residual", 0x4000_0001, 2));
    refuses!(|c| c.output.address += 1 => bad("output", 0x5000_0001, 2));
}

fn strides() {
    let row = |row| Some(Strides { row, batch: 0 });
    refuses!(|c| c.output.strides = row(2 * M - 2) => Error::StrideTooSmall {
        operand: "output", unit: "bytes", stride: 2 * M - 2, needed: 2 * M
    });
    refuses!(|c| c.output.strides = row(2 * M + 1) => Error::Misaligned {
        operand: "output", value: 2 * M as u64 + 1, align: 2
    });
    let error = refusal(|c| c.slots = usize::MAX);
    assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
}

fn overlaps() {
    let overlap = |operand, other| Error::Overlap { operand, other };
    let output = "output";
    refuses!(|c| c.output.address = c.inputs + (M * N * SLOTS * 4) as u64 - 2 => overlap(output, "results of experts"));
    refuses!(|c| c.output.address = c.weights + 4 => overlap(output, "weights of experts"));
    refuses!(|c| c.output.address = c.ids + 4 => overlap(output, "ids of experts"));
    refuses!(|c| c.output.residual = c.output.address + 2 => overlap(output, "residual"));
}

fn nothing_to_do_is_no_error() {
    for (m, n) in [(0, N), (M, 0)] {
        // SAFETY: an empty shape touches no address.
        unsafe { raw::combine(&sized(m, n, 16, 1), &valid(), std::ptr::null_mut()) }.unwrap();
    }
}
