//! Units compiled for architectures by themselves. The library has code for families of architectures, and no other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nvfp4_gemv_targets::units;

use crate::process;
use crate::sass::budget::Alone;

/// A fatbin, which names the architecture, in `folder` for each unit and architecture.
pub(crate) fn compile(
    nvcc: &Path,
    sources: &Path,
    folder: &Path,
    all: &[Alone],
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut fatbins = Vec::new();
    for Alone { unit, archs } in all {
        let found = units::find(unit).with_context(|| format!("there is no unit {unit}"))?;
        for arch in archs {
            anyhow::ensure!(found.exists_for(arch), "{unit} has no code for {arch}");
            let fatbin = folder.join(format!("{unit}-{arch}.fatbin"));
            let mut command = Command::new(nvcc);
            command
                .args(["-x", "cu", "-std=c++17", "-O3", "-fatbin"])
                .arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"))
                .args(found.part.map(|part| format!("-D{part}")))
                .arg("-o")
                .arg(&fatbin)
                .arg(sources.join(format!("{}.cuh", found.source)));
            process::run(&mut command)?;
            fatbins.push(fatbin);
        }
    }
    Ok(fatbins)
}
