//! The linear layer.

use candle_core::{
    CpuStorage, CustomOp1, DType, Device, DeviceLocation, Layout, Module, Shape, Tensor,
};
use nvfp4_gemv::Linear;
#[cfg(feature = "device")]
use nvfp4_gemv::{LinearOnDevice, ScaleLayout, Workspace};

use crate::error::Result;
use crate::rows::{Rows, Size, activation};

/// A linear layer `y = W x + bias` with NVFP4 weights: a module of tensors `[.., K]` of f32, f16 or bf16, whose results
/// `[.., M]` have the same type. A clone shares the weights.
///
/// Vectors are read where they lie if their elements follow each other, and they themselves do with one step, as in a
/// tensor that was narrowed along its last dimension. Other tensors are [`RequiresContiguous`]: call `contiguous()`. On
/// CUDA the first vector and the step are multiples of 16 bytes. What is not is [`Cuda`] with the library's
/// [`Misaligned`](nvfp4_gemv::Error::Misaligned): call `force_contiguous()`, which copies a contiguous tensor too.
///
/// There is no gradient: asking for one through this layer is an error.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use nvfp4_gemv_candle::Nvfp4Linear;
/// let dense = candle_nn::Linear::new(Tensor::ones((4, 32), DType::F32, &Device::Cpu)?, None);
/// let layer = Nvfp4Linear::quantize(&dense)?;
/// let y = layer.forward(&Tensor::ones((2, 3, 32), DType::BF16, &Device::Cpu)?)?;
/// assert_eq!((y.dims(), y.dtype()), (&[2, 3, 4][..], DType::BF16));
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors of `forward`
/// Of candle's: [`ShapeMismatchBinaryOp`] for a last dimension that is not K, [`UnsupportedDTypeForOp`],
/// [`RequiresContiguous`], [`DeviceMismatchBinaryOp`]. The library's errors are in [`Cuda`] for a layer on CUDA, and
/// text in [`Wrapped`] for one on the CPU, where what is left is memory that the system does not give, and
/// `NVFP4_GEMV_PATH` that asks for another path.
///
/// [`ShapeMismatchBinaryOp`]: candle_core::Error::ShapeMismatchBinaryOp
/// [`UnsupportedDTypeForOp`]: candle_core::Error::UnsupportedDTypeForOp
/// [`RequiresContiguous`]: candle_core::Error::RequiresContiguous
/// [`DeviceMismatchBinaryOp`]: candle_core::Error::DeviceMismatchBinaryOp
/// [`Cuda`]: candle_core::Error::Cuda
/// [`Wrapped`]: candle_core::Error::Wrapped
#[derive(Clone, Debug)]
pub struct Nvfp4Linear {
    layer: Layer,
}

#[derive(Clone, Debug)]
enum Layer {
    Host(Linear),
    #[cfg(feature = "device")]
    Device(LinearOnDevice, candle_core::CudaDevice),
}

const OP: &str = "nvfp4-linear";

impl Nvfp4Linear {
    /// A layer of the library's, on a device: shared on the CPU, and copied to a CUDA device, with block scales in the
    /// 128x4 layout. The copies are waited for: candle's `Device::new_cuda` has another stream in each thread.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device); on CUDA [`HasColumnAlpha`](nvfp4_gemv::Error::HasColumnAlpha) for a layer
    /// with factors of columns (AWQ), by which kernels do not multiply; errors that CUDA reports of memory and copies.
    pub fn new(layer: Linear, device: &Device) -> Result<Self> {
        let layer = match device {
            Device::Cpu => Layer::Host(layer),
            #[cfg(feature = "device")]
            Device::Cuda(device) => {
                let layer = layer.on_device(&device.cuda_stream(), ScaleLayout::Tiled128x4)?;
                crate::cuda::wait(device)?;
                Layer::Device(layer, device.clone())
            }
            other => return Err(no_kernels(other)),
        };
        Ok(Self { layer })
    }

    /// A dense layer, quantised in host memory as [`nvfp4_gemv::quantize`] does, on its device.
    ///
    /// # Errors
    /// [`Error::Weight`](crate::Error::Weight); a K that is no multiple of 16 and numbers that are not finite, as
    /// [`Linear::from_dense`]'s; as [`new`](Self::new)'s.
    pub fn quantize(dense: &candle_nn::Linear) -> Result<Self> {
        let weight = dense.weight();
        let wrong = || crate::Error::Weight {
            shape: weight.shape().clone(),
            dtype: weight.dtype(),
        };
        let (rows, k) = weight.dims2().map_err(|_| wrong())?;
        activation(weight.dtype(), OP).map_err(|_| wrong())?;
        let values = |of: &Tensor| of.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let mut layer = Linear::from_dense(&values(weight)?, rows, k)?;
        if let Some(bias) = dense.bias() {
            layer = layer.with_bias(values(bias)?)?;
        }
        Self::new(layer, weight.device())
    }

    /// This layer with a workspace, from which some kernels are faster with many vectors: as
    /// [`LinearOnDevice::with_workspace`]. Calls are then on the workspace's stream, which must be candle's:
    /// `Device::new_cuda_with_stream` has one; that of `Device::new_cuda` is another one in each thread, and can have
    /// no workspace. A layer on the CPU is as it was.
    #[cfg(feature = "device")]
    #[must_use]
    pub fn with_workspace(self, workspace: &Workspace) -> Self {
        let layer = match self.layer {
            Layer::Device(layer, device) => {
                Layer::Device(layer.with_workspace(workspace.clone()), device)
            }
            host => host,
        };
        Self { layer }
    }

    /// Bytes of a [workspace](Self::with_workspace) that calls with `n` vectors of a type would use. None on the CPU.
    ///
    /// # Errors
    /// Another type than f32, f16 and bf16; no kernel for this device.
    #[cfg(feature = "device")]
    pub fn workspace_bytes(&self, n: usize, dtype: DType) -> Result<u64> {
        let activation = activation(dtype, OP)?;
        match &self.layer {
            Layer::Host(_) => Ok(0),
            Layer::Device(layer, _) => Ok(layer.workspace_bytes(n, activation)?),
        }
    }

    /// Does what the first call with `n` vectors of a type would do besides: makes memory for intermediate data on the
    /// CPU; on CUDA chooses a kernel and loads it, or has it compiled. Before a capture into a CUDA graph.
    ///
    /// # Errors
    /// Another type than f32, f16 and bf16; no memory; no kernel for this device.
    pub fn prepare(&self, n: usize, dtype: DType) -> Result<()> {
        let activation = activation(dtype, OP)?;
        match &self.layer {
            Layer::Host(layer) => Ok(layer.prepare(n, activation)?),
            #[cfg(feature = "device")]
            Layer::Device(layer, device) => crate::cuda::prepare(layer, device, n, activation),
        }
    }

    /// Rows of the weights, M: the last dimension of results.
    pub fn rows(&self) -> usize {
        match &self.layer {
            Layer::Host(layer) => layer.rows(),
            #[cfg(feature = "device")]
            Layer::Device(layer, _) => layer.rows(),
        }
    }

    /// Elements of a row, K: the last dimension of tensors that are given.
    pub fn k(&self) -> usize {
        match &self.layer {
            Layer::Host(layer) => layer.k(),
            #[cfg(feature = "device")]
            Layer::Device(layer, _) => layer.k(),
        }
    }

    /// The library's layer, of a layer on the CPU: for calls without tensors.
    pub fn on_host(&self) -> Option<&Linear> {
        match &self.layer {
            Layer::Host(layer) => Some(layer),
            #[cfg(feature = "device")]
            Layer::Device(..) => None,
        }
    }

    fn size(&self) -> Size {
        let (rows, k) = (self.rows(), self.k());
        Size { rows, k }
    }

    #[cfg(feature = "device")]
    fn location(&self) -> DeviceLocation {
        match &self.layer {
            Layer::Host(_) => DeviceLocation::Cpu,
            Layer::Device(_, device) => candle_core::backend::BackendDevice::location(device),
        }
    }
}

/// The error of a device that layers cannot be on.
pub(crate) fn no_kernels(device: &Device) -> crate::Error {
    let device = match device.location() {
        DeviceLocation::Cpu => "the CPU".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("CUDA device {gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("Metal device {gpu_id}"),
    };
    crate::Error::Device { device }
}

impl CustomOp1 for Nvfp4Linear {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (rows, m) = (Rows::of(layout, self.size(), OP)?, self.rows());
        let y = match &self.layer {
            Layer::Host(layer) => rows.on_host(storage, m, OP, layer)?,
            #[cfg(feature = "device")]
            Layer::Device(..) => return Err(elsewhere(DeviceLocation::Cpu, self.location(), OP)),
        };
        Ok((y, Rows::results(layout, m)))
    }

    #[cfg(feature = "device")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        let (rows, m) = (Rows::of(layout, self.size(), OP)?, self.rows());
        let y = match &self.layer {
            Layer::Host(_) => {
                let found = candle_core::backend::BackendDevice::location(&storage.device);
                return Err(elsewhere(found, self.location(), OP));
            }
            Layer::Device(layer, _) => rows.on_device(storage, m, OP, layer)?,
        };
        Ok((y, Rows::results(layout, m)))
    }
}

/// The error of a tensor on another device than the layer.
pub(crate) fn elsewhere(
    lhs: DeviceLocation,
    rhs: DeviceLocation,
    op: &'static str,
) -> candle_core::Error {
    candle_core::Error::DeviceMismatchBinaryOp { lhs, rhs, op }
}

/// An operation of a tensor. What is recorded of a tensor that has a gradient says that there is none.
pub(crate) fn apply<C>(xs: &Tensor, op: &C) -> candle_core::Result<Tensor>
where
    C: CustomOp1 + Clone + Send + Sync + 'static,
{
    match xs.track_op() {
        true => xs.apply_op1(op.clone()),
        false => xs.apply_op1_no_bwd(op),
    }
}

impl Module for Nvfp4Linear {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        apply(xs, self)
    }
}
