//! Descriptors, field by field.

use ptx_sim::models::idesc::{Accumulator, Element, Idesc, Kind, ScaleType};
use ptx_sim::models::smem_desc::SmemDesc;

use super::trial::{BLACKWELL, Kernels, bytes32};

crate::trials! {
    simulator: matrices, instructions;
}

/// "Shared memory descriptor": the fields of a matrix descriptor.
fn matrix(address: u32, stride: u32, swizzle: u64) -> u64 {
    let field = |value: u64, first: u32, last: u32| {
        assert!(value < 1 << (last - first + 1));
        value << first
    };
    field(u64::from(address & 0x3_ffff) >> 4, 0, 13)    // matrix start address
        | field(0, 16, 29)                              // leading dimension byte offset
        | field(u64::from(stride & 0x3_ffff) >> 4, 32, 45) // stride dimension byte offset
        | field(0b001, 46, 48)                          // fixed constant
        | field(0, 49, 51)                              // matrix base offset
        | field(0, 52, 52)                              // leading dimension: relative
        | field(0, 53, 60)                              // fixed constant
        | field(swizzle, 61, 63) // 0 none, 1 128 bytes in atoms of 32, 2 128, 4 64, 6 32 bytes
}

/// "Instruction descriptor": kind::mxf4nvf4.
fn instruction(n: u32) -> u32 {
    // A and B types in bits 7-9 and 10-11: E2M1 is 1.
    let types = 1 << 7 | 1 << 10;
    let (n, m) = (n / 8, 1); // in eights and in 128s
    // N in 17-22, scale type in 23: UE4M3 is 0; M in 27-28. Scale ids, negations, majorness,
    // sparsity: all 0.
    types | n << 17 | m << 27
}

fn matrices() {
    let kernels = Kernels::new("tensor_memory", BLACKWELL);
    for (address, stride, swizzle) in [
        (0, 0, 0),
        (1024, 1024, 2),
        (0x2_0040, 128, 0),
        (0x3_8ff0, 0x3_fff0, 6),
        (232_448 - 512, 512, 4),
        (0x100_0400, 256, 1), // a peer's address: the upper bits are not the descriptor's
    ] {
        let mut trial = kernels.trial("descriptors", [1, 1, 1], [1, 1, 1]);
        trial = trial.output(24).words(&[address, stride, swizzle as u32]);
        let want = [
            matrix(address, stride, swizzle),
            matrix(address, 1024, 2),
            matrix(address, 128, 0),
        ];
        trial.gives(&want.map(u64::to_le_bytes).concat());
        for descriptor in want {
            let decoded = SmemDesc::decode(descriptor).unwrap();
            assert_eq!(decoded.encode(), descriptor);
        }
        let other = trial.set_from_last(1, stride ^ 16);
        other.differs(&want.map(u64::to_le_bytes).concat());
    }
}

fn instructions() {
    let kernels = Kernels::new("tensor_memory", BLACKWELL);
    let mut trial = kernels.trial("instructions", [1, 1, 1], [32, 1, 1]);
    trial = trial.output(128);
    trial.gives(&bytes32((1..=32).map(|i| instruction(8 * i))));
    for n in [16, 64, 128] {
        let decoded = Idesc::decode(instruction(n), Kind::Mxf4nvf4).unwrap();
        let e2m1 = Element::E2m1;
        let mut want = Idesc::dense(Kind::Mxf4nvf4, e2m1, e2m1, Accumulator::F32, 128, n);
        want.scale = ScaleType::Ue4m3;
        assert_eq!(decoded, want);
    }
}
