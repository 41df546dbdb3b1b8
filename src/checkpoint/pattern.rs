//! Patterns of names, as configs and commands have them.

use regex::{Regex, RegexBuilder};

/// Whether `pattern` describes `name`: `*` stands for any characters, `?` for one. A leading `*.` of the pattern also
/// stands for nothing: `*.gate.weight` describes `gate.weight`, too.
///
/// ```
/// use nvfp4_gemv::checkpoint::name_matches;
/// assert!(name_matches("model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj"));
/// assert!(name_matches("*.gate.weight", "gate.weight"));
/// assert!(!name_matches("lm_head", "lm_head.weight"));
/// ```
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let without = pattern.strip_prefix("*.");
    glob(pattern, name) || without.is_some_and(|pattern| glob(pattern, name))
}

/// The text between stars is looked for once, from left to right: the first place where a part fits leaves the most to
/// those behind it.
fn glob(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return after(pattern, name) == Some("");
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let behind_first = after(first, name);
    let behind_all = behind_first.and_then(|name| {
        middle
            .split('*')
            .try_fold(name, |name, part| behind(part, name))
    });
    behind_all.is_some_and(|name| ends(last, name))
}

/// The rest of a name behind a part without stars, where it begins with that part.
fn after<'a>(part: &str, name: &'a str) -> Option<&'a str> {
    if !part.contains(ANY) {
        return name.strip_prefix(part);
    }
    let mut chars = name.chars();
    let fits = |p: char| chars.next().is_some_and(|c| p == ANY || p == c);
    part.chars().all(fits).then_some(chars.as_str())
}

/// The rest of a name behind the first place where it has a part without stars.
fn behind<'a>(part: &str, name: &'a str) -> Option<&'a str> {
    if !part.contains(ANY) {
        return name.find(part).map(|at| &name[at + part.len()..]);
    }
    let mut places = name.char_indices();
    places.find_map(|(at, _)| after(part, &name[at..]))
}

/// Whether a name ends with a part without stars.
fn ends(part: &str, name: &str) -> bool {
    let mut chars = name.chars().rev();
    let fits = |p: char| chars.next().is_some_and(|c| p == ANY || p == c);
    part.chars().rev().all(fits)
}

/// The sign that stands for one character.
const ANY: char = '?';

/// One name of a config, or several.
#[derive(Debug)]
pub(super) enum Pattern {
    /// As [`name_matches`] has them.
    Glob(String),
    /// Anything else: alternatives, classes; with the size of its program, of [`REGEX_SIZES`].
    Regex(Regex, usize),
}

/// Limits of regular expressions that are no simple patterns: how many all configs of a checkpoint may have, and KiB
/// of the program of each, of which the least that is enough is its size. Published configs have a few.
const MOST_REGEXES: usize = 256;
const REGEX_SIZES: [usize; 3] = [16, 64, 256];

/// How many more regular expressions are compiled.
#[derive(Debug)]
pub(super) struct Regexes(usize);

impl Default for Regexes {
    fn default() -> Self {
        Self(MOST_REGEXES)
    }
}

impl Pattern {
    /// The expression behind `re:`; `None` for one that is not understood: Python has more than `regex`.
    pub(super) fn of_regex(regex: &str, left: &mut Regexes) -> Option<Self> {
        if let Some(glob) = of_regex(regex) {
            return Some(Self::Glob(glob));
        }
        left.0 = left.0.checked_sub(1)?;
        let regex = format!("^(?:{regex})");
        let of_size = |size: &usize| {
            let mut regex = RegexBuilder::new(&regex);
            let regex = regex.size_limit(size << 10).dfa_size_limit(256 << 10);
            Some(Self::Regex(regex.build().ok()?, *size))
        };
        REGEX_SIZES.iter().find_map(of_size)
    }

    pub(super) fn describes(&self, name: &str) -> bool {
        match self {
            Self::Glob(pattern) => name_matches(pattern, name),
            Self::Regex(regex, _) => regex.is_match(name),
        }
    }

    /// The beginning of the names that it describes, where it says no more.
    pub(super) fn beginning(&self) -> Option<&str> {
        match self {
            Self::Glob(pattern) => pattern
                .strip_suffix('*')
                .filter(|begin| !begin.contains(['*', ANY])),
            Self::Regex(..) => None,
        }
    }

    /// How many characters of a name are looked at for one that it has, about: the work of asking for a name is this
    /// times the name's length, at most.
    pub(super) fn work(&self) -> usize {
        match self {
            // The part behind a star begins at each character anew.
            Self::Glob(pattern) if pattern.contains(ANY) => 2 * pattern.len(),
            Self::Glob(_) => 2,
            Self::Regex(_, size) => *size,
        }
    }
}

/// A regular expression as a pattern, where it says no more than one can. Like Python's `re.match`, which reads
/// these, it has to fit from the beginning, but not to the end.
fn of_regex(regex: &str) -> Option<String> {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let (regex, end) = match regex.strip_suffix('$') {
        Some(regex) => (regex, ""),
        None => (regex, "*"),
    };
    let mut pattern = String::new();
    let mut chars = regex.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '.' if chars.next_if_eq(&'*').is_some() => pattern.push('*'),
            '.' => pattern.push('?'),
            '\\' => match chars.next() {
                Some(c @ ('.' | '-' | '_' | '/')) => pattern.push(c),
                _ => return None,
            },
            '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => return None,
            c => pattern.push(c),
        }
    }
    Some(pattern + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, yes) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*.mlp.*", "layers.0.mlp.up.weight", true),
            ("*.mlp.*", "mlp.up.weight", true),
            ("*a*b", "aaab", true),
            ("?b", "ab", true),
            ("?b", "b", false),
            ("**x", "x", true),
            ("lm_head", "lm_head.weight", false),
            ("*.gate.weight", "mlp.gate.weight", true),
            ("*.gate.weight", "mlp.up_gate.weight", false),
            ("?", "重", true),
            ("a?b", "aüb", true),
            ("a??b", "aüb", false),
            ("*?b", "a𝄞b", true),
            ("*ü*み", "größe.ü.重み", true),
            ("ab*ba", "aba", false),
            ("a*?", "a", false),
            ("a*?c*d", "abcxcd", true),
            ("*?x*", "重x", true),
            ("a*b", "ab", true),
            ("*a?", "aaü", true),
        ] {
            assert_eq!(name_matches(pattern, name), yes, "{pattern} {name}");
        }
    }

    #[test]
    fn other_regular_expressions_fit_from_the_beginning() {
        let mut left = Regexes::default();
        let mut of = |regex: &str| Pattern::of_regex(regex, &mut left);
        for (regex, name, yes) in [
            (
                r".*\.(q|k|v)_proj$",
                "model.layers.0.self_attn.q_proj",
                true,
            ),
            (
                r".*\.(q|k|v)_proj$",
                "model.layers.0.self_attn.o_proj",
                false,
            ),
            (
                r"model\.layers\.[0-9]+\.mlp",
                "model.layers.12.mlp.up",
                true,
            ),
            (r"layers\.\d+\.mlp", "model.layers.12.mlp.up", false),
            ("a|b", "b.c", true),
            ("a|b", "cb", false),
        ] {
            let found = of(regex).unwrap();
            assert!(matches!(found, Pattern::Regex(..)), "{regex}");
            assert_eq!(found.describes(name), yes, "{regex} {name}");
        }
        // Expressions that Python alone has, wrong ones, and some that would take too much memory.
        for regex in ["^(?!.*experts)", "(", r"(\w{100}){100}"] {
            assert!(of(regex).is_none(), "{regex}");
        }
        while of("a|b").is_some() {}
        assert!(matches!(of("a.*"), Some(Pattern::Glob(_))));
    }

    #[test]
    fn simple_regular_expressions_are_patterns() {
        for (regex, pattern) in [
            (".*lm_head", Some("*lm_head*")),
            (r"^model\.layers\.0\..*$", Some("model.layers.0.*")),
            ("a.b", Some("a?b*")),
            (r".*experts\.\d+", None),
            ("(a|b)", None),
            ("a+", None),
            ("\\", None),
        ] {
            assert_eq!(of_regex(regex).as_deref(), pattern, "{regex}");
        }
    }
}
