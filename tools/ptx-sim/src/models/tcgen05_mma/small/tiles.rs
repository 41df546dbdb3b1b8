//! Operands of bytes in the order in which vectors multiply them.

use super::GROUP;

/// Rows of bytes in tiles of so many rows. In a tile, the words of a group lie side by side.
#[derive(Debug)]
pub(super) struct Tiles<const ROWS: usize> {
    /// Words of a row.
    groups: usize,
    /// By tile and group.
    words: Vec<[u32; ROWS]>,
}

impl<const ROWS: usize> Tiles<ROWS> {
    /// Tiles of rows of so many groups; the last tile is filled up with zeros.
    pub(super) fn of(bytes: &[u8], groups: usize) -> Self {
        let from = bytes.as_chunks::<GROUP>().0;
        let tiles = from.len().div_ceil(groups * ROWS);
        let mut words = vec![[0; ROWS]; tiles * groups];
        match groups {
            2 => fill(&mut words, from.as_chunks::<2>().0),
            4 => fill(&mut words, from.as_chunks::<4>().0),
            8 => fill(&mut words, from.as_chunks::<8>().0),
            _ => fill_any(&mut words, from, groups),
        }
        Self { groups, words }
    }

    /// All tiles, by group.
    pub(super) fn all(&self) -> impl Iterator<Item = &[[u32; ROWS]]> {
        self.words.chunks_exact(self.groups)
    }

    /// One of them.
    pub(super) fn tile(&self, number: usize) -> &[[u32; ROWS]] {
        &self.words[number * self.groups..][..self.groups]
    }
}

/// Fills tiles from rows of known length.
fn fill<const GROUPS: usize, const ROWS: usize>(
    words: &mut [[u32; ROWS]],
    rows: &[[[u8; GROUP]; GROUPS]],
) {
    let tiles = words.as_chunks_mut::<GROUPS>().0;
    for (tile, rows) in tiles.iter_mut().zip(rows.chunks(ROWS)) {
        for (r, row) in rows.iter().enumerate() {
            for (group, word) in tile.iter_mut().zip(row) {
                group[r] = u32::from_le_bytes(*word);
            }
        }
    }
}

/// Fills tiles from rows of any length.
fn fill_any<const ROWS: usize>(words: &mut [[u32; ROWS]], rows: &[[u8; GROUP]], groups: usize) {
    let tiles = words.chunks_exact_mut(groups);
    for (tile, rows) in tiles.zip(rows.chunks(ROWS * groups)) {
        for (r, row) in rows.chunks_exact(groups).enumerate() {
            for (group, word) in tile.iter_mut().zip(row) {
                group[r] = u32::from_le_bytes(*word);
            }
        }
    }
}
