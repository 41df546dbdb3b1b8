//! The stand-in's state: modules, kernels, variables, memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use ptx_sim::demangle::demangled;
use ptx_sim::models::relaxation::Relaxation;
use ptx_sim::{Module, Options, Program, Sim, SimError, mutate};

use crate::code::{Code, Fail};
use crate::fatbin::{self, FatbinError, Ptx};
use crate::memory::{Memory, Place};
use crate::settings::Settings;

/// A module that the program loaded, perhaps not looked at yet.
#[derive(Debug)]
pub struct Loaded {
    /// The module's sources, or why there are none.
    sources: Result<Vec<Ptx>, FatbinError>,
    /// The program has unloaded it.
    unloaded: bool,
    /// Once a kernel or a variable of it was asked for.
    ready: Option<Result<Ready, Fail>>,
}

/// A module with its variables.
#[derive(Debug)]
pub struct Ready {
    /// The module's source.
    pub ptx: Ptx,
    /// The module's variables; for a launch also all buffers.
    pub sim: Sim,
    programs: BTreeMap<String, Arc<Program>>,
    /// Programs with the fault of [`Settings::fault`].
    planted: BTreeMap<String, Arc<Program>>,
}

impl Ready {
    /// A kernel, decoded.
    pub fn program(&mut self, kernel: &str) -> Result<Arc<Program>, Fail> {
        if let Some(p) = self.programs.get(kernel) {
            return Ok(p.clone());
        }
        if self.sim.module().entry(kernel).is_none() {
            let known: Vec<_> = self.sim.module().entries().collect();
            return Err(Fail::new(
                Code::NOT_FOUND,
                format!(
                    "there is no kernel `{kernel}`; the module has: {}",
                    known.join(", ")
                ),
            ));
        }
        let program = self.sim.program(kernel);
        let program = program.map_err(|e| Fail::new(Code::NOT_SUPPORTED, e.to_string()))?;
        let program = Arc::new(program);
        self.programs.insert(kernel.to_string(), program.clone());
        Ok(program)
    }

    /// A kernel with a planted fault.
    pub fn planted(&mut self, kernel: &str, fault: &str) -> Result<Arc<Program>, Fail> {
        if let Some(p) = self.planted.get(kernel) {
            return Ok(p.clone());
        }
        let fail = |e: SimError| Fail::new(Code::NOT_SUPPORTED, e.to_string());
        let sound = mutate::Kernel::new(self.sim.module(), kernel).map_err(fail)?;
        let mutants = sound.mutants();
        let Some(mutant) = mutants.iter().find(|m| m.id() == fault) else {
            let message = format!("{} has no fault `{fault}`", demangled(kernel));
            return Err(Fail::new(Code::NOT_FOUND, message));
        };
        let program = Arc::new(sound.plant(mutant).map_err(fail)?.program().clone());
        self.planted.insert(kernel.to_string(), program.clone());
        Ok(program)
    }

    /// Any kernel: all of them see the module's variables.
    pub fn any(&mut self) -> Result<Arc<Program>, Fail> {
        let names: Vec<String> = self.sim.module().entries().map(String::from).collect();
        let mut last = Fail::new(Code::NOT_FOUND, "the module has no kernel");
        for name in names {
            match self.program(&name) {
                Ok(p) => return Ok(p),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

/// A kernel that the program may launch.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// Index of its module.
    pub module: usize,
    /// Name of the kernel in the PTX.
    pub name: String,
    /// `cudaFuncAttributeMaxDynamicSharedMemorySize`.
    pub dynamic: Option<u32>,
    /// `cudaFuncAttributeNonPortableClusterSizeAllowed`.
    pub any_cluster: bool,
    /// `cudaFuncAttributeRequiredClusterWidth` and its like.
    pub cluster: [u32; 3],
}

/// A variable that the program knows by an address of its own.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Index of its module.
    pub module: usize,
    /// Name of the variable in the PTX.
    pub name: String,
}

/// Memory that a device address leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// To host memory or a buffer.
    Place(Place),
    /// Into a variable of a module, at an offset.
    Variable(usize, String, usize),
}

/// Everything.
#[derive(Debug)]
pub struct Recorder {
    /// The user's settings.
    pub settings: Settings,
    /// The simulator's options.
    pub options: Options,
    /// The modules. Unloaded modules stay, without sources.
    pub modules: Vec<Loaded>,
    /// Kernels by the program's name for them: the address of a host function, or a handle.
    pub kernels: HashMap<usize, Kernel>,
    /// Variables by their addresses on the host.
    pub variables: HashMap<usize, Variable>,
    /// Memory.
    pub memory: Memory,
    /// The error of a launch, which every later call returns.
    pub sticky: Option<Code>,
    /// Launches so far.
    pub launches: u64,
    /// The stream of the last launch, until the program knows that it has ended: on a GPU it may still run.
    pub running: Option<usize>,
    /// Relaxations that were noted, with the kernel of each.
    pub noted: HashSet<(String, Relaxation)>,
    /// The architecture of the GPU, once the program was told or a module was chosen for it.
    architecture: OnceLock<u32>,
    /// Handles given out so far.
    handles: usize,
    /// The fault of the settings, until it was reported.
    wrong: Option<String>,
}

static RECORDER: LazyLock<Mutex<Recorder>> = LazyLock::new(|| Mutex::new(Recorder::new()));

/// Everything, for the one who asks.
pub fn recorder() -> MutexGuard<'static, Recorder> {
    // A thread that panicked leaves the recorder in no worse state than a call that failed.
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles look like no address that a program has.
const FIRST_HANDLE: usize = 0x7e57_0000_0000;

impl Recorder {
    fn new() -> Self {
        let settings = Settings::from_environment();
        let checked = settings.and_then(|s| s.options().map(|o| (s, o)));
        let (settings, options, wrong) = match checked {
            Ok((s, o)) => (s, o, None),
            Err(e) => (Settings::default(), Options::default(), Some(e)),
        };
        Self {
            memory: Memory::new(settings.memory_bytes()),
            settings,
            options,
            modules: Vec::new(),
            kernels: HashMap::new(),
            variables: HashMap::new(),
            sticky: None,
            launches: 0,
            running: None,
            architecture: OnceLock::new(),
            noted: HashSet::new(),
            handles: 0,
            wrong,
        }
    }

    /// Fails where the settings are wrong, or a launch failed.
    pub fn healthy(&mut self) -> Result<(), Fail> {
        if let Some(wrong) = self.wrong.take() {
            self.sticky = Some(Code::NOT_INITIALIZED);
            return Err(Fail::new(Code::NOT_INITIALIZED, wrong));
        }
        match self.sticky {
            // The error was reported when it happened.
            Some(code) => Err(Fail::new(code, "")),
            None => Ok(()),
        }
    }

    /// A handle that nothing else has.
    pub fn handle(&mut self) -> usize {
        self.handles += 1;
        FIRST_HANDLE + 16 * self.handles
    }

    /// Adds a module that is part of the program; returns its index. A fault of the module is reported when it is used.
    pub fn load(&mut self, sources: Result<Vec<Ptx>, FatbinError>) -> usize {
        self.modules.push(Loaded {
            sources,
            unloaded: false,
            ready: None,
        });
        self.modules.len() - 1
    }

    /// Adds a module that the program loads now; returns its index.
    pub fn load_now(&mut self, sources: Result<Vec<Ptx>, FatbinError>) -> Result<usize, Fail> {
        if sources == Err(FatbinError::Null) {
            return Err(Fail::value(FatbinError::Null.to_string()));
        }
        let index = self.load(sources);
        if let Err(e) = self.module(index) {
            self.modules.pop();
            return Err(e);
        }
        Ok(index)
    }

    /// Forgets a module.
    pub fn unload(&mut self, module: usize) {
        if let Some(m) = self.modules.get_mut(module) {
            m.sources = Ok(Vec::new());
            m.unloaded = true;
            m.ready = None;
        }
        self.kernels.retain(|_, k| k.module != module);
        self.variables.retain(|_, v| v.module != module);
    }

    /// The architecture of the GPU that programs see, 100 for `sm_100a`: the one that was asked for, or the highest of
    /// all PTX that there is when somebody first asks. The architecture stays so, as a GPU does.
    pub fn architecture(&self) -> u32 {
        *self.architecture.get_or_init(|| {
            if let Some(device) = &self.settings.device {
                return fatbin::architecture(device);
            }
            let all = self.modules.iter().filter_map(|m| m.sources.as_ref().ok());
            let highest = all.flatten().map(Ptx::architecture).max();
            highest.filter(|a| *a > 0).unwrap_or(USUAL)
        })
    }

    /// Name of the GPU.
    pub fn device_name(&self) -> String {
        format!("ptx-sim (sm_{})", self.architecture())
    }

    /// A module, parsed.
    pub fn module(&mut self, index: usize) -> Result<&mut Ready, Fail> {
        let architecture = self.architecture();
        let limit = self.settings.memory_bytes();
        let Some(m) = self.modules.get_mut(index) else {
            return Err(Fail::new(Code::INVALID_HANDLE, "there is no such module"));
        };
        if m.unloaded {
            return Err(Fail::new(Code::INVALID_HANDLE, "the module was unloaded"));
        }
        let sources = &m.sources;
        let ready = m
            .ready
            .get_or_insert_with(|| parse(sources, architecture, limit));
        ready.as_mut().map_err(|e| e.clone())
    }

    /// All that was launched has ended, and the program knows: what it launches next overlaps with nothing.
    pub fn end_of_all(&mut self) {
        self.running = None;
    }

    /// All that was launched on a stream has ended, and the program knows.
    pub fn end_of(&mut self, stream: usize) {
        if self.running == Some(stream_of(stream)) {
            self.end_of_all();
        }
    }

    /// A launch begins that overlaps with none before it: the simulator forgets what these wrote.
    pub fn forget_grids(&mut self) {
        let ready = self.modules.iter_mut().filter_map(|m| m.ready.as_mut());
        for ready in ready.filter_map(|r| r.as_mut().ok()) {
            ready.sim.grids_ended();
        }
        self.memory.sim.grids_ended();
    }

    /// A kernel by the program's name for it.
    pub fn kernel(&self, handle: usize) -> Result<&Kernel, Fail> {
        self.kernels.get(&handle).ok_or_else(|| {
            Fail::new(
                Code::INVALID_DEVICE_FUNCTION,
                "this is no kernel of the program",
            )
        })
    }

    /// A kernel, decoded.
    pub fn program(&mut self, handle: usize) -> Result<(Kernel, Arc<Program>), Fail> {
        let kernel = self.kernel(handle)?.clone();
        let program = self.module(kernel.module)?.program(&kernel.name)?;
        Ok((kernel, program))
    }

    /// The variable that has a generic device address, and the offset in it. Modules are parsed for it.
    fn variable_at(&mut self, address: u64, size: usize) -> Result<Option<Target>, Fail> {
        let mut found = Vec::new();
        for index in 0..self.modules.len() {
            let Ok(ready) = self.module(index) else {
                continue;
            };
            let Ok(program) = ready.any() else { continue };
            for name in Sim::symbols(&program) {
                let Some(s) = Sim::symbol(&program, name) else {
                    continue;
                };
                let at = address.wrapping_sub(s.address);
                if at < s.size {
                    if size as u64 > s.size - at {
                        return Err(Fail::value(format!(
                            "{size} bytes at offset {at} of variable {name} of {} bytes",
                            s.size
                        )));
                    }
                    found.push(Target::Variable(index, name.to_string(), at as usize));
                }
            }
        }
        if found.len() > 1 {
            return Err(Fail::new(
                Code::NOT_SUPPORTED,
                "variables of several modules have this address: only cudaMemcpyToSymbol and cudaMemcpyFromSymbol \
                 tell them apart",
            ));
        }
        Ok(found.pop())
    }

    /// Target of so many bytes from an address.
    pub fn target_of(&mut self, address: u64, size: usize) -> Result<Target, Fail> {
        if Sim::may_be_variable(address)
            && let Some(target) = self.variable_at(address, size)?
        {
            return Ok(target);
        }
        self.memory.place(address, size).map(Target::Place)
    }
}

/// The architecture of the GPU where neither PTX nor the user says one.
const USUAL: u32 = 100;

/// A stream by one number: the default one has two.
pub fn stream_of(handle: usize) -> usize {
    handle.max(1)
}

fn parse(
    sources: &Result<Vec<Ptx>, FatbinError>,
    architecture: u32,
    limit: u64,
) -> Result<Ready, Fail> {
    let sources = sources.as_ref();
    let sources = sources.map_err(|e| Fail::new(Code::NO_BINARY, e.to_string()))?;
    let Some(ptx) = Ptx::best_for(sources, architecture) else {
        let all: Vec<_> = sources.iter().map(|p| p.target.as_str()).collect();
        return Err(Fail::new(
            Code::NO_BINARY,
            format!(
                "the PTX is for {}, the GPU is sm_{architecture}; `ptx-record --device` names another",
                all.join(", ")
            ),
        ));
    };
    let module = Module::parse(&ptx.text);
    let module = module.map_err(|e| Fail::new(Code::INVALID_PTX, format!("PTX: {e}")))?;
    Ok(Ready {
        ptx: ptx.clone(),
        sim: Sim::with_memory(module, limit),
        programs: BTreeMap::new(),
        planted: BTreeMap::new(),
    })
}
