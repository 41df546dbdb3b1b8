//! Rows over threads, and the way from a kernel's sums to the output.
//!
//! How rows are grouped never changes a result: each row is summed in the same order whichever
//! rows and vectors share its kernel call.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::cpu::prepare::Prepared;
use crate::cpu::rows::{Kernels, MAX_ROWS, MAX_VECTORS, ROW_BLOCK, ROW_STEP, Rows};
use crate::shape::Shape;
use crate::tensor::{VectorScale, Vectors, Weights};

/// Weight bytes times vectors below which other threads cost more than they bring.
const INLINE_BELOW: usize = 256 << 10;

/// Row groups of a job: a multiple of 4, because a cache line of 128x4 scales serves 4 of them.
const GROUPS: [usize; 4] = [32, 16, 8, 4];

/// Jobs a thread, so that a slow one is waited for by no more than a fraction of the time.
const JOBS_PER_THREAD: usize = 8;

/// An output element.
pub(super) trait Element: Copy + Send {
    /// Rounds to nearest even.
    fn round(x: f32) -> Self;
}

impl Element for f32 {
    fn round(x: f32) -> Self {
        x
    }
}

impl Element for f16 {
    fn round(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Element for bf16 {
    fn round(x: f32) -> Self {
        Self::from_f32(x)
    }
}

/// Everything that multiplies a sum: `((sum · alpha) · row_alpha) · vector_global`.
struct Scaling<'a> {
    alpha: f32,
    /// And the elements from one batch to the next.
    row_alpha: Option<(&'a [f32], usize)>,
    vector_globals: Option<&'a [f32]>,
}

impl Scaling<'_> {
    fn apply(&self, sum: f32, batch: usize, row: usize, vector: usize) -> f32 {
        let mut y = sum * self.alpha;
        if let Some((alpha, stride)) = self.row_alpha {
            y *= alpha[batch * stride + row];
        }
        if let Some(globals) = self.vector_globals {
            y *= globals[vector];
        }
        y
    }
}

/// The output, which several threads write, each its own elements.
struct Out<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: `Out` only lends places to write; `run` gives each element to one job.
unsafe impl<T: Send> Sync for Out<T> {}

impl<T> Out<T> {
    /// # Safety
    /// No other thread accesses this element while the output is borrowed.
    unsafe fn set(&self, index: usize, value: T) {
        assert!(index < self.len);
        // SAFETY: inside the borrowed slice, and the caller's alone.
        unsafe { self.start.add(index).write(value) };
    }
}

/// Computes all rows of all batches.
///
/// # Safety
/// The CPU has what `kernels` needs.
pub(super) unsafe fn run<T: Element>(
    kernels: &Kernels,
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    prepared: &Prepared,
    alpha: f32,
    output: &mut [T],
) {
    let scaling = Scaling {
        alpha,
        row_alpha: weights
            .row_alpha
            .map(|alpha| (alpha, weights.row_alpha_batch_stride())),
        vector_globals: match vectors {
            Vectors::Nvfp4(v) => match v.global {
                VectorScale::PerVector(globals) => Some(globals),
                VectorScale::Shared(_) => None,
            },
            _ => None,
        },
    };
    let out = Out {
        start: output.as_mut_ptr(),
        len: output.len(),
    };
    let (m, n) = (shape.m(), shape.n());
    let group = |batch: usize, row: usize, count: usize| {
        let rows = Rows::new(weights, batch, row, count);
        let mut first = 0;
        while first < n {
            // The kernels have instances for 4, 2 and 1.
            let vectors = (1 << (n - first).ilog2()).min(MAX_VECTORS);
            // SAFETY: the caller's promise.
            let sums = unsafe { prepared.sums(kernels, &rows, batch * n + first, vectors) };
            for v in first..first + vectors {
                let vector = batch * n + v;
                for (r, sums) in sums.iter().enumerate().take(count) {
                    let row = row + r * ROW_STEP;
                    let y = scaling.apply(sums[v - first], batch, row, vector);
                    // SAFETY: this batch's rows belong to this group, the group to one job.
                    unsafe { out.set(vector * m + row, T::round(y)) };
                }
            }
            first += vectors;
        }
    };

    let row_blocks = m.div_ceil(ROW_BLOCK);
    let threads = rayon::current_num_threads();
    let groups = *GROUPS
        .iter()
        .find(|&groups| shape.l() * row_blocks * (ROW_STEP / groups) >= JOBS_PER_THREAD * threads)
        .unwrap_or(&GROUPS[GROUPS.len() - 1]);
    let parts = ROW_STEP / groups;
    let job = |job: usize| {
        let (batch, block) = (job / parts / row_blocks, job / parts % row_blocks);
        for i in job % parts * groups..(job % parts + 1) * groups {
            let row = block * ROW_BLOCK + i;
            let rows = m.saturating_sub(row).div_ceil(ROW_STEP).min(MAX_ROWS);
            if rows == MAX_ROWS {
                group(batch, row, MAX_ROWS);
            } else {
                (0..rows).for_each(|r| group(batch, row + r * ROW_STEP, 1));
            }
        }
    };
    let jobs = shape.l() * row_blocks * parts;
    if threads == 1 || shape.weight_bytes().saturating_mul(n) < INLINE_BELOW {
        (0..jobs).for_each(job);
    } else {
        (0..jobs).into_par_iter().for_each(job);
    }
}
