//! Launch plans, executed by ptx-sim.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use nvfp4_gemv::Gpu;
use nvfp4_gemv::kernel::plan::{self, Plan};
use nvfp4_gemv::kernel::{Config, Job};
pub(crate) use nvfp4_gemv_simulate::launch::{empty, gpu, launches};
use ptx_sim::coverage::Counters;
use ptx_sim::trace::Kind;
use ptx_sim::{Buffer, Launch, Options, Policy, Sim, Trace};

use super::operands::{Case, Operands};
use super::ptx::{self, Entry};
use super::schedules::{few, schedules};

/// A case in the simulator's memory.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) operands: Arc<Operands>,
    pub(crate) memory: nvfp4_gemv_simulate::launch::Loaded,
}

impl Loaded {
    pub(crate) fn new(operands: &Arc<Operands>, arch: &'static str) -> Self {
        Self {
            operands: operands.clone(),
            memory: nvfp4_gemv_simulate::launch::Loaded::new(&operands.bytes, arch),
        }
    }

    /// The launches of a config, with the workspace that the config uses. The config must be legal for this call.
    pub(crate) fn plan(&mut self, config: Config, gpu: &Gpu, chained: bool) -> Plan {
        let call = &self.memory.call;
        let operands = call.operands().with_workspace(u64::MAX);
        let needed = config.workspace_bytes(&Job::new(call.shape(), &operands, gpu));
        self.memory.give_workspace(needed);
        config
            .plan(&self.memory.call, gpu, chained)
            .unwrap_or_else(|why| panic!("{config:?}, {:?}: {why}", self.operands.case))
    }

    /// A case in memory, and the first launch of a config for it.
    pub(crate) fn with_launch(
        case: &Case,
        arch: &'static str,
        config: impl Into<Config>,
        chained: bool,
    ) -> (Self, Launch) {
        let mut loaded = Self::new(&Arc::new(Operands::new(case)), arch);
        let plan = loaded.plan(config.into(), &gpu(arch), chained);
        let launch = launches(&plan.launches()[0]).expect("a launch").remove(0);
        (loaded, launch)
    }

    /// The trace of an exact launch.
    pub(crate) fn traced(
        &mut self,
        arch: &'static str,
        launch: &Launch,
        options: &Options,
    ) -> Trace {
        let program = &ptx::entry(&launch.kernel, arch).program;
        let trace = self.memory.traced(program, launch, options);
        assert_eq!(self.difference(0), None);
        trace.expect("it runs")
    }

    /// The first error of the result. A term of a sum passes through so many f32 roundings.
    pub(crate) fn difference(&self, roundings: u32) -> Option<String> {
        if !self.memory.fully_written() {
            return Some("an output was not written".into());
        }
        if !self.memory.counters_are_zeros() {
            return Some("a counter of the workspace is not zero".into());
        }
        self.operands.difference(self.memory.output(), roundings)
    }
}

/// Runs the one launch of a plan that is no GEMV. The launch must write all of the buffers `written`.
pub(crate) fn run_helper(
    sim: &mut Sim,
    arch: &'static str,
    planned: &plan::Launch,
    policy: Policy,
    written: &[Buffer],
    context: &str,
) {
    let launch = &launches(planned).expect("a valid launch")[0];
    let program = &ptx::entry(planned.entry, arch).program;
    let options = Options {
        policy,
        ..Options::default()
    };
    let report = sim
        .run_program(program, launch, &options, None)
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    for &buffer in written {
        assert!(sim.fully_written(buffer), "{context}");
    }
}

/// Code for one architecture, with counts of the instructions that all runs together have executed.
#[derive(Debug)]
pub(crate) struct Simulator {
    pub(crate) arch: &'static str,
    pub(crate) gpu: Gpu,
    executed: Mutex<BTreeMap<&'static str, (Arc<Entry>, Counters)>>,
}

impl Simulator {
    pub(crate) fn new(arch: &'static str) -> Self {
        Self {
            arch,
            gpu: gpu(arch),
            executed: Mutex::default(),
        }
    }

    /// A simulator of a GPU that has only so many multiprocessors.
    pub(crate) fn with_multiprocessors(arch: &'static str, multiprocessors: u32) -> Self {
        let all = Self::new(arch);
        let gpu = Gpu {
            multiprocessors,
            ..all.gpu
        };
        Self { gpu, ..all }
    }

    /// Makes the operands of a case, loads them and runs the call: for trials that use the operands only once.
    pub(crate) fn check(
        &self,
        case: &Case,
        config: impl Into<Config>,
        chained: bool,
        options: &Options,
    ) -> Vec<u8> {
        self.run(&Arc::new(Operands::new(case)), config, chained, options)
    }

    /// Runs a call, demands the right result, and returns it.
    pub(crate) fn run(
        &self,
        operands: &Arc<Operands>,
        config: impl Into<Config>,
        chained: bool,
        options: &Options,
    ) -> Vec<u8> {
        let config = config.into();
        let mut loaded = Loaded::new(operands, self.arch);
        let context = |what: &dyn Debug| {
            let case = &operands.case;
            format!("{what:?}, {config:?}, chained: {chained}, {case:?}, {options:?}")
        };
        let plan = loaded.plan(config, &self.gpu, chained);
        for planned in plan.launches() {
            let entry = ptx::entry(planned.entry, self.arch);
            for launch in launches(planned).expect("a valid launch") {
                let report = loaded
                    .memory
                    .launch(&entry.program, &launch, options)
                    .unwrap_or_else(|error| panic!("{error}: {}", context(&planned.entry)));
                let mut executed = self.executed.lock().expect("no trial has panicked");
                let (_, counters) = executed
                    .entry(planned.entry)
                    .or_insert_with(|| (entry.clone(), Counters::default()));
                counters.merge(&report.coverage.counters);
            }
        }
        let case = &operands.case;
        if let Some(wrong) = loaded.difference(config.roundings(&case.shape, case.activation)) {
            panic!("{wrong}: {}", context(&"wrong result"));
        }
        loaded.memory.output().to_vec()
    }

    /// Calls `with` with the job that a case is on this GPU: for defaults and checks.
    pub(crate) fn job<R>(&self, case: &Case, chained: bool, with: impl FnOnce(&Job<'_>) -> R) -> R {
        with(&Job::new(&case.shape, &case.asked(), &self.gpu).chained(chained))
    }

    /// Whether a config can compute a case.
    pub(crate) fn takes(&self, case: &Case, config: impl Into<Config>) -> bool {
        self.job(case, false, |job| config.into().check(job).is_ok())
    }

    /// Demands that everything was executed, except source lines that `but` accepts. A kernel contains the epilogue
    /// many times, and all kernels have the same epilogue. Each line of the epilogue must have been executed, and each
    /// branch taken both ways, in at least one kernel. Many entry points exist with operands of the epilogue and
    /// without them: a line that both contain must have been executed in at least one of the two.
    pub(crate) fn demand_coverage(&self, but: impl Fn(&str) -> bool) {
        let executed = self.executed.lock().expect("no trial has panicked");
        let mut left = Vec::new();
        let mut lacking: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        // Kind of gap, source line and entry point: for pairs of entry points.
        let mut lines: BTreeSet<(&str, String, &str)> = BTreeSet::new();
        let mut sources: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (name, (entry, counters)) in &*executed {
            let summary = counters.summary(&entry.program);
            let all = (0..entry.program.code.len()).map(|pc| entry.program.site(pc).to_string());
            let of = all.filter_map(|site| source_of(&site).map(str::to_string));
            sources.insert(name, of.collect());
            for (what, sites) in [
                ("never executed", &summary.never_executed),
                ("never taken", &summary.never_taken),
                ("always taken", &summary.always_taken),
            ] {
                for site in sites {
                    let line = format!("{name}: {what}: {site}");
                    if let Some(at) = in_epilogue(&line) {
                        lacking.entry(at.to_string()).or_default().insert(name);
                    }
                    if let Some(at) = source_of(&line) {
                        lines.insert((what, at.to_string(), name));
                    }
                    left.push((*name, what, line));
                }
            }
        }
        left.retain(|(name, what, line)| {
            let of = in_epilogue(line).map(|at| lacking[at].len());
            of.is_none_or(|of| of == executed.len()) && !but(line) && {
                let twin = match name.strip_suffix("_operands") {
                    Some(plain) => plain.to_string(),
                    None => format!("{name}_operands"),
                };
                let done = |at: &str| {
                    sources.get(&*twin).is_some_and(|of| of.contains(at))
                        && !lines.contains(&(*what, at.to_string(), &*twin))
                };
                !source_of(line).is_some_and(done)
            }
        });
        let left: Vec<_> = left.into_iter().map(|(.., line)| line).collect();
        assert!(left.is_empty(), "{}", left.join("\n"));
    }
}

/// The schedules of a turn: all of them, or one of a few.
pub(crate) fn dealt(turn: usize, all: bool) -> Vec<Options> {
    match all {
        true => schedules(turn as u64),
        false => few(turn as u64)[turn / 3 % 3..][..1].to_vec(),
    }
}

/// Number of copies that a launch asks for while the grid before it runs.
pub(crate) fn copies_before_the_wait(trace: &Trace) -> usize {
    let of = |kind| trace.slices.iter().filter(move |slice| slice.kind == kind);
    let waits = of(Kind::Wait).filter(|slice| slice.name == "griddepcontrol.wait");
    let ended = waits.map(|slice| slice.end).min();
    let ended = ended.expect("it waits for the grid before");
    of(Kind::Copy).filter(|slice| slice.start < ended).count()
}

/// Demands that a picture for docs/ has these texts. The picture is drawn there again with `PIPELINE_WRITE=1 cargo test
/// --test kernels picture`. Another nvcc may order instructions otherwise, so the committed file is not compared.
pub(crate) fn demand_picture(svg: &str, texts: &[&str], file: &str) {
    for text in texts {
        assert!(svg.contains(text), "{text}");
    }
    if std::env::var_os("PIPELINE_WRITE").is_some() {
        let path = format!("{}/docs/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, svg).expect("the picture can be written");
    }
}

/// Whether a line of the coverage report is about factors of vectors.
pub(crate) fn is_of_factors(line: &str) -> bool {
    let epilogue = include_str!("../../../csrc/kernels/epilogue.cuh");
    source_line(line, "epilogue.cuh", epilogue).is_some_and(|at| at.contains("e.vector_alpha"))
}

/// The source file and line that a line of the coverage report names.
fn source_of(line: &str) -> Option<&str> {
    let (_, at) = line.rsplit_once('(')?;
    // Behind a comma stands where its function was inlined.
    at.split([',', ')']).next()
}

/// The source file and line that a line of the coverage report names, if they belong to the epilogue or to its
/// conversions.
fn in_epilogue(line: &str) -> Option<&str> {
    let at = source_of(line)?;
    ["epilogue.cuh:", "cuda_fp16.hpp:", "arch/bf16.cuh:"]
        .iter()
        .any(|of| at.contains(of))
        .then_some(at)
}

/// The line of a kernel's source that a line of the coverage report names. `text` is the content of the source `file`.
pub(crate) fn source_line<'a>(line: &str, file: &str, text: &'a str) -> Option<&'a str> {
    let (_, rest) = source_of(line)?.split_once(&format!("{file}:"))?;
    let number: usize = rest.parse().ok()?;
    text.lines().nth(number.checked_sub(1)?)
}
