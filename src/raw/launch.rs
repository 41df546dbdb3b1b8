//! Launch plans on a device: entry points are found and loaded, tensor maps encoded, kernels enqueued.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::{PoisonError, RwLock};

use super::device::{NO_KERNEL_IMAGE, status};
use super::driver::{self, EncodedMap};
use crate::error::Result;
use crate::ffi;
use crate::kernel::params::{NVFP4_TENSOR_MAP_ALIGN, NVFP4_TENSOR_MAP_BYTES, nvfp4_tensor_map};
use crate::kernel::plan::{Few, Launch, MOST_MAPS, Plan};

/// A plan whose kernels are loaded in the context that was current, and whose tensor maps are encoded. It owns no
/// memory of the device, and keeps none alive.
#[derive(Clone)]
pub(super) struct Loaded {
    plan: Plan,
    /// The kernels, one for each launch of the plan.
    kernels: Few<Kernel>,
}

impl Loaded {
    /// Enqueues nothing, and follows no address. `stream` is of a call that enqueues at once: where it is being
    /// captured, nothing is compiled.
    pub(super) fn new(plan: Plan, stream: Option<*mut c_void>) -> Result<Self> {
        let mut kernels = Few::default();
        for launch in plan.launches() {
            kernels.push(Kernel::load(launch, stream)?);
        }
        Ok(Self { plan, kernels })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Each tensor map, as the driver encoded it.
    pub(super) fn maps(&self) -> impl Iterator<Item = (&nvfp4_tensor_map, &EncodedMap)> {
        let launches = self.plan.launches().iter().zip(self.kernels.as_slice());
        launches.flat_map(|(launch, kernel)| launch.maps().iter().zip(&kernel.maps.0))
    }

    /// Enqueues the kernels on `stream`, a `CUstream` or `cudaStream_t`.
    ///
    /// # Safety
    /// The context of `stream` is current, and is the one that this was made in. Every address in the plan is valid
    /// in it, for the bytes that the kernels reach, until they have run; nothing else writes them, or reads what they
    /// write, meanwhile. Where launches are dependent, no kernel that may still be running when one starts writes the
    /// codes, block scales or ids of its weights.
    pub(super) unsafe fn enqueue(&self, stream: *mut c_void) -> Result<()> {
        for (launch, kernel) in self.plan.launches().iter().zip(self.kernels.as_slice()) {
            match launch.repeat {
                // SAFETY: this function's own contract, here and below.
                None => unsafe { kernel.enqueue(launch, stream) }?,
                Some(_) => {
                    for part in launch.parts() {
                        // SAFETY: as above.
                        unsafe { kernel.enqueue(&part, stream) }?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Loads the kernels of a plan and enqueues them.
///
/// # Safety
/// The context of `stream` is current; otherwise as [`Loaded::enqueue`]'s.
pub(super) unsafe fn launch(plan: Plan, stream: *mut c_void) -> Result<()> {
    // SAFETY: this function's own contract.
    unsafe { Loaded::new(plan, Some(stream))?.enqueue(stream) }
}

/// A kernel, and its first argument where it takes tensor maps.
#[derive(Clone, Copy)]
struct Kernel {
    code: Code,
    maps: Maps,
}

/// A kernel's machine code.
#[derive(Clone, Copy)]
enum Code {
    /// Linked in: the runtime's entry point.
    Linked(Entry),
    /// Compiled at run time.
    #[cfg(feature = "jit")]
    Compiled(driver::Function),
}

impl Code {
    /// Found or compiled, and loaded in the context that is current.
    fn of(launch: &Launch, _stream: Option<*mut c_void>) -> Result<Self> {
        #[cfg(feature = "jit")]
        if let Some(arch) = driver::image()? {
            return Ok(Self::Compiled(driver::function(launch, arch, _stream)?));
        }
        let entry = entry(launch.entry)?;
        // SAFETY: the entry point is one of this build.
        let code = unsafe { ffi::nvfp4_gemv_load(entry) };
        status(launch.entry, code)?;
        Ok(Self::Linked(Entry(entry)))
    }
}

/// An entry point of this build.
#[derive(Clone, Copy)]
struct Entry(*const c_void);

// SAFETY: the entry point is static and never written, here or by CUDA; any thread may launch it.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// Tensor maps as the driver encodes them.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Maps([EncodedMap; MOST_MAPS]);

const _: () = assert!(align_of::<Maps>() == NVFP4_TENSOR_MAP_ALIGN as usize);

impl Kernel {
    fn load(launch: &Launch, stream: Option<*mut c_void>) -> Result<Self> {
        let code = Code::of(launch, stream)?;
        let mut maps = Maps([[0; NVFP4_TENSOR_MAP_BYTES as usize]; MOST_MAPS]);
        for (map, encoded) in launch.maps().iter().zip(&mut maps.0) {
            driver::encode(map, encoded)?;
        }
        Ok(Self { code, maps })
    }

    /// # Safety
    /// As [`Loaded::enqueue`]'s.
    unsafe fn enqueue(&self, launch: &Launch, stream: *mut c_void) -> Result<()> {
        let (maps, parameters) = (
            self.maps.0.as_ptr().cast(),
            launch.parameters.bytes().as_ptr().cast(),
        );
        let (parameter_count, parameters) = match launch.maps().is_empty() {
            true => (1, [parameters, std::ptr::null()]),
            false => (2, [maps, parameters]),
        };
        let launched = ffi::nvfp4_launch {
            entry: match self.code {
                Code::Linked(Entry(entry)) => entry,
                #[cfg(feature = "jit")]
                Code::Compiled(_) => std::ptr::null(),
            },
            grid_x: launch.grid[0],
            grid_y: launch.grid[1],
            grid_z: launch.grid[2],
            threads: launch.threads,
            cluster: launch.cluster,
            dynamic_shared: launch.dynamic_shared,
            dependent: launch.dependent.into(),
            parameter_count,
            parameters,
        };
        #[cfg(feature = "jit")]
        if let Code::Compiled(function) = self.code {
            // SAFETY: the function was loaded in this context, and the parameters are those that its plan says it
            // takes. The rest is this function's own contract.
            return unsafe { driver::launch(launch.entry, function, &launched, stream) };
        }
        // SAFETY: the structure, and what it points to, live through the call, which copies them. The entry point was
        // loaded in this context, and the parameters are those that its plan says it takes. The rest is this
        // function's own contract.
        status(launch.entry, unsafe {
            ffi::nvfp4_gemv_launch(&launched, stream)
        })
    }
}

/// The entry point of a name. Entry points that were found are kept: calls that are not prepared ask each time, and the
/// C function compares the name with those of all kernels.
fn entry(name: &'static str) -> Result<*const c_void> {
    /// Addresses, exposed: pointers are not `Sync`.
    static FOUND: RwLock<BTreeMap<&str, usize>> = RwLock::new(BTreeMap::new());
    let known = FOUND
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(name)
        .copied();
    if let Some(entry) = known {
        return Ok(std::ptr::with_exposed_provenance(entry));
    }
    let mut text = [0; 64];
    text[..name.len()].copy_from_slice(name.as_bytes());
    let text = CStr::from_bytes_until_nul(&text).expect("names are shorter");
    // SAFETY: the text lives through the call.
    let entry = unsafe { ffi::nvfp4_gemv_entry(text.as_ptr()) };
    match entry.is_null() {
        false => {
            let mut found = FOUND.write().unwrap_or_else(PoisonError::into_inner);
            found.insert(name, entry.expose_provenance());
            Ok(entry)
        }
        // A `Gpu` that was made by hand, with images that this build does not carry.
        true => status("looking for a kernel", NO_KERNEL_IMAGE).map(|()| entry),
    }
}
