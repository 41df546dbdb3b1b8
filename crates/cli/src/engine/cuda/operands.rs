//! Operands in device memory.

use cudarc::driver::{CudaSlice, DeviceRepr};
use nvfp4_gemv::{FloatType, Nvfp4Vectors, Output, Result, VectorScale, Vectors, Weights};

use super::super::{InputScale, Inputs, Operands, Values};
use super::{Cuda, cuda};

/// Weights in device memory.
pub(super) struct DeviceWeights {
    pub(super) codes: CudaSlice<u8>,
    pub(super) scales: CudaSlice<u8>,
    pub(super) row_alpha: Option<CudaSlice<f32>>,
}

impl DeviceWeights {
    pub(super) fn view(&self, operands: &Operands<'_>) -> Result<Weights<'_, nvfp4_gemv::Device>> {
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
pub(super) enum DeviceInputs<'a> {
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
    pub(super) fn view(&self) -> Vectors<'_, nvfp4_gemv::Device> {
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
            Self::F16(x) => Vectors::on_device(x.as_view()),
            Self::Bf16(x) => Vectors::on_device(x.as_view()),
            Self::F32(x) => Vectors::on_device(x.as_view()),
        }
    }
}

/// A result in device memory.
pub(super) enum DeviceValues {
    F16(CudaSlice<half::f16>),
    Bf16(CudaSlice<half::bf16>),
    F32(CudaSlice<f32>),
}

impl DeviceValues {
    pub(super) fn output(&mut self) -> Output<'_, nvfp4_gemv::Device> {
        match self {
            Self::F16(y) => Output::on_device(y.as_view_mut()),
            Self::Bf16(y) => Output::on_device(y.as_view_mut()),
            Self::F32(y) => Output::on_device(y.as_view_mut()),
        }
    }
}

impl Cuda {
    pub(super) fn upload<T: DeviceRepr>(&self, values: &[T]) -> Result<CudaSlice<T>> {
        self.stream
            .clone_htod(values)
            .map_err(|e| cuda("copying operands to the device", e))
    }

    pub(super) fn download<T: DeviceRepr>(&self, values: &CudaSlice<T>) -> Result<Vec<T>> {
        self.stream
            .clone_dtoh(values)
            .map_err(|e| cuda("copying the result from the device", e))
    }

    pub(super) fn weights(&self, operands: &Operands<'_>) -> Result<DeviceWeights> {
        // Host data is looked at before it goes where it no longer is.
        operands.weights()?;
        let row_alpha = operands.row_alpha.as_ref();
        Ok(DeviceWeights {
            codes: self.upload(&operands.codes)?,
            scales: self.upload(&operands.scales)?,
            row_alpha: row_alpha.map(|alpha| self.upload(alpha)).transpose()?,
        })
    }

    pub(super) fn inputs<'a>(&self, x: &'a Inputs) -> Result<DeviceInputs<'a>> {
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

    pub(super) fn poisoned(&self, element: FloatType, count: usize) -> Result<DeviceValues> {
        Ok(match Values::poisoned(element, count) {
            Values::F16(y) => DeviceValues::F16(self.upload(&y)?),
            Values::Bf16(y) => DeviceValues::Bf16(self.upload(&y)?),
            Values::F32(y) => DeviceValues::F32(self.upload(&y)?),
        })
    }
}
