//! The number of vectors from which another path is the fastest.

use nvfp4_gemv_documents::document::Case;

use super::view::{best, isolated};

/// A point where one path takes over from another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crossing {
    /// The number of vectors, between two measured numbers.
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

/// Numbers of vectors with which cuBLAS is faster than this crate, among cases with n rising.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CublasFaster {
    /// cuBLAS did not take turns.
    Unknown,
    Nowhere,
    /// The number of vectors from which cuBLAS is faster, and the time that both take there. It lies between two
    /// measured numbers or is the first one.
    From {
        n: f64,
        us: f64,
    },
    /// cuBLAS is faster with these numbers of vectors, but not with the most.
    With(Vec<usize>),
}

impl CublasFaster {
    /// Our times are those of what the library picks.
    pub(super) fn of(cases: &[&Case]) -> Self {
        let times = cases.iter().filter_map(|case| {
            let ours = isolated(case)
                .find(|path| path.picked)
                .or_else(|| best(case))?;
            let theirs = case.cublas.as_ref()?;
            Some((case.n, ours.median_us, theirs.times.median_us))
        });
        let times: Vec<_> = times.collect();
        let faster = times.iter().filter(|(_, ours, theirs)| theirs < ours);
        let faster: Vec<usize> = faster.map(|(n, ..)| *n).collect();
        let Some(&first) = faster.first() else {
            return match times.is_empty() {
                true => Self::Unknown,
                false => Self::Nowhere,
            };
        };
        let from_there = times.iter().filter(|(n, ..)| *n >= first).count();
        if from_there > faster.len() {
            return Self::With(faster);
        }
        let at = times.len() - from_there;
        let (n, ours, theirs) = times[at];
        let Some(&(before, ours_before, theirs_before)) = at.checked_sub(1).map(|i| &times[i])
        else {
            return Self::From {
                n: n as f64,
                us: theirs,
            };
        };
        // Ahead by this much, then behind.
        let (ahead, behind) = (theirs_before - ours_before, ours - theirs);
        let part = ahead / (ahead + behind);
        Self::From {
            n: before as f64 * (n as f64 / before as f64).powf(part),
            us: ours_before + part * (ours - ours_before),
        }
    }

    /// A sentence of few words; nothing where it is not known.
    pub(super) fn text(&self) -> Option<String> {
        Some(match self {
            Self::Unknown => return None,
            Self::Nowhere => "cuBLAS f16 is slower at every n".into(),
            Self::From { n, .. } => format!("cuBLAS f16 is faster from n = {n:.0} on"),
            Self::With(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                format!("cuBLAS f16 is faster with n = {}", all.join(", "))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn cublas_takes_over_where_the_lines_cross() {
        let document = testing::vectors();
        let of = |activation: &str, edit: &dyn Fn(&mut Case)| {
            let mut cases: Vec<Case> = document.cases.clone();
            cases.retain(|case| case.activation == activation);
            cases.iter_mut().for_each(edit);
            CublasFaster::of(&cases.iter().collect::<Vec<_>>())
        };
        // 14 and 31 us with n = 16, 40 and 34 with 128: 17 ahead, 6 behind.
        let CublasFaster::From { n, us } = of("f16", &|_| ()) else {
            panic!("no crossing");
        };
        let part = 17.0 / 23.0;
        assert!((n - 16.0 * 8f64.powf(part)).abs() < 1e-9, "{n}");
        assert!((us - (14.0 + part * 26.0)).abs() < 1e-9, "{us}");
        let theirs = |case: &mut Case, us: f64| {
            if let Some(cublas) = &mut case.cublas {
                cublas.times.median_us = us;
            }
        };
        assert_eq!(of("f16", &|case| theirs(case, 50.0)), CublasFaster::Nowhere);
        let all = of("f16", &|case| theirs(case, 5.0));
        assert_eq!(all, CublasFaster::From { n: 1.0, us: 5.0 });
        let middle = of("f16", &|case| {
            theirs(case, if case.n == 16 { 5.0 } else { 50.0 })
        });
        assert_eq!(middle, CublasFaster::With(vec![16]));
        let none = of("f16", &|case| case.cublas = None);
        assert_eq!((none.text(), none), (None, CublasFaster::Unknown));
        let text = middle.text().unwrap();
        assert_eq!(text, "cuBLAS f16 is faster with n = 16");
    }

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
