//! How fast this machine streams memory into registers: the ceiling of every GEMV whose weights
//! are not in a cache.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use crate::cpu::Implementation;

/// Bytes that a thread reads front to back before it takes more: many pages, few enough to
/// spread evenly.
const PIECE: usize = 4 << 20;

#[cfg(target_arch = "x86_64")]
/// How far ahead of their use words are fetched, in bytes: what the kernels do.
const AHEAD: usize = 2048;

/// Measures the streaming-read bandwidth of this machine, in bytes a second: the best of several
/// passes over `bytes` (make it several times the last-level cache) on `threads` threads of the
/// current machine, with the widest loads the CPU has.
///
/// Allocates `bytes` and reads them about ten times. To compare something with it, use
/// [`StreamingRead`] and alternate.
///
/// ```
/// let gb_per_s = nvfp4_gemv::cpu::streaming_read_bandwidth(1 << 20, 1) / 1e9;
/// assert!(gb_per_s > 0.0);
/// ```
pub fn streaming_read_bandwidth(bytes: usize, threads: usize) -> f64 {
    let read = StreamingRead::new(bytes, threads);
    (0..10).map(|_| read.pass()).fold(0.0, f64::max)
}

/// A buffer and threads to read it with.
#[derive(Debug)]
pub struct StreamingRead {
    buffer: Vec<u64>,
    pool: Option<rayon::ThreadPool>,
}

impl StreamingRead {
    /// Allocates and fills `bytes`, at least one piece of 64 bytes, and starts `threads` threads,
    /// at least one. Where threads cannot be started, rayon's own read.
    pub fn new(bytes: usize, threads: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .build()
            .ok();
        // Written, because pages that never were are all the same one in the cache.
        let words = bytes.div_ceil(64).max(1) * 8;
        let buffer = (0..words as u64).collect();
        Self { buffer, pool }
    }

    /// Reads the whole buffer once, in bytes a second.
    pub fn pass(&self) -> f64 {
        let read = || {
            let start = Instant::now();
            let sum: u64 = self
                .buffer
                .par_chunks(PIECE / 8)
                .map(sum)
                .reduce(|| 0, |a, b| a ^ b);
            black_box(sum);
            size_of_val(&*self.buffer) as f64 / start.elapsed().as_secs_f64()
        };
        match &self.pool {
            Some(pool) => pool.install(read),
            None => read(),
        }
    }
}

/// Combines all words, so that every load counts.
fn sum(words: &[u64]) -> u64 {
    match Implementation::best() {
        // SAFETY: the best implementation is available, and its features include these.
        #[cfg(target_arch = "x86_64")]
        Implementation::Avx512 | Implementation::Avx512Vnni => unsafe { sum_avx512(words) },
        // SAFETY: the same.
        #[cfg(target_arch = "x86_64")]
        Implementation::Avx2 => unsafe { sum_avx2(words) },
        _ => sum_portable(words),
    }
}

/// Four equal parts, to be read side by side, and what is left. Memory answers several streams
/// faster than one, and the kernels read four rows.
#[cfg(target_arch = "x86_64")]
fn streams(words: &[u64]) -> ([&[u64]; 4], &[u64]) {
    let part = words.len() / 64 * 16;
    let (streams, rest) = words.split_at(4 * part);
    (std::array::from_fn(|s| &streams[s * part..][..part]), rest)
}

fn sum_portable(words: &[u64]) -> u64 {
    words.iter().fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(words: &[u64]) -> u64 {
    let (streams, rest) = streams(words);
    let mut acc = [_mm512_setzero_si512(); 8];
    for at in (0..streams[0].len()).step_by(16) {
        for s in 0..4 {
            for half in 0..2 {
                // SAFETY: every stream is a multiple of 16 words.
                let line = unsafe {
                    let at = streams[s].as_ptr().add(at + half * 8);
                    _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(AHEAD / 8).cast());
                    _mm512_loadu_si512(at.cast())
                };
                acc[s * 2 + half] = _mm512_xor_si512(acc[s * 2 + half], line);
            }
        }
    }
    let mut all = acc[0];
    for acc in &acc[1..] {
        all = _mm512_xor_si512(all, *acc);
    }
    let mut words = [0; 8];
    // SAFETY: eight words.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), all) };
    sum_portable(&words) ^ sum_portable(rest)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    let (streams, rest) = streams(words);
    let mut acc = [_mm256_setzero_si256(); 8];
    for at in (0..streams[0].len()).step_by(8) {
        for s in 0..4 {
            for half in 0..2 {
                // SAFETY: every stream is a multiple of 16 words.
                let line = unsafe {
                    let at = streams[s].as_ptr().add(at + half * 4);
                    _mm256_loadu_si256(at.cast())
                };
                acc[s * 2 + half] = _mm256_xor_si256(acc[s * 2 + half], line);
            }
        }
    }
    let mut all = acc[0];
    for acc in &acc[1..] {
        all = _mm256_xor_si256(all, *acc);
    }
    let mut words = [0; 4];
    // SAFETY: four words.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), all) };
    sum_portable(&words) ^ sum_portable(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        for len in [0, 1, 63, 64, 200, 1024] {
            let words: Vec<u64> = (0..len).map(|i: u64| i * 0x9e37_79b9).collect();
            let expected = words.iter().fold(0, |a, b| a ^ b);
            assert_eq!(sum(&words), expected);
            assert_eq!(sum_portable(&words), expected);
        }
    }

    #[test]
    fn odd_arguments_are_no_trouble() {
        assert!(streaming_read_bandwidth(0, 0) > 0.0);
        assert!(streaming_read_bandwidth(100_000, 3) > 0.0);
    }
}
