//! Tunes layers that follow each other, where they follow each other. The config that is the fastest in a chain of one
//! shape alone need not be the fastest between others.

use std::collections::HashMap;
use std::time::Instant;

use super::TuneError;
use super::buffers::{Buffers, cold_copies};
use super::descent::descend;
use super::device::{Outcome, REPLAYS, Tuner};
use super::search::{Limits, Progress};
use crate::error::Result;
use crate::kernel::{Call, Config};
use crate::measure::time_launches;
use crate::operands::Operands;
use crate::raw::PreparedRawGemv;
use crate::shape::Shape;

/// Configs of a problem that are tried in the chain: those that are within this of the fastest in a chain of the
/// problem alone, and so many of them.
const WITHIN: f64 = 1.15;
const MOST_TRIED: usize = 12;
/// Turns in which what was found is compared with what was known before.
const TURNS: usize = 7;
/// Launches of a replay, at most, or one pass over the layers: small ones are a few microseconds.
const MOST_LAUNCHES: usize = 1024;

/// Results of tuning a chain of layers.
#[derive(Clone, Debug)]
pub struct ChainOutcome {
    /// The results of each problem, in the order in which the layers first have it: those of
    /// [`Tuner::tune_with_chains`], with the config that is best in this chain [preferred](Outcome::prefer). A problem
    /// that several layers have is here once.
    pub problems: Vec<Outcome>,
    /// The problem that each layer is: an index into `problems`.
    pub layers: Vec<usize>,
    /// The config of each problem in the chain.
    pub configs: Vec<Config>,
    /// Seconds of all layers with the configs that dispatch chooses without a tuned table.
    pub chosen_seconds: f64,
    /// The config that is best for each problem in a chain of its own.
    pub apart: Vec<Config>,
    /// Seconds of all layers with these.
    pub apart_seconds: f64,
    /// Seconds of all layers with `configs`.
    pub seconds: f64,
}

impl Tuner {
    /// Tunes the layers of a chain together: launches in this order, again and again, each with weights of its own,
    /// that follow each other with programmatic dependent launch.
    ///
    /// First each problem is tuned as [`tune_with_chains`](Self::tune_with_chains) does, within `limits`. Then the best
    /// configs of each problem take turns in the chain itself, again within `limits` for each problem, with the other
    /// problems as they are. That goes on until nothing gets faster, three times at most. Layers of one problem change
    /// together. The configs that were found are compared with those that dispatch chooses and with those that are best
    /// for each problem apart. The fastest are kept. All of this takes several times as long as tuning the problems
    /// apart.
    ///
    /// A table has one config for a problem: chains that share problems are better tuned as one, or kept in tables of
    /// their own.
    ///
    /// # Errors
    /// [`TuneError::NoChains`] below compute capability 9.0, where launches do not overlap, and for no layers;
    /// [`tune_with_chains`](Self::tune_with_chains)'s.
    pub fn tune_chain(
        &mut self,
        layers: &[(Shape, Operands)],
        limits: &Limits,
        mut progress: impl FnMut(Progress),
    ) -> std::result::Result<ChainOutcome, TuneError> {
        let compute_capability = self.gpu().compute_capability;
        if compute_capability < (9, 0) || layers.is_empty() {
            return Err(TuneError::NoChains {
                layers: layers.len(),
                compute_capability,
            });
        }
        let (distinct, layers) = distinct(layers);
        let parts = 2.0 * distinct.len() as f64;
        let mut problems = Vec::with_capacity(distinct.len());
        for (i, (shape, operands)) in distinct.iter().enumerate() {
            let of_this = |at: Progress| Progress {
                share: (i as f64 + at.share) / parts,
                ..at
            };
            problems.push(self.tune_with_chains(shape, operands, limits, |at| {
                progress(of_this(at));
            })?);
        }
        let mut chain = Chain::new(self, &distinct, &layers)?;
        let options = problems.iter().map(|of| self.options(of));
        let (options, chosen): (Vec<Vec<Config>>, Vec<usize>) = options.unzip();
        let counts: Vec<usize> = options.iter().map(Vec::len).collect();
        let configs = |choice: &[usize]| -> Vec<Config> {
            choice.iter().zip(&options).map(|(&i, of)| of[i]).collect()
        };
        let apart = vec![0; counts.len()];
        let start = Instant::now();
        let mut measure = |choice: &[usize]| chain.seconds(self, &configs(choice));
        let mut choice = match measure(&chosen)? < measure(&apart)? {
            true => chosen.clone(),
            false => apart.clone(),
        };
        descend::<TuneError>(
            &counts,
            &mut choice,
            limits,
            || start.elapsed(),
            |choice| Ok(measure(choice)?),
            |at| {
                progress(Progress {
                    share: 0.5 + at.share / 2.0,
                    ..at
                });
            },
        )?;
        const CHOSEN: usize = 0;
        const APART: usize = 1;
        const FOUND: usize = 2;
        let last = [chosen, apart, choice];
        let mut seconds: [Vec<f64>; 3] = Default::default();
        for _ in 0..TURNS {
            for (one, seconds) in last.iter().zip(&mut seconds) {
                seconds.push(measure(one)?);
            }
        }
        let medians = seconds.map(median);
        // Gains were measured in a few turns each: what was known before may still be the fastest.
        let order = [FOUND, APART, CHOSEN].into_iter();
        let best = order.min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
        let (apart, configs) = (configs(&last[APART]), configs(&last[best.unwrap_or(FOUND)]));
        for (problem, &config) in problems.iter_mut().zip(&configs) {
            problem.prefer(&[], &[config]);
        }
        Ok(ChainOutcome {
            problems,
            layers,
            configs,
            chosen_seconds: medians[CHOSEN],
            apart,
            apart_seconds: medians[APART],
            seconds: medians.into_iter().fold(f64::INFINITY, f64::min),
        })
    }

    /// Configs of a problem that are tried in a chain, the best in a chain of its own first; and which of them dispatch
    /// chooses without a tuned table.
    fn options(&self, of: &Outcome) -> (Vec<Config>, usize) {
        let best = of
            .chained
            .first()
            .map_or(f64::NAN, |(_, found)| found.median);
        // The ranking has survivors first, one of each kernel among them, however slow.
        let mut near: Vec<_> = of.chained.iter().collect();
        near.retain(|(_, found)| found.median <= best * WITHIN);
        if let [_, others @ ..] = &mut near[..] {
            others.sort_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
        }
        let mut options: Vec<Config> = near.iter().map(|(config, _)| *config).collect();
        options.truncate(MOST_TRIED);
        // The config was measured: `tune_with_chains` has it among its candidates.
        let chosen = self.choice(&of.entry.shape, &of.entry.operands);
        let chosen = chosen.filter(|chosen| of.chained.iter().any(|(one, _)| one == chosen));
        let Some(chosen) = chosen else {
            return (options, 0);
        };
        if !options.contains(&chosen) {
            options.push(chosen);
        }
        let at = options.iter().position(|&one| one == chosen);
        (options, at.unwrap_or(0))
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Each problem once, in the order of the layers; and for each layer the index of its problem.
fn distinct(layers: &[(Shape, Operands)]) -> (Vec<(Shape, Operands)>, Vec<usize>) {
    let mut problems: Vec<(Shape, Operands)> = Vec::new();
    let of = layers.iter().map(|layer| {
        let known = problems.iter().position(|one| one == layer);
        known.unwrap_or_else(|| {
            problems.push(*layer);
            problems.len() - 1
        })
    });
    let of = of.collect();
    (problems, of)
}

/// Layers in device memory.
struct Chain {
    /// The calls of each problem: one with each copy of its weights.
    calls: Vec<Vec<Call>>,
    /// The memory that `calls` point into.
    _buffers: Vec<Buffers>,
    /// The launches of a replay: a problem, and a copy of its weights.
    launches: Vec<(usize, usize)>,
    passes: usize,
    prepared: HashMap<(usize, Config), Vec<PreparedRawGemv>>,
}

impl Chain {
    /// A chain with as many passes over the layers as keep their weights out of the L2 cache.
    fn new(tuner: &Tuner, problems: &[(Shape, Operands)], layers: &[usize]) -> Result<Self> {
        let l2_bytes = tuner.gpu().l2_bytes;
        let bytes: usize = layers.iter().map(|&i| problems[i].0.weight_bytes()).sum();
        let passes = crate::measure::copies_for_cold_l2(bytes, l2_bytes);
        let passes = passes.min(MOST_LAUNCHES / layers.len()).max(1);
        let mut used = vec![0; problems.len()];
        let mut launches = Vec::with_capacity(passes * layers.len());
        for _ in 0..passes {
            for &problem in layers {
                launches.push((problem, used[problem]));
                used[problem] += 1;
            }
        }
        let (mut buffers, mut calls) = (Vec::new(), Vec::new());
        for ((shape, operands), &copies) in problems.iter().zip(&used) {
            // Very small layers take turns over fewer copies.
            let copies = copies.min(cold_copies(shape, l2_bytes));
            let of = Buffers::with_copies(&tuner.stream, shape, operands, tuner.gpu(), copies)?;
            let call = |i| of.call(&tuner.stream, i);
            calls.push((0..copies).map(call).collect::<Result<Vec<_>>>()?);
            buffers.push(of);
        }
        Ok(Self {
            calls,
            _buffers: buffers,
            launches,
            passes,
            prepared: HashMap::new(),
        })
    }

    /// Seconds of one pass, with a config for each problem. Then the device rests for twice as long as that took.
    /// Without rest it may reach its power limit and lower its clock, and the search would find what is best with a low
    /// clock.
    fn seconds(&mut self, tuner: &Tuner, configs: &[Config]) -> Result<f64> {
        for (problem, &config) in configs.iter().enumerate() {
            if !self.prepared.contains_key(&(problem, config)) {
                let prepared = tuner.prepare(&self.calls[problem], config, true)?;
                self.prepared.insert((problem, config), prepared);
            }
        }
        let prepared: Vec<&[PreparedRawGemv]> = configs
            .iter()
            .enumerate()
            .map(|(problem, &config)| &self.prepared[&(problem, config)][..])
            .collect();
        let launch = |i: usize| {
            let (problem, copy) = self.launches[i];
            tuner.launch(prepared[problem], copy)
        };
        let begin = Instant::now();
        // SAFETY: the buffers are borrowed, and only this object's one call at a time uses them.
        let timing = unsafe { time_launches(&tuner.stream, self.launches.len(), REPLAYS, launch) }?;
        std::thread::sleep(2 * begin.elapsed());
        Ok(timing.median * (self.launches.len() / self.passes) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Activation, ScaleLayout};

    #[test]
    fn layers_of_one_problem_are_one() {
        let layer = |m, k, activation| {
            let operands = Operands::new(activation, ScaleLayout::Linear);
            (Shape::matrix(m, k).unwrap(), operands)
        };
        let (q, k) = (
            layer(64, 64, Activation::F16),
            layer(32, 64, Activation::F16),
        );
        let other = layer(64, 64, Activation::Nvfp4);
        let (problems, of) = distinct(&[q, k, k, q, other]);
        assert_eq!(problems, [q, k, other]);
        assert_eq!(of, [0, 1, 1, 0, 2]);
    }
}
