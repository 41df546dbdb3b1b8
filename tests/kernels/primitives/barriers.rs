//! mbarriers: phases, parities and bytes against a model of a few lines; what their waits order.

use super::trial::{HOPPER, Kernels, bytes32, noise};

crate::trials! {
    simulator: phases_and_bytes, a_wrong_number_of_bytes_or_arrivals_ends_in_a_deadlock, arrivals_release_and_waits_acquire, a_ring_alternates_parities, the_fence_hands_initialisations_on;
}

const ARRIVE: u32 = 0;
const EXPECT: u32 = 1;
const COPY: u32 = 2;
const TRY: u32 = 3;
const WAIT: u32 = 4;

/// Steps, and what each answers.
#[derive(Default)]
struct Script {
    steps: Vec<u32>,
    answers: Vec<u32>,
}

impl Script {
    fn push(&mut self, step: u32, argument: u32, answer: u32) {
        self.steps.push(step | argument << 8);
        self.answers.push(answer);
    }

    /// The phase of `parity` is current: the other one is over, this one is not.
    fn ask(&mut self, parity: u32, over: bool) {
        self.push(TRY, parity, u32::from(over));
        self.push(TRY, parity ^ 1, u32::from(!over));
    }

    /// A few phases; before each step it is known whether the phase is over.
    fn random(rng: &mut fastrand::Rng, arrivals: u32) -> Self {
        let mut script = Self::default();
        for phase in 0..rng.u32(1..6) {
            let parity = phase & 1;
            script.ask(parity, false);
            let mut to_copy = Vec::new();
            for arrival in 0..arrivals {
                if rng.bool() {
                    let pieces: Vec<u32> = (0..rng.u32(1..4)).map(|_| 16 * rng.u32(1..5)).collect();
                    script.push(EXPECT, pieces.iter().sum(), 2);
                    to_copy.extend(pieces);
                } else {
                    script.push(ARRIVE, 0, 2);
                }
                // A copy may come before the last arrival; then that one may end the phase.
                while arrival + 1 < arrivals && !to_copy.is_empty() && rng.bool() {
                    script.push(COPY, to_copy.pop().unwrap(), 2);
                    script.ask(parity, false);
                }
                if arrival + 1 < arrivals || !to_copy.is_empty() {
                    script.ask(parity, false);
                }
            }
            while let Some(bytes) = to_copy.pop() {
                script.push(COPY, bytes, 2);
                if !to_copy.is_empty() {
                    script.ask(parity, false);
                }
            }
            script.push(WAIT, parity, 2);
            script.ask(parity, true);
        }
        script
    }

    fn run(&self, kernels: &Kernels, arrivals: u32) -> super::trial::Trial {
        let mut trial = kernels
            .trial("script", [1, 1, 1], [1, 1, 1])
            .input(&noise(64, 1))
            .input(&bytes32(self.steps.iter().copied()))
            .output(4 * self.steps.len())
            .words(&[self.steps.len() as u32, arrivals]);
        trial.seeds = 1;
        trial
    }
}

fn phases_and_bytes() {
    for kernels in HOPPER.map(|arch| Kernels::new("barriers", arch)) {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let arrivals = rng.u32(1..5);
            let script = Script::random(&mut rng, arrivals);
            let want = bytes32(script.answers.iter().copied());
            script.run(&kernels, arrivals).gives(&want);
        }
    }
}

fn a_wrong_number_of_bytes_or_arrivals_ends_in_a_deadlock() {
    for kernels in HOPPER.map(|arch| Kernels::new("barriers", arch)) {
        for (expected, copied, arrivals) in [(64, 48, 1), (48, 64, 1), (0, 16, 1), (64, 64, 2)] {
            let mut script = Script::default();
            script.push(EXPECT, expected, 2);
            if expected == 0 {
                script.push(WAIT, 0, 2); // over at once; the bytes count for the next phase
            }
            script.push(COPY, copied, 2);
            script.push(WAIT, u32::from(expected == 0), 2);
            script.run(&kernels, arrivals).is_refused(&["deadlock"]);
        }
    }
}

fn arrivals_release_and_waits_acquire() {
    for kernels in HOPPER.map(|arch| Kernels::new("barriers", arch)) {
        let number = |i: u32| 1000 * (i / 128) + (i + 37) % 128;
        let want = bytes32((0..256).map(number));
        let mut trial = kernels.trial("release", [1, 1, 1], [128, 1, 1]);
        trial = trial.output(want.len()).words(&[0]);
        trial.gives(&want);
        for (wrong, whys) in [
            (1, &["nothing orders"][..]),
            (2, &["deadlock"]),
            (3, &["nothing orders", "nothing wrote"]),
            (4, &["its initialisation", "no initialised mbarrier"]),
            (5, &["nothing orders", "nothing wrote"]),
        ] {
            trial.wrong(wrong).is_refused(whys);
        }
    }
}

fn a_ring_alternates_parities() {
    for kernels in HOPPER.map(|arch| Kernels::new("barriers", arch)) {
        let rounds = 5;
        let want = bytes32((0..rounds).flat_map(|i| (0..32).map(move |lane| 100 * i + lane)));
        let mut trial = kernels.trial("ring", [1, 1, 1], [64, 1, 1]);
        trial = trial.output(want.len()).words(&[rounds, 0]);
        trial.gives(&want);
        trial.wrong(1).is_refused(&["nothing orders", "deadlock"]);
        trial.wrong(2).is_refused(&["deadlock"]);
    }
}

fn the_fence_hands_initialisations_on() {
    for kernels in HOPPER.map(|arch| Kernels::new("barriers", arch)) {
        let mut trial = kernels.trial("initialisation", [1, 1, 1], [64, 1, 1]);
        trial = trial.output(256).words(&[0]);
        trial.gives(&bytes32(0..64));
        trial.wrong(1).is_refused(&["initialisation"]);
    }
}
