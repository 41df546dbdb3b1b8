//! `bench`: time per path and problem, as a share of the memory ceiling.

mod decode;
mod failures;
mod measure;
mod moe;
#[cfg(feature = "nccl")]
mod ranks;
mod reads;
mod serve;
mod several;
pub(crate) mod suite;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvfp4_gemv::{Activation, FloatType, GemvPath, ScaleLayout, Shape};
use nvfp4_gemv_documents::document::{self, BoardReadings, Document, Head, LongRead, shares};
use nvfp4_gemv_documents::protocol::Problem;
use nvfp4_gemv_documents::statistics;

use self::failures::Failures;
use self::measure::Measurer;
use self::reads::FastestReads;
use self::suite::{Suite, SuiteArg};
use crate::engine::{self, Ask, AskArgs, Case, Engine, GpuArgs, Ids, Plan, TunedTable};
use crate::report::{Report, Table, bytes, count, figure, progress, time, wrong_usage};
use crate::shapes::{self, SYNTAX, parse_n, parse_shape};

/// Measures the paths on each problem, with the share of the memory ceiling measured in the same rounds
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The ceiling is the fastest of several kernels that only read as many bytes as the weights have. Of all of them, \
the fastest three at that size and the best kernel of every path that can run a problem take turns in rounds. A turn of a path is one CUDA graph of 48 launches or more over \
weights that no cache holds; on the CPU, 2 ms of calls. A path's share is the median of the rounds' ceiling time / \
time. Quote the share, not the time: times move from machine to machine.

These are cold figures: after each turn the GPU rests for twice as long, and a turn during which its power limit \
lowered the clock is repeated. --sustained adds what a decoder gets that runs for minutes: each result is \
repeated for so many seconds, and the last half of them counts, with watts, clock and joules for each GB of \
weights, where the driver's management library (NVML) tells them. Its column `arithmetic` is how many J/GB a path takes \
beyond the kernel that only reads.

--cublas lets cuBLAS take turns too, from f16 weights of the same shape: 3.6 times the bytes, rotated over 4 GiB as \
well. `faster` is its time / time, round by round.

--suite decode measures decode steps: the linear layers of as many decoder layers as --cold holds, in one CUDA graph. \
Its figures are times of a decoder layer, and shares of the rate of a long read that takes turns with them. It prints \
the shapes, and where they come from.

--suite moe measures layers of mixtures of experts on a GPU: quantising, gate and up, SwiGLU and quantising, down and \
the weighted sum, five kernels, chained, in one CUDA graph. --n is the number of tokens. Ids are random for each call. \
Its share counts the bytes of a call's experts, each once. Calls take turns over as many layers that they read --cold of \
them: with 4096, 17 to 140 GB of memory. A model that does not fit is left out.

--batch-invariant measures results whose bits do not depend on other vectors, with the kernel and config that are for \
that, in place of the fastest ones. What it costs is the share that it has, beside the share without it in the same \
machine start.

isolated: a launch starts when the one before has ended. chained: programmatic dependent launch, where the \
path has it, for one vector, and with --suite decode for any number; it reads its weights while the one before still runs.

A problem that cannot be measured is reported, the others are measured, and the program ends with 1.

Without a GPU, --suite measures a few problems on the CPU, and --suite decode its decoder layers there.

Examples:
  nvfp4-gemv bench
  nvfp4-gemv bench --suite all --json > bench.json    # `cargo xtask bench --from bench.json` draws it
  nvfp4-gemv bench --suite quick --activation nvfp4
  nvfp4-gemv bench --shape 4096,7168 --shape 7168,2048,4 --activation nvfp4 --activation bf16
  nvfp4-gemv bench --shape 28672,8192 --activation nvfp4 --activation f16 --sustained 5
  nvfp4-gemv bench --suite vectors --cublas --json > vectors.json
  nvfp4-gemv bench --suite decode
  nvfp4-gemv bench --suite decode --n 1 --activation nvfp4 --sustained 5
  nvfp4-gemv bench --suite decode --tuned tuned.jsonl    # tune --chain makes such a file
  nvfp4-gemv bench --suite decode --tensor-parallel 2
  nvfp4-gemv bench --suite moe --n 1
  nvfp4-gemv bench --shape 14336,4096 --n 1 --n 16 --activation f16 --cublas
  nvfp4-gemv bench --ceiling --shape 4096,4096 --shape 28672,8192
  nvfp4-gemv bench --batch-invariant --shape 4096,4096 --n 1 --n 8 --n 64
  nvfp4-gemv bench --kernel stream --shape 4096,7168 --n 1 --n 2 --n 4
  nvfp4-gemv bench --path cpu --shape 4096,4096,1,8 --rounds 51")]
pub(crate) struct Args {
    /// A list of problems; the options below replace its parts
    #[arg(long, value_enum)]
    suite: Option<SuiteArg>,
    /// M,K or M,K,L or M,K,L,N, also with `x` between: rows of the weights, elements of a row (a multiple of
    /// 16), batches, vectors a batch; may be repeated [default: the contest's benchmark shapes]
    #[arg(long = "shape", value_name = SYNTAX, value_parser = parse_shape)]
    shapes: Vec<Shape>,
    /// Vectors a batch, of every shape; may be repeated
    #[arg(long, value_parser = parse_n)]
    n: Vec<usize>,
    /// Element type of the vectors; may be repeated [default: nvfp4]
    #[arg(long, value_parser = shapes::activation())]
    activation: Vec<Activation>,
    /// Layout of the scales; may be repeated [default: linear]
    #[arg(long, value_parser = shapes::layout())]
    layout: Vec<ScaleLayout>,
    /// Let each batch select its matrix, as experts of a mixture do, by ids in the device's memory; no two batches have
    /// the same. On a GPU
    #[arg(long, value_enum, conflicts_with_all = ["ceiling", "serve", "tensor_parallel", "cublas"])]
    select: Option<Ids>,
    #[command(flatten)]
    ask: AskArgs,
    /// With results whose bits do not depend on the other vectors of a call, nor on their number; no tuned file is
    /// asked
    #[arg(long, conflicts_with_all = ["ceiling", "serve", "tensor_parallel"])]
    batch_invariant: bool,
    #[command(flatten)]
    gpu: GpuArgs,
    /// With the configs of a file of `nvfp4-gemv tune`, made on this machine, where it has the problem.
    /// NVFP4_GEMV_TUNED is not looked at
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ceiling", "serve", "tensor_parallel"])]
    tuned: Option<PathBuf>,
    /// Element type of the result [default: f16]
    #[arg(long, value_parser = shapes::output_type(), conflicts_with = "tensor_parallel")]
    output_type: Option<FloatType>,
    /// Rounds to measure each problem for, after two to warm up
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Rotate over about this many MiB of weights, and never less than 64 times the L2 cache; 0: the same
    /// weights every time
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_COLD_MIB)]
    cold: u32,
    /// Also repeat each result, the ceiling's too, for so many seconds, and report the last half: choose few problems
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = parse_sustained)]
    sustained: f64,
    /// Measure no path: list all kernels that only read, at the sizes of the problems' weights and of 1 GiB. The first
    /// of each size is its ceiling
    #[arg(long, conflicts_with_all = ["sustained", "slow_down", "serve", "kernel"])]
    ceiling: bool,
    /// Let cuBLAS take turns too: from f16 weights of the same shape, with f16 vectors. Needs libcublas; without it,
    /// the report says so
    #[arg(long, conflicts_with_all = ["ceiling", "serve"])]
    cublas: bool,
    /// Divide pairs of layers of --suite decode's 70B model, and of a 405B one, among so many GPUs of this machine,
    /// through NCCL: the attention's projections, and the MLP, each with its sum. Needs libnccl; n is 1, 8 and 64 and
    /// vectors are bf16 if nothing else is asked for. With --activation nvfp4 vectors are bf16 too, and quantised
    /// before the layers, which is measured with them
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u16).range(2..=64),
          conflicts_with_all = ["shapes", "ceiling", "cublas", "slow_down", "serve", "sustained", "path", "kernel"])]
    tensor_parallel: Option<u16>,
    /// Which sums are made in memory that is registered as NCCL's windows [default: by-size; all without a value]. Needs
    /// NCCL 2.27 or newer
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "all", requires = "tensor_parallel")]
    windows: Option<several::Windows>,
    /// The commit that the program was built from, for the document
    #[arg(long, value_name = "SHA")]
    commit: Option<String>,
    /// End each turn of a path with a read of so many percent of the bytes that it read: to rehearse a regression
    #[arg(long, value_name = "PATH=PERCENT", value_parser = parse_slow_down, hide = true)]
    slow_down: Vec<(GemvPath, u32)>,
    /// Measure turn by turn, as requests on stdin ask for it: for `cargo xtask nightly`
    #[arg(long, hide = true)]
    serve: bool,
}

const DEFAULT_COLD_MIB: u32 = 4096;

/// Seconds, of which more than an hour must be a mistake.
fn parse_sustained(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected 0 to 3600 seconds".into()),
    }
}

/// `PATH=PERCENT`.
fn parse_slow_down(text: &str) -> Result<(GemvPath, u32), String> {
    let (path, percent) = text.split_once('=').ok_or("expected PATH=PERCENT")?;
    let path = path.parse().map_err(|e: nvfp4_gemv::Error| e.to_string())?;
    match percent.parse() {
        Ok(percent) if percent <= 100 => Ok((path, percent)),
        _ => Err("expected 0 to 100 percent".into()),
    }
}

impl Args {
    fn output(&self) -> FloatType {
        self.output_type.unwrap_or(FloatType::F16)
    }

    /// Whether the command as it is asked for takes `--path`, of which hints speak.
    pub(crate) fn takes_path(&self) -> bool {
        self.tensor_parallel.is_none() && self.suite != Some(SuiteArg::Moe)
    }

    /// Whether what is measured is no longer the suite.
    fn replaces_parts(&self, ask: Ask) -> bool {
        let lists = [
            self.shapes.is_empty(),
            self.n.is_empty(),
            self.activation.is_empty(),
            self.layout.is_empty(),
        ];
        let whole = lists.iter().all(|is_default| *is_default)
            && self.select.is_none()
            && self.output() == FloatType::F16
            && self.cold == DEFAULT_COLD_MIB
            && (ask == Ask::ANY || ask.path() == Some(GemvPath::Cpu));
        !whole
    }
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let ask = args.ask.ask()?;
    let ask = ask.batch_invariant(args.batch_invariant);
    let engine = args.gpu.open(ask)?;
    let table = args.tuned.as_deref().map(TunedTable::load).transpose()?;
    let ask = ask.tuned(table);
    if let Some(ranks) = args.tensor_parallel {
        return over_ranks(args, engine.as_ref(), ranks.into());
    }
    let on_cpu = engine.paths() == [GemvPath::Cpu];
    if on_cpu && args.select.is_some() {
        bail!("--select measures ids in a GPU's memory, and there is no GPU");
    }
    let mut suite = Suite::new(args.suite, on_cpu);
    let plan = plan(args);
    if args.suite == Some(SuiteArg::Moe) {
        return mixtures(args, engine.as_ref(), plan);
    }
    if args.suite == Some(SuiteArg::Decode) {
        return decode_steps(args, engine.as_ref(), &suite, ask, plan);
    }
    let cases = cases(args, &suite)?;
    if args.replaces_parts(ask) {
        suite.name = "custom";
    }
    let slowed: HashMap<GemvPath, u32> = args.slow_down.iter().copied().collect();
    if args.ceiling {
        return ceilings(engine.as_ref(), &cases, args.commit.clone(), &plan);
    }
    let mut document = empty(engine.as_ref(), suite.name, args.commit.clone(), &plan);
    let no_cublas = match args.cublas {
        true => engine.cublas().err(),
        false => None,
    };
    let measurer = Measurer {
        engine: engine.as_ref(),
        ask,
        slowed: &slowed,
        plan,
        fastest_reads: FastestReads::default(),
        sustain: Duration::from_secs_f64(args.sustained),
        cublas: args.cublas && no_cublas.is_none(),
    };
    let missing = no_cublas.map(|why| format!("cuBLAS takes no turns: {why}"));
    document.notes.extend(missing);
    let on_the_cpu = (engine.why_not_gpu()).map(|why| format!("measured on the CPU: {why}"));
    document.notes.extend(on_the_cpu);
    document.notes.extend(configs_of(args));
    if args.sustained > 0.0 {
        document.notes.extend(engine.energy_notes());
    }
    document.method.sustained_seconds = (args.sustained > 0.0).then_some(args.sustained);
    let slowed = slowed.iter();
    document.slowed_percent = slowed.map(|(path, by)| (path.to_string(), *by)).collect();
    let long_read = reads::long_read(engine.as_ref(), &plan)?;
    document.long_read = long_read.map(|(_, long_read)| long_read);
    if args.serve {
        let sustained = suite.worth_sustaining(&cases);
        let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
        serve::serve(&measurer, document, &cases, &sustained, input, output)?;
        return Ok(Report::nothing());
    }
    let bar = progress(cases.len() as u64, "measuring");
    let mut failures = Failures::default();
    for case in &cases {
        let problem = problem(case);
        bar.set_message(problem.to_string());
        let measured = failures.keep(&problem, measurer.case(case));
        document.cases.extend(measured);
        bar.inc(1);
    }
    bar.finish_and_clear();
    document.failed = failures.beside(document.cases.len())?;
    document.date_utc = now();
    Ok(Report {
        text: text(engine.as_ref(), &document),
        json: serde_json::to_value(&document)?,
        passed: document.failed.is_empty(),
    })
}

fn plan(args: &Args) -> Plan {
    Plan {
        rounds: args.rounds.into(),
        cold_bytes: (args.cold as usize).saturating_mul(1 << 20),
    }
}

/// Pairs of layers over several GPUs.
fn over_ranks(args: &Args, engine: &dyn Engine, ranks: usize) -> Result<Report> {
    if args.suite != Some(SuiteArg::Decode) {
        wrong_usage!("--tensor-parallel measures layers of models: it goes with --suite decode");
    }
    let request = several::Request {
        ranks,
        vectors: several::vectors(&args.n),
        activations: or(&args.activation, &[Activation::Bf16]),
        layouts: or(&args.layout, &[ScaleLayout::Linear]),
        windows: args.windows.unwrap_or_default(),
        plan: plan(args),
        commit: args.commit.clone(),
    };
    several::run(engine, &request)
}

/// Refuses options that mean nothing with a suite, and may have been given.
fn refuse(options: &[(&str, bool)], suite: &str) -> Result<()> {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => wrong_usage!("{option} does not go with --suite {suite}"),
        None => Ok(()),
    }
}

/// The suite of mixtures of experts.
fn mixtures(args: &Args, engine: &dyn Engine, plan: Plan) -> Result<Report> {
    let asked_by = args.ask.asked_by()?;
    let without_meaning = [
        ("--shape", !args.shapes.is_empty()),
        ("--activation", !args.activation.is_empty()),
        ("--layout", !args.layout.is_empty()),
        ("--output-type", args.output_type.is_some()),
        (asked_by.unwrap_or_default(), asked_by.is_some()),
        ("--tuned", args.tuned.is_some()),
        ("--batch-invariant", args.batch_invariant),
        ("--ceiling", args.ceiling),
        ("--cublas", args.cublas),
        ("--slow-down", !args.slow_down.is_empty()),
        ("--serve", args.serve),
        ("--select", args.select.is_some()),
        ("--sustained", args.sustained > 0.0),
    ];
    refuse(
        &without_meaning,
        "moe, which measures whole layers of models",
    )?;
    let request = moe::Request {
        tokens: or(&args.n, &moe::TOKENS),
        plan,
        commit: args.commit.clone(),
    };
    moe::run(engine, &request)
}

/// The suite of decode steps.
fn decode_steps(
    args: &Args,
    engine: &dyn Engine,
    suite: &Suite,
    ask: Ask,
    plan: Plan,
) -> Result<Report> {
    let without_meaning = [
        ("--shape", !args.shapes.is_empty()),
        ("--ceiling", args.ceiling),
        ("--cublas", args.cublas),
        ("--slow-down", !args.slow_down.is_empty()),
        ("--serve", args.serve),
        ("--select", args.select.is_some()),
    ];
    refuse(&without_meaning, "decode, whose shapes are those of models")?;
    let request = decode::Request {
        vectors: or(&args.n, suite.vectors),
        activations: or(&args.activation, suite.activations),
        layouts: or(&args.layout, suite.layouts),
        output: args.output(),
        ask,
        plan,
        sustain: Duration::from_secs_f64(args.sustained),
        commit: args.commit.clone(),
        notes: configs_of(args).into_iter().collect(),
    };
    decode::run(engine, &request)
}

/// The origin of configs that are not the library's.
fn configs_of(args: &Args) -> Option<String> {
    let file = args.tuned.as_deref()?;
    Some(format!(
        "configs of {}, where it has the problem",
        nvfp4_gemv_files::printable::path(file)
    ))
}

/// The values that were asked for, or else the suite's.
fn or<'a, T>(asked: &'a [T], suite: &'a [T]) -> &'a [T] {
    if asked.is_empty() { suite } else { asked }
}

/// All kernels that only read.
fn ceilings(
    engine: &dyn Engine,
    cases: &[Case],
    commit: Option<String>,
    plan: &Plan,
) -> Result<Report> {
    let (sizes, failed) = reads::all(engine, cases, plan)?;
    let head = head(reads::SCHEMA, engine, commit, plan);
    let text = format!(
        "{}, {}\n\n{}{}",
        engine.device(),
        conditions(&head.method),
        reads::table(&sizes),
        failures::text(&failed),
    );
    let document = reads::Reads {
        head,
        sizes,
        failed,
    };
    Ok(Report {
        text,
        json: serde_json::to_value(&document)?,
        passed: document.failed.is_empty(),
    })
}

/// The beginning of every document other than [`Document`].
fn head(schema: &str, engine: &dyn Engine, commit: Option<String>, plan: &Plan) -> Head {
    let of = empty(engine, "", commit, plan);
    Head {
        schema: schema.into(),
        crate_version: of.crate_version,
        kernels: of.kernels,
        git_commit: of.git_commit,
        date_utc: of.date_utc,
        host: of.host,
        device: of.device,
        method: of.method,
    }
}

/// A document without measurements.
fn empty(engine: &dyn Engine, suite: &str, commit: Option<String>, plan: &Plan) -> Document {
    Document {
        schema: document::SCHEMA.into(),
        crate_version: env!("CARGO_PKG_VERSION").into(),
        kernels: engine::kernels().map(str::to_owned),
        git_commit: commit,
        date_utc: now(),
        host: host(),
        suite: suite.into(),
        device: engine.describe(),
        method: document::Method {
            rounds: plan.rounds,
            cold_bytes: plan.cold_bytes,
            ..document::Method::default()
        },
        ..Document::default()
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// A case as documents and protocol name it.
fn problem(case: &Case) -> Problem {
    Problem {
        m: case.shape.m(),
        n: case.shape.n(),
        k: case.shape.k(),
        l: case.shape.l(),
        activation: case.activation.name().into(),
        layout: case.layout.name().into(),
        output_type: case.output.name().into(),
        select: case.select.map(|ids| ids.name().into()),
    }
}

/// The case of a problem, if it is one of this program's.
fn case(problem: &Problem) -> Result<Case> {
    fn named<T: Copy>(all: &[T], of: fn(T) -> &'static str, what: &str, name: &str) -> Result<T> {
        let found = all.iter().copied().find(|&value| of(value) == name);
        found.with_context(|| format!("no {what} is called {name:?}"))
    }
    let (x, scales, y) = ("type of vectors", "layout of scales", "type of results");
    let select = problem.select.as_deref();
    let select = select.map(|name| named(&Ids::ALL, Ids::name, "kind of ids", name));
    Ok(Case {
        select: select.transpose()?,
        shape: shapes::of(problem.m, problem.n, problem.k, problem.l)?,
        activation: named(&Activation::ALL, Activation::name, x, &problem.activation)?,
        layout: named(
            &ScaleLayout::ALL,
            ScaleLayout::name,
            scales,
            &problem.layout,
        )?,
        output: named(&FloatType::ALL, FloatType::name, y, &problem.output_type)?,
    })
}

/// Every combination that the suite and the options ask for. Problems that a suite has besides are left out where
/// options replace parts of it.
fn cases(args: &Args, suite: &Suite) -> Result<Vec<Case>> {
    let mut cases = product(args, suite)?;
    let replaces = [args.shapes.is_empty(), args.n.is_empty()].contains(&false)
        || !args.activation.is_empty()
        || !args.layout.is_empty();
    if let Some(also) = suite.also.as_deref().filter(|_| !replaces) {
        cases.extend(product(args, also)?);
    }
    Ok(cases)
}

fn product(args: &Args, suite: &Suite) -> Result<Vec<Case>> {
    let n = &args.n;
    let with_n = |shapes: &[(usize, usize, usize)], n: &[usize]| {
        let all = shapes
            .iter()
            .flat_map(|&(m, k, l)| n.iter().map(move |&n| shapes::of(m, n, k, l)));
        all.collect::<nvfp4_gemv::Result<Vec<_>>>()
    };
    let shapes = match (&args.shapes[..], &n[..]) {
        ([], []) => with_n(&suite.shapes, suite.vectors)?,
        ([], n) => with_n(&suite.shapes, n)?,
        (shapes, []) => shapes.to_vec(),
        (shapes, n) => {
            let shapes: Vec<_> = shapes.iter().map(|s| (s.m(), s.k(), s.l())).collect();
            with_n(&shapes, n)?
        }
    };
    let activations = or(&args.activation, suite.activations);
    let layouts = or(&args.layout, suite.layouts);
    if let Some(empty) = shapes.iter().find(|shape| shape.is_empty()) {
        wrong_usage!("{empty:#} has nothing to measure: M or L is 0");
    }
    let output = args.output();
    let mut cases = Vec::new();
    for &shape in &shapes {
        for &activation in activations {
            for &layout in layouts {
                cases.push(Case {
                    select: args.select,
                    shape,
                    activation,
                    layout,
                    output,
                });
            }
        }
    }
    Ok(cases)
}

/// The machine's name, where it says it.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// How it was measured, for the head of a report.
fn conditions(method: &document::Method) -> String {
    let rounds = count(method.rounds, "round");
    match method.cold_bytes {
        0 => format!("{rounds}, the same weights every time"),
        cold => format!("{rounds}, weights to rotate over: {}", bytes(cold)),
    }
}

/// The report for people.
fn text(engine: &dyn Engine, document: &Document) -> String {
    let with_cublas = document.cases.iter().any(|case| case.cublas.is_some());
    let mut header = vec![
        "shape", "vectors", "scales", "path", "bytes", "time", "GB/s", "ceiling", "share",
        "5..95%", "MHz", "read by",
    ];
    if with_cublas {
        header.extend(["cuBLAS", "faster"]);
    }
    let mut table = Table::new(header);
    let mut skipped = Vec::new();
    for case in &document.cases {
        let shape = shapes::of(case.m, case.n, case.k, case.l)
            .map_or_else(|error| error.to_string(), |shape| shape.to_string());
        for path in &case.paths {
            let shares = shares(&case.ceiling.samples_us, &path.samples_us);
            let at = |q| 100.0 * statistics::quantile(&shares, q);
            let mut row = vec![
                shape.clone(),
                case.activation.clone(),
                case.layout.clone(),
                label(path),
                bytes(case.weight_bytes),
                time(path.median_us * 1e-6),
                format!("{:.1}", path.gb_per_s),
                format!("{:.1}", case.ceiling.gb_per_s),
                format!("{:.1}%", 100.0 * path.share_of_ceiling),
                format!("{:.1}..{:.1}", at(0.05), at(0.95)),
                figure(path.board.sm_mhz, 0),
                case.ceiling.kernel.clone().unwrap_or("-".into()),
            ];
            if let Some(cublas) = &case.cublas {
                row.push(time(cublas.times.median_us * 1e-6));
                let ratio = path.cublas_ratio;
                row.push(ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x")));
            }
            table.row(row);
        }
        for path in &case.skipped {
            skipped.push(format!(
                "skipped {shape} with {} vectors, {} scales: {}: {}\n",
                case.activation, case.layout, path.path, path.why
            ));
        }
    }
    let slowed: String = document
        .slowed_percent
        .iter()
        .map(|(path, percent)| format!("slowed down on purpose: {path} by {percent}%\n"))
        .collect();
    let cublas = document.cases.iter().find_map(|case| case.cublas.as_ref());
    let cublas = cublas.map_or(String::new(), |cublas| {
        format!(
            "cuBLAS {}: f16 weights and vectors; faster: its time / time\n",
            cublas.version
        )
    });
    let notes = document.notes.iter().map(|note| format!("note: {note}\n"));
    // A suite is bound to have cases that cannot run, so they are not listed.
    if document.suite != "custom" {
        skipped.clear();
    }
    // One command has one type of results, and one kind of ids.
    let operands = document.cases.first().map_or(String::new(), |case| {
        let select = case.select.as_ref();
        let select = select.map_or(String::new(), |ids| {
            format!(", matrices selected by {ids} ids")
        });
        format!(", {} results{select}", case.output_type)
    });
    format!(
        "{}, {}{operands}\n{}{slowed}\n{table}* what the library picks\n{cublas}{}{}{}{}",
        engine.device(),
        conditions(&document.method),
        document.long_read.as_ref().map_or(String::new(), long_read),
        sustained(document),
        notes.collect::<String>(),
        skipped.concat(),
        failures::text(&document.failed),
    )
}

/// A line of the table's head.
fn long_read(of: &LongRead) -> String {
    format!(
        "long read: {} in one launch at {:.1} GB/s ({})\n",
        bytes(of.bytes),
        of.times.gb_per_s,
        of.times.kernel.as_deref().unwrap_or("-"),
    )
}

/// The table of sustained times, beside the cold time of the same work.
fn sustained(document: &Document) -> String {
    let Some(seconds) = document.method.sustained_seconds else {
        return String::new();
    };
    let mut table = sustained_table("problem");
    for case in &document.cases {
        let problem = Problem::from(case);
        let mut row = |label: String, cold: f64, board: &BoardReadings| {
            if board.sustained.is_some() {
                table.row(sustained_row(
                    vec![format!("{problem} {label}")],
                    cold,
                    board,
                ));
            }
        };
        let ceiling = &case.ceiling;
        row("(read-only)".into(), ceiling.median_us, &ceiling.board);
        for path in &case.paths {
            row(label(path), path.median_us, &path.board);
        }
        if let Some(cublas) = &case.cublas {
            let times = &cublas.times;
            row("cuBLAS f16".into(), times.median_us, &times.board);
        }
    }
    format!("\nsustained for {seconds} s each, the last half of it:\n{table}")
}

/// A table of what was repeated for seconds.
fn sustained_table(what: &str) -> Table {
    let figures = "cold|sustained|GB/s|W|MHz|J/GB|arithmetic".split('|');
    Table::new([what].into_iter().chain(figures))
}

/// A row of it: names, and behind them the figures.
fn sustained_row(mut row: Vec<String>, cold_us: f64, board: &BoardReadings) -> Vec<String> {
    let Some(sustained) = &board.sustained else {
        return row;
    };
    row.extend([
        time(cold_us * 1e-6),
        time(sustained.mean_us * 1e-6),
        format!("{:.1}", sustained.gb_per_s),
        figure(sustained.watts, 0),
        figure(sustained.sm_mhz, 0),
        figure(sustained.joules_per_gb, 3),
        figure(sustained.arithmetic_joules_per_gb, 3),
    ]);
    row
}

/// Path, mode where it is not the usual, and a mark where it is picked.
fn label(path: &document::Measured) -> String {
    let chained = match path.mode.as_str() {
        "chained" => " chained",
        _ => "",
    };
    let mark = if path.picked { "*" } else { "" };
    format!("{}{chained}{mark}", path.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    /// A document of other problems must not be taken for the suite's.
    #[test]
    fn a_suite_of_which_a_part_is_replaced_is_not_the_suite() {
        let replaces = |line: &str| {
            let args: Args = parsed(&format!("--suite all {line}"));
            args.replaces_parts(args.ask.ask().unwrap())
        };
        assert!(!replaces("") && !replaces("--rounds 3 --cublas --path cpu"));
        for line in [
            "--select late",
            "--select early",
            "--n 1",
            "--layout linear",
            "--activation f16",
            "--output-type f32",
            "--cold 0",
            "--shape 64,64",
            "--kernel stream",
        ] {
            assert!(replaces(line), "{line}");
        }
    }

    #[test]
    fn a_problem_is_named_and_found_again() {
        for line in ["--select late", "--select early", "--output-type bf16", ""] {
            let args: Args = parsed(line);
            let cases = cases(&args, &Suite::new(args.suite, false)).unwrap();
            for of in cases {
                assert_eq!(case(&problem(&of)).unwrap(), of);
            }
        }
        let mut odd = problem(&cases(&parsed(""), &Suite::new(None, false)).unwrap()[0]);
        odd.select = Some("never".into());
        assert!(case(&odd).unwrap_err().to_string().contains("never"));
    }

    #[test]
    fn a_report_says_whether_weights_were_the_same() {
        let of = |cold_bytes| {
            conditions(&document::Method {
                rounds: 3,
                cold_bytes,
                ..document::Method::default()
            })
        };
        assert_eq!(of(0), "3 rounds, the same weights every time");
        assert_eq!(of(1 << 32), "3 rounds, weights to rotate over: 4.29 GB");
    }
}
