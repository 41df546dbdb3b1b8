//! Launch plans on a device: entry points are found and loaded, tensor maps encoded, kernels enqueued.

use std::ffi::c_void;

use super::driver::{self, EncodedMap};
use crate::error::Result;
use crate::kernel::params::{NVFP4_TENSOR_MAP_ALIGN, NVFP4_TENSOR_MAP_BYTES, nvfp4_tensor_map};
use crate::kernel::plan::{Few, Launch, Plan};

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
        launches.flat_map(|(launch, kernel)| {
            launch.maps.iter().zip(kernel.maps.iter().map(|map| &map.0))
        })
    }

    /// Enqueues the kernels on `stream`, a `CUstream` or `cudaStream_t`.
    ///
    /// # Safety
    /// The context of `stream` is current, and is the one that this was made in. Every address in the plan is valid
    /// in it, for the bytes that the kernels reach, until they have run; nothing else writes them, or reads what they
    /// write, meanwhile. Where launches are dependent, no kernel that may still be running when one starts writes the
    /// codes or block scales of its weights, nor their ids, unless these are late.
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
#[derive(Clone)]
struct Kernel {
    function: driver::Function,
    maps: Box<[Map]>,
}

/// A tensor map as the driver encodes it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Map(EncodedMap);

const _: () = assert!(align_of::<Map>() == NVFP4_TENSOR_MAP_ALIGN as usize);

impl Kernel {
    fn load(launch: &Launch, stream: Option<*mut c_void>) -> Result<Self> {
        let function = driver::function(launch, stream)?;
        let encoded = launch.maps.iter().map(|map| {
            let mut encoded = Map([0; NVFP4_TENSOR_MAP_BYTES as usize]);
            driver::encode(map, &mut encoded.0)?;
            Ok(encoded)
        });
        let maps = encoded.collect::<Result<_>>()?;
        Ok(Self { function, maps })
    }

    /// # Safety
    /// As [`Loaded::enqueue`]'s.
    unsafe fn enqueue(&self, launch: &Launch, stream: *mut c_void) -> Result<()> {
        let parameters = launch.parameters.bytes().as_ptr().cast();
        let arguments = match self.maps.is_empty() {
            true => [parameters, std::ptr::null()],
            false => [self.maps.as_ptr().cast(), parameters],
        };
        // SAFETY: the arguments live through the call, which copies them. The function was loaded in this context for
        // this launch, whose plan says what the kernel takes. The rest is this function's own contract.
        unsafe { driver::launch(self.function, launch, arguments, stream) }
    }
}
