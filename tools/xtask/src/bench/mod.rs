//! `cargo xtask bench`: measures, and draws what was measured.

mod bars;
mod crossing;
mod curves;
mod markdown;
pub(crate) mod page;
mod picture;
pub(crate) mod program;
mod summary;
pub(crate) mod svg;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod view;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use nvfp4_gemv_documents::document::{self, Document};

use self::program::{Program, ProgramArgs};
use crate::nightly::history::{self, Record};
use crate::workspace::Workspace;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    task: Option<BenchTask>,
    /// Fewer problems: seconds on a GPU, not minutes
    #[arg(long, conflicts_with = "from")]
    quick: bool,
    /// Up to 128 vectors on four shapes, and cuBLAS with f16 weights in the same rounds: what
    /// `bench picture --over-n` draws
    #[arg(long, conflicts_with_all = ["quick", "from"])]
    vectors: bool,
    /// Where bench.json, bench.md and bench.html go [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Draw what `nvfp4-gemv bench --json` measured elsewhere, instead of measuring
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Draw this history of nightly runs too
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// More options for `nvfp4-gemv bench`
    #[arg(last = true, conflicts_with = "from")]
    args: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum BenchTask {
    /// Draw a picture of README or documentation from committed measurements, and measure nothing
    Picture(picture::PictureArgs),
}

pub(crate) fn command(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    if let Some(BenchTask::Picture(args)) = &args.task {
        return picture::command(workspace, args);
    }
    let history = match &args.history {
        Some(file) => history::read(file)?,
        None => Vec::new(),
    };
    let document = match &args.from {
        Some(file) => read(file)?,
        None => {
            let program = Program::find(workspace, &args.program)?;
            if let Some(why) = program.why_no_gpu()? {
                println!("no GPU ({why}): measuring a few problems on the CPU");
            }
            let suite: &[&str] = match (args.vectors, args.quick) {
                (true, _) => &["--suite", "vectors", "--cublas"],
                (false, true) => &["--suite", "quick"],
                (false, false) => &["--suite", "all"],
            };
            let suite: Vec<OsString> = suite.iter().map(OsString::from).collect();
            program.bench(&[&suite[..], &args.args].concat())?
        }
    };
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| workspace.folder("bench"));
    write(&out, &document, &history, &[])?;
    println!("written: {}", out.join("bench.{json,md,html}").display());
    check_is_whole(&document)
}

/// Whether all was measured that was asked for.
fn check_is_whole(document: &Document) -> Result<()> {
    match &document.failed[..] {
        [] => Ok(()),
        [first, ..] => bail!(
            "{} problems could not be measured; the first is {}: {}",
            document.failed.len(),
            first.problem,
            first.why
        ),
    }
}

/// A document that `nvfp4-gemv bench --json` printed.
pub(crate) fn read(file: &Path) -> Result<Document> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    parse(&text).with_context(|| format!("in {}", file.display()))
}

/// The schema first: of another one, nothing else can be said to be wrong.
fn parse(text: &str) -> Result<Document> {
    let value: serde_json::Value = serde_json::from_str(text).context("this is no JSON")?;
    check_text(&value)?;
    match value["schema"].as_str() {
        Some(document::SCHEMA) => {}
        Some(other) => bail!("the schema is {other:?}, expected {}", document::SCHEMA),
        None => bail!("there is no schema; is this what `nvfp4-gemv bench --json` printed?"),
    }
    let document: Document = serde_json::from_value(value)?;
    for case in &document.cases {
        let rounds = case.ceiling.samples_us.len();
        let samples = case.paths.iter().map(|path| &path.samples_us);
        let cublas = case.cublas.iter().map(|cublas| &cublas.times.samples_us);
        let all = samples.chain([&case.ceiling.samples_us]).chain(cublas);
        for samples in all {
            if samples.is_empty() || samples.len() != rounds {
                bail!("{}: rounds are missing", view::problem(case));
            }
            if samples.iter().any(|us| !us.is_finite() || *us <= 0.0) {
                bail!("{}: a time is not positive", view::problem(case));
            }
        }
    }
    Ok(document)
}

/// Names become cells of tables, headings and lines on a terminal. The program prints none with a newline or
/// an escape character in it, and nothing here would print one of those well.
fn check_text(value: &serde_json::Value) -> Result<()> {
    use serde_json::Value;
    match value {
        Value::String(text) if text.contains(char::is_control) => {
            bail!("{text:?} has a control character")
        }
        Value::Array(values) => values.iter().try_for_each(check_text),
        Value::Object(entries) => entries.iter().try_for_each(|(key, value)| {
            check_text(&Value::String(key.clone()))?;
            check_text(value)
        }),
        _ => Ok(()),
    }
}

/// Writes the document as JSON, Markdown and a page; `findings` are the page's first words.
pub(crate) fn write(
    out: &Path,
    document: &Document,
    history: &[Record],
    findings: &[page::Finding],
) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let put = |name: &str, text: String| crate::write::whole(&out.join(name), &text);
    put("bench.json", serde_json::to_string(document)? + "\n")?;
    put("bench.md", markdown::render(document))?;
    put("bench.html", page::render(document, history, findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_checked() {
        let document = testing::document();
        let text = serde_json::to_string(&document).unwrap();
        assert_eq!(parse(&text).unwrap(), document);
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(error("{").contains("no JSON"));
        assert!(error("{}").contains("no schema"));
        let newer = text.replace("bench/2", "bench/3");
        assert!(error(&newer).contains("nvfp4-gemv/bench/3"));
        let mut short = document.clone();
        short.cases[0].paths[0].samples_us.pop();
        let short = serde_json::to_string(&short).unwrap();
        assert!(error(&short).contains("rounds are missing"));
        let mut forged = document.clone();
        forged.device.name = "GPU\n# All is well\u{1b}[2J".into();
        let forged = serde_json::to_string(&forged).unwrap();
        assert!(error(&forged).contains(r"GPU\n# All is well\u{1b}[2J"));
        let mut short = testing::vectors();
        if let Some(cublas) = &mut short.cases[0].cublas {
            cublas.times.samples_us.pop();
        }
        let short = serde_json::to_string(&short).unwrap();
        assert!(error(&short).contains("rounds are missing"));
        let mut zero = document;
        zero.cases[0].ceiling.samples_us[0] = 0.0;
        let zero = serde_json::to_string(&zero).unwrap();
        assert!(error(&zero).contains("not positive"));
    }

    /// Both the page and the exit code say so.
    #[test]
    fn what_was_not_measured_is_said() {
        let mut document = testing::document();
        check_is_whole(&document).unwrap();
        document.failed.push(document::Failed {
            problem: "16x16 n=1 nvfp4 linear".into(),
            why: "the GPU is gone".into(),
        });
        let error = check_is_whole(&document).unwrap_err().to_string();
        let out = tempfile::tempdir().unwrap();
        write(out.path(), &document, &[], &[]).unwrap();
        let page = fs::read_to_string(out.path().join("bench.md")).unwrap();
        for text in [error, page] {
            assert!(
                text.contains("16x16 n=1 nvfp4 linear: the GPU is gone"),
                "{text}"
            );
        }
    }

    #[test]
    fn three_files_are_written() {
        let out = tempfile::tempdir().unwrap();
        let place = out.path().join("a/b");
        write(&place, &testing::document(), &[], &[]).unwrap();
        assert_eq!(
            read(&place.join("bench.json")).unwrap(),
            testing::document()
        );
        for name in ["bench.md", "bench.html"] {
            assert!(
                fs::read_to_string(place.join(name))
                    .unwrap()
                    .contains("Test GPU")
            );
        }
    }
}
