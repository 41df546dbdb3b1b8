//! Measurements of `benches/others.py`: the time that other libraries take for the same layers.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nvfp4_gemv_documents::document::Case;
use serde::Deserialize;

const SCHEMA: &str = "nvfp4-gemv/others/1";

/// The fields that pictures need.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Others {
    pub(super) date_utc: String,
    pub(super) device: Device,
    /// The version of PyTorch, through which the libraries were called.
    pub(super) torch: String,
    cases: Vec<Call>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Device {
    pub(super) name: String,
}

/// One way to compute a layer.
#[derive(Clone, Debug, Deserialize)]
struct Call {
    m: usize,
    k: usize,
    l: usize,
    n: usize,
    /// Type of the weights: `bf16`, `fp8` or `int8`.
    weights: String,
    /// Missing where it could not compute the layer.
    median_us: Option<f64>,
}

impl Others {
    /// The least time that weights of this type take for the layer and vectors of a case.
    pub(super) fn best_us(&self, case: &Case, weights: &str) -> Option<f64> {
        let same = |call: &&Call| {
            (call.m, call.k, call.l, call.n) == (case.m, case.k, case.l, case.n)
                && call.weights == weights
        };
        let times = self.cases.iter().filter(same);
        times
            .filter_map(|call| call.median_us)
            .min_by(f64::total_cmp)
    }
}

pub(super) fn read(file: &Path) -> Result<Others> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    parse(&text).with_context(|| format!("in {}", file.display()))
}

fn parse(text: &str) -> Result<Others> {
    let value: serde_json::Value = serde_json::from_str(text).context("this is no JSON")?;
    super::super::check_text(&value)?;
    if value["schema"] != SCHEMA {
        bail!("the schema is {}, expected {SCHEMA:?}", value["schema"]);
    }
    let others: Others = serde_json::from_value(value)?;
    let mut times = others.cases.iter().filter_map(|call| call.median_us);
    if times.any(|us| !us.is_finite() || us <= 0.0) {
        bail!("a time is not positive");
    }
    Ok(others)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::testing;
    use super::*;

    /// A document of times for the test document's shape and GPU.
    pub(crate) fn text() -> String {
        let call = |n: usize, weights: &str, result: &str| {
            format!(
                r#"{{"m": 4096, "k": 7168, "l": 8, "n": {n}, "weights": "{weights}", {result}}}"#
            )
        };
        let calls = [
            call(1, "bf16", r#""median_us": 45.0"#),
            call(1, "bf16", r#""median_us": 40.0"#),
            call(1, "bf16", r#""error": "not supported""#),
            call(4, "bf16", r#""median_us": 30.0"#),
            call(1, "int8", r#""error": "not supported""#),
        ];
        format!(
            r#"{{"schema": "{SCHEMA}", "date_utc": "2026-11-22T02:00:00Z", "torch": "2.9.0",
                "device": {{"name": "Test GPU <1>"}}, "cases": [{}]}}"#,
            calls.join(", ")
        )
    }

    pub(crate) fn others() -> Others {
        parse(&text()).unwrap()
    }

    #[test]
    fn the_fastest_call_of_the_same_layer_counts() {
        let case = &testing::document().cases[0];
        let others = others();
        assert_eq!(others.best_us(case, "bf16"), Some(40.0));
        assert_eq!(others.best_us(case, "int8"), None);
        assert_eq!(others.best_us(case, "fp8"), None);
    }

    #[test]
    fn other_documents_are_refused() {
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(error("{").contains("no JSON"));
        assert!(error("{}").contains("null"));
        assert!(error(&text().replace("others/1", "others/2")).contains("others/2"));
        assert!(error(&text().replace("40.0", "0.0")).contains("not positive"));
        assert!(error(&text().replace("2.9.0", r"\u001b")).contains("control character"));
    }
}
