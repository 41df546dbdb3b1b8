//! Where each rank is: so that a wait that has no bound of its own, in a driver or in NCCL, names its rank and step.
//!
//! A rank's thread cannot be ended from outside. So where no rank has moved for longer than any wait with a bound takes,
//! the program says where all of them are, and ends.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

/// Without a step of any rank for so long, people are told where the ranks are, and again after as long.
const QUIET: Duration = Duration::from_secs(10);

/// Without one for so long, nothing will come any more. Joining takes three waits of 60 s at most.
const STUCK: Duration = Duration::from_secs(240);

/// The steps of all ranks.
pub(super) struct Steps {
    ranks: Mutex<Vec<Step>>,
}

#[derive(Clone)]
struct Step {
    what: String,
    since: Instant,
}

/// A rank's own place.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    steps: &'a Steps,
    rank: usize,
}

impl At<'_> {
    /// The rank begins something.
    pub(super) fn step(&self, what: impl FnOnce() -> String) {
        let step = Step {
            what: what(),
            since: Instant::now(),
        };
        self.steps.lock()[self.rank] = step;
    }
}

impl Steps {
    pub(super) fn new(ranks: usize) -> Self {
        let begin = Step {
            what: "beginning".into(),
            since: Instant::now(),
        };
        Self {
            ranks: Mutex::new(vec![begin; ranks]),
        }
    }

    pub(super) fn of(&self, rank: usize) -> At<'_> {
        At { steps: self, rank }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Step>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs what the ranks do, and ends the program where none of them moves any more.
    pub(super) fn watched<R>(&self, work: impl FnOnce() -> R) -> R {
        let say = |text: &str| {
            // Nothing can be done where stderr is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        };
        let give_up = |text: &str| {
            say(&format!("error: {text}"));
            std::process::exit(1);
        };
        self.watch(QUIET, STUCK, say, give_up, work)
    }

    /// Runs work, and meanwhile says where the ranks are when they are quiet; and gives up when they are stuck.
    fn watch<R>(
        &self,
        quiet: Duration,
        stuck: Duration,
        say: impl Fn(&str) + Send,
        give_up: impl FnOnce(&str) + Send,
        work: impl FnOnce() -> R,
    ) -> R {
        let (done, is_done) = channel::<()>();
        scope(|scope| {
            scope.spawn(move || {
                let mut next = quiet;
                while is_done.recv_timeout(quiet.min(stuck)) == Err(RecvTimeoutError::Timeout) {
                    let still = self.still();
                    if still < quiet {
                        next = quiet;
                    }
                    if still >= stuck {
                        give_up(&format!("no rank moves any more: {}", self.text()));
                        return;
                    }
                    if still >= next {
                        say(&self.text());
                        next = still + quiet;
                    }
                }
            });
            // Dropped also where the work panics.
            let _done: Sender<()> = done;
            work()
        })
    }

    /// How long no rank has begun anything.
    fn still(&self) -> Duration {
        let ranks = self.lock();
        let since = ranks.iter().map(|step| step.since.elapsed());
        since.min().unwrap_or_default()
    }

    /// Each step once, with its ranks: those first that have been in theirs for longest.
    fn text(&self) -> String {
        let ranks = self.lock().clone();
        let mut steps: Vec<(&str, Vec<usize>, Duration)> = Vec::new();
        for (rank, step) in ranks.iter().enumerate() {
            let since = step.since.elapsed();
            match steps.iter_mut().find(|(what, ..)| *what == step.what) {
                Some((_, of, longest)) => {
                    of.push(rank);
                    *longest = since.max(*longest);
                }
                None => steps.push((&step.what, vec![rank], since)),
            }
        }
        steps.sort_by_key(|(.., since)| std::cmp::Reverse(*since));
        let one = |(what, of, since): (&str, Vec<usize>, Duration)| {
            let numbers: Vec<String> = of.iter().map(usize::to_string).collect();
            let ranks = if of.len() == 1 { "rank" } else { "ranks" };
            let numbers = numbers.join(", ");
            format!(
                "{ranks} {numbers}: {what}, for {:.0} s",
                since.as_secs_f64()
            )
        };
        let texts: Vec<String> = steps.into_iter().map(one).collect();
        format!("of {} ranks, {}", ranks.len(), texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// A rank that hangs where nothing has a bound, while the others wait for it: the program ends, and says which.
    #[test]
    fn a_rank_that_hangs_is_named_with_its_step() {
        let steps = Steps::new(3);
        let (said, gave_up) = (Mutex::new(Vec::new()), Mutex::new(None));
        let (release, held) = channel::<()>();
        let short = Duration::from_millis(20);
        let result = steps.watch(
            short,
            5 * short,
            |text| said.lock().unwrap().push(text.to_owned()),
            |text| {
                *gave_up.lock().unwrap() = Some(text.to_owned());
                release.send(()).unwrap();
            },
            || {
                scope(|scope| {
                    let steps = &steps;
                    scope.spawn(move || {
                        steps.of(1).step(|| "registering windows".into());
                        held.recv().unwrap();
                    });
                    for rank in [0, 2] {
                        steps
                            .of(rank)
                            .step(|| "waiting for the first launches".into());
                    }
                });
                7
            },
        );
        assert_eq!(result, 7);
        let gave_up = gave_up.into_inner().unwrap().expect("nobody gave up");
        assert!(
            gave_up.contains("no rank moves any more: of 3 ranks, "),
            "{gave_up}"
        );
        assert!(
            gave_up.contains("rank 1: registering windows, for 0 s"),
            "{gave_up}"
        );
        assert!(
            gave_up.contains("ranks 0, 2: waiting for the first launches"),
            "{gave_up}"
        );
        assert!(
            !said.into_inner().unwrap().is_empty(),
            "and it was said before"
        );
    }

    /// Slow is not stuck: as long as one rank moves, nobody gives up.
    #[test]
    fn ranks_that_move_are_left_alone() {
        let steps = Steps::new(2);
        let short = Duration::from_millis(50);
        let result = steps.watch(
            short,
            4 * short,
            |_| {},
            |text| panic!("{text}"),
            || {
                for i in 0..30 {
                    steps.of(i % 2).step(|| format!("step {i}"));
                    std::thread::sleep(short / 5);
                }
                "done"
            },
        );
        assert_eq!(result, "done");
    }
}
