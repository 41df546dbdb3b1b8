//! Files of tuned configurations: read with suspicion, written whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use super::TuneError;
use crate::file::FileError;
use crate::input::{self, InputError};
use crate::path::measured::{Gpu, Machine, Measurements};

/// More than any file of tuned configurations has.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a file that was made on `machine`.
///
/// # Errors
/// [`TuneError::Corrupt`], [`TuneError::Foreign`], [`TuneError::Stale`], [`TuneError::Io`].
pub(super) fn load(path: &Path, machine: &Machine) -> Result<Measurements, TuneError> {
    let table = read(path)?;
    let found = &table.machine;
    if found.gpu != machine.gpu {
        return Err(TuneError::Foreign {
            path: path.into(),
            found: describe(&found.gpu),
            expected: describe(&machine.gpu),
        });
    }
    for (what, found, expected) in [
        ("driver CUDA", &found.driver, &machine.driver),
        ("nvfp4-gemv", &found.crate_version, &machine.crate_version),
        ("kernels", &found.kernels, &machine.kernels),
    ] {
        if found != expected {
            return Err(TuneError::Stale {
                path: path.into(),
                what,
                found: found.clone(),
                expected: expected.clone(),
            });
        }
    }
    Ok(table)
}

/// Reads a file of any machine.
pub(super) fn read(path: &Path) -> Result<Measurements, TuneError> {
    let corrupt = |reason: String| TuneError::Corrupt {
        path: path.into(),
        reason,
    };
    let bytes = input::read(path, MOST_BYTES).map_err(|error| match error {
        InputError::Io(source) => TuneError::Io {
            path: path.into(),
            source,
        },
        other => TuneError::File(FileError::of_input(path, other)),
    })?;
    let text = String::from_utf8(bytes).map_err(|_| corrupt("it is not text".into()))?;
    Measurements::from_json(&text).map_err(corrupt)
}

fn describe(gpu: &Gpu) -> String {
    let (major, minor) = gpu.compute_capability;
    format!(
        "{} (compute capability {major}.{minor}, {} SMs)",
        gpu.name, gpu.multiprocessors
    )
}

/// Writes a file: into another one beside it, which then takes its name. A reader finds the old file or
/// the new one, whatever happens meanwhile.
pub(super) fn save(path: &Path, table: &Measurements) -> Result<(), TuneError> {
    let io = |source| TuneError::Io {
        path: path.into(),
        source,
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        file.write_all(table.to_json().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        // Where it was made at all; the first error says more than one of this.
        let _ = fs::remove_file(&temporary);
        io(error)
    })
}
