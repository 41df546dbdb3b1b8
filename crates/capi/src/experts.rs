//! Experts in a device's memory: calls that are prepared once, and launched on the stream that they were prepared for.

use std::ffi::c_void;

use crate::device::{nvfp4_device_output, nvfp4_device_vectors};
use crate::failure::nvfp4_status;
use crate::mlp::nvfp4_experts;

/// The experts of a mixture in a device's memory, which is the library's.
#[derive(Debug)]
pub struct nvfp4_device_experts(calls::Experts);

/// A call of experts that was prepared, with memory for what lies between their layers.
#[derive(Debug)]
pub struct nvfp4_experts_call(calls::Prepared);

/// Copies experts of the host to the device of the CUDA context that is current, and waits for that: codes, block scales
/// in a layout (NVFP4_LINEAR or NVFP4_128X4), factors, biases. The experts of the host may be freed. Factors of columns
/// are NVFP4_BAD_OPERAND.
///
/// With `chained` launches may start before the work before them has ended; they read codes and scales at once and wait
/// with everything else, ids among it. For compute capability 9.0 and up.
///
/// # Safety
/// `experts` is NULL or experts, and `on_device` is NULL or has room for a pointer. The context is there until all that was
/// made for it has been freed. With `chained`, the launch before each of them in its stream waits for the launches before
/// that one, as all kernels of this library do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_on_device(
    experts: *const nvfp4_experts,
    layout: u32,
    chained: u32,
    on_device: *mut *mut nvfp4_device_experts,
) -> nvfp4_status {
    let make = || {
        // SAFETY: this function's own contract.
        let experts = &unsafe { crate::memory::read("experts", experts) }?.0;
        let layout = crate::memory::layout(layout)?;
        // SAFETY: this function's own contract.
        let made = unsafe { calls::on_device(experts, layout, chained != 0) };
        made.map(nvfp4_device_experts)
    };
    // SAFETY: this function's own contract.
    unsafe { crate::memory::handle(on_device, make) }
}

/// Frees experts of a device. Calls that were prepared keep what they need.
///
/// # Safety
/// `experts` is NULL or experts, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_device_experts_free(experts: *mut nvfp4_device_experts) {
    // SAFETY: this function's own contract.
    unsafe { crate::memory::free(experts) }
}

/// Prepares a call of n vectors, f16, bf16 or f32, each with so many experts: `ids` is the address of
/// `int32_t [n][choices]`, of which -1 is none, and `weights` of `float [n][choices]`, which the experts' results are multiplied by
/// before they are added. Vectors, ids and weights are read when a launch runs, so that they may change between launches.
/// An id that is none of the experts' makes its vector's result NaN. Allocates memory for what lies between the layers;
/// nothing is enqueued.
///
/// `stream` is a CUstream or cudaStream_t of the context that is current, which is the experts'. With many vectors the
/// per-thread default stream is NVFP4_BAD_OPERAND.
///
/// # Safety
/// All pointers are NULL or there; `call` is NULL or has room for a pointer. `stream` is there until the call has been
/// freed.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the operands of a call")]
pub unsafe extern "C" fn nvfp4_experts_call_prepare(
    experts: *const nvfp4_device_experts,
    x: *const nvfp4_device_vectors,
    n: usize,
    ids: u64,
    weights: u64,
    choices: usize,
    y: *const nvfp4_device_output,
    stream: *mut c_void,
    call: *mut *mut nvfp4_experts_call,
) -> nvfp4_status {
    let prepare = || {
        // SAFETY: this function's own contract.
        let (experts, x, y) = unsafe {
            (
                crate::memory::read("experts", experts)?,
                crate::memory::read("x", x)?,
                crate::memory::read("y", y)?,
            )
        };
        // SAFETY: this function's own contract.
        let prepared =
            unsafe { calls::prepare(&experts.0, x, n, [ids, weights], choices, y, stream) };
        prepared.map(nvfp4_experts_call)
    };
    // SAFETY: this function's own contract.
    unsafe { crate::memory::handle(call, prepare) }
}

/// Enqueues a prepared call on the stream that it was prepared for: four to eleven kernels. Waits for nothing, and can be
/// captured into a CUDA graph; where kernels are compiled when they are used, launch it once before.
///
/// # Safety
/// `call` is NULL or prepared. Every address that it was prepared with is valid, for the bytes that sizes and strides reach,
/// until the enqueued work has run. Nothing else writes the memory, or reads the results, meanwhile. All of this holds
/// until the last replay of a graph that the call was captured into.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_call_launch(
    call: *const nvfp4_experts_call,
) -> nvfp4_status {
    crate::failure::guarded(|| {
        // SAFETY: this function's own contract.
        let call = &unsafe { crate::memory::read("call", call) }?.0;
        // SAFETY: this function's own contract.
        unsafe { calls::launch(call) }
    })
}

/// Frees a prepared call, and the memory between its layers when enqueued work has run.
///
/// # Safety
/// `call` is NULL or prepared, and nobody uses it any more. Graphs that it was captured into are not replayed any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_experts_call_free(call: *mut nvfp4_experts_call) {
    // SAFETY: this function's own contract.
    unsafe { crate::memory::free(call) }
}

#[cfg(feature = "device")]
mod calls {
    use std::ffi::c_void;
    use std::mem::ManuallyDrop;
    use std::sync::{Arc, Mutex, PoisonError};

    use nvfp4_gemv::cudarc::driver::{
        CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, sys,
    };
    use nvfp4_gemv::half::{bf16, f16};
    use nvfp4_gemv::{
        Activation, DenseVectors, Device, Element, ExpertsBuffers, ExpertsOnDevice, FloatType,
        Output, ScaleLayout, Strides, Vectors,
    };

    use super::{nvfp4_device_output, nvfp4_device_vectors};
    use crate::device::{asked, current};
    use crate::failure::Failure;
    use crate::memory;

    pub(super) type Experts = ExpertsOnDevice;

    /// A call. Its memory is the caller's, but for what lies between the layers.
    #[derive(Debug)]
    pub(super) struct Prepared {
        experts: ExpertsOnDevice,
        stream: Arc<CudaStream>,
        // One launch at a time writes between the layers.
        operands: Mutex<Operands>,
    }

    #[derive(Debug)]
    struct Operands {
        buffers: ExpertsBuffers,
        x: Floats,
        x_strides: Strides,
        ids: Foreign<i32>,
        weights: Foreign<f32>,
        y: Floats,
        y_strides: Strides,
        bias: Option<Foreign<f32>>,
        residual: Option<Residual>,
    }

    #[derive(Debug)]
    enum Residual {
        Itself,
        Of(Floats),
    }

    /// Memory that the caller owns, of a type.
    #[derive(Debug)]
    struct Foreign<T>(ManuallyDrop<CudaSlice<T>>);

    impl<T> Foreign<T> {
        /// # Safety
        /// Whoever uses it says that so many elements are there.
        unsafe fn new(
            what: &str,
            stream: &Arc<CudaStream>,
            address: u64,
            count: usize,
        ) -> Result<Self, Failure> {
            if address == 0 && count > 0 {
                return Err(Failure::null(what));
            }
            if !address.is_multiple_of(align_of::<T>() as u64) {
                return Err(Failure::argument(format!(
                    "{what}: {address:#x} is no address of {} byte elements",
                    size_of::<T>()
                )));
            }
            // SAFETY: nothing is read or written here; the rest is the caller's promise.
            let slice = unsafe { stream.upgrade_device_ptr(address, count) };
            Ok(Self(ManuallyDrop::new(slice)))
        }

        fn view(&self) -> CudaView<'_, T> {
            self.0.as_view()
        }

        fn view_mut(&mut self) -> CudaViewMut<'_, T> {
            self.0.as_view_mut()
        }
    }

    impl<T> Drop for Foreign<T> {
        fn drop(&mut self) {
            // SAFETY: taken once, here.
            let slice = unsafe { ManuallyDrop::take(&mut self.0) };
            // The memory is not freed.
            slice.leak();
        }
    }

    /// Memory of floating-point numbers.
    #[derive(Debug)]
    enum Floats {
        F16(Foreign<f16>),
        Bf16(Foreign<bf16>),
        F32(Foreign<f32>),
    }

    impl Floats {
        /// # Safety
        /// As [`Foreign::new`]'s.
        unsafe fn new(
            what: &str,
            stream: &Arc<CudaStream>,
            element: FloatType,
            address: u64,
            count: usize,
        ) -> Result<Self, Failure> {
            // SAFETY: this function's own contract.
            unsafe {
                Ok(match element {
                    FloatType::F16 => Self::F16(Foreign::new(what, stream, address, count)?),
                    FloatType::Bf16 => Self::Bf16(Foreign::new(what, stream, address, count)?),
                    FloatType::F32 => Self::F32(Foreign::new(what, stream, address, count)?),
                })
            }
        }

        fn vectors(&self, strides: Strides) -> Vectors<'_, Device> {
            match self {
                Self::F16(x) => Vectors::F16(DenseVectors::new(x.view()).with_strides(strides)),
                Self::Bf16(x) => Vectors::Bf16(DenseVectors::new(x.view()).with_strides(strides)),
                Self::F32(x) => Vectors::F32(DenseVectors::new(x.view()).with_strides(strides)),
            }
        }

        fn output(&mut self) -> Output<'_, Device> {
            match self {
                Self::F16(y) => Output::on_device(y.view_mut()),
                Self::Bf16(y) => Output::on_device(y.view_mut()),
                Self::F32(y) => Output::on_device(y.view_mut()),
            }
        }

        fn add_to<'a>(&'a self, y: Output<'a, Device>) -> Output<'a, Device> {
            fn of<'a, T: Element>(y: Output<'a, Device>, r: CudaView<'a, T>) -> Output<'a, Device> {
                y.adding_on_device(r)
            }
            match self {
                Self::F16(r) => of(y, r.view()),
                Self::Bf16(r) => of(y, r.view()),
                Self::F32(r) => of(y, r.view()),
            }
        }
    }

    /// The context that is current, as cudarc has it. Its events are off: the caller orders the work of its streams.
    fn context() -> Result<Arc<CudaContext>, Failure> {
        let Some((handle, number)) = current()? else {
            return Err(Failure::argument("no CUDA context is current"));
        };
        let ordinal = number as usize;
        let mut device = 0;
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: the driver is there, and the pointers are to live integers.
        let state = unsafe {
            asked(sys::cuDeviceGet(&mut device, number as i32).result())?;
            sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active)
        };
        asked(state.result())?;
        let primary = match is_active {
            0 => None,
            _ => Some(asked(CudaContext::new(ordinal))?),
        };
        let context = match primary.filter(|primary| primary.cu_ctx() == handle) {
            Some(primary) => primary,
            None => {
                // SAFETY: it is the current one, of this device. It makes it current again.
                let context = unsafe { CudaContext::from_raw_context(ordinal, device, handle) };
                let context = asked(context)?;
                // It is the caller's: cudarc would destroy it with the last of these.
                std::mem::forget(Arc::clone(&context));
                context
            }
        };
        // SAFETY: the caller orders the work, as all functions by address ask for.
        unsafe { context.disable_event_tracking() };
        Ok(context)
    }

    /// # Safety
    /// As `nvfp4_experts_on_device`'s.
    pub(super) unsafe fn on_device(
        experts: &nvfp4_gemv::Experts,
        layout: ScaleLayout,
        chained: bool,
    ) -> Result<Experts, Failure> {
        let context = context()?;
        let stream = asked(context.new_stream())?;
        let experts = experts.on_device(&stream, layout)?;
        asked(stream.synchronize())?;
        Ok(match chained {
            // SAFETY: the copies have ended; the rest is this function's own contract.
            true => unsafe { experts.chained() },
            false => experts,
        })
    }

    /// From a vector to the next, in elements; and the elements that `n` of them reach.
    fn strides(
        what: &str,
        given: usize,
        n: usize,
        row: usize,
        element: FloatType,
    ) -> Result<(Strides, usize), Failure> {
        if !given.is_multiple_of(element.bytes()) {
            let bytes = element.bytes();
            return Err(Failure::argument(format!(
                "{what}.row_stride: {given} is no multiple of {bytes} byte elements"
            )));
        }
        let step = match given {
            0 => row,
            given => given / element.bytes(),
        };
        let beyond = || Failure::argument(format!("{what}: a stride beyond memory"));
        let batch = n.checked_mul(step).ok_or_else(beyond)?;
        let reached = match n {
            0 => 0,
            n => ((n - 1) * step).checked_add(row).ok_or_else(beyond)?,
        };
        let bytes = reached.checked_mul(element.bytes());
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(beyond());
        }
        Ok((Strides { row: step, batch }, reached))
    }

    /// # Safety
    /// As `nvfp4_experts_call_prepare`'s.
    pub(super) unsafe fn prepare(
        experts: &Experts,
        x: &nvfp4_device_vectors,
        n: usize,
        [ids, weights]: [u64; 2],
        choices: usize,
        y: &nvfp4_device_output,
        stream: *mut c_void,
    ) -> Result<Prepared, Failure> {
        let of_x = match memory::activation(x.element)? {
            Activation::F16 => FloatType::F16,
            Activation::Bf16 => FloatType::Bf16,
            Activation::F32 => FloatType::F32,
            Activation::Nvfp4 => {
                let text = "x.element: experts take f16, bf16 or f32 vectors";
                return Err(Failure::argument(text));
            }
        };
        let of_y = memory::element(y.element)?;
        let (x_strides, x_count) = strides("x", x.row_stride, n, experts.k(), of_x)?;
        let (y_strides, y_count) = strides("y", y.row_stride, n, experts.rows(), of_y)?;
        let pairs = n.checked_mul(choices);
        let pairs = pairs.filter(|pairs| isize::try_from(pairs.saturating_mul(4)).is_ok());
        let pairs = pairs.ok_or_else(|| {
            Failure::argument(format!("{n} * {choices} choices are more than memory has"))
        })?;
        let context = context()?;
        // SAFETY: this function's own contract.
        let stream = unsafe { context.wrap_borrowed_stream(stream.cast()) };
        // SAFETY: nothing is read or written before a launch, whose caller says that all of it is there.
        let operands = unsafe {
            Operands {
                buffers: experts.buffers(&stream, n, choices)?,
                x: Floats::new("x.values", &stream, of_x, x.values, x_count)?,
                x_strides,
                ids: Foreign::new("ids", &stream, ids, pairs)?,
                weights: Foreign::new("weights", &stream, weights, pairs)?,
                y: Floats::new("y.values", &stream, of_y, y.values, y_count)?,
                y_strides,
                bias: match y.bias {
                    0 => None,
                    bias => Some(Foreign::new("y.bias", &stream, bias, experts.rows())?),
                },
                residual: match y.residual {
                    0 => None,
                    of if of == y.values => Some(Residual::Itself),
                    of => {
                        let of = Floats::new("y.residual", &stream, of_y, of, y_count)?;
                        Some(Residual::Of(of))
                    }
                },
            }
        };
        let prepared = Prepared {
            experts: experts.clone(),
            stream,
            operands: Mutex::new(operands),
        };
        prepared.call(false)?;
        Ok(prepared)
    }

    impl Prepared {
        fn call(&self, launch: bool) -> Result<(), Failure> {
            let operands = self.operands.lock();
            let mut operands = operands.unwrap_or_else(PoisonError::into_inner);
            let Operands {
                buffers,
                x,
                x_strides,
                ids,
                weights,
                y,
                y_strides,
                bias,
                residual,
            } = &mut *operands;
            let mut output = y.output().with_strides(*y_strides);
            if let Some(bias) = bias {
                output = output.with_bias_on_device(bias.view());
            }
            output = match residual {
                None => output,
                Some(Residual::Itself) => output.accumulating(),
                Some(Residual::Of(residual)) => residual.add_to(output),
            };
            let (stream, x) = (&self.stream, x.vectors(*x_strides));
            let (ids, weights) = (ids.view(), weights.view());
            let called = match launch {
                true => (self.experts).forward(stream, buffers, &x, &ids, &weights, output),
                false => (self.experts).prepare(stream, buffers, &x, &ids, &weights, output),
            };
            Ok(called?)
        }
    }

    /// # Safety
    /// As `nvfp4_experts_call_launch`'s.
    pub(super) unsafe fn launch(call: &Prepared) -> Result<(), Failure> {
        call.call(true)
    }
}

/// A library without calls on devices has the functions, which say so.
#[cfg(not(feature = "device"))]
mod calls {
    use std::ffi::c_void;

    use nvfp4_gemv::ScaleLayout;

    use super::{nvfp4_device_output, nvfp4_device_vectors};
    use crate::failure::Failure;

    /// There are none.
    #[derive(Debug)]
    pub(super) enum Experts {}

    /// There is none.
    #[derive(Debug)]
    pub(super) enum Prepared {}

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn on_device(
        _experts: &nvfp4_gemv::Experts,
        _layout: ScaleLayout,
        _chained: bool,
    ) -> Result<Experts, Failure> {
        crate::device::none()
    }

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn prepare(
        experts: &Experts,
        _x: &nvfp4_device_vectors,
        _n: usize,
        _addresses: [u64; 2],
        _choices: usize,
        _y: &nvfp4_device_output,
        _stream: *mut c_void,
    ) -> Result<Prepared, Failure> {
        match *experts {}
    }

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn launch(call: &Prepared) -> Result<(), Failure> {
        match *call {}
    }
}
