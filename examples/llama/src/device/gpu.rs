//! A GPU: its stream, and the example's kernels, loaded.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nvfp4_gemv::cudarc::driver::{CudaContext, CudaStream, DevicePtr, result, sys};
use nvfp4_gemv::{Gpu, ScaleLayout, raw};
use nvfp4_gemv_nvrtc::arch::Arch;
use nvfp4_gemv_nvrtc::cache::Cache;
use nvfp4_gemv_nvrtc::{Names, Nvrtc, Source, Stage};

use super::kernels::{ENTRIES, Heads, Launch, RANDOM};

/// The environment's names, which are the library's.
const NAMES: Names = Names {
    place: nvfp4_gemv::jit::LIBRARY_VARIABLE,
    cache: nvfp4_gemv::jit::CACHE_VARIABLE,
    cache_folder: "nvfp4-gemv",
    target: None,
    info: "`nvfp4-gemv info`",
    install: "The CUDA Toolkit has it (package cuda-nvrtc), and so has the PyPI package nvidia-cuda-nvrtc.",
};

/// A GPU, the one stream that everything goes to, and the kernels.
pub(super) struct Place {
    pub(super) gpu: Gpu,
    pub(super) stream: Arc<CudaStream>,
    pub(super) heads: Heads,
    module: sys::CUmodule,
    functions: BTreeMap<&'static str, sys::CUfunction>,
}

impl Place {
    /// The first GPU. Compiles the kernels, or takes them from the cache. `heads` is given the GPU's number of
    /// multiprocessors.
    pub(super) fn new(heads: impl FnOnce(u32) -> Result<Heads>) -> Result<Self> {
        ensure!(raw::device_count()? > 0, "there is no GPU");
        let gpu = raw::gpu(0)?;
        let heads = heads(gpu.multiprocessors)?;
        let context = CudaContext::new(0)?;
        // SAFETY: all work goes to the one stream below, whose order is the order in which buffers are used and freed.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?; // the default stream cannot be captured
        let (major, minor) = gpu.compute_capability;
        let arch = Arch::own((major * 10 + minor) as u32);
        let nvrtc = Nvrtc::load(&NAMES).map_err(|error| match error.hint(&NAMES) {
            Some(hint) => anyhow::anyhow!("{error}\n{hint}"),
            None => error.into(),
        })?;
        let source = Source {
            name: "kernels.cu".into(),
            text: heads.source(),
            headers: Arc::default(),
        };
        let options = ["--std=c++17".to_owned()];
        let cache = Cache::of_user(&NAMES);
        let (compiled, _) = cache.compile(&nvrtc, &source, arch, &options, Stage::Cubin)?;
        context.bind_to_thread()?;
        // SAFETY: a whole cubin, as NVRTC made it; the driver copies it.
        let module = unsafe { result::module::load_data(compiled.cubin.as_ptr().cast()) };
        let mut place = Self {
            gpu,
            stream,
            heads,
            module: module.context("loading the example's kernels")?,
            functions: BTreeMap::new(),
        };
        for entry in ENTRIES.into_iter().chain([RANDOM]) {
            let name = CString::new(entry)?;
            // SAFETY: the module is loaded, and is unloaded with `place`.
            let function = unsafe { result::module::get_function(place.module, name) };
            place.functions.insert(entry, function.context(entry)?);
        }
        Ok(place)
    }

    /// Whether launches may overlap.
    fn overlaps(&self) -> bool {
        self.gpu.compute_capability >= (9, 0)
    }

    /// The layout of block scales that the GPU's kernels ask for.
    pub(super) fn layout(&self) -> ScaleLayout {
        match self.gpu.compute_capability.0 {
            10 => ScaleLayout::Tiled128x4,
            _ => ScaleLayout::Linear,
        }
    }

    /// Enqueues a launch. It starts before the one before it has ended, for which the kernel then waits, unless it is
    /// `first`.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and their addresses are of this device's memory for what the kernel reads
    /// and writes there, until it has run.
    pub(super) unsafe fn enqueue(&self, launch: &Launch, first: bool) -> Result<()> {
        let mut bits: Vec<u64> = launch.arguments.iter().map(|of| of.bits()).collect();
        let mut arguments: Vec<*mut c_void> =
            bits.iter_mut().map(|of| (of as *mut u64).cast()).collect();
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream.cu_stream(),
            attrs: &mut overlap,
            numAttrs: u32::from(self.overlaps() && !first),
        };
        let function = *self.functions.get(launch.entry).context(launch.entry)?;
        self.stream.context().bind_to_thread()?;
        // SAFETY: configuration and arguments live through the call, which copies them. Bits lie as the processor has
        // them, its least significant byte first, as the kernel's integers do. The rest is this function's contract.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        result.result().with_context(|| launch.entry.to_owned())
    }

    /// The address of memory of this stream's.
    pub(super) fn address<T>(&self, of: &impl DevicePtr<T>) -> u64 {
        of.device_ptr(&self.stream).0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: nothing runs any more, and nobody has the functions any more.
        let _ = unsafe { result::module::unload(self.module) };
    }
}
