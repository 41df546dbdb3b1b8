//! Mutations of a source of lines and tokens: PTX.

use fastrand::Rng;

use crate::pick;

/// Moves, doubles or drops lines, or changes tokens. `None` for what is no text, or an empty one.
pub fn mutate(source: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let source = std::str::from_utf8(source).ok()?;
    let mut parts: Vec<&str> = if rng.bool() {
        source.split_inclusive(['\n', ';']).collect()
    } else {
        tokens(source)
    };
    for _ in 0..rng.usize(1..=4) {
        let one = *pick(rng, &parts)?;
        let at = rng.usize(..parts.len());
        match rng.u8(..6) {
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, one),
            2 => parts[at] = pick(rng, NUMBERS)?,
            3 => parts.extend(std::iter::repeat_n(one, 20)),
            _ => parts[at] = one,
        }
    }
    Some(parts.concat().into_bytes())
}

/// Integers at some bound.
#[rustfmt::skip]
const NUMBERS: &[&str] = &[
    "0", "1", "-1", "16", "31", "32", "255", "65536", "1048576", "2147483647", "4294967295", "4294967296",
    "9223372036854775808", "18446744073709551615",
];

/// Words, and everything else one by one; together they are the source.
fn tokens(source: &str) -> Vec<&str> {
    let word = |c: char| c.is_ascii_alphanumeric() || "_$%.:".contains(c);
    let mut all = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let end = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(end);
        all.push(token);
        rest = after;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_source() {
        let source = "ld.global.u32 %r1, [%d1+-4];\n é";
        assert_eq!(tokens(source).concat(), source);
        assert!(tokens(source).contains(&"ld.global.u32"));
    }
}
