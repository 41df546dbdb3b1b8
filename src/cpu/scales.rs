//! Weight scales of the 128x4 layout, brought into rows.
//!
//! The kernels read the scales of a row one after the other. In the 128x4 layout four of them lie together, and the
//! next four 512 bytes further. Here the scales of a strip are copied into rows, for one K tile at a time. The 16 rows
//! of a strip share 64 bytes of every atom. These bytes are a cache line where the scales are aligned as one, so each
//! line is read once.

use crate::cpu::rows::{GROUP_ROWS, STRIP_GROUPS};

/// Bytes of an atom: 128 rows of 4 scales.
pub(super) const ATOM: usize = 512;

/// Bytes of an atom that belong to so many rows.
pub(super) const fn atom_bytes(rows: usize) -> usize {
    rows * 4
}

/// Bytes of scales in rows, which had better stay in the second-level cache: half of one of 512 KiB (docs/notes/cpu.md,
/// "Row blocks of scales at once").
const KEPT: usize = 256 << 10;

/// Groups of a strip, where the scales of the whole strip are brought into rows at once. `groups` is the number of
/// groups of a job, `blocks` the blocks of a row. As many groups are taken as stay in the cache: the scales of all
/// groups are read in the order of the memory, those of few groups with gaps.
pub(super) fn groups_at_once(groups: usize, blocks: usize) -> usize {
    let mut fit = groups;
    while fit > STRIP_GROUPS && fit * GROUP_ROWS * pitch(blocks) > KEPT {
        fit /= 2;
    }
    fit
}

/// Scales from one row to the next in a strip's buffer, for tiles of so many blocks. An odd number
/// of cache lines, so that rows do not share the few sets of the first-level cache that atoms do.
pub(super) const fn pitch(blocks: usize) -> usize {
    (blocks.div_ceil(64) | 1) * 64
}

/// Copies a strip's scales: whole groups of `STRIP_GROUPS`, `rows` rows of `blocks` blocks. `scales` starts at the
/// strip's first byte in the tile's first atom; `out` takes the rows, [`pitch`] apart, in the order of the strip.
///
/// `next` bytes further lie the scales that will be copied after these, which are fetched into the
/// caches.
pub(super) fn into_rows(
    scales: &[u8],
    (rows, blocks): (usize, usize),
    next: isize,
    out: &mut [u8],
) {
    let (pitch, of_atom) = (pitch(blocks), atom_bytes(rows));
    let out = &mut out[..rows * pitch];
    let atoms = blocks.div_ceil(4);
    let scales = &scales[..(atoms - 1) * ATOM + of_atom];
    let fours = atoms / 4;
    for four in 0..fours {
        let from = &scales[four * 4 * ATOM..][..3 * ATOM + of_atom];
        fetch_four(from.as_ptr().wrapping_offset(next));
        four_atoms(from, rows, &mut out[four * 16..], pitch);
    }
    for atom in fours * 4..atoms {
        let from = &scales[atom * ATOM..][..of_atom];
        for (row, scales) in from.chunks_exact(4).enumerate() {
            out[row * pitch + atom * 4..][..4].copy_from_slice(scales);
        }
    }
}

/// Fetches the first lines of a strip in four atoms.
#[inline(always)]
fn fetch_four(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for atom in 0..4 {
        use std::arch::x86_64::*;
        // SAFETY: SSE is part of x86-64; a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(atom * ATOM).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// 16 scales of each row: a transposition of four dwords in each of four groups.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn four_atoms(from: &[u8], rows: usize, out: &mut [u8], pitch: usize) {
    use std::arch::x86_64::*;
    assert!(from.len() >= 3 * ATOM + atom_bytes(rows));
    assert!(out.len() >= (rows - 1) * pitch + 16);
    for group in 0..rows / 4 {
        // SAFETY: SSE2 is part of x86-64; the lengths were asserted.
        unsafe {
            let at = from.as_ptr().add(group * 16);
            let [a, b, c, d] = [0, 1, 2, 3].map(|atom| at.add(atom * ATOM));
            let (a, b) = (_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
            let (c, d) = (_mm_loadu_si128(c.cast()), _mm_loadu_si128(d.cast()));
            let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
            let rows = [
                _mm_unpacklo_epi64(ab, cd),
                _mm_unpackhi_epi64(ab, cd),
                _mm_unpacklo_epi64(ab_high, cd_high),
                _mm_unpackhi_epi64(ab_high, cd_high),
            ];
            for (row, scales) in rows.into_iter().enumerate() {
                let to = out.as_mut_ptr().add((group * 4 + row) * pitch);
                _mm_storeu_si128(to.cast(), scales);
            }
        }
    }
}

/// 16 scales of each row.
#[cfg(not(target_arch = "x86_64"))]
fn four_atoms(from: &[u8], rows: usize, out: &mut [u8], pitch: usize) {
    for atom in 0..4 {
        let from = &from[atom * ATOM..][..atom_bytes(rows)];
        for (row, scales) in from.chunks_exact(4).enumerate() {
            out[row * pitch + atom * 4..][..4].copy_from_slice(scales);
        }
    }
}
