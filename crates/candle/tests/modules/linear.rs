//! The linear layer.

use candle_core::{CpuStorage, DType, Device, Error, Module, Storage, Tensor, Var};
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::{Activation, FloatType, Linear, Output, Vectors};
use nvfp4_gemv_candle::Nvfp4Linear;

use crate::bound::{self, Whose, assert_near, exactly};
use crate::files::{layer, tensor, values};

const TYPES: [(DType, Activation, FloatType); 3] = [
    (DType::F32, Activation::F32, FloatType::F32),
    (DType::F16, Activation::F16, FloatType::F16),
    (DType::BF16, Activation::Bf16, FloatType::Bf16),
];

fn on_cpu(layer: Linear) -> Nvfp4Linear {
    Nvfp4Linear::new(layer, &Device::Cpu).unwrap()
}

/// A tensor's numbers as f32, which holds each of them, as bits.
fn bits(of: &Tensor) -> Vec<u32> {
    let of = of.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    of.to_vec1::<f32>()
        .unwrap()
        .iter()
        .map(|v| v.to_bits())
        .collect()
}

/// The library's results of a contiguous tensor, in the tensor's type.
fn of_library(layer: &Linear, xs: &Tensor) -> Vec<u32> {
    let (n, m) = (xs.elem_count() / layer.k(), layer.rows());
    let (storage, _) = xs.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        panic!("on the CPU");
    };
    match storage {
        CpuStorage::F32(x) => {
            let mut y = vec![0f32; n * m];
            layer
                .forward(&Vectors::of(x), n, Output::of(&mut y))
                .unwrap();
            y.iter().map(|y| y.to_bits()).collect()
        }
        CpuStorage::F16(x) => {
            let mut y = vec![f16::ZERO; n * m];
            layer
                .forward(&Vectors::of(x), n, Output::of(&mut y))
                .unwrap();
            y.iter().map(|y| y.to_f32().to_bits()).collect()
        }
        CpuStorage::BF16(x) => {
            let mut y = vec![bf16::ZERO; n * m];
            layer
                .forward(&Vectors::of(x), n, Output::of(&mut y))
                .unwrap();
            y.iter().map(|y| y.to_f32().to_bits()).collect()
        }
        _ => panic!("one of three types"),
    }
}

#[test]
fn a_module_gives_the_librarys_bits_for_every_type_and_any_leading_dimensions() {
    let plain = layer(1, 40, 272);
    let biased = plain.clone().with_bias(values(2, 40)).unwrap();
    for layer in [plain, biased] {
        let module = on_cpu(layer.clone());
        assert_eq!((module.rows(), module.k()), (40, 272));
        for (dtype, _, _) in TYPES {
            for dims in [
                &[272][..],
                &[1, 272],
                &[9, 272],
                &[2, 3, 272],
                &[2, 1, 2, 272],
            ] {
                let xs = tensor(3, dims, dtype);
                let ys = module.forward(&xs).unwrap();
                let mut expected = dims.to_vec();
                *expected.last_mut().unwrap() = 40;
                assert_eq!((ys.dims(), ys.dtype()), (&*expected, dtype));
                assert_eq!(bits(&ys), of_library(&layer, &xs), "{dims:?} {dtype:?}");
            }
        }
    }
}

#[test]
fn candles_dense_layer_gives_the_same_within_the_bound() {
    for (seed, rows, k, n) in [(1, 64, 256, 1), (2, 48, 528, 4), (3, 33, 1024, 20)] {
        let layer = layer(seed, rows, k).with_bias(values(seed, rows)).unwrap();
        let dense = bound::dense(&layer);
        for (dtype, activation, element) in TYPES {
            let xs = tensor(seed + 10, &[n, k], dtype);
            let ours = on_cpu(layer.clone()).forward(&xs).unwrap();
            let candles = dense.forward(&xs.to_dtype(DType::F32).unwrap()).unwrap();
            let of = |whose| bound::forward(&layer, &exactly(&xs), whose);
            let our_bound = of(Whose::Ours(activation, element));
            assert_near(&ours, &our_bound, &candles, &of(Whose::Candles));
            // The bound tells other vectors apart.
            let others = tensor(seed + 20, &[n, k], dtype);
            let others = on_cpu(layer.clone()).forward(&others).unwrap();
            assert!(bound::share_outside(&others, &our_bound) > 0.9);
        }
    }
}

/// A tensor narrowed along any dimension is read in place: bits are those of a copy.
#[test]
fn vectors_with_a_step_are_read_where_they_lie() {
    let layer = layer(4, 24, 64);
    let module = on_cpu(layer.clone());
    for (dtype, _, _) in TYPES {
        let wide = tensor(5, &[2, 5, 192], dtype);
        let middle = wide.narrow(2, 64, 64).unwrap();
        let last_token = wide.narrow(1, 4, 1).unwrap().narrow(2, 16, 64).unwrap();
        let one = wide.narrow(0, 1, 1).unwrap().narrow(1, 1, 3).unwrap();
        let some = one.narrow(2, 128, 64).unwrap();
        // [5, 2, 64] of which a step is a row of the transposed tensor, and dimensions of 1 have any stride.
        let transposed = wide.narrow(0, 0, 1).unwrap().transpose(0, 1).unwrap();
        let transposed = transposed.narrow(2, 0, 64).unwrap();
        for xs in [middle, last_token, some, transposed] {
            assert!(!xs.is_contiguous());
            let copied = xs.contiguous().unwrap();
            let ys = module.forward(&xs).unwrap();
            assert_eq!(&ys.dims()[..2], &xs.dims()[..2]);
            assert_eq!(bits(&ys), of_library(&layer, &copied), "{:?}", xs.layout());
        }
    }
}

#[test]
fn what_cannot_be_read_in_place_is_an_error_until_it_is_contiguous() {
    let layer = layer(6, 16, 32);
    let module = on_cpu(layer.clone());
    let wide = tensor(7, &[3, 4, 64], DType::F32);
    let two_steps = wide.narrow(1, 0, 3).unwrap().narrow(2, 0, 32).unwrap();
    let swapped = wide.transpose(0, 1).unwrap().narrow(2, 0, 32).unwrap();
    let columns = tensor(8, &[32, 4], DType::F32).t().unwrap();
    let repeated = tensor(9, &[32], DType::F32).broadcast_as((4, 32)).unwrap();
    for xs in [two_steps, swapped, columns, repeated] {
        let error = module.forward(&xs).unwrap_err();
        assert!(
            matches!(error, Error::RequiresContiguous { op: "nvfp4-linear" }),
            "{error}"
        );
        let copied = xs.contiguous().unwrap();
        assert_eq!(
            bits(&module.forward(&copied).unwrap()),
            of_library(&layer, &copied)
        );
    }
}

#[test]
fn no_vectors_give_no_results() {
    let module = on_cpu(layer(1, 8, 32));
    for (dtype, _, _) in TYPES {
        for dims in [&[0, 32][..], &[2, 0, 32], &[0, 3, 32]] {
            let xs = Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
            let ys = module.forward(&xs).unwrap();
            assert_eq!((ys.elem_count(), ys.dtype()), (0, dtype));
            assert_eq!(ys.dims().last(), Some(&8));
        }
    }
}

#[test]
fn other_sizes_and_types_are_typed_errors() {
    let module = on_cpu(layer(1, 8, 32));
    for dims in [&[2, 16][..], &[32, 2], &[2, 64], &[]] {
        let xs = Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        match module.forward(&xs).unwrap_err() {
            Error::ShapeMismatchBinaryOp { lhs, rhs, op } => {
                assert_eq!((lhs.dims(), rhs.dims()), (dims, &[8, 32][..]));
                assert_eq!(op, "nvfp4-linear");
            }
            other => panic!("{other}"),
        }
    }
    for dtype in [DType::F64, DType::U32, DType::U8] {
        let xs = Tensor::zeros((2, 32), dtype, &Device::Cpu).unwrap();
        let error = module.forward(&xs).unwrap_err();
        assert!(
            matches!(error, Error::UnsupportedDTypeForOp(of, "nvfp4-linear") if of == dtype),
            "{error}"
        );
        assert!(module.prepare(2, dtype).is_err());
    }
    for (dtype, _, _) in TYPES {
        module.prepare(3, dtype).unwrap();
    }
}

/// A result without a gradient would train nothing, and say nothing.
#[test]
fn a_gradient_through_a_layer_is_an_error() {
    let module = on_cpu(layer(1, 8, 32));
    let xs = Var::from_tensor(&tensor(2, &[2, 32], DType::F32)).unwrap();
    let loss = module.forward(&xs).unwrap().sum_all().unwrap();
    let error = loss.backward().unwrap_err();
    assert!(
        matches!(error, Error::BackwardNotSupported { op: "nvfp4-linear" }),
        "{error}"
    );
}

#[test]
fn a_dense_layer_is_quantised_with_its_bias_or_refused() {
    let (weight, bias) = (values(1, 8 * 32), values(2, 8));
    let of = |dims: &[usize], values: &[f32], dtype| {
        let tensor = Tensor::from_slice(values, dims, &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap()
    };
    let dense = |weight| candle_nn::Linear::new(weight, Some(of(&[8], &bias, DType::F32)));
    let expected = Linear::from_dense(&weight, 8, 32).unwrap();
    let expected = expected.with_bias(bias.clone()).unwrap();
    let module = Nvfp4Linear::quantize(&dense(of(&[8, 32], &weight, DType::F32))).unwrap();
    let xs = tensor(3, &[2, 32], DType::F32);
    assert_eq!(
        bits(&module.forward(&xs).unwrap()),
        of_library(&expected, &xs)
    );

    use nvfp4_gemv_candle::Error as E;
    let refused = |weight| Nvfp4Linear::quantize(&dense(weight)).unwrap_err();
    let three = refused(of(&[2, 4, 32], &weight, DType::F32));
    assert!(matches!(three, E::Weight { .. }), "{three}");
    let f64s = refused(of(&[8, 32], &weight, DType::F64));
    assert!(
        matches!(
            f64s,
            E::Weight {
                dtype: DType::F64,
                ..
            }
        ),
        "{f64s}"
    );
    let ragged = refused(of(&[32, 8], &weight, DType::F32));
    assert!(matches!(ragged, E::Quantize(_)), "{ragged}");
    let bias = candle_nn::Linear::new(
        of(&[8, 32], &weight, DType::F32),
        Some(of(&[4], &weight[..4], DType::F32)),
    );
    assert!(matches!(Nvfp4Linear::quantize(&bias), Err(E::Layer(_))));
}
