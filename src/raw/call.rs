//! One problem, checked and translated for the C ABI: to be launched at once, or prepared.

use std::ffi::c_void;

use super::device::{DeviceInfo, status};
use super::gemv::{Output, Vectors, Weights, arguments, cuda_core_config};
use super::ring::ring_config;
use super::stream::stream_config;
use super::tiled::tile_config;
use crate::config::{Config, TileKernel};
use crate::error::Result;
use crate::ffi;
use crate::shape::Shape;

/// Which kernels of the C ABI, with their configuration.
enum Kernels {
    CudaCore(ffi::nvfp4_cuda_core_config),
    CudaCoreTma(ffi::nvfp4_tile_config),
    TensorCore(ffi::nvfp4_tile_config),
    Stream(ffi::nvfp4_stream_config),
    Ring(ffi::nvfp4_ring_config),
}

/// A problem that was checked, and is not empty.
pub(super) struct Call {
    args: ffi::nvfp4_gemv_args,
    kernels: Kernels,
}

impl Call {
    /// Checks everything that can be without reading device memory. Nothing for an empty problem.
    pub(super) fn new(
        shape: &Shape,
        weights: &Weights,
        vectors: &Vectors,
        output: &Output,
        config: &Config,
        device: &DeviceInfo,
    ) -> Result<Option<Self>> {
        if shape.is_empty() {
            return Ok(None);
        }
        let args = arguments(shape, weights, vectors, output)?;
        let kernels = match config {
            Config::CudaCore(config) => {
                Kernels::CudaCore(cuda_core_config(shape, weights, vectors, config, device)?)
            }
            Config::Tile(config) => {
                let raw = tile_config(shape, weights, vectors, config, device)?;
                match config.kernel {
                    TileKernel::CudaCore => Kernels::CudaCoreTma(raw),
                    TileKernel::TensorCore { .. } => Kernels::TensorCore(raw),
                }
            }
            Config::Stream(config) => {
                Kernels::Stream(stream_config(shape, weights, vectors, config, device)?)
            }
            Config::Ring(config) => {
                Kernels::Ring(ring_config(shape, weights, vectors, config, device)?)
            }
        };
        Ok(Some(Self { args, kernels }))
    }

    /// Enqueues the kernels.
    ///
    /// # Safety
    /// As [`gemv`](super::gemv)'s.
    pub(super) unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        let args = &self.args;
        // SAFETY: the structures live through the call, which does not keep them; the rest is this
        // function's own contract.
        unsafe {
            match &self.kernels {
                Kernels::CudaCore(config) => status(
                    "launching gemv_cuda_core",
                    ffi::nvfp4_gemv_cuda_core(args, config, stream),
                ),
                Kernels::CudaCoreTma(config) => status(
                    "launching gemv_cuda_core_tma",
                    ffi::nvfp4_gemv_cuda_core_tma(args, config, stream),
                ),
                Kernels::TensorCore(config) => status(
                    "launching gemv_tcgen05",
                    ffi::nvfp4_gemv_tensor_core(args, config, stream),
                ),
                Kernels::Stream(config) => status(
                    "launching gemv_stream",
                    ffi::nvfp4_gemv_stream(args, config, stream),
                ),
                Kernels::Ring(config) => status(
                    "launching gemv_ring",
                    ffi::nvfp4_gemv_ring(args, config, stream),
                ),
            }
        }
    }

    /// Prepares the launches for the context that is current.
    pub(super) fn prepare(&self) -> Result<ffi::nvfp4_gemv_prepared> {
        let mut prepared = ffi::nvfp4_gemv_prepared::default();
        let (out, args) = (&mut prepared, &self.args);
        // SAFETY: the structures live through the calls, which do not keep them. Addresses in the
        // arguments are taken over, not followed.
        let code = unsafe {
            match &self.kernels {
                Kernels::CudaCore(config) => ffi::nvfp4_gemv_prepare_cuda_core(out, args, config),
                Kernels::CudaCoreTma(config) => {
                    ffi::nvfp4_gemv_prepare_cuda_core_tma(out, args, config)
                }
                Kernels::TensorCore(config) => {
                    ffi::nvfp4_gemv_prepare_tensor_core(out, args, config)
                }
                Kernels::Stream(config) => ffi::nvfp4_gemv_prepare_stream(out, args, config),
                Kernels::Ring(config) => ffi::nvfp4_gemv_prepare_ring(out, args, config),
            }
        };
        status("preparing a GEMV", code)?;
        Ok(prepared)
    }
}
