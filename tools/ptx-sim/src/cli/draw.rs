//! `ptx-sim draw`.

use std::io::Write;
use std::path::PathBuf;

use ptx_sim::files::{self, Existing};
use ptx_sim::trace::draw::{DrawOptions, draw};
use ptx_sim::{SimError, Trace};

#[derive(clap::Args)]
pub(super) struct Draw {
    /// The trace.
    trace: PathBuf,
    /// The picture to write.
    #[arg(short, long)]
    out: PathBuf,
    /// Replace the picture if it is there.
    #[arg(long)]
    force: bool,
    /// CTAs to draw, by their linear number; the first four without it.
    #[arg(long, value_delimiter = ',')]
    cta: Vec<u32>,
    /// Warps to draw; all without it.
    #[arg(long, value_delimiter = ',')]
    warps: Vec<u64>,
    /// Steps to draw, as FROM..TO.
    #[arg(long, value_parser = range)]
    steps: Option<(u64, u64)>,
    /// Names a row: `--label 'warp 4=producer'`, or an mbarrier by its address,
    /// `--label '0x400=full[0]'`.
    #[arg(long, value_parser = label)]
    label: Vec<(String, String)>,
    /// The heading.
    #[arg(long)]
    title: Option<String>,
    /// Width in pixels.
    #[arg(long, default_value_t = DrawOptions::default().width)]
    width: u32,
}

fn range(s: &str) -> Result<(u64, u64), String> {
    let ends = s.split_once("..").ok_or("not FROM..TO")?;
    let number = |s: &str| s.parse().map_err(|_| format!("`{s}` is not a step"));
    Ok((number(ends.0)?, number(ends.1)?))
}

fn label(s: &str) -> Result<(String, String), String> {
    let (row, name) = s.split_once('=').ok_or("not ROW=NAME")?;
    Ok((row.trim().to_string(), name.trim().to_string()))
}

pub(super) fn command(d: &Draw) -> Result<(), SimError> {
    let fail = |e: &dyn std::fmt::Display| SimError::Io {
        path: d.trace.display().to_string(),
        message: e.to_string(),
    };
    let existing = if d.force {
        Existing::Replace
    } else {
        Existing::Refuse
    };
    files::check_output(&d.out, existing, &[&d.trace])?;
    let trace = Trace::from_chrome(&files::read_text(&d.trace)?).map_err(|e| fail(&e))?;
    let options = DrawOptions {
        width: d.width,
        title: d.title.clone(),
        ctas: d.cta.clone(),
        warps: d.warps.clone(),
        steps: d.steps,
        labels: d.label.iter().cloned().collect(),
    };
    let svg = draw(&trace, &options).map_err(|e| fail(&e))?;
    let mut out = files::create(&d.out, existing)?;
    out.write_all(svg.as_bytes())
        .map_err(super::io_error(&d.out))
}
