//! Splits PTX source into tokens. Comments and white space vanish here; line numbers stay.

use crate::error::ParseError;
use crate::files::MAX_TEXT;

/// Kind and value of a token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tok {
    /// Identifier, register, directive or dotted opcode: `%tid.x`, `.reg`, `ld.global.L2::128B`.
    Word(String),
    /// Integer literal, as its two's complement 64 bits.
    Int(u64),
    /// `0f...` literal: the bits of an f32.
    F32(u32),
    /// `0d...` or decimal literal: the bits of an f64.
    F64(u64),
    /// Quoted string, without its quotes.
    Str(String),
    /// A single punctuation character.
    Punct(char),
    /// End of the source.
    End,
}

/// A token and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// The token.
    pub tok: Tok,
    /// Line, counted from 1.
    pub line: u32,
    /// First byte in the source.
    pub start: usize,
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// Splits `src` into tokens; the last one is [`Tok::End`].
pub(crate) fn lex(src: &str) -> Result<Vec<Token>, ParseError> {
    let b = src.as_bytes();
    if b.len() as u64 > MAX_TEXT {
        let message = format!("the source has more than {MAX_TEXT} bytes");
        return Err(ParseError::new(1, message));
    }
    let mut out = Vec::with_capacity(b.len() / 4);
    let (mut i, mut line) = (0usize, 1u32);
    while i < b.len() {
        let c = b[i];
        let start = i;
        let at = |k: usize| b.get(k).copied().unwrap_or(0);
        if c == b'\n' {
            line += 1;
            i += 1;
            continue;
        }
        if c.is_ascii_whitespace() || c == 0 {
            i += 1;
            continue;
        }
        if c == b'/' && at(i + 1) == b'/' {
            while i < b.len() && b[i] != b'\n' {
                i += 1;
            }
            continue;
        }
        if c == b'/' && at(i + 1) == b'*' {
            let opened = line;
            i += 2;
            loop {
                if i + 1 >= b.len() {
                    return Err(ParseError::new(opened, "comment is never closed"));
                }
                if b[i] == b'*' && b[i + 1] == b'/' {
                    i += 2;
                    break;
                }
                if b[i] == b'\n' {
                    line += 1;
                }
                i += 1;
            }
            continue;
        }
        let tok = if c.is_ascii_digit() {
            let (tok, next) = number(src, i, line)?;
            i = next;
            tok
        } else if is_word(c) {
            while i < b.len() {
                if is_word(b[i]) {
                    i += 1;
                } else if b[i] == b':' && at(i + 1) == b':' && is_word(at(i + 2)) {
                    i += 2;
                } else {
                    break;
                }
            }
            Tok::Word(src[start..i].to_string())
        } else if c == b'"' {
            i += 1;
            let from = i;
            while i < b.len() && b[i] != b'"' && b[i] != b'\n' {
                i += 1;
            }
            if i >= b.len() || b[i] != b'"' {
                return Err(ParseError::new(line, "string is never closed"));
            }
            let text = src
                .get(from..i)
                .ok_or_else(|| ParseError::new(line, "string is not UTF-8"))?;
            i += 1;
            Tok::Str(text.to_string())
        } else if c.is_ascii_punctuation() {
            i += 1;
            Tok::Punct(c as char)
        } else {
            return Err(ParseError::new(line, format!("unexpected byte 0x{c:02x}")));
        };
        out.push(Token { tok, line, start });
    }
    out.push(Token {
        tok: Tok::End,
        line,
        start: b.len(),
    });
    Ok(out)
}

/// The number that starts at byte `i`, and where it ends.
fn number(src: &str, i: usize, line: u32) -> Result<(Tok, usize), ParseError> {
    let b = src.as_bytes();
    let run = |mut k: usize, f: fn(u8) -> bool| {
        while k < b.len() && f(b[k]) {
            k += 1;
        }
        k
    };
    let bad = |what: &str| ParseError::new(line, what.to_string());
    let hex = |c: u8| c.is_ascii_hexdigit();
    let second = b.get(i + 1).copied().unwrap_or(0);
    if b[i] == b'0' && matches!(second, b'f' | b'F') {
        let end = run(i + 2, hex);
        if end - (i + 2) != 8 {
            return Err(bad("an f32 literal has 8 hexadecimal digits"));
        }
        let bits = u32::from_str_radix(&src[i + 2..end], 16).map_err(|e| bad(&e.to_string()))?;
        return Ok((Tok::F32(bits), end));
    }
    if b[i] == b'0' && matches!(second, b'd' | b'D') {
        let end = run(i + 2, hex);
        if end - (i + 2) != 16 {
            return Err(bad("an f64 literal has 16 hexadecimal digits"));
        }
        let bits = u64::from_str_radix(&src[i + 2..end], 16).map_err(|e| bad(&e.to_string()))?;
        return Ok((Tok::F64(bits), end));
    }
    let radix = match (b[i], second) {
        (b'0', b'x' | b'X') => 16,
        (b'0', b'b' | b'B') => 2,
        _ => 10,
    };
    let (from, mut end) = if radix == 10 {
        (i, run(i, |c| c.is_ascii_digit()))
    } else {
        (i + 2, run(i + 2, |c| c.is_ascii_hexdigit()))
    };
    let next = b.get(end).copied().unwrap_or(0);
    if radix == 10 && matches!(next, b'.' | b'e' | b'E') {
        let fraction = b.get(end + 1).copied().unwrap_or(0);
        if fraction.is_ascii_digit() || matches!(fraction, b'+' | b'-' | b'e' | b'E') {
            end = run(end + 1, |c| c.is_ascii_digit());
            if b.get(end).is_some_and(|c| matches!(c, b'e' | b'E')) {
                end += 1;
            }
            if b.get(end).is_some_and(|c| matches!(c, b'+' | b'-')) {
                end += 1;
            }
            end = run(end, |c| c.is_ascii_digit());
            let v: f64 = src[i..end]
                .parse()
                .map_err(|_| bad("malformed decimal literal"))?;
            return Ok((Tok::F64(v.to_bits()), end));
        }
    }
    // A leading zero makes an octal number, as in C.
    let radix = if radix == 10 && b[i] == b'0' && end > i + 1 {
        8
    } else {
        radix
    };
    let value = u64::from_str_radix(&src[from..end], radix)
        .map_err(|e| bad(&format!("malformed integer literal: {e}")))?;
    if b.get(end).copied() == Some(b'U') {
        end += 1;
    }
    Ok((Tok::Int(value), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toks(s: &str) -> Vec<Tok> {
        lex(s).unwrap().into_iter().map(|t| t.tok).collect()
    }

    #[test]
    fn words_keep_double_colons_and_labels_do_not_keep_theirs() {
        assert_eq!(
            toks("$L_1: ld.L2::128B %r1"),
            [
                Tok::Word("$L_1".into()),
                Tok::Punct(':'),
                Tok::Word("ld.L2::128B".into()),
                Tok::Word("%r1".into()),
                Tok::End
            ]
        );
    }

    #[test]
    fn numbers() {
        assert_eq!(
            toks("0f3F800000 0x10U 017 1.5 12 0b11"),
            [
                Tok::F32(0x3f80_0000),
                Tok::Int(16),
                Tok::Int(15),
                Tok::F64(1.5f64.to_bits()),
                Tok::Int(12),
                Tok::Int(3),
                Tok::End
            ]
        );
    }

    #[test]
    fn malformed_sources_are_errors() {
        for s in [
            "/* open",
            "\"open",
            "0f12",
            "0x",
            "9999999999999999999999",
            "\u{e9}",
        ] {
            assert!(lex(s).is_err(), "{s}");
        }
    }
}
