//! The shared-memory swizzle: an XOR of address bits, the same for TMA and for tcgen05.
//!
//! PTX ISA "Swizzling Modes" gives the patterns as tables over 128-byte lines that start at a 1024-, 512- or 256-byte
//! boundary. Read as address arithmetic, chunk bits of the *absolute* shared address are XORed with line bits of the
//! same address. A buffer that does not start on a pattern boundary therefore starts in the middle of the pattern.

of_driver! {
    /// A swizzle pattern over absolute shared addresses: `CUtensorMapSwizzle`.
    Swizzle "CU_TENSOR_MAP_SWIZZLE_" {
        /// Identity.
        None "NONE",
        /// 16-byte chunks within 32 bytes: bit 4 ^= bit 7.
        B32 "32B",
        /// 16-byte chunks within 64 bytes: bits 4-5 ^= bits 7-8.
        B64 "64B",
        /// 16-byte chunks within 128 bytes: bits 4-6 ^= bits 7-9.
        B128 "128B",
        /// 32-byte chunks within 128 bytes: bits 5-6 ^= bits 7-8.
        B128Atom32 "128B_ATOM_32B",
        /// [`Swizzle::B128Atom32`], and 8-byte halves swapped in odd lines: bit 3 ^= bit 7.
        B128Atom32Flip8 "128B_ATOM_32B_FLIP_8B",
        /// 64-byte chunks within 128 bytes: bit 6 ^= bit 7.
        B128Atom64 "128B_ATOM_64B",
    }
}

impl Swizzle {
    /// Real address of the byte of linear address `address`.
    pub fn apply(self, address: u32) -> u32 {
        self.apply_with_base(address, 0)
    }

    /// Real address as [`Swizzle::apply`] gives it, for a pattern whose first line is line `base` (mod 8) instead of
    /// line 0: the "matrix base offset" of a shared memory descriptor.
    pub fn apply_with_base(self, address: u32, base: u32) -> u32 {
        let line = (address >> 7).wrapping_sub(base);
        let flip = match self {
            Swizzle::None => 0,
            Swizzle::B32 => (line & 1) << 4,
            Swizzle::B64 => (line & 3) << 4,
            Swizzle::B128 => (line & 7) << 4,
            Swizzle::B128Atom32 => (line & 3) << 5,
            Swizzle::B128Atom32Flip8 => ((line & 3) << 5) | ((line & 1) << 3),
            Swizzle::B128Atom64 => (line & 1) << 6,
        };
        address ^ flip
    }

    /// Writes bytes that begin at a linear address, where a span does, to their real places in `to`, which they fill.
    /// `from` has the bytes, a whole number of spans, and the distance of spans from start to start.
    pub fn permute(self, address: u32, from: (&[u8], usize), to: &mut [u8]) {
        match (self.span(), self.granule()) {
            (Some(32), _) => self.exchange::<16, 2>(address, from, to),
            (Some(64), _) => self.exchange::<16, 4>(address, from, to),
            (_, 16) => self.exchange::<16, 8>(address, from, to),
            _ => self.exchange::<8, 16>(address, from, to),
        }
    }

    /// Does the work of `permute` for spans of GRANULES granules of BYTES bytes.
    fn exchange<const BYTES: usize, const GRANULES: usize>(
        self,
        address: u32,
        (from, pitch): (&[u8], usize),
        to: &mut [u8],
    ) {
        let spans = from.chunks(pitch).map(|from| from.as_chunks::<BYTES>().0);
        let to = to.as_chunks_mut::<BYTES>().0.as_chunks_mut::<GRANULES>().0;
        let starts = (address..).step_by(BYTES * GRANULES);
        for (address, (from, to)) in starts.zip(spans.zip(to)) {
            let Some(from) = from.first_chunk::<GRANULES>() else {
                return;
            };
            prefetch_behind(from.as_flattened());
            // The flip is the same for all of a span, and smaller than the span.
            let flip = (self.apply(address) ^ address) as usize / BYTES;
            for (i, to) in to.iter_mut().enumerate() {
                *to = from[(i ^ flip) % GRANULES];
            }
        }
    }

    /// Bytes of one row that the pattern permutes, or `None` without a swizzle.
    pub fn span(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            _ => Some(128),
        }
    }

    /// Boundary at which the pattern repeats, in bytes.
    pub fn period(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 | Swizzle::B128Atom64 => 256,
            Swizzle::B64 | Swizzle::B128Atom32 | Swizzle::B128Atom32Flip8 => 512,
            Swizzle::B128 => 1024,
        }
    }

    /// Largest power of two of bytes the pattern keeps together.
    pub fn granule(self) -> u32 {
        match self {
            Swizzle::B128Atom32Flip8 => 8,
            _ => 16,
        }
    }
}

/// Has the cache fetch as many bytes as these from behind them. Tiles are copied one after another along their rows,
/// and rows lie too far apart for the processor to guess what the next one needs.
fn prefetch_behind(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        const LINE: usize = 64;
        for at in (0..bytes.len()).step_by(LINE) {
            let behind = bytes.as_ptr().wrapping_add(bytes.len() + at);
            // SAFETY: a prefetch accesses nothing as far as the program can tell, and faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(behind.cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the tables of "Swizzling Modes": the chunk found at each position of a line.
    fn row(s: Swizzle, line: u32, chunk: u32) -> Vec<u32> {
        let mut at = vec![0; (128 / chunk) as usize];
        for c in 0..128 / chunk {
            at[((s.apply(line * 128 + c * chunk) % 128) / chunk) as usize] = c;
        }
        at
    }

    #[test]
    fn tables_of_the_isa() {
        assert_eq!(row(Swizzle::B32, 1, 16), [1, 0, 3, 2, 5, 4, 7, 6]);
        assert_eq!(row(Swizzle::B32, 2, 16), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(row(Swizzle::B64, 2, 16), [2, 3, 0, 1, 6, 7, 4, 5]);
        assert_eq!(row(Swizzle::B64, 3, 16), [3, 2, 1, 0, 7, 6, 5, 4]);
        assert_eq!(row(Swizzle::B128, 5, 16), [5, 4, 7, 6, 1, 0, 3, 2]);
        assert_eq!(row(Swizzle::B128, 7, 16), [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(row(Swizzle::B128Atom32, 1, 32), [1, 0, 3, 2]);
        assert_eq!(row(Swizzle::B128Atom32, 3, 32), [3, 2, 1, 0]);
        assert_eq!(row(Swizzle::B128Atom64, 1, 64), [1, 0]);
        assert_eq!(row(Swizzle::B128Atom32Flip8, 1, 8)[..4], [5, 4, 7, 6]);
        assert_eq!(row(Swizzle::B128Atom32Flip8, 2, 8)[..4], [8, 9, 10, 11]);
    }

    #[test]
    fn every_pattern_is_its_own_inverse_within_its_period() {
        for s in Swizzle::ALL {
            for a in 0..4096u32 {
                assert_eq!(s.apply(s.apply(a)), a, "{s:?}");
                assert_eq!(s.apply(a) / 128, a / 128, "{s:?} leaves its line");
                assert_eq!(s.apply(a + s.period()), s.apply(a) + s.period());
            }
        }
    }

    #[test]
    fn a_permutation_puts_every_byte_where_it_lies() {
        let from: Vec<u8> = (0..128u8).map(|i| i.wrapping_mul(7)).collect();
        for s in Swizzle::ALL {
            let span = s.span().unwrap_or(128);
            for start in (0..2048).step_by(span as usize) {
                let from = &from[..span as usize];
                let mut to = vec![0; from.len()];
                s.permute(start, (from, from.len()), &mut to);
                for (i, byte) in (0..).zip(from) {
                    assert_eq!(to[(s.apply(start + i) - start) as usize], *byte, "{s:?}");
                }
            }
        }
    }

    #[test]
    fn base_offset_moves_the_start_of_the_pattern() {
        for base in 0..8 {
            let start = base * 128;
            for a in 0..1024 {
                let moved = Swizzle::B128.apply_with_base(start + a, base);
                assert_eq!(moved, start + Swizzle::B128.apply(a));
            }
        }
    }
}
