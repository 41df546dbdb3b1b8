//! CUDA devices as engines. Everything the program knows about devices is behind the three
//! functions of this file.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr, DriverError};
use nvfp4_gemv::measure::{copies_for_cold_l2, time_launches, time_read_only};
use nvfp4_gemv::path::{self, available};
use nvfp4_gemv::{
    Activation, DenseVectors, Error, FloatType, Launched, Nvfp4Vectors, Output, Path, Result,
    ScaleLayout, Shape, Target, VectorScale, Vectors, Weights, gemv_on_device_with, raw,
};
use serde_json::json;

use super::{
    Budget, Device, Devices, Engine, InputScale, Inputs, Operands, Outcome, Timing, Values,
};

/// The architectures compiled in, as in `NVFP4_GEMV_ARCHS`; empty without kernels.
pub(crate) fn compiled_archs() -> &'static str {
    raw::COMPILED_ARCHS
}

/// Asks the driver for its devices.
pub(crate) fn devices() -> Devices {
    let version = |(major, minor): (i32, i32)| format!("CUDA {major}.{minor}");
    let versions = raw::versions().ok().map(|versions| {
        format!(
            "driver: {}, runtime: {}",
            versions.driver.map_or("none".into(), version),
            version(versions.runtime)
        )
    });
    let found = raw::device_count().and_then(|count| (0..count).map(describe).collect());
    Devices { versions, found }
}

fn describe(ordinal: u32) -> Result<Device> {
    let info = raw::device_info(ordinal)?;
    let (major, minor) = info.compute_capability;
    Ok(Device {
        compute_capability: info.compute_capability,
        text: format!(
            "{}, compute capability {major}.{minor}, {} SMs, {} MB of L2, {} GB of memory",
            info.name,
            info.multiprocessors,
            info.l2_bytes >> 20,
            info.memory_bytes >> 30,
        ),
        json: json!({
            "name": info.name,
            "compute_capability": format!("{major}.{minor}"),
            "multiprocessors": info.multiprocessors,
            "l2_bytes": info.l2_bytes,
            "memory_bytes": info.memory_bytes,
        }),
    })
}

/// The first device as an engine for `path`.
pub(crate) fn open(path: Path) -> Result<Box<dyn Engine>> {
    raw::device_count()?;
    let info = raw::device_info(0)?;
    // Whether the path can run anything on this device; the problem itself is asked about later.
    let any = Shape::gemv(128, 256, 1)?;
    let tiled = path::Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
    available(path, &any, &tiled, &info.target())
        .map_err(|reason| Error::PathUnavailable { path, reason })?;
    let context = CudaContext::new(0).map_err(|e| cuda("opening device 0", e))?;
    // SAFETY: all work of this program goes to the one stream below, whose order makes events
    // unnecessary. Tracked events could not be waited for inside a capture.
    unsafe { context.disable_event_tracking() };
    let stream = context
        .new_stream()
        .map_err(|e| cuda("creating a stream", e))?;
    Ok(Box::new(Cuda { stream, info }))
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
    info: raw::DeviceInfo,
}

/// Weights in device memory.
struct DeviceWeights {
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    row_alpha: Option<CudaSlice<f32>>,
}

impl DeviceWeights {
    fn view(&self, operands: &Operands<'_>) -> Result<Weights<'_, nvfp4_gemv::Device>> {
        let weights = Weights::on_device(
            &operands.shape,
            self.codes.as_view(),
            self.scales.as_view(),
            operands.layout,
            operands.global,
        )?;
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha_on_device(alpha.as_view()),
            None => Ok(weights),
        }
    }
}

/// Vectors in device memory.
enum DeviceInputs<'a> {
    Nvfp4 {
        of: &'a Inputs,
        codes: CudaSlice<u8>,
        scales: CudaSlice<u8>,
        per_vector: Option<CudaSlice<f32>>,
    },
    F16(CudaSlice<half::f16>),
    Bf16(CudaSlice<half::bf16>),
    F32(CudaSlice<f32>),
}

impl DeviceInputs<'_> {
    fn view(&self) -> Vectors<'_, nvfp4_gemv::Device> {
        match self {
            Self::Nvfp4 {
                of,
                codes,
                scales,
                per_vector,
            } => {
                let Inputs::Nvfp4 { layout, global, .. } = of else {
                    unreachable!("made from NVFP4 inputs");
                };
                let global = match (per_vector, global) {
                    (Some(globals), _) => VectorScale::PerVector(globals.as_view()),
                    (None, InputScale::Shared(global)) => VectorScale::Shared(*global),
                    (None, InputScale::PerVector(_)) => unreachable!("uploaded with the codes"),
                };
                Vectors::Nvfp4(Nvfp4Vectors::new(
                    codes.as_view(),
                    scales.as_view(),
                    *layout,
                    global,
                ))
            }
            Self::F16(x) => Vectors::F16(DenseVectors::new(x.as_view())),
            Self::Bf16(x) => Vectors::Bf16(DenseVectors::new(x.as_view())),
            Self::F32(x) => Vectors::F32(DenseVectors::new(x.as_view())),
        }
    }
}

/// A result in device memory.
enum DeviceValues {
    F16(CudaSlice<half::f16>),
    Bf16(CudaSlice<half::bf16>),
    F32(CudaSlice<f32>),
}

impl DeviceValues {
    fn output(&mut self) -> Output<'_, nvfp4_gemv::Device> {
        match self {
            Self::F16(y) => Output::F16(y.as_view_mut()),
            Self::Bf16(y) => Output::Bf16(y.as_view_mut()),
            Self::F32(y) => Output::F32(y.as_view_mut()),
        }
    }
}

impl Cuda {
    fn upload<T: DeviceRepr>(&self, values: &[T]) -> Result<CudaSlice<T>> {
        self.stream
            .clone_htod(values)
            .map_err(|e| cuda("copying operands to the device", e))
    }

    fn download<T: DeviceRepr>(&self, values: &CudaSlice<T>) -> Result<Vec<T>> {
        self.stream
            .clone_dtoh(values)
            .map_err(|e| cuda("copying the result from the device", e))
    }

    fn weights(&self, operands: &Operands<'_>) -> Result<DeviceWeights> {
        // Host data is looked at before it goes where it no longer is.
        operands.weights()?;
        let row_alpha = operands.row_alpha.as_ref();
        Ok(DeviceWeights {
            codes: self.upload(&operands.codes)?,
            scales: self.upload(&operands.scales)?,
            row_alpha: row_alpha.map(|alpha| self.upload(alpha)).transpose()?,
        })
    }

    fn inputs<'a>(&self, x: &'a Inputs) -> Result<DeviceInputs<'a>> {
        Ok(match x {
            Inputs::Nvfp4 {
                codes,
                scales,
                global,
                ..
            } => DeviceInputs::Nvfp4 {
                of: x,
                codes: self.upload(codes)?,
                scales: self.upload(scales)?,
                per_vector: match global {
                    InputScale::PerVector(globals) => Some(self.upload(globals)?),
                    InputScale::Shared(_) => None,
                },
            },
            Inputs::F16(x) => DeviceInputs::F16(self.upload(x)?),
            Inputs::Bf16(x) => DeviceInputs::Bf16(self.upload(x)?),
            Inputs::F32(x) => DeviceInputs::F32(self.upload(x)?),
        })
    }

    fn poisoned(&self, element: FloatType, count: usize) -> Result<DeviceValues> {
        Ok(match Values::poisoned(element, count) {
            Values::F16(y) => DeviceValues::F16(self.upload(&y)?),
            Values::Bf16(y) => DeviceValues::Bf16(self.upload(&y)?),
            Values::F32(y) => DeviceValues::F32(self.upload(&y)?),
        })
    }
}

/// Launches a graph holds, so that what starts it does not count.
const LAUNCHES: usize = 40;

impl Engine for Cuda {
    fn device(&self) -> String {
        format!("{}, {} SMs", self.info.name, self.info.multiprocessors)
    }

    fn target(&self) -> Target {
        self.info.target()
    }

    fn compute(&self, operands: &Operands<'_>, forced: Option<Path>) -> Result<Outcome> {
        let shape = &operands.shape;
        let weights = self.weights(operands)?;
        let x = self.inputs(&operands.x)?;
        let mut y = self.poisoned(operands.output, shape.outputs())?;
        let Launched { choice, config } = gemv_on_device_with(
            forced,
            None,
            &self.stream,
            shape,
            &weights.view(operands)?,
            &x.view(),
            y.output(),
        )?;
        let y = match &y {
            DeviceValues::F16(y) => Values::F16(self.download(y)?),
            DeviceValues::Bf16(y) => Values::Bf16(self.download(y)?),
            DeviceValues::F32(y) => Values::F32(self.download(y)?),
        };
        Ok(Outcome {
            y,
            path: choice.path,
            reason: choice.reason.to_string(),
            roundings: config.roundings(shape, operands.x.activation()),
        })
    }

    fn time(
        &self,
        operands: &Operands<'_>,
        forced: Option<Path>,
        budget: Budget,
    ) -> Result<Timing> {
        let shape = &operands.shape;
        let bytes = shape.weight_bytes();
        let copies = match budget.cold_bytes {
            0 => 1,
            cold => cold
                .div_ceil(bytes.max(1))
                .max(copies_for_cold_l2(bytes, self.info.l2_bytes)),
        };
        let weights: Vec<DeviceWeights> = (0..copies)
            .map(|_| self.weights(operands))
            .collect::<Result<_>>()?;
        let views: Vec<Weights<'_, nvfp4_gemv::Device>> = weights
            .iter()
            .map(|weights| weights.view(operands))
            .collect::<Result<_>>()?;
        let inputs = self.inputs(&operands.x)?;
        let x = inputs.view();
        let mut y = self.poisoned(operands.output, shape.outputs())?;
        let launches = copies.max(LAUNCHES);
        let mut seconds = Vec::new();
        let start = Instant::now();
        while seconds.is_empty() || start.elapsed() < budget.time {
            let timing = time_launches(&self.stream, launches, budget.runs.max(1), |i| {
                let weights = &views[i % copies];
                let output = y.output();
                gemv_on_device_with(forced, None, &self.stream, shape, weights, &x, output)
                    .map(drop)
            })?;
            seconds.push(timing.median);
        }
        let mut timing = Timing::of(seconds, bytes * copies);
        timing.runs *= budget.runs.max(1) * launches;
        Ok(timing)
    }

    fn read_ceiling(&self, bytes: usize, rotated: usize) -> Result<f64> {
        let copies = (rotated / bytes.max(1)).max(1);
        // Addresses are rounded down to whole vectors of 16 bytes.
        let offsets: Vec<usize> = (0..copies.max(LAUNCHES))
            .map(|i| i % copies * bytes / 16 * 16)
            .collect();
        // Random bytes: memory that is all zero can read faster.
        let mut rng = fastrand::Rng::with_seed(1);
        let mut random = vec![0u8; (64 << 20).min(copies * bytes)];
        rng.fill(&mut random);
        // SAFETY: every byte is written below, before it is read.
        let mut data = unsafe { self.stream.alloc::<u8>(copies * bytes) }
            .map_err(|e| cuda("allocating", e))?;
        let mut at = 0;
        while at < data.len() {
            let piece = random.len().min(data.len() - at);
            self.stream
                .memcpy_htod(&random[..piece], &mut data.slice_mut(at..at + piece))
                .map_err(|e| cuda("copying", e))?;
            at += piece;
        }
        let timing = time_read_only(
            &self.stream,
            &data,
            &offsets,
            bytes,
            self.info.multiprocessors,
            9,
        )?;
        Ok(bytes as f64 / timing.median)
    }

    fn paths(&self) -> &'static [Path] {
        &[Path::TensorCore, Path::CudaCoreTma, Path::CudaCore]
    }
}
