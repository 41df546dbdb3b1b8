//! The quantiser on a GPU, against the host's, bit for bit; and products with the vectors that it quantises.

use std::fmt::Debug;

use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};
use nvfp4_gemv::kernel::quantize::{Global, Input, Quantize};
use nvfp4_gemv::quantize::{QuantizedRows, quantize_digits_or_nan, quantize_vectors_or_nan};
use nvfp4_gemv::raw;
use nvfp4_gemv::{
    DenseVectors, Device, Error, FloatType, Gate, GlobalScale, Options, Output, QuantizedVectors,
    RowOrder, ScaleLayout, Shape, Strides, TiledWeights, VectorScale, Vectors, Weights,
    convert_scales, gemv_on_device, reference,
};
use nvfp4_gemv_cli::problem::Problem;

use crate::support::gpu::Gpu;
use crate::support::quantize_data::{Before, Kind, Source, vectors};
use crate::support::sized;

crate::trials! {
    gpu:
        f16_as_on_the_host = same_bits::<f16>,
        bf16_as_on_the_host = same_bits::<bf16>,
        f32_as_on_the_host = same_bits::<f32>,
        gated_and_normed_f16 = gated_and_normed::<f16>,
        gated_and_normed_bf16 = gated_and_normed::<bf16>,
        gated_and_normed_f32 = gated_and_normed::<f32>,
        digits_of_f16 = digits::<f16>,
        digits_of_bf16 = digits::<bf16>,
        digits_of_f32 = digits::<f32>,
        every_16_bit_pattern, long_vectors_and_many_batches, given_global_scales, strided_vectors,
        products_of_quantised_vectors, replayed_from_a_graph, refusals;
}

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

/// Output of a call: codes, scales in the call's layout, bits of the global scales.
#[derive(Debug, PartialEq)]
struct Written {
    codes: Vec<u8>,
    scales: Vec<u8>,
    globals: Vec<u32>,
}

impl Written {
    /// The host's result in a layout, its padding zeroed.
    fn expected(shape: &Shape, host: &QuantizedRows, layout: ScaleLayout) -> Self {
        let (n, k, l) = (shape.n(), shape.k(), shape.l());
        Self {
            codes: host.codes.clone(),
            scales: convert_scales(&host.scales, ScaleLayout::Linear, layout, n, k, l).unwrap(),
            globals: host.globals.iter().map(|g| g.to_bits()).collect(),
        }
    }

    /// The same of vectors of digits.
    fn expected_digits(shape: &Shape, host: &QuantizedRows, layout: ScaleLayout) -> Self {
        let (m, n, k, l) = (0, shape.n() * host.digits, shape.k(), shape.l());
        Self::expected(&sized(m, n, k, l), host, layout)
    }

    fn downloaded(gpu: &Gpu, quantized: &QuantizedVectors) -> Self {
        let stream = &gpu.stream;
        let globals = stream.clone_dtoh(&quantized.global_scales()).unwrap();
        Self {
            codes: stream.clone_dtoh(&quantized.codes()).unwrap(),
            scales: stream.clone_dtoh(&quantized.scales()).unwrap(),
            globals: globals.iter().map(|g| g.to_bits()).collect(),
        }
    }

    fn assert_is(&self, want: &Self, what: &dyn Debug) {
        assert_eq!(self.globals, want.globals, "global scales, {what:?}");
        let first = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
        assert_eq!(first(&self.scales, &want.scales), None, "scales, {what:?}");
        assert_eq!(first(&self.codes, &want.codes), None, "codes, {what:?}");
        assert!(self == want, "lengths, {what:?}");
    }
}

/// Quantises by address into poisoned buffers.
fn written<T: OnDevice>(
    gpu: &Gpu,
    shape: &Shape,
    values: &[T],
    strides: Option<Strides>,
    global: Global,
    layout: ScaleLayout,
) -> Written {
    let (vectors, size) = (shape.l() * shape.n(), size_of::<T>());
    let scale_bytes = layout.bytes(shape.n(), shape.blocks()) * shape.l();
    let sizes = [vectors * shape.row_code_bytes(), scale_bytes, vectors * 4];
    let values = gpu.upload(values);
    let out = sizes.map(|size| gpu.upload(&vec![POISON; size + CANARY]));
    let [codes, scales, vector_alpha] = [0, 1, 2].map(|i| gpu.address(&out[i]));
    let call = Quantize {
        element: T::ELEMENT,
        input: Input::Plain,
        chained: false,
        early: false,
        copies: 1,
        digits: 1,
        values: gpu.address(&values),
        strides: strides.unwrap_or(Strides {
            row: shape.k() * size,
            batch: shape.n() * shape.k() * size,
        }),
        global,
        codes,
        scales,
        layout,
        vector_alpha,
    };
    // SAFETY: the buffers have the sizes that the shape asks for and outlive the work.
    unsafe { raw::quantize(shape, &call, gpu.handle()) }.unwrap();
    let [codes, scales, globals] = [0, 1, 2].map(|i| {
        let mut bytes = gpu.stream.clone_dtoh(&out[i]).unwrap();
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

/// Demands the host's bits in both layouts, with global scales that are given, or not.
fn assert_as_host<T: OnDevice>(
    gpu: &Gpu,
    shape: &Shape,
    x: &[T],
    given: Option<VectorScale<'_>>,
    global: Global,
    what: &dyn Debug,
) {
    let host = quantize_vectors_or_nan(x, shape.l() * shape.n(), shape.k(), given).unwrap();
    for layout in ScaleLayout::ALL {
        let want = Written::expected(shape, &host, layout);
        written(gpu, shape, x, None, global, layout).assert_is(&want, &(shape, layout, what));
    }
}

/// N, K, L: every N; K at the edges of atoms, CTAs and what CTAs share.
fn shapes() -> impl Iterator<Item = Shape> {
    const K: [usize; 8] = [16, 48, 64, 80, 1040, 4096, 4128, 8240];
    let numbers = (1..=16).chain([17, 32, 33, 100, 128, 130]);
    let every_n = numbers.map(|n| (n, K[n % K.len()], 1 + n % 3));
    let every_k = K.into_iter().map(|k| (1, k, 2));
    every_n.chain(every_k).map(|(n, k, l)| sized(0, n, k, l))
}

fn same_bits<T: OnDevice>() {
    let gpu = Gpu::first();
    for (seed, shape) in shapes().enumerate() {
        for kind in Kind::ALL {
            let x: Vec<T> = vectors(kind, shape.l() * shape.n(), shape.k(), seed as u64);
            assert_as_host(&gpu, &shape, &x, None, Global::Computed, &kind);
        }
    }
}

/// Vectors of digits, and what cannot be done with them.
fn digits<T: OnDevice>() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    for (i, shape) in shapes().enumerate() {
        let digits = 2 + i % 4;
        for kind in Kind::ALL {
            let (rows, k) = (shape.l() * shape.n(), shape.k());
            let x: Vec<T> = vectors(kind, rows, k, i as u64);
            let host = quantize_digits_or_nan(&x, rows, k, digits).unwrap();
            let x = gpu.upload(&x);
            let x = T::vectors(DenseVectors::new(x.as_view()));
            for layout in ScaleLayout::ALL {
                let new = QuantizedVectors::of_digits(stream, &shape, layout, digits);
                let mut quantized = new.unwrap();
                quantized.quantize(stream, &x).unwrap();
                let want = Written::expected_digits(&shape, &host, layout);
                Written::downloaded(&gpu, &quantized).assert_is(&want, &(shape, digits, kind));
                let given = VectorScale::Shared(GlobalScale::ONE);
                let error = quantized.quantize_with(stream, &x, &given).unwrap_err();
                assert!(matches!(error, Error::Digits { digits: of, .. } if of == digits));
            }
        }
    }
}

/// Behind a gate and behind an RMSNorm, chained or not, with copies or without.
fn gated_and_normed<T: OnDevice>() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let sizes = [(1, 768, 8), (2, 80, 2), (1, 7168, 1), (3, 2064, 4)];
    let gates = [Gate::Silu, Gate::GeluTanh, Gate::GPT_OSS];
    for (i, (n, k, l)) in sizes.into_iter().enumerate() {
        for (j, kind) in Kind::ALL.into_iter().enumerate() {
            let copies = [1, l][j % 2];
            let (shape, rows) = (sized(0, n, k, l), n * l / copies);
            let (seed, layout) = (j as u64, ScaleLayout::ALL[(i + j) % 2]);
            let order = [RowOrder::Stacked, RowOrder::Interleaved][i % 2];
            let gate = Before::Gate(gates[(i + j) % 3], order);
            let norm = Before::Norm(vectors(Kind::Boundaries, 1, k, 3), 1e-5);
            for before in [gate, norm] {
                let each = match before {
                    Before::Gate(..) => 2 * k,
                    _ => k,
                };
                let x: Vec<T> = vectors(kind, rows, each, seed);
                let made = before.of(&x, k);
                let batches = made.chunks_exact(n * k);
                let made: Vec<f32> = batches.flat_map(|batch| batch.repeat(copies)).collect();
                let host = quantize_vectors_or_nan(&made, n * l, k, None).unwrap();
                let x = gpu.upload(&x);
                let x = T::vectors(DenseVectors::new(x.as_view()));
                let new = QuantizedVectors::new(stream, &shape, layout).unwrap();
                let new = new.with_copies(copies).unwrap();
                let mut quantized = match j % 3 {
                    0 => new,
                    // SAFETY: nothing but kernels of this crate is launched.
                    _ => unsafe { new.chained() }.unwrap(),
                };
                match &before {
                    Before::Gate(gate, order) => {
                        quantized
                            .quantize_gated(stream, &x, *gate, *order, None)
                            .unwrap();
                    }
                    Before::Norm(weight, epsilon) => {
                        let weight = gpu.upload(weight);
                        let weight = T::vectors(DenseVectors::new(weight.as_view()));
                        let to = &mut quantized;
                        to.quantize_normed(stream, &x, &weight, *epsilon, None)
                            .unwrap();
                    }
                    Before::Nothing => unreachable!("not among them"),
                }
                let want = Written::expected(&shape, &host, layout);
                Written::downloaded(&gpu, &quantized).assert_is(&want, &(shape, kind, before));
            }
        }
    }
}

/// Every finite 16-bit pattern, in vectors of mixed magnitudes.
fn every_pattern<T: OnDevice>(from_bits: fn(u16) -> T) {
    let gpu = Gpu::first();
    let mut x: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
    x.retain(|x| x.to_f32().is_finite());
    x.truncate(x.len() / 256 * 256);
    let shape = sized(0, 16, x.len() / 16, 1);
    assert_as_host(&gpu, &shape, &x, None, Global::Computed, &"in order");
    fastrand::Rng::with_seed(5).shuffle(&mut x);
    assert_as_host(&gpu, &shape, &x, None, Global::Computed, &"shuffled");
}

fn every_16_bit_pattern() {
    every_pattern::<f16>(f16::from_bits);
    every_pattern::<bf16>(bf16::from_bits);
}

/// The second has more batches than the grid's third dimension takes.
fn long_vectors_and_many_batches() {
    let gpu = Gpu::first();
    for (n, k, l) in [(2, 131_072 + 16, 1), (1, 16, 70_000)] {
        let shape = sized(0, n, k, l);
        let x: Vec<f32> = vectors(Kind::Spread, n * l, k, 3);
        assert_as_host(&gpu, &shape, &x, None, Global::Computed, &());
        let x: Vec<f16> = vectors(Kind::Spread, n * l, k, 4);
        assert_as_host(&gpu, &shape, &x, None, Global::Computed, &());
    }
}

fn given_global_scales() {
    let gpu = Gpu::first();
    let shape = sized(0, 5, 528, 3);
    for kind in Kind::ALL {
        let x: Vec<f32> = vectors(kind, 15, 528, 8);
        // To the ends of f32, where the step overflows or underflows.
        for value in [1.0, 0.37, 3e-5, 1e38, 3e38, f32::MIN_POSITIVE, 1e-45, 1e-39] {
            for global in [GlobalScale::Multiplier(value), GlobalScale::Divisor(value)] {
                if (global.multiplier() as f32).is_finite() {
                    let given = Some(VectorScale::Shared(global));
                    let shared = Global::Shared(global);
                    assert_as_host(&gpu, &shape, &x, given, shared, &(kind, global));
                }
            }
        }
        let mut globals: Vec<f32> = (1..=15).map(|i| i as f32 * 0.01).collect();
        globals[2..8].copy_from_slice(&[0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45]);
        let on_device = gpu.upload(&globals);
        let given = Some(VectorScale::PerVector(&globals[..]));
        let each = Global::PerVector(gpu.address(&on_device));
        assert_as_host(&gpu, &shape, &x, given, each, &kind);
    }
}

fn strided_vectors() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = sized(0, 3, 48, 2);
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
        let want = Written::expected(&shape, &host, layout);
        let global = Global::Computed;
        let got = written(&gpu, &shape, &spread, Some(strides), global, layout);
        got.assert_is(&want, &layout);

        let spread = gpu.upload(&spread);
        let dense = DenseVectors::new(spread.as_view()).with_strides(Strides { row, batch });
        let mut quantized = QuantizedVectors::new(stream, &shape, layout).unwrap();
        quantized.quantize(stream, &Vectors::Bf16(dense)).unwrap();
        Written::downloaded(&gpu, &quantized).assert_is(&want, &layout);
    }
}

/// Weights, laid out anew from both layouts, times vectors quantised on the device.
fn product<T: OnDevice>(shape: Shape, layout: ScaleLayout, vector_layout: ScaleLayout) {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
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

    let (codes, scales) = (gpu.upload(w.codes), gpu.upload(&w.scales));
    let alpha = gpu.upload(w.row_alpha().expect("factors"));
    let (own_codes, own_scales) = (codes.clone(), scales.clone());
    let owned =
        TiledWeights::owned(stream, &shape, own_codes, own_scales, layout, w.global()).unwrap();
    let owned = owned.with_row_alpha(alpha.clone()).unwrap();
    let (codes, scales) = (codes.as_view(), scales.as_view());
    let weights = Weights::on_device(&shape, codes, scales, layout, w.global()).unwrap();
    let weights = weights.with_row_alpha_on_device(alpha.as_view()).unwrap();
    let borrowed = TiledWeights::new(stream, weights).unwrap();

    let x = gpu.upload(&x);
    let mut quantized = QuantizedVectors::new(stream, &shape, vector_layout).unwrap();
    let dense = T::vectors(DenseVectors::new(x.as_view()));
    quantized.quantize(stream, &dense).unwrap();
    for tiled in [&owned, &borrowed] {
        let weights = tiled.weights().unwrap();
        assert_eq!(weights.layout(), ScaleLayout::Tiled128x4);
        let mut y = gpu.upload(&vec![0.0f32; shape.outputs()]);
        let (x, output) = (quantized.vectors(), Output::on_device(y.as_view_mut()));
        let options = Options::new().without_environment();
        let choice = gemv_on_device(stream, &shape, &weights, &x, output, &options).unwrap();
        let config = choice.config.expect("a GPU path");
        let roundings = config.roundings(&shape, nvfp4_gemv::Activation::Nvfp4);
        for (i, y) in stream.clone_dtoh(&y).unwrap().into_iter().enumerate() {
            if is_nan(i / shape.m()) {
                assert!(y.is_nan());
                continue;
            }
            let (true_y, magnitude) = (truth.y[i], truth.magnitude[i]);
            let bound = reference::error_bound(true_y, magnitude, roundings, FloatType::F32);
            let error = (f64::from(y) - true_y).abs();
            assert!(error <= bound, "{shape} element {i}: {y}, true {true_y}");
        }
    }
}

fn products_of_quantised_vectors() {
    let sizes = [(129, 1, 528, 1), (37, 5, 1040, 3), (64, 16, 256, 2)];
    for (i, (m, n, k, l)) in sizes.into_iter().enumerate() {
        let shape = sized(m, n, k, l);
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

fn replayed_from_a_graph() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = sized(70, 3, 1040, 2);
    let rows = 6;
    let problem = Problem::integers(shape, 14);
    let w = problem.weights(ScaleLayout::Linear).unwrap();
    let (codes, scales) = (gpu.upload(w.codes), gpu.upload(&w.scales));
    let linear = ScaleLayout::Linear;
    let tiled = TiledWeights::owned(stream, &shape, codes, scales, linear, w.global()).unwrap();
    let weights = tiled.weights().unwrap();
    let mut x: CudaSlice<f16> = stream.alloc_zeros(rows * shape.k()).unwrap();
    let mut y: CudaSlice<f32> = stream.alloc_zeros(shape.outputs()).unwrap();
    let layout = ScaleLayout::Tiled128x4;
    let mut quantized = QuantizedVectors::new(stream, &shape, layout).unwrap();

    let call = |quantized: &mut QuantizedVectors, x: &CudaSlice<f16>, y: &mut CudaSlice<f32>| {
        let dense = Vectors::on_device(x.as_view());
        quantized.quantize(stream, &dense).unwrap();
        let (x, output) = (quantized.vectors(), Output::on_device(y.as_view_mut()));
        gemv_on_device(stream, &shape, &weights, &x, output, &Options::new()).unwrap();
    };
    if raw::COMPILED_ARCHS.is_empty() {
        // A kernel that is compiled at run time is compiled before the capture.
        call(&mut quantized, &x, &mut y);
    }
    let graph = gpu.capture(|| call(&mut quantized, &x, &mut y));
    for seed in 0..5 {
        let host: Vec<f16> = vectors(Kind::Spread, rows, shape.k(), seed);
        stream.memcpy_htod(&host, &mut x).unwrap();
        graph.launch().unwrap();
        let replayed = stream.clone_dtoh(&y).unwrap();
        let want = quantize_vectors_or_nan(&host, rows, shape.k(), None).unwrap();
        let want = Written::expected(&shape, &want, layout);
        Written::downloaded(&gpu, &quantized).assert_is(&want, &seed);
        call(&mut quantized, &x, &mut y);
        assert_eq!(stream.clone_dtoh(&y).unwrap(), replayed);
    }
}

fn refusals() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let shape = sized(0, 2, 64, 1);
    let new = |shape: &Shape| QuantizedVectors::new(stream, shape, ScaleLayout::Linear).unwrap();
    let (mut quantized, other) = (new(&shape), new(&shape));
    let x = gpu.upload(&vec![f16::ONE; 2 * 64 + 8]);
    let globals = gpu.upload(&[1.0f32]);
    let error = quantized.quantize(stream, &other.vectors()).unwrap_err();
    assert_eq!(error, Error::AlreadyNvfp4);
    let short = Vectors::F16(DenseVectors::new(x.slice(..127)));
    let error = quantized.quantize(stream, &short).unwrap_err();
    assert!(matches!(
        error,
        Error::BufferTooShort {
            operand: "vectors",
            ..
        }
    ));
    let misaligned = Vectors::F16(DenseVectors::new(x.slice(4..132)));
    let error = quantized.quantize(stream, &misaligned).unwrap_err();
    assert!(matches!(
        error,
        Error::Misaligned {
            operand: "vectors",
            ..
        }
    ));
    let long = Vectors::on_device(x.as_view());
    let error = quantized.quantize(stream, &long).unwrap_err();
    assert!(matches!(error, Error::BufferTooLong { got: 136, .. }));
    let good = Vectors::F16(DenseVectors::new(x.slice(..128)));
    let few = VectorScale::PerVector(globals.as_view());
    let error = quantized.quantize_with(stream, &good, &few).unwrap_err();
    let operand = "given global scales";
    assert!(matches!(error, Error::BufferTooShort { operand: o, .. } if o == operand));
    quantized.quantize(stream, &good).unwrap();
    // Nothing to do is no error.
    let none = Vectors::F16(DenseVectors::new(x.slice(..0)));
    for (n, l) in [(2, 0), (0, 1)] {
        let shape = sized(0, n, 64, l);
        new(&shape).quantize(stream, &none).unwrap();
    }
}
