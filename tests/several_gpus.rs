//! Ranks that are GPUs: threads and processes, and what the others get when one ends. Where there are not two GPUs, or no
//! libnccl, these are ignored, with the reason.

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nvfp4_gemv::nccl::{self, Communicator, NcclError, UniqueId};
use nvfp4_gemv::parallel::{LayersError, LayersOnDevice, TensorParallel};
use nvfp4_gemv::ranks::Ranks;
use nvfp4_gemv::{Dims, GlobalScale, Options, ScaleLayout, Shape, Weights, raw};

const RANKS: usize = 2;
/// Of ranks that all come, and of those that wait for one that does not.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(5);

const HIDDEN: usize = 512;
const WIDE: usize = 1024;
const VECTORS: usize = 3;

/// Set for a process that this one starts: what it shall do.
const ROLE: &str = "NVFP4_GEMV_TEST_ROLE";
const COMPUTES: &str = "computes";
const DIES: &str = "rank 1 dies";

fn main() -> ExitCode {
    if let Ok(role) = env::var(ROLE) {
        return match child(&role) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let trial = |name: &str, run: fn() -> Result<()>| {
        Trial::ignorable_test(name, move || {
            if let Some(why) = missing() {
                return Ok(Completion::ignored_with(why));
            }
            let failed = |error| Failed::from(format!("{error:#}"));
            run().map(|()| Completion::Completed).map_err(failed)
        })
    };
    let trials = vec![
        trial(
            "threads_compute_what_one_gpu_does",
            threads_compute_what_one_gpu_does,
        ),
        trial(
            "processes_have_the_bits_of_threads",
            processes_have_the_bits_of_threads,
        ),
        trial(
            "windows_compute_what_other_memory_does",
            windows_compute_what_other_memory_does,
        ),
        trial(
            "a_rank_that_gives_up_ends_the_others_wait",
            a_rank_that_gives_up_ends_the_others_wait,
        ),
        trial(
            "a_process_that_dies_ends_the_others_wait",
            a_process_that_dies_ends_the_others_wait,
        ),
        trial(
            "a_rank_that_does_not_come_ends_the_wait",
            a_rank_that_does_not_come_ends_the_wait,
        ),
    ];
    // One after the other: all of them want the same GPUs.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Why there is nothing to see.
fn missing() -> Option<String> {
    match (raw::device_count(), nccl::library()) {
        (Err(why), _) => Some(why.to_string()),
        (Ok(count), _) if (count as usize) < RANKS => {
            Some(format!("{count} GPU, and {RANKS} are needed"))
        }
        (Ok(_), Err(why)) => Some(why.to_string()),
        (Ok(_), Ok(_)) => None,
    }
}

/// A rank with its communicator and its part of an MLP.
struct Rank {
    stream: Arc<CudaStream>,
    mlp: LayersOnDevice<f32>,
}

impl Rank {
    fn new(
        rank: usize,
        ranks: usize,
        id: &UniqueId,
        timeout: Duration,
        window: bool,
    ) -> Result<Self> {
        let context = CudaContext::new(rank)?;
        // SAFETY: all of the rank's work goes to the one stream below, which orders how buffers are used and freed.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let all = Arc::new(Communicator::new(&stream, ranks, rank, id, timeout)?);
        let mut random = fastrand::Rng::with_seed(1);
        let codes: Vec<u8> = (0..HIDDEN * WIDE / 2).map(|_| random.u8(..)).collect();
        let scales: Vec<u8> = (0..HIDDEN * WIDE / 16)
            .map(|_| random.u8(0x30..=0x40))
            .collect();
        let layer = |m, k| {
            let shape = Shape::new(Dims { m, n: 1, k, l: 1 })?;
            let global = GlobalScale::Divisor(64.0);
            Weights::new(&shape, &codes, &scales, ScaleLayout::Linear, global)
        };
        let (wide, narrow) = (layer(WIDE, HIDDEN)?, layer(HIDDEN, WIDE)?);
        let mine = TensorParallel::mlp(&wide, &wide, &narrow, ranks)?.rank(rank)?;
        let options = Options::new();
        let mut mlp = match window {
            false => mine.on_device(&stream, &all, VECTORS, &options)?,
            true => mine.on_device_with_window(&stream, &all, VECTORS, &options)?,
        };
        let x: Vec<f32> = (0..VECTORS * HIDDEN).map(|_| random.f32() - 0.5).collect();
        stream.memcpy_htod(&x, mlp.input())?;
        Ok(Self { stream, mlp })
    }

    /// The result: launched, then captured and replayed, with the same bits each time.
    fn compute(mut self) -> Result<Vec<f32>> {
        let (stream, mlp) = (&self.stream, &mut self.mlp);
        mlp.launch(stream, between)?;
        mlp.synchronize(stream)?;
        let first = stream.clone_dtoh(&mlp.output())?;
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let launched = mlp.launch(stream, between);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags)?;
        launched?;
        let graph = graph.context("nothing was captured")?;
        for _ in 0..3 {
            graph.launch()?;
            mlp.synchronize(stream)?;
            let again = stream.clone_dtoh(&mlp.output())?;
            ensure!(bits(&again) == bits(&first), "a replay has other bits");
        }
        Ok(first)
    }
}

/// What is between is the result of gate.
fn between(
    stream: &Arc<CudaStream>,
    gate_up: &[CudaSlice<f32>],
    out: &mut CudaSlice<f32>,
) -> Result<()> {
    Ok(stream.memcpy_dtod(&gate_up[0], out)?)
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// The results of ranks that are threads, the same on all.
fn by_threads(ranks: usize, window: bool) -> Result<Vec<f32>> {
    let id = UniqueId::new()?;
    let results: Result<Vec<Vec<f32>>> = scope(|scope| {
        let start = |at| scope.spawn(move || Rank::new(at, ranks, &id, LONG, window)?.compute());
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|rank| rank.map_err(|_| anyhow!("a panic"))?)
            .collect()
    });
    let mut results = results?;
    for result in &results {
        ensure!(
            bits(result) == bits(&results[0]),
            "two ranks have other bits"
        );
    }
    Ok(results.swap_remove(0))
}

fn close(one: &[f32], other: &[f32]) -> Result<()> {
    let largest = one.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    ensure!(largest > 0.0 && one.len() == other.len());
    for (one, other) in one.iter().zip(other) {
        // Both are f32 sums of a thousand products, whose roundings are far below this.
        ensure!((one - other).abs() <= largest * 1e-5, "{one} and {other}");
    }
    Ok(())
}

fn threads_compute_what_one_gpu_does() -> Result<()> {
    close(&by_threads(1, false)?, &by_threads(RANKS, false)?)
}

fn windows_compute_what_other_memory_does() -> Result<()> {
    match by_threads(RANKS, true) {
        Ok(y) => close(&by_threads(RANKS, false)?, &y),
        Err(error) => match error.downcast_ref() {
            // An older library says so, and that is all that can be seen with it.
            Some(LayersError::Nccl(NcclError::NoWindows { .. })) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Two processes of this program, as a launcher would start them.
fn processes(role: &str) -> Result<Vec<Child>> {
    let free = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = free.local_addr()?.port();
    drop(free);
    let start = |rank: usize| {
        let rank = rank.to_string();
        Ok(Command::new(env::current_exe()?)
            .env(ROLE, role)
            .envs([
                ("RANK", &rank),
                ("LOCAL_RANK", &rank),
                ("WORLD_SIZE", &RANKS.to_string()),
            ])
            .envs([
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port.to_string()),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?)
    };
    (0..RANKS).map(start).collect()
}

fn child(role: &str) -> Result<()> {
    let ranks = Ranks::of_environment()?;
    let mine = (ranks.rank() == 0).then(UniqueId::new).transpose()?;
    let id = ranks.share(mine.as_ref().map_or(&[], |id| &id.bytes()[..]), LONG)?;
    let id = UniqueId::from_bytes(id[..].try_into()?);
    let device = ranks.device(raw::device_count()? as usize)?;
    ensure!(
        device == ranks.rank(),
        "rank {} has device {device}",
        ranks.rank()
    );
    match role {
        COMPUTES => {
            let y = Rank::new(ranks.rank(), ranks.ranks(), &id, LONG, false)?.compute()?;
            let text: Vec<String> = bits(&y).iter().map(u32::to_string).collect();
            println!("{}", text.join(" "));
            Ok(())
        }
        _ => {
            let mut rank = Rank::new(ranks.rank(), ranks.ranks(), &id, SHORT, false)?;
            if ranks.rank() == 1 {
                // As if it were killed: nothing is given back.
                std::process::exit(0);
            }
            rank.mlp.launch(&rank.stream, between)?;
            let error = rank.mlp.synchronize(&rank.stream);
            let error = error
                .err()
                .context("the other rank is gone, and nothing was noticed")?;
            println!("{error}");
            Ok(())
        }
    }
}

fn processes_have_the_bits_of_threads() -> Result<()> {
    let threads: Vec<String> = bits(&by_threads(RANKS, false)?)
        .iter()
        .map(u32::to_string)
        .collect();
    for process in processes(COMPUTES)? {
        let output = process.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}");
        let printed = String::from_utf8(output.stdout)?;
        // NCCL may print what it is.
        let is_result = printed.lines().any(|line| line == threads.join(" "));
        ensure!(is_result, "other bits");
    }
    Ok(())
}

fn a_process_that_dies_ends_the_others_wait() -> Result<()> {
    for process in processes(DIES)? {
        let output = process.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}");
    }
    Ok(())
}

fn a_rank_that_gives_up_ends_the_others_wait() -> Result<()> {
    let id = UniqueId::new()?;
    scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            let stream = CudaContext::new(1)?.new_stream()?;
            let all = Communicator::new(&stream, RANKS, 1, &id, SHORT)?;
            all.abort();
            let mut y = stream.clone_htod(&[1.0f32])?;
            let later = all.all_reduce(&stream, &mut y.as_view_mut());
            ensure!(matches!(later, Err(NcclError::Aborted { .. })), "{later:?}");
            Ok(())
        });
        let stream = CudaContext::new(0)?.new_stream()?;
        let all = Communicator::new(&stream, RANKS, 0, &id, SHORT)?;
        let mut y = stream.clone_htod(&[1.0f32])?;
        let enqueued = all.all_reduce(&stream, &mut y.as_view_mut());
        let waited = enqueued.and_then(|()| all.synchronize(&stream));
        ensure!(waited.is_err(), "nothing was noticed");
        other.join().map_err(|_| anyhow!("a panic"))?
    })
}

fn a_rank_that_does_not_come_ends_the_wait() -> Result<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let alone = Communicator::new(&stream, RANKS, 0, &UniqueId::new()?, SHORT);
    let is_timeout = matches!(alone, Err(NcclError::Timeout { .. }));
    ensure!(is_timeout, "{alone:?}");
    Ok(())
}
