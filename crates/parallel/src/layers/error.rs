//! Errors of layers over several ranks, and whose error each is.

use std::error::Error as StdError;

use nvfp4_gemv::Error;

use super::GroupError;
#[cfg(feature = "nccl")]
use crate::nccl::NcclError;
use crate::shard::ShardError;

/// Why layers cannot be computed over several ranks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayersError {
    /// Two layers that belong together do not fit.
    #[error("{dimension} is {found}, and must be {expected}, as {of} is")]
    Mismatch {
        /// The dimension, with its layer.
        dimension: &'static str,
        /// Its size.
        found: usize,
        /// The size that it must have.
        expected: usize,
        /// The dimension, with its layer, that it must be equal to.
        of: &'static str,
    },
    /// Layers with batches: those of tensor parallelism have one matrix.
    #[error("{layer}: L is {l}, and a layer over several ranks has one matrix")]
    Batches {
        /// The layer's name.
        layer: &'static str,
        /// L.
        l: usize,
    },
    /// A layer cannot be cut.
    #[error("{layer}: {error}")]
    Shard {
        /// The layer's name.
        layer: &'static str,
        /// Why not.
        error: ShardError,
    },
    /// A rank's part would not be whole heads.
    #[error(
        "{layer}: {rows} rows are {}, which {ranks} ranks cannot share equally; {}",
        heads(*rows, *head),
        with_ranks(work)
    )]
    Heads {
        /// The layer's name.
        layer: &'static str,
        /// Its rows.
        rows: usize,
        /// Rows of a head.
        head: usize,
        /// The ranks that there are.
        ranks: usize,
        /// Numbers of ranks that could share all of the layers, up to 16.
        work: Vec<usize>,
    },
    /// A vector has another length than the layers take.
    #[error("{what}: {got} elements, and {needed} are needed")]
    Length {
        /// The vector's name.
        what: &'static str,
        /// Elements that it has.
        got: usize,
        /// Elements that it must have.
        needed: usize,
    },
    /// There are not as many ranks as the layers were cut for.
    #[error(
        "the layers are cut for rank {rank} of {ranks}, and it is rank {found} of {of} that computes"
    )]
    #[allow(missing_docs)]
    OtherRank {
        rank: usize,
        ranks: usize,
        found: usize,
        of: usize,
    },
    /// A window that was made for another result.
    #[error("a window of {got} elements, and the result has {expected}")]
    WindowLength {
        /// Its elements.
        got: usize,
        /// The result's.
        expected: usize,
    },
    /// A product.
    #[error(transparent)]
    Gemv(#[from] Error),
    /// An error of ranks that are threads.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// An error of ranks that have a GPU each.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    Nccl(#[from] NcclError),
}

fn heads(rows: usize, head: usize) -> String {
    match rows.checked_rem(head) {
        Some(0) => format!("{} heads of {head}", rows / head),
        _ => format!("no whole heads of {head}"),
    }
}

fn with_ranks(work: &[usize]) -> String {
    let work: Vec<String> = work.iter().map(usize::to_string).collect();
    match &work[..] {
        [] => "no number of ranks would work".into(),
        [one] => format!("{one} would work"),
        [first @ .., last] => format!("{} or {last} would work", first.join(", ")),
    }
}

/// The rank that caused the error of one of several ranks, as far as the error says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The rank itself.
    ThisRank,
    /// The rank itself or another one: NCCL's system errors, such as of a connection, do not say.
    Unknown,
    /// Another rank's end, of which this is what was seen: a time that is over, a rank that is gone, a communicator
    /// that was aborted before.
    AnotherRank,
}

/// The rank that caused an error, by all that the error holds. Where several ranks end with errors, the error with the
/// least origin explains the others.
///
/// ```
/// use nvfp4_gemv_parallel::layers::{GroupError, LayersError, Origin, origin};
/// let of_ranks: [LayersError; 2] = [
///     GroupError::Gone { rank: 1 }.into(),
///     LayersError::Length { what: "the vectors", got: 63, needed: 64 },
/// ];
/// assert_eq!(origin(&of_ranks[0]), Origin::AnotherRank);
/// let cause = of_ranks.iter().min_by_key(|error| origin(*error));
/// assert_eq!(cause, Some(&of_ranks[1]));
/// ```
pub fn origin(error: &(dyn StdError + 'static)) -> Origin {
    let all = std::iter::successors(Some(error), |&error| error.source());
    // An error that says nothing of other ranks is the rank's own.
    all.map(of_one).max().unwrap_or(Origin::ThisRank)
}

fn of_one(error: &(dyn StdError + 'static)) -> Origin {
    // A transparent error shows the source of the error that it holds, and not that error.
    let group = match error.downcast_ref() {
        Some(LayersError::Group(group)) => Some(group),
        _ => error.downcast_ref(),
    };
    match group {
        Some(GroupError::Gone { .. }) => Origin::AnotherRank,
        _ => of_nccl(error),
    }
}

#[cfg(feature = "nccl")]
fn of_nccl(error: &(dyn StdError + 'static)) -> Origin {
    let error = match error.downcast_ref() {
        Some(LayersError::Nccl(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    match error.map(NcclError::is_of_another_rank) {
        Some(None) => Origin::Unknown,
        Some(Some(true)) => Origin::AnotherRank,
        Some(Some(false)) | None => Origin::ThisRank,
    }
}

#[cfg(not(feature = "nccl"))]
fn of_nccl(_: &(dyn StdError + 'static)) -> Origin {
    Origin::ThisRank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_rank_caused_is_told_from_what_did() {
        let both = |error: GroupError| [origin(&error), origin(&LayersError::Group(error))];
        assert_eq!(both(GroupError::Gone { rank: 1 }), [Origin::AnotherRank; 2]);
        let lengths = GroupError::Lengths { lengths: vec![] };
        assert_eq!(both(lengths), [Origin::ThisRank; 2]);
    }

    #[cfg(feature = "nccl")]
    #[test]
    fn what_nccl_saw_of_another_rank_is_told_from_what_it_lacks() {
        let both = |error: NcclError| [origin(&error), origin(&LayersError::Nccl(error))];
        let (rank, ranks) = (0, 2);
        let aborted = NcclError::Aborted {
            rank,
            ranks,
            first: String::new(),
        };
        assert_eq!(both(aborted), [Origin::AnotherRank; 2]);
        let missing = NcclError::Missing { looked_at: vec![] };
        assert_eq!(both(missing), [Origin::ThisRank; 2]);
        // Errors of CUDA, of the system, internal, of an argument, of usage (two ranks on one GPU), of another rank: as
        // nccl.h counts.
        let origins = [
            (1, Origin::ThisRank),
            (2, Origin::Unknown),
            (3, Origin::ThisRank),
            (4, Origin::ThisRank),
            (5, Origin::ThisRank),
            (6, Origin::AnotherRank),
        ];
        for (status, expected) in origins {
            let (result, said) = (String::new(), String::new());
            let failed = NcclError::Failed {
                doing: "joining the other ranks",
                rank,
                ranks,
                status,
                result: result.clone(),
                said: said.clone(),
            };
            let call = NcclError::Call {
                call: "ncclAllReduce",
                rank,
                ranks,
                status,
                result,
                said,
            };
            assert_eq!(both(failed), [expected; 2], "{status}");
            assert_eq!(both(call), [expected; 2], "{status}");
        }
    }
}
