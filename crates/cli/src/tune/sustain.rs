//! `tune --rank sustained` and `--rank energy`: the best of a search, repeated for seconds each.

use std::time::Duration;

use anyhow::{Result, bail};
use nvfp4_gemv::Config;
use nvfp4_gemv::tune::{Found, Outcome, Repeat, Sustained, Tuner};
use serde_json::{Value, json};

use super::Rank;
use crate::configs::one_line;
use crate::engine::Energy;
use crate::report::{Table, figure, time};

/// The most configs of a ranking that are repeated.
const FINALISTS: usize = 6;
/// A config that is slower cold than the first by more than this factor cannot win: at their power limit, GPUs lose
/// less.
const WITHIN: f64 = 1.10;

/// A candidate that was repeated.
#[derive(Clone, Debug)]
pub(super) struct Finalist {
    config: Config,
    cold: f64,
    sustained: Sustained,
}

/// Finalists of both kinds, the best first.
#[derive(Debug, Default)]
pub(super) struct Finals {
    isolated: Vec<Finalist>,
    chained: Vec<Finalist>,
}

/// Repeats the best of an outcome, and puts them into the order of `rank`.
pub(super) fn rank(
    tuner: &mut Tuner,
    outcome: &mut Outcome,
    rank: Rank,
    seconds: Duration,
    energy: &Energy,
    mut progress: impl FnMut(f64),
) -> Result<Finals> {
    let mut run = |ranking: &[(Config, Found)], chained| -> Result<Vec<Finalist>> {
        let finalists = finalists(ranking);
        let configs: Vec<Config> = finalists.iter().map(|(config, _)| *config).collect();
        let (shape, operands) = (&outcome.entry.shape, &outcome.entry.operands);
        let how = Repeat {
            chained,
            time: seconds,
        };
        let joules = || energy.joules();
        let all = tuner.sustain(shape, operands, &configs, how, joules, &mut progress)?;
        let pairs = finalists.iter().zip(all);
        let finalists = pairs.map(|((config, found), sustained)| Finalist {
            config: *config,
            cold: found.median,
            sustained,
        });
        sorted(finalists.collect(), rank)
    };
    let finals = Finals {
        isolated: run(&outcome.ranking, false)?,
        chained: match outcome.chained.is_empty() {
            true => Vec::new(),
            false => run(&outcome.chained, true)?,
        },
    };
    let configs = |finalists: &[Finalist]| -> Vec<Config> {
        finalists.iter().map(|finalist| finalist.config).collect()
    };
    outcome.prefer(&configs(&finals.isolated), &configs(&finals.chained));
    Ok(finals)
}

/// The best of a ranking, as far as they may win. Behind the first one a ranking has the survivors of the search, one
/// of each kernel among them, however slow, and then the others.
fn finalists(ranking: &[(Config, Found)]) -> Vec<&(Config, Found)> {
    let limit = ranking.first().map_or(f64::NAN, |(_, found)| found.median) * WITHIN;
    let near = ranking.iter().filter(|(_, found)| found.median <= limit);
    let mut near: Vec<_> = near.collect();
    near.sort_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
    near.truncate(FINALISTS);
    near
}

/// The best first.
fn sorted(mut finalists: Vec<Finalist>, rank: Rank) -> Result<Vec<Finalist>> {
    let merit = |finalist: &Finalist| match rank {
        Rank::Time => Some(finalist.cold),
        Rank::Sustained => Some(finalist.sustained.seconds),
        Rank::Energy => finalist.sustained.joules_per_gb,
    };
    if finalists.iter().any(|finalist| merit(finalist).is_none()) {
        bail!("--rank energy: the board does not count its energy; --rank sustained needs none");
    }
    finalists.sort_by(|a, b| {
        let merit = |finalist| merit(finalist).unwrap_or(f64::NAN);
        merit(a).total_cmp(&merit(b))
    });
    Ok(finalists)
}

impl Finals {
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(["  repeated", "cold", "sustained", "J/GB"]);
        for (finalists, what) in [(&self.isolated, ""), (&self.chained, "chained ")] {
            for finalist in finalists {
                table.row(vec![
                    format!("  {what}{}", one_line(&finalist.config)),
                    time(finalist.cold),
                    time(finalist.sustained.seconds),
                    figure(finalist.sustained.joules_per_gb, 3),
                ]);
            }
        }
        format!("  the best first, by --rank:\n{table}")
    }

    pub(super) fn json(&self) -> Value {
        let list = |finalists: &[Finalist]| -> Vec<Value> {
            let one = |finalist: &Finalist| {
                json!({
                    "kernel": finalist.config.kernel().name(),
                    "config": finalist.config,
                    "median_seconds": finalist.cold,
                    "sustained_seconds": finalist.sustained.seconds,
                    "joules_per_gb": finalist.sustained.joules_per_gb,
                })
            };
            finalists.iter().map(one).collect()
        };
        json!({ "isolated": list(&self.isolated), "chained": list(&self.chained) })
    }
}

#[cfg(test)]
mod tests {
    use nvfp4_gemv::kernel::DirectConfig;

    use super::*;

    fn config(warps: u32) -> Config {
        let (blocks_per_load, k_split) = (2, 2);
        let config = DirectConfig {
            blocks_per_load,
            warps,
            k_split,
            ..DirectConfig::DEFAULT
        };
        config.into()
    }

    #[test]
    fn only_those_near_the_first_are_repeated() {
        let ranking = |us: &[f64]| -> Vec<(Config, Found)> {
            let of = |(candidate, us): (usize, &f64)| {
                let found = Found {
                    candidate,
                    median: *us,
                    min: *us,
                    rounds: 5,
                };
                (config(candidate as u32), found)
            };
            us.iter().enumerate().map(of).collect()
        };
        // The third is another kernel's best, and the fourth was dropped.
        let ranking_of_four = ranking(&[10.0, 10.5, 11.5, 10.1]);
        let medians = finalists(&ranking_of_four).into_iter();
        let medians: Vec<f64> = medians.map(|(_, found)| found.median).collect();
        assert_eq!(medians, [10.0, 10.1, 10.5]);
        assert_eq!(finalists(&ranking(&[10.0; 9])).len(), FINALISTS);
        assert!(finalists(&[]).is_empty());
    }

    #[test]
    fn ranks_have_their_own_order() {
        let all = || {
            let of = |(warps, cold, seconds, joules)| Finalist {
                config: config(warps),
                cold,
                sustained: Sustained {
                    seconds,
                    joules_per_gb: joules,
                },
            };
            let all = [
                (1, 10.0, 12.0, Some(0.19)),
                (2, 10.1, 11.0, Some(0.18)),
                (4, 10.2, 11.5, Some(0.17)),
            ];
            all.map(of)
        };
        let order = |rank| -> Vec<Config> {
            let sorted = sorted(all().into(), rank).unwrap();
            sorted.iter().map(|finalist| finalist.config).collect()
        };
        assert_eq!(order(Rank::Time), [1, 2, 4].map(config));
        assert_eq!(order(Rank::Sustained), [2, 4, 1].map(config));
        assert_eq!(order(Rank::Energy), [4, 2, 1].map(config));
        let mut uncounted = all();
        uncounted[1].sustained.joules_per_gb = None;
        let error = sorted(uncounted.to_vec(), Rank::Energy).unwrap_err();
        assert!(error.to_string().contains("--rank sustained"), "{error}");
        assert!(sorted(uncounted.to_vec(), Rank::Sustained).is_ok());
    }
}
