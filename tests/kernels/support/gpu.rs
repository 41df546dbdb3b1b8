//! Shared parts of trials on a real GPU: the GPU, or the reason why there is none, and trials that give the reason.
//! Problems in the GPU's memory, and calls of these problems by address.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{
    CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, DeviceRepr, result, sys,
};
use nvfp4_gemv::kernel::{Call, Config, Job, Kernel};
use nvfp4_gemv::{Activation, Choice, Options, RawWorkspace, ScaleLayout, Shape, raw};
use nvfp4_gemv_trials::Trial;

use super::operands::Operands;

/// The first device and a stream of its own.
pub(crate) struct Gpu {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) info: nvfp4_gemv::Gpu,
}

/// A trial that needs a GPU that runs `kernel`. Without such a GPU the trial is ignored, with the reason.
pub(crate) fn kernel_trial(
    kernel: Kernel,
    name: &str,
    run: impl FnOnce(&Gpu) + Send + 'static,
) -> Trial {
    let refusal = move || -> nvfp4_gemv::Result<Option<String>> {
        raw::device_count()?;
        let gpu = raw::gpu(0)?;
        let shape = Shape::matrix(128, 256)?;
        let operands = nvfp4_gemv::Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
        let operands = operands.with_workspace(u64::MAX);
        let job = Job::new(&shape, &operands, &gpu);
        Ok(kernel
            .available(&job)
            .err()
            .map(|refusal| refusal.to_string()))
    };
    let missing = move || refusal().unwrap_or_else(|error| Some(format!("no GPU: {error}")));
    nvfp4_gemv_trials::trial(format!("{kernel}::gpu::{name}"), missing, move || {
        run(&Gpu::first())
    })
}

/// A lock, held while streams are made and while work is captured. A new stream waits for the context, and the wait
/// ends other threads' captures.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// The first device.
    pub(crate) fn first() -> Self {
        raw::device_count().unwrap();
        Self::new(CudaContext::new(0).unwrap())
    }

    /// The first device in a CUDA context that is not its primary one.
    pub(crate) fn in_another_context() -> Self {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable, and the context is cudarc's from then on.
        unsafe {
            let device = result::device::get(0).unwrap();
            sys::cuCtxCreate_v4(&mut context, std::ptr::null_mut(), 0, device)
                .result()
                .unwrap();
            Self::new(CudaContext::from_raw_context(0, device, context).unwrap())
        }
    }

    fn new(context: Arc<CudaContext>) -> Self {
        // SAFETY: a trial has a `CudaContext` of its own, and orders and waits for its streams itself. Inside a
        // capture, events would wait for those of before it.
        unsafe { context.disable_event_tracking() };
        Self::new_stream(&context)
    }

    /// Another stream.
    pub(crate) fn new_stream(context: &Arc<CudaContext>) -> Self {
        let _alone = alone();
        Self {
            stream: context.new_stream().unwrap(),
            info: raw::gpu(0).unwrap(),
        }
    }

    pub(crate) fn upload<T: DeviceRepr + Clone>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    pub(crate) fn address<T>(&self, values: &CudaSlice<T>) -> u64 {
        values.device_ptr(&self.stream).0
    }

    /// The stream's handle, for calls by address.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.stream.context().bind_to_thread().unwrap();
        self.stream.cu_stream().cast()
    }

    /// The work that `enqueue` puts into the stream, as a graph.
    pub(crate) fn capture(&self, enqueue: impl FnOnce()) -> CudaGraph {
        self.stream.synchronize().unwrap();
        let _capturing = alone();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).unwrap();
        enqueue();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).unwrap();
        graph.expect("the capture holds the launches")
    }
}

/// Options that ask for a config, and for a chained launch if `chained` says so.
pub(crate) fn options(config: Config, chained: bool) -> Options<'static> {
    let options = Options::new().config(config);
    match chained {
        // SAFETY: weights of trials were copied to the device, and no kernel writes them.
        true => unsafe { options.chained() },
        false => options,
    }
}

/// Bytes past the end of the output that must keep their poison.
const CANARY: usize = 256;

/// Distance of an operand from a boundary of 256 bytes: `offset` for weights' codes and for codes of NVFP4 vectors,
/// half as many bytes for scales.
fn behind(offset: usize, name: &str, activation: Activation) -> usize {
    match name {
        "weight codes" => offset,
        "vectors" if activation == Activation::Nvfp4 => offset,
        "weight scales" | "vector scales" => offset / 2,
        _ => 0,
    }
}

/// A problem in device memory.
pub(crate) struct OnDevice<'a> {
    gpu: &'a Gpu,
    pub(crate) operands: Arc<Operands>,
    pub(crate) call: Call,
    output: CudaSlice<u8>,
    workspace: CudaSlice<u8>,
    _memory: Vec<CudaSlice<u8>>,
}

/// A workspace before its first call: zeros in its counters, poison behind them.
pub(crate) fn unused_workspace(bytes: usize) -> Vec<u8> {
    let mut all = vec![0xff; bytes];
    let counters = bytes.min(RawWorkspace::COUNTER_BYTES as usize);
    all[..counters].fill(0);
    all
}

impl<'a> OnDevice<'a> {
    pub(crate) fn new(gpu: &'a Gpu, operands: Arc<Operands>) -> Self {
        Self::with(gpu, operands, 0, |_| None)
    }

    /// A problem in device memory at addresses so many bytes behind a boundary.
    pub(crate) fn behind(gpu: &'a Gpu, operands: Arc<Operands>, offset: usize) -> Self {
        Self::with(gpu, operands, offset, |_| None)
    }

    /// A problem in device memory. `elsewhere` gives addresses of operands that are already there, by their names.
    pub(crate) fn with(
        gpu: &'a Gpu,
        operands: Arc<Operands>,
        offset: usize,
        elsewhere: impl Fn(&str) -> Option<u64>,
    ) -> Self {
        let output = gpu.upload(&vec![0xff; operands.bytes.output_bytes() + CANARY]);
        let mut memory = Vec::new();
        let call = operands.bytes.call(gpu.address(&output), |name, bytes| {
            if let Some(address) = elsewhere(name) {
                return address;
            }
            let offset = behind(offset, name, operands.case.activation);
            let slice = gpu.upload(&[&vec![0; offset], bytes].concat());
            let address = gpu.address(&slice) + offset as u64;
            memory.push(slice);
            address
        });
        // The largest workspace that any kernel asks for. Bytes behind it must keep their poison, too.
        let asked = call.operands();
        let bytes = Kernel::most_workspace_bytes(&Job::new(call.shape(), &asked, &gpu.info));
        let workspace = [unused_workspace(bytes as usize), vec![0xff; CANARY]].concat();
        let workspace = gpu.upload(&workspace);
        let address = gpu.address(&workspace);
        let call = call.with_workspace(RawWorkspace { address, bytes });
        Self {
            gpu,
            operands,
            call: call.expect("allocations are aligned, and apart"),
            workspace,
            output,
            _memory: memory,
        }
    }

    /// Calls `ask` with the job that kernels are asked about.
    pub(crate) fn job<T>(&self, chained: bool, ask: impl FnOnce(&Job<'_>) -> T) -> T {
        ask(&Job::new(self.call.shape(), &self.call.operands(), &self.gpu.info).chained(chained))
    }

    /// Enqueues a call.
    pub(crate) fn enqueue(&self, options: &Options<'_>) -> nvfp4_gemv::Result<Choice> {
        // SAFETY: the operands live as long as `self`, whose work is waited for before it is dropped, and nothing
        // else writes them.
        unsafe { raw::gemv(&self.call, &self.gpu.info, options, self.gpu.handle()) }
    }

    /// Fills the output with NaN, or with the residual that lies in its place. Bytes after the output are poisoned,
    /// too.
    pub(crate) fn poison(&mut self) {
        let mut poison = self.operands.bytes.output_before().unwrap_or_default();
        poison.resize(self.output.len(), 0xff);
        self.gpu
            .stream
            .memcpy_htod(&poison, &mut self.output)
            .unwrap();
    }

    /// The output. Checks that nothing was written behind the output and behind the workspace, and that counters are
    /// zero.
    pub(crate) fn download(&self) -> Vec<u8> {
        let without_canary = |slice: &CudaSlice<u8>, from: usize| {
            let mut all = self.gpu.stream.clone_dtoh(&slice.slice(from..)).unwrap();
            let canary = all.split_off(all.len() - CANARY);
            assert!(canary.iter().all(|&b| b == 0xff), "wrote past the end");
            all
        };
        let front = without_canary(&self.workspace, 0);
        let counters = front.iter().take(RawWorkspace::COUNTER_BYTES as usize);
        assert!(counters.copied().all(|b| b == 0), "a counter is not zero");
        without_canary(&self.output, 0)
    }

    /// The output of a config: the same from a call, and from a call that is prepared and launched twice.
    pub(crate) fn run(&mut self, config: Config, chained: bool) -> Vec<u8> {
        let options = options(config, chained);
        let what = format!("{:?} {config:?} chained {chained}", self.operands.case);
        self.poison();
        let choice = self
            .enqueue(&options)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(choice.config, Some(config));
        let called = self.download();
        let prepared = raw::PreparedRawGemv::new(&self.call, &self.gpu.info, &options).unwrap();
        for _ in 0..2 {
            self.poison();
            // SAFETY: as in `enqueue`.
            unsafe { prepared.run(self.gpu.handle()) }.unwrap();
        }
        assert!(
            called == self.download(),
            "{what}: prepared launches differ"
        );
        called
    }

    /// Demands that the output of a config is within the config's error bound, or is exact.
    pub(crate) fn assert_right(&mut self, config: Config, chained: bool) {
        let y = self.run(config, chained);
        let case = &self.operands.case;
        let roundings = config.roundings(&case.shape, case.activation);
        if let Some(difference) = self.operands.difference(&y, roundings) {
            panic!("{case:?} {config:?} chained {chained}: {difference}");
        }
    }
}
