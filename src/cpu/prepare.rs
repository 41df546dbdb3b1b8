//! The vectors as the kernels read them, decoded once a call into memory that calls use again.
//!
//! K is cut into tiles; what the kernels read of all vectors in one tile lies together, vector
//! after vector, so that it fits a cache whatever K is. In a tile an NVFP4 vector is a sequence of
//! steps of 8 or 16 blocks. The blocks of a step are lanes of vector registers; a step holds, a
//! 32-bit word for each lane:
//!
//! | words a lane | what |
//! |---|---|
//! | 4 | twice the block's values as signed bytes: elements 0 2 4 6, then 1 3 5 7, 8 10 12 14 and 9 11 13 15 |
//! | 1 | the block's scale times [`SCALE_FACTOR`], f32 |
//! | 1 | the correction: `-12 · Σx` of the block, i32, for kernels that multiply by `w + 12` |
//!
//! The codes of a block are two dwords of weight bytes; their low nibbles meet the first and the
//! third words, their high nibbles the second and the fourth. So every block is summed inside its
//! lane.
//!
//! A dense vector is f32 values in the order of the implementation, or bf16 parts of values. Or it is made of bytes, for
//! the kernels of NVFP4 vectors: signed bytes stand in the first four words of a lane, not doubled, and the block's scale
//! times [`BYTES_FACTOR`] in the fifth.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::cpu::rows::{Kernels, WHOLE_ROWS_UP_TO};
use crate::cpu::threads::Threads;
use crate::cpu::{Accuracy, Manner};
use crate::error::Result;
use crate::format::{e2m1, e4m3};
use crate::reference::BYTES_LEAST;
use crate::shape::{BLOCK, Shape, Strides};
use crate::tensor::{Nvfp4Vectors, Vectors};
use crate::types::Activation;

/// Elements that the dense order permutes: 64 bytes of codes.
pub(super) const CHUNK: usize = 128;

/// Blocks to which tiles of dense vectors are padded with zeros: the longest step of any kernel.
pub(super) const DENSE_STEP: usize = 16;

/// Lanes of a step of an NVFP4 vector at most.
const MOST_LANES: usize = 16;

/// Words of a block of an NVFP4 vector.
pub(super) const NVFP4_WORDS: usize = 6;

/// Elements below which one thread prepares the vectors.
const INLINE_BELOW: usize = 64 << 10;

/// A cache line of 32-bit words, aligned as one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u32; 16]);

/// The lines as words.
pub(super) fn words(lines: &[Line]) -> &[u32] {
    // SAFETY: a line is 16 words without padding, for as long as the lines are borrowed.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 16) }
}

/// The lines as words, to write.
pub(super) fn words_mut(lines: &mut [Line]) -> &mut [u32] {
    // SAFETY: as in `words`; any word is valid.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

/// Factor of the scales of NVFP4 vectors: a power of two, so products with it are exact. It contains a quarter, because
/// weights and vectors are both doubled to be integers. It contains 2^8, because kernels read an E4M3 weight scale as
/// f16 bits, which makes the scale smaller by that factor.
pub(super) const SCALE_FACTOR: f32 = 256.0 / 4.0;

/// Factor of the scales of vectors in bytes, which are not doubled.
const BYTES_FACTOR: f32 = 256.0 / 2.0;

/// The largest magnitude of vectors that are multiplied as bytes, so that no sum overflows which is a number otherwise.
const BYTES_MOST: f32 = f32::from_bits((127 + 90) << 23);

/// The scale of a block of bytes, by its largest magnitude: a 127th, rounded up to 16 bits. A product with a weight's
/// scale is then exact.
fn byte_scale(most: f32) -> f32 {
    // The product may be rounded down by half of the last of 24 bits, 2^-9 of what is added.
    let scale = most.max(BYTES_LEAST) * (1.0 / 127.0);
    f32::from_bits((scale.to_bits() + 0xff) & !0xff)
}

/// Whether vectors can be multiplied as bytes: neither too large nor NaN.
fn fits_bytes(x: f32) -> bool {
    x.abs() <= BYTES_MOST
}

/// Forms into which vectors are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Steps of blocks, of NVFP4 vectors.
    Nvfp4,
    /// f32 values.
    F32,
    /// So many bf16 values for each element, whose sum the element is.
    Parts(usize),
    /// Bytes with a scale for each block, for the kernels of NVFP4 vectors.
    Bytes,
}

/// The forms of the vectors of a call.
pub(super) enum Forms {
    /// All have this one.
    One(Form),
    /// Those that fit have a form, and the others are f32 values: where another vector shall not decide. `[L][N]`.
    OfEach { form: Form, fit: Vec<bool> },
}

impl Forms {
    /// The forms that suit the vectors and the kernels.
    pub(super) fn of(
        shape: &Shape,
        vectors: &Vectors<'_>,
        kernels: &Kernels,
        manner: Manner,
    ) -> Result<Self> {
        let bytes = manner.accuracy == Accuracy::Bytes;
        let form = match vectors {
            Vectors::Nvfp4(_) => return Ok(Self::One(Form::Nvfp4)),
            _ if bytes => Form::Bytes,
            // With more vectors than those, two parts are slower than one value.
            Vectors::F16(_) if manner.batch_invariant || shape.n() > WHOLE_ROWS_UP_TO => Form::F32,
            Vectors::F16(_) if kernels.parts.is_some() => Form::Parts(2),
            Vectors::Bf16(_) if kernels.parts.is_some() => Form::Parts(1),
            Vectors::F16(_) | Vectors::Bf16(_) | Vectors::F32(_) => Form::F32,
        };
        if form == Form::F32 {
            return Ok(Self::One(form));
        }
        let fit = match vectors {
            Vectors::F16(v) => fit(shape, v.resolve(shape)?, v.values, manner, f16_fits),
            Vectors::Bf16(v) if bytes => fit(shape, v.resolve(shape)?, v.values, manner, |x| {
                fits_bytes(x.to_f32())
            }),
            Vectors::Bf16(v) => fit(shape, v.resolve(shape)?, v.values, manner, bf16_fits),
            Vectors::F32(v) => fit(shape, v.resolve(shape)?, v.values, manner, fits_bytes),
            Vectors::Nvfp4(_) => Fit::All,
        };
        Ok(match fit {
            Fit::All => Self::One(form),
            Fit::NotAll => Self::One(Form::F32),
            Fit::OfEach(fit) => Self::OfEach { form, fit },
        })
    }
}

impl Form {
    /// The forms that vectors of a type may have, as their values decide.
    pub(super) fn possible(
        activation: Activation,
        kernels: &Kernels,
        accuracy: Accuracy,
    ) -> [Self; 2] {
        if accuracy == Accuracy::Bytes && activation != Activation::Nvfp4 {
            return [Self::F32, Self::Bytes];
        }
        match (activation, &kernels.parts) {
            (Activation::Nvfp4, _) => [Self::Nvfp4; 2],
            (Activation::F16, Some(_)) => [Self::F32, Self::Parts(2)],
            (Activation::Bf16, Some(_)) => [Self::F32, Self::Parts(1)],
            (Activation::F16 | Activation::Bf16 | Activation::F32, _) => [Self::F32; 2],
        }
    }
}

/// Whether all elements of vectors fit.
enum Fit {
    All,
    NotAll,
    /// Of each vector, where they differ and where that matters.
    OfEach(Vec<bool>),
}

fn fit<T: Copy>(
    shape: &Shape,
    at: Strides,
    values: &[T],
    manner: Manner,
    fits: impl Fn(T) -> bool,
) -> Fit {
    let vectors = || (0..shape.l()).flat_map(|l| (0..shape.n()).map(move |v| (l, v)));
    let fits = |(l, v): (usize, usize)| {
        let vector = &values[l * at.batch + v * at.row..][..shape.k()];
        // All of a vector, because that takes fewer instructions than to stop early.
        vector.iter().fold(true, |all, &x| all & fits(x))
    };
    match vectors().all(fits) {
        true => Fit::All,
        false if manner.batch_invariant => Fit::OfEach(vectors().map(fits).collect()),
        false => Fit::NotAll,
    }
}

/// Whether the kernels for parts can take a value: it is finite. Its parts are normal numbers, and
/// so are sums of their products, which are multiples of 2^-25.
fn f16_fits(x: f16) -> bool {
    x.to_bits() & 0x7c00 != 0x7c00
}

/// Whether the kernels for parts can take a value: 0 or from 2^-100 to 2^110. The kernels make zero of subnormal
/// numbers. Such values are multiples of 2^-107, weights times their scales are multiples of 2^-10, and sums of
/// products of both are multiples of 2^-117. And no lane overflows: it sums up to 64 products in a K tile, with weights
/// times scales of up to 6 * 448.
fn bf16_fits(x: bf16) -> bool {
    let magnitude = x.to_bits() & 0x7fff;
    magnitude == 0 || (27 << 7..237 << 7).contains(&magnitude)
}

/// Words of a block of a vector in bf16 parts.
pub(super) const fn part_words(parts: usize) -> usize {
    BLOCK / 2 * parts
}

/// Writes 128 values in bf16 parts, in the order in which 16-bit pieces of codes are taken apart:
/// of each four successive elements the first ones, then the second ones. Part by part, the higher
/// bits first.
fn fill_parts(values: &[f32; CHUNK], parts: usize, words: &mut [u32]) {
    for (first, words) in words.chunks_exact_mut(part_words(parts) * 2).enumerate() {
        let mut rest: [f32; CHUNK / 4] = std::array::from_fn(|i| values[i * 4 + first]);
        for words in words.chunks_exact_mut(CHUNK / 8) {
            for (word, rest) in words.iter_mut().zip(rest.as_chunks_mut::<2>().0) {
                let [low, high] = rest.map(|x| x.to_bits() & 0xffff_0000);
                *word = low >> 16 | high;
                // Exact: it takes bits away.
                rest[0] -= f32::from_bits(low);
                rest[1] -= f32::from_bits(high);
            }
        }
    }
}

/// Successive vectors in one K tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    lines: &'a [Line],
    count: usize,
    blocks: usize,
    cut: usize,
}

impl<'a> Tile<'a> {
    /// Vectors.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Blocks of K in this tile, without padding.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks whose lanes are added up before the next ones are begun: some steps, or more than the tile has.
    pub(super) fn cut(&self) -> usize {
        self.cut
    }

    /// The value that sums begin with where this tile is the only one: 0, or what nothing changes. The first tile of
    /// several is added to 0, and so is the first cut.
    pub(super) fn zero(&self) -> f32 {
        if self.cut == usize::MAX { -0.0 } else { 0.0 }
    }

    /// The words of all vectors.
    pub(super) fn words(&self) -> &'a [u32] {
        words(self.lines)
    }

    /// The first word of each vector. Panics unless there are `N` vectors of as many words: what kernels' raw reads
    /// rely on.
    #[inline(always)]
    pub(super) fn vectors<const N: usize>(&self, words_each: usize) -> [*const u32; N] {
        let all = self.words();
        assert!(self.count == N && all.len() == N * words_each);
        std::array::from_fn(|v| all[v * words_each..].as_ptr())
    }
}

/// How the vectors of a call are divided: `[L][K tile][N]`.
pub(super) struct Tiles {
    form: Form,
    n: usize,
    blocks: usize,
    /// Blocks of a K tile; the last may have fewer.
    tile: usize,
    /// As [`Family::cut`](crate::cpu::rows::Family::cut) says.
    cut: usize,
    /// Blocks to a multiple of which a tile is padded.
    step: usize,
    /// Words of a block.
    block_words: usize,
}

impl Tiles {
    pub(super) fn new(
        shape: &Shape,
        form: Form,
        (kernels, batch_invariant): (&Kernels, bool),
    ) -> Self {
        let (n, blocks) = (shape.n(), shape.blocks());
        let family = kernels.family_in(form, batch_invariant);
        Self {
            form,
            n,
            blocks,
            tile: family.tile(n, blocks),
            cut: family.cut(blocks),
            step: match form {
                Form::Nvfp4 | Form::Bytes => kernels.lanes.len(),
                Form::F32 | Form::Parts(_) => DENSE_STEP,
            },
            block_words: match form {
                Form::Nvfp4 | Form::Bytes => NVFP4_WORDS,
                Form::F32 => BLOCK,
                Form::Parts(parts) => part_words(parts),
            },
        }
    }

    /// K tiles of a batch.
    pub(super) fn count(&self) -> usize {
        self.blocks.div_ceil(self.tile)
    }

    /// The first block of a tile, and how many it has.
    pub(super) fn blocks_of(&self, tile: usize) -> (usize, usize) {
        let first = tile * self.tile;
        (first, self.tile.min(self.blocks - first))
    }

    /// Blocks of a tile of so many blocks, with padding.
    pub(super) fn padded(&self, blocks: usize) -> usize {
        blocks.next_multiple_of(self.step)
    }

    /// Words of a batch. All tiles but the last need no padding.
    fn batch_words(&self) -> usize {
        let (first, last) = self.blocks_of(self.count() - 1);
        (first + self.padded(last)) * self.block_words * self.n
    }

    /// Lines of all batches.
    pub(super) fn lines(&self, batches: usize) -> usize {
        batches * self.batch_words() / 16
    }
}

/// All vectors of a call, in lines that were the caller's.
pub(super) struct Prepared<'b> {
    lines: &'b mut Vec<Line>,
    tiles: Tiles,
    /// The vectors that are meant, `[L][N]`, where not all are. The others are zeros.
    only: Option<&'b [bool]>,
}

impl<'b> Prepared<'b> {
    /// Checks and decodes. What `lines` held does not matter.
    pub(super) fn new(
        shape: &Shape,
        vectors: &Vectors<'_>,
        (form, only): (Form, Option<&'b [bool]>),
        (kernels, batch_invariant): (&Kernels, bool),
        lines: &'b mut Vec<Line>,
    ) -> Result<Self> {
        let tiles = Tiles::new(shape, form, (kernels, batch_invariant));
        let mut prepared = Self { lines, tiles, only };
        match vectors {
            Vectors::Nvfp4(v) => prepared.fill_nvfp4(shape, v, kernels.lanes)?,
            Vectors::F16(v) => {
                let at = v.resolve(shape)?;
                prepared.fill_dense(shape, kernels, |l, row, from, out| {
                    let from = l * at.batch + row * at.row + from;
                    v.values[from..][..out.len()].convert_to_f32_slice(out);
                });
            }
            Vectors::Bf16(v) => {
                let at = v.resolve(shape)?;
                prepared.fill_dense(shape, kernels, |l, row, from, out| {
                    let from = l * at.batch + row * at.row + from;
                    v.values[from..][..out.len()].convert_to_f32_slice(out);
                });
            }
            Vectors::F32(v) => {
                let at = v.resolve(shape)?;
                prepared.fill_dense(shape, kernels, |l, row, from, out| {
                    let from = l * at.batch + row * at.row + from;
                    out.copy_from_slice(&v.values[from..][..out.len()]);
                });
            }
        }
        Ok(prepared)
    }

    /// Whether a vector of a batch is meant.
    pub(super) fn has(&self, batch: usize, vector: usize) -> bool {
        (self.only).is_none_or(|only| only[batch * self.tiles.n + vector])
    }

    /// How they are divided.
    pub(super) fn tiles(&self) -> &Tiles {
        &self.tiles
    }

    /// Vectors `first..first + count` of a batch in a tile.
    pub(super) fn tile(&self, batch: usize, tile: usize, first: usize, count: usize) -> Tile<'_> {
        let tiles = &self.tiles;
        assert!(first + count <= tiles.n);
        let (start, blocks) = tiles.blocks_of(tile);
        let words_each = tiles.padded(blocks) * tiles.block_words;
        let start = batch * tiles.batch_words() + start * tiles.block_words * tiles.n;
        let start = start + first * words_each;
        Tile {
            lines: &self.lines[start / 16..][..count * words_each / 16],
            count,
            blocks,
            cut: tiles.cut,
        }
    }

    /// Makes room, then calls `fill(batch, vector, first block, blocks, words)` for every vector
    /// in every tile; large calls on several threads. `fill` writes all of the words, whatever they held.
    fn fill(
        &mut self,
        shape: &Shape,
        fill: impl Fn(usize, usize, usize, usize, &mut [u32]) + Sync,
    ) {
        let (tiles, only) = (&self.tiles, self.only);
        let batch_words = tiles.batch_words();
        if batch_words == 0 {
            return; // no vector
        }
        assert!(tiles.count() == 1 || tiles.tile.is_multiple_of(tiles.step));
        assert!(batch_words.is_multiple_of(16));
        self.lines.resize(tiles.lines(shape.l()), Line([0; 16]));
        let tile_words = tiles.padded(tiles.tile) * tiles.block_words * tiles.n;
        let fill_tile = |batch: usize, (tile, words): (usize, &mut [u32])| {
            let (first, blocks) = tiles.blocks_of(tile);
            let words_each = tiles.padded(blocks) * tiles.block_words;
            for (vector, words) in words.chunks_exact_mut(words_each).enumerate() {
                match only.is_none_or(|only| only[batch * tiles.n + vector]) {
                    true => fill(batch, vector, first, blocks, words),
                    false => words.fill(0),
                }
            }
        };
        let words = words_mut(self.lines);
        if shape.vector_elements() < INLINE_BELOW {
            for (batch, words) in words.chunks_mut(batch_words).enumerate() {
                let of_tiles = words.chunks_mut(tile_words).enumerate();
                of_tiles.for_each(|of_tile| fill_tile(batch, of_tile));
            }
        } else {
            let threads = Threads::current();
            if tiles.count() == 1 {
                threads.for_each_chunk(words, batch_words, |start, words| {
                    fill_tile(start / batch_words, (0, words));
                });
                return;
            }
            for (batch, words) in words.chunks_mut(batch_words).enumerate() {
                threads.for_each_chunk(words, tile_words, |start, words| {
                    fill_tile(batch, (start / tile_words, words));
                });
            }
        }
    }

    fn fill_nvfp4(&mut self, shape: &Shape, v: &Nvfp4Vectors<'_>, lanes: &[usize]) -> Result<()> {
        let at = v.resolve_and_scan(shape)?;
        let step_words = lanes.len() * NVFP4_WORDS;
        self.fill(shape, |batch, vector, first, blocks, words| {
            let codes = batch * at.codes.batch + vector * at.codes.row + first * (BLOCK / 2);
            let codes = v.codes[codes..][..blocks * (BLOCK / 2)].chunks_exact(BLOCK / 2);
            // The last step may have more lanes than there are blocks.
            words[blocks / lanes.len() * step_words..].fill(0);
            for (block, codes) in codes.enumerate() {
                let scale = at.scale_offset(v.layout, shape, batch, vector, first + block);
                let scale = e4m3::decode(v.scales[scale]) * SCALE_FACTOR;
                let step = &mut words[block / lanes.len() * step_words..][..step_words];
                fill_block(step, lanes.len(), lanes[block % lanes.len()], codes, scale);
            }
        });
        Ok(())
    }

    fn fill_bytes(
        &mut self,
        shape: &Shape,
        lanes: &[usize],
        read: impl Fn(usize, usize, usize, &mut [f32]) + Sync,
    ) {
        let step_words = lanes.len() * NVFP4_WORDS;
        self.fill(shape, |batch, vector, first, blocks, words| {
            // The last step may have more lanes than there are blocks.
            words[blocks / lanes.len() * step_words..].fill(0);
            for (number, step) in words.chunks_exact_mut(step_words).enumerate() {
                let before = number * lanes.len();
                let here = lanes.len().min(blocks - before);
                let mut values = [[0.0; BLOCK]; MOST_LANES];
                let values = &mut values[..here];
                read(
                    batch,
                    vector,
                    (first + before) * BLOCK,
                    values.as_flattened_mut(),
                );
                for (values, &lane) in values.iter().zip(lanes) {
                    fill_block_of_bytes(step, lanes.len(), lane, values);
                }
            }
        });
    }

    fn fill_dense(
        &mut self,
        shape: &Shape,
        kernels: &Kernels,
        read: impl Fn(usize, usize, usize, &mut [f32]) + Sync,
    ) {
        let form = self.tiles.form;
        if form == Form::Bytes {
            return self.fill_bytes(shape, kernels.lanes, read);
        }
        let order = kernels.order;
        let chunk_words = CHUNK / BLOCK * self.tiles.block_words;
        self.fill(shape, |batch, vector, first, blocks, words| {
            let mut rest = blocks * BLOCK;
            let mut from = first * BLOCK;
            for words in words.chunks_exact_mut(chunk_words) {
                let mut values = [0.0; CHUNK];
                let here = rest.min(CHUNK);
                read(batch, vector, from, &mut values[..here]);
                match form {
                    Form::Parts(parts) => fill_parts(&values, parts, words),
                    Form::F32 | Form::Nvfp4 | Form::Bytes => {
                        for (word, &element) in words.iter_mut().zip(order) {
                            *word = values[usize::from(element)].to_bits();
                        }
                    }
                }
                from += here;
                rest -= here;
            }
        });
    }
}

/// Writes one lane of a step: a block of a vector in bytes.
#[inline]
fn fill_block_of_bytes(step: &mut [u32], lanes: usize, lane: usize, values: &[f32; BLOCK]) {
    /// 1.5 · 2^23: the lowest byte of a sum with it is the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = byte_scale(most);
    let factor = 1.0 / scale;
    let integers = values.map(|x| (x * factor + ROUND).to_bits() as i32);
    let sum = integers.iter().fold(0i32, |sum, &i| sum.wrapping_add(i));
    // All less what makes them integers.
    let sum = sum.wrapping_sub((ROUND.to_bits() as i32).wrapping_mul(BLOCK as i32));
    for plane in 0..4 {
        let first = plane / 2 * 8 + plane % 2;
        let bytes = [0, 2, 4, 6].map(|i| integers[first + i] as u8);
        step[plane * lanes + lane] = u32::from_le_bytes(bytes);
    }
    step[4 * lanes + lane] = (scale * BYTES_FACTOR).to_bits();
    step[5 * lanes + lane] = (-12 * sum) as u32;
}

/// Twice the values of a byte's two codes, as signed bytes.
pub(super) const DOUBLED: [[i8; 2]; 256] = {
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

/// Writes one lane of a step: a block's 8 bytes of codes and its scale.
fn fill_block(step: &mut [u32], lanes: usize, lane: usize, codes: &[u8], scale: f32) {
    let mut sum = 0;
    for (half, codes) in codes.chunks_exact(4).enumerate() {
        let mut planes = [[0u8; 4]; 2];
        for (i, &byte) in codes.iter().enumerate() {
            let [even, odd] = DOUBLED[usize::from(byte)];
            planes[0][i] = even as u8;
            planes[1][i] = odd as u8;
            sum += i32::from(even) + i32::from(odd);
        }
        for (parity, plane) in planes.into_iter().enumerate() {
            step[(half * 2 + parity) * lanes + lane] = u32::from_le_bytes(plane);
        }
    }
    step[4 * lanes + lane] = scale.to_bits();
    step[5 * lanes + lane] = (-12 * sum) as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of 128 values, in the values' order.
    fn parts_of(values: &[f32; CHUNK], parts: usize) -> Vec<Vec<f32>> {
        let mut words = vec![0; CHUNK / 2 * parts];
        fill_parts(values, parts, &mut words);
        // Value 4 * i + first is half i % 2 of word i / 2 of a part of chunk `first`.
        let at = |value: usize, part: usize| {
            let (i, first) = (value / 4, value % 4);
            let word = words[(first * parts + part) * (CHUNK / 8) + i / 2];
            f32::from_bits(if i % 2 == 0 {
                word << 16
            } else {
                word & 0xffff_0000
            })
        };
        let all = |part| (0..CHUNK).map(|value| at(value, part)).collect();
        (0..parts).map(all).collect()
    }

    fn chunks(all: impl Iterator<Item = f32>) -> Vec<[f32; CHUNK]> {
        let mut all: Vec<f32> = all.collect();
        all.resize(all.len().next_multiple_of(CHUNK), 0.0);
        all.as_chunks().0.to_vec()
    }

    #[test]
    fn every_f16_that_fits_is_the_sum_of_two_normal_parts() {
        let all = (0..=u16::MAX).map(f16::from_bits).filter(|&x| f16_fits(x));
        assert_eq!(
            all.clone().count(),
            2 * 31 * 1024,
            "all but infinities and NaNs"
        );
        for values in chunks(all.map(f32::from)) {
            let parts = parts_of(&values, 2);
            for (i, value) in values.into_iter().enumerate() {
                let [high, low] = [parts[0][i], parts[1][i]];
                assert_eq!(high + low, value);
                assert!(
                    [high, low]
                        .iter()
                        .all(|part| *part == 0.0 || part.is_normal())
                );
            }
        }
    }

    #[test]
    fn every_bf16_is_its_one_part() {
        let all = (0..=u16::MAX)
            .map(bf16::from_bits)
            .filter(|x| x.is_finite());
        for values in chunks(all.map(f32::from)) {
            assert_eq!(parts_of(&values, 1), [values.to_vec()]);
        }
    }

    /// From 2^-100 to below 2^110, and zeros.
    #[test]
    fn bf16_values_that_instructions_would_change_do_not_fit() {
        for sign in [0, 0x8000] {
            for (bits, fits) in [
                (0, true),
                (1, false),
                (0x0d7f, false),
                (0x0d80, true),
                (0x767f, true),
                (0x7680, false),
                (0x7f80, false),
                (0x7fc0, false),
            ] {
                assert_eq!(bf16_fits(bf16::from_bits(bits | sign)), fits, "{bits:#x}");
            }
        }
        assert_eq!(bf16::from_bits(0x0d80).to_f64(), 2f64.powi(-100));
        assert_eq!(bf16::from_bits(0x7680).to_f64(), 2f64.powi(110));
    }
}
