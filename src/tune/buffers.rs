//! A problem in device memory, with as many copies of the weights as keep them out of the L2 cache.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut, DevicePtr, DriverError};

use crate::context::driver_error;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::{Call, Job, Kernel};
use crate::measure::copies_for_cold_l2;
use crate::operands::{Operands, RawOutput, RawVectors, RawWeights};
use crate::shape::{Shape, Strides};
use crate::tensor::GlobalScale;
use crate::types::{Activation, FloatType};
use crate::workspace::Workspace;

/// Alignment of operands in bytes: more than any kernel asks for.
const ALIGN: usize = 256;

/// More would be graphs that take longer to make than to run. Weights of less than about 100 KB stay in the L2
/// cache, and of those of less than 8 MB kernels may find more of it than [`copies_for_cold_l2`] says.
const MOST_COPIES: usize = 1024;
const ENOUGH_COPIES: usize = 512;

/// The number of copies of a problem's weights that keep them out of the L2 cache.
pub(super) fn cold_copies(shape: &Shape, l2_bytes: u64) -> usize {
    let bytes = shape.weight_bytes();
    let beyond_l2 = (l2_bytes as usize).saturating_mul(2) / bytes.max(1) + 1;
    copies_for_cold_l2(bytes, l2_bytes)
        .min(beyond_l2.max(ENOUGH_COPIES))
        .min(MOST_COPIES)
}

pub(super) struct Buffers {
    /// Codes and scales, copy after copy.
    pub(super) weights: CudaSlice<u8>,
    /// Offsets of the copies.
    pub(super) offsets: Vec<usize>,
    scales_at: usize,
    vectors: CudaSlice<u8>,
    vector_scales: CudaSlice<u8>,
    output: CudaSlice<u8>,
    workspace: Option<Workspace>,
    shape: Shape,
    operands: Operands,
}

impl Buffers {
    /// Buffers with as many copies of the weights as keep them out of the L2 cache.
    pub(super) fn new(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        operands: &Operands,
        gpu: &Gpu,
    ) -> Result<Self> {
        let copies = cold_copies(shape, gpu.l2_bytes);
        Self::with_copies(stream, shape, operands, gpu, copies)
    }

    pub(super) fn with_copies(
        stream: &Arc<CudaStream>,
        shape: &Shape,
        operands: &Operands,
        gpu: &Gpu,
        copies: usize,
    ) -> Result<Self> {
        if operands.select {
            return Err(Error::Selected {
                wants: "tuning measures",
            });
        }
        if operands.digits != 1 {
            return Err(Error::Digits {
                digits: operands.digits,
                takes: "tuning measures vectors of one",
            });
        }
        let cuda = |error: DriverError| driver_error("filling memory to tune with", error);
        let scales_at = shape.weight_code_bytes().next_multiple_of(ALIGN);
        let scale_bytes = shape.weight_scale_bytes(operands.weight_layout);
        let copy = (scales_at + scale_bytes).next_multiple_of(ALIGN);
        let mut rng = fastrand::Rng::with_seed(1);
        // On the device first: where a problem is too large for it, CUDA says so, and the host is not asked for
        // as much.
        let mut weights = stream
            .alloc_zeros::<u8>(copies.saturating_mul(copy))
            .map_err(cuda)?;
        let mut image = stream.alloc_zeros::<u8>(copy).map_err(cuda)?;
        let (mut codes, mut scales) = image.split_at_mut(scales_at);
        fill(stream, &mut rng, &mut codes, 0xff).map_err(cuda)?;
        fill(stream, &mut rng, &mut scales, SCALE_MASK).map_err(cuda)?;
        let offsets: Vec<usize> = (0..copies).map(|i| i * copy).collect();
        for &offset in &offsets {
            let mut part = weights.slice_mut(offset..offset + copy);
            stream.memcpy_dtod(&image, &mut part).map_err(cuda)?;
        }

        let count = shape.n() * shape.l();
        let (vector_bytes, mask) = match element(operands.activation) {
            None => (shape.row_code_bytes(), 0xff),
            // Bits of small finite numbers, whatever the type.
            Some(element) => (shape.k() * element.bytes(), 0x3f),
        };
        let mut filled = |bytes: usize, mask: u8| {
            let mut slice = stream.alloc_zeros::<u8>(bytes).map_err(cuda)?;
            fill(stream, &mut rng, &mut slice.as_view_mut(), mask).map_err(cuda)?;
            Ok::<_, Error>(slice)
        };
        let vectors = filled(count * vector_bytes, mask)?;
        let scale_bytes = operands.vector_layout.bytes(shape.n(), shape.blocks()) * shape.l();
        let vector_scales = filled(scale_bytes, SCALE_MASK)?;
        let element = FloatType::F16;
        Ok(Self {
            weights,
            offsets,
            scales_at,
            vectors,
            vector_scales,
            output: stream
                .alloc_zeros::<u8>(shape.outputs() * element.bytes())
                .map_err(cuda)?,
            workspace: match Kernel::most_workspace_bytes(&Job::new(shape, operands, gpu)) {
                0 => None,
                bytes => Some(Workspace::new(stream, bytes)?),
            },
            shape: *shape,
            operands: *operands,
        })
    }

    /// A call with copy `i` of the weights.
    pub(super) fn call(&self, stream: &CudaStream, i: usize) -> Result<Call> {
        let shape = &self.shape;
        let address = |slice: &CudaSlice<u8>| slice.device_ptr(stream).0;
        let codes = address(&self.weights) + self.offsets[i] as u64;
        let weights = RawWeights {
            codes,
            scales: codes + self.scales_at as u64,
            layout: self.operands.weight_layout,
            global: GlobalScale::ONE,
            row_alpha: 0,
            row_alpha_batch_stride: 0,
            select: None,
        };
        let packed = |row| Strides::packed(shape.n(), row);
        let layout = self.operands.vector_layout;
        let vectors = match element(self.operands.activation) {
            None => RawVectors::Nvfp4 {
                codes: address(&self.vectors),
                code_strides: packed(shape.row_code_bytes()),
                scales: address(&self.vector_scales),
                layout,
                scale_strides: Strides {
                    row: shape.blocks(),
                    batch: layout.bytes(shape.n(), shape.blocks()),
                },
                global: GlobalScale::ONE,
                vector_alpha: 0,
                digits: 1,
            },
            Some(element) => RawVectors::Dense {
                element,
                values: address(&self.vectors),
                strides: packed(shape.k() * element.bytes()),
            },
        };
        let output = RawOutput::packed(address(&self.output), FloatType::F16);
        let call = Call::new(shape, &weights, &vectors, &output)?;
        match &self.workspace {
            Some(workspace) => call.with_workspace(workspace.raw()),
            None => Ok(call),
        }
    }
}

/// Leaves scales that are finite and positive.
const SCALE_MASK: u8 = 0x77;

fn element(activation: Activation) -> Option<FloatType> {
    match activation {
        Activation::Nvfp4 => None,
        Activation::F16 => Some(FloatType::F16),
        Activation::Bf16 => Some(FloatType::Bf16),
        Activation::F32 => Some(FloatType::F32),
    }
}

/// Random bytes, of which the bits of `mask` are kept: a megabyte of them, again and again.
fn fill(
    stream: &Arc<CudaStream>,
    rng: &mut fastrand::Rng,
    bytes: &mut CudaViewMut<'_, u8>,
    mask: u8,
) -> std::result::Result<(), DriverError> {
    const BLOCK: usize = 1 << 20;
    let mut block = vec![0u8; bytes.len().min(BLOCK)];
    rng.fill(&mut block);
    block.iter_mut().for_each(|byte| *byte &= mask);
    for at in (0..bytes.len()).step_by(BLOCK) {
        let count = block.len().min(bytes.len() - at);
        let mut part = bytes.slice_mut(at..at + count);
        stream.memcpy_htod(&block[..count], &mut part)?;
    }
    Ok(())
}
