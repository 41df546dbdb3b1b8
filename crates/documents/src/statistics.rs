//! Medians and their intervals, the same for every program that compares. Medians, because a round that something
//! disturbed must not count.

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

/// The level of every interval that a program reports.
pub const LEVEL: f64 = 0.99;

/// The fewest values whose least and greatest enclose their true median with probability [`LEVEL`]: one in 2^7 sets of
/// 8 values lies on one side of it.
pub const LEAST_VALUES: u16 = 8;

/// An interval that contains the true median with probability [`LEVEL`] or more, of independent values: from the r-th
/// least value to the r-th greatest, r as large as that allows. It assumes nothing else of the values. How many of n lie
/// below their true median is a binomial number, so the interval misses with probability 2 P(Bin(n, 1/2) < r).
///
/// Fewer than [`LEAST_VALUES`] values enclose nothing so surely: of them the interval is the whole line.
pub fn median_interval(values: &[f64]) -> Interval {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // ln P(Bin(n, 1/2) = k), since 2^-n itself is 0 for a large n.
    let mut ln_term = -(n as f64) * 2f64.ln();
    let (mut missed, mut r) = (0.0, 0);
    loop {
        missed += 2.0 * ln_term.exp();
        if missed > 1.0 - LEVEL {
            break;
        }
        ln_term += ((n - r) as f64 / (r + 1) as f64).ln();
        r += 1;
    }
    match r.checked_sub(1) {
        Some(at) => Interval {
            low: sorted[at],
            high: sorted[n - 1 - at],
        },
        None => Interval {
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
        },
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn quantiles() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), 2.5);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (1.0, 4.0));
        assert!(median(&[]).is_nan());
    }

    /// Of 20 000 sets of values at most 1% may miss, and 0.2% more by chance (three standard deviations). A percentile
    /// bootstrap misses 4% with 9 values, and 2% with 21. The values are skewed: a median needs no symmetry.
    #[test]
    fn an_interval_misses_the_truth_in_one_of_a_hundred_at_most() {
        const SETS: usize = 20_000;
        let mut rng = Rng::with_seed(7);
        for n in [usize::from(LEAST_VALUES), 9, 12, 21, 51] {
            let missed = (0..SETS).filter(|_| {
                // Exponential: the median is ln 2.
                let values: Vec<f64> = (0..n).map(|_| -(1.0 - rng.f64()).ln()).collect();
                let interval = median_interval(&values);
                !(interval.low..=interval.high).contains(&2f64.ln())
            });
            let missed = missed.count() as f64 / SETS as f64;
            assert!(missed <= 0.012, "{n}: {missed}");
        }
    }

    /// The tables of the sign test: no wider than the level asks for.
    #[test]
    fn an_interval_lies_between_the_values_that_the_binomial_distribution_says() {
        for (n, r) in [(8, 1), (9, 1), (11, 1), (12, 2), (15, 3), (21, 5), (51, 16)] {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            let interval = median_interval(&values);
            assert_eq!(
                (interval.low, interval.high),
                (f64::from(r), f64::from(n + 1 - r)),
                "{n}"
            );
        }
        // Of many values, whose 2^-n is no f64: about 2.576 / 2 standard deviations of sqrt(n) on each side.
        let values: Vec<f64> = (1..=10_000).map(f64::from).collect();
        let interval = median_interval(&values);
        assert!((interval.low - 4872.0).abs() < 2.0, "{interval:?}");
        for n in 0..LEAST_VALUES {
            let interval = median_interval(&vec![2.0; n.into()]);
            assert_eq!(
                (interval.low, interval.high),
                (f64::NEG_INFINITY, f64::INFINITY)
            );
        }
    }
}
