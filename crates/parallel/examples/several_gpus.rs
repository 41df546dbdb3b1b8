//! An MLP over several GPUs, through NCCL, in a CUDA graph.
//!
//! Shows how ranks find each other, how each gets its part of the weights, and how a pair of layers with its sum over
//! all ranks is captured once. Started by no launcher, one process has a thread for each GPU that it sees.
//!
//! Needs features `cuda` (nvcc to build) or `jit`, libnccl, and GPUs of compute capability 8.0 or higher; says so where
//! there is none. `cargo run --release --package nvfp4-gemv-parallel --features cuda --example several_gpus`, or with a
//! process a GPU: `torchrun --no-python --nproc-per-node 2 target/release/examples/several_gpus`

use std::{sync::Arc, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use nvfp4_gemv::cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};
use nvfp4_gemv::{GlobalScale, Options, ScaleLayout::Linear, Shape, Weights, raw};
use nvfp4_gemv_parallel::layers::{TensorParallel, origin};
use nvfp4_gemv_parallel::nccl::{Communicator, UniqueId};
use nvfp4_gemv_parallel::ranks::{Launcher, Ranks};

type Values = CudaSlice<f32>;
const HIDDEN: usize = 4096;
const WIDE: usize = 16384;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let gpus = raw::device_count()? as usize; // an error that says what is missing, where cudarc would panic
    let me = Ranks::of_environment()?;
    if me.launcher() == Launcher::None {
        let id = UniqueId::new()?;
        return thread::scope(|scope| {
            let start = |at| scope.spawn(move || rank(at, gpus, at, id).err());
            let all: Vec<_> = (0..gpus).map(start).collect();
            let ended = all.into_iter().map(|rank| rank.join().expect("no panic"));
            let cause = ended.flatten().min_by_key(|e| origin(e.as_ref())); // not what others saw of it
            cause.map_or(Ok(()), Err)
        });
    }
    let gpu = me.device(gpus)?; // where it has none, before the others wait for it
    // Rank 0 makes the id, and the others get it where MASTER_ADDR says.
    let mine = (me.rank() == 0).then(UniqueId::new).transpose()?;
    let id = me.share(mine.as_ref().map_or(&[], |id| &id.bytes()[..]), TIMEOUT)?;
    let id = UniqueId::from_bytes(id[..].try_into()?);
    rank(me.rank(), me.ranks(), gpu, id)
}

fn rank(rank: usize, ranks: usize, gpu: usize, id: UniqueId) -> Result<()> {
    let context = CudaContext::new(gpu)?;
    // SAFETY: all of the rank's work goes to the one stream below, which orders how buffers are used and freed.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?; // the default stream cannot be captured
    let all = Arc::new(Communicator::new(&stream, ranks, rank, &id, TIMEOUT)?);

    // Every weight is 1 (code 2, block scale 0x38). The rank's part of them goes to its GPU.
    let codes = [0x22].repeat(WIDE * HIDDEN / 2);
    let scales = [0x38].repeat(WIDE * HIDDEN / 16);
    let (wide, narrow) = (Shape::matrix(WIDE, HIDDEN)?, Shape::matrix(HIDDEN, WIDE)?);
    let layer = |shape| Weights::new(shape, &codes, &scales, Linear, GlobalScale::ONE);
    let (gate, up, down) = (layer(&wide)?, layer(&wide)?, layer(&narrow)?);
    let mine = TensorParallel::mlp(&gate, &up, &down, ranks)?.rank(rank)?;
    let mut mlp = mine.on_device::<f32>(&stream, &all, 1, &Options::new())?;
    stream.memcpy_htod(&[1.0 / HIDDEN as f32; HIDDEN], mlp.input())?;

    mlp.run(&stream, between)?;
    mlp.synchronize(&stream)?; // NCCL has connected the ranks: now it can be captured
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    mlp.run(&stream, between)?;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.context("nothing was captured")?;
    graph.launch()?;
    mlp.synchronize(&stream)?; // an error, not a hang, where another rank died
    let y = stream.clone_dtoh(&mlp.output())?;
    println!("rank {rank} of {ranks}: {}", y[0]);
    ensure!(y == [WIDE as f32; HIDDEN], "expected {WIDE}");
    Ok(())
}

/// The place of your kernel for `silu(gate) * up`: here the result of gate is copied.
fn between(on: &Arc<CudaStream>, gate_up: &[Values], out: &mut Values) -> Result<()> {
    Ok(on.memcpy_dtod(&gate_up[0], out)?)
}
