//! The archive of a night: a ZIP file with a manifest. ZIP's own checksums tell a damaged file.
//!
//! Who reads one reads what somebody else made: names are plain, sizes are limited before anything is unpacked, and
//! nothing is written anywhere.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::device::Device;
use super::watchdog::End;

pub(super) const FORMAT: &str = "nvfp4-gemv/first-light/2";

/// The manifest's own name.
pub(super) const MANIFEST: &str = "manifest.json";

/// Most files in an archive, bytes of one of them, and bytes of all.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 64 << 20;
const MOST_IN_ALL: u64 = 256 << 20;

/// The archive's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: String,
    /// The crate's version.
    pub(super) version: String,
    /// The commit that it was made from, where that is known.
    pub(super) commit: Option<String>,
    /// Seconds since 1970.
    pub(super) began: u64,
    pub(super) device: Device,
    pub(super) steps: Vec<Ran>,
}

/// A step, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ran {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) command: String,
    pub(super) end: End,
    pub(super) seconds: u64,
}

impl Manifest {
    pub(super) fn passed(&self, step: &str) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|ran| ran.name == step && ran.end == End::Passed)
    }
}

/// An archive in memory.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) manifest: Manifest,
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

/// Words of letters, digits and a few signs, with at most two folders: nothing that leads elsewhere.
fn plain(name: &str) -> bool {
    let word = |word: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !word.is_empty() && !word.starts_with('.') && word.bytes().all(fits)
    };
    name.len() <= 120 && name.split('/').count() <= 3 && name.split('/').all(word)
}

/// Writes an archive of these files, whole or not at all. Files are limited as they are for who reads it.
pub(super) fn write(
    to: &Path,
    manifest: &Manifest,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<()> {
    let sizes: u64 = files.values().map(|bytes| bytes.len() as u64).sum();
    ensure!(
        files.len() < MOST_FILES && sizes < MOST_IN_ALL / 2,
        "too much for an archive: {} files, {sizes} bytes",
        files.len()
    );
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    let manifest = serde_json::to_vec_pretty(manifest)?;
    let all = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    for (name, bytes) in std::iter::once((MANIFEST, manifest.as_slice())).chain(all) {
        ensure!(
            plain(name) && bytes.len() as u64 <= MOST_BYTES,
            "{name:?} does not go into an archive"
        );
        zip.start_file(name, options)?;
        zip.write_all(bytes)?;
    }
    crate::write::whole(to, zip.finish()?.into_inner())
}

/// Reads an archive, and holds its files to what its manifest says of them.
pub(super) fn read(file: &Path) -> Result<Archive> {
    let open = || {
        // A pipe or a device would be read for ever.
        ensure!(std::fs::metadata(file)?.is_file(), "not a file");
        Ok(File::open(file)?)
    };
    let opened = open().with_context(|| format!("cannot read {}", file.display()))?;
    unpack(opened).with_context(|| format!("{} is no archive of a first night", file.display()))
}

fn unpack(file: File) -> Result<Archive> {
    ensure!(
        file.metadata()?.len() <= MOST_IN_ALL,
        "larger than {MOST_IN_ALL} bytes"
    );
    let mut zip = ZipArchive::new(file)?;
    ensure!(
        zip.len() <= MOST_FILES,
        "{} files, of {MOST_FILES} at most",
        zip.len()
    );
    let mut files = BTreeMap::new();
    let mut left = MOST_IN_ALL;
    for i in 0..zip.len() {
        let entry = zip.by_index(i)?;
        let name = entry.name()?.into_owned();
        ensure!(plain(&name), "a file is named {name:?}");
        ensure!(
            entry.is_file() && !entry.encrypted(),
            "{name:?} is not a plain file"
        );
        let most = MOST_BYTES.min(left);
        let mut bytes = Vec::new();
        // Sizes in the directory are not believed.
        entry
            .take(most + 1)
            .read_to_end(&mut bytes)
            .with_context(|| format!("{name:?}"))?;
        ensure!(
            bytes.len() as u64 <= most,
            "{name:?} unpacks to more than {most} bytes"
        );
        left -= bytes.len() as u64;
        ensure!(
            files.insert(name.clone(), bytes).is_none(),
            "{name:?} is in it twice"
        );
    }
    let manifest = files
        .remove(MANIFEST)
        .with_context(|| format!("no {MANIFEST}"))?;
    let manifest: Manifest = serde_json::from_slice(&manifest).context(MANIFEST)?;
    ensure!(
        manifest.format == FORMAT,
        "its format is {:?}, and not {FORMAT:?}",
        manifest.format
    );
    Ok(Archive { manifest, files })
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::testing::contains;

    pub(in crate::first_light) fn manifest() -> Manifest {
        Manifest {
            format: FORMAT.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: None,
            began: 1,
            device: Device::imagined((12, 0)),
            steps: Vec::new(),
        }
    }

    /// A ZIP file of these entries, as they are.
    fn raw(folder: &Path, entries: &[(&str, &[u8])]) -> PathBuf {
        let file = folder.join("raw.zip");
        let mut zip = ZipWriter::new(File::create(&file).unwrap());
        for (name, bytes) in entries {
            let options =
                SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
            zip.start_file(*name, options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
        file
    }

    fn refusal(file: &Path) -> String {
        format!("{:#}", read(file).unwrap_err())
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.zip");
        let files = BTreeMap::from([
            ("logs/x.txt".to_owned(), b"text".to_vec()),
            ("y".to_owned(), vec![0; 1000]),
        ]);
        write(&file, &manifest(), &files).unwrap();
        let archive = read(&file).unwrap();
        assert_eq!(archive.files, files);
        assert_eq!(archive.manifest, manifest());
        let leads_elsewhere = [("../x".to_owned(), vec![])].into();
        assert!(write(&file, &manifest(), &leads_elsewhere).is_err());
    }

    #[test]
    fn archives_that_lead_elsewhere_or_are_damaged_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of_manifest = |manifest: &Manifest| serde_json::to_vec(manifest).unwrap();
        let usual = of_manifest(&manifest());
        for name in [
            "../x",
            "/etc/x",
            "a/../b",
            "a//b",
            ".hidden",
            "a\\b",
            "a/b/c/d",
            "a b",
            "C:x",
            &"x".repeat(200),
        ] {
            let file = raw(folder.path(), &[(MANIFEST, &usual), (name, b"")]);
            contains(&refusal(&file), &["a file is named"]);
        }
        let file = raw(folder.path(), &[("x", b"")]);
        contains(&refusal(&file), &["no manifest.json"]);
        let mut other = manifest();
        other.format = "nvfp4-gemv/first-light/1".into();
        let file = raw(folder.path(), &[(MANIFEST, &of_manifest(&other))]);
        contains(&refusal(&file), &["first-light/1"]);
        // A bit of the last file's content, behind its header of 30 bytes and its name.
        let file = raw(folder.path(), &[(MANIFEST, &usual), ("x", b"abcdefgh")]);
        let mut bytes = std::fs::read(&file).unwrap();
        let header = bytes.windows(4).rposition(|four| four == b"PK\x03\x04");
        bytes[header.unwrap() + 34] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        contains(&refusal(&file), &["\"x\""]);
        // Small in the archive, large outside.
        let file = raw(
            folder.path(),
            &[("zeros", &vec![0; MOST_BYTES as usize + 1])],
        );
        assert!(file.metadata().unwrap().len() < 1 << 20);
        contains(&refusal(&file), &["unpacks to more"]);
        let names: Vec<String> = (0..=MOST_FILES).map(|i| format!("f{i}")).collect();
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        contains(
            &refusal(&raw(folder.path(), &many)),
            &["files, of 256 at most"],
        );
        let text = folder.path().join("text");
        std::fs::write(&text, "no archive").unwrap();
        contains(&refusal(&text), &["no archive of a first night"]);
        contains(&refusal(folder.path()), &["not a file"]);
    }
}
