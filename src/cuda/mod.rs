//! The safe call on a CUDA device: cudarc's views in, checks, dispatch, launch.

mod bind;
mod prepared;

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaStream};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::measure::driver_error;
use crate::memory::Device;
use crate::path::measured::Measurements;
use crate::path::{self, Choice, Path};
use crate::raw;
use crate::shape::Shape;
use crate::tensor::{Output, Vectors, Weights};
use crate::tune::Tuned;

use bind::Bound;
pub(crate) use bind::dense;
pub use prepared::PreparedGemv;

/// Computes `y[l][n][m] = alpha · Σ_k w[l][m][k] · x[l][n][k]` of operands in a device's memory,
/// on `stream`, and says which path it enqueued. `NVFP4_GEMV_PATH` may force one.
///
/// Nothing is allocated, synchronised or copied, so that the call can be [captured into a CUDA
/// graph](crate#cuda-graphs). The operands' own events order this call after what wrote them, as cudarc does for
/// all of its views.
///
/// # Errors
/// Operands that contradict the shape, lie on another device or in another context, or are misaligned; no path for this
/// device; a forced path that cannot run; what CUDA reports of the launch.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{DenseVectors, GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights};
///
/// nvfp4_gemv::raw::device_count()?; // a typed error where there is no driver or device
/// let stream = CudaContext::new(0)?.new_stream()?;
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
    let how = How::automatic()?;
    launch(&how, stream, shape, weights, vectors, output).map(|launched| launched.choice)
}

/// [`gemv_on_device`] with what was tuned on this device: for the problems in it, its paths and
/// configurations go before what this crate knows of itself. `NVFP4_GEMV_PATH` may still force a path.
///
/// # Errors
/// As [`gemv_on_device`]; [`Error::TunedElsewhere`] for what was tuned on another GPU than the stream's,
/// [`Error::ChainedConfig`] where it has a chained configuration in an ordinary one's place, which no file has.
pub fn gemv_on_device_tuned(
    tuned: &Tuned,
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    output: Output<'_, Device>,
) -> Result<Launched> {
    let how = How::tuned(tuned)?;
    launch(&how, stream, shape, weights, vectors, output)
}

/// How a call is dispatched.
#[derive(Clone, Copy)]
struct How<'t> {
    forced: Option<Path>,
    config: Option<Config>,
    tuned: Option<&'t Tuned>,
    /// With programmatic dependent launch: only where the caller has promised what that asks for.
    chained: bool,
}

impl<'t> How<'t> {
    fn automatic() -> Result<Self> {
        Ok(Self {
            forced: crate::gemv::environment()?,
            config: None,
            tuned: None,
            chained: false,
        })
    }

    fn tuned(tuned: &'t Tuned) -> Result<Self> {
        Ok(Self {
            tuned: Some(tuned),
            ..Self::automatic()?
        })
    }

    fn with(forced: Option<Path>, config: Option<Config>) -> Self {
        Self {
            forced,
            config,
            tuned: None,
            chained: false,
        }
    }

    fn chained(forced: Option<Path>, config: Option<Config>) -> Self {
        Self {
            chained: true,
            ..Self::with(forced, config)
        }
    }
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
/// As [`gemv_on_device`]; [`Error::Config`], [`Error::TileConfig`], [`Error::StreamConfig`] and
/// [`Error::RingConfig`] for a configuration without a kernel, [`Error::ConfigOfOtherPath`] for one that does not
/// belong to the forced path, [`Error::ChainedConfig`] for one that [`gemv_on_device_chained`] takes.
pub fn gemv_on_device_with(
    forced: Option<Path>,
    config: Option<Config>,
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    output: Output<'_, Device>,
) -> Result<Launched> {
    let how = How::with(forced, config);
    launch(&how, stream, shape, weights, vectors, output)
}

/// [`gemv_on_device_with`] for launches that follow each other with [programmatic dependent
/// launch](Config#programmatic-dependent-launch), as layers of a model can. Below compute capability 9.0
/// launches do not overlap.
///
/// Without a configuration it takes [`raw::chained_config`]'s; one of the caller's choice is launched so too,
/// whatever its `dependent` says.
///
/// # Errors
/// As [`gemv_on_device_with`], but for [`Error::ChainedConfig`].
///
/// # Safety
/// The codes and scales of the weights are complete before this launch can start: no kernel that may still be
/// running then writes them. [`Config`](Config#programmatic-dependent-launch) says which kernels those are.
/// Vectors and row factors may be written, and the output read, by any kernel before this one.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use nvfp4_gemv::{
///     DenseVectors, GlobalScale, Output, ScaleLayout, Shape, Vectors, Weights,
///     gemv_on_device_chained,
/// };
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let shape = Shape::gemv(256, 256, 1)?;
/// let codes = stream.clone_htod(&vec![0x22u8; shape.weight_code_bytes()])?;
/// let scales = stream.clone_htod(&vec![0x38u8; shape.weight_scale_bytes(ScaleLayout::Linear)])?;
/// let weights = Weights::on_device(
///     &shape, codes.as_view(), scales.as_view(), ScaleLayout::Linear, GlobalScale::Divisor(256.0),
/// )?;
/// let mut x = stream.clone_htod(&vec![1.0f32; 256])?;
/// let mut y = stream.alloc_zeros::<f32>(256)?;
/// for _layer in 0..8 {
///     let vectors = Vectors::F32(DenseVectors::new(x.as_view()));
///     let output = Output::F32(y.as_view_mut());
///     // SAFETY: the weights were copied to the device before, and no kernel writes them.
///     unsafe {
///         gemv_on_device_chained(None, None, &stream, &shape, &weights, &vectors, output)?;
///     }
///     std::mem::swap(&mut x, &mut y); // what one layer writes, the next one reads
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Without the promise it cannot be called:
///
/// ```compile_fail,E0133
/// # use std::sync::Arc;
/// # use nvfp4_gemv::{Device, Output, Result, Shape, Vectors, Weights, gemv_on_device_chained};
/// fn layer(
///     stream: &Arc<cudarc::driver::CudaStream>,
///     shape: &Shape,
///     weights: &Weights<'_, Device>,
///     vectors: &Vectors<'_, Device>,
///     output: Output<'_, Device>,
/// ) -> Result<()> {
///     gemv_on_device_chained(None, None, stream, shape, weights, vectors, output).map(drop)
/// }
/// ```
pub unsafe fn gemv_on_device_chained(
    forced: Option<Path>,
    config: Option<Config>,
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    output: Output<'_, Device>,
) -> Result<Launched> {
    let how = How::chained(forced, config);
    launch(&how, stream, shape, weights, vectors, output)
}

fn launch(
    how: &How<'_>,
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    mut output: Output<'_, Device>,
) -> Result<Launched> {
    let ordinal = stream.context().ordinal();
    let device = device(ordinal)?;
    let bound = bind::bind(stream, shape, weights, vectors, &mut output)?;
    let (choice, config) = dispatch(how, shape, &bound, device)?;
    make_current(stream)?;
    // SAFETY: the stream's context is current. The views hold valid device memory of at least the
    // lengths that were checked against the shape, borrowed through this call; cudarc's events,
    // recorded by the guards in `bound`, keep their memory from being freed or reused before the
    // enqueued work has run. `dispatch` returns a chained configuration only where the caller has promised
    // what that asks for.
    unsafe {
        raw::gemv(
            shape,
            &bound.weights,
            &bound.vectors,
            &bound.output,
            &config,
            device,
            stream.cu_stream().cast(),
        )?;
    }
    Ok(Launched { choice, config })
}

/// The path and the cut of a call: the caller's, or what the dispatch picks.
fn dispatch(
    how: &How<'_>,
    shape: &Shape,
    bound: &Bound<'_>,
    device: &raw::DeviceInfo,
) -> Result<(Choice, Config)> {
    let forced = match (how.forced, how.config) {
        (Some(forced), Some(config)) if config.path() != forced => {
            return Err(Error::ConfigOfOtherPath { config, forced });
        }
        (forced, config) => forced.or(config.map(|config| config.path())),
    };
    let (weights, vectors) = (&bound.weights, &bound.vectors);
    let operands = raw::operands(shape, weights, vectors);
    let table = match how.tuned {
        Some(tuned) => Some(tuned_here(tuned, device)?),
        None => None,
    };
    let choice = path::select_tuned(shape, &operands, &device.target(), forced, table)?;
    let tuned = || table?.find(shape, &operands)?.of(choice.path)?.config;
    let config = match how.config.or_else(tuned) {
        Some(config) => config,
        None if how.chained => raw::chained_config(choice.path, shape, weights, vectors, device)?,
        None => raw::default_config(choice.path, shape, weights, vectors, device)?,
    };
    Ok((choice, launch_mode(config, how.chained)?))
}

/// The configuration as a call launches it. This is the one place that lets chained ones pass.
fn launch_mode(config: Config, chained: bool) -> Result<Config> {
    match (chained, config.is_dependent()) {
        (true, _) => Ok(config.with_dependent(true)),
        (false, false) => Ok(config),
        (false, true) => Err(Error::ChainedConfig { config }),
    }
}

/// What was tuned, if on such a device.
fn tuned_here<'t>(tuned: &'t Tuned, device: &raw::DeviceInfo) -> Result<&'t Measurements> {
    let table = tuned.measurements();
    let gpu = &table.machine.gpu;
    if gpu.name == device.name
        && gpu.compute_capability == device.compute_capability
        && gpu.multiprocessors == device.multiprocessors
    {
        return Ok(table);
    }
    Err(Error::TunedElsewhere {
        tuned: gpu.name.clone(),
        device: device.name.clone(),
    })
}

/// An operand lies on the device of the stream that the call's work goes to, and in its context.
pub(crate) fn same_device(
    operand: &'static str,
    found: &Arc<CudaStream>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    same_context(operand, found.context(), stream.context())
}

fn same_context(operand: &'static str, found: &CudaContext, stream: &CudaContext) -> Result<()> {
    if found.cu_ctx() == stream.cu_ctx() {
        return Ok(());
    }
    let (found, stream) = (found.ordinal(), stream.ordinal());
    if found == stream {
        return Err(Error::WrongContext { operand });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RingConfig, RingTarget};

    /// Every safe call asks here before it enqueues anything.
    #[test]
    fn only_chained_calls_take_chained_configurations() {
        let shape = Shape::gemv(256, 1024, 1).unwrap();
        let target = RingTarget {
            tiled: false,
            multiprocessors: 132,
            shared_bytes: 227 << 10,
        };
        let alone = Config::from(RingConfig::for_problem(&shape, &target).unwrap());
        let chained = alone.with_dependent(true);
        assert_eq!(launch_mode(alone, false), Ok(alone));
        let refused = launch_mode(chained, false).unwrap_err();
        assert_eq!(refused, Error::ChainedConfig { config: chained });
        assert!(refused.to_string().contains("gemv_on_device_chained"));
        for config in [alone, chained] {
            assert_eq!(launch_mode(config, true), Ok(chained));
        }
    }
}
