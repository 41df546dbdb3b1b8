//! CUDA devices as engines. Everything the program knows about devices is behind the few
//! functions of this file.

mod board;
mod chain;
mod cublas;
mod load;
mod mixture;
mod operands;
mod rounds;

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use half::f16;
use nvfp4_gemv::kernel::Job;
use nvfp4_gemv::kernel::read_only::ReadConfig;
use nvfp4_gemv::measure::time_launches;
use nvfp4_gemv::{
    Activation, Error, FloatType, GemvPath, Gpu, Kernel, Refusal, Result, ScaleLayout, Shape,
    Target, Workspace, gemv_on_device, raw,
};

pub(crate) use self::board::Energy;
pub(crate) use self::load::load;

use self::board::Board;
use self::cublas::Cublas;
use self::operands::DeviceValues;
use self::rounds::Pool;
use super::{
    Ask, Budget, Case, Chain, Devices, Engine, Mixture, MixtureTimes, Operands, Outcome, Plan,
    SampleOf, Timing, Values, Ways, Work, document,
};

/// The architectures compiled in, as in `NVFP4_GEMV_ARCHS`; empty without kernels.
pub(crate) fn compiled_archs() -> &'static str {
    raw::COMPILED_ARCHS
}

/// A hash of the kernels' sources; nothing without kernels.
pub(crate) fn kernels() -> Option<&'static str> {
    Some(raw::KERNELS)
}

/// Asks the driver for its devices.
pub(crate) fn devices() -> Devices {
    let version = |(major, minor): (i32, i32)| format!("CUDA {major}.{minor}");
    let versions = raw::versions().ok().map(|versions| {
        format!(
            "driver: {}, runtime: {}",
            versions.driver.map_or("none".into(), version),
            versions.runtime.map_or("none".into(), version)
        )
    });
    let found = raw::device_count().and_then(|count| (0..count).map(raw::gpu).collect());
    Devices { versions, found }
}

/// The first device as an engine for `path`.
pub(crate) fn open(path: GemvPath) -> Result<Box<dyn Engine>> {
    raw::device_count().map_err(|error| match error {
        Error::NoKernels => Error::PathUnavailable {
            path,
            reason: Refusal::BuiltWithoutKernels,
        },
        other => other,
    })?;
    let gpu = raw::gpu(0)?;
    let context = CudaContext::new(0).map_err(|e| cuda("opening device 0", e))?;
    // SAFETY: all work of this program goes to the one stream below, whose order makes events
    // unnecessary. Tracked events could not be waited for inside a capture.
    unsafe { context.disable_event_tracking() };
    let stream = context
        .new_stream()
        .map_err(|e| cuda("creating a stream", e))?;
    let engine = Cuda {
        board: Board::of(&context),
        stream,
        gpu,
        pool: RefCell::new(None),
        workspace: RefCell::new(None),
        f16_pool: RefCell::new(None),
        cublas: OnceCell::new(),
    };
    // Whether the path can run anything on this device; the problem itself is asked about later.
    let any = Case {
        select: None,
        shape: Shape::matrix(128, 256)?,
        activation: Activation::Nvfp4,
        layout: ScaleLayout::Tiled128x4,
        output: FloatType::F16,
    };
    engine.choose(&any, Ask::of_path(path))?;
    Ok(Box::new(engine))
}

fn cuda(during: &'static str, error: DriverError) -> Error {
    Error::Cuda {
        during,
        code: error.0 as i32,
        message: error.to_string(),
    }
}

/// One device and one stream.
struct Cuda {
    stream: Arc<CudaStream>,
    gpu: Gpu,
    board: Board,
    /// Made by the first rounds.
    pool: RefCell<Option<Pool>>,
    /// The largest that a case has asked for.
    workspace: RefCell<Option<Workspace>>,
    /// Weights of cuBLAS, made by the first rounds with it.
    f16_pool: RefCell<Option<CudaSlice<f16>>>,
    /// Loaded when it is asked for; or why that failed.
    cublas: OnceCell<Result<Cublas, String>>,
}

impl Cuda {
    /// Bytes of a workspace with which any kernel can compute so much.
    fn workspace_bytes(&self, shape: &Shape, activation: Activation, layout: ScaleLayout) -> u64 {
        let operands = nvfp4_gemv::Operands::new(activation, layout);
        Kernel::most_workspace_bytes(&Job::new(shape, &operands, &self.gpu))
    }

    /// A workspace of so many.
    fn workspace(
        &self,
        shape: &Shape,
        activation: Activation,
        layout: ScaleLayout,
    ) -> Result<Option<Workspace>> {
        let bytes = self.workspace_bytes(shape, activation, layout);
        let mut workspace = self.workspace.borrow_mut();
        if bytes > workspace.as_ref().map_or(0, Workspace::bytes) {
            *workspace = None; // freed before its successor is allocated
            *workspace = Some(Workspace::new(&self.stream, bytes)?);
        }
        Ok(workspace.clone())
    }

    /// A result, from the device's memory.
    fn values(&self, y: &DeviceValues) -> Result<Values> {
        Ok(match y {
            DeviceValues::F16(y) => Values::F16(self.download(y)?),
            DeviceValues::Bf16(y) => Values::Bf16(self.download(y)?),
            DeviceValues::F32(y) => Values::F32(self.download(y)?),
        })
    }

    fn loaded_cublas(&self) -> Result<&Cublas, &str> {
        let loaded = self.cublas.get_or_init(|| Cublas::load(&self.stream));
        loaded.as_ref().map_err(String::as_str)
    }
}

/// Launches a graph holds, so that what starts it does not count.
const LAUNCHES: usize = 40;

impl Engine for Cuda {
    fn device(&self) -> String {
        format!("{}, {} SMs", self.gpu.name, self.gpu.multiprocessors)
    }

    fn target(&self) -> Target<'_> {
        Target::Gpu(&self.gpu)
    }

    fn compute(&self, operands: &Operands<'_>, ask: Ask) -> Result<Outcome> {
        let shape = &operands.shape;
        let weights = self.weights(operands)?;
        let x = self.inputs(&operands.x)?;
        let mut y = self.poisoned(operands.output, shape.outputs())?;
        let workspace = self.workspace(shape, operands.x.activation(), operands.layout)?;
        let choice = gemv_on_device(
            &self.stream,
            shape,
            &weights.view(operands)?,
            &x.view(),
            y.output(),
            &ask.options().workspace(workspace.as_ref()),
        )?;
        Ok(Outcome {
            y: self.values(&y)?,
            path: choice.path,
            kernel: choice.kernel(),
            reason: choice.reason.to_string(),
            roundings: choice
                .config
                .map_or(0, |config| config.roundings(shape, operands.x.activation())),
        })
    }

    fn repeat(
        &self,
        operands: &Operands<'_>,
        ask: Ask,
        budget: Budget,
    ) -> Result<(Timing, Values)> {
        let shape = &operands.shape;
        let weights = self.weights(operands)?;
        let weights = weights.view(operands)?;
        let inputs = self.inputs(&operands.x)?;
        let x = inputs.view();
        let mut y = self.poisoned(operands.output, shape.outputs())?;
        let workspace = self.workspace(shape, operands.x.activation(), operands.layout)?;
        let options = ask.options().workspace(workspace.as_ref());
        let replays = budget.runs.max(1);
        let mut seconds = Vec::new();
        let start = Instant::now();
        while seconds.is_empty() || start.elapsed() < budget.time {
            let launch = |_| {
                let output = y.output();
                gemv_on_device(&self.stream, shape, &weights, &x, output, &options).map(drop)
            };
            // SAFETY: weights, vectors and output live to the end of this function, and nothing else uses them.
            let timing = unsafe { time_launches(&self.stream, LAUNCHES, replays, launch) }?;
            seconds.push(timing.median);
        }
        let of = SampleOf::Replays {
            replays,
            launches: LAUNCHES,
        };
        Ok((Timing::of(seconds, of), self.values(&y)?))
    }

    fn with_ways(
        &self,
        case: &Case,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.prepare_ways(case, works, plan, drive)
    }

    fn with_chain(
        &self,
        chain: &Chain,
        works: &[Work],
        plan: &Plan,
        drive: &mut dyn FnMut(&mut dyn Ways) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.prepare_chain(chain, works, plan, drive)
    }

    fn mixture(&self, mixture: &Mixture, plan: &Plan) -> anyhow::Result<MixtureTimes> {
        mixture::times(self, mixture, plan)
    }

    fn cublas(&self) -> Result<String, String> {
        match self.loaded_cublas() {
            Ok(cublas) => Ok(cublas.version().into()),
            Err(why) => Err(why.into()),
        }
    }

    fn energy_notes(&self) -> Vec<String> {
        self.board.energy_notes()
    }

    fn reads(&self) -> Vec<Option<ReadConfig>> {
        let all = ReadConfig::candidates(&self.gpu);
        all.into_iter().map(Some).collect()
    }

    fn describe(&self) -> document::Device {
        let gpu = &self.gpu;
        let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
        let versions = raw::versions().ok();
        document::Device {
            kind: "cuda".into(),
            name: gpu.name.clone(),
            compute_capability: Some(version(gpu.compute_capability)),
            multiprocessors: Some(gpu.multiprocessors),
            threads: None,
            l2_bytes: Some(gpu.l2_bytes),
            memory_bytes: Some(gpu.memory_bytes),
            driver: nvfp4_gemv_documents::gpu_record::driver_version(),
            driver_cuda: versions.and_then(|versions| versions.driver).map(version),
            runtime_cuda: versions.and_then(|versions| versions.runtime).map(version),
        }
    }

    fn paths(&self) -> &'static [GemvPath] {
        &[GemvPath::TensorCore, GemvPath::CudaCore]
    }
}
