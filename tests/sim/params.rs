//! Kernel parameters: C structs, byte by byte.

use nvfp4_gemv::ScaleLayout;

/// A C struct in the making.
pub(crate) struct Params(Vec<u8>);

impl Params {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    pub(crate) fn put(&mut self, at: usize, v: &[u8]) {
        self.0[at..at + v.len()].copy_from_slice(v);
    }

    pub(crate) fn word(&mut self, at: usize, v: usize) {
        self.put(at, &(v as u32).to_le_bytes());
    }

    pub(crate) fn words(&mut self, at: usize, words: &[usize]) {
        for (i, &v) in words.iter().enumerate() {
            self.word(at + 4 * i, v);
        }
    }

    pub(crate) fn long(&mut self, at: usize, v: u64) {
        self.put(at, &v.to_le_bytes());
    }

    /// `ScaleLayout`, of dense rows.
    pub(crate) fn layout(&mut self, at: usize, layout: ScaleLayout, blocks: usize) {
        let (row, group, tiled) = match layout {
            ScaleLayout::Linear => (blocks, 4, 0),
            ScaleLayout::Tiled128x4 => (blocks.div_ceil(4) * 512, 512, 1),
        };
        self.long(at, row as u64);
        self.word(at + 8, group);
        self.put(at + 12, &[tiled]);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// 2^32 / y rounded up, in 32 bits; 0 for 1. Kernels divide by multiplying with it.
pub(crate) fn magic(y: usize) -> usize {
    (1_usize << 32).div_ceil(y) & 0xffff_ffff
}
