//! Calls on CUDA devices, with candle's streams, buffers and allocator.

use std::sync::Arc;

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{
    CudaDevice, CudaStorage, CustomOp1, CustomOp2, DType, DeviceLocation, Error, Layout, Result,
    Shape, Tensor,
};
use nvfp4_gemv::cudarc::driver::{CudaSlice, CudaStream, CudaView, DeviceRepr, ValidAsZeroBits};
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{
    Activation, Choice, DenseVectors, Device, Dims, Element, Gate, GlobalScale, LinearOnDevice,
    Options, Output, ScaleLayout, Vectors, Weights, gemv_on_device,
};

use crate::builder::OfJoined;
use crate::experts::NONE;
use crate::linear::elsewhere;
use crate::mlp::between;
use crate::rows::{Rows, Size, unsupported};

/// The library's error, where `downcast_ref` finds it.
fn of_library(error: nvfp4_gemv::Error) -> Error {
    Error::Cuda(Box::new(error))
}

/// Waits for copies, so that calls on every stream find them made.
pub(crate) fn wait(device: &CudaDevice) -> Result<()> {
    device.cuda_stream().synchronize().w()
}

/// The error of a tensor on a device, of a layer on the CPU.
pub(crate) fn on_a_device(storage: &CudaStorage, op: &'static str) -> Error {
    elsewhere(storage.device.location(), DeviceLocation::Cpu, op)
}

/// Weights on a device.
pub(crate) trait OnDevice {
    fn forward<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
    ) -> nvfp4_gemv::Result<Choice>;
}

impl OnDevice for LinearOnDevice {
    fn forward<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
    ) -> nvfp4_gemv::Result<Choice> {
        self.forward(stream, x, n, y)
    }
}

impl Rows {
    /// Enqueues a call with the vectors of one storage on candle's stream, into memory of candle's allocator for
    /// results of the same type.
    pub(crate) fn on_device(
        &self,
        storage: &CudaStorage,
        m: usize,
        op: &'static str,
        layer: &impl OnDevice,
    ) -> Result<CudaStorage> {
        use CudaStorageSlice as S;
        let device = &storage.device;
        let slice = match &storage.slice {
            S::F32(x) => S::F32(self.enqueue(device, x, Vectors::F32, m, layer)?),
            S::F16(x) => S::F16(self.enqueue(device, x, Vectors::F16, m, layer)?),
            S::BF16(x) => S::BF16(self.enqueue(device, x, Vectors::Bf16, m, layer)?),
            _ => return Err(of_another_type(storage, op)),
        };
        let device = device.clone();
        Ok(CudaStorage { slice, device })
    }

    /// As [`on_device`](Self::on_device), into f32.
    fn on_device_to_f32(
        &self,
        storage: &CudaStorage,
        m: usize,
        op: &'static str,
        layer: &impl OnDevice,
    ) -> Result<CudaStorage> {
        use CudaStorageSlice as S;
        let device = &storage.device;
        let y = match &storage.slice {
            S::F32(x) => self.enqueue(device, x, Vectors::F32, m, layer)?,
            S::F16(x) => self.enqueue(device, x, Vectors::F16, m, layer)?,
            S::BF16(x) => self.enqueue(device, x, Vectors::Bf16, m, layer)?,
            _ => return Err(of_another_type(storage, op)),
        };
        let (slice, device) = (S::F32(y), device.clone());
        Ok(CudaStorage { slice, device })
    }

    fn enqueue<'x, T: Element, U: Element + DeviceRepr>(
        &self,
        device: &CudaDevice,
        x: &'x CudaSlice<T>,
        vectors: fn(DenseVectors<'x, T, Device>) -> Vectors<'x, Device>,
        m: usize,
        layer: &impl OnDevice,
    ) -> Result<CudaSlice<U>> {
        let x = vectors(self.vectors(x.slice(self.range())));
        // CUDA has no empty allocations.
        let results = self.n * m;
        // SAFETY: a call that succeeds writes every result, and what another one leaves is not returned. Without
        // results nobody reads the one element.
        let mut y = unsafe { device.alloc::<U>(results.max(1)) }?;
        let output = Output::on_device(y.slice_mut(..results));
        layer
            .forward(&device.cuda_stream(), &x, self.n, output)
            .map_err(of_library)?;
        Ok(y)
    }
}

fn of_another_type(storage: &CudaStorage, op: &'static str) -> Error {
    unsupported(candle_core::backend::BackendStorage::dtype(storage), op)
}

/// Prepares a layer's call with vectors of zeros, whose memory is freed again.
pub(crate) fn prepare(
    layer: &LinearOnDevice,
    device: &CudaDevice,
    n: usize,
    activation: Activation,
) -> crate::Result<()> {
    fn of<T: Element + DeviceRepr + ValidAsZeroBits>(
        layer: &LinearOnDevice,
        device: &CudaDevice,
        n: usize,
    ) -> crate::Result<()> {
        if n == 0 {
            return Ok(());
        }
        let x = device.alloc_zeros::<T>(n * layer.k())?;
        let mut y = device.alloc_zeros::<T>((n * layer.rows()).max(1))?;
        let output = Output::on_device(y.slice_mut(..n * layer.rows()));
        let x = Vectors::on_device(x.as_view());
        layer.prepare(&device.cuda_stream(), &x, n, output)?;
        Ok(())
    }
    match activation {
        Activation::F16 => of::<f16>(layer, device, n),
        Activation::Bf16 => of::<bf16>(layer, device, n),
        _ => of::<f32>(layer, device, n),
    }
}

/// Experts in a device's memory.
#[derive(Debug)]
pub(crate) struct Experts {
    /// Gate's rows, then up's.
    gate_up: Matrices,
    down: Matrices,
    /// The id of no expert.
    none: Tensor,
}

/// Matrices of experts, one behind the other.
#[derive(Debug)]
struct Matrices {
    /// Of one vector; L is how many there are.
    shape: nvfp4_gemv::Shape,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    global: GlobalScale,
    row_alpha: Option<CudaSlice<f32>>,
    device: CudaDevice,
}

const OP: &str = "nvfp4-experts";

impl Experts {
    pub(crate) fn new(
        device: &CudaDevice,
        gate_up: &OfJoined,
        down: &OfJoined,
    ) -> crate::Result<Self> {
        let fits = |dimension, found, of, expected| match found == expected {
            true => Ok(()),
            false => Err(nvfp4_gemv::Error::LayersMismatch {
                dimension,
                found,
                of,
                expected,
            }),
        };
        let (first, second) = (gate_up.shape, down.shape);
        fits("down's experts", second.l(), "gate's experts", first.l())?;
        fits(
            "gate and up's M",
            first.m(),
            "twice down's K",
            2 * second.k(),
        )?;
        let experts = Self {
            gate_up: Matrices::new(device, gate_up)?,
            down: Matrices::new(device, down)?,
            none: Tensor::full(NONE, (), &candle_core::Device::Cuda(device.clone()))?,
        };
        wait(device)?;
        Ok(experts)
    }

    pub(crate) fn size(&self) -> Size {
        Size {
            rows: self.down.shape.m(),
            k: self.gate_up.shape.k(),
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.down.shape.l()
    }

    /// The id of no expert.
    pub(crate) fn none(&self) -> &Tensor {
        &self.none
    }

    /// The results of all pairs of vectors `[T, K]` with experts `[T, top]`, `[T · top, M]` in f32.
    pub(crate) fn select(&self, gate: Gate, xs: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (vectors, k) = xs.dims2()?;
        let top = ids.dim(1)?;
        let ids = ids.contiguous()?;
        let xs = xs.unsqueeze(1)?.broadcast_as((vectors, top, k))?;
        // Of one vector, all pairs read it where it lies.
        let xs = match vectors {
            1 => xs,
            _ => xs.contiguous()?,
        };
        let gate_up = xs.apply_op2_no_bwd(&ids, &Selected::of(&self.gate_up, false))?;
        let between = between(gate, &gate_up)?;
        between.apply_op2_no_bwd(&ids, &Selected::of(&self.down, true))
    }

    /// The results of vectors `[n, K]` of one expert, in f32.
    pub(crate) fn one(&self, gate: Gate, expert: usize, xs: &Tensor) -> Result<Tensor> {
        let gate_up = xs.apply_op1_no_bwd(&One::of(&self.gate_up, expert, false))?;
        let between = between(gate, &gate_up)?;
        between.apply_op1_no_bwd(&One::of(&self.down, expert, true))
    }
}

impl Matrices {
    fn new(device: &CudaDevice, of: &OfJoined) -> crate::Result<Self> {
        let stream = device.cuda_stream();
        let copied = |bytes: &[u8]| stream.clone_htod(bytes).w();
        let alpha = |alpha: &Vec<f32>| stream.clone_htod(alpha).w();
        Ok(Self {
            shape: of.shape,
            codes: copied(&of.codes)?,
            scales: copied(&of.scales)?,
            global: of.global,
            row_alpha: of.row_alpha.as_ref().map(alpha).transpose()?,
            device: device.clone(),
        })
    }

    fn size(&self) -> Size {
        Size {
            rows: self.shape.m(),
            k: self.shape.k(),
        }
    }

    /// All matrices.
    fn weights(&self) -> nvfp4_gemv::Result<Weights<'_, Device>> {
        let (codes, scales) = (self.codes.as_view(), self.scales.as_view());
        let layout = ScaleLayout::Linear;
        let weights = Weights::on_device(&self.shape, codes, scales, layout, self.global)?;
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha_on_device(alpha.as_view()),
            None => Ok(weights),
        }
    }

    /// One of them, for so many vectors.
    fn one(
        &self,
        matrix: usize,
        n: usize,
    ) -> nvfp4_gemv::Result<(nvfp4_gemv::Shape, Weights<'_, Device>)> {
        let (m, k, l) = (self.shape.m(), self.shape.k(), self.shape.l());
        let shape = nvfp4_gemv::Shape::new(Dims { m, n, k, l: 1 })?;
        let part = |of: usize| matrix * (of / l)..(matrix + 1) * (of / l);
        let codes = self.codes.slice(part(self.codes.len()));
        let scales = self.scales.slice(part(self.scales.len()));
        let layout = ScaleLayout::Linear;
        let weights = Weights::on_device(&shape, codes, scales, layout, self.global)?;
        let weights = match &self.row_alpha {
            Some(alpha) => {
                weights.with_row_alpha_on_device(alpha.slice(matrix * m..(matrix + 1) * m))?
            }
            None => weights,
        };
        Ok((shape, weights))
    }

    fn elsewhere(&self) -> Error {
        elsewhere(DeviceLocation::Cpu, self.device.location(), OP)
    }
}

/// Vectors of one expert.
struct One<'a> {
    matrices: &'a Matrices,
    expert: usize,
    to_f32: bool,
}

impl<'a> One<'a> {
    fn of(matrices: &'a Matrices, expert: usize, to_f32: bool) -> Self {
        Self {
            matrices,
            expert,
            to_f32,
        }
    }
}

impl OnDevice for One<'_> {
    fn forward<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
    ) -> nvfp4_gemv::Result<Choice> {
        let (shape, weights) = self.matrices.one(self.expert, n)?;
        gemv_on_device(stream, &shape, &weights, x, y, &Options::new())
    }
}

impl CustomOp1 for One<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        _: &candle_core::CpuStorage,
        _: &Layout,
    ) -> Result<(candle_core::CpuStorage, Shape)> {
        Err(self.matrices.elsewhere())
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let size = self.matrices.size();
        let rows = Rows::of(layout, size, OP)?;
        let y = match self.to_f32 {
            true => rows.on_device_to_f32(storage, size.rows, OP, self)?,
            false => rows.on_device(storage, size.rows, OP, self)?,
        };
        Ok((y, Rows::results(layout, size.rows)))
    }
}

/// Pairs of a vector and an expert: vectors `[pairs.., K]` or one for all of them, and as many ids.
struct Selected<'a> {
    matrices: &'a Matrices,
    to_f32: bool,
}

impl<'a> Selected<'a> {
    fn of(matrices: &'a Matrices, to_f32: bool) -> Self {
        Self { matrices, to_f32 }
    }
}

/// The expert of each vector.
struct Pairs<'a> {
    matrices: &'a Matrices,
    ids: CudaView<'a, i32>,
}

impl OnDevice for Pairs<'_> {
    fn forward<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        x: &Vectors<'_, Device>,
        n: usize,
        y: Output<'a, Device>,
    ) -> nvfp4_gemv::Result<Choice> {
        let Size { rows, k } = self.matrices.size();
        let shape = nvfp4_gemv::Shape::new(Dims {
            m: rows,
            n: 1,
            k,
            l: n,
        })?;
        let weights = self.matrices.weights()?;
        let selected = weights.select_on_device(self.ids.slice(..));
        gemv_on_device(stream, &shape, &selected, x, y, &Options::new())
    }
}

impl CustomOp2 for Selected<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        _: &candle_core::CpuStorage,
        _: &Layout,
        _: &candle_core::CpuStorage,
        _: &Layout,
    ) -> Result<(candle_core::CpuStorage, Shape)> {
        Err(self.matrices.elsewhere())
    }

    fn cuda_fwd(
        &self,
        storage: &CudaStorage,
        layout: &Layout,
        ids: &CudaStorage,
        ids_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let size = self.matrices.size();
        let rows = Rows::that_may_be_one(layout, size, OP)?.into_batches();
        let CudaStorageSlice::U32(numbers) = &ids.slice else {
            return Err(Error::UnexpectedDType {
                msg: "nvfp4-experts: ids",
                expected: DType::U32,
                got: candle_core::backend::BackendStorage::dtype(ids),
            });
        };
        let Some((from, to)) = ids_layout.contiguous_offsets() else {
            return Err(Error::RequiresContiguous { op: OP });
        };
        let numbers = numbers.slice(from..to);
        // SAFETY: any bits are an i32, of the same size and alignment as a u32; the view has as many.
        let numbers = unsafe { numbers.transmute::<i32>(to - from) };
        // It has the length that was asked for.
        let numbers = numbers.ok_or_else(|| Error::RequiresContiguous { op: OP })?;
        let pairs = Pairs {
            matrices: self.matrices,
            ids: numbers,
        };
        let y = match self.to_f32 {
            true => rows.on_device_to_f32(storage, size.rows, OP, &pairs)?,
            false => rows.on_device(storage, size.rows, OP, &pairs)?,
        };
        Ok((y, Rows::results(layout, size.rows)))
    }
}
