//! Installs a bundle of wheels into a directory, so that interruption at any moment is harmless.
//!
//! ```text
//! <root>/.lock            held while installing: two installations at a time wait for each other
//! <root>/wheels/*.whl     verified downloads: kept, so that nothing is downloaded twice
//! <root>/.partial-*       work in progress; left behind only by an interruption, removed by the next run
//! <root>/cuda/stamp.json  the pins, and every file with its size; the directory appears in one rename
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nvfp4_gemv_targets::places::HOME;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::toolchain::pins::{Bundle, Pin};

/// The download, which the tests replace.
pub(crate) trait Fetch {
    /// Puts the wheel anywhere below `scratch` and returns its path. Need not verify it.
    fn fetch(&self, pin: &Pin, scratch: &Path) -> Result<PathBuf>;
}

#[derive(Debug, Deserialize, Serialize)]
struct Stamp {
    pins: Vec<Pin>,
    files: BTreeMap<String, u64>,
}

const STAMP: &str = "stamp.json";
const PARTIAL: &str = ".partial-";

/// Whether the bundle is there, undamaged and of these pins. Reads no file but the stamp.
pub(crate) fn is_complete(root: &Path, bundle: &Bundle) -> bool {
    let directory = root.join(bundle.directory);
    let Ok(text) = fs::read_to_string(directory.join(STAMP)) else {
        return false;
    };
    let Ok(stamp) = serde_json::from_str::<Stamp>(&text) else {
        return false;
    };
    stamp.pins == bundle.pins
        && stamp.files.iter().all(|(name, &bytes)| {
            fs::metadata(directory.join(name)).is_ok_and(|file| file.len() == bytes)
        })
}

/// Installs the bundle unless it is there, and returns its directory.
pub(crate) fn install(root: &Path, bundle: &Bundle, fetch: &dyn Fetch) -> Result<PathBuf> {
    let directory = root.join(bundle.directory);
    if is_complete(root, bundle) {
        return Ok(directory);
    }
    let wheels = root.join("wheels");
    fs::create_dir_all(&wheels).with_context(|| format!("cannot create {}", wheels.display()))?;
    let lock = root.join(".lock");
    let lock = File::create(&lock).with_context(|| format!("cannot create {}", lock.display()))?;
    lock.lock().context("cannot lock the toolchain directory")?;
    // Another process may have done the work while this one waited.
    if is_complete(root, bundle) {
        return Ok(directory);
    }
    remove_leftovers(root)?;

    eprintln!(
        "{} {}: {} packages, {:.1} MB to download where not here already",
        if directory.exists() {
            "Repairing"
        } else {
            "Installing"
        },
        bundle.purpose,
        bundle.pins.len(),
        bundle.pins.iter().map(|pin| pin.bytes).sum::<u64>() as f64 / 1e6
    );
    let wheel = |pin: &Pin| {
        wheel(root, &wheels, pin, fetch)
            .with_context(|| format!("installing {} {}", pin.name, pin.version))
    };
    let verified: Vec<PathBuf> = bundle.pins.iter().map(wheel).collect::<Result<_>>()?;
    let partial = partial_dir(root)?;
    let mut stamp = Stamp {
        pins: bundle.pins.clone(),
        files: BTreeMap::new(),
    };
    for wheel in &verified {
        unpack(wheel, partial.path(), &mut stamp.files)
            .with_context(|| format!("unpacking {}", wheel.display()))?;
    }
    link_lib64(partial.path())?;
    let text = serde_json::to_vec(&stamp).context("cannot write the stamp")?;
    fs::write(partial.path().join(STAMP), text).context("cannot write the stamp")?;
    replace(root, &directory, partial)?;
    eprintln!("Installed in {}", directory.display());
    Ok(directory)
}

/// Returns a verified wheel: the kept one, or a new download.
fn wheel(root: &Path, wheels: &Path, pin: &Pin, fetch: &dyn Fetch) -> Result<PathBuf> {
    let kept = wheels.join(pin.file_name());
    if kept.is_file() {
        if sha256(&kept)? == pin.sha256 {
            return Ok(kept);
        }
        eprintln!("{} is damaged, downloading again", kept.display());
        fs::remove_file(&kept).with_context(|| format!("cannot remove {}", kept.display()))?;
    }
    let scratch = partial_dir(root)?;
    let fetched = fetch.fetch(pin, scratch.path())?;
    let sum = sha256(&fetched)?;
    if sum != pin.sha256 {
        bail!(
            "the download is not the pinned file, and was discarded\n  \
             expected sha256 {}\n  received sha256 {sum}\n\
             Another index or a proxy may have served a different file under this name.",
            pin.sha256
        );
    }
    fs::rename(&fetched, &kept)
        .with_context(|| format!("cannot move the download to {}", kept.display()))?;
    Ok(kept)
}

fn sha256(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hex(&Sha256::digest(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unpack(wheel: &Path, into: &Path, files: &mut BTreeMap<String, u64>) -> Result<()> {
    let mut archive = ZipArchive::new(File::open(wheel)?).context("not a wheel")?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let Some(name) = entry.enclosed_name() else {
            bail!("{:?} would be written outside the directory", entry.name());
        };
        let path = into.join(&name);
        if entry.is_dir() {
            fs::create_dir_all(&path)?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let bytes = io::copy(&mut entry, &mut file)
            .with_context(|| format!("cannot write {}", path.display()))?;
        if is_program(&name, entry.unix_mode()) {
            make_executable(&path)?;
        }
        files.insert(name.to_string_lossy().into_owned(), bytes);
    }
    Ok(())
}

/// Some wheels carry no mode bits, so the place counts too.
fn is_program(name: &Path, mode: Option<u32>) -> bool {
    let in_bin = name.parent().is_some_and(|parent| parent.ends_with("bin"));
    let is_data = name.extension().is_some();
    mode.is_some_and(|mode| mode & 0o111 != 0) || (in_bin && !is_data)
}

fn make_executable(path: &Path) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

/// The wheels have `lib`; nvcc, when it links, and many build scripts look in `lib64`.
fn link_lib64(directory: &Path) -> Result<()> {
    let home = directory.join(HOME);
    if home.join("lib").is_dir() {
        symlink("lib", home.join("lib64")).context("cannot link lib64")?;
    }
    Ok(())
}

fn partial_dir(root: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(PARTIAL)
        .tempdir_in(root)
        .with_context(|| format!("cannot create a directory in {}", root.display()))
}

/// Swaps the finished directory in. Only renames touch the final name.
fn replace(root: &Path, directory: &Path, partial: tempfile::TempDir) -> Result<()> {
    let old = partial_dir(root)?;
    if directory.exists() {
        fs::rename(directory, old.path().join("old"))
            .with_context(|| format!("cannot move the old {} away", directory.display()))?;
    }
    // A temporary directory is private to its user; this one is no longer temporary.
    fs::set_permissions(partial.path(), Permissions::from_mode(0o755))
        .context("cannot set permissions")?;
    fs::rename(partial.path(), directory)
        .with_context(|| format!("cannot move the installation to {}", directory.display()))?;
    // The temporary path is no longer there to be removed.
    let _ = partial.keep();
    Ok(())
}

/// Removes the leftovers of an interrupted run. The lock is held, so nobody works in these.
fn remove_leftovers(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
