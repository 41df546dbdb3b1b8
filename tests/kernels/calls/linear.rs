//! Layers in a device's memory: the bits of borrowed calls, prepared once for each number of vectors, in graphs too.

use std::sync::Arc;

use half::f16;
use nvfp4_gemv::checkpoint::{Checkpoint, SendError};
use nvfp4_gemv::quantize::quantize;
use nvfp4_gemv::{
    Activation, DevicePieces, Dialect, Element, Error, Linear, LinearOnDevice, MatricesOnDevice,
    Options, Output, RowOrder, ScaleLayout, Shape, Vectors, Workspace, gemv_on_device,
};
use nvfp4_gemv_cli::file::{self, NewTensor};

use super::device::ALLOCATIONS;
use crate::support::gpu::Gpu;
use crate::support::sized;

crate::trials! {
    host: layers_cross_threads;
    gpu:
        a_layer_gives_the_bits_of_calls,
        a_kept_call_allocates_nothing_and_is_captured,
        more_buffers_than_are_kept,
        a_layer_of_shared_buffers,
        joined_layers_give_the_results_of_each,
        weights_that_come_by_pieces_are_those_that_are_copied,
        refusals;
}

fn layers_cross_threads() {
    fn crosses<T: Send + Sync + Clone + 'static>() {}
    crosses::<Linear>();
    crosses::<LinearOnDevice>();
}

/// M and K: K that every kernel takes, and ragged rows.
const SIZES: [(usize, usize); 2] = [(200, 1024), (72, 336)];

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut r = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| (r.f32() - 0.5) * 2f32.powi(r.i32(-4..4)))
        .collect()
}

fn layer((m, k): (usize, usize)) -> Linear {
    let layer = Linear::from_dense(&numbers(m * k, 1), m, k).unwrap();
    let layer = layer.with_row_alpha(numbers(m, 2)).unwrap();
    layer.with_bias(numbers(m, 3)).unwrap()
}

fn bits<T: Element + cudarc::driver::DeviceRepr>(
    gpu: &Gpu,
    y: &cudarc::driver::CudaSlice<T>,
) -> Vec<u32> {
    let y = gpu.stream.clone_dtoh(y).unwrap();
    y.into_iter().map(|y| y.to_f32().to_bits()).collect()
}

/// Each layout and type of vectors, with a workspace and without, three times each: prepared, then used again.
fn a_layer_gives_the_bits_of_calls() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    for (m, k) in SIZES {
        let host = layer((m, k));
        let bias = gpu.upload(host.bias().unwrap());
        for (layout, with_workspace) in [
            (ScaleLayout::Linear, false),
            (ScaleLayout::Tiled128x4, false),
            (ScaleLayout::Tiled128x4, true),
        ] {
            let mut layer = host.on_device(stream, layout).unwrap();
            let bytes = layer.workspace_bytes(20, Activation::F16).unwrap();
            let workspace = Workspace::new(stream, bytes).unwrap();
            let mut options = Options::new();
            if with_workspace {
                layer = layer.with_workspace(workspace.clone());
                options = options.workspace(&workspace);
            }
            for n in [1, 2, 5, 20] {
                let x = numbers(n * k, n as u64);
                let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
                let q = quantize(&x, n, k, Dialect::ModelOpt, None).unwrap();
                let (x, halves) = (gpu.upload(&x), gpu.upload(&halves));
                let (codes, scales) = (gpu.upload(&q.codes), gpu.upload(&q.scales));
                let shape = layer.shape(n).unwrap();
                let mut y = gpu.upload(&vec![f32::NAN; n * m]);
                for vectors in [
                    Vectors::on_device(x.as_view()),
                    Vectors::on_device(halves.as_view()),
                    Vectors::Nvfp4(nvfp4_gemv::Nvfp4Vectors::new(
                        codes.as_view(),
                        scales.as_view(),
                        ScaleLayout::Linear,
                        nvfp4_gemv::VectorScale::Shared(q.global),
                    )),
                ] {
                    let weights = layer.weights().unwrap();
                    let output =
                        Output::on_device(y.as_view_mut()).with_bias_on_device(bias.as_view());
                    let choice =
                        gemv_on_device(stream, &shape, &weights, &vectors, output, &options);
                    let (choice, expected) = (choice.unwrap(), bits(&gpu, &y));
                    for _ in 0..3 {
                        stream.memcpy_htod(&vec![f32::NAN; n * m], &mut y).unwrap();
                        let output = Output::on_device(y.as_view_mut());
                        let made = layer.forward(stream, &vectors, n, output).unwrap();
                        assert_eq!(made, choice);
                        assert_eq!(bits(&gpu, &y), expected, "{shape} {choice:?}");
                    }
                }
            }
        }
    }
}

fn a_kept_call_allocates_nothing_and_is_captured() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (m, k) = SIZES[0];
    let layer = layer((m, k))
        .on_device(stream, ScaleLayout::Tiled128x4)
        .unwrap();
    for n in [1, 9] {
        let mut x = gpu.upload(&vec![f16::ZERO; n * k]);
        let mut y = gpu.upload(&vec![f32::NAN; n * m]);
        let prepare = |x: &_, y: &mut cudarc::driver::CudaSlice<f32>| {
            let x: &cudarc::driver::CudaSlice<f16> = x;
            let output = Output::on_device(y.as_view_mut());
            layer
                .prepare(stream, &Vectors::on_device(x.as_view()), n, output)
                .unwrap()
        };
        prepare(&x, &mut y);
        assert!(
            stream.clone_dtoh(&y).unwrap().iter().all(|y| y.is_nan()),
            "only prepared"
        );
        let before = ALLOCATIONS.get();
        for _ in 0..10 {
            let output = Output::on_device(y.as_view_mut());
            layer
                .forward(stream, &Vectors::on_device(x.as_view()), n, output)
                .unwrap();
        }
        assert_eq!(ALLOCATIONS.get(), before);
        let graph = gpu.capture(|| {
            let output = Output::on_device(y.as_view_mut());
            layer
                .forward(stream, &Vectors::on_device(x.as_view()), n, output)
                .unwrap();
        });
        for seed in 0..3 {
            let values = numbers(n * k, seed);
            let values: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
            stream.memcpy_htod(&values, &mut x).unwrap();
            let output = Output::on_device(y.as_view_mut());
            layer
                .forward(stream, &Vectors::on_device(x.as_view()), n, output)
                .unwrap();
            let expected = bits(&gpu, &y);
            stream.memcpy_htod(&vec![f32::NAN; n * m], &mut y).unwrap();
            graph.launch().unwrap();
            assert_eq!(bits(&gpu, &y), expected);
        }
    }
}

/// Calls that were forgotten are prepared again; clones and threads use the same ones.
fn more_buffers_than_are_kept() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (m, k) = SIZES[1];
    let layer = layer((m, k))
        .on_device(stream, ScaleLayout::Linear)
        .unwrap();
    let most = LinearOnDevice::KEPT + 3;
    let values = numbers(k, 7);
    let x = gpu.upload(&values);
    let mut all = gpu.upload(&vec![f32::NAN; most * m]);
    for turn in 0..2 {
        let layer = if turn == 0 {
            layer.clone()
        } else {
            layer.clone().with_bias(gpu.upload(&vec![0.0; m])).unwrap()
        };
        for i in 0..most {
            let output = Output::on_device(all.slice_mut(i * m..(i + 1) * m));
            layer
                .forward(stream, &Vectors::on_device(x.as_view()), 1, output)
                .unwrap();
        }
        let all = bits(&gpu, &all);
        assert!(all.chunks(m).all(|one| one == &all[..m]));
        assert!(all.iter().all(|&y| !f32::from_bits(y).is_nan()));
    }
}

fn a_layer_of_shared_buffers() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (m, k) = SIZES[0];
    let host = layer((m, k));
    let weights = host.weights();
    let (codes, scales) = (gpu.upload(weights.codes()), gpu.upload(weights.scales()));
    let layer =
        LinearOnDevice::new(m, k, codes, scales, weights.layout(), weights.global()).unwrap();
    let layer = layer
        .with_row_alpha(gpu.upload(weights.row_alpha().unwrap()))
        .unwrap();
    let layer = layer.with_bias(gpu.upload(host.bias().unwrap())).unwrap();
    let copied = host.on_device(stream, ScaleLayout::Linear).unwrap();
    let x = gpu.upload(&numbers(k, 4));
    let [of_buffers, of_copy] = [layer, copied].map(|layer| {
        let mut y = gpu.upload(&vec![f32::NAN; m]);
        let output = Output::on_device(y.as_view_mut());
        layer
            .forward(stream, &Vectors::on_device(x.as_view()), 1, output)
            .unwrap();
        bits(&gpu, &y)
    });
    assert_eq!(of_buffers, of_copy);
}

fn refusals() {
    let gpu = Gpu::first();
    let other = Gpu::new_stream(gpu.stream.context());
    let (m, k) = SIZES[0];
    let host = layer((m, k));
    let layer = host.on_device(&gpu.stream, ScaleLayout::Linear).unwrap();
    let (x, bias) = (gpu.upload(&vec![1.0f32; k]), gpu.upload(&vec![0.0f32; m]));
    let mut y = gpu.upload(&vec![f32::NAN; m]);
    let vectors = Vectors::on_device(x.as_view());
    let output = Output::on_device(y.as_view_mut()).with_bias_on_device(bias.as_view());
    let error = layer.forward(&gpu.stream, &vectors, 1, output).unwrap_err();
    assert_eq!(error, Error::BiasTwice);
    let output = Output::on_device(y.as_view_mut());
    let error = layer.forward(&gpu.stream, &vectors, 2, output).unwrap_err();
    assert!(matches!(error, Error::BufferTooShort { .. }), "{error}");
    let workspace = Workspace::new(&gpu.stream, 1 << 20).unwrap();
    let with_workspace = layer.clone().with_workspace(workspace);
    let output = Output::on_device(y.as_view_mut());
    let error = with_workspace
        .forward(&other.stream, &vectors, 1, output)
        .unwrap_err();
    assert_eq!(error, Error::WorkspaceOfAnotherStream);
    let error = layer
        .with_bias(gpu.upload(&vec![0.0f32; m - 1]))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::BufferTooShort {
                operand: "bias",
                ..
            }
        ),
        "{error}"
    );
    let (codes, scales) = (gpu.upload(&[0u8; 8]), gpu.upload(&[0x38u8; 1]));
    let one = nvfp4_gemv::GlobalScale::ONE;
    let error = LinearOnDevice::new(2, 16, codes, scales, ScaleLayout::Linear, one).unwrap_err();
    assert!(matches!(error, Error::BufferTooShort { .. }), "{error}");
    assert!(
        bits(&gpu, &y)
            .into_iter()
            .all(|y| f32::from_bits(y).is_nan())
    );

    // No rows, and no vectors: nothing is launched.
    let none = Linear::new(0, 16, vec![], vec![], ScaleLayout::Linear, one).unwrap();
    let none = none
        .on_device(&gpu.stream, ScaleLayout::Tiled128x4)
        .unwrap();
    let shape: Shape = sized(0, 1, 16, 1);
    assert_eq!(none.shape(1).unwrap(), shape);
    let x = x.slice(..16);
    none.forward(
        &gpu.stream,
        &Vectors::on_device(x),
        1,
        Output::on_device(y.slice_mut(..1)),
    )
    .unwrap();
    assert!(bits(&gpu, &y)[0] == f32::NAN.to_bits());
}

/// q, k and v of different sizes and global scales, with factors and biases or without, in both layouts.
fn joined_layers_give_the_results_of_each() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let (k, n) = (1024, 3);
    let plain = |m, scale: f32| {
        let values: Vec<f32> = numbers(m * k, m as u64).iter().map(|x| x * scale).collect();
        Linear::from_dense(&values, m, k).unwrap()
    };
    let layers = [plain(192, 1.0), layer((64, k)), plain(72, 30.0)];
    let values = numbers(n * k, 5);
    let x = gpu.upload(&values);
    let mut apart = vec![Vec::new(); n];
    for layer in &layers {
        let mut y = vec![0.0f32; n * layer.rows()];
        layer
            .forward(&Vectors::of(&values), n, Output::of(&mut y))
            .unwrap();
        for (all, y) in apart.iter_mut().zip(y.chunks(layer.rows())) {
            all.extend_from_slice(y);
        }
    }
    for layout in ScaleLayout::ALL {
        let of: Vec<&Linear> = layers.iter().collect();
        let joined = LinearOnDevice::joined(stream, layout, &of).unwrap();
        let mut y = gpu.upload(&vec![f32::NAN; n * joined.rows()]);
        let vectors = Vectors::on_device(x.as_view());
        joined
            .forward(stream, &vectors, n, Output::on_device(y.as_view_mut()))
            .unwrap();
        let y = stream.clone_dtoh(&y).unwrap();
        let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (i, (y, expected)) in y.iter().zip(apart.concat()).enumerate() {
            assert!(
                (y - expected).abs() <= 1e-4 * most * (1.0 + expected.abs()),
                "{layout} {i}: {y} {expected}"
            );
        }
    }
    let other = Linear::from_dense(&[1.0f32; 32], 1, 32).unwrap();
    let error = LinearOnDevice::joined(stream, ScaleLayout::Linear, &[&layers[0], &other]);
    assert!(matches!(
        error.err(),
        Some(Error::LayersMismatch {
            found: 32,
            expected: 1024,
            ..
        })
    ));
}

/// Layers by themselves and joined ones, sent together through few and many buffers, in both layouts.
fn weights_that_come_by_pieces_are_those_that_are_copied() {
    let gpu = Gpu::first();
    let stream = &gpu.stream;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let k = 1024;
    let layers = [("q", 200, 1), ("k", 72, 2), ("v", 72, 3)];
    let tensors = layers.into_iter().flat_map(|(name, rows, seed)| {
        let values = numbers(rows * k, seed);
        let q = quantize(&values, rows, k, Dialect::ModelOpt, None).unwrap();
        NewTensor::layer(name, Dialect::ModelOpt, q)
    });
    file::write(&path, tensors, None).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(path).unwrap());
    let (qkv, one) = (["q", "k", "v"], ["k"]);
    let sent: [&[&str]; 2] = [&qkv, &one];
    let joined = sent.map(|names| checkpoint.joined(names, RowOrder::Stacked).unwrap());
    let x = gpu.upload(&numbers(3 * k, 9));
    let results = |layer: &LinearOnDevice| {
        let mut y = gpu.upload(&vec![f32::NAN; 3 * layer.rows()]);
        let (x, output) = (
            Vectors::on_device(x.as_view()),
            Output::on_device(y.as_view_mut()),
        );
        layer.forward(stream, &x, 3, output).unwrap();
        bits(&gpu, &y)
    };
    for layout in [ScaleLayout::Linear, ScaleLayout::Tiled128x4] {
        for (count, bytes) in [(1, 512), (2, 4096), (7, 1 << 20)] {
            let mut buffers = DevicePieces::buffers(stream, count, bytes).unwrap();
            let mut arrived = Vec::new();
            let matrices = MatricesOnDevice::from_joined(
                stream,
                layout,
                &joined,
                &mut buffers,
                |so_far, all| {
                    arrived.push((so_far, all));
                },
            );
            let total: usize = joined.iter().map(|of| of.shape().weight_bytes()).sum();
            assert_eq!(arrived.last(), Some(&(total, total)));
            for (matrix, names) in matrices.unwrap().into_iter().zip(sent) {
                let layer = LinearOnDevice::from_matrix(matrix).unwrap();
                let copied = Linear::joined_from_checkpoint(&checkpoint, names, RowOrder::Stacked);
                let copied = copied.unwrap().on_device(stream, layout).unwrap();
                assert_eq!(
                    results(&layer),
                    results(&copied),
                    "{layout} {count} {names:?}"
                );
            }
        }
    }
    let mut buffers = DevicePieces::buffers(stream, 2, 511).unwrap();
    let layout = ScaleLayout::Linear;
    let error = MatricesOnDevice::from_joined(stream, layout, &joined, &mut buffers, |_, _| {});
    assert!(
        matches!(error, Err(SendError::Buffers(_))),
        "holds no row of 512 bytes"
    );
}
