//! `cargo xtask first-light`: the first night on a GPU that nothing here has run on. Every step is a process with a
//! watchdog, and everything that it leaves becomes one archive; docs/first-light.md.

mod apply;
mod archive;
mod device;
mod proof;
mod report;
mod steps;
mod verdicts;
mod watchdog;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use self::archive::{Manifest, Ran};
use self::device::Device;
use self::steps::{Action, Places, Step};
use self::watchdog::End;
use crate::toolchain;
use crate::workspace::Workspace;

/// The file of `tune`, in the night's folder and in the archive.
const TUNED: &str = "tuned.jsonl";

/// The outputs of steps, which go into the archive: of `bench`, `info`, `verify --soak`, `verify`, `bench --ceiling` and
/// the recorder's `--clusters`.
const BENCH: &str = "bench.json";
const INFO: &str = "info.json";
const SOAK: &str = "soak.json";
const VERIFIED: &str = "verify.json";
const CEILINGS: &str = "ceilings.json";
const CLUSTERS: &str = "clusters.json";

/// The page that says what was confirmed, what was refuted, and what follows.
const VERDICT: &str = "verdict.md";

#[derive(Debug, Args)]
pub(crate) struct FirstLightArgs {
    /// Show the steps, and what each is for
    #[arg(long)]
    list: bool,
    /// Show the commands instead of running them
    #[arg(long)]
    dry_run: bool,
    /// Only these steps, and what they need; a part of a name is enough
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// All but these steps; a part of a name is enough
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    skip: Vec<String>,
    /// Minutes for everything: what has not begun by then is skipped
    #[arg(long, value_name = "MINUTES", default_value_t = 720, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    time_limit: u64,
    /// Where logs, recordings and the archive go [default: target/first-light]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The GPU: its number in nvidia-smi
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// With --list or --dry-run: as on a GPU of this compute capability, such as 10.0, which need not be there
    #[arg(long, value_name = "CAPABILITY", value_parser = capability)]
    compute_capability: Option<(i32, i32)>,
    /// Put an archive's recordings where tests read them, and its tuned configs where dispatch does
    #[arg(long, value_name = "ARCHIVE", conflicts_with_all = ["list", "dry_run", "only", "skip", "out", "gpu", "time_limit"])]
    apply: Option<PathBuf>,
}

fn capability(text: &str) -> Result<(i32, i32), String> {
    device::capability_of(text).ok_or_else(|| "expected two numbers, such as 10.0".into())
}

pub(crate) fn command(workspace: &Workspace, args: &FirstLightArgs) -> Result<()> {
    if let Some(file) = &args.apply {
        return apply::command(workspace.root(), file);
    }
    let looking = args.list || args.dry_run;
    ensure!(
        looking || args.compute_capability.is_none(),
        "--compute-capability is for --list and --dry-run"
    );
    let device = match args.compute_capability {
        Some(capability) => Device::imagined(capability),
        None => Device::here(args.gpu)?,
    };
    let began = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .as_secs();
    let nights = std::path::absolute(
        args.out
            .clone()
            .unwrap_or_else(|| workspace.folder("first-light")),
    )?;
    // Each night has a folder of its own: nothing of another one gets into its archive.
    let out = nights.join(format!("first-light-{}-{began}", device.slug()));
    let places = Places {
        root: workspace.root(),
        target: &steps::target(&workspace.release_dir()),
        out: &out,
        xtask: &std::env::current_exe()?,
        gpu: args.gpu,
        sanitizer: looking || on_path("compute-sanitizer"),
        environment: match looking {
            true => Vec::new(),
            false => toolchain_environment(workspace)?,
        },
    };
    let mut steps = steps::all(&places, &device);
    choose(&mut steps, &args.only, &args.skip)?;
    if looking {
        print!("{}", listed(&steps, args.dry_run));
        return Ok(());
    }
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let over = Instant::now() + Duration::from_secs(60 * args.time_limit);
    let mut alive = || answers(args.gpu, &out);
    let interrupted = interruptible()?;
    let ran = run(&mut steps, &out, (over, &interrupted), &mut alive)?;
    let manifest = Manifest {
        format: archive::FORMAT.into(),
        version: version(workspace.root())?,
        commit: crate::bench::program::commit(workspace.root()),
        began,
        device,
        steps: ran,
    };
    finish(&out, &manifest)
}

/// Becomes true with the first signal that would end the program; the second one ends it.
fn interruptible() -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .context("cannot handle signals")?;
    }
    Ok(interrupted)
}

/// A compiler is installed here where there is none: before the watchdogs, with its progress to be seen.
fn toolchain_environment(workspace: &Workspace) -> Result<Vec<(String, std::ffi::OsString)>> {
    let toolchain = toolchain::ensure(workspace)?;
    let environment = toolchain.environment().into_iter();
    Ok(environment
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

/// Whether the shell would find a program.
fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The library's version.
fn version(root: &Path) -> Result<String> {
    let file = root.join("Cargo.toml");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let manifest: toml::Table = toml::from_str(&text)?;
    let version = manifest.get("workspace").and_then(|of| of.get("package"));
    let version = version.and_then(|of| of.get("version"));
    let version = version.and_then(toml::Value::as_str);
    Ok(version
        .context("Cargo.toml has no workspace.package.version")?
        .to_owned())
}

/// Takes away the steps that were not asked for. Steps that the remaining ones need stay.
fn choose(steps: &mut Vec<Step>, only: &[String], skip: &[String]) -> Result<()> {
    for word in only.iter().chain(skip) {
        if !steps.iter().any(|step| step.name.contains(word)) {
            bail!("no step is named like {word:?}; --list shows them");
        }
    }
    let named = |step: &Step, words: &[String]| words.iter().any(|word| step.name.contains(word));
    let mut wanted: Vec<bool> = steps
        .iter()
        .map(|step| (only.is_empty() || named(step, only)) && !named(step, skip))
        .collect();
    // Needs stand before what needs them.
    for i in (0..steps.len()).rev() {
        if wanted[i] && !only.is_empty() {
            for need in &steps[i].needs {
                if let Some(at) = steps.iter().position(|step| step.name == *need) {
                    wanted[at] |= !named(&steps[at], skip);
                }
            }
        }
    }
    let mut wanted = wanted.into_iter();
    steps.retain(|_| wanted.next().unwrap_or(false));
    if steps.is_empty() {
        bail!("no step is left; --list shows them");
    }
    Ok(())
}

fn listed(steps: &[Step], commands: bool) -> String {
    let mut text = String::new();
    for step in steps {
        text += &match (&step.action, commands) {
            (Action::Never(why), _) => format!("{:20}  skipped: {why}\n", step.name),
            (_, true) => format!("{:20}  {}\n", step.name, step.line()),
            (_, false) => format!(
                "{:20}  {} (at most {} min)\n",
                step.name,
                step.what,
                step.seconds / 60
            ),
        };
    }
    text
}

const INTERRUPTED: &str = "interrupted";

/// Whether the GPU still answers. Asked twice: after a fault it may take a while.
fn answers(gpu: u32, out: &Path) -> bool {
    (0..2).any(|_| {
        let over = Instant::now() + Duration::from_secs(60);
        let log = out.join("alive.log");
        let end = watchdog::run(&mut device::query(gpu), &log, None, || {
            Instant::now() >= over
        });
        matches!(end, Ok(End::Passed))
    })
}

/// Runs the steps in their order, until the time is over or they are interrupted. A step that fails does not stop
/// others, except for those that need it. A GPU that no longer answers fails the step, stops those that use it, and a
/// process that cannot be killed stops everything.
fn run(
    steps: &mut [Step],
    out: &Path,
    (over, interrupted): (Instant, &AtomicBool),
    alive: &mut dyn FnMut() -> bool,
) -> Result<Vec<Ran>> {
    let logs = out.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    for folder in ["recorded", "replays", "published"] {
        fs::create_dir_all(out.join(folder))?;
    }
    let mut ran: Vec<Ran> = Vec::new();
    let (mut lost, mut stuck) = (None::<String>, None::<String>);
    let count = steps.len();
    for (i, step) in steps.iter_mut().enumerate() {
        let line = step.line();
        let begin = Instant::now();
        let left = over.saturating_duration_since(begin);
        let missing = step.needs.iter().find(|need| {
            let mut before = ran.iter();
            before.any(|ran| ran.name == **need && ran.end != End::Passed)
        });
        let gone = lost.as_ref().filter(|_| step.on_gpu);
        let why = match (&step.action, &stuck, gone, missing) {
            (Action::Never(why), ..) => Some(why.clone()),
            (_, Some(by), ..) => Some(format!("{by} left a process that cannot be killed")),
            (_, _, Some(since), _) => Some(format!("the GPU has not answered since {since}")),
            (.., Some(need)) => Some(format!("needs {need}")),
            _ if interrupted.load(Relaxed) => Some(INTERRUPTED.into()),
            _ if left.is_zero() => Some("no time is left".into()),
            _ => None,
        };
        eprintln!(
            "[{}/{count}] {}: {}",
            i + 1,
            step.name,
            why.as_deref().unwrap_or(step.what)
        );
        let mut end = match (&mut step.action, why) {
            (_, Some(why)) => End::Skipped(why),
            (Action::Never(why), None) => End::Skipped(why.clone()),
            (Action::Run { command, output }, None) => {
                let until = begin + left.min(Duration::from_secs(step.seconds));
                let log = logs.join(format!("{}.log", step.name));
                let output = output.as_ref().map(|file| out.join(file));
                let end = watchdog::run(command, &log, output.as_deref(), || {
                    Instant::now() >= until || interrupted.load(Relaxed)
                })?;
                match (end, step.proof.check(out, &log)) {
                    (End::Passed, Err(missing)) => End::Failed(missing),
                    (End::OutOfTime, _) if interrupted.load(Relaxed) => {
                        End::Failed(INTERRUPTED.into())
                    }
                    (end, _) => end,
                }
            }
        };
        let seconds = begin.elapsed().as_secs();
        if !matches!(end, End::Skipped(_)) {
            eprintln!("        {} after {seconds} s {}", end.word(), end.why());
            if step.on_gpu && end != End::Unkillable && !alive() {
                const GONE: &str = "the GPU does not answer any more";
                eprintln!("        {GONE}");
                lost.get_or_insert_with(|| step.name.clone());
                if end == End::Passed {
                    end = End::Failed(GONE.into());
                }
            }
        }
        if end == End::Unkillable {
            stuck = Some(step.name.clone());
        }
        ran.push(Ran {
            name: step.name.clone(),
            what: step.what.into(),
            command: line,
            end,
            seconds,
        });
    }
    Ok(ran)
}

/// Most bytes of a log that go into the archive: its end.
const LOG: usize = 1 << 20;

/// Makes the summary and the archive.
fn finish(out: &Path, manifest: &Manifest) -> Result<()> {
    let Collected {
        mut files,
        replays,
        published,
        results,
    } = collect(out, manifest)?;
    let night = verdicts::Night {
        manifest,
        replays: &replays,
        published: &published,
        results: &results,
    };
    let page = verdicts::page(&night);
    fs::write(out.join(VERDICT), &page).context("cannot write verdict.md")?;
    files.insert(VERDICT.into(), page.into_bytes());
    let summary = report::markdown(manifest, &replays, &published);
    fs::write(out.join("summary.md"), &summary).context("cannot write summary.md")?;
    files.insert("summary.md".into(), summary.into_bytes());
    let file = out.with_extension("zip");
    archive::write(&file, manifest, &files)?;
    let (verdict, passed) = report::verdict(manifest);
    println!(
        "{verdict}\nwhat follows: {}\nsummary: {}\nattach this to an issue: {}",
        out.join(VERDICT).display(),
        out.join("summary.md").display(),
        file.display()
    );
    match passed {
        true => Ok(()),
        false => bail!("not every step passed; the archive is whole all the same, and says which"),
    }
}

/// The results of the steps.
struct Collected {
    /// By their names in the archive.
    files: BTreeMap<String, Vec<u8>>,
    /// The simulator's verdict on each topic.
    replays: BTreeMap<String, Value>,
    /// Verdicts on the published rule of sums, by step.
    published: BTreeMap<String, Value>,
    /// Other outputs of steps, by their names in the archive.
    results: BTreeMap<String, Value>,
}

/// Collects what the steps left.
fn collect(out: &Path, manifest: &Manifest) -> Result<Collected> {
    let mut files = BTreeMap::new();
    let mut replays = BTreeMap::new();
    let mut published = BTreeMap::new();
    let read =
        |file: &Path| fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    for folder in ["logs", "recorded", "replays", "published"] {
        for entry in fs::read_dir(out.join(folder))? {
            let file = entry?.path();
            let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let mut bytes = read(&file)?;
            if folder == "logs" {
                bytes.drain(..bytes.len().saturating_sub(LOG));
            }
            let verdicts = match folder {
                "replays" => Some(&mut replays),
                "published" => Some(&mut published),
                _ => None,
            };
            if let (Some(verdicts), Ok(value)) = (verdicts, serde_json::from_slice(&bytes)) {
                verdicts.insert(name.trim_end_matches(".json").to_owned(), value);
            }
            files.insert(format!("{folder}/{name}"), bytes);
        }
    }
    let mut results = BTreeMap::new();
    for (name, step) in [
        (TUNED, "tune"),
        (BENCH, "bench"),
        (INFO, "info"),
        (SOAK, "soak"),
        (VERIFIED, "verify"),
        (CEILINGS, "ceilings"),
        (CLUSTERS, "clusters"),
    ] {
        // Files of a step that was killed are no results, except for tuned configs, which are saved one by one. What
        // was wrong is.
        let says_what_failed = [TUNED, SOAK, VERIFIED].contains(&name);
        let file = out.join(name);
        if file.is_file() && (says_what_failed || manifest.passed(step)) {
            let bytes = read(&file)?;
            if let Ok(value) = serde_json::from_slice(&bytes) {
                results.insert(name.to_owned(), value);
            }
            files.insert(name.into(), bytes);
        }
    }
    Ok(Collected {
        files,
        replays,
        published,
        results,
    })
}

#[cfg(test)]
mod tests;
