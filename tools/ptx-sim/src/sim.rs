//! The library's face: buffers, launches, runs.

mod host;
mod overlap;

pub use host::{Buffers, Symbol};
pub use overlap::Multiprocessors;

use std::collections::BTreeMap;

use crate::ast::Module;
use crate::error::SimError;

use crate::exec::machine::Machine;
use crate::memory::layout::{GLOBAL, GLOBAL_VARS, MAX_SHARED};

use crate::memory::{Observer, Region, Space};
use crate::models::approx::Approximations;
use crate::models::hazard::Profile;
use crate::models::relaxation::{Allowed, Relaxation};
use crate::models::sums::SumRule;
use crate::models::tensor_map::TensorMap;
use crate::models::tmem::Tmem;
use crate::program::{Op, Program, Variable};
use crate::report::Report;
use crate::sched::{Policy, Timing};
use crate::trace::{Recorder, Trace};

/// Buffers start at multiples of this, as `cudaMalloc` aligns them.
const BUFFER_ALIGN: u64 = 256;
/// Bytes between buffers that belong to nobody, so that an access past an end misses.
const GUARD: u64 = 4096;
/// Bytes that a launch may ask for where nothing else is said: [`Sim::with_memory`].
pub const DEFAULT_MEMORY: u64 = 1 << 30;

/// Refuses a limit for [`Sim::with_memory`] that is more than this machine's memory, where the system says how much
/// that is. For options: memory beyond that could only fail later.
///
/// # Errors [`SimError::Launch`], with both.
pub fn check_memory(limit: u64) -> Result<(), SimError> {
    match memory_of_machine() {
        Some(there) if limit > there => Err(SimError::Launch(format!(
            "a limit of {} MiB of memory, where this machine has {}",
            limit >> 20,
            there >> 20
        ))),
        _ => Ok(()),
    }
}

fn memory_of_machine() -> Option<u64> {
    let known = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = known
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// A buffer in global memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Address of the buffer, as kernels see it.
    pub address: u64,
    /// Size of the buffer in bytes.
    pub size: usize,
}

/// Treatment of a read of bytes that nothing wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Uninitialised {
    /// Ends the run.
    #[default]
    Error,
    /// Is reported at the end.
    Warn,
    /// Reads zeros.
    Ignore,
    /// A read of shared memory gives bytes from this seed, such as an earlier CTA may have left; a read of other memory
    /// ends the run. For kernels that read such bytes and let none reach a result.
    Stale(u64),
}

named! {
    /// Treatment of accesses that nothing orders.
    #[derive(Default)]
    HazardChecks {
        /// End the run.
        #[default]
        Error "error",
        /// Are reported at the end.
        Warn "warn",
        /// Are not looked for.
        Off "off",
    }
}

impl Options {
    /// Relaxations that a run may rely on: those of the profile, and those of `allow`.
    pub fn allowed(&self) -> Allowed {
        Allowed::from(self.profile).and(self.allow)
    }

    /// Whether a run may rely on this.
    pub fn allows(&self, r: Relaxation) -> bool {
        self.allowed().has(r)
    }
}

/// Options of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How warps take turns.
    pub policy: Policy,
    /// When asynchronous operations complete.
    pub timing: Timing,
    /// Thread-instructions after which the run is given up.
    pub budget: u64,
    /// Treatment of uninitialised reads.
    pub uninitialised: Uninitialised,
    /// Times that waits on mbarriers run into their time limits, and loops load again the value that they wait for,
    /// without anything else happening, before that is called a deadlock.
    pub timeouts: u32,
    /// Clusters that run at once; the others follow as these end.
    pub resident: usize,
    /// How much ordering asynchronous operations may rely on.
    pub profile: Profile,
    /// Relaxations that are allowed beyond the profile.
    pub allow: Allowed,
    /// Treatment of accesses to shared and tensor memory that nothing orders, and of accesses of a dependent launch to
    /// bytes that a grid before it writes. Conflicts with copies in flight end the run in any case.
    pub hazards: HazardChecks,
    /// `%nsmid`.
    pub sms: u32,
    /// The results of approximations.
    pub approximations: Approximations,
    /// Who says how matrix instructions round their sums.
    pub sums: SumRule,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Fair,
            timing: Timing::Eager,
            budget: 20_000_000_000,
            uninitialised: Uninitialised::Error,
            timeouts: 1000,
            resident: 2,
            profile: Profile::Strict,
            allow: Allowed::NONE,
            hazards: HazardChecks::Error,
            sms: 132,
            approximations: Approximations::Nearest,
            sums: SumRule::Own,
        }
    }
}

/// A kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launch {
    /// Kernel name, as in the PTX.
    pub kernel: String,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster. Without them, the number that the kernel declares, or 1.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Programmatic dependent launch: the grid before this one in its stream may still run when this one starts. The
    /// grid before ends at the latest when all that can run waits for it in `griddepcontrol.wait`.
    ///
    /// A CTA that touches bytes which earlier launches of this [`Sim`] wrote, before it has waited, is an error.
    /// Earlier launches are those from the last one on that is not dependent. In a launch that is not dependent,
    /// `griddepcontrol.wait` has nothing to wait for. [`Sim::run_overlapped`] runs several launches at the same time.
    pub dependent: bool,
    /// Bytes of each parameter.
    pub params: Vec<Vec<u8>>,
}

impl Launch {
    /// A launch without parameters.
    pub fn new(kernel: &str, grid: impl Into<[u32; 3]>, block: impl Into<[u32; 3]>) -> Self {
        Self {
            kernel: kernel.into(),
            grid: grid.into(),
            block: block.into(),
            ..Self::default()
        }
    }

    /// Adds a parameter of these bytes.
    #[must_use]
    pub fn bytes(mut self, v: &[u8]) -> Self {
        self.params.push(v.to_vec());
        self
    }

    /// Adds the address of a buffer.
    #[must_use]
    pub fn buffer(self, b: Buffer) -> Self {
        self.bytes(&b.address.to_le_bytes())
    }

    /// Adds a tensor map: [`TensorMap::to_bytes`].
    #[must_use]
    pub fn tensor_map(self, map: TensorMap) -> Self {
        self.bytes(&map.to_bytes())
    }

    /// Adds a 32-bit integer.
    #[must_use]
    pub fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    /// Adds an f32.
    #[must_use]
    pub fn f32(self, v: f32) -> Self {
        self.bytes(&v.to_le_bytes())
    }
}

/// A module with its memory. Cloning it keeps a state to run again from.
#[derive(Debug, Clone)]
pub struct Sim {
    module: Module,
    global: Region,
    next: u64,
    variables_placed: bool,
    /// Bytes that the host wrote into constant variables, by name.
    constants: BTreeMap<String, Vec<u8>>,
    memory: Memory,
}

/// Memory that a launch may ask for, and memory that it has.
#[derive(Debug, Clone, Copy)]
struct Memory {
    limit: u64,
    used: u64,
}

impl Memory {
    /// Takes `bytes` for `what`, or says that there are not so many. Nothing is allocated here.
    fn take(&mut self, what: impl FnOnce() -> String, bytes: u64) -> Result<(), SimError> {
        self.used = self.would_use(what, bytes)?;
        Ok(())
    }

    fn would_use(&self, what: impl FnOnce() -> String, bytes: u64) -> Result<u64, SimError> {
        match self.used.checked_add(bytes) {
            Some(all) if all <= self.limit => Ok(all),
            _ => Err(SimError::Memory {
                what: what(),
                bytes,
                used: self.used,
                limit: self.limit,
            }),
        }
    }
}

impl Sim {
    /// A module, and no buffers.
    pub fn new(module: Module) -> Self {
        Self::with_memory(module, DEFAULT_MEMORY)
    }

    /// A module that may ask for `limit` bytes in all: buffers, variables, and the registers, local, shared and tensor
    /// memory of the CTAs that run at once. A request for more is refused with [`SimError::Memory`] before anything is
    /// allocated. The simulator's own tables come on top: up to three bits for each byte of memory, and the memory of
    /// hazard checks.
    pub fn with_memory(module: Module, limit: u64) -> Self {
        Self {
            module,
            global: Region::new(Space::Global),
            next: GLOBAL,
            variables_placed: false,
            constants: BTreeMap::new(),
            memory: Memory { limit, used: 0 },
        }
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Bytes that a launch may ask for in all.
    pub fn memory_limit(&self) -> u64 {
        self.memory.limit
    }

    /// Bytes that may still be asked for.
    pub fn free_memory(&self) -> u64 {
        self.memory.limit - self.memory.used
    }

    /// Refuses a request for more bytes than are left.
    pub(crate) fn check_room(&self, what: &str, size: u64) -> Result<(), SimError> {
        self.memory.would_use(|| what.to_string(), size).map(|_| ())
    }

    /// Takes memory for a buffer, which the limit may allow and the system not have: asking for it in vain would end
    /// the process.
    fn take_for_buffer(&mut self, name: &str, size: usize) -> Result<(), SimError> {
        let what = || format!("buffer {name}");
        self.memory.would_use(what, size as u64)?;
        if Vec::<u8>::new().try_reserve_exact(size).is_err() {
            let why = format!("buffer {name}: the system has no {size} bytes of memory");
            return Err(SimError::Launch(why));
        }
        self.memory.take(what, size as u64)
    }

    /// Allocates a buffer whose bytes nothing has written.
    pub fn alloc(&mut self, name: &str, size: usize) -> Result<Buffer, SimError> {
        if size == 0 {
            return Err(SimError::Launch(format!("buffer {name} has no bytes")));
        }
        let address = self.next;
        let next = (size as u64)
            .checked_add(address + GUARD)
            .and_then(|end| end.checked_next_multiple_of(BUFFER_ALIGN))
            .filter(|end| *end <= GLOBAL_VARS)
            .ok_or_else(|| SimError::Launch(format!("no addresses are left for buffer {name}")))?;
        self.take_for_buffer(name, size)?;
        self.next = next;
        self.global.add(name, address, size);
        Ok(Buffer { address, size })
    }

    /// Allocates a buffer with contents.
    pub fn upload(&mut self, name: &str, data: &[u8]) -> Result<Buffer, SimError> {
        let b = self.alloc(name, data.len())?;
        self.write(b, 0, data)?;
        Ok(b)
    }

    /// Writes into a buffer.
    pub fn write(&mut self, b: Buffer, at: usize, data: &[u8]) -> Result<(), SimError> {
        match self.global.at_mut(b.address) {
            Some(a)
                if at
                    .checked_add(data.len())
                    .is_some_and(|e| e <= a.bytes().len()) =>
            {
                a.upload(at, data);
                a.forget_grids(at, data.len());
                Ok(())
            }
            _ => Err(SimError::Launch("write outside a buffer".into())),
        }
    }

    /// A buffer's bytes. Bytes that nothing wrote are zero.
    pub fn download(&self, b: Buffer) -> &[u8] {
        self.global.at(b.address).map_or(&[], |a| a.bytes())
    }

    /// A buffer's bytes as 32-bit words.
    pub fn words(&self, b: Buffer) -> Vec<u32> {
        let words = self.download(b).as_chunks().0;
        words.iter().copied().map(u32::from_le_bytes).collect()
    }

    /// Whether every byte of a buffer was written.
    pub fn fully_written(&self, b: Buffer) -> bool {
        self.global
            .at(b.address)
            .is_some_and(|a| a.initialised(0, b.size))
    }

    /// Forgets the contents of a buffer.
    pub fn poison(&mut self, b: Buffer) {
        if let Some(a) = self.global.at_mut(b.address) {
            a.poison();
        }
    }

    /// Decodes a kernel of the module, to run it more than once.
    pub fn program(&self, kernel: &str) -> Result<Program, SimError> {
        Program::new(&self.module, kernel)
    }

    /// Runs a kernel to its end.
    pub fn run(&mut self, launch: &Launch, options: &Options) -> Result<Report, SimError> {
        let program = self.program(&launch.kernel)?;
        self.run_program(&program, launch, options, None)
    }

    /// Runs a decoded kernel; an observer sees all accesses and synchronisation.
    pub fn run_program<'a>(
        &'a mut self,
        program: &'a Program,
        launch: &'a Launch,
        options: &'a Options,
        observer: Option<&'a mut dyn Observer>,
    ) -> Result<Report, SimError> {
        self.run_recorded(program, launch, options, observer, None)
            .0
    }

    /// Runs a decoded kernel and records its events, up to `limit` slices; also of a run that fails.
    pub fn run_traced(
        &mut self,
        program: &Program,
        launch: &Launch,
        options: &Options,
        limit: usize,
    ) -> (Result<Report, SimError>, Trace) {
        let recorder = Box::new(Recorder::new(limit));
        let (result, trace) = self.run_recorded(program, launch, options, None, Some(recorder));
        let mut trace = trace.unwrap_or_default();
        let about = [
            ("kernel", program.kernel.clone()),
            ("policy", options.policy.to_string()),
            ("timing", options.timing.to_string()),
            ("profile", format!("{:?}", options.profile).to_lowercase()),
        ];
        trace
            .about
            .extend(about.map(|(name, value)| (name.to_string(), value)));
        if let Err(e) = &result {
            trace.about.insert("error".into(), e.to_string());
        }
        (result, trace)
    }

    /// Refuses runs at the same time, each with the shape of its clusters, that need more memory than is allowed.
    /// Global variables stay between runs, the rest is each run's own.
    fn take_memory(
        &mut self,
        runs: &[(&Program, &Launch, [u32; 3])],
        o: &Options,
    ) -> Result<(), SimError> {
        let Some((first, ..)) = runs.first() else {
            return Ok(());
        };
        if !self.variables_placed {
            let bytes = total(&first.global);
            self.memory.take(|| "the global variables".into(), bytes)?;
        }
        let (mut bytes, mut ctas) = (0u64, 0u64);
        for (p, l, cluster) in runs {
            let size = product(*cluster);
            let clusters = (o.resident as u64).min(product(l.grid) / size);
            let running = size.saturating_mul(clusters);
            let one = running
                .saturating_mul(cta_bytes(p, l))
                .saturating_add(total(&p.constant));
            (bytes, ctas) = (bytes.saturating_add(one), ctas.saturating_add(running));
        }
        let what = || format!("the constants, and {ctas} CTAs that run at once");
        self.memory.would_use(what, bytes).map(|_| ())
    }

    fn run_recorded<'a>(
        &'a mut self,
        program: &'a Program,
        launch: &'a Launch,
        options: &'a Options,
        observer: Option<&'a mut dyn Observer>,
        recorder: Option<Box<Recorder>>,
    ) -> (Result<Report, SimError>, Option<Trace>) {
        let cluster_dims = match check(program, launch, options) {
            Ok(dims) => dims,
            Err(e) => return (Err(e), None),
        };
        if let Err(e) = self.take_memory(&[(program, launch, cluster_dims)], options) {
            return (Err(e), None);
        }
        self.place_variables(program);
        self.global.begin_grid(launch.dependent);
        let constant = self.constants_of(program);
        let hopper = self.module.is_for_hopper();
        let run = (program, launch, options);
        let cluster = product(cluster_dims).saturating_mul(cta_bytes(program, launch));
        let room = self.free_memory().saturating_sub(total(&program.constant)) / cluster.max(1);
        let mut machine = Machine::new(run, cluster_dims, &mut self.global, constant);
        machine.hopper = hopper;
        machine.most_resident = room.min(u64::from(options.sms) * 2);
        machine.observer = observer;
        machine.trace = recorder;
        let result = machine.run_grid();
        let trace = machine.take_trace();
        let mut report = machine.report;
        report.coverage = machine.counters.summary(program);
        (result.map(|()| report), trace)
    }

    /// Constant memory as a kernel finds it.
    fn constants_of(&self, program: &Program) -> Region {
        let mut constant = Region::new(Space::Const);
        for v in program.constant.iter().filter(|v| v.size > 0) {
            let a = constant.add(&v.name, v.address, v.size as usize);
            a.written();
            let host = self.constants.get(&v.name);
            let bytes = host.map(Vec::as_slice).or(v.init.as_deref());
            a.upload(0, bytes.unwrap_or_default());
            a.read_only = true;
        }
        constant
    }
}

fn product(d: [u32; 3]) -> u64 {
    d.iter().fold(1, |all, v| u64::from(*v).saturating_mul(all))
}

/// Bytes of variables.
fn total(variables: &[Variable]) -> u64 {
    variables
        .iter()
        .fold(0, |all, v| v.size.saturating_add(all))
}

/// Bytes that a CTA has while it runs: shared and tensor memory, registers, predicates and local memory.
fn cta_bytes(p: &Program, l: &Launch) -> u64 {
    const LANES: u64 = 32;
    // The memory of a variable beside its bytes.
    const VARIABLE: u64 = 200;
    let tensor = p.code.iter().any(|i| matches!(i.op, Op::Tcgen05(_)));
    let tensor = u64::from(tensor) * Tmem::BYTES;
    let registers = p.reg_masks.len() as u64 * LANES * 8 + p.preds as u64 * 4;
    let warp = total(&p.local)
        .saturating_add(p.local.len() as u64 * VARIABLE)
        .saturating_mul(LANES)
        .saturating_add(registers);
    product(l.block)
        .div_ceil(LANES)
        .saturating_mul(warp)
        .saturating_add(tensor + p.dynamic_shared + u64::from(l.shared))
}

/// Refuses launches that the hardware would refuse; returns the cluster's shape.
fn check(p: &Program, l: &Launch, o: &Options) -> Result<[u32; 3], SimError> {
    let refuse = |m: String| Err(SimError::Launch(m));
    if product(l.block) == 0 || product(l.block) > 1024 {
        return refuse(format!("a CTA has 1 to 1024 threads, not {:?}", l.block));
    }
    if product(l.grid) == 0 || l.grid[1] > 65535 || l.grid[2] > 65535 || product(l.grid) > 1 << 31 {
        return refuse(format!(
            "grid {:?}: each size is at least 1, y and z at most 65535, and the CTAs at most 2^31",
            l.grid
        ));
    }
    if let Some(r) = p.reqntid
        && r != l.block
    {
        return refuse(format!(
            "the kernel requires {r:?} threads, not {:?}",
            l.block
        ));
    }
    if let Some(m) = p.maxntid
        && product(m) < product(l.block)
    {
        return refuse(format!(
            "the kernel allows {} threads, not {}",
            product(m),
            product(l.block)
        ));
    }
    let cluster = match (l.cluster, p.cluster) {
        (Some(a), Some(b)) if a != b => {
            return refuse(format!("the kernel requires clusters of {b:?}, not {a:?}"));
        }
        (a, b) => a.or(b).unwrap_or([1; 3]),
    };
    if product(cluster) == 0 || product(cluster) > 16 {
        return refuse(format!("a cluster has 1 to 16 CTAs, not {cluster:?}"));
    }
    if let Some(most) = p.max_cluster_rank
        && product(cluster) > u64::from(most)
    {
        return refuse(format!(
            "the kernel allows clusters of {most} CTAs, not of {cluster:?}"
        ));
    }
    if p.explicit_cluster && l.cluster.or(p.cluster).is_none() {
        return refuse("the kernel requires a cluster (.explicitcluster)".into());
    }
    if (0..3).any(|i| !l.grid[i].is_multiple_of(cluster[i])) {
        return refuse(format!(
            "grid {:?} is not made of clusters of {cluster:?}",
            l.grid
        ));
    }
    let shared = p.dynamic_shared + u64::from(l.shared);
    if shared > u64::from(MAX_SHARED) {
        return refuse(format!(
            "{shared} bytes of shared memory; a CTA has at most {MAX_SHARED}"
        ));
    }
    if l.params.len() != p.params.len() {
        return refuse(format!(
            "{} parameters are given, the kernel has {}",
            l.params.len(),
            p.params.len()
        ));
    }
    for (given, has) in l.params.iter().zip(&p.params) {
        if given.len() as u64 != has.size {
            return refuse(format!(
                "parameter {} has {} bytes, not {}",
                has.name,
                has.size,
                given.len()
            ));
        }
    }
    if o.resident == 0 || o.sms == 0 {
        return refuse("at least one cluster and one SM are needed".into());
    }
    Ok(cluster)
}
