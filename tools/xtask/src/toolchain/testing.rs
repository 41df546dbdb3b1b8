//! Fakes for the tests of this module.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable shell script. A child process does the writing. While this process has a file open for writing,
/// a child that another test forks holds it open too, and then Linux refuses to execute it.
pub(crate) fn script(path: &Path, body: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = format!("#!/bin/sh\n{body}");
    let status = Command::new("sh")
        .args(["-c", r#"printf '%s\n' "$1" >"$0" && chmod 755 "$0""#])
        .arg(path)
        .arg(text)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}
