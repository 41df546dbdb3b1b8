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
        kernel: None,
        mode: mode.into(),
        picked,
        config: "Config { warps: 8 }".into(),
        median_us: us,
        gb_per_s: rounded(1e3 / us),
        share_of_ceiling: rounded(10.0 / us),
        cublas_ratio: None,
        samples_us: samples(us),
        board: BoardReadings::default(),
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
            board: BoardReadings::default(),
        },
        slower_reads: Vec::new(),
        picked: Some(Picked {
            kernel: None,
            path: "cuda-core".into(),
            reason: "measured".into(),
        }),
        paths,
        cublas: None,
        skipped: Vec::new(),
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
            threads: None,
            l2_bytes: Some(60 << 20),
            memory_bytes: Some(1 << 37),
            driver: Some("580.1.2".into()),
            driver_cuda: Some("13.0".into()),
            runtime_cuda: Some("13.0".into()),
        },
        method: Method {
            rounds: 9,
            cold_bytes: 512 << 20,
            sustained_seconds: None,
        },
        long_read: None,
        slowed_percent: Default::default(),
        notes: Vec::new(),
        cases: vec![
            case(
                1,
                "nvfp4",
                vec![
                    measured("cuda-core", "isolated", 12.0, true),
                    measured("tensor-core", "isolated", 14.0, false),
                    measured("tensor-core", "chained", 11.0, false),
                ],
            ),
            case(
                4,
                "nvfp4",
                vec![
                    measured("cuda-core", "isolated", 18.0, true),
                    measured("tensor-core", "isolated", 15.0, false),
                ],
            ),
            case(
                1,
                "bf16",
                vec![measured("cuda-core", "isolated", 25.0, true)],
            ),
        ],
    }
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
