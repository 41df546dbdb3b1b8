//! Launches that the program asks for, checked as a driver checks them, then executed or written down.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use ptx_sim::demangle::demangled;
use ptx_sim::report::ViolationKind;
use ptx_sim::{Launch, Options, Program, Report, SimError};

use crate::code::{Code, Fail};
use crate::device;
use crate::recorder::{Kernel, Recorder, stream_of};
use crate::specs;

/// Place of a launch's parameters.
#[derive(Debug, Clone, Copy)]
pub enum Arguments {
    /// A pointer to each.
    Pointers(*const *const c_void),
    /// All of them in one block, and its size.
    Block(*const u8, usize),
}

/// A launch that a program asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The kernel: a host function's address, or a handle.
    pub kernel: usize,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory in bytes.
    pub shared: u64,
    /// Programmatic dependent launch.
    pub dependent: bool,
    /// All CTAs run at once.
    pub cooperative: bool,
    /// The stream.
    pub stream: usize,
    /// The parameters.
    pub arguments: Arguments,
}

/// Attributes of launches, by CUDA's numbers.
mod attribute {
    pub(super) const COOPERATIVE: u32 = 2;
    pub(super) const CLUSTER: u32 = 4;
    pub(super) const PROGRAMMATIC: u32 = 6;
    pub(super) const PROGRAMMATIC_EVENT: u32 = 7;
    pub(super) const PREFERRED_CLUSTER: u32 = 11;
    pub(super) const COMPLETION_EVENT: u32 = 12;
    pub(super) const UPDATABLE: u32 = 13;
}

/// `cudaLaunchAttribute`, and the driver's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Attribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

impl Request {
    /// A launch without anything else.
    pub fn new(kernel: *const c_void, grid: [u32; 3], block: [u32; 3], shared: u64) -> Self {
        Self {
            kernel: kernel as usize,
            grid,
            block,
            cluster: None,
            shared,
            dependent: false,
            cooperative: false,
            stream: 0,
            arguments: Arguments::Block(std::ptr::null(), 0),
        }
    }

    /// With parameters.
    pub fn with(mut self, arguments: Arguments) -> Self {
        self.arguments = arguments;
        self
    }

    /// On a stream.
    pub fn on(mut self, stream: *const c_void) -> Self {
        self.stream = stream as usize;
        self
    }

    /// With all CTAs at once.
    pub fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// With launch attributes.
    ///
    /// # Safety
    ///
    /// `attributes` must be null or point to `count` of them.
    pub unsafe fn attributes(
        mut self,
        attributes: *const Attribute,
        count: u32,
    ) -> Result<Self, Fail> {
        if count > 0 && !attributes.is_null() {
            // SAFETY: the caller says that there are so many.
            self.take(unsafe { std::slice::from_raw_parts(attributes, count as usize) })?;
        }
        Ok(self)
    }

    /// Takes launch attributes.
    fn take(&mut self, attributes: &[Attribute]) -> Result<(), Fail> {
        for a in attributes {
            let three = [a.value[0], a.value[1], a.value[2]];
            match a.id {
                attribute::COOPERATIVE => self.cooperative = a.value[0] != 0,
                attribute::CLUSTER => self.cluster = Some(three),
                attribute::PROGRAMMATIC => self.dependent = a.value[0] != 0,
                // Fits whatever cluster the launch has: a preference is no promise.
                attribute::PREFERRED_CLUSTER => {}
                attribute::PROGRAMMATIC_EVENT
                | attribute::COMPLETION_EVENT
                | attribute::UPDATABLE => {
                    return Err(Fail::new(
                        Code::NOT_SUPPORTED,
                        format!("launch attribute {} is not supported", a.id),
                    ));
                }
                // Hints of cache, priority and scheduling.
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes of each parameter.
    ///
    /// # Safety
    ///
    /// `arguments` must hold what the kernel's declaration asks for.
    unsafe fn parameters(&self, program: &Program) -> Result<Vec<Vec<u8>>, Fail> {
        let mut all = Vec::new();
        for (i, p) in program.params.iter().enumerate() {
            let size = p.size as usize;
            let from = match self.arguments {
                Arguments::Pointers(list) => {
                    if list.is_null() {
                        return Err(Fail::value("the kernel has parameters, the launch none"));
                    }
                    // SAFETY: the caller says that there is a pointer for each parameter.
                    unsafe { *list.add(i) }.cast::<u8>()
                }
                Arguments::Block(start, bytes) => {
                    let end = p.offset as usize + size;
                    if end > bytes {
                        return Err(Fail::value(format!(
                            "parameter {} ends at byte {end}, the launch gives {bytes}",
                            p.name
                        )));
                    }
                    // SAFETY: the offset lies in the block, whose size the caller gives.
                    unsafe { start.add(p.offset as usize) }
                }
            };
            if from.is_null() {
                return Err(Fail::value(format!("parameter {} is null", p.name)));
            }
            let mut bytes = vec![0u8; size];
            // SAFETY: `bytes` has so many; the caller says that the program's value is as large.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size) };
            all.push(bytes);
        }
        Ok(all)
    }
}

/// Characters of a kernel's name that are printed: those of templates fill pages.
const NAME: usize = 100;

/// A kernel's name for people.
#[derive(Debug)]
struct Names {
    full: String,
    short: String,
}

impl Names {
    fn of(kernel: &str) -> Self {
        let full = demangled(kernel);
        let short = match full.char_indices().nth(NAME) {
            Some((end, _)) => format!("{}...", &full[..end]),
            None => full.clone(),
        };
        Self { full, short }
    }

    /// A text of the simulator, with the short name of the kernel in place of the full one.
    fn shorten(&self, text: &str) -> String {
        text.replace(&self.full, &self.short)
    }
}

/// Threads of a CTA, or CTAs. Sizes from elsewhere may be larger than any number.
pub(crate) fn product(d: [u32; 3]) -> u64 {
    d.iter()
        .fold(1, |all: u64, n| all.saturating_mul((*n).into()))
}

/// Refuses launches that a driver refuses and that the simulator need not know of.
fn check(r: &Request, kernel: &Kernel, program: &Program) -> Result<Option<[u32; 3]>, Fail> {
    // The first KiB belongs to the system, and is no part of what a launch has.
    let fixed = program.dynamic_shared - device::RESERVED_SHARED;
    let allowed = kernel.dynamic.map(u64::from);
    let usual = device::SHARED.saturating_sub(fixed);
    let most = allowed.unwrap_or(usual).max(usual);
    if r.shared > most {
        return Err(Fail::value(format!(
            "{} bytes of dynamic shared memory; the kernel may have {most}, more with cudaFuncSetAttribute and \
             cudaFuncAttributeMaxDynamicSharedMemorySize",
            r.shared
        )));
    }
    let asked = (kernel.cluster != [0; 3]).then(|| kernel.cluster.map(|n| n.max(1)));
    let cluster = r.cluster.or(asked);
    let size = product(cluster.or(program.cluster).unwrap_or([1; 3]));
    if size > 8 && !kernel.any_cluster {
        return Err(Fail::new(
            Code::INVALID_CLUSTER_SIZE,
            format!(
                "a cluster of {size} CTAs; more than 8 need cudaFuncAttributeNonPortableClusterSizeAllowed"
            ),
        ));
    }
    Ok(cluster)
}

/// The result that a program sees of a kernel that failed.
fn code_of(e: &SimError) -> Code {
    match e {
        SimError::Violation(v) => match v.kind {
            ViolationKind::OutOfBounds | ViolationKind::ReadOnly => Code::ILLEGAL_ADDRESS,
            ViolationKind::Misaligned => Code::MISALIGNED_ADDRESS,
            ViolationKind::Assertion => Code::ASSERT,
            _ => Code::LAUNCH_FAILED,
        },
        SimError::Deadlock(_) | SimError::Budget { .. } => Code::LAUNCH_TIMEOUT,
        SimError::Launch(_) => Code::INVALID_CONFIGURATION,
        SimError::Memory { .. } => Code::OUT_OF_RESOURCES,
        _ => Code::NOT_SUPPORTED,
    }
}

impl Recorder {
    /// Launches.
    ///
    /// # Safety
    ///
    /// The request's arguments must hold what the kernel's declaration asks for.
    pub unsafe fn launch(&mut self, r: &Request) -> Result<(), Fail> {
        let (kernel, mut program) = self.program(r.kernel)?;
        if let Some(fault) = self.settings.fault.clone() {
            program = self.module(kernel.module)?.planted(&kernel.name, &fault)?;
        }
        let cluster = check(r, &kernel, &program)?;
        if r.cooperative {
            self.check_cooperative(r)?;
        }
        // SAFETY: the caller's promise.
        let params = unsafe { r.parameters(&program) }?;
        let stream = stream_of(r.stream);
        let launch = Launch {
            kernel: kernel.name.clone(),
            grid: r.grid,
            block: r.block,
            cluster,
            shared: r.shared as u32,
            // Before the first one, and behind a synchronisation, there is nothing to overlap with.
            dependent: r.dependent && self.running == Some(stream),
            params,
        };
        self.launches += 1;
        let number = self.launches;
        let names = Names::of(&kernel.name);
        let title = format!("launch {number}: {}", names.short);
        let resident = match r.cooperative {
            true => usize::try_from(product(r.grid)).unwrap_or(usize::MAX),
            false => self.options.resident,
        };
        if !launch.dependent {
            self.forget_grids();
        }
        let shared = self.memory.to_device()?;
        if let Some(dir) = self.settings.specs.clone() {
            let written = specs::write(
                self,
                &dir,
                number,
                kernel.module,
                &program,
                &launch,
                resident,
            );
            let path = written.map_err(|e| Fail::new(Code::UNKNOWN, format!("{title}: {e}")))?;
            if !self.settings.quiet {
                crate::say(&format!("{title}: {}", path.display()));
            }
        }
        if self.settings.no_run {
            self.running = Some(stream);
            return Ok(());
        }
        let started = Instant::now();
        let result = self.execute(kernel.module, &program, &launch, resident)?;
        self.memory.to_host(&shared);
        match result {
            Ok(report) => {
                self.running = Some(stream);
                let seconds = started.elapsed().as_secs_f64();
                self.tell(&title, &names, &launch, &report, seconds);
                Ok(())
            }
            Err(e) => {
                let code = code_of(&e);
                let message = format!("{title}: error: {}", names.shorten(&e.to_string()));
                // A launch that was refused leaves the device as it was.
                if matches!(e, SimError::Launch(_) | SimError::Memory { .. }) {
                    return Err(Fail::new(code, message));
                }
                crate::say(&message);
                self.sticky = Some(code);
                Ok(())
            }
        }
    }

    fn execute(
        &mut self,
        module: usize,
        program: &Arc<Program>,
        launch: &Launch,
        resident: usize,
    ) -> Result<Result<Report, SimError>, Fail> {
        let options = Options {
            resident,
            ..self.options.clone()
        };
        let buffers = self.memory.sim.take_buffers();
        let ready = match self.module(module) {
            Ok(ready) => ready,
            Err(e) => {
                self.memory.sim.put_buffers(buffers);
                return Err(e);
            }
        };
        ready.sim.put_buffers(buffers);
        let run = || ready.sim.run_program(program, launch, &options, None);
        let result = catch_unwind(AssertUnwindSafe(run));
        // The buffers go back also after a fault of the simulator: the program still frees its memory.
        let buffers = ready.sim.take_buffers();
        self.memory.sim.put_buffers(buffers);
        result.map_or_else(|fault| resume_unwind(fault), Ok)
    }

    /// Refuses more CTAs than the GPU holds at once: they would wait for each other.
    fn check_cooperative(&mut self, r: &Request) -> Result<(), Fail> {
        let (asked, most) = (product(r.grid), self.all_at_once(r)?);
        if asked <= most {
            return Ok(());
        }
        Err(Fail::new(
            Code::COOPERATIVE_TOO_LARGE,
            format!(
                "a cooperative launch of {asked} CTAs; the GPU holds {most} of this kernel at once"
            ),
        ))
    }

    fn tell(&mut self, title: &str, names: &Names, launch: &Launch, report: &Report, seconds: f64) {
        for w in &report.warnings {
            let text = names.shorten(&w.to_string());
            crate::say(&format!("{title}: warning: {text}"));
        }
        if report.warnings_dropped > 0 {
            let more = report.warnings_dropped;
            crate::say(&format!("{title}: and {more} more warnings"));
        }
        // The program's own output: on a GPU it comes when the program waits for the launch.
        let printed = report.printed.replace('\0', "");
        // SAFETY: the format takes a number of bytes and the address of at least as many.
        unsafe {
            libc::printf(
                c"%.*s".as_ptr(),
                printed.len() as libc::c_int,
                printed.as_ptr(),
            )
        };
        if report.printed_dropped > 0 {
            let more = report.printed_dropped;
            crate::say(&format!("{title}: and {more} more texts were printed"));
        }
        if self.settings.quiet {
            return;
        }
        // A kernel may rely on one thing at hundreds of instructions, in hundreds of launches: the first is named.
        for n in &report.notes {
            if self.noted.insert((launch.kernel.clone(), n.relaxation)) {
                let same = report.notes.iter().filter(|m| m.relaxation == n.relaxation);
                let (count, text) = (same.count(), names.shorten(&n.to_string()));
                crate::say(&format!("{title}: note, at {count} instructions: {text}"));
            }
        }
        let cluster = match launch.cluster {
            Some(c) => format!(", clusters of {c:?}"),
            None => String::new(),
        };
        crate::say(&format!(
            "{title}: grid {:?}, block {:?}{cluster}: {} thread instructions, {seconds:.3} s",
            launch.grid, launch.block, report.thread_instructions
        ));
    }
}
