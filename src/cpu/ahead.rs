//! Prefetching: the data that is fetched into the caches before it is used, and how far ahead.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use crate::cpu::rows::WHOLE_ROWS_UP_TO;

/// Distances from what a kernel reads to what it fetches meanwhile.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Ahead {
    /// Bytes from codes to codes.
    pub(super) codes: isize,
    /// Bytes from scales to scales.
    pub(super) scales: isize,
    /// Into the first-level cache, not only into the second.
    pub(super) near: bool,
}

impl Ahead {
    /// The distances for kernels that read whole rows. Past the end of a row lies the next row that the same stream
    /// will read.
    ///
    /// 2 KiB of four rows and their scales are a fifth of a first-level cache of 48 KiB. Where it is smaller, the
    /// vectors need it, and the second level, which is slower to read but larger, is given more (docs/notes/cpu.md,
    /// "Prefetch by the size of the cache").
    #[cfg(target_arch = "x86_64")]
    pub(super) fn whole_rows() -> Self {
        static AHEAD: OnceLock<Ahead> = OnceLock::new();
        *AHEAD.get_or_init(|| {
            let near = first_level_bytes().is_some_and(|bytes| bytes >= 48 << 10);
            let distance = if near { 2048 } else { 4096 };
            Self {
                codes: distance,
                scales: distance / 8,
                near,
            }
        })
    }

    /// Nothing is fetched.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn whole_rows() -> Self {
        Self {
            codes: 0,
            scales: 0,
            near: false,
        }
    }

    /// For a kernel of `N` vectors, fetches so many cache lines of codes and one of scales, ahead of those that lie
    /// here.
    ///
    /// Who reads no whole rows takes `near` for granted: such kernels have no time to ask.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn fetch<const N: usize>(self, codes: *const u8, lines: usize, scales: *const u8) {
        let codes = codes.wrapping_offset(self.codes).cast::<i8>();
        let scales = scales.wrapping_offset(self.scales).cast::<i8>();
        // SAFETY: SSE is part of x86-64; a prefetch of any address is allowed.
        unsafe {
            if N <= WHOLE_ROWS_UP_TO && !self.near {
                for line in 0..lines {
                    _mm_prefetch::<_MM_HINT_T1>(codes.wrapping_add(line * 64));
                }
                _mm_prefetch::<_MM_HINT_T1>(scales);
            } else {
                for line in 0..lines {
                    _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(line * 64));
                }
                _mm_prefetch::<_MM_HINT_T0>(scales);
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Ahead {
    /// Nothing is fetched: what helps other CPUs is not known.
    #[inline(always)]
    pub(super) fn fetch<const N: usize>(self, _: *const u8, _: usize, _: *const u8) {}
}

/// Bytes of a core's first-level data cache, where the CPU says so.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // newer Rust has made `cpuid` safe to call
fn first_level_bytes() -> Option<u64> {
    // Miri has no `cpuid`.
    if cfg!(miri) {
        return None;
    }
    // Intel's leaf and AMD's, which are laid out alike. Subleaf 0 is the first-level data cache.
    [4, 0x8000_001d].into_iter().find_map(|leaf| {
        // SAFETY: every x86-64 CPU has the instruction.
        let (last, _) = unsafe { __get_cpuid_max(leaf & 0x8000_0000) };
        if leaf > last {
            return None;
        }
        // SAFETY: as above.
        let cache = unsafe { __cpuid_count(leaf, 0) };
        let (kind, level) = (cache.eax & 0x1f, cache.eax >> 5 & 7);
        // Bytes of a line, partitions, ways; below, sets. Each is less one there.
        let field = |shift: u32, bits: u32| u64::from(cache.ebx >> shift & ((1 << bits) - 1)) + 1;
        let set = field(0, 12) * field(12, 10) * field(22, 10);
        (kind == 1 && level == 1).then(|| set.saturating_mul(u64::from(cache.ecx) + 1))
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_first_level_cache_is_some_pages() {
        // A hypervisor may say nothing.
        if let Some(bytes) = first_level_bytes() {
            assert!(
                bytes % 4096 == 0 && (8 << 10..1 << 20).contains(&bytes),
                "{bytes}"
            );
        }
    }
}
