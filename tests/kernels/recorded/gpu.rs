//! The recorded calls on a GPU: a GPU of the recorded kind gives the recorded bits. Also the recorder.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use nvfp4_gemv::raw;
use nvfp4_gemv_trials::Trial;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{calls, recording, same};
use crate::support::gpu::{Gpu, OnDevice};
use crate::support::operands::Operands;
use crate::support::trial;

/// The folder to write to.
const FOLDER: &str = "NVFP4_GEMV_RECORD";

pub(crate) fn trials() -> Vec<Trial> {
    let record = trial::gpu(concat!(module_path!(), "::record"), record);
    vec![
        trial::gpu(concat!(module_path!(), "::gives_the_recorded_bits"), replay),
        record.with_kind("writes a file").with_ignored_flag(true),
    ]
}

/// Hashes of the operands, and outputs, by the calls' names.
fn run(gpu: &Gpu) -> (BTreeMap<String, String>, BTreeMap<String, Vec<u8>>) {
    let (mut hashes, mut outputs) = (BTreeMap::new(), BTreeMap::new());
    for call in calls() {
        let operands = Arc::new(Operands::new(&call.case));
        hashes.insert(call.name(), operands.hash());
        let y = OnDevice::new(gpu, operands).run(call.config.into(), false);
        outputs.insert(call.name(), y);
    }
    (hashes, outputs)
}

fn replay() {
    let gpu = Gpu::first();
    let bytes = recording();
    let data = SafeTensors::deserialize(&bytes).unwrap();
    let (_, outputs) = run(&gpu);
    for call in calls() {
        let name = call.name();
        let want = data.tensor(&name).unwrap();
        // Sums, their order and f16 products are the same on every GPU.
        if let Err(why) = same(&outputs[&name], want.data(), call.case.output.bytes()) {
            panic!("{name}: {why}");
        }
    }
}

fn record() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("NVFP4_GEMV_RECORD is a folder"));
    let gpu = Gpu::first();
    let (hashes, outputs) = run(&gpu);
    let views = outputs.iter().map(|(name, y)| {
        let view = TensorView::new(Dtype::U8, vec![y.len()], y).unwrap();
        (name, view)
    });
    let file = folder.join("gemv_direct.safetensors");
    let metadata = metadata(&gpu, &hashes);
    let bytes = safetensors::serialize(views, Some(metadata)).unwrap();
    std::fs::write(&file, bytes).unwrap();
    println!("{} calls to {}", outputs.len(), file.display());
}

fn metadata(gpu: &Gpu, hashes: &BTreeMap<String, String>) -> HashMap<String, String> {
    let versions = raw::versions().unwrap();
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let date = Command::new("date").args(["-u", "+%F"]).output().unwrap();
    [
        ("format", "gemv-cuda-core/1".into()),
        ("gpu", gpu.info.name.clone()),
        ("compute_capability", version(gpu.info.compute_capability)),
        ("archs", raw::COMPILED_ARCHS.into()),
        ("driver", driver.lines().next().unwrap_or_default().into()),
        (
            "driver_cuda",
            versions.driver.map(version).unwrap_or_default(),
        ),
        (
            "runtime_cuda",
            versions.runtime.map(version).unwrap_or_default(),
        ),
        (
            "date",
            String::from_utf8_lossy(&date.stdout).trim().to_string(),
        ),
        (
            "command",
            "cargo test --release --test kernels -- --ignored recorded::gpu::record".into(),
        ),
        ("inputs_fnv1a64", serde_json::to_string(hashes).unwrap()),
    ]
    .map(|(key, value): (&str, String)| (key.to_string(), value))
    .into()
}
