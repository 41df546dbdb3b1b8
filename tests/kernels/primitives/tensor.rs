//! Multiplications: where rows, columns, K, and the scales of both operands are; accumulation; every
//! wait and fence that they need.

use super::trial::{BLACKWELL, Kernels, Trial, bytes32};

crate::trials! {
    simulator: one_element_of_each_operand, one_scale_of_each_operand, all_scales, all_elements_and_slices, sums_are_kept_or_not, every_wait_and_fence_is_needed, wrong_layouts_are_noticed;
}

const K: usize = 256;
/// Codes of E2M1.
const ONE: u8 = 2;
const ONE_AND_A_HALF: u8 = 3;
/// Codes of E4M3.
const SCALE_ONE: u8 = 0x38;
const SCALE_TWO: u8 = 0x40;

/// One operand: 128 rows of codes, and a scale for each 16.
#[derive(Clone)]
struct Operand {
    codes: Vec<[u8; K]>,
    scales: Vec<[u8; K / 16]>,
}

impl Operand {
    fn filled(code: u8, scale: u8) -> Self {
        Self {
            codes: vec![[code; K]; 128],
            scales: vec![[scale; K / 16]; 128],
        }
    }

    /// Any codes; scales from 1 to 1.875, so that all sums are exact.
    fn noise(rng: &mut fastrand::Rng) -> Self {
        let mut out = Self::filled(0, 0);
        out.codes.as_flattened_mut().fill_with(|| rng.u8(..16));
        let scales = out.scales.as_flattened_mut();
        scales.fill_with(|| SCALE_ONE + rng.u8(..8));
        out
    }

    fn value(&self, row: usize, k: usize) -> f64 {
        let code = self.codes[row][k];
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        let scale = match self.scales[row][k / 16] {
            s @ 0..8 => f64::from(s) / 512.0,
            s => f64::from(8 + (s & 7)) * 2f64.powi(i32::from(s >> 3) - 10),
        };
        scale * if code < 8 { magnitude } else { -magnitude }
    }

    /// 128 bytes a row, two codes a byte; chunk c of 16 bytes of row r lies at c ^ r % 8.
    fn place_codes(&self, image: &mut Vec<u8>) {
        for (r, row) in self.codes.iter().enumerate() {
            for j in 0..128 {
                let logical = ((j / 16) ^ (r % 8)) * 16 + j % 16;
                image.push(row[2 * logical] | row[2 * logical + 1] << 4);
            }
        }
    }

    /// Atoms of 128 rows by 4 blocks: rows r, r + 32, r + 64 and r + 96 share 16 bytes.
    fn place_scales(&self, image: &mut Vec<u8>) {
        for atom in 0..K / 64 {
            for at in 0..512 {
                let row = at / 16 + at / 4 % 4 * 32;
                image.push(self.scales[row][atom * 4 + at % 4]);
            }
        }
    }
}

fn image(a: &Operand, b: &Operand) -> Vec<u8> {
    let mut image = Vec::new();
    a.place_codes(&mut image);
    b.place_codes(&mut image);
    a.place_scales(&mut image);
    b.place_scales(&mut image);
    image
}

/// Slices of K that are multiplied, and how often.
#[derive(Clone, Copy)]
struct Steps {
    first: usize,
    last: usize,
    rounds: usize,
    keep: bool,
}

const SLICE: Steps = Steps {
    first: 0,
    last: 1,
    rounds: 1,
    keep: false,
};

fn product(a: &Operand, b: &Operand, n: usize, steps: Steps) -> Vec<u8> {
    let mut out = Vec::new();
    for round in 0..steps.rounds {
        let times = if steps.keep { round + 1 } else { 1 } as f64;
        for row in 0..128 {
            for column in 0..n {
                let k = 64 * steps.first..64 * steps.last;
                let sum: f64 = k.map(|k| a.value(row, k) * b.value(column, k)).sum();
                out.push(((sum * times) as f32).to_bits());
            }
        }
    }
    bytes32(out)
}

fn trial(kernels: &Kernels, n: usize, steps: Steps) -> Trial {
    let words = [
        n,
        steps.first,
        steps.last,
        steps.rounds,
        usize::from(steps.keep),
        0,
    ];
    let blank = Operand::filled(0, 0);
    kernels
        .trial("multiply", [1, 1, 1], [128, 1, 1])
        .input(&image(&blank, &blank))
        .output(steps.rounds * 128 * n * 4)
        .words(&words.map(|w| w as u32))
}

fn check_once(trial: &mut Trial, a: &Operand, b: &Operand, want: &[u8], what: &str) {
    trial.refill(0, &image(a, b));
    let got = trial.once().unwrap_or_else(|e| panic!("{what}: {e}"));
    let at = got.iter().zip(want).position(|(g, w)| g != w);
    assert_eq!(at, None, "{what}: first wrong byte");
}

const NS: [usize; 3] = [16, 64, 128];
const ROWS: [usize; 10] = [0, 1, 7, 8, 31, 32, 65, 95, 96, 127];

fn one_element_of_each_operand() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    let mut rng = fastrand::Rng::with_seed(6);
    let mut blank = [Operand::noise(&mut rng), Operand::noise(&mut rng)];
    for operand in &mut blank {
        operand.codes.as_flattened_mut().fill(0);
    }
    for n in NS {
        let mut trial = trial(&kernels, n, SLICE);
        for (i, row) in ROWS.into_iter().enumerate() {
            for (j, k) in [0, 1, 2, 15, 16, 31, 32, 62, 63].into_iter().enumerate() {
                let [mut a, mut b] = blank.clone();
                let column = ROWS[(i * 3 + j) % 10] % n;
                a.codes[row][k] = ONE;
                b.codes[column][k] = ONE_AND_A_HALF;
                b.codes[column][(k + 5) % 64] = ONE; // meets nothing
                let mut want = vec![0; 128 * n * 4];
                let value = (1.5 * scale(&a, row, k) * scale(&b, column, k)) as f32;
                let at = 4 * (row * n + column);
                want[at..at + 4].copy_from_slice(&value.to_le_bytes());
                let what = format!("n {n}, A ({row}, {k}), B ({column}, {k})");
                check_once(&mut trial, &a, &b, &want, &what);
            }
        }
    }
}

fn scale(operand: &Operand, row: usize, k: usize) -> f64 {
    1.0 + f64::from(operand.scales[row][k / 16] - SCALE_ONE) / 8.0
}

fn one_scale_of_each_operand() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    let ones = Operand::filled(ONE, SCALE_ONE);
    let unscaled = Operand::filled(ONE, 0);
    for n in NS {
        let mut trial = trial(&kernels, n, SLICE);
        for row in ROWS {
            for block in 0..4 {
                let mut scaled = unscaled.clone();
                scaled.scales[row][block] = SCALE_TWO;
                // 16 products of 2.
                let want = |one: &dyn Fn(usize) -> bool| {
                    bytes32((0..128 * n).map(|i| if one(i) { 32f32.to_bits() } else { 0 }))
                };
                let what = format!("n {n}, row {row}, block {block}");
                check_once(&mut trial, &scaled, &ones, &want(&|i| i / n == row), &what);
                check_once(&mut trial, &ones, &scaled, &want(&|i| i % n == row), &what);
            }
        }
    }
}

fn all_scales() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    let ones = Operand::filled(ONE, SCALE_ONE);
    let mut scaled = ones.clone();
    for (code, row) in scaled.scales.iter_mut().enumerate().take(0x7f) {
        row.fill(code as u8);
    }
    let mut trial = trial(&kernels, 128, SLICE);
    for (a, b) in [(&scaled, &ones), (&ones, &scaled)] {
        check_once(&mut trial, a, b, &product(a, b, 128, SLICE), "all scales");
    }
}

fn operands(seed: u64) -> (Operand, Operand) {
    let mut rng = fastrand::Rng::with_seed(seed);
    (Operand::noise(&mut rng), Operand::noise(&mut rng))
}

fn filled_trial(kernels: &Kernels, n: usize, steps: Steps, seed: u64) -> (Trial, Vec<u8>) {
    let (a, b) = operands(seed);
    let mut trial = trial(kernels, n, steps);
    trial.refill(0, &image(&a, &b));
    trial.seeds = 1;
    (trial, product(&a, &b, n, steps))
}

fn all_elements_and_slices() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    for (i, n) in NS.into_iter().enumerate() {
        for (first, last) in [(0, 1), (1, 2), (2, 4), (0, 4)] {
            let steps = Steps {
                first,
                last,
                ..SLICE
            };
            let (mut trial, want) = filled_trial(&kernels, n, steps, i as u64);
            trial.gives(&want);
        }
    }
}

fn sums_are_kept_or_not() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    for keep in [false, true] {
        let steps = Steps {
            last: 2,
            rounds: 3,
            keep,
            ..SLICE
        };
        let (mut trial, want) = filled_trial(&kernels, 16, steps, 7);
        trial.seeds = 3;
        trial.gives(&want);
        // Counted from the last parameter, 0 is `wrong` and 1 is `keep`.
        trial.set_from_last(1, u32::from(!keep)).differs(&want);
    }
}

fn every_wait_and_fence_is_needed() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    let steps = Steps { rounds: 2, ..SLICE };
    let (mut trial, want) = filled_trial(&kernels, 16, steps, 8);
    trial.gives(&want);
    for (wrong, whys) in [
        (1, &["fence.proxy.async is missing"][..]),
        (2, &["tensor memory columns 0..16", "not initialised"]),
        (3, &["tcgen05.fence is missing"]),
        (4, &["before tcgen05.wait::ld"]),
        (5, &["tcgen05.fence is missing"]),
        (6, &["tcgen05.fence is missing"]),
        (7, &["without tcgen05.dealloc"]),
        (15, &["deadlock"]),
    ] {
        trial.wrong(wrong).is_refused(whys);
    }
}

fn wrong_layouts_are_noticed() {
    let kernels = Kernels::new("tensor", BLACKWELL);
    let (mut trial, want) = filled_trial(&kernels, 64, SLICE, 9);
    trial.gives(&want);
    for wrong in [8, 9, 10, 11, 12, 13, 14] {
        for outcome in trial.wrong(wrong).outcomes() {
            assert_ne!(outcome.as_ref(), Ok(&want), "variant {wrong}");
        }
    }
}
