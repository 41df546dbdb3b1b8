//! Problems one after the other: what is found of one is printed and kept before the next one begins.

use anyhow::Result;
use serde_json::Value;

use crate::report::Report;

/// The report on a problem, or on all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Text for people, with a newline at the end.
    pub(super) text: String,
    /// JSON for scripts.
    pub(super) json: Value,
}

impl Part {
    /// Prints it, as text or as a line of JSON.
    pub(super) fn print(self, as_json: bool) -> Result<()> {
        let text = match as_json {
            true => line(&self.json),
            false => self.text,
        };
        let part = Report {
            text,
            ..Report::nothing()
        };
        Ok(part.print(as_json)?)
    }
}

/// JSON on one line, in ASCII: nothing in it is for a terminal.
fn line(json: &Value) -> String {
    let mut line = String::new();
    for c in json.to_string().chars() {
        match c.is_ascii() {
            true => line.push(c),
            false => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    line.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    line + "\n"
}

/// Whether a problem was tuned.
pub(super) enum Ended {
    /// The problem was tuned, with this report.
    Tuned(Part),
    /// Nothing here can compute it, for this reason.
    Skipped(String),
}

/// Tunes each problem, and prints what was found before the next one begins. The reasons of those that were skipped.
pub(super) fn one_by_one<T>(
    problems: &[T],
    mut tune: impl FnMut(usize, &T) -> Result<Ended>,
    mut print: impl FnMut(Part) -> Result<()>,
) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    for (i, problem) in problems.iter().enumerate() {
        match tune(i, problem)? {
            Ended::Tuned(part) => print(part)?,
            Ended::Skipped(why) => skipped.push(why),
        }
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;

    /// Who stops the program has what was measured.
    #[test]
    fn a_problem_is_printed_before_the_next_one_begins() {
        let said = RefCell::new(Vec::new());
        let tune = |_, problem: &&str| {
            said.borrow_mut().push(format!("tune {problem}"));
            Ok(match *problem {
                "impossible" => Ended::Skipped("no kernel".into()),
                "broken" => anyhow::bail!("it broke"),
                problem => Ended::Tuned(Part {
                    text: problem.into(),
                    json: Value::Null,
                }),
            })
        };
        let print = |part: Part| {
            said.borrow_mut().push(format!("print {}", part.text));
            Ok(())
        };
        let problems = ["a", "impossible", "b"];
        assert_eq!(one_by_one(&problems, tune, print).unwrap(), ["no kernel"]);
        let expected = ["tune a", "print a", "tune impossible", "tune b", "print b"];
        assert_eq!(said.take(), expected);
        assert!(one_by_one(&["a", "broken", "b"], tune, print).is_err());
        assert_eq!(said.take(), ["tune a", "print a", "tune broken"]);
    }

    #[test]
    fn json_is_one_line_of_ascii() {
        let value = json!({ "file": "a\nb \u{202e}\u{9b}\u{1f600}", "n": [1, 2] });
        let line = line(&value);
        assert!(line.is_ascii() && line.ends_with("}\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }
}
