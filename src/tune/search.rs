//! The search: every candidate in turns, the slow ones dropped early. Knows no device and no clock.

use std::time::Duration;

/// Limits that end a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Starts no round after this much time. The first round is always whole.
    pub time: Duration,
    /// Rounds at most, 1 or more.
    pub rounds: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(3),
            rounds: 15,
        }
    }
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The round, from 0 on.
    pub round: usize,
    /// Candidates that are still measured.
    pub alive: usize,
    /// The share of the time or of the rounds that is spent, whichever is more.
    pub share: f64,
    /// Seconds of the fastest so far.
    pub best: f64,
}

/// The result of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The candidate: an index into those the search was given.
    pub candidate: usize,
    /// The middle of its times in seconds.
    pub median: f64,
    /// The best.
    pub min: f64,
    /// The number of times that it was measured before the search ended or dropped it.
    pub rounds: usize,
}

/// How much slower than the fastest a candidate's best time may be after so many rounds. Single times
/// of the same kernel differ by some percent.
const MARGINS: [f64; 4] = [1.25, 1.10, 1.05, 1.03];
/// Rounds before which no candidate wins: a median of fewer is luck.
const SETTLED: usize = 5;

struct State {
    seconds: Vec<f64>,
    alive: bool,
}

impl State {
    fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn min(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Measures candidates, `groups.len()` of them, strictly in turns, so that other work of the machine meets all
/// candidates alike, and returns them with the fastest first.
///
/// After each round those are dropped whose best time is clearly more than the median of the fastest. The
/// fastest of each group stays to the end: a group is a kernel, of which all are reported. `measure` gives the
/// seconds of one candidate; `elapsed` the time since the search began.
///
/// # Errors
/// The first error of `measure`.
pub fn search<E>(
    groups: &[usize],
    limits: &Limits,
    mut elapsed: impl FnMut() -> Duration,
    mut measure: impl FnMut(usize) -> Result<f64, E>,
    mut progress: impl FnMut(Progress),
) -> Result<Vec<Found>, E> {
    let mut states: Vec<State> = groups
        .iter()
        .map(|_| State {
            seconds: Vec::new(),
            alive: true,
        })
        .collect();
    for round in 0..limits.rounds.max(1) {
        let alive: Vec<usize> = (0..states.len()).filter(|&i| states[i].alive).collect();
        let mut best = f64::NAN;
        for (i, &candidate) in alive.iter().enumerate() {
            let seconds = measure(candidate)?;
            states[candidate].seconds.push(seconds);
            best = best.min(states[candidate].min());
            let rounds = (round as f64 + i as f64 / alive.len() as f64) / limits.rounds as f64;
            let time = elapsed().as_secs_f64() / limits.time.as_secs_f64().max(1e-9);
            progress(Progress {
                round,
                alive: alive.len(),
                share: rounds.max(time).min(1.0),
                best,
            });
        }
        drop_slow(&mut states, groups, round);
        let alone = groups_of_the_living(&states, groups);
        if elapsed() >= limits.time || (alone && round + 1 >= SETTLED) {
            break;
        }
    }
    let mut found: Vec<Found> = states
        .iter()
        .enumerate()
        .map(|(candidate, state)| Found {
            candidate,
            median: state.median(),
            min: state.min(),
            rounds: state.seconds.len(),
        })
        .collect();
    // Candidates that stayed to the end come first: the others' times are of fewer rounds.
    let dropped = |found: &Found| !states[found.candidate].alive;
    found.sort_by(|a, b| {
        let by_time = a.median.total_cmp(&b.median);
        dropped(a).cmp(&dropped(b)).then(by_time)
    });
    Ok(found)
}

/// Drops the candidates that are clearly slower than the fastest, but the fastest of each group.
fn drop_slow(states: &mut [State], groups: &[usize], round: usize) {
    let margin = MARGINS[round.min(MARGINS.len() - 1)];
    let medians: Vec<f64> = states.iter().map(State::median).collect();
    let living = |i: &usize| states[*i].alive;
    let fastest = |of: &dyn Fn(usize) -> bool| {
        (0..medians.len())
            .filter(living)
            .filter(|&i| of(i))
            .min_by(|&a, &b| medians[a].total_cmp(&medians[b]))
    };
    let Some(leader) = fastest(&|_| true) else {
        return;
    };
    let limit = medians[leader] * margin;
    let keep: Vec<bool> = (0..states.len())
        .map(|i| {
            let first_of_group = fastest(&|other| groups[other] == groups[i]) == Some(i);
            states[i].alive && (states[i].min() <= limit || first_of_group)
        })
        .collect();
    for (state, keep) in states.iter_mut().zip(keep) {
        state.alive = keep;
    }
}

/// Each group has one candidate left, at most.
fn groups_of_the_living(states: &[State], groups: &[usize]) -> bool {
    let living = |group| {
        let of_group = states.iter().zip(groups).filter(|(_, g)| **g == group);
        of_group.filter(|(state, _)| state.alive).count()
    };
    groups.iter().all(|&group| living(group) <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Candidates of true times, measured with up to `noise` more, on a clock that only they move.
    fn simulate(
        truth: &[f64],
        groups: &[usize],
        limits: &Limits,
        noise: f64,
        seed: u64,
    ) -> (Vec<Found>, Duration, Vec<usize>) {
        let clock = Cell::new(0.0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut order = Vec::new();
        let found = search::<()>(
            groups,
            limits,
            || Duration::from_secs_f64(clock.get()),
            |candidate| {
                order.push(candidate);
                let seconds = truth[candidate] * (1.0 + noise * rng.f64());
                clock.set(clock.get() + 100.0 * seconds);
                Ok(seconds)
            },
            |_| (),
        )
        .unwrap();
        (found, Duration::from_secs_f64(clock.get()), order)
    }

    proptest! {
        /// Whatever the noise, the winner is no slower than the noise allows.
        #[test]
        fn finds_the_fastest(truth in prop::collection::vec(1e-6f64..1e-4, 1..40), seed in 0u64..1000) {
            let groups: Vec<usize> = (0..truth.len()).map(|i| i % 3).collect();
            let (found, ..) = simulate(&truth, &groups, &Limits::default(), 0.04, seed);
            prop_assert_eq!(found.len(), truth.len());
            let best = truth.iter().copied().fold(f64::INFINITY, f64::min);
            prop_assert!(truth[found[0].candidate] <= best * 1.04);
            // The best candidate of every group, as far as that can be told, is measured to the end.
            for group in 0..3 {
                let of_group: Vec<&Found> = found.iter().filter(|f| f.candidate % 3 == group).collect();
                let most = of_group.iter().map(|f| f.rounds).max();
                let first = of_group.first().map(|f| f.rounds);
                prop_assert_eq!(first, most);
            }
        }
    }

    #[test]
    fn the_slow_are_dropped_after_a_round_and_the_rest_take_turns() {
        let truth = [2.0e-5, 1.0e-5, 1.01e-5, 9.0e-5];
        let (found, _, order) = simulate(&truth, &[0; 4], &Limits::default(), 0.0, 1);
        assert_eq!(order[..4], [0, 1, 2, 3]);
        assert_eq!(order[4..8], [1, 2, 1, 2]);
        assert_eq!(found[0].candidate, 1);
        assert_eq!(found[0].rounds, 15);
        assert_eq!((found[3].candidate, found[3].rounds), (3, 1));
        let progress_is_whole = Cell::new(0.0);
        search::<()>(
            &[0, 0],
            &Limits::default(),
            || Duration::ZERO,
            |_| Ok(1e-5),
            |p| {
                assert!(p.share >= progress_is_whole.get() && p.share <= 1.0);
                progress_is_whole.set(p.share);
            },
        )
        .unwrap();
    }

    #[test]
    fn ends_when_time_is_up_or_nothing_is_left_to_tell() {
        let slow = Limits {
            time: Duration::from_millis(1),
            rounds: 1000,
        };
        let (found, time, _) = simulate(&[1e-5; 10], &[0; 10], &slow, 0.01, 1);
        assert!(
            found.iter().all(|f| f.rounds == 1),
            "the first round is whole"
        );
        assert!(time < Duration::from_millis(12));
        // One candidate left: no more rounds than a median needs.
        let many = Limits {
            time: Duration::from_secs(1000),
            rounds: 1000,
        };
        let (found, ..) = simulate(&[1e-5, 9e-5], &[0, 0], &many, 0.0, 1);
        assert_eq!(found[0].rounds, SETTLED);
    }

    #[test]
    fn a_failure_ends_the_search() {
        let result = search(
            &[0, 0],
            &Limits::default(),
            || Duration::ZERO,
            |candidate| match candidate {
                0 => Ok(1e-5),
                _ => Err("broken"),
            },
            |_| (),
        );
        assert_eq!(result, Err("broken"));
    }
}
