//! `cargo xtask bench picture`: pictures for README and documentation, drawn from measurements that are committed.
//!
//! A picture is a file that stands alone: as wide as a phone, without scripts, in the reader's light or dark colours.

mod others;
mod over_n;
mod shares;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use nvfp4_gemv_documents::document::{Case, Document, Measured};

use self::others::Others;
use super::svg::Svg;
use super::view::{best, isolated};
use crate::workspace::Workspace;

/// The committed measurements.
const BENCH: &str = "benches/results/nvidia-h200.json";
/// The committed measurements of up to 128 vectors, with cuBLAS in the same rounds.
const VECTORS: &str = "benches/results/nvidia-h200-vectors.json";
/// The committed times of other libraries, beside [`BENCH`].
const OTHERS: &str = "benches/results/nvidia-h200-others.json";

/// All pictures have this width. Text of 12 pixels stays readable where a page has margins on a phone.
const WIDTH: f64 = 360.0;
/// Left of headings and captions, and right of what is drawn.
const MARGIN: f64 = 12.0;

#[derive(Debug, Args)]
pub(crate) struct PictureArgs {
    /// What `nvfp4-gemv bench --json` measured [default: benches/results/nvidia-h200.json, and with --over-n
    /// nvidia-h200-vectors.json]
    #[arg(long, value_name = "FILE")]
    bench: Option<PathBuf>,
    /// What benches/others.py measured on the same model of GPU [default: none with --bench; else
    /// benches/results/nvidia-h200-others.json, where it is there]
    #[arg(long, value_name = "FILE", conflicts_with = "over_n")]
    others: Option<PathBuf>,
    /// Draw the time against the number of vectors, instead of one vector against other libraries
    #[arg(long)]
    over_n: bool,
    /// Where the picture goes [default: docs/pictures/shares.svg, time-over-n.svg with --over-n]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn command(workspace: &Workspace, args: &PictureArgs) -> Result<()> {
    let root = workspace.root();
    let picture = draw(root, args)?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => root.join("docs/pictures").join(match args.over_n {
            true => "time-over-n.svg",
            false => "shares.svg",
        }),
    };
    crate::write::whole(&out, &picture)?;
    println!("written: {}", out.display());
    Ok(())
}

fn draw(root: &Path, args: &PictureArgs) -> Result<String> {
    let committed = if args.over_n { VECTORS } else { BENCH };
    let bench = args.bench.clone().unwrap_or_else(|| root.join(committed));
    let document = super::read(&bench)?;
    let picture = if args.over_n {
        over_n::draw(&document)
    } else {
        shares::draw(&document, others(root, args)?.as_ref())
    };
    picture.with_context(|| format!("drawing {}", bench.display()))
}

/// Times of other libraries: from the file that was named, or committed beside the committed measurements.
fn others(root: &Path, args: &PictureArgs) -> Result<Option<Others>> {
    let file = match (&args.others, &args.bench) {
        (Some(file), _) => file.clone(),
        (None, Some(_)) => return Ok(None),
        (None, None) => root.join(OTHERS),
    };
    if args.others.is_none() && !file.exists() {
        return Ok(None);
    }
    Ok(Some(others::read(&file)?))
}

/// The scales of checkpoints, as they come.
const LAYOUT: &str = "linear";

/// The path that the library picks, each launch on its own.
fn picked(case: &Case) -> Result<&Measured> {
    let picked = isolated(case).find(|path| path.picked);
    picked
        .or_else(|| best(case))
        .with_context(|| format!("no path of {} was measured", super::view::problem(case)))
}

/// The GPU, its driver and the day, in one line.
fn measured_on(document: &Document) -> String {
    let device = &document.device;
    let driver = device.driver.iter().map(|of| format!("driver {of}"));
    let parts = std::iter::once(device.name.clone()).chain(driver);
    let parts = parts.chain([day(&document.date_utc).to_owned()]);
    parts.collect::<Vec<_>>().join(", ")
}

/// The day of a time in RFC 3339.
fn day(date_utc: &str) -> &str {
    date_utc.split('T').next().unwrap_or(date_utc)
}

/// Whether a case is of the kind that pictures show: each has one kind of results.
fn is_plain(case: &Case) -> bool {
    case.layout == LAYOUT && case.output_type == "f16" && case.select.is_none()
}

/// A measurement that was slowed down on purpose is a rehearsal, and nothing to show. Captions say that weights come
/// from memory: those that are the same ones every time may not.
fn check_is_real(document: &Document) -> Result<()> {
    if document.method.cold_bytes == 0 {
        bail!(
            "it was measured with --cold 0: the weights were the same ones every time, as a cache may hold them"
        );
    }
    if let Some(path) = document.slowed_percent.keys().next() {
        bail!("{path} was slowed down on purpose");
    }
    Ok(())
}

/// A picture that stands alone.
fn finish(svg: Svg, title: &str, description: &str) -> String {
    svg.finish_file(title, description, include_str!("picture.css"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(over_n: bool) -> PictureArgs {
        PictureArgs {
            bench: None,
            others: None,
            over_n,
            out: None,
        }
    }

    #[test]
    fn committed_pictures_show_committed_measurements() {
        let workspace = Workspace::locate().unwrap();
        for (over_n, name) in [(false, "shares.svg"), (true, "time-over-n.svg")] {
            let file = workspace.root().join("docs/pictures").join(name);
            let committed = std::fs::read_to_string(&file).unwrap();
            let drawn = draw(workspace.root(), &args(over_n)).unwrap();
            let flag = if over_n { " --over-n" } else { "" };
            assert!(
                committed == drawn,
                "{name} is not what `cargo xtask bench picture{flag}` draws"
            );
        }
    }

    #[test]
    fn others_are_those_that_belong_to_the_measurement() {
        let root = tempfile::tempdir().unwrap();
        let found = |args: &PictureArgs| others(root.path(), args);
        assert!(found(&args(false)).unwrap().is_none());
        let file = root.path().join(OTHERS);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, others::tests::text()).unwrap();
        assert!(found(&args(false)).unwrap().is_some());
        // Other libraries' times are not known beside another measurement.
        let mut other = args(false);
        other.bench = Some("bench.json".into());
        assert!(found(&other).unwrap().is_none());
        other.others = Some(root.path().join("gone.json"));
        assert!(found(&other).is_err());
    }

    #[test]
    fn rehearsals_are_not_drawn() {
        let mut document = super::super::testing::document();
        assert!(check_is_real(&document).is_ok());
        document.slowed_percent.insert("cuda-core".into(), 5);
        assert!(shares::draw(&document, None).is_err());
        assert!(over_n::draw(&document).is_err());
    }

    #[test]
    fn what_may_come_from_a_cache_is_not_drawn() {
        let mut document = super::super::testing::vectors();
        assert!(over_n::draw(&document).is_ok());
        document.method.cold_bytes = 0;
        for error in [over_n::draw(&document), shares::draw(&document, None)] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("--cold 0"), "{error}");
        }
    }

    /// Two points for one number of vectors, of different results.
    #[test]
    fn other_results_are_no_points_of_a_picture() {
        let document = super::super::testing::vectors();
        let drawn = over_n::draw(&document).unwrap();
        let mut more = document.clone();
        for (output, select) in [("f32", None), ("f16", Some("late".to_owned()))] {
            let mut other = document.cases[0].clone();
            (other.output_type, other.select) = (output.into(), select);
            more.cases.push(other);
        }
        assert_eq!(over_n::draw(&more).unwrap(), drawn);
    }

    #[test]
    fn captions_name_gpu_driver_and_day() {
        let document = super::super::testing::document();
        assert_eq!(
            measured_on(&document),
            "Test GPU <1>, driver 580.1.2, 2026-11-21"
        );
    }
}
