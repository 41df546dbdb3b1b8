//! Output about kernels that are compiled at run time.

use std::io::{self, IsTerminal, Write};

use nvfp4_gemv::jit::{self, Cache, Event};
use serde_json::{Value, json};

/// Says on stderr which kernels are compiled, since that takes a while: where a person looks, a line each when it
/// begins, and what it took when it ends.
pub(crate) fn show_progress() {
    let terminal = io::stderr().is_terminal();
    jit::observe(move |event| {
        let line = match event {
            Event::Begins { kernel, arch } if terminal => {
                format!("compiling {kernel} for sm_{arch} ...\n")
            }
            Event::Compiled { kernel, arch, took } => {
                let took = took.as_secs_f64();
                format!("compiled {kernel} for sm_{arch} in {took:.2} s\n")
            }
            _ => return,
        };
        // Nothing can be done where stderr is closed.
        let _ = io::stderr().write_all(line.as_bytes());
    });
}

/// The compiler, and the cache of its results: as lines of text, and as JSON.
pub(crate) fn describe() -> (String, Value) {
    describe_with(&Cache::of_user())
}

fn describe_with(cache: &Cache) -> (String, Value) {
    // A path need not be text, and JSON has no other.
    let folder = cache.folder().map(|folder| folder.to_string_lossy());
    let shown = folder.as_deref().map(nvfp4_gemv_files::printable::text);
    let keeps = match (shown, cache.refused()) {
        (None, _) => "nowhere".into(),
        (Some(folder), None) => folder.to_string(),
        (Some(folder), Some(why)) => {
            let variable = jit::CACHE_VARIABLE;
            format!(
                "nowhere: {why}: {folder} ({variable} names another folder, or this one all the same)"
            )
        }
    };
    let (text, version, place, why_none) = match jit::library() {
        Ok((version, place)) => (
            format!("NVRTC {version}, {place}"),
            Some(version),
            Some(place),
            None,
        ),
        Err(error) => {
            let hint = jit::hint(&error).unwrap_or_default();
            (
                format!("{error}. {hint}"),
                None,
                None,
                Some(error.to_string()),
            )
        }
    };
    (
        format!("  other kernels are compiled at run time, and kept in {keeps}\n  {text}\n"),
        json!({ "nvrtc": version, "place": place, "why_none": why_none, "cache": folder, "cache_refused": cache.refused() }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_cache_need_not_have_a_path_of_text() {
        use std::os::unix::ffi::OsStrExt;
        let folder = std::ffi::OsStr::from_bytes(b"/none/\xff\x1b[31m");
        let (text, json) = describe_with(&Cache::at(folder));
        assert!(text.contains("/none/\u{fffd}\\u{1b}[31m"), "{text}");
        assert_eq!(json["cache"], "/none/\u{fffd}\u{1b}[31m");
    }
}
