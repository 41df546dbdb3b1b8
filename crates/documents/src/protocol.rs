//! The protocol between `cargo xtask nightly` and `nvfp4-gemv bench --serve`. Through it two programs, tonight's and an
//! older one, can take turns on one GPU.
//!
//! One JSON value a line. The program says [`Reply::Hello`], then answers each [`Request`] with one reply, and ends
//! where its input ends. A program may be older than the xtask that talks to it: a change that an older program would
//! misread changes [`PROTOCOL`].

use serde::{Deserialize, Serialize};

use super::document::{Case, Document, Sustained, Turn};

pub const PROTOCOL: &str = "nvfp4-gemv/turns/1";

/// The fields that identify a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub l: usize,
    pub activation: String,
    pub layout: String,
    pub output_type: String,
    /// Whether batches select their matrix: by `early` or `late` ids. A program from before this field would not read
    /// it; but none asks for it here, since `--select` and `--serve` exclude each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
}

/// `MxK`, `xL` where there are several batches, N, and the operands: how every table names a problem.
impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.m, self.k)?;
        if self.l != 1 {
            write!(f, "x{}", self.l)?;
        }
        write!(f, " n={} {} {}", self.n, self.activation, self.layout)?;
        if self.output_type != "f16" {
            write!(f, " -> {}", self.output_type)?;
        }
        match &self.select {
            None => Ok(()),
            Some(ids) => write!(f, " {ids} ids"),
        }
    }
}

impl From<&Case> for Problem {
    fn from(case: &Case) -> Self {
        Self {
            m: case.m,
            n: case.n,
            k: case.k,
            l: case.l,
            activation: case.activation.clone(),
            layout: case.layout.clone(),
            output_type: case.output_type.clone(),
            select: case.select.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Put this problem's operands into memory. A problem that was open before is closed.
    Open(Problem),
    /// Let one way of the open problem take a turn. Way 0 is the ceiling, as far as is known before the turns, way i +
    /// 1 is path i of the case. Behind the paths are the other reads.
    Turn(usize),
    /// Repeat one way of the open problem.
    Sustain { way: usize, seconds: f64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Hello(Box<Hello>),
    /// The case, in which only what is measured is missing.
    Opened(Box<Case>),
    Turned(Turn),
    Sustained(Sustained),
    /// The request cannot be fulfilled. The next one may be.
    Failed(String),
}

/// The first message of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: String,
    /// Without cases.
    pub document: Document,
    /// The problems that its suite and options ask for.
    pub problems: Vec<Problem>,
    /// Problems whose results are worth sustaining.
    pub sustained: Vec<Problem>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of baselines and histories are names: two problems must not share one, and old names stay.
    #[test]
    fn what_differs_has_different_names() {
        let case = |output: &str, select: Option<&str>| {
            let case = Case {
                m: 64,
                n: 1,
                k: 32,
                l: 1,
                activation: "nvfp4".into(),
                layout: "linear".into(),
                output_type: output.into(),
                select: select.map(str::to_owned),
                ..Case::default()
            };
            let problem = Problem::from(&case);
            let text = serde_json::to_string(&problem).unwrap();
            assert_eq!(text.contains("select"), select.is_some());
            assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
            problem.to_string()
        };
        let names = [
            case("f16", None),
            case("f32", None),
            case("f16", Some("late")),
            case("f16", Some("early")),
        ];
        let expected = ["", " -> f32", " late ids", " early ids"];
        assert_eq!(
            names,
            expected.map(|end| format!("64x32 n=1 nvfp4 linear{end}"))
        );
    }
}
