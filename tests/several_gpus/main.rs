//! Ranks that are GPUs: threads and processes, and what the others get when one ends. Where there are not two GPUs, or no
//! libnccl, these are ignored, with the reason. What they compare with is tried on the CPU.

mod collected;
mod ends;
mod expected;
mod on_a_cpu;
mod processes;
mod quantized;
mod rank;

use std::process::ExitCode;
use std::thread::scope;
use std::time::Duration;

use anyhow::{Result, anyhow};
use half::{bf16, f16};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nvfp4_gemv::nccl::{self, NcclError};
use nvfp4_gemv::parallel::{LayersError, Placement};
use nvfp4_gemv::raw;

use rank::{Number, Work, by_threads};

const RANKS: usize = 2;
/// Of ranks that all come, and of those that wait for one that does not.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    if let Some(ended) = processes::child() {
        return ended;
    }
    let failed = |error| Failed::from(format!("{error:#}"));
    let trial = |name: &str, run: fn() -> Result<()>| {
        Trial::ignorable_test(name, move || {
            if let Some(why) = missing() {
                return Ok(Completion::ignored_with(why));
            }
            run().map(|()| Completion::Completed).map_err(failed)
        })
    };
    let trials = vec![
        Trial::test(
            "on_a_cpu_the_bound_is_kept_unless_a_rank_is_left_out",
            move || on_a_cpu::the_bound_is_kept_unless_a_rank_is_left_out().map_err(failed),
        ),
        Trial::test(
            "on_a_cpu_nvfp4_vectors_keep_the_bound_unless_a_rank_is_left_out",
            move || {
                quantized::on_a_cpu_the_bound_is_kept_unless_a_rank_is_left_out().map_err(failed)
            },
        ),
        trial("f32_is_the_exact_result", ranks_are_exact::<f32>),
        trial("f16_is_the_exact_result", ranks_are_exact::<f16>),
        trial("bf16_is_the_exact_result", ranks_are_exact::<bf16>),
        trial("windows_are_the_exact_result", windows_are_exact),
        trial(
            "nvfp4_vectors_are_the_exact_result",
            quantized::nvfp4_vectors_are_the_exact_result,
        ),
        trial(
            "all_gather_keeps_the_ranks_order",
            collected::all_gather_keeps_the_ranks_order,
        ),
        trial(
            "processes_have_the_bits_of_threads",
            processes::have_the_bits_of_threads,
        ),
        trial(
            "a_process_that_is_killed_ends_the_others_wait",
            processes::one_that_is_killed_ends_the_others_wait,
        ),
        trial(
            "a_rank_that_gives_up_ends_the_others_wait",
            ends::a_rank_that_gives_up_ends_the_others_wait,
        ),
        trial(
            "a_rank_that_does_not_come_ends_the_wait",
            ends::a_rank_that_does_not_come_ends_the_wait,
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

/// One GPU and several: so neither is further from the other than both bounds.
fn ranks_are_exact<T: Number>() -> Result<()> {
    for n in [1, 3, 8] {
        for ranks in [1, RANKS] {
            let work = Work::new(n);
            let computed = by_threads::<T>(&work, ranks, Placement::new(n))?;
            expected::check::<T>(&work, ranks, &computed)?;
        }
    }
    Ok(())
}

fn windows_are_exact() -> Result<()> {
    let work = Work::new(3);
    match by_threads::<f32>(&work, RANKS, Placement::new(work.n).in_window()) {
        Ok(computed) => expected::check::<f32>(&work, RANKS, &computed),
        Err(error) => match error.downcast_ref() {
            // An older library says so, and that is all that can be seen with it.
            Some(LayersError::Nccl(NcclError::NoWindows { .. })) => Ok(()),
            _ => Err(error),
        },
    }
}

/// What each rank returns, on a thread of its own.
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
