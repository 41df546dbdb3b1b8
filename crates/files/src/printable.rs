//! Text from elsewhere, as it may be printed.
//!
//! Names of tensors and files come from whoever made them. Printed as they are, an escape character in one recolours or
//! clears a terminal. A newline makes up a line of a log, and a character that turns the direction of writing hides
//! what stands after it. Errors of the library and its programs print such text in these forms only. Whoever prints the
//! name of a tensor may want to as well.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// Text in which every character that is not printed by itself is written as Rust writes it in a string:
/// `\n`, `\u{1b}`. Everything else, quotes and backslashes too, stays as it is.
pub fn text(text: &str) -> impl fmt::Display {
    Escaped(text.into())
}

/// A path, as [`text()`]. Bytes that are no Unicode become U+FFFD, as in [`Path::display`].
pub fn path(path: &Path) -> impl fmt::Display {
    Escaped(path.to_string_lossy())
}

/// Text of JSON, as [`text()`] but in JSON's own escapes: `\u009b`. It means the same.
///
/// JSON leaves only characters below U+0020 to no choice; others that act on a terminal may stand in its strings as
/// they are, and no writer escapes them.
pub fn json(json: &str) -> impl fmt::Display {
    EscapedJson(json)
}

struct EscapedJson<'a>(&'a str);

impl fmt::Display for EscapedJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Outside of strings there is nothing but ASCII, of which white space stays.
        let acts = |c: char| c > '~' && c.escape_debug().len() > 1;
        let mut rest = self.0;
        while let Some(at) = rest.find(acts) {
            let (plain, from) = rest.split_at(at);
            f.write_str(plain)?;
            let mut characters = from.chars();
            for unit in characters.next().into_iter().flat_map(units) {
                write!(f, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

/// A character in UTF-16, which JSON's escapes are.
fn units(c: char) -> impl Iterator<Item = u16> {
    let (mut units, length) = ([0; 2], c.len_utf16());
    c.encode_utf16(&mut units);
    units.into_iter().take(length)
}

struct Escaped<'a>(Cow<'a, str>);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quotes and backslashes are printed by themselves, and `escape_debug` doubles or escapes them.
        for piece in self.0.split_inclusive(['\'', '"', '\\']) {
            let plain = piece.trim_end_matches(['\'', '"', '\\']);
            write!(f, "{}{}", plain.escape_debug(), &piece[plain.len()..])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printed_by_itself_is_escaped() {
        for (raw, shown) in [
            ("", ""),
            ("model.layers.0.weight", "model.layers.0.weight"),
            ("größe/重み 'a' \"b\" C:\\d", "größe/重み 'a' \"b\" C:\\d"),
            ("fc1.weight", "fc1.weight"),
            ("a\n\u{1b}[31mb", r"a\n\u{1b}[31mb"),
            ("a\r\n\tb", r"a\r\n\tb"),
            ("\u{1b}[2J\u{7}\u{9b}1m", r"\u{1b}[2J\u{7}\u{9b}1m"),
            ("a\u{202e}b\u{2028}c", r"a\u{202e}b\u{2028}c"),
            ("\\\n\"\u{0}'", "\\\\n\"\\0'"),
        ] {
            assert_eq!(text(raw).to_string(), shown);
            assert_eq!(path(Path::new(raw)).to_string(), shown);
        }
    }

    #[test]
    fn json_is_escaped_as_json() {
        for (raw, shown) in [
            ("{\n  \"größe\": \"重み\"\n}", "{\n  \"größe\": \"重み\"\n}"),
            ("\"a\u{202e}b\"", r#""a\u202eb""#),
            ("\"\u{7f}\u{9b}1m\"", r#""\u007f\u009b1m""#),
            (
                "\"\u{202e}\u{2028}\u{e0001}\"",
                r#""\u202e\u2028\udb40\udc01""#,
            ),
            (r#""\u001b\\""#, r#""\u001b\\""#),
        ] {
            assert_eq!(json(raw).to_string(), shown);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_path_need_not_be_text() {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"a\xff\x1b");
        assert_eq!(path(Path::new(name)).to_string(), "a\u{fffd}\\u{1b}");
    }
}
