//! `verify`: computes problems whose answers are known, and compares.

mod cases;
mod soak;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nvfp4_gemv::reference::Reference;
use nvfp4_gemv::{Activation, Error, FloatType, GemvPath, Kernel, ScaleLayout};
use nvfp4_gemv_cli::problem::{Problem, Rule, contest_tolerance};
use nvfp4_gemv_files::output::Destination;
use nvfp4_gemv_files::printable;
use serde_json::{Value, json};

use crate::destination::output;
use crate::engine::{Ask, AskArgs, Budget, Engine, GpuArgs};
use crate::measure::{Check, truth};
use crate::report::{Report, Table, number, progress, small, wrong_usage};
use crate::shapes;

pub(crate) use cases::operands;
use cases::{Data, Group, Variant, adversarial, contest, variants};
use soak::{Kept, Soak, soak};

/// Computes problems with known answers with every kernel, and compares; exits with 1 if any is wrong
#[derive(Debug, clap::Args)]
#[command(after_help = "\
--contest takes the GPU MODE nvfp4_gemv shapes with that contest's data rule and tolerance (rtol = \
atol = 1e-3). --adversarial takes all 16 codes and all scales, data with exact integer answers, and \
data at the edges of the formats, on odd shapes; errors are held against bounds derived from each \
path's roundings. Without either, both. --problem replays a file: safetensors with a U8 [L,M,K/2], \
sfa F8_E4M3 [L,M,K/16], b U8 [L,N,K/2], sfb F8_E4M3 [L,N,K/16], optional alpha F32 [1] or [M], \
optional c F64 [L,N,M] to compare with. A file of --dump also keeps what the case was held against: the exact answer, \
the contest's tolerance, or the derived bound, as files that say nothing are.

--soak goes on for minutes: everything that passed is computed again and again, by turns, and must keep its bits. A GPU \
has no rest then.

Examples:
  nvfp4-gemv verify
  nvfp4-gemv verify --contest --path cuda-core
  nvfp4-gemv verify --adversarial --case integers --activation f16
  nvfp4-gemv verify --dump failing.safetensors             # writes the first case that fails
  nvfp4-gemv verify --case 'sweep 130x80' --dump case.safetensors
  nvfp4-gemv verify --problem case.safetensors
  nvfp4-gemv verify --contest --kernel ring --soak 20")]
pub(crate) struct Args {
    /// The contest's shapes, data rule and tolerance
    #[arg(long)]
    contest: bool,
    /// Full-range, exact and edge-case data with derived bounds
    #[arg(long)]
    adversarial: bool,
    /// A problem file
    #[arg(long, value_name = "F", conflicts_with_all = ["contest", "adversarial", "case"])]
    problem: Option<PathBuf>,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    gpu: GpuArgs,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    /// Only this layout of the scales; may be repeated
    #[arg(long, value_parser = shapes::layout())]
    layout: Vec<ScaleLayout>,
    /// Only this type of vectors; may be repeated
    #[arg(long, value_parser = shapes::activation())]
    activation: Vec<Activation>,
    /// Only this type of results; may be repeated
    #[arg(long, value_parser = shapes::output_type())]
    output_type: Vec<FloatType>,
    /// Minutes for which what passed is computed again and again, and must keep its bits
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    soak: Option<f64>,
    /// Write the first case that fails as a problem file; with --case, the first selected one
    #[arg(long, value_name = "F")]
    dump: Option<PathBuf>,
    /// Replace the file of --dump if it is there already
    #[arg(long, requires = "dump")]
    force: bool,
}

/// A number of minutes, up to a week.
fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= 10_080.0 => Ok(minutes),
        _ => Err("expected a number of minutes above 0, 10080 at most".into()),
    }
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let ask = args.ask.ask()?;
    // A file that cannot be read is reported before a device that is not there.
    let file = args.problem.as_deref().map(read).transpose()?;
    let dump = args.dump.as_ref();
    let dump = dump
        .map(|path| output(path, args.force, args.problem.clone()))
        .transpose()?;
    let mut groups = groups(args, file.as_ref())?;
    for group in &mut groups {
        group.variants.retain(|variant| is_selected(args, variant));
    }
    groups.retain(|group| !group.variants.is_empty());
    if let Some(wanted) = &args.case {
        groups.retain(|group| group.name().contains(wanted.as_str()));
    }
    if groups.is_empty() {
        wrong_usage!("no case is selected; `nvfp4-gemv verify --json` lists the names of all");
    }
    let engine = args.gpu.open(ask)?;
    let asks = asks(engine.as_ref(), ask);
    let mut summary = Summary {
        dump,
        ..Summary::default()
    };
    let bar = progress(groups.len() as u64, "verifying");
    let problem = |group: &Group| match &file {
        Some((problem, _)) => problem.clone(),
        None => group.problem(),
    };
    for (number, group) in groups.iter().enumerate() {
        bar.set_message(group.name());
        let problem = problem(group);
        summary.verify(engine.as_ref(), &asks, (number, group), &problem, args)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if summary.computed == 0
        && let Some(why) = summary.unavailable
    {
        return Err(why.into());
    }
    if let Some(minutes) = args.soak {
        summary.soak(engine.as_ref(), &groups, problem, minutes)?;
    }
    Ok(summary.report(engine.as_ref(), args))
}

/// A problem file, and the rule for its results.
fn read(path: &Path) -> Result<(Problem, Rule)> {
    let (problem, rule) = Problem::read_with_rule(path)?;
    let rule = match rule {
        None => Rule::Derived,
        Some(name) => Rule::from_name(&name).with_context(|| {
            let file = printable::path(path);
            format!(
                "{file}: results are to be held against {name:?}, which this version does not know"
            )
        })?,
    };
    Ok((problem, rule))
}

fn groups(args: &Args, file: Option<&(Problem, Rule)>) -> Result<Vec<Group>> {
    if let Some((problem, rule)) = file {
        return Ok(vec![Group {
            data: Data::File(*rule),
            shape: problem.shape,
            variants: variants(&ScaleLayout::ALL, &Activation::ALL, &FloatType::ALL),
        }]);
    }
    let both = !args.contest && !args.adversarial;
    let mut groups = Vec::new();
    if args.contest || both {
        groups.extend(contest()?);
    }
    if args.adversarial || both {
        groups.extend(adversarial()?);
    }
    Ok(groups)
}

fn is_selected(args: &Args, variant: &Variant) -> bool {
    fn among<T: PartialEq>(wanted: &[T], value: T) -> bool {
        wanted.is_empty() || wanted.contains(&value)
    }
    among(&args.layout, variant.layout)
        && among(&args.activation, variant.activation)
        && among(&args.output_type, variant.output)
}

/// The asks of each case: the user's; on a GPU, every kernel of it too; and each kernel also as in a chain.
fn asks(engine: &dyn Engine, ask: Ask) -> Vec<Ask> {
    let on_gpu = engine.paths() != [GemvPath::Cpu];
    let kernels: Vec<Ask> = match ask.kernel {
        _ if !on_gpu => Vec::new(),
        Some(_) => vec![ask.chained()],
        None => {
            let of_path = |kernel: &Kernel| ask.path.is_none_or(|path| path == kernel.path());
            let kernels = Kernel::ALL.iter().copied().filter(of_path);
            let both = |kernel| [Ask::of_kernel(kernel), Ask::of_kernel(kernel).chained()];
            kernels.flat_map(both).collect()
        }
    };
    [ask].into_iter().chain(kernels).collect()
}

/// An ask, and the options that lead to the same kernel again: isolated and chained, where it is one of a GPU.
fn computed_by(ask: Ask, path: Option<GemvPath>, kernel: Option<Kernel>) -> (Ask, String) {
    let options = match (kernel, path) {
        (Some(kernel), _) => format!(" --kernel {kernel}"),
        (None, Some(path)) => format!(" --path {path}"),
        (None, None) => String::new(),
    };
    (ask, options)
}

/// A path as an argument in a POSIX shell.
fn shell(path: &Path) -> String {
    let mut text = printable::path(path).to_string();
    if text.starts_with('-') {
        text.insert_str(0, "./");
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./+,:@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The findings so far.
#[derive(Debug, Default)]
struct Summary {
    computed: usize,
    failed: usize,
    /// Of those that were computed: problems without elements, where M, N or L is 0.
    empty: usize,
    /// The calls that each kernel was asked for, isolated and chained.
    kernels: Vec<OfKernel>,
    /// Variants that the path cannot run, and the last reason.
    skipped: usize,
    unavailable: Option<Error>,
    lines: Vec<Line>,
    /// The destination of `--dump`.
    dump: Option<Destination>,
    /// The output of `--dump`, and how to replay it where that is a file.
    dumped: Option<String>,
    json: Vec<Value>,
    /// The results that passed, where they are computed again.
    kept: Vec<Kept>,
    /// The minutes of `--soak`, and what was seen in them.
    soaked: Option<(f64, Soak)>,
}

/// A kernel's outcomes on the problems that it was asked for.
#[derive(Debug)]
struct OfKernel {
    ask: Ask,
    computed: usize,
    refused: usize,
    /// Why it refused the first one.
    why: Option<String>,
}

impl OfKernel {
    fn json(&self) -> Value {
        json!({
            "kernel": self.ask.kernel.map(Kernel::name),
            "mode": self.ask.mode(),
            "computed": self.computed,
            "refused": self.refused,
            "why_refused": self.why,
        })
    }
}

/// A group's line in the table.
#[derive(Debug)]
struct Line {
    name: String,
    path: Option<GemvPath>,
    computed: usize,
    worst: Option<(Check, Variant)>,
    failures: Vec<String>,
}

impl Summary {
    fn verify(
        &mut self,
        engine: &dyn Engine,
        asks: &[Ask],
        (number, group): (usize, &Group),
        problem: &Problem,
        args: &Args,
    ) -> Result<()> {
        let (linear, nvfp4) = (ScaleLayout::Linear, Activation::Nvfp4);
        let reference = truth(&operands(problem, linear, nvfp4, FloatType::F32)?)?;
        // The file's result is the truth; how errors grow still follows from the operands.
        let expected = Reference {
            y: problem.c.clone().unwrap_or_else(|| reference.y.clone()),
            magnitude: reference.magnitude,
        };
        let mut line = Line {
            name: group.name(),
            path: None,
            computed: 0,
            worst: None,
            failures: Vec::new(),
        };
        for &variant in &group.variants {
            let operands = operands(problem, variant.layout, variant.activation, variant.output)?;
            for (nth, &ask) in asks.iter().enumerate() {
                let outcome = match engine.compute(&operands, ask) {
                    Ok(outcome) => outcome,
                    Err(
                        why @ (Error::PathUnavailable { .. } | Error::KernelUnavailable { .. }),
                    ) => {
                        // A kernel that does not take everything is counted.
                        match nth {
                            0 => {
                                self.skipped += 1;
                                self.unavailable = Some(why);
                            }
                            _ => {
                                let of = self.of_kernel(ask);
                                of.refused += 1;
                                of.why.get_or_insert_with(|| why.to_string());
                            }
                        }
                        continue;
                    }
                    Err(why) => {
                        line.failures.push(format!("{variant}, {ask}: {why}"));
                        self.json.push(json!({
                            "case": line.name, "variant": variant.to_string(),
                            "passed": false, "error": why.to_string(),
                        }));
                        let by = computed_by(ask, ask.path, ask.kernel);
                        self.dump(group, &by, variant, problem, &expected)?;
                        continue;
                    }
                };
                let y = outcome.y.to_f64();
                let check = match group.data.rule_of(variant) {
                    Rule::Contest => {
                        Check::new(&y, &expected.y, |i| contest_tolerance(expected.y[i]))
                    }
                    Rule::Exact => Check::new(&y, &expected.y, |_| 0.0),
                    Rule::Derived => {
                        Check::derived(&y, &expected, outcome.roundings, variant.output)
                    }
                };
                line.computed += 1;
                self.empty += usize::from(group.shape.is_empty());
                if nth > 0 {
                    self.of_kernel(ask).computed += 1;
                }
                line.path = Some(outcome.path);
                self.json.push(json!({
                    "case": line.name,
                    "data": group.data.name(),
                    "m": group.shape.m(), "n": group.shape.n(),
                    "k": group.shape.k(), "l": group.shape.l(),
                    "layout": variant.layout.name(),
                    "activation": variant.activation.name(),
                    "output_type": variant.output.name(),
                    "path": outcome.path.name(),
                    "kernel": outcome.kernel.map(Kernel::name),
                    "mode": ask.mode(),
                    "passed": check.passed,
                    "check": check.json(),
                }));
                if check.passed && args.soak.is_some() {
                    self.kept.push(Kept {
                        group: number,
                        variant,
                        ask,
                        y: outcome.y.encoded().1,
                    });
                }
                if !check.passed {
                    let failure = format!("{variant}, {ask}: {}", check.text());
                    line.failures.push(failure);
                }
                if !check.passed || args.case.is_some() || args.problem.is_some() {
                    let by = computed_by(ask, Some(outcome.path), outcome.kernel);
                    self.dump(group, &by, variant, problem, &expected)?;
                }
                let is_worse = |(worst, _): &(Check, Variant)| {
                    (!check.passed, check.share()) > (!worst.passed, worst.share())
                };
                if line.worst.as_ref().is_none_or(is_worse) {
                    line.worst = Some((check, variant));
                }
            }
        }
        self.computed += line.computed;
        self.failed += line.failures.len();
        self.lines.push(line);
        Ok(())
    }

    fn of_kernel(&mut self, ask: Ask) -> &mut OfKernel {
        let at = self.kernels.iter().position(|of| of.ask == ask);
        let at = at.unwrap_or_else(|| {
            self.kernels.push(OfKernel {
                ask,
                computed: 0,
                refused: 0,
                why: None,
            });
            self.kernels.len() - 1
        });
        &mut self.kernels[at]
    }

    /// Computes again what passed.
    fn soak(
        &mut self,
        engine: &dyn Engine,
        groups: &[Group],
        problem: impl Fn(&Group) -> Problem,
        minutes: f64,
    ) -> Result<()> {
        // Results of no elements say nothing.
        self.kept.retain(|kept| !kept.y.is_empty());
        let time = Duration::from_secs_f64(60.0 * minutes);
        let bar = progress(time.as_secs(), "seconds of soak");
        let start = std::time::Instant::now();
        let name = |kept: &Kept| {
            let group = groups[kept.group].name();
            format!("{group} {}, {}", kept.variant, kept.ask)
        };
        // Cases of a group follow each other: its data are made once a turn.
        let mut made: Option<(usize, Problem)> = None;
        let found = soak(&self.kept, time, name, |kept, time| {
            bar.set_position(start.elapsed().as_secs());
            bar.set_message(groups[kept.group].name());
            let of_group = match made.take() {
                Some((number, of_group)) if number == kept.group => of_group,
                _ => problem(&groups[kept.group]),
            };
            let Variant {
                layout,
                activation,
                output,
            } = kept.variant;
            let operands = operands(&of_group, layout, activation, output)?;
            let budget = Budget { runs: 1, time };
            let (timing, y) = engine.repeat(&operands, kept.ask, budget)?;
            drop(operands);
            made = Some((kept.group, of_group));
            Ok((timing.runs(), y.encoded().1))
        });
        bar.finish_and_clear();
        self.failed += found.failures.len();
        self.soaked = Some((minutes, found));
        Ok(())
    }

    /// Writes the case for `--dump`, if none has been written yet.
    fn dump(
        &mut self,
        group: &Group,
        by: &(Ask, String),
        variant: Variant,
        problem: &Problem,
        truth: &Reference,
    ) -> Result<()> {
        let (Some(output), None) = (&self.dump, &self.dumped) else {
            return Ok(());
        };
        let with_answer = Problem {
            c: Some(truth.y.clone()),
            ..problem.clone()
        };
        with_answer.write_to(output, group.data.rule())?;
        let (ask, options) = by;
        let (case, f) = (group.name(), printable::path(output.path()));
        let mut dumped = format!("{case} ({variant}, {ask}) is written to {f}");
        // A pipe or a device holds nothing that could be read again.
        if !output.is_stream() {
            dumped.push_str(&format!(
                "; replay it with\n  nvfp4-gemv verify --problem {}{options} --layout {} --activation {} \
                 --output-type {}",
                shell(output.path()),
                variant.layout,
                variant.activation,
                variant.output.name(),
            ));
        }
        self.dumped = Some(dumped);
        Ok(())
    }

    fn report(&self, engine: &dyn Engine, args: &Args) -> Report {
        let mut table =
            Table::new("case|path|variants|max error|bound|error/bound|result".split('|'));
        for line in &self.lines {
            let Some((check, _)) = &line.worst else {
                continue;
            };
            let failed = !line.failures.is_empty();
            table.row(vec![
                line.name.clone(),
                line.path.map_or("", GemvPath::name).into(),
                line.computed.to_string(),
                small(check.error),
                small(check.bound),
                format!("{:.0}%", 100.0 * check.share()),
                if failed { "FAILED" } else { "ok" }.into(),
            ]);
        }
        let mut text = format!("{}\n\n{table}", engine.device());
        for line in &self.lines {
            for failure in &line.failures {
                text.push_str(&format!("FAILED {} {failure}\n", line.name));
            }
        }
        let (computed, failed) = (self.computed, self.failed);
        text.push_str(&format!("\n{computed} computed, {failed} failed"));
        if self.empty > 0 {
            text.push_str(&format!(", {} of them without elements", self.empty));
        }
        if let (skipped @ 1.., Some(why)) = (self.skipped, &self.unavailable) {
            text.push_str(&format!(", {skipped} skipped ({why})"));
        }
        text.push('\n');
        if let Some(why) = engine.why_not_gpu() {
            text.push_str(&format!("computed on the CPU: {why}\n"));
        }
        if !self.kernels.is_empty() {
            let mut of_kernels = Table::new("kernel|computed|refused|the first reason".split('|'));
            for OfKernel {
                ask,
                computed,
                refused,
                why,
            } in &self.kernels
            {
                let [computed, refused] = [computed, refused].map(usize::to_string);
                let why = why.clone().unwrap_or_default();
                of_kernels.row(vec![ask.to_string(), computed, refused, why]);
            }
            text.push_str(&format!("\n{of_kernels}"));
        }
        if let Some((_, soak)) = &self.soaked {
            text.push_str(&soak.text(self.kept.len()));
        }
        match (&self.dumped, &args.dump) {
            (Some(dumped), _) => text.push_str(&format!("{dumped}\n")),
            (None, Some(path)) => text.push_str(&format!(
                "nothing is written to {}: every case passed (name one with --case to write it)\n",
                printable::path(path)
            )),
            (None, None) => {}
        }
        let soaked = self.soaked.as_ref();
        let passed = self.failed == 0 && soaked.is_none_or(|(_, soak)| soak.passed());
        let worst = self.lines.iter().filter_map(|line| line.worst.as_ref());
        let max_share = worst.map(|(check, _)| check.share()).fold(0.0, f64::max);
        Report {
            text,
            json: json!({
                "device": engine.device(),
                "computed": self.computed,
                "failed": self.failed,
                "without_elements": self.empty,
                "kernels": self.kernels.iter().map(OfKernel::json).collect::<Vec<_>>(),
                "why_not_gpu": engine.why_not_gpu(),
                "skipped": self.skipped,
                "why_skipped": self.unavailable.as_ref().map(ToString::to_string),
                "max_share_of_bound": number(max_share),
                "dumped": self.dumped.as_ref().and(args.dump.as_ref()),
                "cases": self.json,
                "soak": soaked.map(|(minutes, soak)| soak.json(self.kept.len(), *minutes)),
                "passed": passed,
            }),
            passed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_argument_in_a_shell() {
        for (path, argument) in [
            ("/tmp/a-1.safetensors", "/tmp/a-1.safetensors"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
            ("-f", "./-f"),
            ("~", "'~'"),
        ] {
            assert_eq!(shell(Path::new(path)), argument);
        }
    }

    /// The kernel that failed is the one to look at, whoever asked for what.
    #[test]
    fn a_replay_asks_for_the_kernel_that_computed() {
        let options = |ask, path, kernel| computed_by(ask, path, kernel).1;
        let (core, ring) = (Some(GemvPath::CudaCore), Some(Kernel::Ring));
        assert_eq!(options(Ask::ANY, core, ring), " --kernel ring");
        let cpu = Some(GemvPath::Cpu);
        assert_eq!(options(Ask::ANY, cpu, None), " --path cpu");
        let chained = Ask::of_kernel(Kernel::Ring).chained();
        assert_eq!(options(chained, None, ring), " --kernel ring");
        assert_eq!(options(Ask::ANY, None, None), "");
    }
}
