//! Ranks that are threads, of which one ends or never begins.

use std::thread::scope;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use nvfp4_gemv::cudarc::driver::CudaContext;
use nvfp4_gemv_parallel::nccl::{Communicator, NcclError, Timeouts, UniqueId};

use super::{LONG, RANKS, SOON};

pub(crate) fn a_rank_that_gives_up_ends_the_others_wait() -> Result<()> {
    let id = UniqueId::new()?;
    let timeouts = Timeouts {
        joining: LONG,
        waiting: SOON,
    };
    scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            let stream = CudaContext::new(1)?.new_stream()?;
            let all = Communicator::new(&stream, RANKS, 1, &id, timeouts)?;
            all.abort();
            let mut y = stream.clone_htod(&[1.0f32])?;
            let later = all.all_reduce(&stream, &mut y.as_view_mut());
            ensure!(matches!(later, Err(NcclError::Aborted { .. })), "{later:?}");
            Ok(())
        });
        let stream = CudaContext::new(0)?.new_stream()?;
        let all = Communicator::new(&stream, RANKS, 0, &id, timeouts)?;
        let mut y = stream.clone_htod(&[1.0f32])?;
        let enqueued = all.all_reduce(&stream, &mut y.as_view_mut());
        let waited = enqueued.and_then(|()| all.synchronize(&stream));
        ensure!(waited.is_err(), "nothing was noticed");
        other.join().map_err(|_| anyhow!("a panic"))?
    })
}

/// Needs one GPU.
pub(crate) fn a_rank_that_does_not_come_ends_the_wait() -> Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let timeouts = Timeouts {
        joining: Duration::from_secs(5),
        waiting: LONG,
    };
    let alone = Communicator::new(&stream, RANKS, 0, &UniqueId::new()?, timeouts);
    let is_timeout = matches!(alone, Err(NcclError::Timeout { .. }));
    ensure!(is_timeout, "{alone:?}");
    Ok(())
}
