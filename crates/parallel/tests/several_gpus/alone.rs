//! One rank on one GPU: what can be seen of a communicator without another one.

use std::sync::{Arc, mpsc};
use std::thread::spawn;

use anyhow::{Context, Result, ensure};
use nvfp4_gemv::cudarc::driver::{CudaContext, CudaStream, result, sys};
use nvfp4_gemv::{Error, Options};
use nvfp4_gemv_parallel::layers::{LayersError, TensorParallel};
use nvfp4_gemv_parallel::nccl::{self, Communicator, NcclError, UniqueId, Window};

use super::LONG;
use super::rank::{Work, captured, stream_of};

fn alone(stream: &Arc<CudaStream>) -> Result<Arc<Communicator>> {
    let communicator = Communicator::new(stream, 1, 0, &UniqueId::new()?, LONG)?;
    Ok(Arc::new(communicator))
}

/// Another context of the same GPU, which is cudarc's from then on.
fn another_context() -> Result<Arc<CudaContext>> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is to a live variable; the context is a new one that nobody else has.
    unsafe {
        let device = result::device::get(0)?;
        sys::cuCtxCreate_v4(&mut context, std::ptr::null_mut(), 0, device).result()?;
        Ok(CudaContext::from_raw_context(0, device, context)?)
    }
}

pub(crate) fn a_stream_of_another_context_is_refused() -> Result<()> {
    let stream = stream_of(0)?;
    let alone = alone(&stream)?;
    let other = another_context()?.new_stream()?;
    let is_refusal = |error: &Error| {
        let operand = "the communicator";
        *error == Error::WrongContext { operand }
    };
    let refused = |what: &str, result: Result<(), NcclError>| {
        let is_refused = matches!(&result, Err(NcclError::Device(error)) if is_refusal(error));
        ensure!(is_refused, "{what}: {result:?}");
        Ok(())
    };
    let (x, mut y) = (other.clone_htod(&[1.0f32])?, other.clone_htod(&[1.0f32])?);
    refused("a sum", alone.all_reduce(&other, &mut y.as_view_mut()))?;
    let collected = alone.all_gather(&other, &x.as_view(), &mut y.as_view_mut());
    refused("a collection", collected)?;
    if nccl::has_windows()? {
        refused("a window", Window::<f32>::new(&other, &alone, 1).map(drop))?;
    }
    let work = Work::new(1);
    let [wide, narrow] = work.weights()?;
    let mine = TensorParallel::mlp(&wide, &wide, &narrow, 1)?.rank(0)?;
    let layers = mine.on_device::<f32>(&other, &alone, 1, &Options::new());
    let is_refused = matches!(&layers, Err(LayersError::Gemv(error)) if is_refusal(error));
    ensure!(is_refused, "layers: {layers:?}");
    // No refusal has ended the communicator.
    Ok(alone.check()?)
}

/// A window and a graph of a communicator that gave up, and the communicator itself: no drop of them waits.
pub(crate) fn one_that_gives_up_is_dropped() -> Result<()> {
    let (send, ended) = mpsc::channel();
    spawn(move || send.send(gives_up()));
    ended.recv_timeout(LONG).context("it hangs")?
}

fn gives_up() -> Result<()> {
    let stream = stream_of(0)?;
    let alone = alone(&stream)?;
    let window = match nccl::has_windows()? {
        true => Some(Window::<f32>::new(&stream, &alone, 1000)?),
        false => None,
    };
    let mut y = stream.clone_htod(&[1.0f32; 1000])?;
    let graph = captured(&stream, || {
        Ok(alone.all_reduce(&stream, &mut y.as_view_mut())?)
    })?;
    graph.launch()?;
    alone.synchronize(&stream)?;
    alone.abort();
    let later = alone.all_reduce(&stream, &mut y.as_view_mut());
    ensure!(matches!(later, Err(NcclError::Aborted { .. })), "{later:?}");
    drop(window);
    drop(alone);
    drop(graph);
    ensure!(stream.clone_dtoh(&y)? == [1.0; 1000], "another sum");
    Ok(())
}
