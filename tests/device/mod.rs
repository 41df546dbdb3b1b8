//! What tests on a real device share: the device, or the reason why there is none, and problems in
//! its memory.
#![allow(dead_code, unused_imports)] // each test binary uses its part

mod data;
mod dependent;
mod operands;

use std::fmt::Debug;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaViewMut, DeviceRepr};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::{
    Device, GlobalScale, Nvfp4Vectors, ScaleLayout, Shape, Strides, VectorScale, Vectors, Weights,
    raw,
};

pub(crate) use data::Data;
pub(crate) use dependent::{assert_dependent_in_a_graph, assert_follows_the_quantiser};
pub(crate) use operands::{CASE, Case, OnDevice, assert_alphas, layouts};

/// The first device.
pub(crate) struct Gpu {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) info: raw::DeviceInfo,
}

impl Gpu {
    /// Without events that order work on buffers. Before anything is allocated: inside a capture, such
    /// events would wait for events of before it.
    pub(crate) fn without_events(self) -> Self {
        // SAFETY: the context is used by one test on one stream, whose order needs no events.
        unsafe { self.stream.context().disable_event_tracking() };
        self
    }
}

/// The first device, or a printed reason.
pub(crate) fn gpu() -> Option<Gpu> {
    if let Err(reason) = raw::device_count() {
        // Past the test harness, which would swallow what a passing test prints.
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let _ = writeln!(std::io::stderr(), "every GPU test is skipped: {reason}");
        });
        return None;
    }
    let _alone = alone();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let info = raw::device_info(0).unwrap();
    Some(Gpu { stream, info })
}

/// A new stream waits for the context, which ends other threads' captures: not at the same time. Held
/// while streams are made and while work is captured.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The first device; ends the test, with a printed reason, where there is none.
macro_rules! gpu_or_skip {
    () => {
        match $crate::device::gpu() {
            Some(gpu) => gpu,
            None => return,
        }
    };
}
pub(crate) use gpu_or_skip;

pub(crate) fn upload<T: DeviceRepr + Clone>(
    stream: &Arc<CudaStream>,
    values: &[T],
) -> CudaSlice<T> {
    stream.clone_htod(values).unwrap()
}

/// A problem's weights and NVFP4 vectors in device memory.
pub(crate) struct Uploaded {
    shape: Shape,
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    layout: ScaleLayout,
    global: GlobalScale,
    row_alpha: Option<CudaSlice<f32>>,
    x_codes: CudaSlice<u8>,
    x_scales: CudaSlice<u8>,
    x_layout: ScaleLayout,
    x_strides: Option<(Strides, Strides)>,
}

impl Uploaded {
    /// Vectors densely packed, or as rows of 128 of which the others are garbage.
    pub(crate) fn new(
        stream: &Arc<CudaStream>,
        problem: &Problem,
        layout: ScaleLayout,
        x_layout: ScaleLayout,
        padded: bool,
    ) -> Self {
        let w = problem.weights(layout).unwrap();
        let x = if padded {
            problem.padded_vectors(x_layout, 99).unwrap()
        } else {
            problem.vectors(x_layout).unwrap()
        };
        Self {
            shape: problem.shape,
            codes: upload(stream, w.codes),
            scales: upload(stream, &w.scales),
            layout,
            global: w.global(),
            row_alpha: w.row_alpha().map(|alpha| upload(stream, alpha)),
            x_codes: upload(stream, &x.codes),
            x_scales: upload(stream, &x.scales),
            x_layout,
            x_strides: x.code_strides.zip(x.scale_strides),
        }
    }

    pub(crate) fn weights(&self) -> Weights<'_, Device> {
        let weights = Weights::on_device(
            &self.shape,
            self.codes.as_view(),
            self.scales.as_view(),
            self.layout,
            self.global,
        )
        .unwrap();
        match &self.row_alpha {
            Some(alpha) => weights.with_row_alpha_on_device(alpha.as_view()).unwrap(),
            None => weights,
        }
    }

    pub(crate) fn vectors(&self) -> Vectors<'_, Device> {
        let mut vectors = Nvfp4Vectors::new(
            self.x_codes.as_view(),
            self.x_scales.as_view(),
            self.x_layout,
            VectorScale::Shared(GlobalScale::ONE),
        );
        if let Some((codes, scales)) = self.x_strides {
            vectors = vectors.with_code_strides(codes).with_scale_strides(scales);
        }
        Vectors::Nvfp4(vectors)
    }
}

/// Elements past the end of the output that must keep their poison.
const CANARY: usize = 64;

/// Poisons an output with NaN, lets `call` fill it, and checks that nothing past it was written.
pub(crate) fn output<T: DeviceRepr + Copy + Debug + 'static>(
    stream: &Arc<CudaStream>,
    shape: &Shape,
    poison: T,
    call: impl Fn(CudaViewMut<'_, T>),
    to_f64: fn(T) -> f64,
) -> Vec<f64> {
    let outputs = shape.outputs();
    let mut y = upload(stream, &vec![poison; outputs + CANARY]);
    call(y.slice_mut(..outputs));
    let mut y: Vec<f64> = stream
        .clone_dtoh(&y)
        .unwrap()
        .into_iter()
        .map(to_f64)
        .collect();
    assert!(
        y[outputs..].iter().all(|y| y.is_nan()),
        "wrote past the end"
    );
    y.truncate(outputs);
    y
}
