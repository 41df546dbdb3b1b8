//! The vectors as the kernels read them, decoded once a call.

use half::slice::HalfFloatSliceExt;

use crate::cpu::rows::{Kernels, MAX_VECTORS, Rows, Sums};
use crate::error::Result;
use crate::format::{e2m1, e4m3};
use crate::shape::{BLOCK, Shape, Strides};
use crate::tensor::{Nvfp4Vectors, Vectors};

/// Elements that a chunk of a prepared vector stands for: 64 bytes of codes.
pub(super) const CHUNK: usize = 128;

/// Blocks to which prepared vectors are padded with zeros: the longest step of any kernel.
const STEP_BLOCKS: usize = 16;

/// A cache line of bytes, aligned as one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Bytes(pub(super) [i8; 64]);

/// A cache line of floats, aligned as one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Floats(pub(super) [f32; 16]);

/// A cache line of integers, aligned as one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Ints(pub(super) [i32; 16]);

/// One NVFP4 vector.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4Vector<'a> {
    /// Two lines for each 64 bytes of weight codes: twice the values that meet their low nibbles
    /// (even elements), then those that meet their high nibbles.
    pub(super) planes: &'a [Bytes],
    /// Block scales times [`SCALE_FACTOR`].
    pub(super) scales: &'a [Floats],
    /// `-12 · Σx` of each block in the units of `planes`, for kernels that multiply by `w + 12`
    /// because the instruction wants one operand unsigned.
    pub(super) corrections: &'a [Ints],
}

/// What the scales of NVFP4 vectors are multiplied with: a quarter, because weights and vectors
/// are both doubled to be integers, times 2^8, because kernels read an E4M3 weight scale as f16
/// bits, which makes it smaller by that. A power of two, so exact.
pub(super) const SCALE_FACTOR: f32 = 256.0 / 4.0;

/// One f32 vector in the order of the implementation, a multiple of 256 elements.
pub(super) type DenseVector<'a> = &'a [Floats];

/// All vectors of a call, `[L][N]`.
pub(super) enum Prepared {
    Nvfp4 {
        /// Lines of `scales` a vector; `corrections` has as many, `planes` four times.
        lines: usize,
        planes: Vec<Bytes>,
        scales: Vec<Floats>,
        corrections: Vec<Ints>,
    },
    Dense {
        /// Lines a vector.
        lines: usize,
        values: Vec<Floats>,
    },
}

impl Prepared {
    /// Checks and decodes.
    pub(super) fn new(shape: &Shape, vectors: &Vectors<'_>, order: &[u8; CHUNK]) -> Result<Self> {
        Ok(match vectors {
            Vectors::Nvfp4(v) => nvfp4(shape, v)?,
            Vectors::F16(v) => dense(shape, order, v.resolve(shape)?, |from, row| {
                v.values[from..][..row.len()].convert_to_f32_slice(row);
            }),
            Vectors::Bf16(v) => dense(shape, order, v.resolve(shape)?, |from, row| {
                v.values[from..][..row.len()].convert_to_f32_slice(row);
            }),
            Vectors::F32(v) => dense(shape, order, v.resolve(shape)?, |from, row| {
                row.copy_from_slice(&v.values[from..][..row.len()]);
            }),
        })
    }

    /// `rows` times the vectors from number `first` on (of all batches), `count` of them.
    ///
    /// # Safety
    /// The CPU has what `kernels` needs.
    pub(super) unsafe fn sums(
        &self,
        kernels: &Kernels,
        rows: &Rows<'_>,
        first: usize,
        count: usize,
    ) -> Sums {
        match self {
            Self::Nvfp4 {
                lines,
                planes,
                scales,
                corrections,
            } => {
                let x: [Nvfp4Vector<'_>; MAX_VECTORS] = std::array::from_fn(|i| {
                    let v = first + i.min(count - 1);
                    Nvfp4Vector {
                        planes: &planes[v * 4 * lines..][..4 * lines],
                        scales: &scales[v * lines..][..*lines],
                        corrections: &corrections[v * lines..][..*lines],
                    }
                });
                // SAFETY: the caller's promise.
                unsafe { (kernels.nvfp4)(rows, &x[..count]) }
            }
            Self::Dense { lines, values } => {
                let x: [DenseVector<'_>; MAX_VECTORS] = std::array::from_fn(|i| {
                    &values[(first + i.min(count - 1)) * lines..][..*lines]
                });
                // SAFETY: the caller's promise.
                unsafe { (kernels.dense)(rows, &x[..count]) }
            }
        }
    }
}

/// Twice the values of a byte's two codes.
const DOUBLED: [[i8; 2]; 256] = {
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [
            (e2m1::decode(byte as u8) * 2.0) as i8,
            (e2m1::decode(byte as u8 >> 4) * 2.0) as i8,
        ];
        byte += 1;
    }
    table
};

fn nvfp4(shape: &Shape, v: &Nvfp4Vectors<'_>) -> Result<Prepared> {
    let at = v.resolve_and_scan(shape)?;
    let (n, blocks) = (shape.n(), shape.blocks());
    let lines = blocks.div_ceil(STEP_BLOCKS);
    let count = n * shape.l();
    let mut planes = vec![Bytes([0; 64]); count * lines * 4];
    let mut scales = vec![Floats([0.0; 16]); count * lines];
    let mut corrections = vec![Ints([0; 16]); count * lines];
    for index in 0..count {
        let (l, row) = (index / n, index % n);
        let codes = &v.codes[l * at.codes.batch + row * at.codes.row..][..shape.row_code_bytes()];
        let planes = &mut planes[index * lines * 4..][..lines * 4];
        for (codes, plane) in codes.chunks(64).zip(planes.chunks_exact_mut(2)) {
            let [even, odd] = plane else { unreachable!() };
            for ((&byte, even), odd) in codes.iter().zip(&mut even.0).zip(&mut odd.0) {
                [*even, *odd] = DOUBLED[usize::from(byte)];
            }
        }
        for block in 0..blocks {
            let scale = v.scales[at.scale_offset(v.layout, shape, l, row, block)];
            let line = index * lines + block / STEP_BLOCKS;
            scales[line].0[block % STEP_BLOCKS] = e4m3::decode(scale) * SCALE_FACTOR;
            let pair = &planes[block / 8 * 2..][..2];
            let range = block % 8 * 8..block % 8 * 8 + 8;
            let sum = |plane: &Bytes| plane.0[range.clone()].iter().map(|&x| i32::from(x)).sum();
            let (even, odd): (i32, i32) = (sum(&pair[0]), sum(&pair[1]));
            corrections[line].0[block % STEP_BLOCKS] = -12 * (even + odd);
        }
    }
    Ok(Prepared::Nvfp4 {
        lines,
        planes,
        scales,
        corrections,
    })
}

fn dense(
    shape: &Shape,
    order: &[u8; CHUNK],
    strides: Strides,
    read: impl Fn(usize, &mut [f32]),
) -> Prepared {
    let (n, k) = (shape.n(), shape.k());
    let padded = k.next_multiple_of(STEP_BLOCKS * BLOCK);
    let lines = padded / 16;
    let mut values = vec![Floats([0.0; 16]); n * shape.l() * lines];
    let mut row = vec![0.0; padded];
    for (index, out) in values.chunks_exact_mut(lines).enumerate() {
        read(
            index / n * strides.batch + index % n * strides.row,
            &mut row[..k],
        );
        for (from, to) in row
            .chunks_exact(CHUNK)
            .zip(out.chunks_exact_mut(CHUNK / 16))
        {
            for (position, &element) in order.iter().enumerate() {
                to[position / 16].0[position % 16] = from[usize::from(element)];
            }
        }
    }
    Prepared::Dense { lines, values }
}
