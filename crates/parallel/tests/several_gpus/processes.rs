//! Ranks that are processes of this program, as a launcher would start them.

use std::env;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use nvfp4_gemv::raw;
use nvfp4_gemv_parallel::layers::{LayersError, Placement};
use nvfp4_gemv_parallel::nccl::{NcclError, Timeouts, UniqueId};
use nvfp4_gemv_parallel::ranks::Ranks;

use super::process::Process;
use super::rank::{Rank, Work, between, bits, by_threads, captured};
use super::{LONG, RANKS, SOON};

/// Variable of a process that this one starts: the process's role.
const ROLE: &str = "NVFP4_GEMV_TEST_ROLE";
const COMPUTES: &str = "computes";
/// Role: rank 0 waits for a sum, for which rank 1 does nothing any more.
const WAITS: &str = "waits";
/// Role: all replay a graph with their sum, over and over.
const REPLAYS: &str = "replays";

/// Role: the process does nothing, forever.
const HANGS: &str = "hangs";

/// Line of a process that has come to where the other process may be killed.
const READY: &str = "ready to be killed, or to wait";

/// Number of the signal SIGKILL.
const KILLED: i32 = 9;

const VECTORS: usize = 3;

/// Work of this process if [`start`] started it.
pub(crate) fn child() -> Option<ExitCode> {
    let role = env::var(ROLE).ok()?;
    Some(match play(&role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn play(role: &str) -> Result<()> {
    if role == HANGS {
        println!("{READY}");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        bail!("nobody killed this one");
    }
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
    let rank = |timeouts: Timeouts| {
        let work = Work::new(VECTORS);
        let placement = Placement::new(VECTORS);
        Rank::<f32>::new(&work, ranks.rank(), ranks.ranks(), &id, timeouts, placement)
    };
    let soon = Timeouts {
        joining: LONG,
        waiting: SOON,
    };
    match role {
        COMPUTES => {
            println!("{}", as_text(&rank(LONG.into())?.compute()?.y));
            Ok(())
        }
        WAITS => waits(ranks.rank(), rank(soon)?),
        REPLAYS => replays(ranks.rank(), rank(soon)?),
        other => bail!("no role: {other}"),
    }
}

/// All ranks have computed together once: what NCCL connects at the first call is there when one is killed.
fn once(rank: &mut Rank<f32>) -> Result<()> {
    rank.mlp.run(&rank.stream, between)?;
    Ok(rank.mlp.synchronize(&rank.stream)?)
}

fn waits(number: usize, mut rank: Rank<f32>) -> Result<()> {
    once(&mut rank)?;
    if number != 0 {
        println!("{READY}");
        // The process waits until it is killed; or the test ends, and nobody holds the other end.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        bail!("rank {number} was not killed");
    }
    rank.mlp.run(&rank.stream, between)?;
    println!("{READY}");
    is_noticed(rank.mlp.synchronize(&rank.stream))
}

/// One rank is killed somewhere in a replay. The other rank's graph is alive when its wait ends.
fn replays(number: usize, mut rank: Rank<f32>) -> Result<()> {
    once(&mut rank)?;
    let (stream, mlp) = (&rank.stream, &mut rank.mlp);
    let graph = captured(stream, || mlp.run(stream, between))?;
    let replay = || -> Result<Result<(), LayersError>> {
        graph.launch()?;
        Ok(mlp.synchronize(stream))
    };
    replay()??;
    println!("{READY}");
    let begin = Instant::now();
    while begin.elapsed() < LONG {
        if let Err(error) = replay()? {
            ensure!(number == 0, "rank {number} should be killed: {error}");
            return is_noticed(Err(error));
        }
    }
    bail!("rank {number} replayed for {} s", LONG.as_secs())
}

/// The wait for a rank that was killed ended, and said so: as soon as NCCL noticed, or at the timeout.
fn is_noticed(waited: Result<(), LayersError>) -> Result<()> {
    match waited {
        Ok(()) => bail!("the other rank is gone, and nothing was noticed"),
        Err(LayersError::Nccl(NcclError::Failed { .. } | NcclError::Timeout { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn as_text(y: &[f32]) -> String {
    let numbers: Vec<String> = bits(y).iter().map(u32::to_string).collect();
    numbers.join(" ")
}

/// All ranks, at a port that was free a moment ago.
fn start(role: &str) -> Result<Vec<Process>> {
    let free = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = free.local_addr()?.port();
    drop(free);
    let start = |rank: usize| {
        let rank = rank.to_string();
        let mut command = Command::new(env::current_exe()?);
        command
            .env(ROLE, role)
            .envs([
                ("RANK", &rank),
                ("LOCAL_RANK", &rank),
                ("WORLD_SIZE", &RANKS.to_string()),
            ])
            .envs([
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port.to_string()),
            ]);
        Process::start(&mut command)
    };
    (0..RANKS).map(start).collect()
}

/// Hanging processes are killed, so that the tests of killed ranks do not wait forever themselves.
pub(crate) fn on_a_cpu_one_that_hangs_is_killed() -> Result<()> {
    let start = || Process::start(Command::new(env::current_exe()?).env(ROLE, HANGS));
    let mut hangs = start()?;
    hangs.await_line(READY, LONG)?;
    let late = hangs.await_line(READY, Duration::ZERO).unwrap_err();
    ensure!(late.to_string().contains("did not come"), "{late}");
    let hung = hangs.wait(Duration::ZERO).unwrap_err().to_string();
    ensure!(hung.starts_with("it hangs, and was killed"), "{hung}");
    let mut killed = start()?;
    killed.await_line(READY, LONG)?;
    killed.kill()?;
    let ended = killed.await_line(READY, LONG).unwrap_err();
    ensure!(ended.to_string().contains("ended before"), "{ended}");
    ensure!(killed.wait(LONG)?.signal() == Some(KILLED), "not killed");
    Ok(())
}

pub(crate) fn have_the_bits_of_threads() -> Result<()> {
    let placement = Placement::new(VECTORS);
    let threads = as_text(&by_threads::<f32>(&Work::new(VECTORS), RANKS, placement)?.y);
    for process in start(COMPUTES)? {
        // NCCL may print what it is, before the results.
        let printed = process.output(3 * LONG)?;
        ensure!(printed.contains(&threads), "other bits");
    }
    Ok(())
}

pub(crate) fn one_that_is_killed_ends_the_others_wait() -> Result<()> {
    survives_the_other(WAITS)
}

pub(crate) fn one_that_is_killed_ends_the_others_replays() -> Result<()> {
    survives_the_other(REPLAYS)
}

/// Rank 1 is killed by a signal that no process can catch, while rank 0 waits for it on its GPU: nothing is given back.
fn survives_the_other(role: &str) -> Result<()> {
    let mut processes = start(role)?;
    for process in &mut processes {
        process.await_line(READY, 3 * LONG)?;
    }
    let [survivor, killed] = &mut processes[..] else {
        bail!("{RANKS} ranks, and this is about 2");
    };
    killed.kill()?;
    let end = killed.wait(LONG)?;
    ensure!(end.signal() == Some(KILLED), "the other one: {end}");
    let end = survivor.wait(SOON + LONG)?;
    ensure!(end.success(), "{end}: {}", survivor.errors());
    Ok(())
}
