//! Makes checked addresses of cudarc's views, with the guards that order a call after earlier writes of the buffers.

use std::sync::Arc;

use cudarc::driver::{
    CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use crate::context::{make_current, same_device};
use crate::element::{Floats, FloatsMut};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::kernel::quantize::Input;
use crate::memory::Device;
use crate::output::{Output, OutputLayout, Residual};
use crate::raw::{Call, RawOnRead, RawOutput, RawSelect, RawVectors, RawWeights};
use crate::shape::{Shape, Strides};
use crate::tensor::{DenseVectors, VectorScale, Vectors, Weights};
use crate::types::{FloatType, RowOrder};
use crate::workspace::Workspace;

/// Operands by address.
pub(super) struct Bound {
    pub(super) weights: RawWeights,
    pub(super) vectors: RawVectors,
    pub(super) output: RawOutput,
}

impl Bound {
    /// The problem, its addresses checked.
    pub(super) fn call(&self, shape: &Shape) -> Result<Call> {
        Call::new(shape, &self.weights, &self.vectors, &self.output)
    }
}

/// Guards of a call's buffers, ten at most, with room for two more; no allocation. They record, when dropped, that the
/// stream uses the buffers until then: they must outlive the launch.
#[derive(Default)]
pub(crate) struct Guards<'a> {
    guards: [Option<SyncOnDrop<'a>>; 12],
    len: usize,
}

impl<'a> Guards<'a> {
    /// The address that comes with a guard, which is kept if it does anything: without events none does, and that is every
    /// one of a call that shall cost little.
    #[inline(always)]
    fn keep(&mut self, (address, guard): (u64, SyncOnDrop<'a>)) -> u64 {
        match guard {
            SyncOnDrop::Record(None) | SyncOnDrop::Sync(None) => std::mem::forget(guard),
            guard => {
                self.guards[self.len] = Some(guard);
                self.len += 1;
            }
        }
        address
    }

    /// The address of a buffer that a call reads, as [`read`] gives it. Inlined: what goes through memory on the way costs
    /// more than all that is done.
    #[inline(always)]
    fn read<T>(
        &mut self,
        operand: &'static str,
        view: &'a CudaView<'_, T>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<u64> {
        same_device(operand, view.stream(), stream)?;
        Ok(self.keep(view.device_ptr(stream)))
    }

    /// The same of a buffer that a call writes.
    #[inline(always)]
    fn written<T>(
        &mut self,
        operand: &'static str,
        view: &'a mut CudaViewMut<'_, T>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<u64> {
        same_device(operand, view.stream(), stream)?;
        Ok(self.keep(view.device_ptr_mut(stream)))
    }
}

/// How a product takes its vectors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// As they are.
    AsTheyAre,
    /// Quantised when they are read: [`RawOnRead`] says what the fields mean.
    OnRead {
        copies: usize,
        gate: Option<(Gate, RowOrder)>,
    },
}

/// Calls `then` with the operands by address. Until it returns, the workspace is held, the buffers are guarded, and the
/// stream's context is current: what `then` enqueues on the stream may use the operands' memory and the workspace.
///
/// # Errors
/// A workspace of another stream; operands that contradict the shape, or are of another device or context; errors of
/// `then`.
pub(super) fn bound<T>(
    stream: &Arc<CudaStream>,
    workspace: Option<&Workspace>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    (vectors, taken): (&Vectors<'_, Device>, Taken),
    mut output: Output<'_, Device>,
    then: impl FnOnce(&Bound) -> Result<T>,
) -> Result<T> {
    // Dropped behind the guards.
    let _alone = workspace
        .map(|workspace| workspace.hold(stream))
        .transpose()?;
    let mut guards = Guards::default();
    let bound = bind(
        stream,
        shape,
        weights,
        (vectors, taken),
        &mut output,
        &mut guards,
    )?;
    make_current(stream)?;
    then(&bound)
}

/// Checks operands against the shape and the stream's device. The guards get those of the operands.
fn bind<'a>(
    stream: &'a Arc<CudaStream>,
    shape: &Shape,
    weights: &'a Weights<'_, Device>,
    (vectors, taken): (&'a Vectors<'_, Device>, Taken),
    output: &'a mut Output<'_, Device>,
    guards: &mut Guards<'a>,
) -> Result<Bound> {
    weights.check(shape)?;
    let layout = output.resolve(shape, weights.shape().l())?;
    let raw_weights = RawWeights {
        codes: guards.read("weight codes", &weights.codes, stream)?,
        scales: guards.read("weight scales", &weights.scales, stream)?,
        layout: weights.layout,
        global: weights.global,
        row_alpha: match &weights.row_alpha {
            Some(alpha) => guards.read("row alpha", alpha, stream)?,
            None => 0,
        },
        row_alpha_batch_stride: weights.row_alpha_batch_stride(),
        select: match &weights.select {
            Some(ids) => Some(RawSelect {
                ids: guards.read("select", ids, stream)?,
                late: weights.late,
                distinct: weights.distinct,
                matrices: weights.shape().l(),
            }),
            None => None,
        },
    };

    // The elements in memory.
    let elements = &match taken {
        Taken::AsTheyAre => *shape,
        Taken::OnRead { copies, gate } => Input::of(gate).source(shape, copies)?,
    };
    let mut keep = |(dense, guard): (Dense, SyncOnDrop<'a>)| {
        let Dense {
            element,
            values,
            strides,
        } = dense;
        guards.keep((values, guard));
        match taken {
            Taken::AsTheyAre => RawVectors::Dense {
                element,
                values,
                strides,
            },
            Taken::OnRead { copies, gate } => RawVectors::OnRead(RawOnRead {
                element,
                values,
                strides,
                copies,
                gate,
                global: None,
            }),
        }
    };
    let raw_vectors = match vectors {
        Vectors::Nvfp4(_) if matches!(taken, Taken::OnRead { .. }) => {
            return Err(Error::AlreadyNvfp4);
        }
        Vectors::Nvfp4(v) => {
            let layout = v.resolve(shape)?;
            RawVectors::Nvfp4 {
                codes: guards.read("vector codes", &v.codes, stream)?,
                code_strides: layout.codes,
                scales: guards.read("vector scales", &v.scales, stream)?,
                layout: v.layout,
                scale_strides: layout.scales,
                digits: v.digits,
                global: v.global.shared(),
                vector_alpha: match &v.global {
                    VectorScale::Shared(_) => 0,
                    VectorScale::PerVector(alpha) => {
                        guards.read("vector global scales", alpha, stream)?
                    }
                },
            }
        }
        Vectors::F16(v) => keep(dense(v, FloatType::F16, elements, stream)?),
        Vectors::Bf16(v) => keep(dense(v, FloatType::Bf16, elements, stream)?),
        Vectors::F32(v) => keep(dense(v, FloatType::F32, elements, stream)?),
    };

    let raw_output = by_address(stream, output, &layout, guards)?;
    Ok(Bound {
        weights: raw_weights,
        vectors: raw_vectors,
        output: raw_output,
    })
}

/// An output by address, with its layout.
fn by_address<'a>(
    stream: &'a Arc<CudaStream>,
    output: &'a mut Output<'_, Device>,
    layout: &OutputLayout,
    guards: &mut Guards<'a>,
) -> Result<RawOutput> {
    let element = output.element();
    let Output {
        elements,
        bias,
        residual,
        ..
    } = output;
    let address = match elements {
        FloatsMut::F16(y) => guards.written("output", y, stream),
        FloatsMut::Bf16(y) => guards.written("output", y, stream),
        FloatsMut::F32(y) => guards.written("output", y, stream),
    }?;
    let bias = match bias {
        None => 0,
        Some(bias) => guards.read("bias", bias, stream)?,
    };
    const RESIDUAL: &str = "residual";
    let residual = match residual {
        None => 0,
        Some(Residual::Itself) => address,
        Some(Residual::Of(r)) => match r {
            Floats::F16(r) => guards.read(RESIDUAL, r, stream),
            Floats::Bf16(r) => guards.read(RESIDUAL, r, stream),
            Floats::F32(r) => guards.read(RESIDUAL, r, stream),
        }?,
    };
    Ok(RawOutput {
        address,
        element,
        strides: Some(Strides {
            row: layout.strides.row * element.bytes(),
            batch: layout.strides.batch * element.bytes(),
        }),
        bias,
        bias_batch_stride: layout.bias_batch,
        residual,
    })
}

/// An output of one batch by address, checked against the shape, and the guards of its buffers.
pub(crate) fn output<'a>(
    stream: &'a Arc<CudaStream>,
    shape: &Shape,
    output: &'a mut Output<'_, Device>,
) -> Result<(RawOutput, Guards<'a>)> {
    let layout = output.resolve(shape, 1)?;
    let mut guards = Guards::default();
    let raw = by_address(stream, output, &layout, &mut guards)?;
    Ok((raw, guards))
}

/// The address of a buffer that a call reads, if it is of the stream's device and context, and its guard.
pub(crate) fn read<'a, T>(
    operand: &'static str,
    view: &'a CudaView<'_, T>,
    stream: &'a Arc<CudaStream>,
) -> Result<(u64, SyncOnDrop<'a>)> {
    same_device(operand, view.stream(), stream)?;
    Ok(view.device_ptr(stream))
}

/// Dense vectors by address.
pub(crate) struct Dense {
    pub(crate) element: FloatType,
    pub(crate) values: u64,
    /// In bytes.
    pub(crate) strides: Strides,
}

/// Dense vectors by address, checked against the shape, and the guard of their buffer.
pub(crate) fn dense<'a, T: std::fmt::Debug + 'static>(
    vectors: &'a DenseVectors<'_, T, Device>,
    element: FloatType,
    shape: &Shape,
    stream: &'a Arc<CudaStream>,
) -> Result<(Dense, SyncOnDrop<'a>)> {
    let (values, guard) = read("vectors", &vectors.values, stream)?;
    let strides = vectors.resolve(shape)?;
    let dense = Dense {
        element,
        values,
        strides: Strides {
            row: strides.row * element.bytes(),
            batch: strides.batch * element.bytes(),
        },
    };
    Ok((dense, guard))
}
