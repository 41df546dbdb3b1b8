//! A list of mutants that may survive, each with the argument why.
//!
//! ```text
//! [equivalent mma_pipelined]
//! late-expect-tx (*) `mbarrier.arrive.expect_tx.*`#0
//!     The arrival of the same thread is still missing, so that the phase cannot end.
//! ```
//!
//! A section is for kernels whose name matches; `*` in names and entries stands for any text. All
//! mutants that an entry matches must survive, and there must be one. In a section `[compiled ...]`,
//! for PTX that differs with the compiler, an entry says why mutants may survive, and none need to.

use super::mutant::Mutant;

/// Why a mutant may survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownEntry {
    /// A check that the simulator lacks, rather than a fault without effect.
    pub hole: bool,
    /// Mutants that match may also be caught.
    pub compiled: bool,
    /// Pattern of kernel names.
    pub kernel: String,
    /// Pattern of [`Mutant::id`].
    pub pattern: String,
    /// The argument.
    pub reason: String,
    /// Line in the list.
    pub line: usize,
}

/// The list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Entries of the list.
    pub entries: Vec<KnownEntry>,
}

const SECTION: &str = "a section is `[equivalent KERNEL]`, `[compiled KERNEL]` or `[hole KERNEL]`";

/// A line of the list that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct KnownError {
    /// The line.
    pub line: usize,
    /// Fault of the line.
    pub message: &'static str,
}

impl Known {
    /// Parses a list; `#` in the first column starts a comment.
    pub fn parse(text: &str) -> Result<Self, KnownError> {
        let mut out = Self::default();
        let mut section: Option<(&str, String)> = None;
        let mut open = Vec::new();
        for (n, raw) in text.lines().enumerate() {
            let line = n + 1;
            let fail = |message| Err(KnownError { line, message });
            let body = raw.trim();
            if body.is_empty() || raw.starts_with('#') {
                continue;
            }
            if let Some(s) = body.strip_prefix('[') {
                let Some((what, kernel)) = s.strip_suffix(']').and_then(|s| s.split_once(' '))
                else {
                    return fail(SECTION);
                };
                if !["equivalent", "hole", "compiled"].contains(&what) {
                    return fail(SECTION);
                }
                section = Some((what, kernel.to_string()));
                open.clear();
            } else if raw.starts_with(char::is_whitespace) {
                if open.is_empty() {
                    return fail("a reason without an entry");
                }
                for k in &open {
                    let e: &mut KnownEntry = &mut out.entries[*k];
                    if !e.reason.is_empty() {
                        e.reason.push(' ');
                    }
                    e.reason += body;
                }
            } else {
                let Some((what, kernel)) = section.clone() else {
                    return fail("an entry outside any section");
                };
                // Several entries may share the reason behind them.
                if open
                    .last()
                    .is_some_and(|k: &usize| !out.entries[*k].reason.is_empty())
                {
                    open.clear();
                }
                open.push(out.entries.len());
                out.entries.push(KnownEntry {
                    hole: what == "hole",
                    compiled: what == "compiled",
                    kernel,
                    pattern: body.to_string(),
                    reason: String::new(),
                    line,
                });
            }
        }
        match out.entries.iter().find(|e| e.reason.is_empty()) {
            Some(e) => Err(KnownError {
                line: e.line,
                message: "an entry without a reason",
            }),
            None => Ok(out),
        }
    }

    /// Numbers of the entries for a mutant.
    pub fn of<'a>(&'a self, kernel: &'a str, m: &Mutant) -> impl Iterator<Item = usize> + 'a {
        let id = m.id();
        self.entries
            .iter()
            .enumerate()
            .filter(move |(_, e)| matches(&e.kernel, kernel) && matches(&e.pattern, &id))
            .map(|(n, _)| n)
    }
}

/// Whether a text fits a pattern, where `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("a*c*", "abcd"));
        assert!(matches("abc", "abc"));
        assert!(matches("*", ""));
        assert!(!matches("abc", "abcd"));
        assert!(!matches("a*bc*bc", "abc"));
    }

    #[test]
    fn lists() {
        let l = Known::parse("# x\n[hole k*]\na #0\nb\n  why\n  so\nc\n  d\n").unwrap();
        assert_eq!(l.entries.len(), 3);
        assert_eq!(l.entries[0].reason, "why so");
        assert_eq!(l.entries[1].reason, "why so");
        assert!(l.entries[2].hole && l.entries[2].reason == "d");
        for bad in [
            "a\n b",
            "[x y]\n",
            "[hole]\n",
            "[hole k]\na\n",
            "[hole k]\n b\n",
        ] {
            assert!(Known::parse(bad).is_err(), "{bad}");
        }
    }
}
