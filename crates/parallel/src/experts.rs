//! Whole experts of a mixture on ranks: expert parallelism, with one sum.
//!
//! Each rank has some of the experts and all vectors. A router's ids are the same on all ranks; for a rank, the id of an
//! expert that another one has is -1, which adds nothing ([`Division::local_ids`]). So each rank computes the part of its
//! own experts, and the sum over ranks is the result, on all of them.
//!
//! On a CPU, where ranks are threads, [`RankExperts`] does all of that. On GPUs give [`Division::range`]'s experts to
//! `ExpertsOnDevice`, the local ids to its call, and its result to `nccl::Communicator::all_reduce`.
//!
//! ```
//! use nvfp4_gemv::{Experts, Linear, Mlp};
//! use nvfp4_gemv_parallel::experts::{ExpertsError, RankExperts};
//! use nvfp4_gemv_parallel::layers::HostRank;
//!
//! let layer = |value: f32, rows, k| Linear::from_dense(&vec![value; rows * k], rows, k);
//! let expert = |value| Ok::<_, Box<dyn std::error::Error>>(Mlp::new(
//!     layer(1.0, 16, 32)?, layer(value, 16, 32)?, layer(1.0, 32, 16)?)?);
//! let experts = Experts::new([expert(1.0)?, expert(2.0)?, expert(4.0)?])?;
//! // One vector, whose two experts are on different ranks.
//! let (x, ids, weights) = ([1.0; 32], [2, 0], [0.5, 0.5]);
//! let rank = |group: HostRank| RankExperts::new(&experts, &group)?.compute(1, &x, &ids, &weights, &group);
//! let y: Vec<Vec<f32>> = std::thread::scope(|scope| {
//!     let threads: Vec<_> = HostRank::group(2).into_iter().map(|group| scope.spawn(|| rank(group))).collect();
//!     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_, ExpertsError>>()
//! })?;
//! assert_eq!(y[0][0], 16.0 * 32.0 * 32.0 * 2.5);
//! assert_eq!(y[0], y[1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use nvfp4_gemv::{Error, Experts, Output, Vectors};

use crate::layers::{GroupError, HostRank};

/// Errors of experts over ranks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertsError {
    /// A rank would have no expert, or there are no ranks.
    #[error("{experts} experts over {ranks} ranks: each rank has one expert at least")]
    TooFew {
        /// The experts.
        experts: usize,
        /// The ranks.
        ranks: usize,
    },
    /// A rank that the division does not have, or another group's.
    #[error("rank {rank} of {got} ranks, and the experts are divided among {ranks}")]
    OtherRank {
        /// The rank.
        rank: usize,
        /// The ranks of its group.
        got: usize,
        /// The ranks of the division.
        ranks: usize,
    },
    /// The id of an expert that no rank has.
    #[error("id {id} at place {place} is none of {experts} experts, and not -1")]
    NoSuchExpert {
        /// The id.
        id: i32,
        /// Its place among the ids.
        place: usize,
        /// The experts of all ranks.
        experts: usize,
    },
    /// A product, or operands that do not fit it.
    #[error(transparent)]
    Gemv(#[from] Error),
    /// An error of ranks that are threads.
    #[error(transparent)]
    Group(#[from] GroupError),
}

/// Which rank has which experts: each has neighbours, and as many as any other one, or one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    experts: usize,
    ranks: usize,
}

impl Division {
    /// So many experts over so many ranks.
    ///
    /// # Errors
    /// [`ExpertsError::TooFew`].
    pub const fn new(experts: usize, ranks: usize) -> Result<Self, ExpertsError> {
        if ranks == 0 || experts < ranks {
            return Err(ExpertsError::TooFew { experts, ranks });
        }
        Ok(Self { experts, ranks })
    }

    /// The number of ranks.
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// The experts of a rank; none of a rank that there is not.
    pub fn range(&self, rank: usize) -> Range<usize> {
        let (each, more) = (self.experts / self.ranks, self.experts % self.ranks);
        let first = |rank: usize| rank.min(self.ranks) * each + rank.min(more);
        first(rank)..first(rank + 1)
    }

    /// A router's ids as a rank sees them: its own experts are counted from 0, those of other ranks are -1, and so is
    /// what was -1 before.
    ///
    /// # Errors
    /// [`ExpertsError::NoSuchExpert`], on every rank: one that does not have the expert would else leave it out
    /// silently.
    pub fn local_ids(&self, rank: usize, ids: &[i32]) -> Result<Vec<i32>, ExpertsError> {
        let own = self.range(rank);
        let local = |(place, &id): (usize, &i32)| match usize::try_from(id) {
            Ok(expert) if own.contains(&expert) => Ok((expert - own.start) as i32), // no more than id
            Ok(expert) if expert < self.experts => Ok(-1),
            Err(_) if id == -1 => Ok(-1),
            _ => Err(ExpertsError::NoSuchExpert {
                id,
                place,
                experts: self.experts,
            }),
        };
        ids.iter().enumerate().map(local).collect()
    }
}

/// A rank's experts in host memory. They share the weights of those that they were made of.
#[derive(Clone, Debug)]
pub struct RankExperts {
    division: Division,
    rank: usize,
    own: Experts,
}

impl RankExperts {
    /// The experts of a group's rank.
    ///
    /// # Errors
    /// [`ExpertsError::TooFew`].
    pub fn new(all: &Experts, group: &HostRank) -> Result<Self, ExpertsError> {
        let division = Division::new(all.all().len(), group.ranks())?;
        let own = all.all()[division.range(group.rank())].to_vec();
        Ok(Self {
            division,
            rank: group.rank(),
            own: Experts::new(own)?,
        })
    }

    /// The experts that this rank has.
    pub fn own(&self) -> &Experts {
        &self.own
    }

    /// Computes `n` vectors `[n][K]` together with the other ranks, which do the same: the whole result `[n][M]`, the
    /// same bits on all of them. Ids and weights `[n][choices]` are those of [`Experts::forward`], the same on all ranks.
    ///
    /// A rank's part is rounded to f32 before parts are added in the order of the ranks, so a result may differ from one
    /// device's by that. With an error of its own a rank gives no part; the others get [`GroupError::Gone`] once its
    /// `group` is dropped.
    ///
    /// # Errors
    /// [`ExpertsError::OtherRank`], [`ExpertsError::NoSuchExpert`]; as [`Experts::forward`]'s; errors of the ranks.
    pub fn compute(
        &self,
        n: usize,
        x: &[f32],
        ids: &[i32],
        weights: &[f32],
        group: &HostRank,
    ) -> Result<Vec<f32>, ExpertsError> {
        let (rank, got, ranks) = (group.rank(), group.ranks(), self.division.ranks);
        if (rank, got) != (self.rank, ranks) {
            return Err(ExpertsError::OtherRank { rank, got, ranks });
        }
        let ids = self.division.local_ids(rank, ids)?;
        let mut y = vec![0.0; n.saturating_mul(self.own.rows())];
        let output = Output::of(&mut y);
        self.own
            .forward(&Vectors::of(x), n, &ids, weights, output)?;
        group.all_reduce(&mut y)?;
        Ok(y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every expert has one rank, and ranks have as many as others or one more.
    #[test]
    fn each_expert_has_one_rank() {
        for experts in 1..40 {
            for ranks in 1..=experts {
                let division = Division::new(experts, ranks).unwrap();
                let all: Vec<usize> = (0..ranks).flat_map(|rank| division.range(rank)).collect();
                assert!(all.iter().copied().eq(0..experts), "{experts} over {ranks}");
                let lengths: Vec<usize> =
                    (0..ranks).map(|rank| division.range(rank).len()).collect();
                let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
                assert!(*least > 0 && most - least <= 1, "{lengths:?}");
                assert!(division.range(ranks).is_empty());
            }
        }
        for (experts, ranks) in [(0, 1), (3, 4), (3, 0)] {
            let error = ExpertsError::TooFew { experts, ranks };
            assert_eq!(Division::new(experts, ranks), Err(error));
        }
    }

    #[test]
    fn ids_of_other_ranks_are_none() {
        let division = Division::new(5, 2).unwrap();
        let ids = [0, 4, -1, 2, 3];
        assert_eq!(division.local_ids(0, &ids).unwrap(), [0, -1, -1, 2, -1]);
        assert_eq!(division.local_ids(1, &ids).unwrap(), [-1, 1, -1, -1, 0]);
        // No rank leaves out what none has.
        for id in [5, -2, i32::MAX, i32::MIN] {
            for rank in [0, 1] {
                let error = division.local_ids(rank, &[0, id]).unwrap_err();
                let (place, experts) = (1, 5);
                assert_eq!(error, ExpertsError::NoSuchExpert { id, place, experts });
            }
        }
    }
}
