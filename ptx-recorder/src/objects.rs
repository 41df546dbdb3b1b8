//! What runtime and driver do alike: streams and events, kernels' attributes, occupancy, images of modules.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{LazyLock, Mutex, Once, PoisonError};
use std::time::Instant;

use crate::call::{offer, put};
use crate::code::{Code, Fail};
use crate::device::{self, Device};
use crate::fatbin::{self, FatbinError, Ptx};
use crate::recorder::{Kernel, Recorder};

static EVENTS: LazyLock<Mutex<HashMap<usize, Instant>>> = LazyLock::new(Mutex::default);

/// An event takes place: now, since all that was launched before has ended.
pub(crate) fn record(event: usize) {
    let mut events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    events.insert(event, Instant::now());
}

/// Milliseconds between two events, of this machine's time.
pub(crate) fn elapsed(start: usize, end: usize) -> Result<f32, Fail> {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        crate::say("times between events are the simulator's: they say nothing about a GPU");
    });
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    match (events.get(&start), events.get(&end)) {
        (Some(a), Some(b)) => Ok(b.saturating_duration_since(*a).as_secs_f32() * 1e3),
        _ => Err(Fail::new(
            Code::INVALID_HANDLE,
            "an event was never recorded",
        )),
    }
}

const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// The PTX of what a program gives as a module: a fat binary, its wrapper, or a text.
///
/// # Safety
///
/// `image` must point to one of them, whole.
pub(crate) unsafe fn image(image: *const u8) -> Result<Vec<Ptx>, FatbinError> {
    // SAFETY: each of them has more than four bytes, which the tests below read; the caller says that it is whole.
    unsafe {
        if fatbin::is_wrapper(image) {
            return fatbin::sources(&fatbin::of_wrapper(image)?);
        }
        if fatbin::is_container(image) {
            return fatbin::sources(&fatbin::of_memory(image)?);
        }
        if image.cast::<u32>().read_unaligned() == ELF {
            return Err(FatbinError::NoPtx("a cubin".into()));
        }
        let text = CStr::from_ptr(image.cast()).to_string_lossy();
        Ok(vec![Ptx::new(text.into_owned())])
    }
}

impl Recorder {
    /// The GPU that programs see.
    pub(crate) fn device(&self) -> Device {
        Device {
            capability: self.capability(),
            sms: self.settings.sms as i32,
            memory: self.settings.memory,
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

    /// `cudaFuncSetAttribute` and its like.
    pub(crate) fn set_attribute(&mut self, kernel: usize, id: u32, value: i32) -> Result<(), Fail> {
        let (_, program) = self.program(kernel)?;
        let fixed = (program.dynamic_shared - device::RESERVED_SHARED) as i32;
        let most = device::shared_opt_in(self.capability().0) - fixed;
        let Some(kernel) = self.kernels.get_mut(&kernel) else {
            return Err(Fail::new(Code::INVALID_DEVICE_FUNCTION, ""));
        };
        match id {
            8 if value < 0 || value > most => {
                return Err(Fail::value(format!(
                    "{value} bytes of dynamic shared memory; the GPU has {most} for this kernel"
                )));
            }
            8 => kernel.dynamic = Some(value as u32),
            11..=13 => kernel.cluster[id as usize - 11] = value.max(0) as u32,
            14 => kernel.any_cluster = value != 0,
            // Hints.
            9 | 10 | 15 => {}
            _ => return Err(Fail::value(format!("{id} is no attribute that can be set"))),
        }
        Ok(())
    }

    /// `cudaFuncGetAttributes`, as the driver numbers them.
    pub(crate) fn get_attribute(&mut self, kernel: usize, id: u32) -> Result<i32, Fail> {
        let target = self.target();
        let (kernel, program) = self.program(kernel)?;
        let sum = |v: &[ptx_sim::program::Variable]| v.iter().map(|v| v.size).sum::<u64>() as i32;
        Ok(match id {
            0 => program
                .reqntid
                .or(program.maxntid)
                .map_or(device::THREADS, |d| d.iter().product::<u32>() as i32),
            1 => sum(&program.shared),
            2 => sum(&program.constant),
            3 => sum(&program.local),
            // Registers are the assembler's choice. A number that every launch of as many threads has.
            4 => 32,
            5 | 6 => fatbin::architecture(&target) as i32,
            7 => 0,
            8 => kernel.dynamic.map_or(device::SHARED as i32, |n| n as i32),
            9 => -1,
            10 => 0,
            11..=13 => {
                let asked = kernel.cluster[id as usize - 11];
                program.cluster.map_or(asked, |c| c[id as usize - 11]) as i32
            }
            14 => i32::from(kernel.any_cluster),
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
        let major = self.capability().0;
        let (_, program) = self.program(kernel)?;
        if threads == 0 || threads > device::THREADS as u64 {
            return Err(Fail::value(format!("a CTA of {threads} threads")));
        }
        let by_threads = device::threads_of_multiprocessor(major) as u64 / threads;
        // With the system's KiB.
        let shared = (program.dynamic_shared + shared).max(1);
        let by_shared = device::shared_of_multiprocessor(major) as u64 / shared;
        let most = device::ctas_of_multiprocessor(major) as u64;
        Ok(by_threads.min(by_shared).min(most) as i32)
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

/// A handle as a program keeps it.
///
/// # Safety
///
/// `to` must be null or writable.
pub(crate) unsafe fn put_handle(to: *mut *mut c_void, handle: usize) -> Result<(), Fail> {
    // SAFETY: the caller's promise.
    unsafe { put(to, handle as *mut c_void) }
}
