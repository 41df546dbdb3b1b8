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

fn glob(pattern: &str, name: &str) -> bool {
    // Of UTF-8 only `?` has to know how long a character is.
    let [pattern, name] = [pattern, name].map(str::as_bytes);
    let length = |begin: u8| match begin {
        0..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    let (mut p, mut n) = (0, 0);
    // Positions at which to go on when a later part does not fit: the last star, one character further.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(b'?') => {
                p += 1;
                n += length(name[n]);
            }
            Some(&c) if c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star, from)) = retry else {
                    return false;
                };
                let from = from + length(name[from]);
                retry = Some((star, from));
                (p, n) = (star + 1, from);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// One name of a config, or several.
#[derive(Debug)]
pub(super) enum Pattern {
    /// As [`name_matches`] has them.
    Glob(String),
    /// Anything else: alternatives, classes.
    Regex(Regex),
}

/// Limits of regular expressions that are no simple patterns: how many all configs of a checkpoint may have, and bytes
/// of each. Published configs have a few.
const MOST_REGEXES: usize = 256;
const MOST_REGEX_BYTES: usize = 256 << 10;

/// How many more regular expressions are compiled.
#[derive(Debug)]
pub(super) struct Regexes(usize);

impl Default for Regexes {
    fn default() -> Self {
        Self(MOST_REGEXES)
    }
}

impl Pattern {
    /// What follows `re:`; `None` for what is not understood: Python has more than `regex`.
    pub(super) fn of_regex(regex: &str, left: &mut Regexes) -> Option<Self> {
        if let Some(glob) = of_regex(regex) {
            return Some(Self::Glob(glob));
        }
        left.0 = left.0.checked_sub(1)?;
        let mut regex = RegexBuilder::new(&format!("^(?:{regex})"));
        let regex = regex.size_limit(MOST_REGEX_BYTES);
        let regex = regex.dfa_size_limit(MOST_REGEX_BYTES).build();
        regex.ok().map(Self::Regex)
    }

    pub(super) fn describes(&self, name: &str) -> bool {
        match self {
            // A config may have hundreds, few of which begin as a name does.
            Self::Glob(pattern) => {
                let literal = pattern.find(['*', '?']).unwrap_or(pattern.len());
                name.starts_with(&pattern[..literal]) && name_matches(pattern, name)
            }
            Self::Regex(regex) => regex.is_match(name),
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
            assert!(matches!(found, Pattern::Regex(_)), "{regex}");
            assert_eq!(found.describes(name), yes, "{regex} {name}");
        }
        // What Python alone has, what is wrong, and what would take too much memory.
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
