//! Sums over ranks: in which memory one of so many bytes takes less time.
//!
//! The figures are of two H100 and of two and four H200 of one host (docs/several-gpus.md). This file is their only
//! author: what chooses by them, and what documents them, asks here.

/// Microseconds of a sum, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumTime {
    /// Bytes of each rank's values.
    pub bytes: usize,
    /// In memory as any other.
    pub plain: f64,
    /// In memory that NCCL has registered as a window.
    pub window: f64,
}

const fn time(kib: usize, plain: f64, window: f64) -> SumTime {
    SumTime {
        bytes: kib << 10,
        plain,
        window,
    }
}

/// Sums of bf16 between two H100 80GB HBM3 (SXM, NVLink, 18 links), driver 580.159.04, NCCL 2.28.9, NVLS off,
/// 2026-11-24, 60b6e2b: `nvfp4-gemv bench --suite decode --tensor-parallel 2`, without and with `--windows`. Where two
/// pairs of layers have sums of a size, the one that windows help less.
///
/// Four H200 agree on each size, by the times of whole pairs (2026-11-26, c7c0f3c): 32 KiB 117.6 and 113.3 us, 256 KiB
/// 151.9 and 154.9, 2 MiB 222.3 and 219.9.
pub const MEASURED: [SumTime; 6] = [
    time(16, 7.3, 5.3),
    time(32, 8.6, 8.1),
    time(128, 8.1, 13.6),
    time(256, 10.2, 11.2),
    time(1024, 15.9, 18.6),
    time(2048, 30.4, 22.5),
];

/// Bytes and microseconds of sums among eight H200 of one host, in memory as any other: driver 580.159.04, NCCL 2.28.9,
/// NVLS off, 2026-11-27, b28c8a4f: `nvfp4-gemv bench --suite decode --tensor-parallel 8 --n 1 --n 8 --n 64 --rounds 3`.
/// Of two pairs of layers the larger. Windows were not measured.
pub const EIGHT: [(usize, f64); 6] = [
    (16 << 10, 18.1),
    (32 << 10, 20.1),
    (128 << 10, 20.5),
    (256 << 10, 20.7),
    (1 << 20, 28.7),
    (2 << 20, 38.2),
];

/// Numbers of ranks of which there are figures of both.
const RANKS: std::ops::RangeInclusive<usize> = 2..=4;

/// Whether a sum of so many bytes over so many ranks of a host takes less time in a window: as the nearest size that was
/// measured, by ratio. Sums of more than 4 MiB, and ranks of which there are no figures, are not made in windows.
pub fn window_pays(ranks: usize, bytes: usize) -> bool {
    let [.., largest] = MEASURED;
    if !RANKS.contains(&ranks) || bytes == 0 || bytes > 2 * largest.bytes {
        return false;
    }
    let distance = |of: &SumTime| (of.bytes as f64 / bytes as f64).ln().abs();
    let nearest = MEASURED
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.is_some_and(|of| of.window < of.plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each size that was measured, the choice is what was faster there.
    #[test]
    fn the_choice_is_the_faster_of_both() {
        for ranks in [2, 4] {
            for of in MEASURED {
                assert_eq!(
                    window_pays(ranks, of.bytes),
                    of.window < of.plain,
                    "{of:?}, {ranks} ranks"
                );
            }
        }
        // One vector of a 70B model, a few, and many of a 405B model.
        let elements = |n: usize, hidden: usize| 2 * n * hidden;
        assert!(window_pays(2, elements(1, 8192)));
        assert!(!window_pays(2, elements(8, 8192)));
        assert!(window_pays(4, elements(64, 16384)));
    }

    #[test]
    fn what_was_not_measured_is_made_as_without_windows() {
        for ranks in [0, 1, 5, 8, 16] {
            assert!(MEASURED.iter().all(|of| !window_pays(ranks, of.bytes)));
        }
        assert!(!window_pays(2, 0));
        assert!(!window_pays(2, (4 << 20) + 1));
        assert!(window_pays(2, 1), "latency alone");
    }

    /// Sizes grow, and the page has each figure.
    #[test]
    fn the_page_has_these_figures() {
        assert!(MEASURED.is_sorted_by(|a, b| a.bytes < b.bytes));
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/several-gpus.md");
        // A published package has no docs beside it.
        let Ok(page) = std::fs::read_to_string(page) else {
            return;
        };
        for of in MEASURED {
            let both = format!("{:.1}, {:.1} |", of.plain, of.window);
            assert!(page.contains(&both), "{both}");
        }
        for (_, plain) in EIGHT {
            let one = format!(" | {plain:.1} | ");
            assert!(page.contains(&one), "{one}");
        }
    }
}
