//! Candidates in the order of their merit, and which of them an entry keeps.

use super::search::Found;
use crate::dispatch::measured::{Chained, Timed};
use crate::kernel::Config;

/// Candidates, the best first.
pub(super) type Ranking = Vec<(Config, Found)>;

/// The first of each kernel.
pub(super) fn best_of_each_kernel(
    ranking: &[(Config, Found)],
    chained: &[(Config, Found)],
) -> Vec<Timed> {
    let mut best: Vec<Timed> = Vec::new();
    for (config, found) in ranking {
        let kernel = config.kernel();
        if best.iter().all(|timed| timed.kernel() != kernel) {
            let mut chained = chained.iter();
            let chained = chained.find(|(config, _)| config.kernel() == kernel);
            best.push(Timed {
                config: *config,
                seconds: found.median,
                chained: chained.map(|&(config, ref found)| Chained {
                    config,
                    seconds: found.median,
                }),
            });
        }
    }
    best
}

/// The first of each kernel, of rankings whose first is not the fastest. Who uses an entry takes the kernel with the
/// least time, so those that are faster than the first are left out, isolated and chained.
pub(super) fn preferred_of_each_kernel(
    ranking: &[(Config, Found)],
    chained: &[(Config, Found)],
) -> Vec<Timed> {
    let mut best = best_of_each_kernel(ranking, chained);
    let seconds = |ranking: &[(Config, Found)]| ranking.first().map(|(_, found)| found.median);
    if let Some(first) = seconds(ranking) {
        best.retain(|timed| timed.seconds >= first);
    }
    if let Some(first) = seconds(chained) {
        for timed in &mut best {
            timed.chained = timed.chained.filter(|chained| chained.seconds >= first);
        }
    }
    best
}

/// Puts candidates in front of the others, in this order. The others keep theirs; names of no candidate are passed
/// over.
pub(super) fn to_front(ranking: &mut Ranking, preferred: &[Config]) {
    let place = |config: &Config| {
        let place = preferred.iter().position(|one| one == config);
        place.unwrap_or(preferred.len())
    };
    ranking.sort_by_key(|(config, _)| place(config)); // stable
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{DirectConfig, RingConfig};

    fn direct(warps: u32) -> Config {
        let (blocks_per_load, k_split) = (2, 2);
        let config = DirectConfig {
            blocks_per_load,
            warps,
            k_split,
            ..DirectConfig::DEFAULT
        };
        config.into()
    }

    fn ring() -> Config {
        let config = RingConfig {
            chunks: 2,
            groups: 4,
            rows: 4,
            depth: 2,
            ctas: 132,
            ..RingConfig::DEFAULT
        };
        config.into()
    }

    /// Candidates with these microseconds.
    fn ranking(all: &[(Config, f64)]) -> Ranking {
        let of = |(candidate, &(config, us)): (usize, &(Config, f64))| {
            let found = Found {
                candidate,
                median: us * 1e-6,
                min: us * 1e-6,
                rounds: 5,
            };
            (config, found)
        };
        all.iter().enumerate().map(of).collect()
    }

    fn configs(best: &[Timed]) -> Vec<Config> {
        best.iter().map(|timed| timed.config).collect()
    }

    #[test]
    fn what_is_preferred_is_first_and_nothing_faster_stays() {
        let all = [(ring(), 9.0), (direct(4), 10.0), (direct(8), 11.0)];
        let mut found = ranking(&all);
        assert_eq!(
            configs(&best_of_each_kernel(&found, &[])),
            [ring(), direct(4)]
        );
        to_front(&mut found, &[direct(8), direct(2)]);
        let order: Vec<Config> = found.iter().map(|(config, _)| *config).collect();
        assert_eq!(order, [direct(8), ring(), direct(4)]);
        // ring would be taken instead: 9 are less than 11.
        assert_eq!(configs(&preferred_of_each_kernel(&found, &[])), [direct(8)]);
        // With the fastest preferred, the other kernel stays.
        to_front(&mut found, &[ring()]);
        let best = preferred_of_each_kernel(&found, &[]);
        assert_eq!(configs(&best), [ring(), direct(8)]);
        assert_eq!(best[1].seconds, 11.0 * 1e-6);
    }

    #[test]
    fn chained_times_that_are_faster_than_the_preferred_are_left_out() {
        let isolated = ranking(&[(ring(), 9.0), (direct(4), 10.0)]);
        let mut chained = ranking(&[(direct(8), 7.0), (ring(), 8.0)]);
        to_front(&mut chained, &[ring()]);
        let best = preferred_of_each_kernel(&isolated, &chained);
        assert_eq!(configs(&best), [ring(), direct(4)]);
        let chained: Vec<_> = best.iter().map(|timed| timed.chained).collect();
        assert_eq!(chained[0].unwrap().config, ring());
        assert_eq!(chained[1], None);
    }

    #[test]
    fn nothing_of_nothing() {
        assert_eq!(preferred_of_each_kernel(&[], &[]), []);
    }
}
