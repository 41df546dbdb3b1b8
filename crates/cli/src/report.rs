//! The report of a command, and how it is printed: text for people, one JSON object for scripts.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use nvfp4_gemv::checkpoint::CheckpointError;
use nvfp4_gemv::dispatch::PATH_VARIABLE;
use nvfp4_gemv::file::FileError;
use nvfp4_gemv::{Error, GemvPath, Refusal};
use nvfp4_gemv_cli::file::WriteError;
pub(crate) use nvfp4_gemv_documents::table::Table;
use nvfp4_gemv_files::output::{stdout_holds_result, stdout_was_closed};
use nvfp4_gemv_files::printable;
use nvfp4_gemv_parallel::layers::LayersError;
#[cfg(feature = "nccl")]
use nvfp4_gemv_parallel::nccl::NcclError;
use serde_json::{Value, json};

use crate::engine::NotEnoughMemory;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Report {
    /// Text for people, with a newline at the end.
    pub(crate) text: String,
    /// JSON for scripts.
    pub(crate) json: Value,
    /// Whether all checks passed; decides the exit code.
    pub(crate) passed: bool,
}

/// Arguments that contradict each other, or name nothing, where clap cannot know: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Returns with [`Usage`].
macro_rules! wrong_usage {
    ($($message:tt)*) => {
        return Err($crate::report::Usage(format!($($message)*)).into())
    };
}
pub(crate) use wrong_usage;

impl Report {
    /// A report of a command that checks nothing, or whose checks passed.
    pub(crate) fn new(text: String, json: Value) -> Self {
        Self {
            text,
            json,
            passed: true,
        }
    }

    /// Everything was said already.
    pub(crate) fn nothing() -> Self {
        Self::new(String::new(), Value::Null)
    }

    /// An error with its causes: on stderr for people, and as a JSON object for scripts. `takes_path` says
    /// whether the command has `--path`, which a hint may then speak of.
    pub(crate) fn error(error: &anyhow::Error, takes_path: bool, as_json: bool) -> Self {
        let hint = hint(error, takes_path);
        let message = with_causes(error);
        let mut text = format!("error: {message}\n");
        if let Some(hint) = &hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
        if !as_json {
            // Nothing can be done where stderr is closed.
            let _ = io::stderr().write_all(for_people(&text).as_bytes());
        }
        Self {
            text: String::new(),
            json: json!({ "error": message, "hint": hint }),
            passed: false,
        }
    }

    /// Prints to stdout, or to stderr where a result went to stdout. A reader that has gone away (`| head`) is no
    /// error.
    pub(crate) fn print(&self, as_json: bool) -> io::Result<()> {
        let text = if as_json && !self.json.is_null() {
            format!("{}\n", printable::json(&format!("{:#}", self.json)))
        } else {
            for_people(&self.text)
        };
        if text.is_empty() {
            return Ok(());
        }
        if stdout_holds_result() {
            // Nothing can be done where stderr is closed.
            let _ = io::stderr().write_all(text.as_bytes());
            return Ok(());
        }
        to_stdout(|out| out.write_all(text.as_bytes()))
    }

    /// Says what kept this from being printed.
    pub(crate) fn say_unprinted(error: &io::Error) {
        let _ = writeln!(io::stderr(), "error: standard output: {error}");
    }
}

/// Lets `write` write to standard output, and says what kept that from being read. A reader that has gone away is no
/// error.
pub(crate) fn to_stdout(write: impl FnOnce(&mut io::Stdout) -> io::Result<()>) -> io::Result<()> {
    if stdout_was_closed() {
        return Err(io::Error::other("it was closed when this program started"));
    }
    let mut out = io::stdout();
    match write(&mut out).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Text of several lines in which nothing but the ends of lines acts on a terminal. Text from elsewhere is escaped
/// where it enters, its newlines too ([`printable`]). If a place forgets that, this function reduces the damage to a
/// wrong line.
fn for_people(text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| printable::text(line).to_string())
        .collect();
    lines.join("\n")
}

/// An error's message and those of its causes. Many of this crate's errors have their cause's message in
/// their own: that is not said twice.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !message.contains(&cause) {
            message.push_str(&format!(": {cause}"));
        }
    }
    message
}

/// Advice about an error, where there is any.
fn hint(error: &anyhow::Error, takes_path: bool) -> Option<String> {
    if let Some(error) = error.downcast_ref::<CheckpointError>() {
        return match error {
            CheckpointError::NotNvfp4 { found, .. }
                // The tensor is a matrix: stacked experts are copied.
                if ["F32 [", "F16 [", "BF16 ["]
                    .iter()
                    .any(|t| found.starts_with(t))
                    && found.matches(',').count() == 1 =>
            {
                Some("`nvfp4-gemv quantize` makes an NVFP4 checkpoint of this one".into())
            }
            CheckpointError::File(e) => file_hint(e),
            CheckpointError::StackedExperts { .. } => {
                Some("a matrix for each expert is read, in tensors of its own".into())
            }
            CheckpointError::Duplicate { .. } => {
                Some("name one of the files, or the index, instead of the directory".into())
            }
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<NotEnoughMemory>() {
        return Some(error.hint().into());
    }
    if let Some(error) = error.downcast_ref::<FileError>() {
        return file_hint(error);
    }
    if let Some(error) = error.downcast_ref::<WriteError>() {
        return match error {
            WriteError::Input(error) => file_hint(error),
            WriteError::Exists { .. } => Some("--force replaces it".into()),
            _ => None,
        };
    }
    #[cfg(feature = "nccl")]
    if let Some(hint) = nccl_error(error).and_then(NcclError::hint) {
        return Some(hint);
    }
    gemv_hint(gemv_error(error)?, takes_path)
}

/// The error of NCCL, or that it is missing.
#[cfg(feature = "nccl")]
fn nccl_error(error: &anyhow::Error) -> Option<&NcclError> {
    match error.downcast_ref() {
        Some(LayersError::Nccl(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// The library's own error, also of a rank.
fn gemv_error(error: &anyhow::Error) -> Option<&Error> {
    #[cfg(feature = "nccl")]
    if let Some(NcclError::Device(error)) = nccl_error(error) {
        return Some(error);
    }
    match error.downcast_ref() {
        Some(LayersError::Gemv(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

fn gemv_hint(error: &Error, takes_path: bool) -> Option<String> {
    match error {
        Error::PathUnavailable {
            reason: Refusal::BuiltWithoutCuda,
            ..
        } => Some(match takes_path {
            true => "build with `--features cuda` or `--features jit`, or use `--path cpu`".into(),
            false => "build with `--features cuda` or `--features jit`".into(),
        }),
        Error::PathUnavailable {
            path: GemvPath::TensorCore,
            ..
        } if takes_path => Some("`--path cuda-core`, `--path cpu` or `--path auto` may do".into()),
        #[cfg(feature = "jit")]
        Error::Jit { .. } => Some(
            "`nvfp4-gemv info` shows which NVRTC compiles and where kernels are kept; `--path cpu` needs none".into(),
        ),
        Error::KernelUnavailable { .. } | Error::Config { .. } => {
            Some("without --kernel, `nvfp4-gemv plan` shows which kernels can compute a shape, and why not".into())
        }
        Error::PathUnavailable { .. }
        | Error::NoKernels
        | Error::NoDriver { .. }
        | Error::NoDevice { .. } => {
            let info = "`nvfp4-gemv info` shows what this machine can run";
            Some(match takes_path {
                true => format!("{info}; `--path auto` uses it"),
                false => info.into(),
            })
        }
        // Options are checked when they are read: what comes so far is the variable's.
        Error::UnknownPath { .. } => Some(format!(
            "{PATH_VARIABLE} names it; unset it, or set it to a path or to `auto`"
        )),
        _ => None,
    }
}

fn file_hint(error: &FileError) -> Option<String> {
    match error {
        FileError::Format { .. } => {
            Some("the file may be truncated; compare its size with the original's".into())
        }
        _ => None,
    }
}

/// How many of what, with its plural: `1 weight`, `2 weights`.
pub(crate) fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ if what.ends_with("ch") => format!("{number} {what}es"),
        _ => format!("{number} {what}s"),
    }
}

/// A duration in the unit that suits it.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Bytes in the unit that suits them; decimal, as bandwidths are.
pub(crate) fn bytes(bytes: usize) -> String {
    match bytes as f64 {
        b if b < 1e3 => format!("{b} B"),
        b if b < 1e6 => format!("{:.1} kB", b / 1e3),
        b if b < 1e9 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.2} GB", b / 1e9),
    }
}

/// An error or a bound, short.
pub(crate) fn small(value: f64) -> String {
    if value == 0.0 {
        "0".into()
    } else {
        format!("{value:.2e}")
    }
}

/// A figure with so many digits behind the point, or a dash where there is none.
pub(crate) fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// A number for JSON, which has neither NaN nor infinity: those become text.
pub(crate) fn number(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else {
        json!(value.to_string())
    }
}

/// A progress bar on stderr; hidden where stderr is no terminal.
pub(crate) fn progress(length: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_prefix(what);
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_are_said_once() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Err::<(), _>(refused()).context("a.json").unwrap_err();
        assert_eq!(with_causes(&error), format!("a.json: {}", refused()));
        let whole = FileError::Read {
            file: "a.json".into(),
            source: refused(),
        };
        let error = anyhow::Error::from(whole);
        assert_eq!(with_causes(&error), error.to_string());
    }

    #[test]
    fn errors_of_ranks_have_the_hints_of_what_they_hold() {
        let none = || Error::NoKernels;
        let hint_of = |error: anyhow::Error| hint(&error, true).unwrap();
        let expected = hint_of(none().into());
        assert_eq!(hint_of(LayersError::Gemv(none()).into()), expected);
        #[cfg(feature = "nccl")]
        {
            let device = || NcclError::Device(none());
            assert_eq!(hint_of(device().into()), expected);
            assert_eq!(hint_of(LayersError::Nccl(device()).into()), expected);
            let missing = || NcclError::Missing { looked_at: vec![] };
            let expected = missing().hint().unwrap();
            assert_eq!(hint_of(missing().into()), expected);
            let of_layers = anyhow::Error::from(LayersError::Nccl(missing()));
            assert_eq!(hint_of(of_layers.context("rank 0")), expected);
        }
    }

    #[test]
    fn plurals() {
        let counts = [0, 1, 2].map(|number| count(number, "weight"));
        assert_eq!(counts, ["0 weights", "1 weight", "2 weights"]);
        assert_eq!(count(2, "launch"), "2 launches");
    }
}
