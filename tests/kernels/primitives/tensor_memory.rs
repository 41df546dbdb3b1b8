//! Tensor memory: allocation, and which lane and column a byte of scales gets to.

use super::trial::{BLACKWELL, Kernels, bytes32, noise};

crate::trials! {
    simulator: allocations, scales;
}

/// Columns that an allocation has.
fn columns(output: &[u8], columns: u32) -> std::ops::Range<u32> {
    let address = u32::from_le_bytes(output.try_into().unwrap());
    assert_eq!(address >> 16, 0, "lane 0");
    assert!(address + columns <= 512);
    address..address + columns
}

fn allocations() {
    let kernels = Kernels::new("tensor_memory", BLACKWELL);
    let trial = |first, second| {
        let trial = kernels.trial("allocations", [1, 1, 1], [32, 1, 1]);
        trial.output(8).words(&[first, second, 0])
    };
    for (first, second) in [(32, 32), (64, 32), (128, 64), (256, 256)] {
        for outcome in trial(first, second).outcomes() {
            let out = outcome.unwrap();
            let (a, b) = (columns(&out[..4], first), columns(&out[4..], second));
            assert!(a.end <= b.start || b.end <= a.start, "{a:?} {b:?}");
        }
    }
    trial(64, 32).wrong(1).is_refused(&["relinquish"]);
    trial(64, 32)
        .wrong(2)
        .is_refused(&["without tcgen05.dealloc"]);
    trial(64, 32)
        .wrong(3)
        .is_refused(&["matches no allocation"]);
    trial(48, 32).is_refused(&["48"]);
    trial(16, 16).is_refused(&["16"]);
    trial(512, 32).is_refused(&["deadlock"]);
}

fn scales() {
    let kernels = Kernels::new("tensor_memory", BLACKWELL);
    let atoms = noise(2048, 10);
    let word = |lane: usize, column: usize| {
        let at = column / 4 * 512 + lane % 32 * 16 + column % 4 * 4;
        u32::from_le_bytes(atoms[at..at + 4].try_into().unwrap())
    };
    let want = bytes32((0..128 * 16).map(|i| word(i / 16, i % 16)));
    let mut trial = kernels.trial("scales", [1, 1, 1], [128, 1, 1]);
    trial = trial.input(&atoms).output(want.len()).words(&[0]);
    trial.gives(&want);
    trial.wrong(1).differs(&want);
    trial.wrong(2).differs(&want);
    trial
        .wrong(3)
        .is_refused(&["tensor memory columns 0..4", "not initialised"]);
}
