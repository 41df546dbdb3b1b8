//! Medians and bootstrap intervals, the same for every program that compares. Medians, because a round that something
//! disturbed must not count.

use fastrand::Rng;

/// The middle value; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which a share `q` of the values lies, between neighbours by proportion; NaN of none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at as usize], sorted[(at as usize + 1).min(last)]);
    below + (above - below) * at.fract()
}

/// A range that a statistic lies in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// The percentile bootstrap's interval of a level, 0.99 say: `statistic` draws again from the measurements, with the
/// given generator, and computes from that. Equal seeds give equal intervals.
pub fn bootstrap(
    level: f64,
    resamples: usize,
    mut statistic: impl FnMut(&mut Rng) -> f64,
) -> Interval {
    let mut rng = Rng::with_seed(0x6765_6d76);
    let values: Vec<f64> = (0..resamples).map(|_| statistic(&mut rng)).collect();
    Interval {
        low: quantile(&values, (1.0 - level) / 2.0),
        high: quantile(&values, (1.0 + level) / 2.0),
    }
}

/// The median of as many values, drawn with replacement.
pub fn resampled_median(values: &[f64], rng: &mut Rng) -> f64 {
    let drawn = values.iter().filter_map(|_| rng.choice(values)).copied();
    let drawn: Vec<f64> = drawn.collect();
    median(&drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), 2.5);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (1.0, 4.0));
        assert!(median(&[]).is_nan());
    }

    /// About 1% of 200 sets of samples from one distribution lie outside. More than 5% would mean that the interval
    /// promises too much.
    #[test]
    fn an_interval_covers_the_truth() {
        let mut rng = Rng::with_seed(7);
        let missed = (0..200)
            .filter(|_| {
                let samples: Vec<f64> = (0..21).map(|_| 1.0 + 0.1 * rng.f64()).collect();
                let interval = bootstrap(0.99, 400, |rng| resampled_median(&samples, rng));
                assert!(interval.low <= interval.high);
                !(interval.low..=interval.high).contains(&1.05)
            })
            .count();
        assert!(missed <= 10, "{missed}");
    }

    #[test]
    fn intervals_are_reproducible_and_notice_a_difference() {
        let samples: Vec<f64> = (0..21).map(|i| 1.0 + 0.001 * f64::from(i)).collect();
        let of = || bootstrap(0.99, 400, |rng| resampled_median(&samples, rng));
        assert_eq!(of(), of());
        assert!(of().low > 1.0 && of().high < 1.02);
    }
}
