//! `bench --serve`: measures turn by turn, as another program asks for it (`protocol.rs`).

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::Document;
use nvfp4_gemv_documents::protocol::{Hello, PROTOCOL, Reply, Request};

use super::measure::Measurer;
use crate::engine::{Case, Ways};

/// Answers every request of `input` on `output`, until `input` ends.
pub(super) fn serve(
    measurer: &Measurer<'_>,
    document: Document,
    cases: &[Case],
    sustained: &[Case],
    input: impl BufRead,
    output: impl Write,
) -> Result<()> {
    let problems = |cases: &[Case]| cases.iter().map(super::problem).collect();
    let mut line = Line { input, output };
    line.say(&Reply::Hello(Box::new(Hello {
        protocol: PROTOCOL.into(),
        document,
        problems: problems(cases),
        sustained: problems(sustained),
    })))?;
    let mut request = line.hear()?;
    while let Some(Request::Open(problem)) = request {
        let served = super::case(&problem).and_then(|case| {
            let mut next = None;
            measurer.with_ways(&case, &mut |case, ways| {
                line.say(&Reply::Opened(Box::new(case)))?;
                next = line.serve_open(ways)?;
                Ok(())
            })?;
            Ok(next)
        });
        request = match served {
            Ok(next) => next,
            // Another problem may still be measured.
            Err(error) => {
                line.say(&Reply::Failed(format!("{error:#}")))?;
                line.until_opened()?
            }
        };
    }
    match request {
        None => Ok(()),
        Some(request) => bail!("{request:?} before a problem was opened"),
    }
}

/// The connection to the other program.
struct Line<R, W> {
    input: R,
    output: W,
}

impl<R: BufRead, W: Write> Line<R, W> {
    fn say(&mut self, reply: &Reply) -> Result<()> {
        serde_json::to_writer(&mut self.output, reply)?;
        self.output.write_all(b"\n")?;
        Ok(self.output.flush()?)
    }

    fn hear(&mut self) -> Result<Option<Request>> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let request = serde_json::from_str(&line);
        request
            .map(Some)
            .with_context(|| format!("this is no request: {}", line.trim_end()))
    }

    /// Lets the open problem's ways take turns, until another problem is asked for.
    fn serve_open(&mut self, ways: &mut dyn Ways) -> Result<Option<Request>> {
        loop {
            let request = self.hear()?;
            let reply = match request {
                None | Some(Request::Open(_)) => return Ok(request),
                Some(Request::Turn(way) | Request::Sustain { way, .. })
                    if way >= ways.ways().len() =>
                {
                    Reply::Failed(format!("there is no way {way}"))
                }
                Some(Request::Turn(way)) => Reply::Turned(ways.turn(way)?),
                Some(Request::Sustain { way, seconds }) => {
                    let time = Duration::try_from_secs_f64(seconds)?;
                    Reply::Sustained(ways.sustain(way, time)?)
                }
            };
            self.say(&reply)?;
        }
    }

    /// After a failure: what was asked of the problem that failed has no answer.
    fn until_opened(&mut self) -> Result<Option<Request>> {
        loop {
            match self.hear()? {
                None => return Ok(None),
                Some(request @ Request::Open(_)) => return Ok(Some(request)),
                Some(_) => self.say(&Reply::Failed("no problem is open".into()))?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use nvfp4_gemv::{Activation, FloatType, GemvPath, ScaleLayout, Shape};

    use super::super::reads::FastestReads;
    use super::*;
    use crate::engine::{self, Ask, Plan};

    /// The program's replies to these lines, on the CPU.
    fn conversation(lines: &[&str]) -> Vec<Reply> {
        let (engine, _) = engine::open(Some(GemvPath::Cpu)).unwrap();
        let plan = Plan {
            rounds: 3,
            cold_bytes: 0,
        };
        let measurer = Measurer {
            engine: engine.as_ref(),
            ask: Ask::of_path(GemvPath::Cpu),
            slowed: &HashMap::new(),
            plan,
            fastest_reads: FastestReads::default(),
            sustain: Duration::ZERO,
            cublas: false,
        };
        let document = super::super::empty(engine.as_ref(), "custom", None, &plan);
        let case = Case {
            select: None,
            shape: Shape::matrix(128, 64).unwrap(),
            activation: Activation::Nvfp4,
            layout: ScaleLayout::Linear,
            output: FloatType::F32,
        };
        let (input, mut output) = (lines.join("\n"), Vec::new());
        serve(
            &measurer,
            document,
            &[case],
            &[case],
            input.as_bytes(),
            &mut output,
        )
        .unwrap();
        let output = String::from_utf8(output).unwrap();
        let replies = output
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        replies.collect()
    }

    #[test]
    fn turns_are_taken_as_asked_and_failures_are_answers() {
        let Reply::Hello(hello) = &conversation(&[])[0] else {
            panic!("no hello");
        };
        assert_eq!(hello.protocol, PROTOCOL);
        assert_eq!(hello.problems, hello.sustained);
        let open = serde_json::to_string(&Request::Open(hello.problems[0].clone())).unwrap();
        let odd = open.replace("64", "65");
        let replies = conversation(&[
            &odd,
            r#"{"turn": 0}"#,
            &open,
            r#"{"turn": 0}"#,
            r#"{"turn": 1}"#,
            r#"{"turn": 9}"#,
            r#"{"sustain": {"way": 1, "seconds": 0.001}}"#,
        ]);
        let [_, odd, early, opened, read, gemv, ninth, sustained] = &replies[..] else {
            panic!("{replies:?}");
        };
        assert!(
            matches!(odd, Reply::Failed(why) if why.contains("65")),
            "{odd:?}"
        );
        assert!(matches!(early, Reply::Failed(why) if why.contains("no problem is open")));
        let Reply::Opened(case) = opened else {
            panic!("{opened:?}");
        };
        assert_eq!((case.m, case.k, case.paths.len()), (128, 64, 1));
        for turn in [read, gemv] {
            assert!(
                matches!(turn, Reply::Turned(turn) if turn.us > 0.0),
                "{turn:?}"
            );
        }
        assert!(matches!(ninth, Reply::Failed(why) if why.contains("no way 9")));
        assert!(matches!(sustained, Reply::Sustained(s) if s.mean_us > 0.0 && s.watts.is_none()));
    }
}
