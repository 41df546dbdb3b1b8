//! Inputs and exact expectations for the kernels in `conformance/`.
//!
//! Nothing here knows the simulator. Inputs are drawn as logical matrices and laid out in global
//! memory as each kernel's interface says; results are plain sums over the logical matrices. Every
//! sum of magnitudes stays below 2^24 units of one, so an f32 result is exact in any order.
//!
//! `conformance/cases.json` is written from the same descriptions by `tests/conformance_data.rs`.

use super::float::float;

/// One launch of one kernel: how to start it, what it reads, and what it must have written.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The PTX is `conformance/ptx/<entry>.ptx`.
    pub(crate) entry: &'static str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared: u32,
    /// Parameters in the order of the kernel's parameters.
    pub(crate) params: Vec<Param>,
    /// Formula of the output, in words.
    pub(crate) formula: &'static str,
    /// The one output buffer's contents. Zeros are +0.
    pub(crate) expected: Vec<f32>,
}

#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) layout: &'static str,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    U32(u32),
    /// A pointer to these bytes, 16-byte aligned.
    Input(Vec<u8>),
    /// A pointer to this many uninitialised bytes, 16-byte aligned.
    Output(usize),
    /// A tensor map over these bytes.
    Map(TensorMap, Vec<u8>),
}

/// The arguments of `cuTensorMapEncodeTiled` that differ between maps. All maps are UINT8, rank 2,
/// element strides 1, no interleave, 128-byte swizzle, no L2 promotion, out of bounds reads zero.
#[derive(Debug)]
pub(crate) struct TensorMap {
    pub(crate) dims: [u64; 2],
    /// Bytes from row to row.
    pub(crate) stride: u64,
    pub(crate) box_dims: [u32; 2],
}

// ---- random numbers ----

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        ptx_sim::sched::split_mix(&mut self.0)
    }

    fn range(&mut self, low: i32, high: i32) -> i32 {
        low + (self.next() % (high - low + 1) as u64) as i32
    }
}

// ---- number formats ----

pub(crate) fn e2m1(code: u8) -> f64 {
    float(code, 2, 1)
}

pub(crate) fn e4m3(code: u8) -> f64 {
    float(code, 4, 3)
}

pub(crate) fn e5m2(code: u8) -> f64 {
    float(code, 5, 2)
}

pub(crate) fn ue8m0(code: u8) -> f64 {
    2f64.powi(i32::from(code) - 127)
}

pub(crate) fn bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// The code, among those up to `largest`, with this value.
pub(crate) fn encode(value: f64, largest: u8, decode: fn(u8) -> f64) -> u8 {
    let sign = if value < 0.0 { 0x80 } else { 0 };
    (0..=largest)
        .find(|&c| decode(c) == value.abs())
        .expect("representable")
        | sign
}

// ---- logical matrices ----

/// `rows` x `k` element codes, and the value that each stands for.
#[derive(Debug)]
pub(crate) struct Matrix<C> {
    rows: usize,
    k: usize,
    codes: Vec<C>,
    values: Vec<f64>,
}

impl<C: Copy> Matrix<C> {
    pub(crate) fn draw(
        rows: usize,
        k: usize,
        decode: fn(C) -> f64,
        mut code: impl FnMut() -> C,
    ) -> Self {
        let codes: Vec<C> = (0..rows * k).map(|_| code()).collect();
        let values = codes.iter().map(|&c| decode(c)).collect();
        Self {
            rows,
            k,
            codes,
            values,
        }
    }

    fn value(&self, row: usize, k: usize) -> f64 {
        // Rows past the last are the zeros that TMA fills in.
        if row < self.rows {
            self.values[row * self.k + k]
        } else {
            0.0
        }
    }
}

impl Matrix<u8> {
    /// Row-major, two codes a byte, the even one in the low nibble.
    pub(crate) fn packed_nibbles(&self) -> Vec<u8> {
        self.codes
            .chunks(2)
            .map(|pair| pair[0] | pair[1] << 4)
            .collect()
    }
}

impl Matrix<u16> {
    fn little_endian(&self) -> Vec<u8> {
        self.codes.iter().flat_map(|c| c.to_le_bytes()).collect()
    }
}

/// Scales of `rows` (a multiple of 128) x `blocks` (a multiple of 4), each for `block` elements.
#[derive(Debug)]
pub(crate) struct Scales {
    rows: usize,
    blocks: usize,
    block: usize,
    codes: Vec<u8>,
    values: Vec<f64>,
}

impl Scales {
    pub(crate) fn draw(
        rows: usize,
        k: usize,
        block: usize,
        of: &[f64],
        mut code: impl FnMut(usize) -> u8,
    ) -> Self {
        let blocks = k / block;
        let codes: Vec<u8> = (0..rows * blocks).map(|i| code(i % blocks)).collect();
        let values = codes.iter().map(|&c| of[usize::from(c)]).collect();
        Self {
            rows,
            blocks,
            block,
            codes,
            values,
        }
    }

    fn value(&self, row: usize, k: usize) -> f64 {
        self.values[row * self.blocks + k / self.block]
    }

    fn to_128x4(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.rows * self.blocks];
        for row in 0..self.rows {
            for block in 0..self.blocks {
                bytes[offset_128x4(row, block, self.blocks)] =
                    self.codes[row * self.blocks + block];
            }
        }
        bytes
    }
}

/// Atoms of 128 rows x 4 blocks are 512 bytes, and follow each other along the row first.
pub(crate) fn offset_128x4(row: usize, block: usize, blocks: usize) -> usize {
    let atom = row / 128 * (blocks / 4) + block / 4;
    atom * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4
}

pub(crate) fn values(decode: fn(u8) -> f64) -> Vec<f64> {
    (0..=255).map(decode).collect()
}

/// UE4M3 scales for both operands. A block's exponent moves from one operand to the other by a
/// common shift, so that many exponents occur and a product of two scales is still 4 * integer.
pub(crate) fn draw_ue4m3(rng: &mut Rng, a_rows: usize, b_rows: usize, k: usize) -> [Scales; 2] {
    let values = values(e4m3);
    let shifts: Vec<i32> = (0..k / 16).map(|_| rng.range(-5, 5)).collect();
    [(a_rows, 1), (b_rows, -1)].map(|(rows, direction)| {
        Scales::draw(rows, k, 16, &values, |block| {
            let even = f64::from(2 * rng.range(1, 7));
            let scale = even * 2f64.powi(direction * shifts[block]);
            // The codes of positive values stand in their order.
            values[..0x7f].partition_point(|&v| v < scale) as u8
        })
    })
}

/// UE8M0 scales, in the same way: a product of two scales is an integer.
pub(crate) fn draw_ue8m0(rng: &mut Rng, rows: usize, k: usize) -> [Scales; 2] {
    let shifts: Vec<i32> = (0..k / 32).map(|_| rng.range(-20, 20)).collect();
    [1, -1].map(|direction| {
        Scales::draw(rows, k, 32, &values(ue8m0), |block| {
            (127 + rng.range(0, 3) + direction * shifts[block]) as u8
        })
    })
}

/// `d[m][n] = sum over k of a(m, k) * b(n, k)`, which must be exact in f32 in any order.
pub(crate) fn product(
    [m, n, k]: [usize; 3],
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> Vec<f32> {
    let b_rows: Vec<Vec<f64>> = (0..n).map(|n| (0..k).map(|k| b(n, k)).collect()).collect();
    let mut d = Vec::with_capacity(m * n);
    for row in 0..m {
        let a_row: Vec<f64> = (0..k).map(|k| a(row, k)).collect();
        for b_row in &b_rows {
            let (mut sum, mut magnitude) = (0, 0);
            for i in 0..k {
                let exact = a_row[i] * b_row[i];
                let term = exact as i64;
                assert!(term as f64 == exact, "a term is an integer");
                sum += term;
                magnitude += term.abs();
            }
            assert!(magnitude < 1 << 24, "partial sums are exact in f32");
            // An i64 has no -0: a zero result is +0, as it is unless all the terms are -0.
            d.push(sum as f32);
        }
    }
    d
}

// ---- the cases ----

pub(crate) fn case(entry: &'static str, threads: u32, formula: &'static str) -> Case {
    Case {
        name: entry.to_string(),
        entry,
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared: 0,
        params: Vec::new(),
        formula,
        expected: Vec::new(),
    }
}

pub(crate) fn input(name: &'static str, layout: &'static str, bytes: Vec<u8>) -> Param {
    Param {
        name,
        layout,
        value: Value::Input(bytes),
    }
}

pub(crate) fn output(layout: &'static str, expected: &[f32]) -> Param {
    Param {
        name: "d",
        layout,
        value: Value::Output(expected.len() * 4),
    }
}

pub(crate) fn bf16_operands(rng: &mut Rng, m: usize, n: usize, k: usize) -> [Matrix<u16>; 2] {
    // bf16 has eight significant bits. An f32's upper half is the bf16 where the rest is zero.
    [m, n].map(|rows| {
        Matrix::draw(rows, k, bf16, || {
            ((rng.range(-120, 120) as f32).to_bits() >> 16) as u16
        })
    })
}

pub(crate) fn mma_bf16(seed: u64) -> Case {
    let mut rng = Rng(seed);
    let [a, b] = bf16_operands(&mut rng, 128, 16, 64);
    let expected = product([128, 16, 64], |m, k| a.value(m, k), |n, k| b.value(n, k));
    Case {
        params: vec![
            input("a", "bf16 [128][64]", a.little_endian()),
            input("b", "bf16 [16][64]", b.little_endian()),
            output("f32 [128][16]", &expected),
        ],
        expected,
        ..case("mma_bf16", 128, "d[m][n] = sum_k a[m][k] * b[n][k]")
    }
}

pub(crate) fn mma_two_cta(seed: u64) -> Case {
    let mut rng = Rng(seed);
    let [a, b] = bf16_operands(&mut rng, 256, 64, 64);
    let expected = product([256, 64, 64], |m, k| a.value(m, k), |n, k| b.value(n, k));
    Case {
        grid: [2, 1, 1],
        cluster: [2, 1, 1],
        params: vec![
            input("a", "bf16 [256][64]", a.little_endian()),
            input("b", "bf16 [64][64]", b.little_endian()),
            output("f32 [256][64]", &expected),
        ],
        expected,
        ..case("mma_two_cta", 128, "d[m][n] = sum_k a[m][k] * b[n][k]")
    }
}

pub(crate) fn e2m1_codes(rng: &mut Rng, rows: usize, k: usize) -> Matrix<u8> {
    Matrix::draw(rows, k, e2m1, || (rng.next() % 16) as u8)
}

pub(crate) const SCALED: &str = "d[m][n] = sum_k a[m][k] * sfa[m][k/16] * b[n][k] * sfb[n][k/16]";

pub(crate) fn mma_mxf4nvf4(seed: u64) -> Case {
    let mut rng = Rng(seed);
    let (a, b) = (
        e2m1_codes(&mut rng, 128, 256),
        e2m1_codes(&mut rng, 16, 256),
    );
    let [sfa, sfb] = draw_ue4m3(&mut rng, 128, 128, 256);
    let expected = product(
        [128, 16, 256],
        |m, k| a.value(m, k) * sfa.value(m, k),
        |n, k| b.value(n, k) * sfb.value(n, k),
    );
    Case {
        params: vec![
            input(
                "a",
                "E2M1 [128][256], two a byte, low nibble first",
                a.packed_nibbles(),
            ),
            input(
                "b",
                "E2M1 [16][256], two a byte, low nibble first",
                b.packed_nibbles(),
            ),
            input("sfa", "UE4M3 [128][16] in 4 128x4 atoms", sfa.to_128x4()),
            input(
                "sfb",
                "UE4M3 [128][16] in 4 128x4 atoms, rows 16.. unused",
                sfb.to_128x4(),
            ),
            output("f32 [128][16]", &expected),
        ],
        expected,
        ..case("mma_mxf4nvf4", 128, SCALED)
    }
}

pub(crate) fn mma_mxf8f6f4(seed: u64) -> Case {
    let mut rng = Rng(seed);
    let a = Matrix::draw(128, 128, e4m3, || {
        encode(f64::from(rng.range(-15, 15)), 0x7e, e4m3)
    });
    // E5M2 has three significant bits.
    let b = Matrix::draw(16, 128, e5m2, || {
        let value = rng.range(1, 7) << rng.range(0, 1);
        encode(f64::from(value * (1 - 2 * rng.range(0, 1))), 0x7b, e5m2)
    });
    let [sfa, sfb] = draw_ue8m0(&mut rng, 128, 128);
    let expected = product(
        [128, 16, 128],
        |m, k| a.value(m, k) * sfa.value(m, k),
        |n, k| b.value(n, k) * sfb.value(n, k),
    );
    Case {
        params: vec![
            input("a", "E4M3 [128][128]", a.codes),
            input("b", "E5M2 [16][128]", b.codes),
            input("sfa", "UE8M0 [128][4] in one 128x4 atom", sfa.to_128x4()),
            input(
                "sfb",
                "UE8M0 [128][4] in one 128x4 atom, rows 16.. unused",
                sfb.to_128x4(),
            ),
            output("f32 [128][16]", &expected),
        ],
        expected,
        ..case(
            "mma_mxf8f6f4",
            128,
            "d[m][n] = sum_k a[m][k] * sfa[m][k/32] * b[n][k] * sfb[n][k/32]",
        )
    }
}

/// `row_blocks` CTAs of 128 rows, `n` <= 16 vectors, `k` a multiple of 256.
pub(crate) fn mma_pipelined(seed: u64, row_blocks: usize, n: usize, k: usize) -> Case {
    let mut rng = Rng(seed);
    let m = row_blocks * 128;
    let (w, x) = (e2m1_codes(&mut rng, m, k), e2m1_codes(&mut rng, n, k));
    let [sfw, sfx] = draw_ue4m3(&mut rng, m, 128, k);
    let expected = product(
        [m, 16, k],
        |m, k| w.value(m, k) * sfw.value(m, k),
        |n, k| x.value(n, k) * sfx.value(n, k),
    );
    let map = |name, layout, matrix: &Matrix<u8>, box_rows| Param {
        name,
        layout,
        value: Value::Map(
            TensorMap {
                dims: [k as u64 / 2, matrix.rows as u64],
                stride: k as u64 / 2,
                box_dims: [128, box_rows],
            },
            matrix.packed_nibbles(),
        ),
    };
    Case {
        name: format!("mma_pipelined_m{m}_n{n}_k{k}"),
        grid: [row_blocks as u32, 1, 1],
        dynamic_shared: 3 * 22528 + 1024,
        params: vec![
            map("w", "E2M1 [m][k], two a byte, low nibble first", &w, 128),
            map("x", "E2M1 [n][k], two a byte, low nibble first", &x, 16),
            input("sfw", "UE4M3 [m][k/16] in 128x4 atoms", sfw.to_128x4()),
            input(
                "sfx",
                "UE4M3 [128][k/16] in 128x4 atoms, rows n.. unused",
                sfx.to_128x4(),
            ),
            output("f32 [m][16], columns n.. zero", &expected),
            Param {
                name: "k",
                layout: "scalar",
                value: Value::U32(k as u32),
            },
        ],
        expected,
        ..case(
            "mma_pipelined",
            192,
            "d[m][n] = sum_k w[m][k] * sfw[m][k/16] * x[n][k] * sfx[n][k/16]; +0 past the last x row",
        )
    }
}

/// Every case that `cases.json` lists. The pipelined ones have fewer stages than the ring, a ring
/// filled once, a ring and a part, and three turns of it.
pub(crate) fn all_cases(seed: u64) -> Vec<Case> {
    vec![
        mma_bf16(seed),
        mma_mxf4nvf4(seed),
        mma_mxf8f6f4(seed),
        mma_two_cta(seed),
        mma_pipelined(seed, 1, 16, 256),
        mma_pipelined(seed, 2, 5, 768),
        mma_pipelined(seed, 1, 1, 1024),
        mma_pipelined(seed, 1, 11, 2304),
    ]
}
