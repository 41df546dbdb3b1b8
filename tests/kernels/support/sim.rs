//! Launch plans, executed by ptx-sim.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use nvfp4_gemv::Gpu;
use nvfp4_gemv::kernel::params::{NVFP4_SWIZZLE_128, nvfp4_tensor_map};
use nvfp4_gemv::kernel::plan::{self, Plan};
use nvfp4_gemv::kernel::{Call, Config, Job};
use ptx_sim::coverage::Counters;
use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Buffer, Launch, Options, Policy, Program, Report, Sim, SimError, Trace};

use super::operands::{Case, Operands};
use super::ptx::{self, Entry};

/// The GPU that code for an architecture is planned for: the largest one of its kind.
pub(crate) fn gpu(arch: &'static str) -> Gpu {
    let number: i32 = arch[..arch.len() - usize::from(arch.ends_with('a'))]
        .parse()
        .expect("a number");
    Gpu::of_compute_capability((number / 10, number % 10), arch)
}

/// A problem in the simulator's memory.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) operands: Arc<Operands>,
    pub(crate) call: Call,
    sim: Sim,
    output: Buffer,
}

impl Loaded {
    pub(crate) fn new(operands: &Arc<Operands>, arch: &'static str) -> Self {
        let mut sim = empty(arch);
        let output = sim
            .alloc("output", operands.output_bytes())
            .expect("memory");
        let call = operands.call(output.address, |name, bytes| {
            sim.upload(name, bytes).expect("memory").address
        });
        Self {
            operands: operands.clone(),
            call,
            sim,
            output,
        }
    }

    /// The launches of a config, which must be one for this call.
    pub(crate) fn plan(&self, config: Config, gpu: &Gpu, chained: bool) -> Plan {
        config
            .plan(&self.call, gpu, chained)
            .unwrap_or_else(|why| panic!("{config:?}, {:?}: {why}", self.operands.case))
    }

    /// Runs one launch.
    pub(crate) fn launch(
        &mut self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, SimError> {
        self.sim.run_program(program, launch, options, None)
    }

    /// Runs one launch and records what it does.
    pub(crate) fn traced(
        &mut self,
        program: &Program,
        launch: &Launch,
        options: &Options,
    ) -> Result<Trace, SimError> {
        let limit = ptx_sim::trace::DEFAULT_LIMIT;
        let (result, trace) = self.sim.run_traced(program, launch, options, limit);
        result.map(|_| trace)
    }

    /// The result's bytes.
    pub(crate) fn output(&self) -> &[u8] {
        self.sim.download(self.output)
    }

    /// What is wrong with the result, where a term passes through so many f32 roundings.
    pub(crate) fn difference(&self, roundings: u32) -> Option<String> {
        if !self.sim.fully_written(self.output) {
            return Some("an output was not written".into());
        }
        self.operands.difference(self.output(), roundings)
    }
}

/// Memory without a kernel's code, which each run brings along.
pub(crate) fn empty(arch: &str) -> Sim {
    let head = format!(".version 9.0\n.target sm_{arch}\n.address_size 64\n");
    Sim::new(ptx_sim::Module::parse(&head).expect("a module without kernels"))
}

/// Runs the one launch of a plan that is no GEMV, which writes all of these buffers.
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

/// A planned launch as the simulator takes it, for each of its parts.
///
/// # Errors
/// A tensor map that the driver would refuse.
pub(crate) fn launches(planned: &plan::Launch) -> Result<Vec<Launch>, SimError> {
    planned.parts().map(|part| launch(&part)).collect()
}

fn launch(planned: &plan::Launch) -> Result<Launch, SimError> {
    let mut launch = Launch::new(planned.entry, planned.grid, [planned.threads, 1, 1]);
    launch.cluster = (planned.cluster > 0).then_some([planned.cluster, 1, 1]);
    launch.shared = planned.dynamic_shared;
    launch.dependent = planned.dependent;
    let mut maps = Vec::new();
    for map in planned.maps() {
        let map = TensorMap::encode(arguments(map));
        let map = map.map_err(|error| SimError::Launch(format!("tensor map: {error}")))?;
        maps.extend(map.to_bytes());
    }
    if !maps.is_empty() {
        launch = launch.bytes(&maps);
    }
    Ok(launch.bytes(planned.parameters.bytes()))
}

/// What `csrc/host.cu` gives to the driver.
pub(crate) fn arguments(map: &nvfp4_tensor_map) -> TensorMapArgs {
    let rank = map.rank as usize;
    TensorMapArgs {
        data_type: DataType::Uint8,
        global_address: map.address,
        global_dim: map.size[..rank].to_vec(),
        global_strides: map.stride[1..rank].to_vec(),
        box_dim: map.box_size[..rank].to_vec(),
        element_strides: vec![1; rank],
        interleave: Interleave::None,
        swizzle: if map.swizzle == NVFP4_SWIZZLE_128 {
            Swizzle::B128
        } else {
            Swizzle::None
        },
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zero,
    }
}

/// Code for one architecture, and what of it all runs together have executed.
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

    /// A problem that fits no trial's cache of its own: made, loaded, run.
    pub(crate) fn check(
        &self,
        case: &Case,
        config: impl Into<Config>,
        chained: bool,
        options: &Options,
    ) -> Vec<u8> {
        self.run(&Arc::new(Operands::new(case)), config, chained, options)
    }

    /// Runs a call, which must give what it should, and returns the result.
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
        loaded.output().to_vec()
    }

    /// The job that a case is on this GPU: for defaults and checks.
    pub(crate) fn job<R>(&self, case: &Case, chained: bool, with: impl FnOnce(&Job<'_>) -> R) -> R {
        let operands = nvfp4_gemv::Operands {
            weight_layout: case.weight_layout,
            ..nvfp4_gemv::Operands::new(case.activation, case.vector_layout)
        };
        with(&Job::new(&case.shape, &operands, &self.gpu).chained(chained))
    }

    /// Whether a config can compute a case.
    pub(crate) fn takes(&self, case: &Case, config: impl Into<Config>) -> bool {
        self.job(case, false, |job| config.into().check(job).is_ok())
    }

    /// Demands that everything was executed, but lines of the source that `but` knows.
    pub(crate) fn demand_coverage(&self, but: impl Fn(&str) -> bool) {
        let mut left = Vec::new();
        for (name, (entry, counters)) in &*self.executed.lock().expect("no trial has panicked") {
            let summary = counters.summary(&entry.program);
            for (what, sites) in [
                ("never executed", &summary.never_executed),
                ("never taken", &summary.never_taken),
                ("always taken", &summary.always_taken),
            ] {
                left.extend(sites.iter().map(|site| format!("{name}: {what}: {site}")));
            }
        }
        left.retain(|line| !but(line));
        assert!(left.is_empty(), "{}", left.join("\n"));
    }
}

/// The line of a kernel's source, `text`, that a line of what was not executed speaks of.
pub(crate) fn source_line<'a>(line: &str, file: &str, text: &'a str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{file}:"))?;
    let number: usize = rest.split(')').next()?.parse().ok()?;
    text.lines().nth(number.checked_sub(1)?)
}
