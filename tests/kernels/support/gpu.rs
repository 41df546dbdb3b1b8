//! What trials on a real GPU share: the GPU, or the reason why there is none; trials that say so; problems in its
//! memory, and calls by address with them.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, DeviceRepr, sys};
use half::{bf16, f16};
use libtest_mimic::{Completion, Trial};
use nvfp4_gemv::kernel::{Config, Job, Kernel};
use nvfp4_gemv::raw::{self, Call, RawOutput, RawVectors, RawWeights};
use nvfp4_gemv::reference::error_bound;
use nvfp4_gemv::{
    Activation, Choice, FloatType, GlobalScale, Operands, Options, ScaleLayout, Shape, Strides,
};

use super::data::Data;

/// The first device and a stream of its own.
pub(crate) struct Gpu {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) info: nvfp4_gemv::Gpu,
}

/// A trial that needs a GPU that runs a kernel, and is ignored with the reason where there is none.
pub(crate) fn kernel_trial(
    kernel: Kernel,
    name: &str,
    run: impl FnOnce(&Gpu) + Send + 'static,
) -> Trial {
    let refusal = move || -> nvfp4_gemv::Result<Option<String>> {
        raw::device_count()?;
        let gpu = raw::gpu(0)?;
        let shape = Shape::gemv(128, 256, 1)?;
        let operands = Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4);
        let job = Job {
            shape: &shape,
            operands: &operands,
            gpu: &gpu,
            chained: false,
        };
        Ok(kernel.available(&job).err().map(|refusal| refusal.to_string()))
    };
    Trial::ignorable_test(format!("{kernel}::gpu::{name}"), move || {
        match refusal().unwrap_or_else(|error| Some(format!("no GPU: {error}"))) {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => {
                run(&Gpu::first());
                Ok(Completion::Completed)
            }
        }
    })
}

/// A new stream waits for the context, which ends other threads' captures: not at the same time. Held while streams
/// are made and while work is captured.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// The first device.
    pub(crate) fn first() -> Self {
        raw::device_count().unwrap();
        Self::new(CudaContext::new(0).unwrap())
    }

    /// The first device in a CUDA context that is not its primary one.
    pub(crate) fn in_another_context() -> Self {
        Self::new(CudaContext::new_non_primary(0, 0).unwrap())
    }

    fn new(context: Arc<CudaContext>) -> Self {
        // SAFETY: a trial has a `CudaContext` of its own, and orders and waits for its streams itself. Inside a
        // capture, events would wait for those of before it.
        unsafe { context.disable_event_tracking() };
        let _alone = alone();
        Self {
            stream: context.new_stream().unwrap(),
            info: raw::gpu(0).unwrap(),
        }
    }

    pub(crate) fn upload<T: DeviceRepr + Clone>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    pub(crate) fn address<T>(&self, values: &CudaSlice<T>) -> u64 {
        values.device_ptr(&self.stream).0
    }

    /// What calls by address take.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.stream.context().bind_to_thread().unwrap();
        self.stream.cu_stream().cast()
    }

    /// What `enqueue` puts into the stream, as a graph.
    pub(crate) fn capture(&self, enqueue: impl FnOnce()) -> CudaGraph {
        self.stream.synchronize().unwrap();
        let _capturing = alone();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).unwrap();
        enqueue();
        let flags =
            sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).unwrap();
        graph.expect("the capture holds the launches")
    }
}

/// How one problem is put to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) weight_layout: ScaleLayout,
    pub(crate) vector_layout: ScaleLayout,
    pub(crate) activation: Activation,
    pub(crate) output: FloatType,
    /// NVFP4 vectors as rows of 128, the others garbage; rows and batches of others 16 bytes apart.
    pub(crate) padded: bool,
    /// Bytes from a boundary of 256 to the weights' codes and the codes of NVFP4 vectors; half as many to scales.
    pub(crate) offset: usize,
}

/// Linear scales, NVFP4 vectors, f32 output.
pub(crate) const CASE: Case = Case {
    weight_layout: ScaleLayout::Linear,
    vector_layout: ScaleLayout::Linear,
    activation: Activation::Nvfp4,
    output: FloatType::F32,
    padded: false,
    offset: 0,
};

impl Case {
    /// Types of vectors and layouts of scales, each once: dense vectors have no scales.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Activation::ALL.into_iter().flat_map(|activation| {
            ScaleLayout::ALL.into_iter().flat_map(move |weight_layout| {
                ScaleLayout::ALL
                    .into_iter()
                    .filter(move |&v| activation == Activation::Nvfp4 || v == ScaleLayout::Linear)
                    .map(move |vector_layout| Self {
                        weight_layout,
                        vector_layout,
                        activation,
                        ..CASE
                    })
            })
        })
    }
}

/// What asks for a config; chained where that is asked for, too.
pub(crate) fn options(config: Config, chained: bool) -> Options<'static> {
    let options = Options::new().config(config);
    match chained {
        // SAFETY: weights of trials were copied to the device, and no kernel writes them.
        true => unsafe { options.chained() },
        false => options,
    }
}

/// Bytes past the end of the output that must keep their poison.
const CANARY: usize = 256;

/// A problem in device memory, as a case says.
pub(crate) struct OnDevice<'a> {
    gpu: &'a Gpu,
    data: &'a Data,
    pub(crate) case: Case,
    pub(crate) call: Call,
    weights: RawWeights,
    to: RawOutput,
    output: CudaSlice<u8>,
    _operands: Vec<CudaSlice<u8>>,
}

impl<'a> OnDevice<'a> {
    pub(crate) fn new(gpu: &'a Gpu, data: &'a Data, case: Case) -> Self {
        let problem = &data.problem;
        let shape = &problem.shape;
        let mut operands = Vec::new();
        // An operand that is not there stays a null pointer.
        let mut upload = |offset: usize, bytes: &[u8]| {
            if bytes.is_empty() {
                return 0;
            }
            operands.push(gpu.upload(&[&vec![0; offset], bytes].concat()));
            gpu.address(operands.last().expect("just pushed")) + offset as u64
        };
        let w = problem.weights(case.weight_layout).unwrap();
        let weights = RawWeights {
            codes: upload(case.offset, w.codes),
            scales: upload(case.offset / 2, &w.scales),
            layout: case.weight_layout,
            global: w.global(),
            row_alpha: upload(0, &bytes(&data.row_alpha)),
            row_alpha_batch_stride: match data.row_alpha.len() > shape.m() {
                true => shape.m(),
                false => 0,
            },
        };
        let vectors = match case.activation {
            Activation::Nvfp4 => nvfp4(data, case, &mut upload),
            Activation::F16 => dense(data, case, FloatType::F16, &mut upload),
            Activation::Bf16 => dense(data, case, FloatType::Bf16, &mut upload),
            Activation::F32 => dense(data, case, FloatType::F32, &mut upload),
        };
        let output = gpu.upload(&vec![0xff; shape.outputs() * case.output.bytes() + CANARY]);
        let to = RawOutput {
            address: gpu.address(&output),
            element: case.output,
        };
        let call = Call::new(shape, &weights, &vectors, &to)
            .unwrap_or_else(|error| panic!("{shape} {case:?}: {error}"));
        Self {
            gpu,
            data,
            case,
            call,
            weights,
            to,
            output,
            _operands: operands,
        }
    }

    /// Vectors that are elsewhere in device memory, and outlive this.
    pub(crate) fn replace_vectors(&mut self, vectors: RawVectors) {
        let (shape, weights, output) = (*self.call.shape(), self.weights, self.to);
        self.call = Call::new(&shape, &weights, &vectors, &output).unwrap();
    }

    /// Dense vectors of the same type that are elsewhere in device memory, and outlive this.
    pub(crate) fn replace_dense_vectors(&mut self, values: u64) {
        let shape = self.call.shape();
        let element = match self.case.activation {
            Activation::Nvfp4 => panic!("NVFP4 vectors are not dense"),
            Activation::F16 => FloatType::F16,
            Activation::Bf16 => FloatType::Bf16,
            Activation::F32 => FloatType::F32,
        };
        let row = shape.k() * element.bytes();
        self.replace_vectors(RawVectors::Dense {
            element,
            values,
            strides: Strides {
                row,
                batch: shape.n() * row,
            },
        });
    }

    /// What kernels are asked about.
    pub(crate) fn job<T>(&self, chained: bool, ask: impl FnOnce(&Job<'_>) -> T) -> T {
        ask(&Job {
            shape: self.call.shape(),
            operands: &self.call.operands(),
            gpu: &self.gpu.info,
            chained,
        })
    }

    /// Enqueues a call.
    pub(crate) fn enqueue(&self, options: &Options<'_>) -> nvfp4_gemv::Result<Choice> {
        // SAFETY: the operands live as long as `self`, whose work is waited for before it is dropped, and nothing
        // else writes them.
        unsafe { raw::gemv(&self.call, &self.gpu.info, options, self.gpu.handle()) }
    }

    /// NaN in every element of the output, and after it.
    pub(crate) fn poison(&mut self) {
        let poison = vec![0xff; self.output.len()];
        self.gpu.stream.memcpy_htod(&poison, &mut self.output).unwrap();
    }

    /// The output, which nothing was written after.
    pub(crate) fn download(&self) -> Vec<u8> {
        let mut all = self.gpu.stream.clone_dtoh(&self.output).unwrap();
        let canary = all.split_off(all.len() - CANARY);
        assert!(canary.iter().all(|&b| b == 0xff), "wrote past the end");
        all
    }

    /// What a config gives: the same by a call, and by one that is prepared and launched twice.
    pub(crate) fn run(&mut self, config: Config, chained: bool) -> Vec<u8> {
        let options = options(config, chained);
        let what = format!("{} {:?} {config:?} chained {chained}", self.call.shape(), self.case);
        self.poison();
        let choice = self.enqueue(&options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(choice.config, Some(config));
        let called = self.download();
        self.poison();
        let prepared = raw::PreparedRawGemv::new(&self.call, &self.gpu.info, &options).unwrap();
        for _ in 0..2 {
            // SAFETY: as in `enqueue`.
            unsafe { prepared.launch(self.gpu.handle()) }.unwrap();
        }
        assert!(called == self.download(), "{what}: prepared launches differ");
        called
    }

    /// The same as numbers.
    pub(crate) fn numbers(&mut self, config: Config, chained: bool) -> Vec<f64> {
        numbers(self.case.output, &self.run(config, chained))
    }

    /// What a config gives is within what it promises, or is exact.
    pub(crate) fn assert_right(&mut self, config: Config, chained: bool) {
        let y = self.numbers(config, chained);
        let shape = self.call.shape();
        let roundings = config.roundings(shape, self.case.activation);
        for (i, y) in y.into_iter().enumerate() {
            let (truth, magnitude) = (self.data.truth.y[i], self.data.truth.magnitude[i]);
            let bound = match self.data.exact {
                true => 0.0,
                false => error_bound(truth, magnitude, roundings, self.case.output),
            };
            // A NaN is wrong too.
            assert!(
                (y - truth).abs() <= bound,
                "{shape} {:?} {config:?} element {i}: {y}, true {truth}, bound {bound:e}",
                self.case
            );
        }
    }
}

/// The elements as numbers.
fn numbers(element: FloatType, bytes: &[u8]) -> Vec<f64> {
    let number = |b: &[u8]| match element {
        FloatType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        FloatType::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        FloatType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
    };
    bytes.chunks_exact(element.bytes()).map(number).collect()
}

pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn nvfp4(data: &Data, case: Case, upload: &mut impl FnMut(usize, &[u8]) -> u64) -> RawVectors {
    let problem = &data.problem;
    let shape = &problem.shape;
    let x = match case.padded {
        true => problem.padded_vectors(case.vector_layout, 99),
        false => problem.vectors(case.vector_layout),
    }
    .unwrap();
    let packed = |row: usize, batch: usize| Strides { row, batch };
    let (row, blocks) = (shape.row_code_bytes(), shape.blocks());
    RawVectors::Nvfp4 {
        codes: upload(case.offset, &x.codes),
        code_strides: x.code_strides.unwrap_or(packed(row, shape.n() * row)),
        scales: upload(case.offset / 2, &x.scales),
        layout: case.vector_layout,
        scale_strides: x
            .scale_strides
            .unwrap_or(packed(blocks, case.vector_layout.bytes(shape.n(), blocks))),
        global: GlobalScale::ONE,
        vector_alpha: upload(0, &bytes(&data.vector_alpha)),
    }
}

/// Dense vectors; what lies between padded ones is NaN.
fn dense(
    data: &Data,
    case: Case,
    element: FloatType,
    upload: &mut impl FnMut(usize, &[u8]) -> u64,
) -> RawVectors {
    let shape = &data.problem.shape;
    let values = data.problem.decoded_vectors().unwrap();
    let size = element.bytes();
    let pad = if case.padded { 16 } else { 0 };
    let row = shape.k() * size + pad;
    let batch = shape.n() * row + 2 * pad;
    let mut all = vec![0xff; shape.l() * batch];
    for (i, row_of) in values.chunks(shape.k()).enumerate() {
        let at = i / shape.n() * batch + i % shape.n() * row;
        for (x, to) in row_of.iter().zip(all[at..].chunks_exact_mut(size)) {
            match element {
                FloatType::F16 => to.copy_from_slice(&f16::from_f32(*x).to_le_bytes()),
                FloatType::Bf16 => to.copy_from_slice(&bf16::from_f32(*x).to_le_bytes()),
                FloatType::F32 => to.copy_from_slice(&x.to_le_bytes()),
            }
        }
    }
    RawVectors::Dense {
        element,
        values: upload(0, &all),
        strides: Strides { row, batch },
    }
}
