//! Ranks that are GPUs: threads and processes, and the errors of the other ranks if one ends. A test that lacks GPUs or
//! libnccl is ignored, with the reason. Tests whose names begin with `one_gpu` need one GPU. Tests on the CPU try the
//! expected results that all compare with.

mod alone;
mod collected;
mod ends;
mod expected;
mod on_a_cpu;
mod process;
mod processes;
mod quantized;
mod rank;

use std::process::ExitCode;
use std::thread::scope;
use std::time::Duration;

use anyhow::{Result, anyhow};
use half::{bf16, f16};
use nvfp4_gemv::raw;
use nvfp4_gemv_parallel::layers::{LayersError, Placement};
use nvfp4_gemv_parallel::nccl::{self, NcclError};
use nvfp4_gemv_trials::{Program, Trial, nothing};

use rank::{Number, Work, by_threads};

const RANKS: usize = 2;
/// Time that ranks that all come and compute take at most.
const LONG: Duration = Duration::from_secs(120);
/// Time in which the end of a rank is noticed at the latest. NCCL may connect ranks in this time, at a first call.
const SOON: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if let Some(ended) = processes::child() {
        return ended;
    }
    let trials = on_a_cpu().into_iter().chain(on_one_gpu());
    let program = Program {
        name: "several_gpus",
        gpus: || {
            let all = 0..raw::device_count().unwrap_or(0);
            all.filter_map(|at| raw::gpu(at).map(|gpu| gpu.name).ok())
                .collect()
        },
        sources: nvfp4_gemv::TESTED,
        one_by_one: true,
    };
    program.run(trials.chain(on_several()).collect())
}

fn on_a_cpu() -> Vec<Trial> {
    let trial = |name, run: fn() -> Result<()>| nvfp4_gemv_trials::trial(name, nothing, run);
    vec![
        trial(
            "on_a_cpu_the_bound_is_kept_unless_a_rank_is_left_out",
            on_a_cpu::the_bound_is_kept_unless_a_rank_is_left_out,
        ),
        trial(
            "on_a_cpu_nvfp4_vectors_keep_the_bound_unless_a_rank_is_left_out",
            quantized::on_a_cpu_the_bound_is_kept_unless_a_rank_is_left_out,
        ),
        trial(
            "on_a_cpu_a_process_that_hangs_is_killed",
            processes::on_a_cpu_one_that_hangs_is_killed,
        ),
    ]
}

/// Tests for a machine with one GPU: one rank, or one rank that waits for another.
fn on_one_gpu() -> Vec<Trial> {
    let trial = |name: &str, run: fn() -> Result<()>| trial(&format!("one_gpu_{name}"), 1, run);
    vec![
        trial("f32_is_the_exact_result", || ranks_are_exact::<f32>(1)),
        trial("f16_is_the_exact_result", || ranks_are_exact::<f16>(1)),
        trial("bf16_is_the_exact_result", || ranks_are_exact::<bf16>(1)),
        trial("windows_are_the_exact_result", || windows_are_exact(1)),
        trial("nvfp4_vectors_are_the_exact_result", || {
            quantized::nvfp4_vectors_are_the_exact_result(1)
        }),
        trial("all_gather_is_a_copy", || {
            collected::all_gather_keeps_the_ranks_order(1)
        }),
        trial(
            "a_stream_of_another_context_is_refused",
            alone::a_stream_of_another_context_is_refused,
        ),
        trial(
            "one_that_gives_up_is_dropped",
            alone::one_that_gives_up_is_dropped,
        ),
        trial(
            "a_rank_that_does_not_come_ends_the_wait",
            ends::a_rank_that_does_not_come_ends_the_wait,
        ),
    ]
}

fn on_several() -> Vec<Trial> {
    let trial = |name, run: fn() -> Result<()>| trial(name, RANKS, run);
    vec![
        trial("f32_is_the_exact_result", || ranks_are_exact::<f32>(RANKS)),
        trial("f16_is_the_exact_result", || ranks_are_exact::<f16>(RANKS)),
        trial("bf16_is_the_exact_result", || {
            ranks_are_exact::<bf16>(RANKS)
        }),
        trial("windows_are_the_exact_result", || windows_are_exact(RANKS)),
        trial("nvfp4_vectors_are_the_exact_result", || {
            quantized::nvfp4_vectors_are_the_exact_result(RANKS)
        }),
        trial("all_gather_keeps_the_ranks_order", || {
            collected::all_gather_keeps_the_ranks_order(RANKS)
        }),
        trial(
            "processes_have_the_bits_of_threads",
            processes::have_the_bits_of_threads,
        ),
        trial(
            "a_process_that_is_killed_ends_the_others_wait",
            processes::one_that_is_killed_ends_the_others_wait,
        ),
        trial(
            "a_process_that_is_killed_ends_the_others_replays",
            processes::one_that_is_killed_ends_the_others_replays,
        ),
        trial(
            "a_rank_that_gives_up_ends_the_others_wait",
            ends::a_rank_that_gives_up_ends_the_others_wait,
        ),
    ]
}

/// A test that needs so many GPUs.
fn trial(name: &str, gpus: usize, run: fn() -> Result<()>) -> Trial {
    nvfp4_gemv_trials::trial(name, move || missing(gpus), run)
}

/// Reason why the test cannot run.
fn missing(gpus: usize) -> Option<String> {
    match (raw::device_count(), nccl::library()) {
        (Err(why), _) => Some(why.to_string()),
        (Ok(count), _) if (count as usize) < gpus => {
            Some(format!("GPUs: {count}, and {gpus} are needed"))
        }
        (Ok(_), Err(why)) => Some(why.to_string()),
        (Ok(_), Ok(_)) => None,
    }
}

/// One GPU and several GPUs, each within its bound of the exact result: so neither is further from the other than both
/// bounds.
fn ranks_are_exact<T: Number>(ranks: usize) -> Result<()> {
    for n in [1, 3, 8] {
        let work = Work::new(n);
        let computed = by_threads::<T>(&work, ranks, Placement::new(n))?;
        expected::check::<T>(&work, ranks, &computed)?;
    }
    Ok(())
}

fn windows_are_exact(ranks: usize) -> Result<()> {
    let work = Work::new(3);
    match by_threads::<f32>(&work, ranks, Placement::new(work.n).in_window()) {
        Ok(computed) => expected::check::<f32>(&work, ranks, &computed),
        Err(error) => match error.downcast_ref() {
            // An older library refuses windows, and nothing else can be seen with it.
            Some(LayersError::Nccl(NcclError::NoWindows { .. })) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Results of each rank, on a thread of its own.
fn on_threads<R: Send>(
    ranks: usize,
    rank: impl Fn(usize) -> Result<R> + Copy + Send,
) -> Result<Vec<R>> {
    scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|at| scope.spawn(move || rank(at))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|rank| rank.map_err(|_| anyhow!("a panic"))?)
            .collect()
    })
}
