//! Collections of the parts of all ranks, on each of them.

use anyhow::{Result, ensure};
use half::{bf16, f16};
use nvfp4_gemv_parallel::nccl::{Communicator, NcclError, UniqueId};

use super::rank::{Number, captured, stream_of};
use super::{LONG, on_threads};

/// Elements of each rank: no power of two.
const PART: usize = 1000;

pub(crate) fn all_gather_keeps_the_ranks_order(ranks: usize) -> Result<()> {
    of::<f32>(ranks)?;
    of::<f16>(ranks)?;
    of::<bf16>(ranks)
}

fn of<T: Number>(ranks: usize) -> Result<()> {
    let id = UniqueId::new()?;
    on_threads(ranks, |rank| gather::<T>(rank, ranks, &id)).map(drop)
}

/// The part of a rank: numbers that all types hold.
fn part<T: Number>(rank: usize) -> Vec<T> {
    let number = |at: usize| T::of((rank * 100 + at % 100) as f32);
    (0..PART).map(number).collect()
}

fn gather<T: Number>(rank: usize, ranks: usize, id: &UniqueId) -> Result<()> {
    let stream = stream_of(rank)?;
    let all_ranks = Communicator::new(&stream, ranks, rank, id, LONG)?;
    let mine = stream.clone_htod(&part::<T>(rank))?;
    let mut all = stream.alloc_zeros::<T>(ranks * PART)?;
    let expected: Vec<f32> = (0..ranks)
        .flat_map(|rank| part::<T>(rank).into_iter().map(Into::into))
        .collect();
    let short = all_ranks.all_gather(&stream, &mine.as_view(), &mut all.slice_mut(1..));
    ensure!(
        matches!(short, Err(NcclError::GatherLength { .. })),
        "{short:?}"
    );
    for replayed in [false, true] {
        stream.memset_zeros(&mut all)?;
        let mut enqueue = || -> Result<()> {
            Ok(all_ranks.all_gather(&stream, &mine.as_view(), &mut all.as_view_mut())?)
        };
        let graph = match replayed {
            false => {
                enqueue()?;
                None
            }
            true => Some(captured(&stream, enqueue)?),
        };
        if let Some(graph) = &graph {
            graph.launch()?;
        }
        all_ranks.synchronize(&stream)?;
        let got: Vec<f32> = stream
            .clone_dtoh(&all)?
            .into_iter()
            .map(Into::into)
            .collect();
        ensure!(got == expected, "rank {rank}, replayed: {replayed}");
    }
    Ok(())
}
