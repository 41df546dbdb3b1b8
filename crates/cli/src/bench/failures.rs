//! Problems that could not be measured, while others were: one failure does not lose the rest.

use std::fmt::Display;

use anyhow::{Error, Result};
use nvfp4_gemv_documents::document::Failed;
use nvfp4_gemv_files::printable;

use crate::report::{count, with_causes};

/// The problems of a list that failed.
#[derive(Default)]
pub(super) struct Failures {
    first: Option<Error>,
    all: Vec<Failed>,
}

impl Failures {
    pub(super) fn push(&mut self, problem: impl Display, error: Error) {
        self.all.push(Failed {
            problem: problem.to_string(),
            // A document's texts are lines.
            why: printable::text(&with_causes(&error)).to_string(),
        });
        self.first.get_or_insert(error);
    }

    /// An error of a problem that may be left out, as long as others are measured.
    pub(super) fn skip(&mut self, error: Error) {
        self.first.get_or_insert(error);
    }

    /// The measurement, or nothing where it failed.
    pub(super) fn keep<T>(&mut self, problem: impl Display, measured: Result<T>) -> Option<T> {
        measured.map_err(|error| self.push(problem, error)).ok()
    }

    /// The failures, for a document with this many measurements.
    ///
    /// # Errors
    /// The first error, where there is no measurement.
    pub(super) fn beside(self, measured: usize) -> Result<Vec<Failed>> {
        let Some(first) = self.first.filter(|_| measured == 0) else {
            return Ok(self.all);
        };
        let mut others = self.all.iter().skip(1);
        Err(match &self.all[..] {
            [of, ..] if others.any(|other| other.why != of.why) => first.context(format!(
                "none of {} was measured; {}",
                count(self.all.len(), "problem"),
                of.problem
            )),
            _ => first,
        })
    }
}

/// Lines for people.
pub(super) fn text(failed: &[Failed]) -> String {
    let lines = failed.iter();
    let lines = lines.map(|failed| format!("FAILED: {}: {}\n", failed.problem, failed.why));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_stands_beside_what_was_measured_and_is_an_error_alone() {
        let failures = |whys: &[&str]| {
            let mut failures = Failures::default();
            for (i, why) in whys.iter().enumerate() {
                let error = nvfp4_gemv::Error::NoDevice {
                    visible: (*why).into(),
                };
                assert_eq!(failures.keep(i, Err::<(), _>(error.into())), None);
            }
            assert_eq!(failures.keep("fine", Ok(7)), Some(7));
            failures
        };
        assert_eq!(failures(&[]).beside(0).unwrap(), []);
        let beside = failures(&["a", "b"]).beside(1).unwrap();
        assert_eq!(beside[1].problem, "1");
        let lines = text(&beside);
        assert!(lines.contains("=a)\nFAILED: 1: "), "{lines}");
        // The error keeps its type, which hints depend on.
        for (whys, says_how_many) in [
            (&["a"][..], false),
            (&["a", "a"], false),
            (&["a", "b", "a"], true),
        ] {
            let alone = failures(whys).beside(0).unwrap_err();
            assert!(alone.is::<nvfp4_gemv::Error>());
            let said = alone.to_string();
            assert_eq!(
                said.contains("none of 3 problems was measured; 0"),
                says_how_many,
                "{said}"
            );
        }
        let [lines] = &failures(&["a\nb"]).beside(1).unwrap()[..] else {
            panic!("one failure");
        };
        assert!(!lines.why.contains('\n'), "{}", lines.why);
        let mut skipped = failures(&[]);
        skipped.skip(anyhow::anyhow!("too little memory"));
        let error = skipped.beside(0).unwrap_err();
        assert_eq!(error.to_string(), "too little memory");
        let mut skipped = failures(&[]);
        skipped.skip(anyhow::anyhow!("too little memory"));
        assert_eq!(skipped.beside(1).unwrap(), []);
    }
}
