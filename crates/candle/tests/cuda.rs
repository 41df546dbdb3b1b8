//! Modules on a CUDA device. Where there is none, each trial is ignored, with the reason. `--record FILE` records the run:
//! see tests/recorded/README.md.

use std::process::ExitCode;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{D, DType, Device, Error, Module, Storage, Tensor};
use nvfp4_gemv::cudarc::driver::{CudaSlice, DeviceRepr, sys};
use nvfp4_gemv::half::{bf16, f16};
use nvfp4_gemv::raw;
use nvfp4_gemv::{Element, Linear, Output, ScaleLayout, Vectors, Workspace};
use nvfp4_gemv_candle::{Nvfp4Builder, Nvfp4Experts, Nvfp4Linear, Nvfp4Mlp};
use nvfp4_gemv_trials::{Program, trials};

#[path = "modules/files.rs"]
#[allow(dead_code, reason = "the other program of tests uses all")]
mod files;

use files::{File, layer, matrix, tensor, values};

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn main() -> ExitCode {
    let no_gpu = || Some(raw::device_count().err()?.to_string());
    let program = Program {
        name: "candle",
        gpus: || raw::gpu(0).map(|gpu| gpu.name).into_iter().collect(),
        sources: nvfp4_gemv::TESTED,
        one_by_one: true,
    };
    program.run(trials![
        no_gpu;
        a_module_gives_the_librarys_bits_and_is_near_the_cpu,
        vectors_with_a_step_are_read_where_they_lie,
        a_tensor_elsewhere_is_a_typed_error,
        a_workspace_changes_kernels_and_no_result,
        an_mlp_is_near_the_cpu,
        experts_are_near_the_cpu_with_few_pairs_and_with_many,
        layers_are_captured_into_a_cuda_graph,
    ])
}

fn cuda() -> Device {
    Device::new_cuda_with_stream(0).unwrap()
}

fn on(device: &Device, of: &Tensor) -> Tensor {
    of.to_device(device).unwrap()
}

/// Numbers as f32, as bits: f32 holds each of the three types.
fn bits(of: &Tensor) -> Vec<u32> {
    let of = of
        .to_device(&Device::Cpu)
        .unwrap()
        .to_dtype(DType::F32)
        .unwrap();
    let values = of.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

/// How far two tensors are apart, by the largest number of the first.
fn apart(a: &Tensor, b: &Tensor) -> f32 {
    let [a, b] = [a, b].map(|of| {
        let of = of.to_device(&Device::Cpu).unwrap();
        of.to_dtype(DType::F32).unwrap()
    });
    let largest = |of: &Tensor| {
        of.abs()
            .unwrap()
            .max_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
    };
    assert_eq!(a.dims(), b.dims());
    // No number is no distance.
    assert!(
        bits(&a)
            .iter()
            .chain(&bits(&b))
            .all(|bits| f32::from_bits(*bits).is_finite())
    );
    largest(&(&a - &b).unwrap()) / largest(&a)
}

/// The library's own layer on the device, on candle's stream.
fn of_library(layer: &Linear, xs: &Tensor) -> Vec<u32> {
    fn of<T: Element + DeviceRepr + nvfp4_gemv::cudarc::driver::ValidAsZeroBits>(
        layer: &Linear,
        device: &Device,
        x: &CudaSlice<T>,
        n: usize,
    ) -> Vec<u32> {
        let stream = device.as_cuda_device().unwrap().cuda_stream();
        let layer = layer.on_device(&stream, ScaleLayout::Tiled128x4).unwrap();
        let mut y = stream.alloc_zeros::<T>(n * layer.rows()).unwrap();
        let output = Output::on_device(y.as_view_mut());
        layer
            .forward(&stream, &Vectors::on_device(x.as_view()), n, output)
            .unwrap();
        let y = stream.clone_dtoh(&y).unwrap();
        y.iter().map(|y| Element::to_f32(*y).to_bits()).collect()
    }
    let n = xs.elem_count() / layer.k();
    let (storage, _) = xs.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        panic!("on a device");
    };
    match &storage.slice {
        CudaStorageSlice::F32(x) => of::<f32>(layer, xs.device(), x, n),
        CudaStorageSlice::F16(x) => of::<f16>(layer, xs.device(), x, n),
        CudaStorageSlice::BF16(x) => of::<bf16>(layer, xs.device(), x, n),
        _ => panic!("one of three types"),
    }
}

fn a_module_gives_the_librarys_bits_and_is_near_the_cpu() {
    for device in [cuda(), Device::new_cuda(0).unwrap()] {
        let layer = layer(1, 384, 1024).with_bias(values(2, 384)).unwrap();
        let [module, host] =
            [&device, &Device::Cpu].map(|of| Nvfp4Linear::new(layer.clone(), of).unwrap());
        for dtype in TYPES {
            for n in [1, 2, 7, 16, 33, 130] {
                module.prepare(n, dtype).unwrap();
                let xs = tensor(3, &[n, 1024], dtype);
                let ys = module.forward(&on(&device, &xs)).unwrap();
                assert_eq!((ys.dims(), ys.dtype()), (&[n, 384][..], dtype));
                assert_eq!(
                    bits(&ys),
                    of_library(&layer, &on(&device, &xs)),
                    "{dtype:?} {n}"
                );
                let most = if dtype == DType::F32 { 1e-4 } else { 1e-2 };
                assert!(
                    apart(&host.forward(&xs).unwrap(), &ys) < most,
                    "{dtype:?} {n}"
                );
            }
        }
    }
}

fn vectors_with_a_step_are_read_where_they_lie() {
    let device = cuda();
    let layer = layer(4, 256, 512);
    let module = Nvfp4Linear::new(layer.clone(), &device).unwrap();
    for dtype in TYPES {
        let wide = on(&device, &tensor(5, &[2, 5, 1536], dtype));
        let middle = wide.narrow(2, 512, 512).unwrap();
        let last = wide.narrow(1, 4, 1).unwrap().narrow(2, 64, 512).unwrap();
        for xs in [middle, last] {
            assert!(!xs.is_contiguous());
            let copied = xs.contiguous().unwrap();
            assert_eq!(
                bits(&module.forward(&xs).unwrap()),
                of_library(&layer, &copied)
            );
        }
        let two_steps = wide.narrow(1, 0, 3).unwrap().narrow(2, 0, 512).unwrap();
        let error = module.forward(&two_steps).unwrap_err();
        assert!(matches!(error, Error::RequiresContiguous { .. }), "{error}");
        // 4 or 2 bytes behind a multiple of 16.
        let error = module
            .forward(&wide.narrow(2, 1, 512).unwrap())
            .unwrap_err();
        let Error::Cuda(library) = &error else {
            panic!("{error}");
        };
        let library = library.downcast_ref::<nvfp4_gemv::Error>();
        assert!(
            matches!(library, Some(nvfp4_gemv::Error::Misaligned { .. })),
            "{error}"
        );
        assert_eq!(
            module
                .forward(&wide.narrow(2, 0, 512).unwrap().narrow(0, 0, 0).unwrap())
                .unwrap()
                .dims(),
            [0, 5, 256]
        );
    }
}

fn a_tensor_elsewhere_is_a_typed_error() {
    let device = cuda();
    let layer = layer(4, 32, 64);
    let [module, host] =
        [&device, &Device::Cpu].map(|of| Nvfp4Linear::new(layer.clone(), of).unwrap());
    let xs = tensor(1, &[1, 64], DType::F32);
    for error in [
        module.forward(&xs).unwrap_err(),
        host.forward(&on(&device, &xs)).unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::DeviceMismatchBinaryOp { .. }),
            "{error}"
        );
    }
    let f64s = on(&device, &xs.to_dtype(DType::F64).unwrap());
    let error = module.forward(&f64s).unwrap_err();
    assert!(
        matches!(error, Error::UnsupportedDTypeForOp(DType::F64, _)),
        "{error}"
    );
}

/// A workspace of candle's stream; that of `new_cuda` can have none.
fn a_workspace_changes_kernels_and_no_result() {
    let device = cuda();
    let plain = Nvfp4Linear::new(layer(6, 2048, 2048), &device).unwrap();
    let bytes = plain.workspace_bytes(64, DType::BF16).unwrap();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    let with = plain
        .clone()
        .with_workspace(&Workspace::new(&stream, bytes).unwrap());
    let xs = on(&device, &tensor(7, &[64, 2048], DType::BF16));
    let [a, b] = [plain, with].map(|module| module.forward(&xs).unwrap());
    assert!(apart(&a, &b) < 1e-2);
    let per_thread = Device::new_cuda(0).unwrap();
    let stream = per_thread.as_cuda_device().unwrap().cuda_stream();
    let error = Workspace::new(&stream, bytes).unwrap_err();
    assert_eq!(error, nvfp4_gemv::Error::WorkspaceOfAnotherStream);
}

/// The blocks of a file, on both devices.
fn model() -> (tempfile::TempDir, [Nvfp4Builder; 2], Device) {
    let mut file = File::default();
    for (seed, name, rows, k) in [
        (10, "gate_proj", 768, 512),
        (20, "up_proj", 768, 512),
        (30, "down_proj", 512, 768),
    ] {
        file.add_layer(&format!("mlp.{name}"), matrix(seed, rows, k));
        for expert in 0..16 {
            file.add_layer(
                &format!("experts.{expert}.{name}"),
                matrix(seed + expert, rows, k),
            );
        }
    }
    let directory = tempfile::tempdir().unwrap();
    file.write(&directory.path().join("model.safetensors"));
    let device = cuda();
    let builders =
        [&Device::Cpu, &device].map(|device| Nvfp4Builder::open(directory.path(), device).unwrap());
    (directory, builders, device)
}

fn an_mlp_is_near_the_cpu() {
    let (_directory, builders, device) = model();
    let [host, module]: [Nvfp4Mlp; 2] = builders.map(|builder| builder.pp("mlp").mlp().unwrap());
    for (dtype, most) in [(DType::F32, 1e-4), (DType::F16, 1e-2), (DType::BF16, 5e-2)] {
        for n in [1, 5, 40] {
            let xs = tensor(40, &[n, 512], dtype);
            let ys = module.forward(&on(&device, &xs)).unwrap();
            assert_eq!((ys.dims(), ys.dtype()), (&[n, 512][..], dtype));
            assert!(
                apart(&host.forward(&xs).unwrap(), &ys) < most,
                "{dtype:?} {n}"
            );
        }
    }
}

/// Up to 16 pairs are two launches with ids on the device, more are a call for each expert.
fn experts_are_near_the_cpu_with_few_pairs_and_with_many() {
    let (_directory, builders, device) = model();
    let [host, module]: [Nvfp4Experts; 2] = builders.map(|builder| {
        let experts = builder.pp("experts");
        experts
            .experts("gate_proj", "up_proj", "down_proj")
            .unwrap()
    });
    for (dtype, most) in [(DType::F32, 1e-4), (DType::F16, 1e-2), (DType::BF16, 5e-2)] {
        for (vectors, top) in [(1, 4), (4, 4), (5, 4), (9, 2)] {
            let xs = tensor(41, &[vectors, 512], dtype);
            let mut rng = fastrand::Rng::with_seed(vectors as u64);
            let ids: Vec<u32> = (0..vectors * top).map(|_| rng.u32(0..16)).collect();
            let ids = Tensor::from_vec(ids, (vectors, top), &Device::Cpu).unwrap();
            let weights = tensor(42, &[vectors, top], DType::F32);
            let expected = host.forward(&xs, &ids, &weights).unwrap();
            let [xs, ids, weights] = [&xs, &ids, &weights].map(|of| on(&device, of));
            let ys = module.forward(&xs, &ids, &weights).unwrap();
            assert_eq!(ys.dtype(), dtype);
            assert!(apart(&expected, &ys) < most, "{dtype:?} {vectors}x{top}");
            // No expert in a slot behind these: the same with few pairs and with many, whatever its weight is.
            let none = Tensor::full(u32::MAX, (vectors, 1), &device).unwrap();
            let nan = Tensor::full(f32::NAN, (vectors, 1), &device).unwrap();
            let more = [(&ids, &none), (&weights, &nan)];
            let [more_ids, more_weights] =
                more.map(|(of, with)| Tensor::cat(&[of, with], 1).unwrap());
            let same = module.forward(&xs, &more_ids, &more_weights).unwrap();
            assert!(apart(&expected, &same) < most, "{dtype:?} {vectors}x{top}");
            // One vector is read by all of its pairs; with another one beside it there is a copy for each.
            if vectors == 1 {
                let twice = xs.repeat((2, 1)).unwrap();
                let [ids, weights] = [&ids, &weights].map(|of| of.repeat((2, 1)).unwrap());
                let both = module.forward(&twice, &ids, &weights).unwrap();
                assert!(apart(&expected, &both.narrow(0, 0, 1).unwrap()) < most);
            }
        }
    }
}

/// Nothing in a call waits or copies: a capture would fail.
fn layers_are_captured_into_a_cuda_graph() {
    let (_directory, [_, builder], device) = model();
    let cuda = device.as_cuda_device().unwrap();
    // SAFETY: all work goes to the device's one stream.
    unsafe { cuda.disable_event_tracking() };
    let linear = builder.linear("mlp.down_proj").unwrap();
    let xs = on(&device, &tensor(43, &[4, 1536], DType::BF16))
        .narrow(D::Minus1, 768, 768)
        .unwrap();
    let expected = bits(&linear.forward(&xs).unwrap());
    let stream = cuda.cuda_stream();
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    let ys = linear.forward(&xs);
    let graph = stream.end_capture(
        sys::CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
    );
    let (ys, graph) = (ys.unwrap(), graph.unwrap().unwrap());
    graph.launch().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(bits(&ys), expected);
}
