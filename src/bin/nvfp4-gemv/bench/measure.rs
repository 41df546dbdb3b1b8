//! One problem: what is to take turns, and what came of it.

use std::collections::HashMap;

use anyhow::{Result, bail};
use nvfp4_gemv::{Path, select};

use super::document;
use super::statistics::median;
use crate::engine::{Case, Engine, Mode, Plan, Series, Work};

/// Measures every path of the engine, or the forced one, on a problem.
pub(super) fn case(
    engine: &dyn Engine,
    case: &Case,
    forced: Option<Path>,
    slowed: &HashMap<Path, u32>,
    plan: &Plan,
) -> Result<document::Case> {
    let shape = &case.shape;
    let choose = |forced| select(shape, &case.dispatch(), &engine.target(), forced);
    let picked = choose(None).ok();
    let mut works = vec![Work::Read];
    let mut skipped = Vec::new();
    let paths = engine.paths().iter().copied();
    for path in paths.filter(|path| forced.is_none_or(|forced| forced == *path)) {
        match choose(Some(path)) {
            Ok(_) => {
                let work = |mode| Work::Gemv {
                    path,
                    mode,
                    slow_percent: slowed.get(&path).copied().unwrap_or(0),
                };
                works.push(work(Mode::Isolated));
                // Token after token, layer after layer: one vector.
                if shape.n() == 1 {
                    works.push(work(Mode::Chained));
                }
            }
            Err(why) if forced.is_none() => skipped.push(document::Skipped {
                path: path.to_string(),
                why: why.to_string(),
            }),
            Err(why) => return Err(why.into()),
        }
    }
    let rounds = engine.rounds(case, &works, plan)?;
    let [ceiling, paths @ ..] = &rounds.series[..] else {
        bail!("no ceiling was measured of {shape}");
    };
    let ceiling_us = microseconds(ceiling);
    let gb_per_s = |us: f64| rounded(shape.weight_bytes() as f64 / us / 1e3);
    let paths = paths.iter().filter_map(|series| {
        let Work::Gemv { path, mode, .. } = series.work else {
            return None;
        };
        let samples_us = microseconds(series);
        let median_us = median(&samples_us);
        Some(document::Measured {
            path: path.to_string(),
            mode: mode.name().into(),
            picked: picked.is_some_and(|choice| choice.path == path),
            config: series.config.clone(),
            median_us,
            gb_per_s: gb_per_s(median_us),
            share_of_ceiling: rounded(median(&shares(&ceiling_us, &samples_us))),
            samples_us,
        })
    });
    let median_us = median(&ceiling_us);
    Ok(document::Case {
        m: shape.m(),
        n: shape.n(),
        k: shape.k(),
        l: shape.l(),
        activation: case.activation.name().into(),
        layout: case.layout.name().into(),
        output_type: case.output.name().into(),
        weight_bytes: shape.weight_bytes(),
        rotated_bytes: rounds.rotated_bytes,
        launches_per_round: rounds.launches,
        paths: paths.collect(),
        ceiling: document::Ceiling {
            median_us,
            gb_per_s: gb_per_s(median_us),
            samples_us: ceiling_us,
        },
        picked: picked.map(|choice| document::Picked {
            path: choice.path.to_string(),
            reason: choice.reason.to_string(),
        }),
        skipped,
    })
}

/// The share of the ceiling, round by round.
pub(super) fn shares(ceiling_us: &[f64], samples_us: &[f64]) -> Vec<f64> {
    let pairs = ceiling_us.iter().zip(samples_us);
    pairs.map(|(ceiling, sample)| ceiling / sample).collect()
}

fn microseconds(series: &Series) -> Vec<f64> {
    series.seconds.iter().map(|s| rounded(s * 1e6)).collect()
}

/// To six significant digits, however small the value is: more digits say nothing, and make documents long.
fn rounded(value: f64) -> f64 {
    // What is printed can be read again, NaN and infinity too.
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn small_values_keep_their_digits() {
        for (value, is) in [
            (0.003_901_234_567, 0.003_901_23),
            (4_123.456_789, 4_123.46),
            (1e-9 / 3.0, 3.333_33e-10),
            (0.0, 0.0),
            (-1.0, -1.0),
        ] {
            assert_eq!(rounded(value), is);
        }
        assert!(rounded(f64::NAN).is_nan());
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
    }
}
