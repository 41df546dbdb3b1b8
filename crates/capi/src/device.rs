//! Calls on a device, by address: prepared once, launched on the caller's stream.

use std::ffi::{c_char, c_void};

use crate::failure::nvfp4_status;
use crate::plan::nvfp4_gpu;

/// A call that was prepared.
#[derive(Debug)]
pub struct nvfp4_call(calls::Prepared);

/// Weights in a device's memory: an address of 0 stands for nothing.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_device_weights {
    /// Rows, M.
    pub rows: usize,
    /// Elements of a row, K.
    pub k: usize,
    /// Address of the codes `[rows][k/2]`, 8-byte aligned.
    pub codes: u64,
    /// Address of the block scales.
    pub scales: u64,
    /// How they lie: NVFP4_LINEAR `[rows][k/16]`, or NVFP4_128X4.
    pub layout: u32,
    /// NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    pub global_kind: u32,
    /// The global scale.
    pub global: f32,
    /// Address of a float for each row, a factor, or 0.
    pub row_alpha: u64,
}

/// Vectors in a device's memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_device_vectors {
    /// NVFP4_F16, NVFP4_BF16, NVFP4_F32 or NVFP4_CODES.
    pub element: u32,
    /// Address of elements `[n][k]`, 16-byte aligned, or of codes `[n][k/2]`, 8-byte aligned.
    pub values: u64,
    /// Bytes from a vector's values to the next one's; 0: nothing lies between them.
    pub row_stride: usize,
    /// Address of the block scales of codes; for other vectors nothing here and below is looked at.
    pub scales: u64,
    /// Bytes from a vector's linear scales to the next one's; 0: nothing lies between them.
    pub scale_row_stride: usize,
    /// How the scales lie.
    pub layout: u32,
    /// NVFP4_MULTIPLIER or NVFP4_DIVISOR.
    pub global_kind: u32,
    /// The global scale.
    pub global: f32,
    /// Address of a float for each vector, a factor, or 0.
    pub vector_alpha: u64,
}

/// Results in a device's memory, and what is added to them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_device_output {
    /// NVFP4_F16, NVFP4_BF16 or NVFP4_F32.
    pub element: u32,
    /// Address of the results `[n][rows]`.
    pub values: u64,
    /// Bytes from a vector's results to the next one's; 0: nothing lies between them.
    pub row_stride: usize,
    /// Address of a float for each row, which is added to its results, or 0.
    pub bias: u64,
    /// Address of numbers that lie as the results do and are added to them, or 0. The results' own address: y += W x.
    pub residual: u64,
}

/// Device memory for intermediate data. Calls that may run at the same time need one each. Calls on one stream may share
/// one, if one thread at a time launches them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_device_workspace {
    /// Its address, 256-byte aligned. The first 8192 bytes were set to zeros once.
    pub address: u64,
    /// Its length: nvfp4_workspace_bytes says how much is used.
    pub bytes: u64,
}

/// Vectors in a device's memory that become NVFP4, and where their parts go. nvfp4_device_vectors takes codes, scales and
/// factors (`vector_alpha`, beside a global scale of 1) then.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvfp4_quantization {
    /// Vectors.
    pub n: usize,
    /// Elements of a vector that is made: a multiple of 16.
    pub k: usize,
    /// What is made of the vectors first: NVFP4_AS_THEY_ARE, a gate (NVFP4_SILU, NVFP4_GELU_TANH, NVFP4_CLAMPED) or
    /// NVFP4_RMS_NORM.
    pub first: u32,
    /// Of a gate: NVFP4_STACKED or NVFP4_INTERLEAVED, the order of the 2k elements that a vector has.
    pub order: u32,
    /// Of NVFP4_CLAMPED: positive.
    pub alpha: f32,
    /// Of NVFP4_CLAMPED: positive.
    pub limit: f32,
    /// Of NVFP4_RMS_NORM: address of k weights of the vectors' type, 16-byte aligned.
    pub norm_weight: u64,
    /// Of NVFP4_RMS_NORM: positive.
    pub epsilon: f32,
    /// Whether the launch may begin before the work before it has ended; it waits before it reads or writes. For compute
    /// capability 9.0 and up.
    pub chained: u32,
    /// NVFP4_F16, NVFP4_BF16 or NVFP4_F32.
    pub element: u32,
    /// How the block scales will lie.
    pub layout: u32,
    /// Address of the vectors, 16-byte aligned.
    pub values: u64,
    /// Bytes from a vector's values to the next one's; 0: nothing lies between them.
    pub row_stride: usize,
    /// Written: address of the codes `[n][k/2]`, 8-byte aligned.
    pub codes: u64,
    /// Written: address of the block scales. NVFP4_128X4: 16-byte aligned, and padded with zeros to 128 vectors.
    pub scales: u64,
    /// Written: address of a float for each vector, its global scale; NaN for one that held a NaN or an infinity.
    pub vector_alpha: u64,
}

/// Enqueues the quantisation of vectors on a stream, a CUstream or cudaStream_t, as one kernel, each with a global scale of
/// its own, and waits for nothing. It can be captured into a CUDA graph.
///
/// # Safety
/// `vectors` is NULL or there. A context is current, and `stream` is one of it. Every address is valid, for the bytes that
/// sizes and strides reach, until the enqueued work has run. Nothing else writes the memory, or reads what is written,
/// meanwhile. With `chained`, the launch before it in the stream waits for the launches before that one, as all kernels of
/// this library do. All of this holds until the last replay of a graph that it was captured into.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_quantize(
    vectors: *const nvfp4_quantization,
    stream: *mut c_void,
) -> nvfp4_status {
    crate::failure::guarded(|| {
        // SAFETY: this function's own contract.
        let vectors = unsafe { crate::memory::read("vectors", vectors) }?;
        // SAFETY: this function's own contract.
        unsafe { calls::quantize(vectors, stream) }
    })
}

/// A GPU of this machine, by its number.
///
/// # Safety
/// `gpu` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_gpu_of_device(
    number: u32,
    gpu: *mut *mut nvfp4_gpu,
) -> nvfp4_status {
    // SAFETY: this function's own contract.
    unsafe { crate::memory::handle(gpu, || calls::gpu(number)) }
}

/// Prepares y = W x + bias of n vectors for the CUDA context that is current: chooses a kernel, loads it, and keeps the
/// launches. Reads no address; nothing is enqueued. A `workspace` of NULL is none.
///
/// `gpu` is the context's: nvfp4_gpu_of_device of its number. Another kind of GPU than the context's is
/// NVFP4_BAD_ARGUMENT.
///
/// With `chained` launches may start before the work before them has ended; they read codes and scales at once and wait
/// with everything else. The caller promises that no kernel that may still run writes codes or scales: not only the one
/// right before a launch may, but all chained launches in a row before it, and the one before the first of them.
///
/// # Safety
/// All pointers are NULL or there; `call` is NULL or has room for a pointer. With `chained`, the promise above holds for
/// every launch, and for every replay of a graph that one was captured into.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the operands of a call")]
pub unsafe extern "C" fn nvfp4_call_prepare(
    gpu: *const nvfp4_gpu,
    weights: *const nvfp4_device_weights,
    x: *const nvfp4_device_vectors,
    n: usize,
    y: *const nvfp4_device_output,
    workspace: *const nvfp4_device_workspace,
    chained: u32,
    call: *mut *mut nvfp4_call,
) -> nvfp4_status {
    let prepare = || {
        // SAFETY: this function's own contract.
        let prepared = unsafe { calls::prepare(gpu, weights, x, n, y, workspace, chained != 0) };
        prepared.map(nvfp4_call)
    };
    // SAFETY: this function's own contract.
    unsafe { crate::memory::handle(call, prepare) }
}

/// Enqueues a prepared call on a stream, a CUstream or cudaStream_t, and waits for nothing. It can be captured into a
/// CUDA graph.
///
/// # Safety
/// `call` is NULL or prepared. The context that it was prepared in is current, and `stream` is one of it. Every address
/// that it was prepared with is valid, for the bytes that sizes and strides reach, until the enqueued work has run.
/// Nothing else writes the memory, or reads the results or the workspace, meanwhile. Between the launches of this call no
/// other thread launches a call with the same workspace. All of this holds until the last replay of a graph that the
/// call was captured into.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_call_launch(
    call: *const nvfp4_call,
    stream: *mut c_void,
) -> nvfp4_status {
    crate::failure::guarded(|| {
        // SAFETY: this function's own contract.
        let call = &unsafe { crate::memory::read("call", call) }?.0;
        // SAFETY: this function's own contract.
        unsafe { calls::launch(call, stream) }
    })
}

/// Says what a prepared call launches, and why, as nvfp4_plan does.
///
/// # Safety
/// `call` is NULL or prepared, and `text` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_call_plan(
    call: *const nvfp4_call,
    format: u32,
    text: *mut *mut c_char,
) -> nvfp4_status {
    let plan = || {
        // SAFETY: this function's own contract.
        let call = &unsafe { crate::memory::read("call", call) }?.0;
        calls::plan(call, format)
    };
    // SAFETY: this function's own contract.
    unsafe { crate::memory::value(text, std::ptr::null_mut(), plan) }
}

/// Frees a prepared call. Work that was enqueued goes on.
///
/// # Safety
/// `call` is NULL or prepared, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfp4_call_free(call: *mut nvfp4_call) {
    // SAFETY: this function's own contract.
    unsafe { crate::memory::free(call) }
}

#[cfg(not(feature = "device"))]
pub(crate) use calls::none;
#[cfg(feature = "device")]
pub(crate) use calls::{asked, current};

#[cfg(feature = "device")]
mod calls {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;
    use std::ffi::{c_char, c_void};
    use std::sync::{Mutex, PoisonError};

    use nvfp4_gemv::Error;
    use nvfp4_gemv::cudarc::driver::{self, DriverError};
    use nvfp4_gemv::kernel::quantize::{Global, Input, Quantize};
    use nvfp4_gemv::raw::{self, Call, PreparedRawGemv};
    use nvfp4_gemv::{
        Activation, Dims, FloatType, Gpu, RawOutput, RawVectors, RawWeights, RawWorkspace,
        ScaleLayout, Shape, Strides,
    };

    use super::{
        nvfp4_device_output, nvfp4_device_vectors, nvfp4_device_weights, nvfp4_device_workspace,
        nvfp4_quantization,
    };
    use crate::failure::Failure;
    use crate::memory;
    use crate::plan::{nvfp4_gpu, options, said};

    pub(super) type Prepared = PreparedRawGemv;

    pub(super) fn gpu(number: u32) -> Result<nvfp4_gpu, Failure> {
        raw::device_count()?; // says what is missing
        Ok(nvfp4_gpu(known(number)?))
    }

    /// A GPU of this machine, asked for once: that takes longer than to prepare a call.
    fn known(number: u32) -> Result<Gpu, Failure> {
        static GPUS: Mutex<BTreeMap<u32, Gpu>> = Mutex::new(BTreeMap::new());
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match gpus.entry(number) {
            Entry::Occupied(gpu) => gpu.get().clone(),
            Entry::Vacant(place) => place.insert(raw::gpu(number)?).clone(),
        })
    }

    /// # Safety
    /// As `nvfp4_call_prepare`'s.
    pub(super) unsafe fn prepare(
        gpu: *const nvfp4_gpu,
        weights: *const nvfp4_device_weights,
        x: *const nvfp4_device_vectors,
        n: usize,
        y: *const nvfp4_device_output,
        workspace: *const nvfp4_device_workspace,
        chained: bool,
    ) -> Result<Prepared, Failure> {
        // SAFETY: this function's own contract.
        let (gpu, w, x, y) = unsafe {
            (
                &memory::read("gpu", gpu)?.0,
                memory::read("weights", weights)?,
                memory::read("x", x)?,
                memory::read("y", y)?,
            )
        };
        let shape = Shape::new(Dims {
            m: w.rows,
            n,
            k: w.k,
            l: 1,
        })?;
        let weights = RawWeights {
            codes: w.codes,
            scales: w.scales,
            layout: memory::layout(w.layout)?,
            global: memory::global(w.global_kind, w.global)?,
            row_alpha: w.row_alpha,
            row_alpha_batch_stride: 0,
            select: None,
        };
        let mut call = Call::new(&shape, &weights, &vectors(&shape, x)?, &output(&shape, y)?)?;
        if !workspace.is_null() {
            // SAFETY: this function's own contract.
            let &nvfp4_device_workspace { address, bytes } =
                unsafe { memory::read("workspace", workspace) }?;
            call = call.with_workspace(RawWorkspace { address, bytes })?;
        }
        if let Some((_, current)) = current()? {
            fits(gpu, &known(current)?)?;
        }
        Ok(PreparedRawGemv::new(&call, gpu, &options(chained))?)
    }

    /// The result of a call of the driver's.
    pub(crate) fn asked<T>(result: Result<T, DriverError>) -> Result<T, Failure> {
        result.map_err(|error| {
            Failure::from(Error::Cuda {
                during: "a call for the current context",
                code: error.0 as i32,
                message: error.to_string(),
            })
        })
    }

    /// The current context and the number of its device, if a context is current.
    pub(crate) fn current() -> Result<Option<(driver::sys::CUcontext, u32)>, Failure> {
        raw::device_count()?; // says what is missing, before the driver is asked
        let Some(context) = asked(driver::result::ctx::get_current())? else {
            return Ok(None);
        };
        let mut device = 0;
        // SAFETY: the driver is there, and the pointer is to a live integer.
        let code = unsafe { driver::sys::cuCtxGetDevice(&mut device) };
        asked(code.result())?;
        Ok(u32::try_from(device).ok().map(|device| (context, device)))
    }

    /// Whether what is chosen and planned for a GPU is right for the one that it will run on.
    fn fits(gpu: &Gpu, current: &Gpu) -> Result<(), Failure> {
        let plans = |gpu: &Gpu| {
            let Gpu {
                compute_capability,
                multiprocessors,
                shared_bytes,
                images,
                ..
            } = *gpu;
            (compute_capability, multiprocessors, shared_bytes, images)
        };
        match plans(gpu) == plans(current) {
            true => Ok(()),
            false => Err(Failure::argument(format!(
                "gpu is {:?}, and the current context's is {:?}: take nvfp4_gpu_of_device of its number",
                gpu.name, current.name
            ))),
        }
    }

    /// Strides of `n` rows of so many bytes.
    fn strides(given: usize, n: usize, row: usize) -> Result<Strides, Failure> {
        let row = if given == 0 { row } else { given };
        // Of one batch, whose stride is not used.
        let batch = n.checked_mul(row);
        let batch = batch.ok_or_else(|| Failure::argument("a stride beyond memory"))?;
        Ok(Strides { row, batch })
    }

    fn vectors(shape: &Shape, x: &nvfp4_device_vectors) -> Result<RawVectors, Failure> {
        let n = shape.n();
        let element = match memory::activation(x.element)? {
            Activation::Nvfp4 => {
                return Ok(RawVectors::Nvfp4 {
                    codes: x.values,
                    code_strides: strides(x.row_stride, n, shape.row_code_bytes())?,
                    scales: x.scales,
                    layout: memory::layout(x.layout)?,
                    scale_strides: match memory::layout(x.layout)? {
                        ScaleLayout::Linear => strides(x.scale_row_stride, n, shape.blocks())?,
                        layout => Strides {
                            row: 0,
                            batch: layout.bytes(n, shape.blocks()),
                        },
                    },
                    global: memory::global(x.global_kind, x.global)?,
                    vector_alpha: x.vector_alpha,
                    digits: 1,
                });
            }
            Activation::F16 => FloatType::F16,
            Activation::Bf16 => FloatType::Bf16,
            Activation::F32 => FloatType::F32,
        };
        Ok(RawVectors::Dense {
            element,
            values: x.values,
            strides: strides(x.row_stride, n, shape.k() * element.bytes())?,
        })
    }

    fn output(shape: &Shape, y: &nvfp4_device_output) -> Result<RawOutput, Failure> {
        let element = memory::element(y.element)?;
        let strides = strides(y.row_stride, shape.n(), shape.m() * element.bytes())?;
        Ok(RawOutput {
            strides: Some(strides),
            bias: y.bias,
            residual: y.residual,
            ..RawOutput::packed(y.values, element)
        })
    }

    /// # Safety
    /// As `nvfp4_quantize`'s.
    pub(super) unsafe fn quantize(
        q: &nvfp4_quantization,
        stream: *mut c_void,
    ) -> Result<(), Failure> {
        let (n, k) = (q.n, q.k);
        let shape = Shape::new(Dims { m: 0, n, k, l: 1 })?;
        let element = memory::element(q.element)?;
        let gate = match (q.first, memory::gate(q.first, q.alpha, q.limit)) {
            (_, Some(gate)) => Some((gate, memory::order(q.order)?)),
            (memory::NVFP4_AS_THEY_ARE | memory::NVFP4_RMS_NORM, None) => None,
            (other, None) => {
                return Err(Failure::argument(format!(
                    "{other} is nothing that is made of vectors"
                )));
            }
        };
        let (input, elements) = match gate {
            Some((gate, order)) => (Input::Gated { gate, order }, k.checked_mul(2)),
            None if q.first == memory::NVFP4_RMS_NORM => {
                let (weight, epsilon) = (q.norm_weight, q.epsilon);
                (Input::Normed { weight, epsilon }, Some(k))
            }
            None => (Input::Plain, Some(k)),
        };
        let row = elements.and_then(|elements| elements.checked_mul(element.bytes()));
        let row = row.ok_or_else(|| Failure::argument("vectors beyond memory"))?;
        let call = Quantize {
            element,
            input,
            chained: q.chained != 0,
            early: false,
            copies: 1,
            digits: 1,
            values: q.values,
            strides: strides(q.row_stride, n, row)?,
            global: Global::Computed,
            codes: q.codes,
            scales: q.scales,
            layout: memory::layout(q.layout)?,
            vector_alpha: q.vector_alpha,
        };
        // SAFETY: this function's own contract.
        Ok(unsafe { raw::quantize(&shape, &call, stream) }?)
    }

    /// # Safety
    /// As `nvfp4_call_launch`'s.
    pub(super) unsafe fn launch(call: &Prepared, stream: *mut c_void) -> Result<(), Failure> {
        // SAFETY: this function's own contract.
        Ok(unsafe { call.run(stream) }?)
    }

    pub(super) fn plan(call: &Prepared, format: u32) -> Result<*mut c_char, Failure> {
        said(call.choice(), call.plan(), format)
    }

    #[cfg(test)]
    mod tests {
        use nvfp4_gemv::Product;

        use super::*;

        /// Its kernels would be missing, or its grids another GPU's.
        #[test]
        fn a_call_is_not_prepared_for_another_gpu_than_the_contexts() {
            let of = |name| Gpu::of_product(Product::of_name(name).unwrap(), Gpu::DEFAULT_IMAGES);
            let h200 = of("h200");
            assert!(fits(&h200, &h200).is_ok());
            // Known by its product, it has another name and size of memory than the driver says.
            let named = Gpu {
                name: "NVIDIA H200".into(),
                memory_bytes: 1,
                l2_bytes: 1,
                ..h200.clone()
            };
            assert!(fits(&named, &h200).is_ok());
            assert!(fits(&of("b200"), &h200).is_err());
            let images = "80";
            assert!(
                fits(
                    &Gpu {
                        images,
                        ..h200.clone()
                    },
                    &h200
                )
                .is_err()
            );
        }
    }
}

/// A library without calls on devices has the functions, which say so.
#[cfg(not(feature = "device"))]
mod calls {
    use std::ffi::{c_char, c_void};

    use super::{
        nvfp4_device_output, nvfp4_device_vectors, nvfp4_device_weights, nvfp4_device_workspace,
        nvfp4_quantization,
    };
    use crate::failure::Failure;
    use crate::plan::nvfp4_gpu;

    /// There is none.
    #[derive(Debug)]
    pub(super) enum Prepared {}

    pub(crate) fn none<T>() -> Result<T, Failure> {
        Err(Failure::unavailable(
            "the C library was built for the CPU alone: build it with feature cuda or jit",
        ))
    }

    pub(super) fn gpu(_number: u32) -> Result<nvfp4_gpu, Failure> {
        none()
    }

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn prepare(
        _gpu: *const nvfp4_gpu,
        _weights: *const nvfp4_device_weights,
        _x: *const nvfp4_device_vectors,
        _n: usize,
        _y: *const nvfp4_device_output,
        _workspace: *const nvfp4_device_workspace,
        _chained: bool,
    ) -> Result<Prepared, Failure> {
        none()
    }

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn quantize(
        _vectors: &nvfp4_quantization,
        _stream: *mut c_void,
    ) -> Result<(), Failure> {
        none()
    }

    /// # Safety
    /// None is needed here.
    pub(super) unsafe fn launch(call: &Prepared, _stream: *mut c_void) -> Result<(), Failure> {
        match *call {}
    }

    pub(super) fn plan(call: &Prepared, _format: u32) -> Result<*mut c_char, Failure> {
        match *call {}
    }
}
