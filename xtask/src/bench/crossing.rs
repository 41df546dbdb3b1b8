//! From which number of vectors another path is the fastest.

use super::document::Case;
use super::view::{best, isolated};

/// Where one path takes over from another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crossing {
    /// Between two measured numbers of vectors.
    pub(super) n: f64,
    pub(super) us: f64,
    pub(super) from: String,
    pub(super) to: String,
}

impl Crossing {
    pub(super) fn text(&self) -> String {
        format!("{} to {} near n = {:.1}", self.from, self.to, self.n)
    }
}

/// The crossings of one shape's cases, which come with n rising. Between two cases with different best
/// paths, times are taken to be straight lines over doublings of n, as the plots draw them.
pub(super) fn crossings(cases: &[&Case]) -> Vec<Crossing> {
    let time = |case: &Case, path: &str| {
        let path = isolated(case).find(|measured| measured.path == path)?;
        Some(path.median_us)
    };
    let pairs = cases.windows(2).filter_map(|pair| {
        let &[low, high] = pair else { return None };
        let (from, to) = (&best(low)?.path, &best(high)?.path);
        if from == to {
            return None;
        }
        let (a, b) = (time(low, from)?, time(high, from)?);
        // Ahead by this much, then behind.
        let ahead = time(low, to)? - a;
        let behind = b - time(high, to)?;
        let part = match ahead + behind {
            0.0 => 0.5,
            sum => ahead / sum,
        };
        Some(Crossing {
            n: low.n as f64 * (high.n as f64 / low.n as f64).powf(part),
            us: a + part * (b - a),
            from: from.clone(),
            to: to.clone(),
        })
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn lines_cross_where_they_meet() {
        let document = testing::document();
        let cases: Vec<&Case> = document.cases[..2].iter().collect();
        // 12 and 14 at n = 1, 18 and 15 at n = 4: 2 ahead, 3 behind, so after 2/5 of two doublings.
        let [crossing] = &crossings(&cases)[..] else {
            panic!("one crossing");
        };
        assert!((crossing.n - 4f64.powf(0.4)).abs() < 1e-9 && (crossing.us - 14.4).abs() < 1e-9);
        assert_eq!(crossing.text(), "cuda-core to tensor-core near n = 1.7");
        assert_eq!(crossings(&cases[..1]), []);
    }
}
