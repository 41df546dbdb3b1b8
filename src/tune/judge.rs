//! Judges a choice: what is taken where nobody measured, beside configs that may be faster.

use std::time::{Duration, Instant};

use cudarc::driver::DriverError;

use super::TuneError;
use super::buffers::Buffers;
use super::device::Tuner;
use super::search::{Found, Limits, search};
use crate::context::driver_error;
#[cfg(feature = "jit")]
use crate::context::make_current;
use crate::dispatch::{Choice, rivals};
use crate::error::{Error, Result};
use crate::kernel::{Call, Config, Job};
use crate::measure::{Replay, Timing};
use crate::operands::Operands;
use crate::raw;
use crate::shape::Shape;

/// The loss of a choice.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The time of a call that asks for nothing: by the built-in tables and the model.
    pub choice: Choice,
    /// Seconds of a launch with that.
    pub choice_seconds: f64,
    /// The config that was found to be the fastest.
    pub best: Config,
    /// Seconds of a launch with the fastest config, measured in turns with the choice after the search: what is found
    /// to be the fastest of many is partly luck.
    pub best_seconds: f64,
    /// Every config that ran, the choice among them, the fastest first, with the times of the search.
    pub ranking: Vec<(Config, Found)>,
    /// Configs that did not run, and why.
    pub failed: Vec<(Config, Error)>,
    /// The time that all of it took.
    pub took: Duration,
}

impl Judged {
    /// The part of the best time that the choice takes more: 0.03 for 3%. 0 where nothing was found to be faster.
    pub fn lost(&self) -> f64 {
        (self.choice_seconds / self.best_seconds - 1.0).max(0.0)
    }
}

/// Seconds of launches of a turn, about. Each launch has a copy of the weights of its own.
const TURN: f64 = 7e-4;
/// Copies at least: the first launch of a chain follows nothing.
const LEAST_COPIES: usize = 8;
/// Copies at most: more would be graphs that take longer to make than to run.
const MOST_COPIES: usize = 512;
/// Bytes a second, and seconds besides, by which the launches of a turn are counted before there is a time.
const RATE: f64 = 2.5e12;
const BESIDES: f64 = 2.5e-6;
/// Turns of the choice and of the best, after the search.
const FINAL_TURNS: usize = 9;

impl Tuner {
    /// Measures what calls take that ask for nothing, beside the configs that may be faster, the likeliest first, `most`
    /// in all. Calls are chained or not; below compute capability 9.0 that is the same. The operands are those of
    /// [`tune`](Self::tune).
    ///
    /// # Errors
    /// [`TuneError::NoCandidates`] where no kernel computes the problem; [`TuneError::Gemv`] where memory is short, or
    /// the choice does not run.
    pub fn judge(
        &mut self,
        shape: &Shape,
        operands: &Operands,
        chained: bool,
        most: usize,
        limits: &Limits,
    ) -> std::result::Result<Judged, TuneError> {
        if shape.is_empty() {
            return Err(self.no_candidates(shape, operands));
        }
        let begin = Instant::now();
        let seconds = shape.weight_bytes() as f64 / RATE + BESIDES;
        let launches = ((TURN / seconds) as usize).clamp(LEAST_COPIES, MOST_COPIES);
        let buffers = Buffers::with_copies(&self.stream, shape, operands, self.gpu(), launches)?;
        let calls: Vec<Call> = (0..launches)
            .map(|i| buffers.call(&self.stream, i))
            .collect::<Result<_>>()?;
        // Operands with the alignment that calls with packed operands will have.
        let operands = calls[0].operands();
        let (choice, candidates) = self.rivals(shape, &operands, chained, most)?;
        #[cfg(feature = "jit")]
        self.compile(&calls[0], &candidates, chained)?;
        let l2 = usize::try_from(self.gpu().l2_bytes).unwrap_or(usize::MAX);
        let filler = self.stream.alloc_zeros::<u8>(l2.saturating_mul(2).max(1));
        let mut filler = filler.map_err(cuda)?;
        let prepared = |config| -> Result<Ready> {
            let prepared = self.prepare(&calls, config, chained)?;
            let launch = |i: usize| self.launch(&prepared, i);
            // SAFETY: the buffers live to the end of this function, and so do what is prepared and the stream: both are
            // kept with the graph. Every replay is waited for, and only this object's one call at a time uses them.
            let graph = unsafe { Replay::capture(&self.stream, launches, launch) }?;
            // The first replay of a graph takes longer.
            graph.seconds_a_launch()?;
            Ok(Ready {
                graph,
                _prepared: prepared,
            })
        };
        let mut ready: Vec<Option<Ready>> = Vec::new();
        let mut failed: Vec<(usize, Error)> = Vec::new();
        let mut turn = |candidate: usize| -> Result<f64> {
            // The search begins with a turn of each, in their order.
            if ready.len() <= candidate {
                let new = prepared(candidates[candidate]);
                ready.push(new.map_err(|error| failed.push((candidate, error))).ok());
            }
            let Some(ready) = &ready[candidate] else {
                return Ok(f64::INFINITY); // it loses
            };
            self.stream.memset_zeros(&mut filler).map_err(cuda)?;
            ready.graph.seconds_a_launch()
        };
        // The choice is a group of its own, so that it is measured to the end.
        let group = |(i, config): (usize, &Config)| match i {
            0 => usize::MAX,
            _ => config.kernel() as usize,
        };
        let groups: Vec<usize> = candidates.iter().enumerate().map(group).collect();
        let mut race = || -> Result<_> {
            let found = search(&groups, limits, || begin.elapsed(), &mut turn, |_| ())?;
            let best = found.first().map_or(0, |found| found.candidate);
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..FINAL_TURNS {
                for (times, candidate) in times.iter_mut().zip([0, best]) {
                    times.push(turn(candidate)?);
                }
            }
            Ok((found, best, times))
        };
        let raced = race().inspect_err(|_| {
            // A replay may still run. The error says more than what this one could.
            let _ = self.stream.synchronize();
        });
        let (found, best, times) = raced?;
        if let Some((0, error)) = failed.first() {
            return Err(error.clone().into());
        }
        let [choice_seconds, best_seconds] = times.map(|times| {
            let timing = Timing::of(times);
            timing.map_or(f64::NAN, |timing| timing.median)
        });
        let best_seconds = match best {
            0 => choice_seconds,
            _ => best_seconds,
        };
        let ran = |found: &Found| failed.iter().all(|(one, _)| *one != found.candidate);
        let ranking = found.into_iter().filter(ran);
        Ok(Judged {
            choice,
            choice_seconds,
            best: candidates[best],
            best_seconds,
            ranking: ranking
                .map(|found| (candidates[found.candidate], found))
                .collect(),
            failed: failed
                .into_iter()
                .map(|(one, error)| (candidates[one], error))
                .collect(),
            took: begin.elapsed(),
        })
    }

    /// Compiles the kernels that [`judge`](Self::judge) takes for some problems, each with calls that are chained or not,
    /// on all processors at once: as far as this process does not have them. Without feature `jit` there is nothing to
    /// compile.
    ///
    /// # Errors
    /// Errors that CUDA reports. A kernel that does not compile is an error where it is used.
    #[cfg(feature = "jit")]
    pub fn compile_to_judge(
        &mut self,
        problems: &[(Shape, Operands, bool)],
        most: usize,
    ) -> Result<()> {
        let mut plans = Vec::new();
        for (shape, operands, chained) in problems {
            let (activation, layout) = (operands.activation, operands.weight_layout);
            let call = Call::nowhere(shape, activation, layout, 256);
            if let Ok((_, candidates)) = self.rivals(shape, &call.operands(), *chained, most) {
                plans.extend(self.plans(&call, &candidates, *chained));
            }
        }
        make_current(&self.stream)?;
        raw::compile_ahead(plans.iter().flat_map(|plan| plan.launches()))
    }

    /// The choice, and its config before its rivals.
    fn rivals(
        &self,
        shape: &Shape,
        operands: &Operands,
        chained: bool,
        most: usize,
    ) -> std::result::Result<(Choice, Vec<Config>), TuneError> {
        let job = Job::new(shape, operands, self.gpu()).chained(chained);
        let none = || self.no_candidates(shape, operands);
        let (choice, rivals) = rivals(&job, most).map_err(|_| none())?;
        let first = choice.config.ok_or_else(none)?;
        Ok((choice, [first].into_iter().chain(rivals).collect()))
    }
}

fn cuda(error: DriverError) -> Error {
    driver_error("judging a choice", error)
}

/// A config that is ready to take its turns.
struct Ready {
    graph: Replay,
    _prepared: Vec<raw::PreparedRawGemv>,
}
