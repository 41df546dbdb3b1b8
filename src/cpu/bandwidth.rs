//! How fast this machine streams memory into registers: the ceiling of every GEMV whose weights
//! are not in a cache.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use crate::cpu::Implementation;

/// Bytes that a thread reads front to back before it takes more: many pages, few enough to
/// spread evenly.
const PIECE: usize = 4 << 20;

#[cfg(target_arch = "x86_64")]
/// How far ahead of their use words are fetched, in bytes: what the kernels do.
const AHEAD: usize = 2048;

/// Ways to stream, of which the fastest on this machine is its ceiling: in how many places of a
/// piece a thread reads side by side, and whether it prefetches. Hardware prefetchers like one or
/// the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    streams: usize,
    prefetch: bool,
}

const WAYS: [Way; 4] = [
    Way::new(4, true),
    Way::new(4, false),
    Way::new(1, true),
    Way::new(1, false),
];

impl Way {
    const fn new(streams: usize, prefetch: bool) -> Self {
        Self { streams, prefetch }
    }
}

/// Measures the streaming-read bandwidth of this machine, in bytes a second: the best of several passes over `bytes` on
/// `threads` threads. Make `bytes` several times the last-level cache. The loads are the widest that the CPU has, in
/// the way that suits its prefetchers best.
///
/// Allocates `bytes` and reads them about twenty times. To compare something with it, use
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
    way: Way,
}

impl StreamingRead {
    /// Allocates and fills `bytes`, at least one piece of 64 bytes, starts `threads` threads, at
    /// least one, and finds the fastest way to read. Where threads cannot be started, rayon's own
    /// read.
    pub fn new(bytes: usize, threads: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .build()
            .ok();
        // The buffer is written, because pages that never were are all the same one in the cache.
        let words = bytes.div_ceil(64).max(1) * 8;
        let buffer = (0..words as u64).collect();
        let mut read = Self {
            buffer,
            pool,
            way: WAYS[0],
        };
        // In turns, so that what else the machine does meets all ways alike; the first warms up.
        let mut best = [0.0f64; WAYS.len()];
        for round in 0..4 {
            for (way, best) in WAYS.into_iter().zip(&mut best) {
                let rate = read.pass_by(way);
                *best = if round == 0 { 0.0 } else { best.max(rate) };
            }
        }
        let fastest = (0..WAYS.len()).max_by(|&a, &b| best[a].total_cmp(&best[b]));
        read.way = WAYS[fastest.unwrap_or(0)];
        read
    }

    /// The way in which it reads, for people.
    pub fn way(&self) -> String {
        let Way { streams, prefetch } = self.way;
        format!(
            "{streams} stream{} a thread, {} prefetch",
            if streams == 1 { "" } else { "s" },
            if prefetch { "with" } else { "without" }
        )
    }

    /// Reads the whole buffer once, in bytes a second.
    pub fn pass(&self) -> f64 {
        self.pass_by(self.way)
    }

    fn pass_by(&self, way: Way) -> f64 {
        let read = || {
            let start = Instant::now();
            let sum: u64 = self
                .buffer
                .par_chunks(PIECE / 8)
                .map(|words| sum(words, way))
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
#[cfg(target_arch = "x86_64")]
fn sum(words: &[u64], way: Way) -> u64 {
    let wide = match Implementation::best() {
        Implementation::Avx512 | Implementation::Avx512Vnni | Implementation::Avx512Bf16 => true,
        Implementation::Avx2 => false,
        _ => return sum_portable(words),
    };
    let sum: unsafe fn(&[u64]) -> u64 = match (wide, way.streams, way.prefetch) {
        (true, 4, true) => sum_avx512::<4, true>,
        (true, 4, false) => sum_avx512::<4, false>,
        (true, _, true) => sum_avx512::<1, true>,
        (true, _, false) => sum_avx512::<1, false>,
        (false, 4, true) => sum_avx2::<4, true>,
        (false, 4, false) => sum_avx2::<4, false>,
        (false, _, true) => sum_avx2::<1, true>,
        (false, _, false) => sum_avx2::<1, false>,
    };
    // SAFETY: the best implementation is available, and its features include AVX-512F where it is wide, and AVX2.
    unsafe { sum(words) }
}

#[cfg(not(target_arch = "x86_64"))]
fn sum(words: &[u64], _: Way) -> u64 {
    sum_portable(words)
}

fn sum_portable(words: &[u64]) -> u64 {
    words.iter().fold(0, |a, b| a ^ b)
}

/// Words of 128 bytes, two cache lines: what one stream reads before the next has its turn.
#[cfg(target_arch = "x86_64")]
const TURN: usize = 16;

/// `S` equal parts of whole turns, to be read side by side, and what is left.
#[cfg(target_arch = "x86_64")]
fn streams<const S: usize>(words: &[u64]) -> ([&[u64]; S], &[u64]) {
    let part = words.len() / (S * TURN) * TURN;
    let (streams, rest) = words.split_at(S * part);
    (std::array::from_fn(|s| &streams[s * part..][..part]), rest)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512<const S: usize, const PREFETCH: bool>(words: &[u64]) -> u64 {
    let (streams, rest) = streams::<S>(words);
    let mut acc = [[_mm512_setzero_si512(); 2]; S];
    for at in (0..streams[0].len()).step_by(TURN) {
        for (stream, acc) in streams.iter().zip(&mut acc) {
            for (half, acc) in acc.iter_mut().enumerate() {
                // SAFETY: every stream is a multiple of TURN words, two loads.
                let line = unsafe {
                    let at = stream.as_ptr().add(at + half * 8);
                    if PREFETCH {
                        _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(AHEAD / 8).cast());
                    }
                    _mm512_loadu_si512(at.cast())
                };
                *acc = _mm512_xor_si512(*acc, line);
            }
        }
    }
    let mut all = _mm512_setzero_si512();
    for acc in acc.as_flattened() {
        all = _mm512_xor_si512(all, *acc);
    }
    let mut words = [0; 8];
    // SAFETY: eight words.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), all) };
    sum_portable(&words) ^ sum_portable(rest)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2<const S: usize, const PREFETCH: bool>(words: &[u64]) -> u64 {
    let (streams, rest) = streams::<S>(words);
    let mut acc = [[_mm256_setzero_si256(); 4]; S];
    for at in (0..streams[0].len()).step_by(TURN) {
        for (stream, acc) in streams.iter().zip(&mut acc) {
            for (quarter, acc) in acc.iter_mut().enumerate() {
                // SAFETY: every stream is a multiple of TURN words, four loads.
                let line = unsafe {
                    let at = stream.as_ptr().add(at + quarter * 4);
                    if PREFETCH && quarter % 2 == 0 {
                        _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(AHEAD / 8).cast());
                    }
                    _mm256_loadu_si256(at.cast())
                };
                *acc = _mm256_xor_si256(*acc, line);
            }
        }
    }
    let mut all = _mm256_setzero_si256();
    for acc in acc.as_flattened() {
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
            for way in WAYS {
                assert_eq!(sum(&words, way), expected, "{way:?}");
            }
            assert_eq!(sum_portable(&words), expected);
        }
    }

    #[test]
    fn odd_arguments_are_no_trouble() {
        assert!(streaming_read_bandwidth(0, 0) > 0.0);
        assert!(streaming_read_bandwidth(100_000, 3) > 0.0);
    }
}
