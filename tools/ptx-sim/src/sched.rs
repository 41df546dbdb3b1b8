//! The scheduler: who runs next, for how long, and when asynchronous operations complete. A policy and its seed decide
//! everything, so a run can be repeated exactly.

use std::fmt;
use std::str::FromStr;

/// How warps take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Round robin.
    #[default]
    Fair,
    /// Any warp that can run, for a random number of instructions.
    Random(u64),
    /// Like random, but one warp of each CTA runs only when nothing else in the grid can.
    Starve(u64),
}

/// When pending asynchronous operations complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timing {
    /// Operations complete as soon as they may.
    #[default]
    Eager,
    /// Not before nothing else can run.
    Lazy,
    /// At any time, in any order, by the policy's seed.
    Random,
    /// Operations complete in the order of issue, each this many steps after its own issue. Where nothing else can run,
    /// steps pass without an instruction. This is no schedule to find faults with. It likens memory with a latency, for
    /// pictures.
    After(u32),
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Timing::Eager => f.write_str("eager"),
            Timing::Lazy => f.write_str("lazy"),
            Timing::Random => f.write_str("random"),
            Timing::After(steps) => write!(f, "after:{steps}"),
        }
    }
}

impl FromStr for Timing {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let after = s.strip_prefix("after:").map(str::parse);
        match (s, after) {
            ("eager", _) => Ok(Timing::Eager),
            ("lazy", _) => Ok(Timing::Lazy),
            ("random", _) => Ok(Timing::Random),
            (_, Some(Ok(steps))) => Ok(Timing::After(steps)),
            _ => Err(format!(
                "`{s}` is not a timing: eager, lazy, random or after:STEPS"
            )),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, seed) = match s.split_once(':') {
            Some((n, v)) => (n, v.parse().map_err(|_| format!("`{v}` is not a seed"))?),
            None => (s, 0),
        };
        match name {
            "fair" => Ok(Policy::Fair),
            "random" => Ok(Policy::Random(seed)),
            "starve" => Ok(Policy::Starve(seed)),
            _ => Err(format!(
                "`{name}` is not a policy: fair, random[:SEED] or starve[:SEED]"
            )),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Fair => write!(f, "fair"),
            Policy::Random(s) => write!(f, "random:{s}"),
            Policy::Starve(s) => write!(f, "starve:{s}"),
        }
    }
}

impl Policy {
    /// This policy with another seed.
    pub fn with_seed(self, seed: u64) -> Self {
        match self {
            Policy::Fair => Policy::Fair,
            Policy::Random(_) => Policy::Random(seed),
            Policy::Starve(_) => Policy::Starve(seed),
        }
    }
}

/// A warp that can run: index of its CTA among the resident ones, and its index there.
pub(crate) type Candidate = (usize, usize);

/// The next number of SplitMix64.
#[doc(hidden)]
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Makes the choices.
#[derive(Debug, Clone)]
pub(crate) struct Scheduler {
    policy: Policy,
    state: u64,
    turn: usize,
}

impl Scheduler {
    pub(crate) fn new(policy: Policy) -> Self {
        let state = match policy {
            Policy::Fair => 0,
            Policy::Random(s) | Policy::Starve(s) => s,
        };
        Self {
            policy,
            state,
            turn: 0,
        }
    }

    pub(crate) fn random(&mut self) -> u64 {
        split_mix(&mut self.state)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.random() % n.max(1) as u64) as usize
    }

    /// Whether a request is granted that may be refused at any time: always under the fair policy, three of four times
    /// under the others.
    pub(crate) fn grants(&mut self) -> bool {
        self.policy == Policy::Fair || self.below(4) != 0
    }

    /// One of the candidates, which are not empty.
    pub(crate) fn pick(&mut self, candidates: &[Candidate]) -> Candidate {
        match self.policy {
            Policy::Fair => {
                self.turn = self.turn.wrapping_add(1);
                candidates[self.turn % candidates.len()]
            }
            Policy::Random(_) => candidates[self.below(candidates.len())],
            Policy::Starve(seed) => {
                let others: Vec<_> = candidates
                    .iter()
                    .filter(|(_, w)| *w != (seed % 8) as usize)
                    .copied()
                    .collect();
                let from = if others.is_empty() {
                    candidates
                } else {
                    &others
                };
                from[self.below(from.len())]
            }
        }
    }

    /// The grid of several whose warps all run before any of another, if there is one, and for how many turns.
    pub(crate) fn favourite(&mut self, grids: usize) -> (Option<usize>, u32) {
        match self.policy {
            Policy::Fair => (None, u32::MAX),
            Policy::Random(_) => {
                let turns = 1 << self.below(9);
                (Some(self.below(grids + 1)).filter(|g| *g < grids), turns)
            }
            Policy::Starve(seed) => (Some((seed % grids as u64) as usize), u32::MAX),
        }
    }

    /// Instructions before the next choice.
    pub(crate) fn quantum(&mut self) -> u32 {
        match self.policy {
            Policy::Fair => 64,
            // Mostly short, sometimes long enough for one warp to run far ahead.
            Policy::Random(_) | Policy::Starve(_) => match self.random() % 16 {
                0 => 512,
                n => 1 + (n as u32) * 2,
            },
        }
    }

    /// Whether a wait with a time limit gives up before it is over.
    pub(crate) fn impatient(&mut self) -> bool {
        match self.policy {
            Policy::Fair => false,
            _ => self.below(8) == 0,
        }
    }

    /// Index of the part that goes on, among `n` diverged parts of a warp.
    pub(crate) fn part(&mut self, n: usize) -> usize {
        match self.policy {
            _ if n < 2 => 0,
            Policy::Fair => {
                self.turn = self.turn.wrapping_add(1);
                self.turn % n
            }
            _ => self.below(n),
        }
    }

    /// The lane that `elect.sync` elects: a fixed one of each mask, but not always the lowest.
    pub(crate) fn elect(&self, mask: u32) -> u32 {
        let seed = match self.policy {
            Policy::Fair => return mask.trailing_zeros(),
            Policy::Random(s) | Policy::Starve(s) => s,
        };
        let mut hash = Self {
            policy: self.policy,
            state: seed ^ u64::from(mask) << 20,
            turn: 0,
        };
        let skip = hash.below(mask.count_ones() as usize);
        let mut m = mask;
        for _ in 0..skip {
            m &= m - 1;
        }
        m.trailing_zeros()
    }
}
