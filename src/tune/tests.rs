//! Files: round trips, merges, and everything that must be refused.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::dispatch::measured::{Chained, GpuModel, Timed};
use crate::kernel::{Config, DirectConfig, MmaConfig, WgmmaConfig};
use crate::shape::Dims;
use crate::types::{Activation, ScaleLayout};

fn machine() -> Machine {
    Machine {
        gpu: GpuModel {
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
    let timed = |config: Config, seconds| Timed {
        config,
        seconds,
        chained: Some(Chained {
            config,
            seconds: seconds * 0.9,
        }),
    };
    let direct = DirectConfig {
        blocks_per_load: 2,
        warps: 4,
        k_split: 2,
        ..DirectConfig::DEFAULT
    };
    // Two kernels whose configs have the same fields.
    let wgmma = WgmmaConfig {
        parts: 4,
        chunk: 8,
        ..WgmmaConfig::DEFAULT
    };
    let mma = MmaConfig {
        parts: 4,
        chunk: 8,
        ..MmaConfig::DEFAULT
    };
    Entry {
        shape: Shape::new(Dims { m, n, k: 256, l: 1 }).unwrap(),
        operands: Operands::new(Activation::Nvfp4, ScaleLayout::Tiled128x4),
        ceiling_seconds: seconds / 2.0,
        kernels: vec![
            timed(wgmma.into(), seconds),
            timed(direct.into(), seconds * 1.5),
            Timed {
                chained: None,
                ..timed(mma.into(), seconds * 2.0)
            },
        ],
    }
}

/// A folder, and a file that is not there yet.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.jsonl");
    (folder, path)
}

fn tuned() -> Tuned {
    let mut tuned = Tuned::new(&machine(), "a test");
    tuned.insert(entry(128, 1, 1e-5));
    tuned.insert(entry(256, 3, 2.5e-6));
    tuned
}

/// Seconds of each problem's fastest kernel.
fn seconds(tuned: &Tuned) -> Vec<f64> {
    let entries = tuned.measurements().entries().iter();
    entries.map(|entry| entry.kernels[0].seconds).collect()
}

/// Saved, changed as text, and loaded on `machine`.
fn reload(change: impl FnOnce(String) -> String, machine: &Machine) -> Result<Tuned, TuneError> {
    let (_folder, path) = place();
    tuned().save(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, change(text)).unwrap();
    Tuned::load(&path, machine)
}

#[test]
fn saved_and_loaded() {
    assert_eq!(reload(|text| text, &machine()).unwrap(), tuned());
    let (folder, path) = place();
    let mut merged = Tuned::load_or_new(&path, &machine(), "a test").unwrap();
    assert_eq!(merged.measurements().entries(), []);
    tuned().save(&path).unwrap();
    merged = Tuned::load_or_new(&path, &machine(), "another").unwrap();
    merged.insert(entry(128, 1, 9e-6)); // in the place of the first
    merged.insert(entry(128, 2, 8e-6));
    merged.save(&path).unwrap();
    let loaded = Tuned::load(&path, &machine()).unwrap();
    assert_eq!(seconds(&loaded), [9e-6, 2.5e-6, 8e-6]);
    // Nothing else is left in the folder.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn what_cannot_be_saved_to_is_known_before() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, path) = place();
    Tuned::check_writable(&path).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    Tuned::check_writable(folder.path()).unwrap_err();
    Tuned::check_writable(path.join("no")).unwrap_err();
    Tuned::check_writable("/dev/null").unwrap_err();
    tuned().save(&path).unwrap();
    Tuned::check_writable(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let may_write = fs::OpenOptions::new().write(true).open(&path).is_ok(); // root may
    assert_eq!(Tuned::check_writable(&path).is_ok(), may_write);
    assert_eq!(tuned().save(&path).is_ok(), may_write);
}

#[test]
fn what_could_not_be_loaded_is_not_saved() {
    let (_folder, path) = place();
    let of_another = |entry: &mut Entry| {
        let config = entry.kernels[0].config;
        entry.kernels[1].chained = Some(Chained {
            config,
            seconds: 1.0,
        });
    };
    type Spoil = fn(&mut Entry);
    let spoils: [(Spoil, &str); 5] = [
        (|entry| entry.kernels.clear(), "no kernel"),
        (|entry| entry.ceiling_seconds = f64::NAN, "a ceiling of NaN"),
        (
            |entry| entry.kernels[1].seconds = f64::INFINITY,
            "of inf seconds",
        ),
        (|entry| entry.kernels[1].seconds = 0.0, "of 0 seconds"),
        (of_another, "of another kernel than direct"),
    ];
    for (spoil, says) in spoils {
        let mut spoilt = entry(512, 1, 1e-5);
        spoil(&mut spoilt);
        let mut tuned = tuned();
        tuned.insert(spoilt);
        for result in [tuned.save(&path), tuned.replace(&path)] {
            let error = result.unwrap_err();
            assert!(matches!(error, TuneError::Invalid { .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert!(!path.exists());
    }
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

/// Kernels that earlier versions had: of another version's file that is no wonder.
#[test]
fn files_of_versions_with_other_kernels_are_stale() {
    for gone in ["tma", "dot"] {
        let other = |text: String| text.replace("wgmma", gone);
        let mut now = machine();
        now.kernels = "def".into();
        let error = reload(other, &now).unwrap_err();
        assert!(matches!(error, TuneError::Stale { .. }), "{error}");
        let error = reload(other, &machine()).unwrap_err();
        assert!(matches!(error, TuneError::Corrupt { .. }), "{error}");
        let says = format!("unknown variant `{gone}`, expected one of `ring`, ");
        assert!(error.to_string().contains(&says), "{error}");
    }
}

#[test]
fn foreign_files_name_both_devices() {
    let changes: [fn(&mut GpuModel); 3] = [
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
        &|text| text.replace("tuned/4", "tuned/3"),
        "this version reads",
    );
    refused(&replace("\"m\":128", "\"m\":-1"), "invalid value");
    refused(&replace("\"m\":256", "\"m\":-1"), "at line 3 column");
    refused(&replace("\"k\":256", "\"k\":24"), "K = 24");
    refused(&replace("\"k\":256", "\"k\":24"), "line 2: ");
    refused(&replace("\"n\":3", "\"n\":0"), "N = 0");
    refused(&replace("0.00001", "0.0"), "0 seconds");
    refused(&replace("\"wgmma\"", "\"mma\""), "another kernel than mma");
    refused(
        &|text| text.replace("\"wgmma\"", "\"mma\""),
        "mma is there twice",
    );
    refused(&replace("\"wgmma\"", "\"cuda-core\""), "unknown variant");
    refused(&replace("\"nvfp4\"", "\"int4\""), "none of nvfp4");
    refused(&replace("\"warps\"", "\"waprs\""), "unknown field");
    refused(&replace("\"from\"", "\"form\""), "missing field");
    refused(
        &|text| {
            text.replace("\"m\":256", "\"m\":128")
                .replace("\"n\":3", "\"n\":1")
        },
        "is there twice",
    );
    let missing = Tuned::load("/nowhere/tuned.jsonl", &machine()).unwrap_err();
    assert!(matches!(missing, TuneError::Io { .. }));
    let folder = tempfile::tempdir().unwrap();
    let no_file = Tuned::load(folder.path(), &machine()).unwrap_err();
    assert!(matches!(no_file, TuneError::NotRegular { .. }));
    let unwritable = tuned().save(folder.path().join("none/tuned.jsonl"));
    assert!(matches!(unwritable, Err(TuneError::Io { .. })));
}

/// The work of one of several savers, `rounds` times: loads, inserts one problem, saves, as programs do.
fn add_problems(path: &std::path::Path, saver: usize, rounds: usize) {
    for round in 0..rounds {
        let mut tuned = Tuned::load_or_new(path, &machine(), "a saver").unwrap();
        tuned.insert(entry(1 + saver * rounds + round, 1, 1e-5));
        tuned.save(path).unwrap();
        // And one that did not load again after others have saved.
        tuned.insert(entry(1 + saver * rounds + round, 2, 1e-5));
        tuned.save(path).unwrap();
    }
}

/// Loads without end, until told to stop: a reader finds no file, or a whole one.
fn read_all_the_time(path: &std::path::Path, stop: &std::sync::atomic::AtomicBool) {
    let mut most = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        match Tuned::load(path, &machine()) {
            Ok(tuned) => {
                let entries = tuned.measurements().entries().len();
                assert!(entries >= most, "{entries} entries after {most}");
                most = entries;
            }
            Err(TuneError::Io { source, .. })
                if most == 0 && source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs savers while two threads read, and sees that nothing is lost.
fn savers_lose_nothing(count: usize, rounds: usize, save: impl Fn(&std::path::Path)) {
    let (folder, path) = place();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|_| scope.spawn(|| read_all_the_time(&path, &stop)));
        let saved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| save(&path)));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
        saved.unwrap();
    });
    let tuned = Tuned::load(&path, &machine()).unwrap();
    let operands = entry(1, 1, 1.0).operands;
    for m in 1..=count * rounds {
        for n in [1, 2] {
            let shape = Shape::new(Dims { m, n, k: 256, l: 1 }).unwrap();
            assert!(tuned.find(&shape, &operands).is_some(), "{shape} is lost");
        }
    }
    assert_eq!(tuned.measurements().entries().len(), 2 * count * rounds);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn threads_that_save_lose_nothing() {
    savers_lose_nothing(8, 4, |path| {
        std::thread::scope(|scope| {
            for saver in 0..8 {
                scope.spawn(move || add_problems(path, saver, 4));
            }
        });
    });
}

const FILE: &str = "NVFP4_GEMV_TEST_TUNED";
const SAVER: &str = "NVFP4_GEMV_TEST_SAVER";

#[test]
#[ignore = "it is the process that another test starts"]
fn saver() {
    let (Some(path), Ok(saver)) = (std::env::var_os(FILE), std::env::var(SAVER)) else {
        return;
    };
    add_problems(path.as_ref(), saver.parse().unwrap(), 4);
}

#[test]
fn processes_that_save_lose_nothing() {
    savers_lose_nothing(4, 4, |path| {
        let start = |saver: usize| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tune::tests::saver", "--ignored", "--quiet"])
                .env(FILE, path)
                .env(SAVER, saver.to_string())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        };
        let children: Vec<_> = (0..4).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
    });
}

#[test]
fn a_save_keeps_what_others_have_saved() {
    let (folder, path) = place();
    tuned().save(&path).unwrap();
    let load = || Tuned::load(&path, &machine()).unwrap();
    let (mut ours, mut theirs) = (load(), load());
    theirs.insert(entry(128, 1, 7e-6)); // newer than what we have loaded
    theirs.insert(entry(512, 1, 6e-6));
    theirs.save(&path).unwrap();
    ours.insert(entry(256, 3, 5e-6));
    ours.save(&path).unwrap();
    assert_eq!(ours, load(), "after saving we know what they have added");
    assert_eq!(seconds(&ours), [7e-6, 5e-6, 6e-6]);
    // An entry that was saved once is theirs to change.
    theirs.insert(entry(256, 3, 4e-6));
    theirs.save(&path).unwrap();
    ours.save(&path).unwrap();
    assert_eq!(seconds(&ours), [7e-6, 4e-6, 6e-6]);

    // A file that is refused is not replaced, unless that is asked for.
    let mut other = machine();
    other.kernels = "def".into();
    let mut other = Tuned::new(&other, "other kernels");
    assert!(matches!(other.save(&path), Err(TuneError::Stale { .. })));
    fs::write(&path, "mine").unwrap();
    assert!(matches!(ours.save(&path), Err(TuneError::Corrupt { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    other.replace(&path).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    // A path to something that is no file is neither read nor replaced.
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for place in [&pipe, folder.path()] {
            assert!(matches!(ours.save(place), Err(TuneError::Io { .. })));
            assert!(matches!(ours.replace(place), Err(TuneError::Io { .. })));
        }
        use std::os::unix::fs::FileTypeExt;
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        // A link stays a link, and leads to the file that is locked and replaced.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("tuned.jsonl", &link).unwrap();
        ours.replace(&link).unwrap();
        ours.save(&link).unwrap();
        assert_eq!(load(), ours);
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }
}

proptest! {
    /// A file that lost its end within a line is refused. One that has a byte changed is, or means the same kind of
    /// thing: it never panics, and never gives a problem that was not valid.
    #[test]
    fn damaged_files_never_panic(cut in 0usize..4000, at in 0usize..4000, byte in 0u8..=127) {
        let text = tuned().measurements().to_json_lines();
        let cut = cut.min(text.len() - 2);
        let between = text[..cut].ends_with('\n') || text[cut..].starts_with('\n');
        prop_assert_eq!(Measurements::from_json_lines(&text[..cut]).is_ok(), between);
        let mut bytes = text.into_bytes();
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        if let Ok(table) = Measurements::from_json_lines(std::str::from_utf8(&bytes).unwrap()) {
            for entry in table.entries() {
                prop_assert!(!entry.kernels.is_empty());
                prop_assert!(entry.kernels.iter().all(|timed| timed.seconds > 0.0));
            }
        }
    }
}
