//! Patterns of names, as configs and commands have them.

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
    let [pattern, name] = [pattern, name].map(|text| text.chars().collect::<Vec<char>>());
    let (mut p, mut n) = (0, 0);
    // Positions at which to go on when a later part does not fit: the last star, one character further.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star, from)) = retry else {
                    return false;
                };
                retry = Some((star, from + 1));
                (p, n) = (star + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// A regular expression as a pattern, where it says no more than one can. Like Python's `re.match`, which reads
/// these, it has to fit from the beginning, but not to the end.
pub(super) fn of_regex(regex: &str) -> Option<String> {
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
        ] {
            assert_eq!(name_matches(pattern, name), yes, "{pattern} {name}");
        }
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
