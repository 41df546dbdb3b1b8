//! The safe call on a CUDA device: cudarc's views in, checks, dispatch, launch.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceSlice};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::measure::driver_error;
use crate::memory::Device;
use crate::path::{self, Choice, Path};
use crate::raw;
use crate::shape::Shape;
use crate::tensor::{DenseVectors, FloatType, Output, Strides, VectorScale, Vectors, Weights};

/// Computes `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]` of operands in a device's memory,
/// on `stream`, and says which path it enqueued. `NVFP4_GEMV_PATH` may force one.
///
/// Nothing is allocated, synchronised or copied. The operands' own events order this call after
/// what wrote them, as cudarc does for all of its views.
///
/// # Errors
/// Operands that contradict the shape, lie on another device or are misaligned; no path for this
/// device; a forced path that cannot run; what CUDA reports of the launch.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{DenseVectors, GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights};
///
/// nvfp4_gemv::raw::device_count()?; // a typed error where there is no driver or device
/// let stream = CudaContext::new(0)?.default_stream();
/// let shape = Shape::gemv(128, 256, 1)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// let x = stream.clone_htod(&vec![1.0f32; shape.k()])?;
/// let mut y = stream.alloc_zeros::<f32>(shape.m())?;
///
/// let weights = Weights::on_device(
///     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::ONE,
/// )?;
/// let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
/// nvfp4_gemv::gemv_on_device(&stream, &shape, &weights, &vectors, Output::F32(y.as_view_mut()))?;
/// assert_eq!(stream.clone_dtoh(&y)?, [256.0; 128]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gemv_on_device(
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    output: Output<'_, Device>,
) -> Result<Choice> {
    let forced = crate::gemv::environment()?;
    gemv_on_device_with(forced, None, stream, shape, weights, vectors, output)
        .map(|launched| launched.choice)
}

/// What a call on a device enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The path, and why.
    pub choice: Choice,
    /// How it cut the problem.
    pub config: Config,
}

/// [`gemv_on_device`] on a path of the caller's choice (`None` picks one, whatever the environment
/// says), and with a configuration of the caller's choice.
///
/// # Errors
/// As [`gemv_on_device`]; [`Error::Config`] and [`Error::TileConfig`] for a configuration without a
/// kernel, [`Error::ConfigOfOtherPath`] for one that does not belong to the forced path.
pub fn gemv_on_device_with(
    forced: Option<Path>,
    config: Option<Config>,
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    mut output: Output<'_, Device>,
) -> Result<Launched> {
    let ordinal = stream.context().ordinal();
    let device = device(ordinal)?;
    let forced = match (forced, config) {
        (Some(forced), Some(config)) if config.path() != forced => {
            return Err(Error::ConfigOfOtherPath { config, forced });
        }
        (forced, config) => forced.or(config.map(|config| config.path())),
    };
    weights.check(shape)?;
    output.check(shape)?;

    let on_device = |operand, found: &Arc<CudaStream>| same_device(operand, found, stream);
    on_device("weight codes", weights.codes.stream())?;
    on_device("weight scales", weights.scales.stream())?;
    if let Some(alpha) = &weights.row_alpha {
        on_device("row alpha", alpha.stream())?;
    }
    // The guards record, when dropped, that the stream reads the buffers until then: they must
    // outlive the launch.
    let (codes, _codes) = weights.codes.device_ptr(stream);
    let (scales, _scales) = weights.scales.device_ptr(stream);
    let row_alpha = weights.row_alpha.as_ref().map(|a| a.device_ptr(stream));
    let raw_weights = raw::Weights {
        codes,
        scales,
        layout: weights.layout,
        global: weights.global,
        row_alpha: row_alpha.as_ref().map_or(0, |(address, _)| *address),
        row_alpha_batch_stride: weights.row_alpha_batch_stride(),
    };

    let (_values, _vector_scales, _vector_alpha);
    let raw_vectors = match vectors {
        Vectors::Nvfp4(v) => {
            let layout = v.resolve(shape)?;
            on_device("vector codes", v.codes.stream())?;
            on_device("vector scales", v.scales.stream())?;
            let (codes, guard) = v.codes.device_ptr(stream);
            _values = guard;
            let (scales, guard) = v.scales.device_ptr(stream);
            _vector_scales = guard;
            let vector_alpha = match &v.global {
                VectorScale::Shared(_) => 0,
                VectorScale::PerVector(alpha) => {
                    on_device("vector global scales", alpha.stream())?;
                    let (address, guard) = alpha.device_ptr(stream);
                    _vector_alpha = guard;
                    address
                }
            };
            raw::Vectors::Nvfp4 {
                codes,
                code_strides: layout.codes,
                scales,
                layout: v.layout,
                scale_strides: layout.scales,
                global: v.global.shared(),
                vector_alpha,
            }
        }
        Vectors::F16(v) => {
            on_device("vectors", v.values.stream())?;
            let (dense, guard) = dense(v, FloatType::F16, shape, &v.values, stream)?;
            _values = guard;
            dense.into()
        }
        Vectors::Bf16(v) => {
            on_device("vectors", v.values.stream())?;
            let (dense, guard) = dense(v, FloatType::Bf16, shape, &v.values, stream)?;
            _values = guard;
            dense.into()
        }
        Vectors::F32(v) => {
            on_device("vectors", v.values.stream())?;
            let (dense, guard) = dense(v, FloatType::F32, shape, &v.values, stream)?;
            _values = guard;
            dense.into()
        }
    };

    let element = output.element();
    let (address, _output) = match &mut output {
        Output::F16(y) => {
            on_device("output", y.stream())?;
            y.device_ptr_mut(stream)
        }
        Output::Bf16(y) => {
            on_device("output", y.stream())?;
            y.device_ptr_mut(stream)
        }
        Output::F32(y) => {
            on_device("output", y.stream())?;
            y.device_ptr_mut(stream)
        }
    };
    let raw_output = raw::Output { address, element };

    let operands = raw::operands(shape, &raw_weights, &raw_vectors);
    let choice = path::select(shape, &operands, &device.target(), forced)?;
    let config = match config {
        Some(config) => config,
        None => raw::default_config(choice.path, shape, &raw_weights, &raw_vectors, device)?,
    };
    make_current(stream)?;
    // SAFETY: the stream's context is current. The views hold valid device memory of at least the
    // lengths that were checked against the shape, borrowed through this call; cudarc's events,
    // recorded by the guards above, keep their memory from being freed or reused before the
    // enqueued work has run.
    unsafe {
        raw::gemv(
            shape,
            &raw_weights,
            &raw_vectors,
            &raw_output,
            &config,
            device,
            stream.cu_stream().cast(),
        )?;
    }
    Ok(Launched { choice, config })
}

/// An operand lies on the device of the stream that the call's work goes to.
pub(crate) fn same_device(
    operand: &'static str,
    found: &Arc<CudaStream>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let (found, stream) = (found.context().ordinal(), stream.context().ordinal());
    if found == stream {
        return Ok(());
    }
    Err(Error::WrongDevice {
        operand,
        found,
        stream,
    })
}

/// What the raw calls ask for.
pub(crate) fn make_current(stream: &Arc<CudaStream>) -> Result<()> {
    stream
        .context()
        .bind_to_thread()
        .map_err(|error| driver_error("making the stream's context current", error))
}

/// Dense vectors by address.
pub(crate) struct Dense {
    pub(crate) element: FloatType,
    pub(crate) values: u64,
    /// In bytes.
    pub(crate) strides: Strides,
}

impl From<Dense> for raw::Vectors {
    fn from(dense: Dense) -> Self {
        Self::Dense {
            element: dense.element,
            values: dense.values,
            strides: dense.strides,
        }
    }
}

/// Dense vectors by address, checked against the shape, and the guard of their buffer.
pub(crate) fn dense<'a, T: std::fmt::Debug + 'static>(
    vectors: &DenseVectors<'_, T, Device>,
    element: FloatType,
    shape: &Shape,
    values: &'a CudaView<'_, T>,
    stream: &'a CudaStream,
) -> Result<(Dense, cudarc::driver::SyncOnDrop<'a>)> {
    let strides = vectors.resolve(shape)?;
    let bytes = |elements: usize| elements * element.bytes();
    let (values, guard) = values.device_ptr(stream);
    let dense = Dense {
        element,
        values,
        strides: Strides {
            row: bytes(strides.row),
            batch: bytes(strides.batch),
        },
    };
    Ok((dense, guard))
}

/// Properties of a device, asked for once a process.
fn device(ordinal: usize) -> Result<&'static raw::DeviceInfo> {
    const MOST: usize = 64;
    static DEVICES: [OnceLock<raw::DeviceInfo>; MOST] = [const { OnceLock::new() }; MOST];
    let slot = DEVICES.get(ordinal).ok_or(Error::NoDevice {
        visible: String::new(),
    })?;
    if let Some(device) = slot.get() {
        return Ok(device);
    }
    let device = raw::device_info(ordinal as u32)?;
    Ok(slot.get_or_init(|| device))
}
