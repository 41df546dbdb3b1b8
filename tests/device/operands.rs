//! A problem's operands in device memory, with vectors of any type, and calls with them.

use std::cell::Cell;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use half::{bf16, f16};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::reference::{self, Reference};
use nvfp4_gemv::{
    Activation, Config, DenseVectors, Device, Error, FloatType, GlobalScale, Launched,
    Nvfp4Vectors, Output, Path, ScaleLayout, Shape, VectorScale, Vectors, Weights,
    gemv_on_device_chained, gemv_on_device_with,
};

use super::{Gpu, Uploaded, output, upload};

/// How one problem is put to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) weight_layout: ScaleLayout,
    pub(crate) vector_layout: ScaleLayout,
    pub(crate) activation: Activation,
    pub(crate) output: FloatType,
    /// NVFP4 vectors as rows of 128, the others garbage.
    pub(crate) padded: bool,
    /// The path that is forced, if one is.
    pub(crate) path: Option<Path>,
    /// The configuration that is forced, if one is.
    pub(crate) config: Option<Config>,
}

/// Linear scales, NVFP4 vectors, f32 output, nothing forced.
pub(crate) const CASE: Case = Case {
    weight_layout: ScaleLayout::Linear,
    vector_layout: ScaleLayout::Linear,
    activation: Activation::Nvfp4,
    output: FloatType::F32,
    padded: false,
    path: None,
    config: None,
};

/// Layouts of weights and vectors together.
pub(crate) fn layouts() -> impl Iterator<Item = (ScaleLayout, ScaleLayout)> {
    ScaleLayout::ALL
        .into_iter()
        .flat_map(|w| ScaleLayout::ALL.into_iter().map(move |v| (w, v)))
}

/// A call in any configuration, also a chained one. No kernel writes the weights, or a copy follows the one that
/// did.
pub(crate) fn call(
    path: Option<Path>,
    config: Option<Config>,
    stream: &Arc<CudaStream>,
    shape: &Shape,
    weights: &Weights<'_, Device>,
    vectors: &Vectors<'_, Device>,
    output: Output<'_, Device>,
) -> Result<Launched, Error> {
    if config.is_some_and(|config| config.is_dependent()) {
        // SAFETY: the weights of tests are complete, as the function's comment says.
        unsafe { gemv_on_device_chained(path, config, stream, shape, weights, vectors, output) }
    } else {
        gemv_on_device_with(path, config, stream, shape, weights, vectors, output)
    }
}

enum Dense {
    None,
    F16(CudaSlice<f16>),
    Bf16(CudaSlice<bf16>),
    F32(CudaSlice<f32>),
}

/// A problem in device memory, as a case says.
pub(crate) struct OnDevice {
    stream: Arc<CudaStream>,
    pub(crate) shape: Shape,
    pub(crate) case: Case,
    uploaded: Uploaded,
    dense: Dense,
}

impl OnDevice {
    pub(crate) fn new(gpu: &Gpu, problem: &Problem, case: Case) -> Self {
        let stream = &gpu.stream;
        let decoded = || problem.decoded_vectors().unwrap();
        Self {
            stream: stream.clone(),
            shape: problem.shape,
            case,
            uploaded: Uploaded::new(
                stream,
                problem,
                case.weight_layout,
                case.vector_layout,
                case.padded,
            ),
            dense: match case.activation {
                Activation::Nvfp4 => Dense::None,
                Activation::F16 => Dense::F16(upload(stream, &convert(&decoded(), f16::from_f32))),
                Activation::Bf16 => {
                    Dense::Bf16(upload(stream, &convert(&decoded(), bf16::from_f32)))
                }
                Activation::F32 => Dense::F32(upload(stream, &decoded())),
            },
        }
    }

    /// The same operands, cut in another way.
    pub(crate) fn cut(mut self, config: impl Into<Config>) -> Self {
        self.case.config = Some(config.into());
        self
    }

    fn vectors(&self) -> Vectors<'_, Device> {
        match &self.dense {
            Dense::None => self.uploaded.vectors(),
            Dense::F16(x) => Vectors::F16(DenseVectors::new(x.as_view())),
            Dense::Bf16(x) => Vectors::Bf16(DenseVectors::new(x.as_view())),
            Dense::F32(x) => Vectors::F32(DenseVectors::new(x.as_view())),
        }
    }

    pub(crate) fn enqueue(&self, output: Output<'_, Device>) -> Result<Launched, Error> {
        self.enqueue_as(self.case.config, output)
    }

    /// In another cut than the case says.
    pub(crate) fn enqueue_as(
        &self,
        config: Option<Config>,
        output: Output<'_, Device>,
    ) -> Result<Launched, Error> {
        call(
            self.case.path,
            config,
            &self.stream,
            &self.shape,
            &self.uploaded.weights(),
            &self.vectors(),
            output,
        )
    }

    /// The result, and the configuration that made it.
    pub(crate) fn run(&self) -> (Vec<f64>, Config) {
        let config = Cell::new(None);
        let call = |output: Output<'_, Device>| {
            let launched = self
                .enqueue(output)
                .unwrap_or_else(|error| panic!("{} {:?}: {error}", self.shape, self.case));
            if let Some(path) = self.case.path {
                assert_eq!(launched.choice.path, path);
            }
            config.set(Some(launched.config));
        };
        let (stream, shape) = (&self.stream, &self.shape);
        let y = match self.case.output {
            FloatType::F16 => output(stream, shape, f16::NAN, |y| call(Output::F16(y)), f64::from),
            FloatType::Bf16 => output(
                stream,
                shape,
                bf16::NAN,
                |y| call(Output::Bf16(y)),
                f64::from,
            ),
            FloatType::F32 => output(stream, shape, f32::NAN, |y| call(Output::F32(y)), f64::from),
        };
        (y, config.get().expect("a call"))
    }

    /// The result lies within what the configuration that made it promises.
    pub(crate) fn assert_in_bound(&self, truth: &Reference) {
        let (y, config) = self.run();
        let roundings = config.roundings(&self.shape, self.case.activation);
        for (i, &y) in y.iter().enumerate() {
            let bound =
                reference::error_bound(truth.y[i], truth.magnitude[i], roundings, self.case.output);
            let error = (y - truth.y[i]).abs();
            assert!(
                error <= bound,
                "{} {:?} {config:?} element {i}: {y}, true {}, error {error:e} > {bound:e}",
                self.shape,
                self.case,
                truth.y[i]
            );
        }
    }

    pub(crate) fn assert_exact(&self, truth: &Reference) {
        assert_eq!(self.run().0, truth.y, "{} {:?}", self.shape, self.case);
    }

    pub(crate) fn assert_repeats(&self) {
        let bits = || -> Vec<u64> { self.run().0.into_iter().map(f64::to_bits).collect() };
        let first = bits();
        for _ in 1..100 {
            assert_eq!(bits(), first, "{} {:?}", self.shape, self.case);
        }
    }
}

impl Gpu {
    pub(crate) fn assert_in_bound(&self, problem: &Problem, truth: &Reference, case: Case) {
        OnDevice::new(self, problem, case).assert_in_bound(truth);
    }

    pub(crate) fn assert_exact(&self, problem: &Problem, truth: &Reference, case: Case) {
        OnDevice::new(self, problem, case).assert_exact(truth);
    }
}

fn convert<T>(values: &[f32], to: impl Fn(f32) -> T) -> Vec<T> {
    values.iter().map(|&v| to(v)).collect()
}

/// Factors of each batch's rows and of each vector, in what `case` forces; the rest of it is not used.
pub(crate) fn assert_alphas(gpu: &Gpu, shape: Shape, case: Case) {
    let (m, n, l) = (shape.m(), shape.n(), shape.l());
    let problem = Problem::integers(shape, 8);
    let row_alpha: Vec<f32> = (0..l * m).map(|i| (i % 13) as f32 - 6.0).collect();
    let vector_alpha: Vec<f32> = (0..l * n).map(|i| (1 + i % 5) as f32).collect();

    let w = problem.weights(ScaleLayout::Linear).unwrap();
    let x = problem.vectors(ScaleLayout::Linear).unwrap();
    let host_weights = w.view().unwrap().with_row_alpha(&row_alpha).unwrap();
    let host_vectors = Vectors::Nvfp4(Nvfp4Vectors::new(
        &x.codes[..],
        &x.scales[..],
        ScaleLayout::Linear,
        VectorScale::PerVector(&vector_alpha[..]),
    ));
    let truth = reference::gemv(&shape, &host_weights, &host_vectors).unwrap();

    let stream = &gpu.stream;
    let (codes, scales) = (upload(stream, w.codes), upload(stream, &w.scales));
    let (x_codes, x_scales) = (upload(stream, &x.codes), upload(stream, &x.scales));
    let row_alpha = upload(stream, &row_alpha);
    let vector_alpha = upload(stream, &vector_alpha);
    let weights = Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        ScaleLayout::Linear,
        GlobalScale::ONE,
    )
    .unwrap()
    .with_row_alpha_on_device(row_alpha.as_view())
    .unwrap();
    let vectors = Vectors::Nvfp4(Nvfp4Vectors::new(
        x_codes.as_view(),
        x_scales.as_view(),
        ScaleLayout::Linear,
        VectorScale::PerVector(vector_alpha.as_view()),
    ));
    let call = |y: CudaViewMut<'_, f32>| {
        let output = Output::F32(y);
        let (path, config) = (case.path, case.config);
        self::call(path, config, stream, &shape, &weights, &vectors, output).unwrap();
    };
    let y = output(stream, &shape, f32::NAN, call, f64::from);
    assert_eq!(y, truth.y, "{shape} {case:?}");
}
