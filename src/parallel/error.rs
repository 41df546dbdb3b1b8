//! What is wrong with layers over several ranks, and whose error it is.

use std::error::Error as StdError;

use super::GroupError;
use crate::error::Error;
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
        /// Which dimension of which layer.
        dimension: &'static str,
        /// Its size.
        found: usize,
        /// What it must be.
        expected: usize,
        /// Which dimension of which layer it must be equal to.
        of: &'static str,
    },
    /// Layers with batches: those of tensor parallelism have one matrix.
    #[error("{layer}: L is {l}, and a layer over several ranks has one matrix")]
    Batches {
        /// Which layer.
        layer: &'static str,
        /// L.
        l: usize,
    },
    /// A layer cannot be cut.
    #[error("{layer}: {error}")]
    Shard {
        /// Which layer.
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
        /// Which layer.
        layer: &'static str,
        /// Its rows.
        rows: usize,
        /// Rows of a head.
        head: usize,
        /// The ranks that there are.
        ranks: usize,
        /// So many could share all of the layers, of 16 at most.
        work: Vec<usize>,
    },
    /// A vector has another length than the layers take.
    #[error("{what}: {got} elements, and {needed} are needed")]
    Length {
        /// Which vector.
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
    /// A product.
    #[error(transparent)]
    Gemv(#[from] Error),
    /// What threads do together.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// What GPUs do together.
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

/// Whether an error, or what it comes from, may only be what is seen of another rank's end: a time that is over, a rank that
/// is gone, a communicator that was aborted before. Where several ranks end with errors, look at one that is not so.
///
/// ```
/// use nvfp4_gemv::parallel::{GroupError, LayersError, is_consequence};
/// let of_ranks: [LayersError; 2] = [
///     GroupError::Gone { rank: 1 }.into(),
///     LayersError::Length { what: "the vectors", got: 63, needed: 64 },
/// ];
/// let cause = of_ranks.iter().find(|error| !is_consequence(*error));
/// assert_eq!(cause, Some(&of_ranks[1]));
/// ```
pub fn is_consequence(error: &(dyn StdError + 'static)) -> bool {
    let mut all = std::iter::successors(Some(error), |&error| error.source());
    all.any(|error| {
        // What is transparent shows the source of what it holds, and not that.
        let group = match error.downcast_ref() {
            Some(LayersError::Group(group)) => Some(group),
            _ => error.downcast_ref(),
        };
        matches!(group, Some(GroupError::Gone { .. })) || is_of_nccl(error)
    })
}

#[cfg(feature = "nccl")]
fn is_of_nccl(error: &(dyn StdError + 'static)) -> bool {
    let error = match error.downcast_ref() {
        Some(LayersError::Nccl(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    matches!(
        error,
        Some(NcclError::Timeout { .. } | NcclError::Failed { .. } | NcclError::Aborted { .. })
    )
}

#[cfg(not(feature = "nccl"))]
fn is_of_nccl(_: &(dyn StdError + 'static)) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_rank_caused_is_told_from_what_did() {
        let gone = GroupError::Gone { rank: 1 };
        assert!(is_consequence(&gone) && is_consequence(&LayersError::Group(gone)));
        let lengths = GroupError::Lengths { lengths: vec![] };
        assert!(!is_consequence(&lengths) && !is_consequence(&LayersError::Group(lengths)));
    }

    #[cfg(feature = "nccl")]
    #[test]
    fn what_nccl_saw_of_another_rank_is_told_from_what_it_lacks() {
        let aborted = NcclError::Aborted {
            rank: 0,
            ranks: 2,
            first: String::new(),
        };
        assert!(is_consequence(&aborted) && is_consequence(&LayersError::Nccl(aborted)));
        let missing = NcclError::Missing { looked_at: vec![] };
        assert!(!is_consequence(&missing) && !is_consequence(&LayersError::Nccl(missing)));
    }
}
