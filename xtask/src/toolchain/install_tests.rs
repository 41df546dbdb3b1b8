use std::cell::RefCell;
use std::io::Write;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

/// A wheel with one file, in memory, and the pin that names it.
fn package(name: &str, path: &str, text: &str) -> (Pin, Vec<u8>) {
    let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .unix_permissions(0o644);
    writer.start_file(path, options).unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    let bytes = writer.finish().unwrap().into_inner();
    let sum = Sha256::digest(&bytes);
    let pin = Pin {
        name: name.into(),
        version: "1.0".into(),
        platform: "any".into(),
        sha256: sum.iter().map(|byte| format!("{byte:02x}")).collect(),
        bytes: bytes.len() as u64,
    };
    (pin, bytes)
}

/// An index that counts downloads, and can break off or serve other bytes.
#[derive(Default)]
struct Index {
    packages: Vec<(Pin, Vec<u8>)>,
    breaks_at: RefCell<Option<String>>,
    forged: RefCell<Option<String>>,
    downloads: RefCell<Vec<String>>,
}

impl Index {
    fn new() -> Self {
        Self {
            packages: vec![
                package("compiler", "nvidia/cu13/bin/nvcc", "#!/bin/sh\n"),
                package("headers", "nvidia/cu13/include/cuda.h", "#define CUDA\n"),
                package("library", "nvidia/cu13/lib/libcudart.a", "!<arch>\n"),
            ],
            ..Self::default()
        }
    }

    fn bundle(&self) -> Bundle {
        Bundle {
            directory: "cuda",
            purpose: "test compiler",
            pins: self.packages.iter().map(|(pin, _)| pin.clone()).collect(),
        }
    }

    fn downloads(&self) -> Vec<String> {
        self.downloads.take()
    }
}

impl Fetch for Index {
    fn fetch(&self, pin: &Pin, scratch: &Path, received: &dyn Fn(u64)) -> Result<PathBuf> {
        self.downloads.borrow_mut().push(pin.name.clone());
        let wheel = scratch.join("some.whl");
        let (_, bytes) = self
            .packages
            .iter()
            .find(|(known, _)| known == pin)
            .unwrap();
        let mut bytes = bytes.clone();
        if self.breaks_at.borrow().as_ref() == Some(&pin.name) {
            fs::write(&wheel, &bytes[..10]).unwrap();
            bail!("the network is gone");
        }
        if self.forged.borrow().as_ref() == Some(&pin.name) {
            *bytes.last_mut().unwrap() ^= 1;
        }
        fs::write(&wheel, &bytes).unwrap();
        received(bytes.len() as u64);
        Ok(wheel)
    }
}

fn leftovers(root: &Path) -> usize {
    let entries = fs::read_dir(root).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(PARTIAL)).count()
}

#[test]
fn installs_then_does_nothing() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let index = Index::new();
    assert!(!is_complete(root, &index.bundle()));
    let directory = install(root, &index.bundle(), &index).unwrap();
    assert_eq!(index.downloads(), ["compiler", "headers", "library"]);
    let header = directory.join("nvidia/cu13/include/cuda.h");
    assert_eq!(fs::read_to_string(header).unwrap(), "#define CUDA\n");
    assert!(is_complete(root, &index.bundle()));
    install(root, &index.bundle(), &index).unwrap();
    assert!(index.downloads().is_empty());
    assert_eq!(leftovers(root), 0);
}

#[cfg(unix)]
#[test]
fn programs_are_executable_though_the_wheel_says_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let index = Index::new();
    let home = install(root.path(), &index.bundle(), &index)
        .unwrap()
        .join("nvidia/cu13");
    let mode = |name: &str| fs::metadata(home.join(name)).unwrap().permissions().mode() & 0o111;
    assert_eq!(mode("bin/nvcc"), 0o111);
    assert_eq!(mode("include/cuda.h"), 0);
    assert!(
        home.join("lib64/libcudart.a").is_file(),
        "lib64 leads to lib"
    );
}

#[test]
fn an_interrupted_download_continues_with_the_missing_package() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let index = Index::new();
    index.breaks_at.replace(Some("headers".into()));
    let error = install(root, &index.bundle(), &index).unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("headers 1.0") && text.contains("the network is gone"),
        "{text}"
    );
    assert!(!is_complete(root, &index.bundle()));
    assert!(
        !root.join("cuda").exists(),
        "nothing half installed is visible"
    );
    assert_eq!(index.downloads(), ["compiler", "headers"]);

    index.breaks_at.replace(None);
    install(root, &index.bundle(), &index).unwrap();
    assert_eq!(
        index.downloads(),
        ["headers", "library"],
        "the first was kept"
    );
    assert!(is_complete(root, &index.bundle()));
}

#[test]
fn a_killed_run_leaves_nothing_that_confuses_the_next() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let index = Index::new();
    // As after a kill while unpacking: a partial directory, and a final one without a stamp.
    fs::create_dir_all(root.join(".partial-killed/nvidia")).unwrap();
    fs::create_dir_all(root.join("cuda/nvidia/cu13/bin")).unwrap();
    fs::write(root.join("cuda/nvidia/cu13/bin/stale"), "").unwrap();
    install(root, &index.bundle(), &index).unwrap();
    assert!(is_complete(root, &index.bundle()));
    assert!(!root.join("cuda/nvidia/cu13/bin/stale").exists());
    assert_eq!(leftovers(root), 0);
}

#[test]
fn other_bytes_are_refused_and_not_kept() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let index = Index::new();
    index.forged.replace(Some("headers".into()));
    let error = install(root, &index.bundle(), &index).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("not the pinned file"), "{text}");
    assert!(text.contains(&index.packages[1].0.sha256), "{text}");
    assert!(!root.join("cuda").exists());
    let kept = fs::read_dir(root.join("wheels")).unwrap().count();
    assert_eq!(kept, 1, "only the verified one");
}

#[test]
fn a_damaged_wheel_is_downloaded_again() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let index = Index::new();
    install(root, &index.bundle(), &index).unwrap();
    index.downloads();
    fs::write(
        root.join("wheels").join(index.packages[0].0.file_name()),
        "junk",
    )
    .unwrap();
    fs::remove_dir_all(root.join("cuda")).unwrap();
    install(root, &index.bundle(), &index).unwrap();
    assert_eq!(index.downloads(), ["compiler"]);
}

#[test]
fn damaged_files_are_repaired_without_a_download() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let index = Index::new();
    let directory = install(root, &index.bundle(), &index).unwrap();
    index.downloads();
    let header = directory.join("nvidia/cu13/include/cuda.h");
    let damages: [fn(&Path, &Path); 4] = [
        |header, _| fs::remove_file(header).unwrap(),
        |header, _| fs::write(header, "short").unwrap(),
        |_, stamp| fs::write(stamp, "{").unwrap(),
        |_, stamp| fs::remove_file(stamp).unwrap(),
    ];
    for damage in damages {
        damage(&header, &directory.join(STAMP));
        assert!(!is_complete(root, &index.bundle()));
        install(root, &index.bundle(), &index).unwrap();
        assert!(is_complete(root, &index.bundle()));
        assert_eq!(fs::read_to_string(&header).unwrap(), "#define CUDA\n");
    }
    assert!(index.downloads().is_empty(), "the kept wheels were enough");
}

#[test]
fn new_pins_replace_an_old_installation() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let mut index = Index::new();
    install(root, &index.bundle(), &index).unwrap();
    index.downloads();
    index.packages[1] = package("headers", "nvidia/cu13/include/new.h", "new\n");
    index.packages[1].0.version = "2.0".into();
    assert!(!is_complete(root, &index.bundle()));
    let directory = install(root, &index.bundle(), &index).unwrap();
    assert_eq!(index.downloads(), ["headers"]);
    assert!(directory.join("nvidia/cu13/include/new.h").is_file());
    assert!(!directory.join("nvidia/cu13/include/cuda.h").exists());
}

#[test]
fn a_wheel_that_climbs_out_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let index = Index {
        packages: vec![package("evil", "../../escaped", "x")],
        ..Index::default()
    };
    let error = install(root.path(), &index.bundle(), &index).unwrap_err();
    assert!(format!("{error:#}").contains("outside"), "{error:#}");
    assert!(!root.path().join("escaped").exists());
}
