//! The quantiser and the change of scale layouts on a real device, against the host's, bit for bit.
//! Without a device, every test says why it is skipped.
#![cfg(feature = "cuda")]

mod device;
mod quantize_data;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, ValidAsZeroBits, sys,
};
use device::{alone, gpu_or_skip};
use half::{bf16, f16};
use nvfp4_gemv::problem::Problem;
use nvfp4_gemv::quantize::{QuantizedRows as HostVectors, quantize_vectors_or_nan};
use nvfp4_gemv::raw::{self, Global, Quantize};
use nvfp4_gemv::{
    DenseVectors, Device, Error, FloatType, GlobalScale, Output, PreparedWeights, QuantizedVectors,
    ScaleLayout, Shape, Strides, VectorScale, Vectors, Weights, convert_scales, gemv_on_device,
    measure, reference,
};
use quantize_data::{Kind, Source, vectors};

/// Element types as the device sees them.
trait OnDevice: Source + DeviceRepr + ValidAsZeroBits + 'static {
    const ELEMENT: FloatType;
    fn vectors<'a>(values: DenseVectors<'a, Self, Device>) -> Vectors<'a, Device>;
}

macro_rules! on_device {
    ($type:ty, $name:ident) => {
        impl OnDevice for $type {
            const ELEMENT: FloatType = FloatType::$name;
            fn vectors<'a>(values: DenseVectors<'a, Self, Device>) -> Vectors<'a, Device> {
                Vectors::$name(values)
            }
        }
    };
}

on_device!(f16, F16);
on_device!(bf16, Bf16);
on_device!(f32, F32);

const POISON: u8 = 0xa5;
/// Bytes past the end of each output that must keep their poison.
const CANARY: usize = 64;

fn handle(stream: &CudaStream) -> *mut c_void {
    stream.cu_stream().cast()
}

/// What a call wrote: codes, scales in the call's layout, bits of the global scales.
#[derive(Debug, PartialEq)]
struct Written {
    codes: Vec<u8>,
    scales: Vec<u8>,
    globals: Vec<u32>,
}

/// The host's result in a layout, its padding zeroed.
fn expected(shape: &Shape, host: &HostVectors, layout: ScaleLayout) -> Written {
    let linear = ScaleLayout::Linear;
    Written {
        codes: host.codes.clone(),
        scales: convert_scales(
            &host.scales,
            linear,
            layout,
            shape.n(),
            shape.k(),
            shape.l(),
        )
        .unwrap(),
        globals: host.globals.iter().map(|g| g.to_bits()).collect(),
    }
}

/// Quantises through the pointer API into poisoned buffers.
fn device<T: OnDevice>(
    stream: &Arc<CudaStream>,
    shape: &Shape,
    values: &[T],
    strides: Option<Strides>,
    global: Global,
    layout: ScaleLayout,
) -> Written {
    let (vectors, size) = (shape.l() * shape.n(), size_of::<T>());
    let scale_bytes = layout.bytes(shape.n(), shape.blocks()) * shape.l();
    let sizes = [vectors * shape.row_code_bytes(), scale_bytes, vectors * 4];
    let values = stream.clone_htod(values).unwrap();
    let mut out = sizes.map(|size| stream.clone_htod(&vec![POISON; size + CANARY]).unwrap());
    let strides = strides.unwrap_or(Strides {
        row: shape.k() * size,
        batch: shape.n() * shape.k() * size,
    });
    {
        let (values, _values) = values.device_ptr(stream);
        let [codes, scales, alpha] = &mut out;
        let (codes, _codes) = codes.device_ptr_mut(stream);
        let (scales, _scales) = scales.device_ptr_mut(stream);
        let (vector_alpha, _alpha) = alpha.device_ptr_mut(stream);
        let call = Quantize {
            element: T::ELEMENT,
            values,
            strides,
            global,
            codes,
            scales,
            layout,
            vector_alpha,
        };
        // SAFETY: the buffers have the sizes that the shape asks for and outlive the work.
        unsafe { raw::quantize(shape, &call, handle(stream)).unwrap() };
    }
    let [codes, scales, globals] = [0, 1, 2].map(|i| {
        let mut bytes = stream.clone_dtoh(&out[i]).unwrap();
        let canary = bytes.split_off(sizes[i]);
        assert!(canary.iter().all(|&b| b == POISON), "wrote past the end");
        bytes
    });
    let globals = globals.as_chunks::<4>().0.iter();
    Written {
        codes,
        scales,
        globals: globals.map(|b| u32::from_le_bytes(*b)).collect(),
    }
}

fn assert_same(got: &Written, want: &Written, what: &dyn std::fmt::Debug) {
    assert_eq!(got.globals, want.globals, "global scales, {what:?}");
    let first = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
    assert_eq!(first(&got.scales, &want.scales), None, "scales, {what:?}");
    assert_eq!(first(&got.codes, &want.codes), None, "codes, {what:?}");
    assert!(got == want, "lengths, {what:?}");
}

/// N, K, L: every N; K at the edges of atoms, CTAs and what CTAs share.
fn shapes() -> impl Iterator<Item = Shape> {
    const K: [usize; 8] = [16, 48, 64, 80, 1040, 4096, 4128, 8240];
    let every_n = (1..=16).map(|n| (n, K[n % K.len()], 1 + n % 3));
    let every_k = K.into_iter().map(|k| (1, k, 2));
    every_n
        .chain(every_k)
        .map(|(n, k, l)| Shape::new(0, n, k, l).unwrap())
}

fn same_bits<T: OnDevice>() {
    let stream = gpu_or_skip!().stream;
    for (seed, shape) in shapes().enumerate() {
        let rows = shape.l() * shape.n();
        for kind in Kind::ALL {
            let x: Vec<T> = vectors(kind, rows, shape.k(), seed as u64);
            let host = quantize_vectors_or_nan(&x, rows, shape.k(), None).unwrap();
            for layout in ScaleLayout::ALL {
                let got = device(&stream, &shape, &x, None, Global::Computed, layout);
                let want = expected(&shape, &host, layout);
                assert_same(&got, &want, &(shape, kind, layout));
            }
        }
    }
}

#[test]
fn f16_as_on_the_host() {
    same_bits::<f16>();
}

#[test]
fn bf16_as_on_the_host() {
    same_bits::<bf16>();
}

#[test]
fn f32_as_on_the_host() {
    same_bits::<f32>();
}

/// Every finite 16-bit pattern, in vectors of mixed magnitudes.
fn every_pattern<T: OnDevice>(from_bits: fn(u16) -> T) {
    let stream = gpu_or_skip!().stream;
    let mut x: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
    x.retain(|x| x.to_f32().is_finite());
    x.truncate(x.len() / 256 * 256);
    let shape = Shape::new(0, 16, x.len() / 16, 1).unwrap();
    for shuffled in [false, true] {
        if shuffled {
            fastrand::Rng::with_seed(5).shuffle(&mut x);
        }
        let host = quantize_vectors_or_nan(&x, 16, shape.k(), None).unwrap();
        let layout = ScaleLayout::Tiled128x4;
        let got = device(&stream, &shape, &x, None, Global::Computed, layout);
        assert_same(&got, &expected(&shape, &host, layout), &shuffled);
    }
}

#[test]
fn every_16_bit_pattern() {
    every_pattern::<f16>(f16::from_bits);
    every_pattern::<bf16>(bf16::from_bits);
}

#[test]
fn long_vectors() {
    let stream = gpu_or_skip!().stream;
    let shape = Shape::new(0, 2, 131_072 + 16, 1).unwrap();
    let x: Vec<f32> = vectors(Kind::Spread, 2, shape.k(), 3);
    let host = quantize_vectors_or_nan(&x, 2, shape.k(), None).unwrap();
    for layout in ScaleLayout::ALL {
        let got = device(&stream, &shape, &x, None, Global::Computed, layout);
        assert_same(&got, &expected(&shape, &host, layout), &layout);
    }
}

/// More batches than the grid's third dimension takes.
#[test]
fn many_batches() {
    let stream = gpu_or_skip!().stream;
    let shape = Shape::new(0, 1, 16, 70_000).unwrap();
    let x: Vec<f16> = vectors(Kind::Spread, 70_000, 16, 4);
    let host = quantize_vectors_or_nan(&x, 70_000, 16, None).unwrap();
    for layout in ScaleLayout::ALL {
        let got = device(&stream, &shape, &x, None, Global::Computed, layout);
        assert_same(&got, &expected(&shape, &host, layout), &layout);
    }
}

#[test]
fn given_global_scales() {
    let stream = gpu_or_skip!().stream;
    let shape = Shape::new(0, 5, 528, 3).unwrap();
    for kind in Kind::ALL {
        let x: Vec<f32> = vectors(kind, 15, 528, 8);
        for layout in ScaleLayout::ALL {
            // To the ends of f32, where the step overflows or underflows.
            for value in [1.0, 0.37, 3e-5, 1e38, 3e38, f32::MIN_POSITIVE, 1e-45, 1e-39] {
                for global in [GlobalScale::Multiplier(value), GlobalScale::Divisor(value)] {
                    if !(global.multiplier() as f32).is_finite() {
                        continue;
                    }
                    let shared = Some(VectorScale::Shared(global));
                    let host = quantize_vectors_or_nan(&x, 15, 528, shared).unwrap();
                    let got = device(&stream, &shape, &x, None, Global::Shared(global), layout);
                    assert_same(&got, &expected(&shape, &host, layout), &(kind, global));
                }
            }
            let mut globals: Vec<f32> = (1..=15).map(|i| i as f32 * 0.01).collect();
            globals[2..8].copy_from_slice(&[0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45]);
            let given = Some(VectorScale::PerVector(&globals[..]));
            let host = quantize_vectors_or_nan(&x, 15, 528, given).unwrap();
            let on_device = stream.clone_htod(&globals).unwrap();
            let (address, _guard) = on_device.device_ptr(&stream);
            let got = device(
                &stream,
                &shape,
                &x,
                None,
                Global::PerVector(address),
                layout,
            );
            assert_same(&got, &expected(&shape, &host, layout), &kind);
        }
    }
}

#[test]
fn strided_vectors() {
    let stream = gpu_or_skip!().stream;
    let shape = Shape::new(0, 3, 48, 2).unwrap();
    let x: Vec<bf16> = vectors(Kind::Spread, 6, 48, 6);
    let host = quantize_vectors_or_nan(&x, 6, 48, None).unwrap();
    let (row, batch) = (64, 256);
    let mut spread = vec![bf16::NAN; 2 * batch];
    for (i, x) in x.chunks(48).enumerate() {
        spread[i / 3 * batch + i % 3 * row..][..48].copy_from_slice(x);
    }
    let strides = Strides {
        row: row * 2,
        batch: batch * 2,
    };
    for layout in ScaleLayout::ALL {
        let got = device(
            &stream,
            &shape,
            &spread,
            Some(strides),
            Global::Computed,
            layout,
        );
        assert_same(&got, &expected(&shape, &host, layout), &layout);

        let spread = stream.clone_htod(&spread).unwrap();
        let dense = DenseVectors::new(spread.as_view()).with_strides(Strides { row, batch });
        let mut quantized = QuantizedVectors::new(&stream, &shape, layout).unwrap();
        quantized.quantize(&stream, &Vectors::Bf16(dense)).unwrap();
        assert_same(
            &downloaded(&stream, &quantized),
            &expected(&shape, &host, layout),
            &layout,
        );
    }
}

fn downloaded(stream: &Arc<CudaStream>, quantized: &QuantizedVectors) -> Written {
    let globals = stream.clone_dtoh(&quantized.global_scales()).unwrap();
    Written {
        codes: stream.clone_dtoh(&quantized.codes()).unwrap(),
        scales: stream.clone_dtoh(&quantized.scales()).unwrap(),
        globals: globals.iter().map(|g| g.to_bits()).collect(),
    }
}

/// Shapes of scales at the edges of the tiles that a CTA takes.
const SCALES: [(usize, usize, usize); 10] = [
    (1, 16, 1),
    (3, 48, 3),
    (127, 64, 2),
    (128, 512, 1),
    (129, 528, 2),
    (33, 2064, 3),
    (257, 4112, 1),
    (384, 1024, 2),
    (1000, 80, 1),
    (5, 16, 70_000),
];

#[test]
fn scales_change_layout_both_ways() {
    let stream = gpu_or_skip!().stream;
    let (linear, tiled) = (ScaleLayout::Linear, ScaleLayout::Tiled128x4);
    for (m, k, l) in SCALES {
        let shape = Shape::gemv(m, k, l).unwrap();
        let mut source = vec![0; shape.weight_scale_bytes(linear)];
        fastrand::Rng::with_seed(m as u64).fill(&mut source);
        let in_tiles = convert_scales(&source, linear, tiled, m, k, l).unwrap();
        for (from, to, expected) in [(&source, tiled, &in_tiles), (&in_tiles, linear, &source)] {
            let from = stream.clone_htod(from).unwrap();
            let mut out = stream
                .clone_htod(&vec![POISON; expected.len() + CANARY])
                .unwrap();
            {
                let (from, _from) = from.device_ptr(&stream);
                let (out, _out) = out.device_ptr_mut(&stream);
                // SAFETY: the buffers have the sizes of their layouts and outlive the work.
                unsafe { raw::relayout(&shape, to, from, out, handle(&stream)).unwrap() };
            }
            let mut got = stream.clone_dtoh(&out).unwrap();
            let canary = got.split_off(expected.len());
            assert!(canary.iter().all(|&b| b == POISON), "wrote past the end");
            assert!(&got == expected, "{shape} to {to}");
        }
    }
}

/// Weights, prepared from both layouts, times vectors quantised on the device.
fn product<T: OnDevice>(shape: Shape, layout: ScaleLayout, vector_layout: ScaleLayout) {
    let stream = gpu_or_skip!().stream;
    let problem = Problem::full_range(shape, 21).with_row_alpha(3);
    let w = problem.weights(layout).unwrap();
    // Every third vector holds a NaN.
    let rows = shape.l() * shape.n();
    let mut x: Vec<T> = vectors(Kind::Zeros, rows, shape.k(), 22);
    for (i, x) in x.iter_mut().enumerate() {
        *x = T::from_f32(((i * 37 % 101) as f32 - 50.0) / 16.0 * (1 + i / 16 % 7) as f32);
    }
    let is_nan = |vector: usize| vector % 3 == 2;
    for vector in (0..rows).filter(|&v| is_nan(v)) {
        x[vector * shape.k() + 1] = T::from_f32(f32::NAN);
    }
    let mut host = quantize_vectors_or_nan(&x, rows, shape.k(), None).unwrap();
    for vector in (0..rows).filter(|&v| is_nan(v)) {
        host.globals[vector] = 1.0; // the reference takes no NaN; its zeros are not looked at
    }
    let truth = reference::gemv(&shape, &w.view().unwrap(), &host.vectors()).unwrap();

    let upload = |bytes: &[u8]| stream.clone_htod(bytes).unwrap();
    let (codes, scales) = (upload(w.codes), upload(&w.scales));
    let alpha = w.row_alpha().map(|alpha| stream.clone_htod(alpha).unwrap());
    let owned = PreparedWeights::owned(
        &stream,
        &shape,
        codes.clone(),
        scales.clone(),
        layout,
        w.global(),
    );
    let owned = owned
        .unwrap()
        .with_row_alpha(alpha.clone().unwrap())
        .unwrap();
    let weights = Weights::on_device(
        &shape,
        codes.as_view(),
        scales.as_view(),
        layout,
        w.global(),
    )
    .unwrap()
    .with_row_alpha_on_device(alpha.as_ref().unwrap().as_view())
    .unwrap();
    let borrowed = PreparedWeights::new(&stream, weights).unwrap();

    let x = stream.clone_htod(&x).unwrap();
    let mut quantized = QuantizedVectors::new(&stream, &shape, vector_layout).unwrap();
    let dense = T::vectors(DenseVectors::new(x.as_view()));
    quantized.quantize(&stream, &dense).unwrap();
    // Additions of a lane's blocks, over lanes and warps, the products of block scales and alphas:
    // no configuration has more.
    let roundings = (shape.blocks() + 64) as u32;
    for prepared in [&owned, &borrowed] {
        let weights = prepared.weights().unwrap();
        assert_eq!(weights.layout(), ScaleLayout::Tiled128x4);
        let mut y = stream.alloc_zeros::<f32>(shape.outputs()).unwrap();
        let output = Output::F32(y.as_view_mut());
        gemv_on_device(&stream, &shape, &weights, &quantized.vectors(), output).unwrap();
        for (i, y) in stream.clone_dtoh(&y).unwrap().into_iter().enumerate() {
            if is_nan(i / shape.m()) {
                assert!(y.is_nan());
                continue;
            }
            let bound =
                reference::error_bound(truth.y[i], truth.magnitude[i], roundings, FloatType::F32);
            let error = (f64::from(y) - truth.y[i]).abs();
            assert!(
                error <= bound,
                "{shape} element {i}: {y}, true {}",
                truth.y[i]
            );
        }
    }
}

#[test]
fn products_of_quantised_vectors() {
    for (i, (m, n, k, l)) in [(129, 1, 528, 1), (37, 5, 1040, 3), (64, 16, 256, 2)]
        .into_iter()
        .enumerate()
    {
        let shape = Shape::new(m, n, k, l).unwrap();
        for layout in ScaleLayout::ALL {
            for vector_layout in ScaleLayout::ALL {
                match i {
                    0 => product::<f16>(shape, layout, vector_layout),
                    1 => product::<bf16>(shape, layout, vector_layout),
                    _ => product::<f32>(shape, layout, vector_layout),
                }
            }
        }
    }
}

#[test]
fn replayed_from_a_graph() {
    let stream = gpu_or_skip!().stream;
    // Inside a capture, cudarc's event tracking would wait for events of before it.
    // SAFETY: this context is used by this test on one stream, whose order needs no events.
    unsafe { stream.context().disable_event_tracking() };
    let shape = Shape::new(70, 3, 1040, 2).unwrap();
    let rows = 6;
    let problem = Problem::integers(shape, 14);
    let w = problem.weights(ScaleLayout::Linear).unwrap();
    let codes = stream.clone_htod(w.codes).unwrap();
    let scales = stream.clone_htod(&w.scales[..]).unwrap();
    let layout = ScaleLayout::Linear;
    let prepared =
        PreparedWeights::owned(&stream, &shape, codes, scales, layout, w.global()).unwrap();
    let weights = prepared.weights().unwrap();
    let mut x: CudaSlice<f16> = stream.alloc_zeros(rows * shape.k()).unwrap();
    let mut y: CudaSlice<f32> = stream.alloc_zeros(shape.outputs()).unwrap();
    let layout = ScaleLayout::Tiled128x4;
    let mut quantized = QuantizedVectors::new(&stream, &shape, layout).unwrap();

    let call = |quantized: &mut QuantizedVectors, x: &CudaSlice<f16>, y: &mut CudaSlice<f32>| {
        let dense = Vectors::F16(DenseVectors::new(x.as_view()));
        quantized.quantize(&stream, &dense).unwrap();
        let output = Output::F32(y.as_view_mut());
        gemv_on_device(&stream, &shape, &weights, &quantized.vectors(), output).unwrap();
    };
    stream.synchronize().unwrap();
    let capture = alone();
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    call(&mut quantized, &x, &mut y);
    let graph = stream
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .unwrap()
        .expect("the capture holds the launches");
    drop(capture);
    for seed in 0..5 {
        let host: Vec<f16> = vectors(Kind::Spread, rows, shape.k(), seed);
        stream.memcpy_htod(&host, &mut x).unwrap();
        graph.launch().unwrap();
        let replayed = stream.clone_dtoh(&y).unwrap();
        let want = quantize_vectors_or_nan(&host, rows, shape.k(), None).unwrap();
        assert_same(
            &downloaded(&stream, &quantized),
            &expected(&shape, &want, layout),
            &seed,
        );
        call(&mut quantized, &x, &mut y);
        assert_eq!(stream.clone_dtoh(&y).unwrap(), replayed);
    }
}

#[test]
fn refusals_on_a_device() {
    let stream = gpu_or_skip!().stream;
    let shape = Shape::new(0, 2, 64, 1).unwrap();
    let mut quantized = QuantizedVectors::new(&stream, &shape, ScaleLayout::Linear).unwrap();
    let other = QuantizedVectors::new(&stream, &shape, ScaleLayout::Linear).unwrap();
    let x = stream.clone_htod(&vec![f16::ONE; 2 * 64 + 8]).unwrap();
    let globals = stream.clone_htod(&[1.0f32]).unwrap();
    let error = quantized.quantize(&stream, &other.vectors()).unwrap_err();
    assert_eq!(error, Error::AlreadyNvfp4);
    let short = Vectors::F16(DenseVectors::new(x.slice(..127)));
    let error = quantized.quantize(&stream, &short).unwrap_err();
    assert!(matches!(
        error,
        Error::BufferTooShort {
            operand: "vectors",
            ..
        }
    ));
    let misaligned = Vectors::F16(DenseVectors::new(x.slice(4..)));
    let error = quantized.quantize(&stream, &misaligned).unwrap_err();
    assert!(matches!(
        error,
        Error::Misaligned {
            operand: "vectors",
            ..
        }
    ));
    let good = Vectors::F16(DenseVectors::new(x.as_view()));
    let error = quantized
        .quantize_with(&stream, &good, &VectorScale::PerVector(globals.as_view()))
        .unwrap_err();
    let operand = "given global scales";
    assert!(matches!(error, Error::BufferTooShort { operand: o, .. } if o == operand));
    quantized.quantize(&stream, &good).unwrap();
    // Nothing to do is no error.
    let none = Shape::new(0, 2, 64, 0).unwrap();
    let mut nothing = QuantizedVectors::new(&stream, &none, ScaleLayout::Linear).unwrap();
    nothing.quantize(&stream, &good).unwrap();
}

/// Not a test: what quantising costs. `--ignored --nocapture` prints it.
#[test]
#[ignore = "prints times"]
fn times() {
    let stream = gpu_or_skip!().stream;
    // SAFETY: this context is used by this test on one stream, whose order needs no events.
    unsafe { stream.context().disable_event_tracking() };
    for (n, k) in [
        (1, 2048),
        (1, 7168),
        (1, 16384),
        (8, 16384),
        (16, 16384),
        (1, 131_072),
    ] {
        let shape = Shape::new(0, n, k, 1).unwrap();
        // Activations near 1: divisions far from there take longer.
        let mut rng = fastrand::Rng::with_seed(1);
        let x: Vec<bf16> = (0..n * k)
            .map(|_| bf16::from_f32((rng.f32() - 0.5) * (rng.f32() - 0.5) * 8.0))
            .collect();
        let x = stream.clone_htod(&x).unwrap();
        for layout in ScaleLayout::ALL {
            let mut quantized = QuantizedVectors::new(&stream, &shape, layout).unwrap();
            let dense = Vectors::Bf16(DenseVectors::new(x.as_view()));
            let launch = |_| quantized.quantize(&stream, &dense);
            // SAFETY: the vectors and their buffers outlive the call, and nothing else uses them.
            let time = unsafe { measure::time_launches(&stream, 100, 20, launch) };
            let time = time.unwrap().median * 1e6;
            println!("quantise bf16 n={n} K={k} {layout}: {time:.2} us");
        }
    }
    let shape = Shape::gemv(7168, 16384, 1).unwrap();
    let scales = |layout| shape.weight_scale_bytes(layout);
    for to in ScaleLayout::ALL {
        let source = stream
            .alloc_zeros::<u8>(scales(ScaleLayout::Linear))
            .unwrap();
        let mut out = stream.alloc_zeros::<u8>(scales(to)).unwrap();
        let (source, _source) = source.device_ptr(&stream);
        let (out, _out) = out.device_ptr_mut(&stream);
        // SAFETY: the shape's scales take as many bytes in both layouts, which outlive the work.
        let launch = |_| unsafe { raw::relayout(&shape, to, source, out, handle(&stream)) };
        // SAFETY: both buffers outlive the call, and nothing else uses them.
        let time = unsafe { measure::time_launches(&stream, 20, 20, launch) };
        println!(
            "scales of {shape} to {to}: {:.2} us",
            time.unwrap().median * 1e6
        );
    }
}
