//! From cudarc's views to addresses, checked, with the guards that order a call after what wrote them.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

use crate::context::same_device;
use crate::error::Result;
use crate::memory::Device;
use crate::raw::{Call, RawOutput, RawVectors, RawWeights};
use crate::shape::{Shape, Strides};
use crate::tensor::{DenseVectors, Output, VectorScale, Vectors, Weights};
use crate::types::FloatType;

/// Operands by address. The guards record, when dropped, that the stream uses the buffers until then:
/// they must outlive the launch.
pub(super) struct Bound<'a> {
    pub(super) weights: RawWeights,
    pub(super) vectors: RawVectors,
    pub(super) output: RawOutput,
    _guards: Guards<'a>,
}

impl Bound<'_> {
    /// The problem, its addresses checked.
    pub(super) fn call(&self, shape: &Shape) -> Result<Call> {
        Call::new(shape, &self.weights, &self.vectors, &self.output)
    }
}

/// Of at most seven buffers; no allocation.
#[derive(Default)]
struct Guards<'a> {
    guards: [Option<SyncOnDrop<'a>>; 7],
    len: usize,
}

impl<'a> Guards<'a> {
    /// The address that comes with a guard, which is kept.
    fn keep(&mut self, (address, guard): (u64, SyncOnDrop<'a>)) -> u64 {
        self.guards[self.len] = Some(guard);
        self.len += 1;
        address
    }
}

/// Checks operands against the shape and the stream's device.
pub(super) fn bind<'a>(
    stream: &'a Arc<CudaStream>,
    shape: &Shape,
    weights: &'a Weights<'_, Device>,
    vectors: &'a Vectors<'_, Device>,
    output: &'a mut Output<'_, Device>,
) -> Result<Bound<'a>> {
    weights.check(shape)?;
    output.check(shape)?;
    let mut guards = Guards::default();
    let on_device = |operand, found: &Arc<CudaStream>| same_device(operand, found, stream);

    on_device("weight codes", weights.codes.stream())?;
    on_device("weight scales", weights.scales.stream())?;
    if let Some(alpha) = &weights.row_alpha {
        on_device("row alpha", alpha.stream())?;
    }
    let raw_weights = RawWeights {
        codes: guards.keep(weights.codes.device_ptr(stream)),
        scales: guards.keep(weights.scales.device_ptr(stream)),
        layout: weights.layout,
        global: weights.global,
        row_alpha: match &weights.row_alpha {
            Some(alpha) => guards.keep(alpha.device_ptr(stream)),
            None => 0,
        },
        row_alpha_batch_stride: weights.row_alpha_batch_stride(),
    };

    let mut dense = |vectors: Result<(Dense, SyncOnDrop<'a>)>| -> Result<RawVectors> {
        let (dense, guard) = vectors?;
        guards.keep((dense.values, guard));
        Ok(dense.into())
    };
    let raw_vectors = match vectors {
        Vectors::Nvfp4(v) => {
            let layout = v.resolve(shape)?;
            on_device("vector codes", v.codes.stream())?;
            on_device("vector scales", v.scales.stream())?;
            RawVectors::Nvfp4 {
                codes: guards.keep(v.codes.device_ptr(stream)),
                code_strides: layout.codes,
                scales: guards.keep(v.scales.device_ptr(stream)),
                layout: v.layout,
                scale_strides: layout.scales,
                global: v.global.shared(),
                vector_alpha: match &v.global {
                    VectorScale::Shared(_) => 0,
                    VectorScale::PerVector(alpha) => {
                        on_device("vector global scales", alpha.stream())?;
                        guards.keep(alpha.device_ptr(stream))
                    }
                },
            }
        }
        Vectors::F16(v) => {
            on_device("vectors", v.values.stream())?;
            dense(self::dense(v, FloatType::F16, shape, &v.values, stream))?
        }
        Vectors::Bf16(v) => {
            on_device("vectors", v.values.stream())?;
            dense(self::dense(v, FloatType::Bf16, shape, &v.values, stream))?
        }
        Vectors::F32(v) => {
            on_device("vectors", v.values.stream())?;
            dense(self::dense(v, FloatType::F32, shape, &v.values, stream))?
        }
    };

    let element = output.element();
    let address = match output {
        Output::F16(y) => {
            on_device("output", y.stream())?;
            guards.keep(y.device_ptr_mut(stream))
        }
        Output::Bf16(y) => {
            on_device("output", y.stream())?;
            guards.keep(y.device_ptr_mut(stream))
        }
        Output::F32(y) => {
            on_device("output", y.stream())?;
            guards.keep(y.device_ptr_mut(stream))
        }
    };
    Ok(Bound {
        weights: raw_weights,
        vectors: raw_vectors,
        output: RawOutput { address, element },
        _guards: guards,
    })
}

/// Dense vectors by address.
pub(crate) struct Dense {
    pub(crate) element: FloatType,
    pub(crate) values: u64,
    /// In bytes.
    pub(crate) strides: Strides,
}

impl From<Dense> for RawVectors {
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
) -> Result<(Dense, SyncOnDrop<'a>)> {
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
