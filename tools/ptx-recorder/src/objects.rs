//! Functions that runtime and driver have in common: events, kernels' attributes, occupancy.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

use ptx_sim::program::Variable;

use crate::call::{offer, put};
use crate::code::{Code, Fail};
use crate::device::{self, Device, Limits};
use crate::launch::{Request, product};
use crate::memory::Kind;
use crate::recorder::{Kernel, Recorder};

/// Attributes of functions that can be set, by the driver's numbers.
pub(crate) mod function {
    pub(crate) const MAX_DYNAMIC_SHARED: u32 = 8;
    pub(crate) const CLUSTER_WIDTH: u32 = 11;
    pub(crate) const CLUSTER_DEPTH: u32 = 13;
    pub(crate) const ANY_CLUSTER: u32 = 14;
}

/// Rows of `cudaMallocPitch` begin at multiples of this.
const PITCH: usize = 512;

/// When an event took place, and how many launches there had been.
type Event = (Instant, u64);

static EVENTS: LazyLock<Mutex<HashMap<usize, Event>>> = LazyLock::new(Mutex::default);

fn events() -> MutexGuard<'static, HashMap<usize, Event>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds between two events, of this machine's time.
pub(crate) fn elapsed(start: usize, end: usize) -> Result<f32, Fail> {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        crate::say("times between events are the simulator's: they say nothing about a GPU");
    });
    let events = events();
    match (events.get(&start), events.get(&end)) {
        (Some((a, _)), Some((b, _))) => Ok(b.saturating_duration_since(*a).as_secs_f32() * 1e3),
        _ => Err(Fail::new(
            Code::INVALID_HANDLE,
            "an event was never recorded",
        )),
    }
}

impl Recorder {
    /// An event takes place: now, since all that was launched before has ended.
    pub(crate) fn record(&self, event: usize) {
        events().insert(event, (Instant::now(), self.launches));
    }

    /// The program has waited for an event: the launches before it have ended.
    pub(crate) fn wait_for(&mut self, event: usize) {
        let launches = events().get(&event).map(|e| e.1);
        if launches == Some(self.launches) {
            self.end_of_all();
        }
    }

    /// The GPU that programs see.
    pub(crate) fn device(&self) -> Device {
        Device {
            architecture: self.architecture(),
            sms: self.settings.sms,
            memory: self.settings.memory_bytes(),
        }
    }

    /// Refuses another device than the only one.
    pub(crate) fn only(&self, device: i32) -> Result<(), Fail> {
        match device {
            0 => Ok(()),
            _ => Err(Fail::new(
                Code::INVALID_DEVICE,
                format!("device {device}: there is one, 0"),
            )),
        }
    }

    /// An attribute of the device.
    pub(crate) fn attribute(&self, number: u32, device: i32) -> Result<i32, Fail> {
        self.only(device)?;
        self.device().attribute(number).ok_or_else(|| {
            Fail::new(
                Code::NOT_SUPPORTED,
                format!("device attribute {number} is not known"),
            )
        })
    }

    /// A handle of a kernel of a loaded module.
    pub(crate) fn get_kernel(&mut self, module: usize, name: &str) -> Result<usize, Fail> {
        // One that is not there is refused now.
        self.module(module)?.program(name)?;
        let same = |k: &Kernel| k.module == module && k.name == name;
        if let Some((handle, _)) = self.kernels.iter().find(|(_, k)| same(k)) {
            return Ok(*handle);
        }
        let handle = self.handle();
        let kernel = Kernel {
            module,
            name: name.to_string(),
            ..Kernel::default()
        };
        self.kernels.insert(handle, kernel);
        Ok(handle)
    }

    /// Address and size of a variable of a loaded module.
    pub(crate) fn get_variable(&mut self, module: usize, name: &str) -> Result<(u64, u64), Fail> {
        let ready = self.module(module)?;
        let program = ready.any()?;
        let found = ptx_sim::Sim::symbol(&program, name);
        let found = found.ok_or_else(|| {
            Fail::new(
                Code::NOT_FOUND,
                format!("the module has no variable {name}"),
            )
        })?;
        Ok((found.address, found.size))
    }

    /// Frees the allocation that starts at an address; nothing for null.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), Fail> {
        match address {
            0 => Ok(()),
            _ => self.memory.free(address),
        }
    }

    /// Allocates rows; returns the address, and the bytes from one row to the next.
    pub(crate) fn allocate_rows(
        &mut self,
        width: usize,
        height: usize,
    ) -> Result<(u64, usize), Fail> {
        let pitch = width.checked_next_multiple_of(PITCH);
        let size = pitch.and_then(|p| p.checked_mul(height));
        let (Some(pitch), Some(size)) = (pitch, size) else {
            return Err(Fail::new(Code::OUT_OF_MEMORY, "too many bytes"));
        };
        Ok((self.memory.allocate(size, Kind::Device)?, pitch))
    }

    /// `cudaFuncSetAttribute` and its like.
    pub(crate) fn set_attribute(&mut self, kernel: usize, id: u32, value: i32) -> Result<(), Fail> {
        let (_, program) = self.program(kernel)?;
        let fixed = (program.dynamic_shared - device::RESERVED_SHARED) as i32;
        let most = Limits::of(self.architecture()).shared_opt_in() - fixed;
        let Some(kernel) = self.kernels.get_mut(&kernel) else {
            return Err(Fail::new(Code::INVALID_DEVICE_FUNCTION, ""));
        };
        match id {
            function::MAX_DYNAMIC_SHARED if value < 0 || value > most => {
                return Err(Fail::value(format!(
                    "{value} bytes of dynamic shared memory; the GPU has {most} for this kernel"
                )));
            }
            function::MAX_DYNAMIC_SHARED => kernel.dynamic = Some(value as u32),
            function::CLUSTER_WIDTH..=function::CLUSTER_DEPTH => {
                kernel.cluster[(id - function::CLUSTER_WIDTH) as usize] = value.max(0) as u32;
            }
            function::ANY_CLUSTER => kernel.any_cluster = value != 0,
            // Hints.
            9 | 10 | 15 => {}
            _ => return Err(Fail::value(format!("{id} is no attribute that can be set"))),
        }
        Ok(())
    }

    /// `cudaFuncGetAttributes`, as the driver numbers them.
    pub(crate) fn get_attribute(&mut self, kernel: usize, id: u32) -> Result<i32, Fail> {
        let architecture = self.architecture() as i32;
        let (kernel, program) = self.program(kernel)?;
        let sum = |v: &[Variable]| {
            let bytes: u64 = v.iter().map(|v| v.size).sum();
            i32::try_from(bytes).unwrap_or(i32::MAX)
        };
        Ok(match id {
            0 => program
                .reqntid
                .or(program.maxntid)
                .map_or(device::THREADS, |d| {
                    i32::try_from(product(d)).unwrap_or(i32::MAX)
                }),
            1 => sum(&program.shared),
            2 => sum(&program.constant),
            3 => sum(&program.local),
            // Registers are the assembler's choice. A number that every launch of as many threads has.
            4 => 32,
            5 | 6 => architecture,
            7 => 0,
            function::MAX_DYNAMIC_SHARED => {
                kernel.dynamic.map_or(device::SHARED as i32, |n| n as i32)
            }
            9 => -1,
            10 => 0,
            function::CLUSTER_WIDTH..=function::CLUSTER_DEPTH => {
                let i = (id - function::CLUSTER_WIDTH) as usize;
                program.cluster.map_or(kernel.cluster[i], |c| c[i]) as i32
            }
            function::ANY_CLUSTER => i32::from(kernel.any_cluster),
            15 => 0,
            _ => return Err(Fail::value(format!("{id} is no attribute of a function"))),
        })
    }

    /// CTAs of a kernel that a multiprocessor holds, by threads and shared memory.
    pub(crate) fn occupancy(
        &mut self,
        kernel: usize,
        threads: u64,
        shared: u64,
    ) -> Result<i32, Fail> {
        let limits = Limits::of(self.architecture());
        let (_, program) = self.program(kernel)?;
        if threads == 0 || threads > device::THREADS as u64 {
            return Err(Fail::value(format!("a CTA of {threads} threads")));
        }
        let by_threads = limits.threads as u64 / threads;
        // With the system's KiB.
        let shared = program.dynamic_shared.saturating_add(shared).max(1);
        let by_shared = limits.shared() as u64 / shared;
        Ok(by_threads.min(by_shared).min(limits.ctas as u64) as i32)
    }

    /// CTAs of a launch that the GPU holds at once.
    pub(crate) fn all_at_once(&mut self, r: &Request) -> Result<u64, Fail> {
        let each = self.occupancy(r.kernel, product(r.block), r.shared)?;
        Ok(each as u64 * u64::from(self.settings.sms))
    }

    /// Clusters of a launch that the GPU holds at once.
    pub(crate) fn clusters_at_once(&mut self, r: &Request) -> Result<i32, Fail> {
        let clusters = self.all_at_once(r)? / product(r.cluster.unwrap_or([1; 3])).max(1);
        Ok(i32::try_from(clusters).unwrap_or(i32::MAX))
    }
}

/// A variable's address and size, for those who asked for them.
///
/// # Safety
///
/// Both must be null or writable.
pub(crate) unsafe fn put_variable(
    address: *mut u64,
    size: *mut usize,
    found: (u64, u64),
) -> Result<(), Fail> {
    // SAFETY: the caller's promise.
    unsafe {
        offer(address, found.0);
        offer(size, found.1 as usize);
    }
    Ok(())
}

/// The handle that a program has of a module, by its index: null is none.
pub(crate) fn handle_of(module: usize) -> usize {
    module + 1
}

/// The index of a module by its handle. The index for null is one that no module has.
pub(crate) fn module_of(handle: *const c_void) -> usize {
    (handle as usize).wrapping_sub(1)
}

/// A size that must not be zero.
pub(crate) fn some(size: usize) -> Result<usize, Fail> {
    match size {
        0 => Err(Fail::value("an allocation of no bytes")),
        _ => Ok(size),
    }
}

/// The handle of a module as a program keeps it.
///
/// # Safety
///
/// `to` must be null or writable.
pub(crate) unsafe fn put_module(to: *mut *mut c_void, module: usize) -> Result<(), Fail> {
    // SAFETY: the caller's promise.
    unsafe { put_handle(to, handle_of(module)) }
}

/// A handle as a program keeps it.
///
/// # Safety
///
/// `to` must be null or writable.
pub(crate) unsafe fn put_handle(to: *mut *mut c_void, handle: usize) -> Result<(), Fail> {
    // SAFETY: the caller's promise.
    unsafe { put(to, handle as *mut c_void) }
}
