//! Checks the machine code of the kernels: what no test of results can see.

mod alone;
mod budget;
mod catalogue;
mod dump;
mod estimate;
mod figure_budget;
mod figures;
mod flow;
mod gpu;
mod measured;
mod report;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use nvfp4_gemv_targets::arch;

use self::budget::Budget;
use self::catalogue::Catalogue;
use self::measured::Measured;
use self::report::Report;
use crate::cargo::Cargo;
use crate::toolchain;
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct SassArgs {
    /// Objects, cubins or libraries to check, or directories with them; without any, those
    /// of the program, which is built in release mode
    objects: Vec<PathBuf>,
    /// What is expected
    #[arg(long, default_value = "tools/xtask/sass-budget.toml")]
    budget: PathBuf,
    /// Measured times to print beside the estimates
    #[arg(long, default_value = "tools/xtask/sass-measured.toml")]
    measured: PathBuf,
    /// Print one JSON object: files, kernels with their opcodes, figures and estimates, the GPUs and
    /// their sources, measured times, findings
    #[arg(long)]
    json: bool,
}

pub(crate) fn command(workspace: &Workspace, args: &SassArgs) -> Result<()> {
    let mut budget = parse_file(workspace, &args.budget, Budget::parse)?;
    let measured = parse_file(workspace, &args.measured, Measured::parse)?;
    let toolchain = toolchain::ensure(workspace)?;
    let cuobjdump = toolchain::cuobjdump(workspace, &toolchain)?;

    let cargo = Cargo::new(workspace).with_toolchain(&toolchain);
    let (program, out_dir) = cargo.program_and_out_dir(&["--release"])?;
    let places = if args.objects.is_empty() {
        // The architectures that the build was asked for must be there.
        if let Ok(archs) = std::env::var("NVFP4_GEMV_ARCHS") {
            budget.archs = arch::parse(&archs, arch::gpus_here).map_err(anyhow::Error::msg)?;
            budget.alone.clear();
        }
        vec![out_dir.join("libnvfp4_gemv_kernels.a")]
    } else {
        budget.alone.clear();
        args.objects.clone()
    };
    let mut files = device_objects(&places)?;
    let sources = workspace.root().join("csrc/kernels");
    let folder = workspace.folder("sass");
    files.extend(alone::compile(
        &toolchain.nvcc,
        &sources,
        &folder,
        &budget.alone,
    )?);
    let mut kernels = dump::read(&cuobjdump, &files)?;
    let catalogue = Catalogue::ask(&program, &budget.archs)?;
    for kernel in &mut kernels {
        kernel.examine(&catalogue);
    }
    let findings = budget.examine(&kernels);
    let report = Report {
        files: &files,
        kernels: &kernels,
        measured: &measured,
        problem: &catalogue.problem,
        findings: &findings,
    };
    if args.json {
        println!("{:#}", report.json());
    } else {
        report.print();
    }
    if !findings.is_empty() {
        bail!(
            "{} findings against {}",
            findings.len(),
            args.budget.display()
        );
    }
    Ok(())
}

/// The default is relative to the repository, a given path to the current directory.
fn parse_file<T>(
    workspace: &Workspace,
    given: &Path,
    parse: impl Fn(&str) -> Result<T>,
) -> Result<T> {
    let path = if given.exists() {
        given.to_path_buf()
    } else {
        workspace.root().join(given)
    };
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Files with device code. A build makes a library of its objects: where there are objects, the
/// library would show every kernel twice.
fn device_objects(places: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for place in places {
        if place.is_dir() {
            let mut found = Vec::new();
            collect(place, &mut found)?;
            let is = |file: &PathBuf, ends: &[&str]| {
                let end = file.extension().and_then(|end| end.to_str());
                end.is_some_and(|end| ends.contains(&end))
            };
            let objects: Vec<PathBuf> = found
                .iter()
                .filter(|file| is(file, &["o", "obj", "cubin", "fatbin"]))
                .cloned()
                .collect();
            if objects.is_empty() {
                files.extend(found.into_iter().filter(|file| is(file, &["a", "lib"])));
            } else {
                files.extend(objects);
            }
        } else {
            files.push(place.clone());
        }
    }
    files.sort();
    if files.is_empty() {
        let places = places.iter().map(|path| path.display().to_string());
        let places: Vec<String> = places.collect();
        bail!("no object file below {}", places.join(", "));
    }
    Ok(files)
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
