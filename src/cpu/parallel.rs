//! Rows over threads, the loops around the kernels, and the way from their sums to the output.
//!
//! A job is some of the rows of a row block. It goes through K tile by tile, through its rows strip
//! by strip, and through the vectors by up to four. Up to two vectors fit a cache whatever K is, so
//! there the only tile is the whole K.
//!
//! How rows are grouped never changes a result: each row is summed in the same order whichever
//! rows share its kernel call.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::cpu::ahead::Ahead;
use crate::cpu::buffers::reserve;
use crate::cpu::prepare::{Line, Prepared, Tiles};
use crate::cpu::rows::{
    Decoded, Decoding, Family, GROUP_ROWS, MAX_VECTORS, ROW_BLOCK, ROW_STEP, Row, Rows, Run,
    STRIP_GROUPS, SumsOfRows, WHOLE_ROWS_UP_TO,
};
use crate::cpu::scales;
use crate::cpu::threads::Threads;
use crate::element::{Element, FloatsMut};
use crate::error::Result;
use crate::memory::Host;
use crate::output::{Output, OutputLayout, Residual};
use crate::shape::Shape;
use crate::tensor::{VectorScale, Vectors, Weights};
use crate::types::ScaleLayout;

/// Row groups of a job: whole strips.
const GROUPS: [usize; 4] = [32, 16, 8, STRIP_GROUPS];

/// Jobs a thread, so that a slow one is waited for by no more than a fraction of the time.
const JOBS_PER_THREAD: usize = 8;

/// Bytes of weights times vectors below which a job is not divided any further.
const JOB: usize = 64 << 10;

/// Everything that multiplies a sum: alpha, the row's alpha and the vector's global scale.
struct Scaling<'a> {
    alpha: f32,
    /// Row alphas, and the elements from one matrix's to the next's.
    row_alpha: Option<(&'a [f32], usize)>,
    vector_globals: Option<&'a [f32]>,
    /// Vectors of a batch.
    vectors: usize,
}

impl Scaling<'_> {
    /// Multiplies sums of a vector and of successive rows of a matrix, the first of which is `row`. In f64, which holds
    /// every product of four f32 numbers in its normal range: nothing overflows or vanishes on the way to a result that
    /// f32 has.
    #[inline(always)]
    fn apply(&self, sums: &mut [f64], matrix: usize, row: usize, vector: usize) {
        sums.iter_mut().for_each(|y| *y *= f64::from(self.alpha));
        if let Some((alpha, stride)) = self.row_alpha {
            let alpha = &alpha[matrix * stride + row..][..sums.len()];
            sums.iter_mut()
                .zip(alpha)
                .for_each(|(y, of)| *y *= f64::from(*of));
        }
        if let Some(globals) = self.vector_globals {
            let global = f64::from(globals[vector]);
            sums.iter_mut().for_each(|y| *y *= global);
        }
    }
}

/// The output, which several threads write, each its own elements, and what is added to it.
struct Out<'a, T> {
    start: *mut T,
    len: usize,
    layout: OutputLayout,
    bias: Option<&'a [f32]>,
    residual: Option<Residual<'a, Host>>,
}

// SAFETY: `run` gives each row of a batch to one job, and no other reads or writes its elements: strides that were
// checked make indices distinct. The slices may be shared.
unsafe impl<T: Send> Sync for Out<'_, T> {}

impl<'a, T: Element> Out<'a, T> {
    fn new(
        output: &'a mut [T],
        layout: OutputLayout,
        bias: Option<&'a [f32]>,
        residual: Option<Residual<'a, Host>>,
    ) -> Self {
        Self {
            start: output.as_mut_ptr(),
            len: output.len(),
            layout,
            bias,
            residual,
        }
    }

    /// Ends results of a vector and of successive rows of a batch's matrix, the first of which is `row`: adds in f64,
    /// rounds and stores. All that is added to results is added here, of one row or of many, whose loops become vector
    /// code.
    ///
    /// # Safety
    /// No other thread accesses these elements while the output is borrowed.
    #[inline(always)]
    unsafe fn end(&self, [batch, n, row]: [usize; 3], matrix: Option<usize>, ys: &mut [f64]) {
        let (strides, count) = (&self.layout.strides, ys.len());
        let start = batch * strides.batch + n * strides.row + row;
        assert!(start + count <= self.len);
        // SAFETY: inside the borrowed slice, and the caller's alone.
        let to = unsafe { std::slice::from_raw_parts_mut(self.start.add(start), count) };
        if let (Some(bias), Some(matrix)) = (self.bias, matrix) {
            let bias = &bias[matrix * self.layout.bias_batch + row..][..count];
            ys.iter_mut()
                .zip(bias)
                .for_each(|(y, of)| *y += f64::from(*of));
        }
        match &self.residual {
            None => {}
            Some(Residual::Itself) => {
                let to = to.iter();
                ys.iter_mut()
                    .zip(to)
                    .for_each(|(y, of)| *y += f64::from(of.to_f32()));
            }
            Some(Residual::Of(r)) => {
                ys.iter_mut()
                    .enumerate()
                    .for_each(|(i, y)| *y += r.get(start + i));
            }
        }
        for (to, &y) in to.iter_mut().zip(&*ys) {
            *to = T::round(y as f32);
        }
    }

    /// Multiplies sums of successive rows by their factors, and [ends](Self::end) them.
    ///
    /// # Safety
    /// As [`end`](Self::end).
    unsafe fn end_sums<'s>(
        &self,
        [batch, n, row]: [usize; 3],
        matrix: usize,
        (sums, count): (impl Iterator<Item = &'s f32>, usize),
        scaling: &Scaling<'_>,
    ) {
        let mut ys = [0.0f64; ROW_STEP];
        let ys = &mut ys[..count];
        for (y, &sum) in ys.iter_mut().zip(sums) {
            *y = f64::from(sum);
        }
        scaling.apply(ys, matrix, row, batch * scaling.vectors + n);
        // SAFETY: the caller's promise.
        unsafe { self.end([batch, n, row], Some(matrix), ys) };
    }
}

/// Writes every element of an output: `value([batch, n, row])`, with what the output adds for a row of the matrix that
/// the batch has. `layout` is what [`Output::resolve`] says for the shape.
pub(crate) fn write(
    shape: &Shape,
    (output, layout): (Output<'_>, OutputLayout),
    matrix_of: impl Fn(usize) -> Option<usize> + Sync,
    value: impl Fn([usize; 3]) -> f64 + Sync,
) {
    fn all<T: Element>(
        shape: &Shape,
        out: &Out<'_, T>,
        matrix_of: impl Fn(usize) -> Option<usize> + Sync,
        value: impl Fn([usize; 3]) -> f64 + Sync,
    ) {
        let parts = shape.m().div_ceil(WRITTEN_AT_ONCE);
        let part = |_: usize, job: usize| {
            let (vector, first) = (job / parts, job % parts * WRITTEN_AT_ONCE);
            let (batch, n) = (vector / shape.n(), vector % shape.n());
            for row in first..shape.m().min(first + WRITTEN_AT_ONCE) {
                let at = [batch, n, row];
                // SAFETY: each element comes once.
                unsafe { out.end(at, matrix_of(batch), &mut [value(at)]) };
            }
        };
        let (threads, jobs) = (Threads::current(), shape.l() * shape.n() * parts);
        match jobs {
            0 | 1 => threads.alone(jobs, part),
            _ => threads.for_each(jobs, part),
        }
    }
    let Output {
        elements,
        bias,
        residual,
        ..
    } = output;
    match elements {
        FloatsMut::F16(y) => all(
            shape,
            &Out::new(y, layout, bias, residual),
            matrix_of,
            value,
        ),
        FloatsMut::Bf16(y) => all(
            shape,
            &Out::new(y, layout, bias, residual),
            matrix_of,
            value,
        ),
        FloatsMut::F32(y) => all(
            shape,
            &Out::new(y, layout, bias, residual),
            matrix_of,
            value,
        ),
    }
}

/// Elements of an output that a thread writes at least.
const WRITTEN_AT_ONCE: usize = 1024;

/// Buffers that a job needs beside the operands. A thread has one set, for its jobs one after the other.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The job's rows in the order of the computation: strip by strip, group by group.
    rows: Vec<JobRow>,
    /// Each strip's rows in `rows`.
    strips: Vec<Range<usize>>,
    /// `[row][vector]`, rows as in `rows`.
    sums: Vec<f32>,
    /// A strip's scales in one K tile, row by row, where the weights' layout is another.
    scales: Vec<u8>,
    /// Rows as a kernel has decoded them.
    decoded: Vec<Line>,
}

impl Scratch {
    /// Makes room for any job of a call, so that a job allocates nothing.
    pub(super) fn reserve(
        &mut self,
        family: &Family,
        shape: &Shape,
        layout: ScaleLayout,
        tiles: &Tiles,
    ) -> Result<()> {
        let (n, blocks) = (shape.n(), tiles.blocks_of(0).1);
        let decoding = family.decoding(n);
        let rows = GROUPS[0] * GROUP_ROWS;
        reserve(&mut self.rows, rows)?;
        reserve(&mut self.strips, GROUPS[0])?;
        reserve(&mut self.sums, rows * n)?;
        if layout == ScaleLayout::Tiled128x4 {
            let groups = strip_groups(layout, decoding, GROUPS[0], blocks);
            reserve(
                &mut self.scales,
                groups * GROUP_ROWS * scales::pitch(blocks),
            )?;
        }
        if let Some(decoding) = decoding {
            let lines = decoding.rows * row_lines(decoding, tiles.padded(blocks));
            reserve(&mut self.decoded, lines)?;
        }
        Ok(())
    }
}

/// Groups of a strip of a job with so many groups, where a K tile has so many blocks.
fn strip_groups(
    layout: ScaleLayout,
    decoding: Option<&Decoding>,
    groups: usize,
    blocks: usize,
) -> usize {
    match (layout, decoding) {
        // As few as are decoded at once: their scales stay in the first-level cache.
        (ScaleLayout::Tiled128x4, Some(_)) => STRIP_GROUPS,
        _ => scales::groups_at_once(groups, blocks),
    }
}

/// Lines of a decoded row of so many blocks, padding included.
fn row_lines(decoding: &Decoding, padded: usize) -> usize {
    (padded * decoding.bytes).div_ceil(size_of::<Line>())
}

/// A row of a job.
#[derive(Clone, Copy, Debug)]
struct JobRow {
    /// Index of the row in the batch.
    row: usize,
    /// Index of the row in the strip.
    slot: usize,
}

/// The rows that are computed together, in one K tile.
struct Strip<'a> {
    rows: &'a [JobRow],
    /// Rows that it has room for: fewer are there where the matrix ends.
    slots: usize,
    batch: usize,
    matrix: usize,
    tile: usize,
    /// The tile's first block, and how many it has.
    first: usize,
    blocks: usize,
    /// From these rows' codes in this tile to those that will be read after them, in bytes.
    next: isize,
    /// Distance to the next scales in the 128x4 layout, in bytes.
    next_scales: isize,
}

/// A call.
struct Call<'a, 'w> {
    family: &'a Family,
    shape: &'a Shape,
    weights: &'a Weights<'w>,
    prepared: &'a Prepared<'a>,
}

impl Call<'_, '_> {
    /// Sums some rows: `groups` groups from `first` on of the row block that starts at row `block`. The sums are 0 where
    /// the batch has no matrix.
    ///
    /// # Safety
    /// The CPU has what the kernels need.
    unsafe fn job(
        &self,
        batch: usize,
        block: usize,
        first: usize,
        groups: usize,
        scratch: &mut Scratch,
    ) {
        let (m, n, row_bytes) = (self.shape.m(), self.shape.n(), self.shape.row_code_bytes());
        let tiles = self.prepared.tiles();
        let blocks_each = tiles.blocks_of(0).1;
        let decoding = self.family.decoding(n);
        let strip_groups = strip_groups(self.weights.layout, decoding, groups, blocks_each);
        scratch.rows.clear();
        for group in 0..groups {
            for r in 0..GROUP_ROWS {
                let row = block + first + group + r * ROW_STEP;
                let slot = group % strip_groups * GROUP_ROWS + r;
                if row < m {
                    scratch.rows.push(JobRow { row, slot });
                }
            }
        }
        scratch.sums.clear();
        scratch.sums.resize(scratch.rows.len() * n, 0.0);
        let Some(matrix) = self.weights.matrix_of(batch) else {
            return;
        };
        let rows = std::mem::take(&mut scratch.rows);
        let slots = strip_groups * GROUP_ROWS;
        let rows_bytes = (strip_groups * row_bytes) as isize;
        // A strip ends where slots start over.
        let mut strips = std::mem::take(&mut scratch.strips);
        strips.clear();
        for strip in rows.chunk_by(|a, b| a.slot < b.slot) {
            let start = strips.last().map_or(0, |before| before.end);
            strips.push(start..start + strip.len());
        }
        let mut sums = std::mem::take(&mut scratch.sums);
        let mut add = |strip: usize, tile: usize, next: (usize, usize)| {
            let (first, blocks) = tiles.blocks_of(tile);
            let strips_on = next.0 as isize - strip as isize;
            let blocks_on = (next.1 * blocks_each) as isize - first as isize;
            let Range { start, end } = strips[strip];
            let strip = Strip {
                rows: &rows[start..end],
                slots,
                batch,
                matrix,
                tile,
                first,
                blocks,
                next: strips_on * rows_bytes + blocks_on * 8,
                next_scales: strips_on * scales::atom_bytes(slots) as isize
                    + blocks_on / 4 * scales::ATOM as isize,
            };
            let sums = &mut sums[start * n..end * n];
            // SAFETY: the caller's promise.
            unsafe { self.strip(&strip, scratch, sums) };
        };
        let tiles = tiles.count();
        if decoding.is_some() {
            for tile in 0..tiles {
                for strip in 0..strips.len() {
                    let last = strip + 1 == strips.len();
                    add(
                        strip,
                        tile,
                        if last {
                            (0, tile + 1)
                        } else {
                            (strip + 1, tile)
                        },
                    );
                }
            }
        } else {
            for strip in 0..strips.len() {
                for tile in 0..tiles {
                    let last = tile + 1 == tiles;
                    add(
                        strip,
                        tile,
                        if last {
                            (strip + 1, 0)
                        } else {
                            (strip, tile + 1)
                        },
                    );
                }
            }
        }
        scratch.sums = sums;
        scratch.strips = strips;
        scratch.rows = rows;
    }

    /// Adds one K tile to the sums of a strip.
    ///
    /// # Safety
    /// As [`job`](Self::job).
    unsafe fn strip(&self, strip: &Strip<'_>, scratch: &mut Scratch, sums: &mut [f32]) {
        let Scratch {
            scales, decoded, ..
        } = scratch;
        if self.weights.layout == ScaleLayout::Tiled128x4 {
            self.scales_into_rows(strip, scales);
        }
        match self.family.decoding(self.shape.n()) {
            // SAFETY: the caller's promise.
            Some(decoding) => unsafe { self.decoded(decoding, strip, scales, decoded, sums) },
            // SAFETY: the caller's promise.
            None => unsafe { self.direct(strip, scales, sums) },
        }
    }

    fn scales_into_rows(&self, strip: &Strip<'_>, out: &mut Vec<u8>) {
        out.resize(strip.slots * scales::pitch(strip.blocks), 0);
        let (blocks, layout) = (self.shape.blocks(), self.weights.layout);
        let matrix = strip.matrix * layout.bytes(self.shape.m(), blocks);
        let start = matrix + layout.offset(strip.rows[0].row, strip.first, blocks);
        scales::into_rows(
            &self.weights.scales[start..],
            (strip.slots, strip.blocks),
            strip.next_scales,
            out,
        );
    }

    /// Distances to what is fetched while a row of a strip, or rows near it, are read: to the rows so many groups on.
    fn ahead(&self, strip: &Strip<'_>, row: JobRow, groups_on: usize) -> Ahead {
        let mut ahead = match self.family.reads_whole_rows(self.shape.n()) {
            true => Ahead::whole_rows(),
            false => {
                let (group, groups) = (row.slot / GROUP_ROWS, strip.slots / GROUP_ROWS);
                let row_bytes = self.shape.row_code_bytes() as isize;
                let codes = match group + groups_on < groups {
                    true => groups_on as isize * row_bytes,
                    // As far into the next strip as it lies behind this one.
                    false => strip.next - (groups - groups_on) as isize * row_bytes,
                };
                Ahead {
                    codes,
                    scales: codes / 8,
                    near: true,
                }
            }
        };
        if self.weights.layout == ScaleLayout::Tiled128x4 {
            // The scales have been brought into rows, so they are in the caches.
            ahead.scales = 0;
        }
        ahead
    }

    /// A row of a strip. `scales` are the strip's, brought into rows, unless they lie so anyway.
    fn row<'a>(
        &'a self,
        strip: &Strip<'_>,
        row: JobRow,
        scales: &'a [u8],
        ahead: Ahead,
    ) -> Row<'a> {
        let (m, blocks) = (self.shape.m(), self.shape.blocks());
        let start = (strip.matrix * m + row.row) * blocks + strip.first;
        let scales = match self.weights.layout {
            ScaleLayout::Linear => &self.weights.scales[start..],
            ScaleLayout::Tiled128x4 => &scales[row.slot * scales::pitch(strip.blocks)..],
        };
        Row {
            codes: &self.weights.codes[start * 8..][..strip.blocks * 8],
            scales: &scales[..strip.blocks],
            ahead,
        }
    }

    /// Few vectors: all of them with each group of rows.
    ///
    /// # Safety
    /// As [`job`](Self::job).
    unsafe fn direct(&self, strip: &Strip<'_>, scales: &[u8], sums: &mut [f32]) {
        let n = self.shape.n();
        let groups = strip
            .rows
            .chunk_by(|a, b| a.slot / GROUP_ROWS == b.slot / GROUP_ROWS);
        // The kernels have instances for 4 rows and for 1.
        let groups = groups.flat_map(|group| match group.len() {
            GROUP_ROWS => group.chunks(GROUP_ROWS),
            _ => group.chunks(1),
        });
        let mut sums = sums.chunks_exact_mut(n);
        for group in groups {
            let count = group.len();
            let ahead = self.ahead(strip, group[0], 1);
            let row = |r: usize| self.row(strip, group[r.min(count - 1)], scales, ahead);
            let rows = Rows {
                count,
                rows: std::array::from_fn(row),
            };
            let mut sums: [&mut [f32]; GROUP_ROWS] = std::array::from_fn(|r| match r < count {
                true => sums.next().unwrap_or_default(),
                false => Default::default(),
            });
            for first in (0..n).step_by(MAX_VECTORS) {
                let vectors = MAX_VECTORS.min(n - first);
                let x = self.prepared.tile(strip.batch, strip.tile, first, vectors);
                let mut of_group = [[0.0; MAX_VECTORS]; GROUP_ROWS];
                for (of_row, sums) in of_group.iter_mut().zip(&sums).take(count) {
                    of_row[..vectors].copy_from_slice(&sums[first..][..vectors]);
                }
                // SAFETY: the caller's promise.
                unsafe { (self.family.direct)(&rows, &x, &mut of_group) };
                for (sums, of_row) in sums.iter_mut().zip(&of_group).take(count) {
                    sums[first..][..vectors].copy_from_slice(&of_row[..vectors]);
                }
            }
        }
    }

    /// More vectors: some rows are decoded, then multiplied with all vectors.
    ///
    /// # Safety
    /// As [`job`](Self::job).
    unsafe fn decoded(
        &self,
        decoding: &Decoding,
        strip: &Strip<'_>,
        scales: &[u8],
        decoded: &mut Vec<Line>,
        sums: &mut [f32],
    ) {
        let n = self.shape.n();
        let row_lines = row_lines(decoding, self.prepared.tiles().padded(strip.blocks));
        decoded.resize(decoding.rows * row_lines, Line([0; 16]));
        let groups_on = decoding.rows.div_ceil(GROUP_ROWS);
        let rows_at_once = strip.rows.chunks(decoding.rows);
        for (rows, sums) in rows_at_once.zip(sums.chunks_mut(decoding.rows * n)) {
            let ahead = self.ahead(strip, rows[0], groups_on);
            let lines = &mut decoded[..rows.len() * row_lines];
            for (&row, lines) in rows.iter().zip(lines.chunks_exact_mut(row_lines)) {
                // SAFETY: the caller's promise.
                unsafe { (decoding.decode)(&self.row(strip, row, scales, ahead), lines) };
            }
            for first in (0..n).step_by(MAX_VECTORS) {
                let count = MAX_VECTORS.min(n - first);
                let x = self.prepared.tile(strip.batch, strip.tile, first, count);
                let decoded = Decoded {
                    lines,
                    rows: rows.len(),
                };
                let sums = SumsOfRows {
                    sums: &mut sums[first..],
                    pitch: n,
                };
                // SAFETY: the caller's promise.
                unsafe { (decoding.multiply)(&decoded, &x, sums) };
            }
        }
    }
}

/// Computes all rows of all batches: of each of the prepared sets of vectors, with its kernels, the results of the
/// vectors that it has. `scratch` gets a set for each thread, where it has fewer.
///
/// # Safety
/// The CPU has what the kernels need.
pub(super) unsafe fn run(
    sets: &[(Family, Prepared<'_>)],
    shape: &Shape,
    weights: &Weights<'_>,
    vectors: &Vectors<'_>,
    scratch: &mut Vec<Mutex<Scratch>>,
    alpha: f32,
    (output, layout): (Output<'_>, OutputLayout),
) {
    let threads = Threads::current();
    if scratch.len() < threads.count() {
        scratch.resize_with(threads.count(), Mutex::default);
    }
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
        vectors: shape.n(),
    };
    /// # Safety
    /// The CPU has what the kernels need.
    unsafe fn all<T: Element>(
        sets: &[(Family, Prepared<'_>)],
        (shape, weights): (&Shape, &Weights<'_>),
        (scaling, out): (&Scaling<'_>, &Out<'_, T>),
        on: (&Threads, &[Mutex<Scratch>]),
    ) {
        for (family, prepared) in sets {
            let call = Call {
                family,
                shape,
                weights,
                prepared,
            };
            // SAFETY: the caller's promise.
            unsafe { call.run(scaling, out, on) };
        }
    }
    let of = (shape, weights);
    let Output {
        elements,
        bias,
        residual,
        ..
    } = output;
    let on = (&threads, &**scratch);
    // SAFETY: the caller's promise.
    unsafe {
        match elements {
            FloatsMut::F16(y) => {
                all(
                    sets,
                    of,
                    (&scaling, &Out::new(y, layout, bias, residual)),
                    on,
                );
            }
            FloatsMut::Bf16(y) => {
                all(
                    sets,
                    of,
                    (&scaling, &Out::new(y, layout, bias, residual)),
                    on,
                );
            }
            FloatsMut::F32(y) => {
                all(
                    sets,
                    of,
                    (&scaling, &Out::new(y, layout, bias, residual)),
                    on,
                );
            }
        }
    }
}

impl Call<'_, '_> {
    /// Computes what [`job`](Self::job) does, of so few vectors that K is one tile, to the output. With small matrices what
    /// is done for each row beside the kernel's work takes as long as that, so it is little. Returns whether it did:
    /// not of the last rows, where 128x4 scales end within an atom.
    ///
    /// # Safety
    /// As [`job`](Self::job); the rows' elements of the output are this call's.
    unsafe fn whole_rows<T: Element>(
        &self,
        [batch, matrix, block]: [usize; 3],
        (first, groups): (usize, usize),
        scratch: &mut Scratch,
        (scaling, out): (&Scaling<'_>, &Out<'_, T>),
    ) -> bool {
        let (m, n, blocks) = (self.shape.m(), self.shape.n(), self.shape.blocks());
        let (row_bytes, layout) = (self.shape.row_code_bytes(), self.weights.layout);
        let is_tiled = layout == ScaleLayout::Tiled128x4;
        let left = ROW_BLOCK.min(m - block);
        let Some(run) = self.family.run.filter(|_| left == ROW_BLOCK || !is_tiled) else {
            return false;
        };
        let x = self.prepared.tile(batch, 0, 0, n);
        // At the end of the matrix, the rows of a group are as far apart as there are groups.
        let step = left / GROUP_ROWS;
        let end = step.min(first + groups);
        let at_once = strip_groups(layout, None, groups, blocks);
        for first in (first..end).step_by(at_once) {
            let groups = at_once.min(end - first);
            let row = matrix * m + block + first;
            let (scales, scale_steps) = match layout {
                ScaleLayout::Linear => (
                    &self.weights.scales[row * blocks..],
                    [blocks, step * blocks],
                ),
                ScaleLayout::Tiled128x4 => {
                    let slots = groups * GROUP_ROWS;
                    self.scales_into_rows(
                        &Strip {
                            rows: &[JobRow {
                                row: block + first,
                                slot: 0,
                            }],
                            slots,
                            batch,
                            matrix,
                            tile: 0,
                            first: 0,
                            blocks,
                            next: 0,
                            next_scales: scales::atom_bytes(slots) as isize,
                        },
                        &mut scratch.scales,
                    );
                    let pitch = scales::pitch(blocks);
                    (&scratch.scales[..], [GROUP_ROWS * pitch, pitch])
                }
            };
            let mut ahead = Ahead::whole_rows();
            if is_tiled {
                // The scales have been brought into rows, so they are in the caches.
                ahead.scales = 0;
            }
            let of_groups = Run {
                codes: &self.weights.codes[row * row_bytes..],
                scales,
                code_steps: [row_bytes, step * row_bytes],
                scale_steps,
                groups,
                ahead,
            };
            let mut sums = [0.0; ROW_BLOCK * WHOLE_ROWS_UP_TO];
            let sums = &mut sums[..groups * GROUP_ROWS * n];
            // SAFETY: the caller's promise.
            unsafe { run(&of_groups, &x, sums) };
            for v in (0..n).filter(|&v| self.prepared.has(batch, v)) {
                for r in 0..GROUP_ROWS {
                    let sums = sums[r * n + v..].iter().step_by(GROUP_ROWS * n);
                    let at = [batch, v, block + r * step + first];
                    // SAFETY: the caller's promise.
                    unsafe { out.end_sums(at, matrix, (sums, groups), scaling) };
                }
            }
        }
        if first == 0 {
            // Too few for a group.
            for row in block + step * GROUP_ROWS..block + left {
                let start = matrix * m + row;
                let row_of = Row {
                    codes: &self.weights.codes[start * row_bytes..][..row_bytes],
                    scales: &self.weights.scales[start * blocks..][..blocks],
                    ahead: Ahead::whole_rows(),
                };
                let rows = Rows {
                    count: 1,
                    rows: [row_of; GROUP_ROWS],
                };
                let mut sums = [[x.zero(); MAX_VECTORS]; GROUP_ROWS];
                // SAFETY: the caller's promise.
                unsafe { (self.family.direct)(&rows, &x, &mut sums) };
                let sums = sums[0][..n].iter().enumerate();
                for (v, sum) in sums.filter(|&(v, _)| self.prepared.has(batch, v)) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        out.end_sums([batch, v, row], matrix, ([sum].into_iter(), 1), scaling)
                    };
                }
            }
        }
        true
    }

    /// Computes all rows of all batches, to the output.
    ///
    /// # Safety
    /// The CPU has what the kernels need.
    unsafe fn run<T: Element>(
        &self,
        scaling: &Scaling<'_>,
        out: &Out<'_, T>,
        (threads, scratch): (&Threads, &[Mutex<Scratch>]),
    ) {
        let (m, n) = (self.shape.m(), self.shape.n());
        let row_blocks = m.div_ceil(ROW_BLOCK);
        let weights = self.shape.weight_bytes().saturating_mul(n);
        let alone = threads.count() == 1 || weights < threads.alone_below();
        let enough = JOBS_PER_THREAD * threads.count();
        let jobs_of = |groups: usize| self.shape.l() * row_blocks * (ROW_STEP / groups);
        let groups = match alone {
            true => GROUPS[0],
            false => *GROUPS
                .iter()
                .find(|&&groups| jobs_of(groups) >= enough || weights / jobs_of(groups) < JOB)
                .unwrap_or(&GROUPS[GROUPS.len() - 1]),
        };
        let parts = ROW_STEP / groups;
        let job = |thread: usize, job: usize| {
            // A thread has its own; a job waits for no other one, so nobody else's thread waits here.
            let own = &scratch[thread];
            let scratch = &mut *own.lock().unwrap_or_else(PoisonError::into_inner);
            let (batch, block) = (job / parts / row_blocks, job / parts % row_blocks);
            let (block, first) = (block * ROW_BLOCK, job % parts * groups);
            let matrix = self.weights.matrix_of(batch);
            if let (true, Some(matrix)) = (self.family.reads_whole_rows(n), matrix) {
                let (of_block, to) = ([batch, matrix, block], (scaling, out));
                // SAFETY: the caller's promise; this batch's rows belong to this job alone.
                if unsafe { self.whole_rows(of_block, (first, groups), scratch, to) } {
                    return;
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.job(batch, block, first, groups, scratch) };
            // Vector by vector: the results of one row lie M apart, for many M all in one set of the first-level cache.
            for v in (0..n).filter(|&v| self.prepared.has(batch, v)) {
                let sums = scratch.sums.iter().skip(v).step_by(n);
                for (&JobRow { row, .. }, &sum) in scratch.rows.iter().zip(sums) {
                    let mut y = [0.0];
                    if let Some(matrix) = matrix {
                        y = [f64::from(sum)];
                        scaling.apply(&mut y, matrix, row, batch * n + v);
                    }
                    // SAFETY: this batch's row belongs to this job alone.
                    unsafe { out.end([batch, v, row], matrix, &mut y) };
                }
            }
        };
        let jobs = jobs_of(groups);
        match alone {
            true => threads.alone(jobs, job),
            false => threads.for_each(jobs, job),
        }
    }
}
