//! Inputs of the kernels, from weights and vectors, and the kernels' results.

use crate::cpu::ahead::Ahead;
use crate::cpu::prepare::{DENSE_STEP, Form, Line, Tile};

/// Rows of a group: what a direct kernel takes at once.
pub(super) const GROUP_ROWS: usize = 4;

/// Vectors that a kernel takes at once at most.
pub(super) const MAX_VECTORS: usize = 4;

/// Rows of a group lie this far apart: those of a 128x4 atom that share 16 bytes.
pub(super) const ROW_STEP: usize = 32;

/// Rows of a row block: those that share the atoms of the 128x4 layout.
pub(super) const ROW_BLOCK: usize = GROUP_ROWS * ROW_STEP;

/// The fewest groups of a strip, whose rows are computed for one K tile before the next rows: a cache line of 128x4
/// scales serves as many.
pub(super) const STRIP_GROUPS: usize = 4;

/// The most vectors for which a direct kernel reads whole rows. From more on, the vectors would
/// not stay in the first-level cache, so K is cut into tiles.
pub(super) const WHOLE_ROWS_UP_TO: usize = 2;

/// The functions and sizes of one implementation.
///
/// The functions are unsafe to call on a CPU without the features of their implementation; all
/// else they check.
pub(super) struct Kernels {
    /// The lane that holds each block of a step of the NVFP4 kernels; as many blocks as a step
    /// has, 8 or 16.
    pub(super) lanes: &'static [usize],
    /// The element of each 128 that the dense kernels read at each position.
    pub(super) order: &'static [u8; 128],
    /// The kernels for NVFP4 vectors, and for others in bytes.
    pub(super) nvfp4: Family,
    /// The kernels for f32 vectors, which f16 and bf16 ones become.
    pub(super) dense: Family,
    /// The kernels for f16 and bf16 vectors in one bf16 part and in two, where there are such kernels.
    pub(super) parts: Option<[Family; 2]>,
}

impl Kernels {
    /// The kernels for vectors in a form, which is [`Form::Parts`] only where there are kernels for it.
    pub(super) const fn family(&self, form: Form) -> &Family {
        match (form, &self.parts) {
            (Form::Nvfp4 | Form::Bytes, _) => &self.nvfp4,
            (Form::F32, _) => &self.dense,
            (Form::Parts(parts), Some(families)) => &families[parts - 1],
            (Form::Parts(_), None) => panic!("no kernels for parts"),
        }
    }

    /// As [`family`](Self::family); with an order of sums that the number of vectors does not change, where that is
    /// asked for. The integer that the products of a block make is the same in both kernels.
    pub(super) const fn family_in(&self, form: Form, batch_invariant: bool) -> Family {
        let family = *self.family(form);
        match batch_invariant {
            true => family.batch_invariant(matches!(form, Form::Nvfp4 | Form::Bytes)),
            false => family,
        }
    }
}

/// The kernels for one kind of vectors, and the sizes that suit them.
#[derive(Clone, Copy)]
pub(super) struct Family {
    /// The kernel for few vectors: multiplies weights while they are in registers.
    ///
    /// The kernel takes one row or a group of rows times up to [`MAX_VECTORS`] vectors of a tile, and adds to their
    /// sums.
    pub(super) direct: unsafe fn(&Rows<'_>, &Tile<'_>, &mut Sums),
    /// `direct` for many groups of rows and as many vectors as have whole rows, where there is one.
    pub(super) run: Option<unsafe fn(&Run<'_>, &Tile<'_>, &mut [f32])>,
    /// Blocks of a K tile for `direct` and up to [`MAX_VECTORS`], where it does not read whole rows; for more, tiles
    /// are half as long.
    pub(super) direct_tile: usize,
    /// The most vectors for which `direct` is faster than `decoding`.
    pub(super) direct_up_to: usize,
    /// The kernels for more vectors, where decoding once is ever faster.
    pub(super) decoding: Option<Decoding>,
    /// Blocks, about, whose lanes are added up before the next ones are begun, whatever the number of vectors; `None`:
    /// those of a K tile, whose length is as their number suits.
    pub(super) cut: Option<usize>,
}

/// Kernels that decode weights once for all vectors.
#[derive(Clone, Copy)]
pub(super) struct Decoding {
    /// Decodes a row of a K tile into the lines that `multiply` reads.
    pub(super) decode: unsafe fn(&Row<'_>, &mut [Line]),
    /// Multiplies decoded rows with 1 to [`MAX_VECTORS`] vectors.
    pub(super) multiply: unsafe fn(&Decoded<'_>, &Tile<'_>, SumsOfRows<'_>),
    /// Bytes that `decode` writes for a block.
    pub(super) bytes: usize,
    /// Blocks of a K tile.
    pub(super) tile: usize,
    /// Rows that are decoded, then multiplied: their buffer stays in the first-level cache.
    pub(super) rows: usize,
}

impl Family {
    /// These kernels for sums whose order does not depend on the number of vectors: K is cut alike for all. `alike`
    /// says whether `direct` and `decoding` add up blocks alike; where they do not, all vectors take `direct`.
    const fn batch_invariant(self, alike: bool) -> Self {
        let (cut, up_to) = match self.decoding {
            Some(decoding) if alike => (decoding.tile, self.direct_up_to),
            _ => (self.direct_tile / 2, usize::MAX),
        };
        Self {
            direct_up_to: up_to,
            cut: Some(cut),
            ..self
        }
    }

    /// The kernels that decode the weights once for `n` vectors; `None` where the direct kernel takes the vectors.
    pub(super) const fn decoding(&self, n: usize) -> Option<&Decoding> {
        if n <= self.direct_up_to {
            None
        } else {
            self.decoding.as_ref()
        }
    }

    /// Whether the only K tile for `n` vectors is the whole K, whatever K is.
    pub(super) const fn reads_whole_rows(&self, n: usize) -> bool {
        n <= WHOLE_ROWS_UP_TO && self.decoding(n).is_none()
    }

    /// Blocks of a K tile for `n` vectors. Each tile's sums are added to those of the tiles before.
    pub(super) const fn tile(&self, n: usize, blocks: usize) -> usize {
        let tile = match self.decoding(n) {
            Some(decoding) => decoding.tile,
            None if self.reads_whole_rows(n) => blocks,
            None if n > MAX_VECTORS => self.direct_tile / 2,
            None => self.direct_tile,
        };
        let equal = equal_parts(blocks, tile);
        match self.cut {
            // Whole cuts.
            Some(cut) if equal < blocks => {
                let cut = equal_parts(blocks, cut);
                let tile = cut * if tile < cut { 1 } else { tile / cut };
                if tile < blocks { tile } else { blocks }
            }
            _ => equal,
        }
    }

    /// Blocks whose lanes are added up before the next ones are begun, where these are fewer than a K tile's.
    pub(super) const fn cut(&self, blocks: usize) -> usize {
        match self.cut {
            Some(cut) => equal_parts(blocks, cut),
            None => usize::MAX,
        }
    }
}

/// Blocks of each of equal parts of so many blocks, of at most about `most`: whole steps of any kernel.
const fn equal_parts(blocks: usize, most: usize) -> usize {
    match blocks <= most {
        true => blocks,
        false => (blocks.div_ceil(blocks.div_ceil(most))).next_multiple_of(DENSE_STEP),
    }
}

/// A row of a K tile.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    /// 8 bytes a block.
    pub(super) codes: &'a [u8],
    /// 1 byte a block.
    pub(super) scales: &'a [u8],
    /// Distances to the data that kernels fetch while they read the row.
    pub(super) ahead: Ahead,
}

impl Row<'_> {
    /// Panics unless the row has as many blocks: what kernels' raw reads rely on.
    pub(super) fn assert_blocks(&self, blocks: usize) {
        assert!(self.codes.len() == blocks * 8 && self.scales.len() == blocks);
    }

    /// Fetches what is ahead of a step of so many blocks into the caches, for a kernel of `N` vectors.
    #[inline(always)]
    pub(super) fn fetch<const N: usize>(&self, step: usize, blocks: usize) {
        let codes = self.codes.as_ptr().wrapping_add(step * blocks * 8);
        let scales = self.scales.as_ptr().wrapping_add(step * blocks);
        self.ahead.fetch::<N>(codes, blocks * 8 / 64, scales);
    }
}

/// One row of a K tile, or the four rows `i`, `i + 32`, `i + 64`, `i + 96` of a row block.
///
/// Four rows share the loads of the vectors, and give the memory four streams to fetch. Rows 32
/// apart, because each stream then goes on in the next group where it stopped in this one, and
/// because they are neighbours in the 128x4 layout of scales.
pub(super) struct Rows<'a> {
    /// 1 or 4.
    pub(super) count: usize,
    /// The rows; where `count` is 1 only the first is used.
    pub(super) rows: [Row<'a>; GROUP_ROWS],
}

/// Groups of whole rows, one behind the other.
pub(super) struct Run<'a> {
    /// From the first row on.
    pub(super) codes: &'a [u8],
    /// From the first row's on.
    pub(super) scales: &'a [u8],
    /// Bytes of codes from a group to the next, and from a row of a group to the next.
    pub(super) code_steps: [usize; 2],
    /// Bytes of scales, likewise.
    pub(super) scale_steps: [usize; 2],
    pub(super) groups: usize,
    /// Distances to the data that kernels fetch while they read a row.
    pub(super) ahead: Ahead,
}

impl Run<'_> {
    /// Panics unless all groups have rows of so many blocks: what kernels' raw reads rely on.
    pub(super) fn assert_blocks(&self, blocks: usize) {
        let last = |steps: [usize; 2]| (self.groups - 1) * steps[0] + (GROUP_ROWS - 1) * steps[1];
        assert!(self.groups > 0);
        assert!(last(self.code_steps) + blocks * 8 <= self.codes.len());
        assert!(last(self.scale_steps) + blocks <= self.scales.len());
    }

    /// A row of a group.
    ///
    /// # Safety
    /// The run has the group, with so many blocks.
    #[inline(always)]
    pub(super) unsafe fn row(&self, group: usize, row: usize, blocks: usize) -> Row<'_> {
        let at = |steps: [usize; 2]| group * steps[0] + row * steps[1];
        // SAFETY: inside the slices, as the caller promises.
        unsafe {
            Row {
                codes: self
                    .codes
                    .get_unchecked(at(self.code_steps)..)
                    .get_unchecked(..blocks * 8),
                scales: self
                    .scales
                    .get_unchecked(at(self.scale_steps)..)
                    .get_unchecked(..blocks),
                ahead: self.ahead,
            }
        }
    }
}

/// The sums of [`Rows`] over a K tile: `[row][vector]`, before the global scales.
pub(super) type Sums = [[f32; MAX_VECTORS]; GROUP_ROWS];

/// Rows of a K tile as `decode` has written them.
pub(super) struct Decoded<'a> {
    /// The lines of all rows, one row after the other.
    pub(super) lines: &'a [Line],
    pub(super) rows: usize,
}

impl Decoded<'_> {
    /// Panics unless the lines of a row are `bytes`: what kernels' raw reads rely on.
    pub(super) fn assert_row_bytes(&self, bytes: usize) {
        assert!(size_of_val(self.lines) == self.rows * bytes);
    }
}

/// The array to which `multiply` adds its sums: that of row `r` and vector `v` to `sums[r * pitch + v]`.
pub(super) struct SumsOfRows<'a> {
    pub(super) sums: &'a mut [f32],
    pub(super) pitch: usize,
}

impl SumsOfRows<'_> {
    /// Adds the sums of rows from `row` on.
    #[inline(always)]
    pub(super) fn add<const R: usize, const N: usize>(&mut self, row: usize, sums: [[f32; N]; R]) {
        for (r, sums) in sums.iter().enumerate() {
            let to = &mut self.sums[(row + r) * self.pitch..][..N];
            for (to, sum) in to.iter_mut().zip(sums) {
                *to += sum;
            }
        }
    }
}
