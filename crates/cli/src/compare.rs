//! `compare`: two paths or kernels on one problem, strictly alternating.

use anyhow::{Result, bail};
use nvfp4_gemv::{Activation, Error, FloatType, GemvPath, Kernel, ScaleLayout, Shape};
use nvfp4_gemv_documents::statistics::{LEAST_VALUES, LEVEL, median, median_interval, quantile};
use serde_json::json;

use crate::engine::{self, Ask, Case, Plan, Way, Work};
use crate::report::{Report, Table, bytes, count, time, wrong_usage};
use crate::shapes::{self, SYNTAX, parse_shape};

/// Compares two paths or kernels on one problem, strictly alternating, and says how sure that is
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The two take turns in rounds, a b b a a b ..., so that what else happens on the machine meets both alike; \
the ratio is the median of the rounds' b / a. A difference is claimed where the 99% interval of the median excludes 1: an \
interval between two of the rounds' ratios, by the binomial distribution. Compare a path with itself to see what this machine's noise is.

Examples:
  nvfp4-gemv compare --shape 4096,7168,8 --layout 128x4 --a cuda-core --b tensor-core
  nvfp4-gemv compare --shape 4096,4096 --a stream --b ring
  nvfp4-gemv compare --shape 4096,4096 --a cuda-core --b cuda-core:chained
  nvfp4-gemv compare --shape 1536,4096 --a cpu --b cpu --json")]
pub(crate) struct Args {
    /// M,K or M,K,L or M,K,L,N, also with `x` between: rows of the weights, elements of a row (a multiple of
    /// 16), batches, vectors a batch
    #[arg(long, value_name = SYNTAX, value_parser = parse_shape)]
    shape: Shape,
    /// A path or a kernel; `:chained` after it for programmatic dependent launch
    #[arg(long, value_name = "PATH|KERNEL[:chained]", value_parser = parse_side)]
    a: Ask,
    /// What to compare with it
    #[arg(long, value_name = "PATH|KERNEL[:chained]", value_parser = parse_side)]
    b: Ask,
    /// Element type of the vectors
    #[arg(long, value_parser = shapes::activation(), default_value = "nvfp4")]
    activation: Activation,
    /// Element type of the result
    #[arg(long, value_parser = shapes::output_type(), default_value = "f16")]
    output_type: FloatType,
    /// Layout of the scales
    #[arg(long, value_parser = shapes::layout(), default_value = "linear")]
    layout: ScaleLayout,
    /// Rounds to measure, after two to warm up: 8 or more, since no interval of fewer is 99% sure
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u16).range(i64::from(LEAST_VALUES)..=10_000))]
    rounds: u16,
    /// Rotate over about this many MiB of weights, and never less than 64 times the L2 cache; 0: the same
    /// weights every time
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    cold: u32,
}

fn parse_side(text: &str) -> Result<Ask, String> {
    let (name, is_chained) = match text.split_once(':') {
        None => (text, false),
        Some((name, "chained")) => (name, true),
        Some((_, other)) => {
            return Err(format!("expected `chained` after the colon, not {other:?}"));
        }
    };
    let ask = match (name.parse(), name.parse()) {
        (Ok(path), _) => Ask::of_path(path),
        (_, Ok(kernel)) => Ask::of_kernel(kernel),
        (Err::<_, Error>(no_path), Err::<_, Error>(no_kernel)) => {
            return Err(format!("{no_path}; {no_kernel}"));
        }
    };
    Ok(if is_chained { ask.chained() } else { ask })
}

fn work(ask: Ask) -> Work {
    Work::Gemv {
        ask,
        slow_percent: 0,
    }
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let (a, b) = (args.a, args.b);
    let on_cpu = |ask: Ask| ask.path() == Some(GemvPath::Cpu);
    if on_cpu(a) != on_cpu(b) {
        wrong_usage!("{a} and {b} cannot take turns: their operands lie in different memories");
    }
    if args.shape.is_empty() {
        wrong_usage!("{:#} has nothing to measure: M or L is 0", args.shape);
    }
    let (engine, _) = engine::open(a.path())?;
    let case = Case {
        select: None,
        shape: args.shape,
        activation: args.activation,
        layout: args.layout,
        output: args.output_type,
    };
    for side in [a, b] {
        engine.choose(&case, side)?;
    }
    let plan = Plan {
        rounds: args.rounds.into(),
        cold_bytes: (args.cold as usize).saturating_mul(1 << 20),
    };
    let rounds = engine::rounds(engine.as_ref(), &case, &[work(a), work(b)], &plan)?;
    for side in [a, b] {
        if rounds.ways.iter().all(|way| way.work != work(side)) {
            bail!("{side} cannot run: there is no programmatic dependent launch");
        }
    }
    let series = rounds.series();
    let [(way_a, of_a), (way_b, of_b)] = &series[..] else {
        bail!("{a} and {b} were not both measured");
    };
    let pairs = of_a.iter().zip(of_b);
    let ratios: Vec<f64> = pairs.map(|(a, b)| b / a).collect();
    let ratio = median(&ratios);
    let interval = median_interval(&ratios);
    let (low, high) = (quantile(&ratios, 0.05), quantile(&ratios, 0.95));
    let differs = interval.low > 1.0 || interval.high < 1.0;
    let verdict = match (differs, ratio > 1.0) {
        (true, true) => format!("{b} takes {:.1}% longer than {a}", 100.0 * (ratio - 1.0)),
        (true, false) => format!("{b} takes {:.1}% less time than {a}", 100.0 * (1.0 - ratio)),
        (false, _) => {
            format!("no difference between {a} and {b} that this run can tell from noise")
        }
    };

    let mut table = Table::new(["", "time", "5..95%", "GB/s"]);
    for (name, side, seconds) in [("a", a, of_a), ("b", b, of_b)] {
        let middle = median(seconds);
        table.row(vec![
            format!("{name}: {side}"),
            time(middle),
            format!(
                "{}..{}",
                time(quantile(seconds, 0.05)),
                time(quantile(seconds, 0.95))
            ),
            format!("{:.1}", case.shape.weight_bytes() as f64 / middle / 1e9),
        ]);
    }
    let percent = 100.0 * LEVEL;
    let text = format!(
        "{}, {} with {} vectors, {} scales, {} results; {} rounds of {} {}\n\n{table}\n\
         b / a  {ratio:.4} (rounds {low:.4}..{high:.4}; {percent}% interval of the median \
         {:.4}..{:.4})\n{verdict}\n",
        engine.device(),
        case.shape,
        case.activation,
        case.layout,
        case.output,
        plan.rounds,
        count(rounds.launches, "launch"),
        match plan.cold_bytes {
            0 => "on the same weights every time".to_owned(),
            _ => format!("over {} of weights", bytes(rounds.rotated_bytes)),
        },
        interval.low,
        interval.high,
    );
    let side = |side: Ask, seconds: &[f64], way: &Way| {
        json!({
            "path": side.path().map(GemvPath::name),
            "kernel": way.kernel.map(Kernel::name),
            "mode": side.mode(),
            "config": way.config,
            "median_us": median(seconds) * 1e6,
            "samples_us": seconds.iter().map(|s| s * 1e6).collect::<Vec<_>>(),
        })
    };
    Ok(Report::new(
        text,
        json!({
            "device": engine.describe(),
            "m": case.shape.m(), "n": case.shape.n(), "k": case.shape.k(), "l": case.shape.l(),
            "activation": case.activation.name(),
            "layout": case.layout.name(),
            "output_type": case.output.name(),
            "rotated_bytes": rounds.rotated_bytes,
            "launches_per_round": rounds.launches,
            "a": side(a, of_a, way_a),
            "b": side(b, of_b, way_b),
            "ratio_b_to_a": {
                "median": ratio,
                "p05": low,
                "p95": high,
                "interval_level": LEVEL,
                "interval_low": interval.low,
                "interval_high": interval.high,
            },
            "differs": differs,
            "verdict": verdict,
        }),
    ))
}
