//! Notes of a checkpoint, which are no errors: on stderr for people, and in the JSON for scripts.

use std::io::{self, Write};

use nvfp4_gemv::checkpoint::Note;
use serde_json::{Value, json};

/// Prints notes to stderr, a line each, and returns them for the JSON.
pub(crate) fn show<'a>(notes: impl Iterator<Item = &'a Note>) -> Value {
    let lines: Vec<String> = notes.map(ToString::to_string).collect();
    for line in &lines {
        // Nothing can be done where stderr is closed.
        let _ = writeln!(io::stderr(), "note: {line}");
    }
    json!(lines)
}
