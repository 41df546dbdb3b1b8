//! Plain Rust for any CPU, without fused multiply-add, which is a slow call where there is no
//! instruction for it.

use crate::cpu::prepare::{DenseVector, Nvfp4Vector, SCALE_FACTOR};
use crate::cpu::rows::{Kernels, MAX_ROWS, MAX_VECTORS, RowScales, Rows, Sums, sum_lanes};
use crate::format::{e2m1, e4m3};

/// Lanes of an accumulator.
pub(super) const LANES: usize = 8;

/// The two kernels.
pub(super) const KERNELS: Kernels = Kernels {
    order: &ORDER,
    nvfp4,
    dense,
};

const ORDER: [u8; 128] = {
    let mut order = [0; 128];
    let mut i = 0;
    while i < 128 {
        order[i] = i as u8;
        i += 1;
    }
    order
};

/// Twice the value of every code.
const DOUBLED: [i32; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (e2m1::decode(code as u8) * 2.0) as i32;
        code += 1;
    }
    table
};

/// Every scale.
const SCALES: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e4m3::decode(code as u8);
        code += 1;
    }
    table
};

/// The blocks of a row: 8 bytes of codes, a scale.
fn blocks<'a>(rows: &'a Rows<'_>, r: usize) -> impl Iterator<Item = (&'a [u8], f32)> {
    rows.codes[r]
        .chunks_exact(8)
        .enumerate()
        .map(move |(j, codes)| {
            let scale = match &rows.scales {
                RowScales::Linear(scales) => scales[r][j],
                RowScales::Tiled(scales) => scales[j / 4 * 512 + r * 4 + j % 4],
            };
            (codes, SCALES[usize::from(scale)])
        })
}

fn nvfp4(rows: &Rows<'_>, x: &[Nvfp4Vector<'_>]) -> Sums {
    let mut sums = [[0.0; MAX_VECTORS]; MAX_ROWS];
    for (r, sums) in sums.iter_mut().enumerate().take(rows.count) {
        let mut acc = [[0.0f32; LANES]; MAX_VECTORS];
        for (j, (codes, scale)) in blocks(rows, r).enumerate() {
            let low: [i32; 8] = std::array::from_fn(|i| DOUBLED[usize::from(codes[i] & 15)]);
            let high: [i32; 8] = std::array::from_fn(|i| DOUBLED[usize::from(codes[i] >> 4)]);
            // Kernels that read scales as f16 lack this factor; here it is taken out.
            let scale = scale / 256.0;
            for (x, acc) in x.iter().zip(&mut acc) {
                let plane = |p: usize| &x.planes[j / 8 * 2 + p].0[j % 8 * 8..][..8];
                let (even, odd) = (plane(0), plane(1));
                let sum: i32 = (0..8)
                    .map(|i| low[i] * i32::from(even[i]) + high[i] * i32::from(odd[i]))
                    .sum();
                // Exact: 12 bits times twice 4.
                acc[j % LANES] += sum as f32 * (scale * x.scales[j / 16].0[j % 16]);
            }
        }
        *sums = acc.map(sum_lanes);
    }
    sums
}

fn dense(rows: &Rows<'_>, x: &[DenseVector<'_>]) -> Sums {
    let mut sums = [[0.0; MAX_VECTORS]; MAX_ROWS];
    for (r, sums) in sums.iter_mut().enumerate().take(rows.count) {
        let mut acc = [[0.0f32; LANES]; MAX_VECTORS];
        for (j, (codes, scale)) in blocks(rows, r).enumerate() {
            let w: [f32; 16] = std::array::from_fn(|i| {
                e2m1::VALUES[usize::from(codes[i / 2] >> (i % 2 * 4) & 15)]
            });
            for (x, acc) in x.iter().zip(&mut acc) {
                let x = &x[j].0;
                for i in 0..LANES {
                    acc[i] += (w[i] * x[i] + w[i + LANES] * x[i + LANES]) * scale;
                }
            }
        }
        *sums = acc.map(sum_lanes);
    }
    sums
}

const _: () = assert!(SCALE_FACTOR == 256.0 / 4.0 && LANES * 2 == crate::shape::BLOCK);
