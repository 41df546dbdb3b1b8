//! Ranks that are processes of this program, as a launcher would start them.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvfp4_gemv::nccl::{NcclError, UniqueId};
use nvfp4_gemv::parallel::{LayersError, Placement};
use nvfp4_gemv::ranks::Ranks;
use nvfp4_gemv::raw;

use super::rank::{Rank, Work, between, bits, by_threads};
use super::{LONG, RANKS, SHORT};

/// Set for a process that this one starts: what it shall do.
const ROLE: &str = "NVFP4_GEMV_TEST_ROLE";
const COMPUTES: &str = "computes";
/// Rank 0 waits for a sum, for which rank 1 does nothing.
const WAITS: &str = "waits";

/// What a process says when it has come to where the other one may be killed.
const READY: &str = "ready to be killed, or to wait";

/// What SIGKILL is.
const KILLED: i32 = 9;

const VECTORS: usize = 3;

/// What this process does where it was started by [`start`].
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
    let rank = |timeout: Duration| {
        let work = Work::new(VECTORS);
        let placement = Placement::new(VECTORS);
        Rank::<f32>::new(&work, ranks.rank(), ranks.ranks(), &id, timeout, placement)
    };
    match role {
        COMPUTES => {
            println!("{}", as_text(&rank(LONG)?.compute()?.y));
            Ok(())
        }
        _ => waits(ranks.rank(), rank(SHORT)?),
    }
}

fn waits(number: usize, mut rank: Rank<f32>) -> Result<()> {
    if number != 0 {
        println!("{READY}");
        // Until it is killed; or the test ends, and nobody holds the other end.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        bail!("rank {number} was not killed");
    }
    rank.mlp.launch(&rank.stream, between)?;
    println!("{READY}");
    match rank.mlp.synchronize(&rank.stream) {
        Ok(()) => bail!("the other rank is gone, and nothing was noticed"),
        // As soon as NCCL notices, or at the timeout.
        Err(LayersError::Nccl(NcclError::Failed { .. } | NcclError::Timeout { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn as_text(y: &[f32]) -> String {
    let numbers: Vec<String> = bits(y).iter().map(u32::to_string).collect();
    numbers.join(" ")
}

/// All ranks, at a port that was free a moment ago.
fn start(role: &str) -> Result<Vec<Child>> {
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
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?)
    };
    (0..RANKS).map(start).collect()
}

/// Waits until a process has said that it is ready. NCCL may print before what it is.
fn await_ready(process: &mut Child) -> Result<()> {
    let stdout = process.stdout.as_mut().context("it is piped")?;
    for line in BufReader::new(stdout).lines() {
        if line? == READY {
            return Ok(());
        }
    }
    let mut said = String::new();
    let stderr = process.stderr.as_mut().context("it is piped")?;
    stderr.read_to_string(&mut said)?;
    bail!("a rank ended before it was ready: {said}");
}

pub(crate) fn have_the_bits_of_threads() -> Result<()> {
    let placement = Placement::new(VECTORS);
    let threads = as_text(&by_threads::<f32>(&Work::new(VECTORS), RANKS, placement)?.y);
    for process in start(COMPUTES)? {
        let output = process.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}");
        let printed = String::from_utf8(output.stdout)?;
        // NCCL may print what it is.
        let is_result = printed.lines().any(|line| line == threads);
        ensure!(is_result, "other bits");
    }
    Ok(())
}

/// By a signal that no process can catch, while the other one waits for it on its GPU: nothing is given back.
pub(crate) fn one_that_is_killed_ends_the_others_wait() -> Result<()> {
    let mut processes = start(WAITS)?;
    let ready = processes.iter_mut().try_for_each(await_ready);
    let [waits, killed] = &mut processes[..] else {
        bail!("{RANKS} ranks, and this is about 2");
    };
    // Also where something has failed: nobody is left behind.
    killed.kill()?;
    let end = killed.wait()?;
    let survivor = waits.wait()?;
    ready?;
    ensure!(end.signal() == Some(KILLED), "the other one: {end}");
    let mut said = String::new();
    let stderr = waits.stderr.as_mut().context("it is piped")?;
    stderr.read_to_string(&mut said)?;
    ensure!(survivor.success(), "{said}");
    Ok(())
}
