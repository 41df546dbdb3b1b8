//! Files: round trips, merges, and everything that must be refused.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::config::{Config, CudaCoreConfig, CudaCoreKernel, TileConfig, TileKernel};
use crate::file::FileError;
use crate::path::Path as GemvPath;
use crate::path::measured::{Chained, Gpu, Timed};
use crate::scales::ScaleLayout;
use crate::tensor::Activation;

fn machine() -> Machine {
    Machine {
        gpu: Gpu {
            name: "NVIDIA Test".into(),
            compute_capability: (9, 0),
            multiprocessors: 132,
        },
        driver: "13.0".into(),
        crate_version: "0.1.0".into(),
        kernels: "abc".into(),
    }
}

fn entry(m: usize, n: usize, seconds: f64) -> Entry {
    let timed = |path, config, seconds| Timed {
        path,
        config,
        seconds,
        chained: config.map(|config: Config| Chained {
            config: config.with_dependent(true),
            seconds: seconds * 0.9,
        }),
    };
    let direct = CudaCoreConfig {
        kernel: CudaCoreKernel::Direct,
        blocks_per_load: 2,
        warps: 4,
        k_split: 2,
        ctas: 0,
        dependent: false,
    };
    let tile = TileConfig {
        kernel: TileKernel::TensorCore { mma_n: 16 },
        stages: 4,
        cluster: 2,
        dependent: false,
    };
    Entry {
        shape: Shape::new(m, n, 256, 1).unwrap(),
        operands: Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4),
        ceiling_seconds: seconds / 2.0,
        paths: vec![
            timed(GemvPath::TensorCore, Some(tile.into()), seconds),
            timed(GemvPath::CudaCore, Some(direct.into()), seconds * 1.5),
            timed(GemvPath::CudaCoreTma, None, seconds * 2.0),
        ],
    }
}

fn tuned() -> Tuned {
    let mut tuned = Tuned::new(&machine(), "a test");
    tuned.insert(entry(128, 1, 1e-5));
    tuned.insert(entry(256, 3, 2.5e-6));
    tuned
}

/// Saved, changed as text, and loaded on `machine`.
fn reload(change: impl FnOnce(String) -> String, machine: &Machine) -> Result<Tuned, TuneError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.json");
    tuned().save(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, change(text)).unwrap();
    Tuned::load(&path, machine)
}

#[test]
fn saved_and_loaded() {
    assert_eq!(reload(|text| text, &machine()).unwrap(), tuned());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.json");
    let mut merged = Tuned::load_or_new(&path, &machine(), "a test").unwrap();
    assert_eq!(merged.measurements().entries(), []);
    tuned().save(&path).unwrap();
    merged = Tuned::load_or_new(&path, &machine(), "another").unwrap();
    merged.insert(entry(128, 1, 9e-6)); // in the place of the first
    merged.insert(entry(128, 2, 8e-6));
    merged.save(&path).unwrap();
    let loaded = Tuned::load(&path, &machine()).unwrap();
    let seconds: Vec<f64> = loaded
        .measurements()
        .entries()
        .iter()
        .map(|entry| entry.paths[0].seconds)
        .collect();
    assert_eq!(seconds, [9e-6, 2.5e-6, 8e-6]);
    // Nothing else is left in the folder.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn stale_files_say_what_has_changed() {
    let (mut driver, mut version, mut kernels) = (machine(), machine(), machine());
    driver.driver = "13.1".into();
    version.crate_version = "0.2.0".into();
    kernels.kernels = "def".into();
    for (now, says) in [
        (driver, "driver CUDA 13.0, this is 13.1"),
        (version, "nvfp4-gemv 0.1.0, this is 0.2.0"),
        (kernels, "kernels abc, this is def"),
    ] {
        let error = reload(|text| text, &now).unwrap_err();
        assert!(matches!(error, TuneError::Stale { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains("tune again"), "{error}");
    }
}

#[test]
fn foreign_files_name_both_devices() {
    let changes: [fn(&mut Gpu); 3] = [
        |gpu| gpu.name = "NVIDIA Other".into(),
        |gpu| gpu.compute_capability = (10, 0),
        |gpu| gpu.multiprocessors = 66,
    ];
    for change in changes {
        let mut now = machine();
        change(&mut now.gpu);
        now.driver = "14.0".into(); // the GPU is the first reason
        let error = reload(|text| text, &now).unwrap_err();
        assert!(matches!(error, TuneError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("NVIDIA Test"), "{error}");
    }
}

#[test]
fn corrupt_files_are_refused() {
    let replace = |from: &'static str, to: &'static str| {
        move |text: String| {
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1)
        }
    };
    let refused = |change: &dyn Fn(String) -> String, says: &str| {
        let error = reload(change, &machine()).unwrap_err();
        assert!(matches!(error, TuneError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    };
    refused(&|_| String::new(), "EOF");
    refused(&|_| "[]".into(), "invalid");
    refused(
        &|text| text.replace("tuned/2", "tuned/1"),
        "this version reads",
    );
    refused(&replace("\"m\": 128", "\"m\": -1"), "invalid value");
    refused(&replace("\"k\": 256", "\"k\": 24"), "K = 24");
    refused(&replace("\"n\": 3", "\"n\": 17"), "N = 17");
    refused(&replace("0.00001", "0.0"), "0 seconds");
    refused(&replace("\"tensor-core\"", "\"cpu\""), "another path");
    refused(&replace("\"cuda-core-tma\"", "\"cuda-core\""), "twice");
    refused(&replace("\"nvfp4\"", "\"int4\""), "none of nvfp4");
    refused(&replace("\"warps\"", "\"waprs\""), "unknown field");
    refused(
        &replace("\"dependent\": true", "\"dependent\": false"),
        "not dependent",
    );
    refused(&replace("\"from\"", "\"form\""), "unknown field");
    refused(
        &|text| {
            text.replace("\"m\": 256", "\"m\": 128")
                .replace("\"n\": 3", "\"n\": 1")
        },
        "is there twice",
    );
    let missing = Tuned::load("/nowhere/tuned.json", &machine()).unwrap_err();
    assert!(matches!(missing, TuneError::Io { .. }));
    let folder = tempfile::tempdir().unwrap();
    let no_file = Tuned::load(folder.path(), &machine()).unwrap_err();
    assert!(matches!(
        no_file,
        TuneError::File(FileError::NotRegular { .. })
    ));
    let unwritable = tuned().save(folder.path().join("none/tuned.json"));
    assert!(matches!(unwritable, Err(TuneError::Io { .. })));
}

proptest! {
    /// A file that lost its end, or has a byte changed, is refused or means the same kind of thing: it
    /// never panics, and never gives a problem that was not valid.
    #[test]
    fn damaged_files_never_panic(cut in 0usize..4000, at in 0usize..4000, byte in 0u8..=127) {
        let text = tuned().measurements().to_json();
        let cut = cut.min(text.len() - 2);
        prop_assert!(Measurements::from_json(&text[..cut]).is_err());
        let mut bytes = text.into_bytes();
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        if let Ok(table) = Measurements::from_json(std::str::from_utf8(&bytes).unwrap()) {
            for entry in table.entries() {
                prop_assert!(!entry.paths.is_empty());
                prop_assert!(entry.paths.iter().all(|timed| timed.seconds > 0.0));
            }
        }
    }
}
