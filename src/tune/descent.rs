//! Chooses one option for each of several problems whose time is measured only together. Knows no device and no clock.

use std::time::Duration;

use super::search::{Found, Limits, Progress, search};

/// Rounds over all problems at most.
const SWEEPS: usize = 3;
/// An option takes another one's place if it is faster by more than this: single times differ by as much.
const GAIN: f64 = 0.003;

/// Changes one choice at a time, and keeps what is clearly faster. `options[i]` is how many options problem i has,
/// `choice[i]` the one to start with. `measure` gives the seconds of all problems together with a choice. For one
/// problem all of its options take turns within `limits`, with the other problems as they are. Then comes the next
/// problem, until a round over all problems changes nothing, or for three rounds. A problem with one option is left
/// alone.
///
/// # Errors
/// The first error of `measure`.
pub(super) fn descend<E>(
    options: &[usize],
    choice: &mut [usize],
    limits: &Limits,
    mut now: impl FnMut() -> Duration,
    mut measure: impl FnMut(&[usize]) -> Result<f64, E>,
    mut progress: impl FnMut(Progress),
) -> Result<(), E> {
    let several: Vec<usize> = (0..options.len()).filter(|&i| options[i] > 1).collect();
    let all = (SWEEPS * several.len()) as f64;
    for sweep in 0..SWEEPS {
        let mut changed = false;
        for (at, &problem) in several.iter().enumerate() {
            let begin = now();
            let before = choice[problem];
            let mut trial = choice.to_vec();
            let done = (sweep * several.len() + at) as f64;
            let found = search(
                // One group: nothing must stay but the fastest.
                &vec![0; options[problem]],
                limits,
                || now().saturating_sub(begin),
                |option| {
                    trial[problem] = option;
                    measure(&trial)
                },
                |at| {
                    progress(Progress {
                        share: (done + at.share) / all,
                        ..at
                    });
                },
            )?;
            if let Some(option) = faster(&found, before) {
                choice[problem] = option;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Ok(())
}

/// The fastest, if it is clearly faster than `before`.
fn faster(found: &[Found], before: usize) -> Option<usize> {
    let best = found.first()?;
    let of_before = found.iter().find(|one| one.candidate == before)?;
    let gains = best.median < of_before.median * (1.0 - GAIN);
    (best.candidate != before && gains).then_some(best.candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        time: Duration::from_secs(1),
        rounds: 5,
    };

    fn found_with(
        options: &[usize],
        start: &[usize],
        seconds: impl FnMut(&[usize]) -> f64,
    ) -> Vec<usize> {
        let mut choice = start.to_vec();
        let mut seconds = seconds;
        let mut share = 0.0;
        descend::<()>(
            options,
            &mut choice,
            &LIMITS,
            || Duration::ZERO,
            |choice| Ok(seconds(choice)),
            |at| {
                assert!(at.share >= share && at.share <= 1.0);
                share = at.share;
            },
        )
        .unwrap();
        choice
    }

    proptest! {
        /// Problems that do not disturb each other each get an option that is as fast as their fastest, except for
        /// differences that do not count.
        #[test]
        fn problems_apart_get_their_fastest(
            times in prop::collection::vec(prop::collection::vec(1.0f64..2.0, 1..6), 1..5)
        ) {
            let options: Vec<usize> = times.iter().map(Vec::len).collect();
            let sum = |choice: &[usize]| -> f64 { choice.iter().zip(&times).map(|(&one, of)| of[one]).sum() };
            let best: f64 = times.iter().map(|of| of.iter().copied().fold(f64::INFINITY, f64::min)).sum();
            let found = found_with(&options, &vec![0; options.len()], sum);
            // Each of the problems may leave a gain of about `GAIN`.
            prop_assert!(sum(&found) <= best * (1.0 + 1.1 * GAIN * options.len() as f64), "{found:?}");
        }
    }

    /// The fastest of its own chain is not the fastest between others: what the search is for.
    #[test]
    fn a_problem_is_tuned_for_its_neighbours() {
        // Option 1 is faster by itself, but costs the neighbour more than it gains.
        let seconds = |choice: &[usize]| {
            let alone = [5.0, 4.0][choice[0]] + [3.0, 2.9][choice[1]];
            alone + if choice[0] == 1 { 2.0 } else { 0.0 }
        };
        assert_eq!(found_with(&[2, 2], &[1, 0], seconds), [0, 1]);
    }

    /// The second round sees what the first has changed.
    #[test]
    fn goes_over_the_problems_again() {
        // The first problem's option 1 pays only once the second has its option 1.
        let seconds = |choice: &[usize]| match choice {
            [1, 1] => 6.0,
            [0, 1] => 8.0,
            [1, 0] => 11.0,
            _ => 10.0,
        };
        assert_eq!(found_with(&[2, 2], &[0, 0], seconds), [1, 1]);
    }

    #[test]
    fn noise_changes_nothing() {
        let mut turn = 0;
        let seconds = |_: &[usize]| {
            turn += 1;
            1.0 + 0.002 * f64::from(turn % 2)
        };
        assert_eq!(found_with(&[2, 3], &[1, 2], seconds), [1, 2]);
    }

    #[test]
    fn one_option_each_is_not_measured() {
        let never = |_: &[usize]| -> f64 { panic!("nothing to choose") };
        assert_eq!(found_with(&[1, 1], &[0, 0], never), [0, 0]);
        assert_eq!(found_with(&[], &[], |_| 1.0), [0; 0]);
    }

    #[test]
    fn a_failure_ends_it() {
        let mut choice = [0];
        let failed = descend(
            &[2],
            &mut choice,
            &LIMITS,
            || Duration::ZERO,
            |_| Err("broken"),
            |_| (),
        );
        assert_eq!(failed, Err("broken"));
        assert_eq!(choice, [0]);
    }
}
