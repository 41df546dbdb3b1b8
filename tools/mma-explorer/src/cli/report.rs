use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mma_explorer::report;
use mma_explorer::results::Results;
use serde_json::json;

use super::Report;

/// Make a report of what `run` and `sweep` measured: JSON, Markdown, and a page with plots
///
/// FILEs are what `run --json` and `sweep --json` printed, all of one GPU. The report is report.json, report.md and
/// report.html, which needs no other file. No GPU is needed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What was measured
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Where the report goes
    #[arg(long, value_name = "FOLDER", default_value = "mma-explorer-report")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut merged: Option<Results> = None;
    for file in &args.files {
        let read = || -> Result<Results> { Ok(Results::parse(&fs::read_to_string(file)?)?) };
        let results = read().with_context(|| format!("cannot read {}", file.display()))?;
        merged = Some(match merged {
            Some(before) => before.merge(results)?,
            None => results,
        });
    }
    // At least one file is asked for.
    let results = merged.context("no file")?;
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    let json = serde_json::to_string(&results)? + "\n";
    let files = [
        ("report.json", json),
        ("report.md", report::markdown(&results)),
        ("report.html", report::html(&results)),
    ];
    let mut text = String::new();
    for (name, content) in &files {
        let path = args.out.join(name);
        write(&path, content)?;
        text += &format!("{}\n", path.display());
    }
    let names: Vec<PathBuf> = files.iter().map(|(name, _)| args.out.join(name)).collect();
    Ok(Report::new(
        text,
        json!({ "variants": results.variants.len(), "files": names }),
    ))
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
