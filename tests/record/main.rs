//! Records the bits that the CUDA-core kernels give on a GPU, for `ptx-sim` to reproduce without
//! one: tests/recorded/README.md.
#![cfg(feature = "cuda")]

mod inputs;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use inputs::{Case, Inputs, cases};
use nvfp4_gemv::raw::{Output, Vectors, Weights};
use nvfp4_gemv::{Activation, CudaCoreConfig, CudaCoreKernel, FloatType, GlobalScale, raw};
use safetensors::{Dtype, tensor::TensorView};

/// The folder to write to.
const FOLDER: &str = "NVFP4_GEMV_RECORD";

#[test]
fn every_case_is_named_and_seeded_apart() {
    let names: std::collections::BTreeSet<String> = cases().iter().map(Case::name).collect();
    assert_eq!(names.len(), cases().len());
}

#[test]
#[ignore = "writes a recording to the folder in NVFP4_GEMV_RECORD; needs a GPU"]
fn record() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("NVFP4_GEMV_RECORD is a folder"));
    raw::device_count().unwrap();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let device = raw::device_info(0).unwrap();
    let mut hashes = BTreeMap::new();
    let mut outputs = BTreeMap::new();
    for case in cases() {
        let inputs = Inputs::new(&case);
        let y = run(&stream, &device, &case, &inputs);
        assert_eq!(y, run(&stream, &device, &case, &inputs), "{case:?}");
        hashes.insert(case.name(), inputs.hash());
        outputs.insert(case.name(), y);
    }
    let views = outputs.iter().map(|(name, y)| {
        let view = TensorView::new(Dtype::U8, vec![y.len()], y).unwrap();
        (name, view)
    });
    let file = folder.join("gemv_cuda_core.safetensors");
    let metadata = metadata(&device, &hashes);
    std::fs::write(
        &file,
        safetensors::serialize(views, Some(metadata)).unwrap(),
    )
    .unwrap();
    println!("{} cases to {}", outputs.len(), file.display());
}

fn metadata(
    device: &raw::DeviceInfo,
    hashes: &BTreeMap<String, String>,
) -> HashMap<String, String> {
    let versions = raw::versions().unwrap();
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let date = Command::new("date").args(["-u", "+%F"]).output().unwrap();
    [
        ("format", "gemv-cuda-core/1".into()),
        ("gpu", device.name.clone()),
        ("compute_capability", version(device.compute_capability)),
        ("archs", raw::COMPILED_ARCHS.into()),
        ("driver", driver.lines().next().unwrap_or_default().into()),
        (
            "driver_cuda",
            versions.driver.map(version).unwrap_or_default(),
        ),
        ("runtime_cuda", version(versions.runtime)),
        (
            "date",
            String::from_utf8_lossy(&date.stdout).trim().to_string(),
        ),
        (
            "command",
            "cargo test --release --test record -- --ignored".into(),
        ),
        ("inputs_fnv1a64", serde_json::to_string(hashes).unwrap()),
    ]
    .map(|(key, value): (&str, String)| (key.to_string(), value))
    .into()
}

fn config(case: &Case) -> CudaCoreConfig {
    CudaCoreConfig {
        kernel: match case.cut.ctas {
            Some(_) => CudaCoreKernel::IntegerDot,
            None => CudaCoreKernel::Direct,
        },
        blocks_per_load: case.cut.blocks_per_load,
        warps: case.cut.warps,
        k_split: case.cut.k_split,
        ctas: case.cut.ctas.unwrap_or(0),
        dependent: false,
    }
}

/// Bytes of the output.
fn run(
    stream: &Arc<CudaStream>,
    device: &raw::DeviceInfo,
    case: &Case,
    inputs: &Inputs,
) -> Vec<u8> {
    // An operand that is not there stays a null pointer.
    let upload = |bytes: &[u8]| (!bytes.is_empty()).then(|| stream.clone_htod(bytes).unwrap());
    let address = |buffer: &Option<CudaSlice<u8>>| {
        buffer
            .as_ref()
            .map_or(0, |buffer| buffer.device_ptr(stream).0)
    };
    let codes = upload(&inputs.codes);
    let scales = upload(&inputs.scales);
    let row_alpha = upload(&inputs.row_alpha);
    let values = upload(&inputs.vectors);
    let vector_scales = upload(&inputs.vector_scales);
    let vector_alpha = upload(&inputs.vector_alpha);
    let y = upload(&vec![0xff; case.shape.outputs() * case.output.bytes()]);
    let weights = Weights {
        codes: address(&codes),
        scales: address(&scales),
        layout: case.weight_layout,
        global: GlobalScale::Multiplier(inputs.alpha),
        row_alpha: address(&row_alpha),
        row_alpha_batch_stride: 0,
    };
    let dense = |element| Vectors::Dense {
        element,
        values: address(&values),
        strides: inputs.vector_strides,
    };
    let vectors = match case.activation {
        Activation::Nvfp4 => Vectors::Nvfp4 {
            codes: address(&values),
            code_strides: inputs.vector_strides,
            scales: address(&vector_scales),
            layout: case.vector_layout,
            scale_strides: inputs.vector_scale_strides,
            global: GlobalScale::ONE,
            vector_alpha: address(&vector_alpha),
        },
        Activation::F16 => dense(FloatType::F16),
        Activation::Bf16 => dense(FloatType::Bf16),
        Activation::F32 => dense(FloatType::F32),
    };
    let output = Output {
        address: address(&y),
        element: case.output,
    };
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the stream's context is current; the buffers are as long as the shape and strides
    // ask, and live until the copy below has waited for the kernel.
    unsafe {
        raw::cuda_core(
            &case.shape,
            &weights,
            &vectors,
            &output,
            &config(case),
            device,
            stream.cu_stream().cast(),
        )
        .unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    stream.clone_dtoh(&y.unwrap()).unwrap()
}
