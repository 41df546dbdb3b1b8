//! Multiplications of a warpgroup: where rows, columns and K of both operands are, accumulation, and every
//! wait and fence that they need.

use half::{bf16, f16};

use super::trial::{Kernels, Trial, bytes16, bytes32};

crate::trials! {
    simulator: every_size_and_type, one_element_of_each_operand, every_wait_and_fence_is_needed, wrong_operands_are_noticed;
}

/// The only architecture that has these instructions.
const HOPPER: &str = "90a";
/// Elements of K in a row of shared memory.
const K: usize = 64;
const M: usize = 64;
const NS: [usize; 5] = [8, 16, 32, 64, 128];

/// A, by rows, and B, by columns; small integers.
struct Operands {
    a: Vec<[i8; K]>,
    b: Vec<[i8; K]>,
}

impl Operands {
    fn noise(n: usize, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut lines = |n| -> Vec<[i8; K]> {
            let line = |_| std::array::from_fn(|_| rng.i8(-8..=8));
            (0..n).map(line).collect()
        };
        Self {
            a: lines(M),
            b: lines(n),
        }
    }

    /// Zeros but for one element of each.
    fn one(n: usize, (row, column): (usize, usize), k: usize) -> Self {
        let mut out = Self {
            a: vec![[0; K]; M],
            b: vec![[0; K]; n],
        };
        out.a[row][k] = 3;
        out.b[column][k] = 5;
        out
    }

    /// B: 128 bytes a column, of which 16 bytes lie elsewhere by the column.
    fn image(&self, bits: fn(i8) -> u16) -> Vec<u8> {
        let columns = self.b.iter().enumerate();
        let elements = columns
            .flat_map(|(column, line)| (0..K).map(move |at| bits(line[at ^ (column % 8 * 8)])));
        bytes16(elements)
    }

    /// A: four words a slice for each thread.
    fn fragments(&self, slices: usize, bits: fn(i8) -> u16) -> Vec<u8> {
        let mut out = Vec::new();
        for t in 0..128 {
            let (row, column) = (t / 32 * 16 + t % 32 / 4, t % 4 * 2);
            for slice in 0..slices {
                for (down, right) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                    let k = 16 * slice + column + right;
                    out.extend([k, k + 1].map(|k| bits(self.a[row + down][k])));
                }
            }
        }
        bytes16(out)
    }

    /// Each thread's part of D.
    fn product(&self, slices: usize, rounds: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for t in 0..128 {
            for i in 0..self.b.len() / 2 {
                let row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
                let column = i / 4 * 8 + t % 4 * 2 + i % 2;
                let k = 0..16 * slices;
                let terms = k.map(|k| i32::from(self.a[row][k]) * i32::from(self.b[column][k]));
                out.push((rounds as i32 * terms.sum::<i32>()) as f32);
            }
        }
        bytes32(out.into_iter().map(f32::to_bits))
    }
}

fn as_f16(v: i8) -> u16 {
    f16::from(v).to_bits()
}

fn as_bf16(v: i8) -> u16 {
    bf16::from(v).to_bits()
}

/// A kernel, and how its elements are written.
type Type = (&'static str, fn(i8) -> u16);
const TYPES: [Type; 2] = [("f16", as_f16), ("bf16", as_bf16)];

fn trial(
    kernels: &Kernels,
    (name, bits): Type,
    operands: &Operands,
    slices: usize,
    rounds: usize,
) -> (Trial, Vec<u8>) {
    let n = operands.b.len();
    let want = operands.product(slices, rounds);
    let trial = kernels
        .trial(name, [1, 1, 1], [128, 1, 1])
        .input(&operands.image(bits))
        .input(&operands.fragments(slices, bits))
        .output(want.len())
        .words(&[n as u32, slices as u32, rounds as u32, 0]);
    (trial, want)
}

fn every_size_and_type() {
    let kernels = Kernels::new("wgmma", HOPPER);
    for ty in TYPES {
        for (seed, n) in NS.into_iter().enumerate() {
            let operands = Operands::noise(n, seed as u64);
            let (mut trial, want) = trial(&kernels, ty, &operands, 4, 2);
            trial.seeds = 1;
            trial.gives(&want);
        }
    }
}

fn one_element_of_each_operand() {
    let kernels = Kernels::new("wgmma", HOPPER);
    for n in NS {
        let blank = Operands::one(n, (0, 0), 0);
        let mut trials = TYPES.map(|ty| trial(&kernels, ty, &blank, 1, 1).0);
        for (i, row) in [0, 1, 7, 8, 15, 16, 33, 47, 56, 63].into_iter().enumerate() {
            for (j, k) in [0, 1, 2, 7, 8, 15].into_iter().enumerate() {
                let column = (i * 13 + j * 29) % n;
                let operands = Operands::one(n, (row, column), k);
                let (trial, bits) = (&mut trials[j % 2], TYPES[j % 2].1);
                trial.refill(0, &operands.image(bits));
                trial.refill(1, &operands.fragments(1, bits));
                let got = trial.once().unwrap_or_else(|e| panic!("{n}: {e}"));
                let want = operands.product(1, 1);
                assert!(got == want, "N {n}, A ({row}, {k}), B ({column}, {k})");
            }
        }
    }
}

fn every_wait_and_fence_is_needed() {
    let kernels = Kernels::new("wgmma", HOPPER);
    let operands = Operands::noise(16, 7);
    let (mut trial, want) = trial(&kernels, TYPES[0], &operands, 4, 2);
    trial.gives(&want);
    let early = "before a wgmma.wait_group";
    for (wrong, whys) in [
        (1, &["without a wgmma.fence"][..]),
        (2, &["fence.proxy.async is missing"]),
        (3, &["nothing orders the two", "not initialised"]),
        (4, &[early]),
        (5, &[early]),
        (6, &[early]),
        (9, &["in flight"]),
    ] {
        trial.wrong(wrong).is_refused(whys);
    }
}

fn wrong_operands_are_noticed() {
    let kernels = Kernels::new("wgmma", HOPPER);
    let operands = Operands::noise(64, 8);
    let (mut trial, want) = trial(&kernels, TYPES[1], &operands, 4, 1);
    trial.gives(&want);
    for wrong in [7, 8] {
        trial.wrong(wrong).differs(&want);
    }
}
