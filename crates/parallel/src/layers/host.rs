//! Ranks that are threads of this process, and compute on its CPU.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nvfp4_gemv::{Gate, Options, Output, Vectors, gemv};

use super::{LayersError, RankLayers, with_vectors};
use crate::shard::Shard;

/// Errors of ranks that are threads, when they exchange parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A rank ended before it gave its part.
    #[error("rank {rank} ended before it gave its part")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// Ranks gave parts of different lengths.
    #[error("ranks gave parts of different lengths: {lengths:?}")]
    Lengths {
        /// Elements that each rank gave.
        lengths: Vec<usize>,
    },
    /// The buffer that is to be filled has another length than all parts together.
    #[error("{got} elements for parts of {needed} in all")]
    GatherLength {
        /// Elements that it has.
        got: usize,
        /// Elements of all parts.
        needed: usize,
    },
}

/// A rank that is a thread: for threads of one process, on its CPU, what a communicator is for GPUs.
///
/// Sums are made in the order of the ranks, so they have the same bits on all of them and every time. Dropped, by a
/// panic too, a rank ends the waits of the others.
#[derive(Debug)]
pub struct HostRank {
    rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The part that each rank has given in this round.
    given: Vec<Option<Vec<f32>>>,
    /// The parts of the round before, until all ranks have taken them.
    whole: Arc<Vec<Vec<f32>>>,
    to_take: usize,
    rounds: usize,
    /// The first rank that ended.
    gone: Option<usize>,
}

impl HostRank {
    /// A group of so many ranks, for a thread each.
    pub fn group(ranks: usize) -> Vec<Self> {
        let state = State {
            given: vec![None; ranks],
            whole: Arc::default(),
            to_take: 0,
            rounds: 0,
            gone: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let rank = |rank| Self {
            rank,
            shared: shared.clone(),
        };
        (0..ranks).map(rank).collect()
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.lock().given.len()
    }

    /// Puts the sum of all ranks' values in the place of each rank's.
    ///
    /// # Errors
    /// [`GroupError::Gone`], [`GroupError::Lengths`].
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<(), GroupError> {
        let parts = self.exchange(values)?;
        let (first, others) = parts.split_first().expect("this rank gave one");
        values.copy_from_slice(first);
        for part in others {
            for (sum, value) in values.iter_mut().zip(part) {
                *sum += value;
            }
        }
        Ok(())
    }

    /// Collects the values of all ranks, in the order of the ranks' numbers.
    ///
    /// # Errors
    /// [`GroupError::Gone`], [`GroupError::Lengths`], [`GroupError::GatherLength`].
    pub fn all_gather(&self, mine: &[f32], all: &mut [f32]) -> Result<(), GroupError> {
        let parts = self.exchange(mine)?;
        let (got, needed) = (all.len(), mine.len() * parts.len());
        if got != needed {
            return Err(GroupError::GatherLength { got, needed });
        }
        for (to, part) in all.chunks_mut(mine.len().max(1)).zip(&*parts) {
            to.copy_from_slice(part);
        }
        Ok(())
    }

    /// Gives a part and gets those of all ranks, which are of equal length.
    fn exchange(&self, mine: &[f32]) -> Result<Arc<Vec<Vec<f32>>>, GroupError> {
        let mut state = self.lock();
        // The round before ends when all have taken what it gave.
        while state.to_take > 0 {
            state = self.wait(state);
        }
        let ranks = state.given.len();
        state.given[self.rank] = Some(mine.to_vec());
        let round = state.rounds;
        if state.given.iter().all(Option::is_some) {
            let parts = state.given.iter_mut().filter_map(Option::take).collect();
            state.whole = Arc::new(parts);
            state.to_take = ranks;
            state.rounds += 1;
            self.shared.changed.notify_all();
        }
        while state.rounds == round {
            // One that ended after this round began has given its part, or never will.
            if let Some(rank) = state.gone.filter(|rank| state.given[*rank].is_none()) {
                state.given[self.rank] = None;
                return Err(GroupError::Gone { rank });
            }
            state = self.wait(state);
        }
        let whole = state.whole.clone();
        state.to_take -= 1;
        if state.to_take == 0 {
            self.shared.changed.notify_all();
        }
        drop(state);
        let lengths: Vec<usize> = whole.iter().map(Vec::len).collect();
        match lengths.iter().all(|length| *length == mine.len()) {
            true => Ok(whole),
            false => Err(GroupError::Lengths { lengths }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing here panics half way.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let changed = self.shared.changed.wait(state);
        changed.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostRank {
    fn drop(&mut self) {
        // Ranks that end behind the first one may do so because of it.
        self.lock().gone.get_or_insert(self.rank);
        self.shared.changed.notify_all();
    }
}

/// `silu(gate) * up`, which is between the layers of an MLP ([`Gate::Silu`]). As many elements as the
/// shortest of the three has.
pub fn silu_times(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = Gate::Silu.of(*gate, *up);
    }
}

impl RankLayers<'_> {
    /// Computes the pair of layers for n vectors `[n][K]`, together with the other ranks, which do the same: the whole
    /// result `[n][M]`, the same bits on all of them.
    ///
    /// `between` gets this rank's part of the first layers' results, `[n][rows]` each, and fills the last layer's
    /// vectors, `[n][K of its part]`. Its error goes to this rank's caller. The other ranks get [`GroupError::Gone`],
    /// once this rank's `group` is dropped.
    ///
    /// # Errors
    /// [`LayersError::Length`], [`LayersError::OtherRank`]; errors of `between`, of the products and of the ranks.
    pub fn compute<E: From<LayersError>>(
        &self,
        n: usize,
        x: &[f32],
        group: &HostRank,
        between: impl FnOnce(&[Vec<f32>], &mut [f32]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        self.is_for(group.rank(), group.ranks())?;
        let first = self.first.iter().map(|shard| product(shard, n, x));
        let first = first.collect::<Result<Vec<_>, _>>()?;
        let mut vectors = vec![0.0; n * self.last.shape().k()];
        between(&first, &mut vectors)?;
        let mut y = product(&self.last, n, &vectors)?;
        group.all_reduce(&mut y).map_err(LayersError::from)?;
        Ok(y)
    }
}

fn product(shard: &Shard<'_>, n: usize, x: &[f32]) -> Result<Vec<f32>, LayersError> {
    let shape = with_vectors(shard, n)?;
    let (got, needed) = (x.len(), n * shape.k());
    if got != needed {
        let what = "the vectors";
        return Err(LayersError::Length { what, got, needed });
    }
    let mut y = vec![0.0; shape.outputs()];
    let (weights, options) = (shard.weights()?, Options::new());
    gemv(
        &shape,
        &weights,
        &Vectors::of(x),
        Output::of(&mut y),
        &options,
    )?;
    Ok(y)
}
