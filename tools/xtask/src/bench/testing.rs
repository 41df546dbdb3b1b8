//! A small document, for tests.

use std::path::{Path, PathBuf};

use nvfp4_gemv_documents::document::*;
use nvfp4_gemv_documents::statistics::median;

/// Times around `us`, a percent apart, in an order that depends on nothing.
pub(crate) fn samples(us: f64) -> Vec<f64> {
    let wobble = [0.0, 0.01, -0.01, 0.005, -0.005, 0.002, -0.002, 0.0, 0.008];
    wobble
        .iter()
        .map(|part| rounded(us * (1.0 + part)))
        .collect()
}

pub(crate) fn measured(path: &str, mode: &str, us: f64, picked: bool) -> Measured {
    Measured {
        path: path.into(),
        mode: mode.into(),
        picked,
        config: "Config { warps: 8 }".into(),
        median_us: us,
        gb_per_s: rounded(1e3 / us),
        share_of_ceiling: rounded(10.0 / us),
        samples_us: samples(us),
        ..Measured::default()
    }
}

pub(crate) fn case(n: usize, activation: &str, paths: Vec<Measured>) -> Case {
    let samples_us = samples(10.0);
    Case {
        m: 4096,
        n,
        k: 7168,
        l: 8,
        activation: activation.into(),
        layout: "128x4".into(),
        output_type: "f16".into(),
        weight_bytes: 132_120_576,
        rotated_bytes: 528_482_304,
        launches_per_round: 48,
        ceiling: ReadTimes {
            kernel: Some("loads 8x256x4".into()),
            median_us: median(&samples_us),
            gb_per_s: 4000.0,
            samples_us,
            ..ReadTimes::default()
        },
        picked: Some(Picked {
            kernel: None,
            path: "cuda-core".into(),
            reason: "measured".into(),
        }),
        paths,
        ..Case::default()
    }
}

/// Two paths that cross between n = 1 and 4, and one problem of another kind.
pub(crate) fn document() -> Document {
    Document {
        schema: SCHEMA.into(),
        crate_version: "0.1.0".into(),
        kernels: Some("feedc0de".into()),
        git_commit: Some("0123456789abcdef".into()),
        date_utc: "2026-11-21T02:00:00Z".into(),
        host: Some("bench-1".into()),
        suite: "all".into(),
        device: Device {
            kind: "cuda".into(),
            name: "Test GPU <1>".into(),
            compute_capability: Some("9.0".into()),
            multiprocessors: Some(132),
            l2_bytes: Some(60 << 20),
            memory_bytes: Some(1 << 37),
            driver: Some("580.1.2".into()),
            driver_cuda: Some("13.0".into()),
            runtime_cuda: Some("13.0".into()),
            ..Device::default()
        },
        method: Method {
            rounds: 9,
            cold_bytes: 512 << 20,
            ..Method::default()
        },
        cases: vec![
            case(1, "nvfp4", paths(&[12.0, 14.0], Some(11.0))),
            case(4, "nvfp4", paths(&[18.0, 15.0], None)),
            case(1, "bf16", paths(&[25.0], None)),
        ],
        ..Document::default()
    }
}

/// The CUDA cores, which are picked, and the tensor cores, each launch on its own; then the tensor cores chained.
fn paths(isolated: &[f64], chained: Option<f64>) -> Vec<Measured> {
    let names = ["cuda-core", "tensor-core"].into_iter();
    let isolated = names.zip(isolated);
    let isolated = isolated.map(|(path, us)| measured(path, "isolated", *us, path == "cuda-core"));
    let chained = chained.map(|us| measured("tensor-core", "chained", us, false));
    isolated.chain(chained).collect()
}

/// A document of the suite of up to 128 vectors, with cuBLAS and one sustained result: n = 1, 16 and 128.
pub(crate) fn vectors() -> Document {
    super::parse(include_str!("vectors.json")).unwrap()
}

/// A program that is a shell script.
pub(crate) fn script(folder: &Path, text: &str) -> PathBuf {
    let file = folder.join("program");
    crate::toolchain::testing::script(&file, text);
    file
}
