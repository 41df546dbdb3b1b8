use std::cell::RefCell;
use std::io::Write;

use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::testing::contains;

/// A wheel with one file, in memory, and the pin that names it.
fn package(name: &str, path: &str, text: &str) -> (Pin, Vec<u8>) {
    let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .unix_permissions(0o644);
    writer.start_file(path, options).unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    let bytes = writer.finish().unwrap().into_inner();
    let pin = Pin {
        name: name.into(),
        version: "1.0".into(),
        platform: "any".into(),
        sha256: hex(&Sha256::digest(&bytes)),
        bytes: bytes.len() as u64,
    };
    (pin, bytes)
}

/// An index that counts downloads, and can break off or serve other bytes; and where its packages are installed.
struct Index {
    root: TempDir,
    packages: Vec<(Pin, Vec<u8>)>,
    breaks_at: RefCell<Option<String>>,
    forged: RefCell<Option<String>>,
    downloads: RefCell<Vec<String>>,
}

impl Index {
    fn new() -> Self {
        Self::of(vec![
            package("compiler", "nvidia/cu13/bin/nvcc", "#!/bin/sh\n"),
            package("headers", "nvidia/cu13/include/cuda.h", "#define CUDA\n"),
            package("library", "nvidia/cu13/lib/libcudart.a", "!<arch>\n"),
        ])
    }

    fn of(packages: Vec<(Pin, Vec<u8>)>) -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            packages,
            breaks_at: RefCell::default(),
            forged: RefCell::default(),
            downloads: RefCell::default(),
        }
    }

    /// One whose packages are installed.
    fn installed() -> Self {
        let index = Self::new();
        index.install().unwrap();
        index.downloads();
        index
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn install(&self) -> Result<PathBuf> {
        install(self.root.path(), &self.bundle(), self)
    }

    /// Why the packages cannot be installed.
    fn error(&self) -> String {
        format!("{:#}", self.install().unwrap_err())
    }

    fn is_complete(&self) -> bool {
        is_complete(self.root.path(), &self.bundle())
    }

    /// Directories of installations that did not end.
    fn leftovers(&self) -> usize {
        let entries = fs::read_dir(self.root.path()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(PARTIAL)).count()
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
    fn fetch(&self, pin: &Pin, scratch: &Path) -> Result<PathBuf> {
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
        Ok(wheel)
    }
}

#[test]
fn installs_then_does_nothing() {
    let index = Index::new();
    assert!(!index.is_complete());
    let directory = index.install().unwrap();
    assert_eq!(index.downloads(), ["compiler", "headers", "library"]);
    let header = directory.join("nvidia/cu13/include/cuda.h");
    assert_eq!(fs::read_to_string(header).unwrap(), "#define CUDA\n");
    assert!(index.is_complete());
    index.install().unwrap();
    assert!(index.downloads().is_empty());
    assert_eq!(index.leftovers(), 0);
}

#[test]
fn programs_are_executable_though_the_wheel_says_nothing() {
    let index = Index::new();
    let home = index.install().unwrap().join("nvidia/cu13");
    let mode = |name: &str| fs::metadata(home.join(name)).unwrap().permissions().mode() & 0o111;
    assert_eq!(mode("bin/nvcc"), 0o111);
    assert_eq!(mode("include/cuda.h"), 0);
    let through_link = home.join("lib64/libcudart.a");
    assert!(through_link.is_file(), "lib64 leads to lib");
}

#[test]
fn an_interrupted_download_continues_with_the_missing_package() {
    let index = Index::new();
    index.breaks_at.replace(Some("headers".into()));
    let text = index.error();
    contains(&text, &["headers 1.0", "the network is gone"]);
    assert!(!index.is_complete());
    assert!(!index.at("cuda").exists(), "half installed, and visible");
    assert_eq!(index.downloads(), ["compiler", "headers"]);

    index.breaks_at.replace(None);
    index.install().unwrap();
    let continued = index.downloads();
    assert_eq!(continued, ["headers", "library"], "the first was kept");
    assert!(index.is_complete());
}

#[test]
fn a_killed_run_leaves_nothing_that_confuses_the_next() {
    let index = Index::new();
    // As after a kill while unpacking: a partial directory, and a final one without a stamp.
    fs::create_dir_all(index.at(".partial-killed/nvidia")).unwrap();
    fs::create_dir_all(index.at("cuda/nvidia/cu13/bin")).unwrap();
    fs::write(index.at("cuda/nvidia/cu13/bin/stale"), "").unwrap();
    index.install().unwrap();
    assert!(index.is_complete());
    assert!(!index.at("cuda/nvidia/cu13/bin/stale").exists());
    assert_eq!(index.leftovers(), 0);
}

#[test]
fn other_bytes_are_refused_and_not_kept() {
    let index = Index::new();
    index.forged.replace(Some("headers".into()));
    let text = index.error();
    contains(&text, &["not the pinned file", &index.packages[1].0.sha256]);
    assert!(!index.at("cuda").exists());
    let kept = fs::read_dir(index.at("wheels")).unwrap().count();
    assert_eq!(kept, 1, "only the verified one");
}

#[test]
fn a_damaged_wheel_is_downloaded_again() {
    let index = Index::installed();
    let wheel = index.packages[0].0.file_name();
    fs::write(index.at("wheels").join(wheel), "junk").unwrap();
    fs::remove_dir_all(index.at("cuda")).unwrap();
    index.install().unwrap();
    assert_eq!(index.downloads(), ["compiler"]);
}

#[test]
fn damaged_files_are_repaired_without_a_download() {
    let index = Index::installed();
    let directory = index.at("cuda");
    let header = directory.join("nvidia/cu13/include/cuda.h");
    let damages: [fn(&Path, &Path); 4] = [
        |header, _| fs::remove_file(header).unwrap(),
        |header, _| fs::write(header, "short").unwrap(),
        |_, stamp| fs::write(stamp, "{").unwrap(),
        |_, stamp| fs::remove_file(stamp).unwrap(),
    ];
    for damage in damages {
        damage(&header, &directory.join(STAMP));
        assert!(!index.is_complete());
        index.install().unwrap();
        assert!(index.is_complete());
        assert_eq!(fs::read_to_string(&header).unwrap(), "#define CUDA\n");
    }
    assert!(index.downloads().is_empty(), "the kept wheels were enough");
}

#[test]
fn new_pins_replace_an_old_installation() {
    let mut index = Index::installed();
    index.packages[1] = package("headers", "nvidia/cu13/include/new.h", "new\n");
    index.packages[1].0.version = "2.0".into();
    assert!(!index.is_complete());
    let directory = index.install().unwrap();
    assert_eq!(index.downloads(), ["headers"]);
    assert!(directory.join("nvidia/cu13/include/new.h").is_file());
    assert!(!directory.join("nvidia/cu13/include/cuda.h").exists());
}

#[test]
fn a_wheel_that_climbs_out_is_refused() {
    let index = Index::of(vec![package("evil", "../../escaped", "x")]);
    contains(&index.error(), &["outside"]);
    assert!(!index.at("escaped").exists());
}
